"""Masked sums of predictions: masks cancel to the last bit, and no number that does not fit is let in."""

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.site.masks import from_fixed, mask, to_fixed, total_mask

BITS = 40
NAMES = ("clinic", "lab", "mri")
SECRETS = {frozenset(pair): bytes([i]) * 32 for i, pair in enumerate((("clinic", "lab"), ("clinic", "mri"), ("lab", "mri")))}


def masked(name: str, values: np.ndarray) -> np.ndarray:
    secrets = {peer: SECRETS[frozenset((name, peer))] for peer in NAMES if peer != name}
    return to_fixed(values, BITS) + total_mask(name, secrets, values.shape)


def test_the_masks_of_all_sites_cancel() -> None:
    values = {name: np.random.default_rng(k).standard_normal((5, 2)) * 100 for k, name in enumerate(NAMES)}
    total = sum((masked(name, values[name]) for name in NAMES), np.zeros((5, 2), dtype=np.uint64))
    np.testing.assert_allclose(from_fixed(total, BITS), sum(values.values()), atol=3 * 2.0**-BITS)
    two = masked("clinic", values["clinic"]) + masked("lab", values["lab"])
    assert np.abs(from_fixed(two, BITS)).min() > 1e3  # without one site's part nothing can be read


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
