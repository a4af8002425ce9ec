"""Three sites' shares: the terms add up to the products exactly; what one site sees is uniform whatever the others' data."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from tests.federation import NAMES, gram_sites, gram_study

from intarsia.errors import FederationError
from intarsia.site.gram.shares import Circle, digest, terms, with_checks
from intarsia.wire.gram_messages import CHECKS, PAIRS, check_weights, pair_name
from intarsia.wire.ring import product

MAC = "ab" * 32
SECRETS = {frozenset(pair): bytes([k]) * 32 for k, pair in enumerate((("clinic", "mri"), ("mri", "lab"), ("lab", "clinic")), 1)}


def circles() -> list[Circle]:
    asked = gram_study(gram_sites(dict.fromkeys(NAMES)))
    return [
        Circle(asked, name, {peer: SECRETS[frozenset((name, peer))] for peer in NAMES if peer != name}, MAC) for name in NAMES
    ]


def columns(seed: int, rows: int = 40) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-(2**30), 2**30, (rows, c)).view(np.uint64) for c in (3, 5, 2)]


def test_the_three_terms_add_up_to_every_product():
    parties = circles()
    X = [with_checks(block, bytes([k]) * 32) for k, block in enumerate(columns(0))]
    total = {pair_name(pair): 0 for pair in PAIRS}
    for k, circle in enumerate(parties):
        behind = parties[(k + 1) % 3]
        masked = X[(k + 1) % 3] - behind.own_mask(7, X[(k + 1) % 3].shape)
        received = circle.open(7, behind.seal(7, masked), masked.shape, digest(masked))
        for name, share in terms(circle, 7, X[k], received, X[(k + 2) % 3].shape[1]).items():
            pair = next(p for p in PAIRS if pair_name(p) == name)
            total[name] = total[name] + share + circle.zero(pair, share.shape)
    for i, j in PAIRS:
        assert np.array_equal(total[pair_name((i, j))], product(X[i], X[j]))


def test_check_columns_are_the_weighted_columns():
    block = columns(1)[0]
    wide = with_checks(block, b"s" * 32)
    assert wide.shape == (40, 3 + CHECKS)
    assert np.array_equal(product(wide[:, 3:], block), check_weights(b"s" * 32, 3).T @ product(block, block))


def test_a_seal_opens_for_one_receiver_block_cohort_and_content_only():
    clinic, mri, lab = circles()
    masked = columns(2)[1]
    sealed = mri.seal(0, masked)  # the next site of clinic's circle: for clinic
    assert np.array_equal(clinic.open(0, sealed, masked.shape, digest(masked)), masked)
    assert sealed == mri.seal(0, masked)
    for circle, block, raw in (
        (clinic, 1, sealed),
        (lab, 0, sealed),
        (replace(clinic, order_mac="cd" * 32), 0, sealed),
        (clinic, 0, sealed[:-1] + bytes([sealed[-1] ^ 1])),
    ):
        with pytest.raises(FederationError, match="Refused"):
            circle.open(block, raw, masked.shape, digest(masked))
    with pytest.raises(FederationError, match="committed"):
        clinic.open(0, sealed, masked.shape, digest(masked + np.uint64(1)))


def test_shares_for_the_server_are_uniform_by_themselves():
    """Each share carries a mask of its own: without the others it is the same whatever was multiplied."""
    clinic = circles()[0]
    masks = [clinic.zero(pair, (30, 30)) for pair in PAIRS]
    assert not np.array_equal(masks[0], masks[1])
    for mask in masks:
        share = np.zeros((30, 30), dtype=np.uint64) + mask
        assert stats.kstest(share.ravel() / 2.0**64, "uniform").pvalue > 1e-3


def test_one_site_sees_the_same_law_whatever_the_others_hold():
    """What site 0 gets of site 1: M. Two data sets that could not differ more, the same uniform law, and no trace of the data."""
    behind = circles()[1]
    zero, large = np.zeros((2000, 5), dtype=np.uint64), np.full((2000, 5), 2**30, dtype=np.uint64)
    seen = [data - behind.own_mask(3, data.shape) for data in (zero, large)]
    for view in seen:
        for bit in (0, 13, 30, 47, 63):
            ones = int(((view >> np.uint64(bit)) & np.uint64(1)).sum())
            assert stats.binomtest(ones, view.size).pvalue > 1e-3
        assert stats.kstest(view.ravel() / 2.0**64, "uniform").pvalue > 1e-3
    # With an unrelated secret, as every run has one, the two views are two samples of one law.
    other = replace(
        behind, pairs={name: bytes([255 - secret[0]]) * 32 for name, secret in behind.pairs.items()}, order_mac="cd" * 32
    )
    fresh = large - other.own_mask(3, large.shape)
    assert stats.ks_2samp(seen[0].ravel() / 2.0**64, fresh.ravel() / 2.0**64).pvalue > 1e-3
