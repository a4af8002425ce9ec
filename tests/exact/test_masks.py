"""Masked sums of predictions: masks cancel to the last bit, and no number that does not fit is let in."""

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.site.masks import from_fixed, mask, masked, to_fixed, with_tags
from intarsia.wire.prediction import TAG_PRIME, _added

BITS = 40
NAMES = ("clinic", "lab", "mri")
SECRETS = {frozenset(pair): bytes([i]) * 32 for i, pair in enumerate((("clinic", "lab"), ("clinic", "mri"), ("lab", "mri")))}


def sent(name: str, values: np.ndarray) -> np.ndarray:
    secrets = {peer: SECRETS[frozenset((name, peer))] for peer in NAMES if peer != name}
    return masked(name, secrets, with_tags(to_fixed(values, BITS), bytes(32)))


def added(*messages: np.ndarray) -> np.ndarray:
    total = np.zeros_like(messages[0])
    for message in messages:
        total = _added(total, message)
    return total


def test_the_masks_of_all_sites_cancel_and_the_tags_fit_the_sum() -> None:
    values = {name: np.random.default_rng(k).standard_normal((5, 2)) * 100 for k, name in enumerate(NAMES)}
    total = added(*(sent(name, values[name]) for name in NAMES))
    np.testing.assert_allclose(from_fixed(total[:5], BITS), sum(values.values()), atol=3 * 2.0**-BITS)
    np.testing.assert_array_equal(with_tags(total[:5], bytes(32)), total)
    two = added(sent("clinic", values["clinic"]), sent("lab", values["lab"]))
    assert np.abs(from_fixed(two[:5], BITS)).min() > 1e3  # without one site's part nothing can be read
    assert not (with_tags(two[:5], bytes(32))[5:] == two[5:]).any()


def test_tags_count_modulo_a_prime_so_that_no_change_is_worth_trying() -> None:
    """Modulo 2⁶⁴ the change 2⁶³ passed for every odd factor, and half of the factors let 2⁶² pass."""
    value = np.array([[123456789]], dtype=np.uint64)
    passed = 0
    for secret in range(64):
        tag = with_tags(value, bytes([secret]) * 32)[1, 0]
        for bit in range(40, 64):
            altered = with_tags(value + np.uint64(1 << bit), bytes([secret]) * 32)[1, 0]
            passed += int(altered) in {(int(tag) + (1 << bit)) % 2**64, int(tag), (int(tag) + (3 << bit)) % 2**64}
    assert passed == 0
    assert TAG_PRIME == 2**61 - 1
    assert with_tags(value, bytes(32))[1, 0] < TAG_PRIME


def test_a_mask_is_uniform_and_its_own_for_every_secret() -> None:
    first = mask(bytes(32), (4000,))
    assert abs(first.astype(np.float64).mean() / 2.0**64 - 0.5) < 0.02
    assert not (first == mask(b"\1" + bytes(31), (4000,))).any()


def test_fixed_numbers_come_back_to_their_last_step() -> None:
    values = np.array([0.0, -1.5, 2.0e6, -2.0e6, 2.0**-BITS])
    np.testing.assert_array_equal(from_fixed(to_fixed(values, BITS), BITS), values)


@pytest.mark.parametrize("value", [2.2e6, -2.2e6, np.nan, np.inf])
def test_a_number_that_does_not_fit_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="too large for the exact masked sum"):
        to_fixed(np.array([0.0, value]), BITS)
