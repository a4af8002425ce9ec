"""Shares among three holders: the terms add up to the products exactly; what one holder sees is uniform whatever the data."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from tests.federation import NAMES, gram_sites, gram_study

from intarsia.errors import FederationError
from intarsia.site.gram.shares import Circle, Splitting, fold_places
from intarsia.wire.gram_messages import GramBlock, GramDeal
from intarsia.wire.gram_packets import Holder
from intarsia.wire.gram_sharing import (
    CHECKS,
    TAIL,
    Sharing,
    check_weights,
    commitment,
    cuts,
    digest,
    expected_opening,
    opening,
    opening_weights,
    stream,
    tail_part,
    terms,
)
from intarsia.wire.ring import product, square
from intarsia.wire.study_parts import SERVER

MAC = "ab" * 32
SECRETS = {frozenset(pair): bytes([k]) * 32 for k, pair in enumerate((("clinic", "mri"), ("mri", "lab"), ("lab", "clinic")), 1)}
ROSTERS = {
    "three sites": Sharing(("a", "b", "c"), ("a", "b", "c")),
    "in another circle": Sharing(("a", "b", "c"), ("c", "b", "a")),
    "two sites and the server": Sharing(("a", "b"), ("a", "b", SERVER)),
    "the server first": Sharing(("a", "b"), (SERVER, "a", "b")),
    "four sites": Sharing(("a", "b", "c", "d"), ("b", "d", "a")),
    "five sites": Sharing(("a", "b", "c", "d", "e"), ("b", "e", "c")),
}


def circles() -> list[Circle]:
    asked = gram_study(gram_sites(dict.fromkeys(NAMES)))
    return [
        Circle(asked, name, {peer: SECRETS[frozenset((name, peer))] for peer in NAMES if peer != name}, MAC) for name in NAMES
    ]


def columns(sharing: Sharing, seed: int = 0, rows: int = 40) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-(2**30), 2**30, (rows, 2 + k)).view(np.uint64) for k, name in enumerate(sharing.sites)}


def splittings(sharing: Sharing) -> dict[str, Splitting]:
    return {name: Splitting(sharing, name, bytes([k]) * 32) for k, name in enumerate(sharing.sites)}


@pytest.mark.parametrize("sharing", ROSTERS.values(), ids=ROSTERS)
def test_the_three_terms_add_up_to_every_product(sharing):
    X, split = columns(sharing), splittings(sharing)
    wide = {name: split[name].wide(X[name]) for name in sharing.sites}
    shares = {name: split[name].shares(7, wide[name]) for name in sharing.sites}
    total = dict.fromkeys(sharing.pairs, np.uint64(0))
    for holder in sharing.holders:
        held = sharing.held(holder)
        mine = {name: {place: share for place, share in found.items() if place in held} for name, found in shares.items()}
        for pair, term in terms(sharing, holder, mine).items():
            total[pair] = total[pair] + term
    for pair, (a, b) in sharing.pairs.items():
        assert np.array_equal(total[pair], product(wide[a], wide[b]))


@pytest.mark.parametrize("sharing", ROSTERS.values(), ids=ROSTERS)
def test_one_holder_lacks_a_share_of_everybody_elses_and_two_have_all(sharing):
    for site in sharing.sites:
        places = {*sharing.seeded(site), sharing.sent(site)}
        for holder in sharing.holders:
            assert holder == site or places - set(sharing.held(holder))
        for one in sharing.holders:
            for two in sharing.holders:
                assert one == two or places <= {*sharing.held(one), *sharing.held(two)}
        opened = sharing.openers(site)
        assert sorted(opened.values()) == sorted(places)  # every share is opened by one holder, never by the site itself
        assert site not in opened
        assert all(place in sharing.held(holder) for holder, place in opened.items())


@pytest.mark.parametrize("sharing", ROSTERS.values(), ids=ROSTERS)
def test_what_is_opened_fits_the_own_block_and_no_other(sharing):
    X, split = columns(sharing, 1), splittings(sharing)
    coins = {name: split[name].coin for name in sharing.sites}
    for name, block in X.items():
        shares, z = split[name].shares(3, split[name].wide(block)), split[name].z(3, len(block))
        tail = np.concatenate([product(block, z), product(z, z)])[None]
        weights = opening_weights(coins, name, block.shape[1])
        sent, w, told = split[name].tail_sent(tail), np.uint64(0), np.uint64(0)
        for holder, place in sharing.openers(name).items():
            seed = split[name].mask_seed(holder)
            w = w + opening(shares[place], weights, stream(seed, 3, (len(block), CHECKS)))
            mine = sent if holder == sharing.tail_to(name) else stream(seed, TAIL, tail.shape)
            told = told + tail_part(mine[0], weights)
        G = square(block)
        assert np.array_equal(square(w), expected_opening(G, weights) + told)
        for by in (1, 2**20, 2**62):
            other = G.copy()
            other[0, [1]] += np.uint64(by)
            other[1, [0]] += np.uint64(by)
            assert not np.array_equal(square(w), expected_opening(other, weights) + told)


def test_what_is_opened_is_uniform_whatever_the_columns():
    """Zero columns: without z all of w would be zero. With the weights, w and the mask of one opener nothing else is left."""
    sharing = ROSTERS["three sites"]
    split = Splitting(sharing, "a", b"z" * 32)
    block = np.zeros((3000, 4), dtype=np.uint64)
    w = split.z(0, len(block))
    assert stats.kstest(w.ravel() / 2.0**64, "uniform").pvalue > 1e-3
    (one, two) = sharing.openers("a")
    assert not np.array_equal(stream(split.mask_seed(one), 0, w.shape), w)
    assert not np.array_equal(stream(split.mask_seed(two), 0, w.shape), w)


def test_weights_need_every_coin():
    coins = {"a": b"1" * 32, "b": b"2" * 32}
    first = opening_weights(coins, "a", 3)
    assert np.array_equal(first, opening_weights(dict(reversed(coins.items())), "a", 3))
    assert not np.array_equal(first, opening_weights(coins | {"b": b"3" * 32}, "a", 3))
    assert not np.array_equal(first, opening_weights(coins, "b", 3))


def test_check_columns_are_the_weighted_columns():
    split = Splitting(ROSTERS["three sites"], "a", b"s" * 32)
    block = columns(split.sharing)["c"]
    wide = split.wide(block)
    assert wide.shape == (40, 4 + CHECKS)
    weights = check_weights(split.check_seed, 4)
    assert np.array_equal(product(wide[:, 4:], block), weights.T @ product(block, block))


def sealed(split: Splitting, circle: Circle, to: str, sent: np.ndarray) -> GramDeal:
    h = split.sharing.holders.index(to)
    packet = split.packet(to, sent, np.zeros((1, 5 + CHECKS, CHECKS), dtype=np.uint64))
    return GramDeal(circle.name, circle.study.hash, 0, MAC, split.coin, {h: circle.seal(to, 0, packet)})


def test_a_seal_opens_for_one_receiver_block_cohort_and_content_only():
    clinic, mri, lab = circles()
    split = Splitting(mri.sharing, "mri", b"m" * 32)
    sent = np.arange(40 * (5 + CHECKS), dtype=np.uint64).reshape(40, -1)
    tail = digest(np.zeros((1, 5 + CHECKS, CHECKS), dtype=np.uint64))
    block = GramBlock(
        "mri", mri.study.hash, tuple("abcde"), (), (), 40, (40,), 26, MAC, "0" * 32, commitment(split.check_seed),
        commitment(split.coin), tuple(map(commitment, split.seeds.values())), np.zeros((1, 5, 5), dtype=np.uint64),
        np.frombuffer(digest(sent) + tail, dtype=np.uint8).reshape(2, 32),
    )  # fmt: skip
    holder, cut = Holder(mri.sharing, "clinic", {"mri": block}), cuts((40,), None)[0]
    deal = sealed(split, mri, "clinic", sent)
    found = clinic.open(holder, block, deal, cut)
    assert np.array_equal(found.numbers, sent)
    assert deal == sealed(split, mri, "clinic", sent)
    raw = deal.sealed[0]
    for circle, other in (
        (clinic, replace(deal, block=1)),
        (lab, replace(deal, sealed={2: raw})),
        (replace(clinic, order_mac="cd" * 32), deal),
        (clinic, replace(deal, sealed={0: raw[:-1] + bytes([raw[-1] ^ 1])})),
        (clinic, replace(deal, sealed={})),
    ):
        with pytest.raises(FederationError, match="Refused"):
            circle.open(holder, block, other, cut)
    for wrong in (
        replace(block, commitments=block.commitments[::-1].copy()),
        replace(block, coin=commitment(b"other" * 7)),
    ):
        with pytest.raises(FederationError, match="committed"):
            clinic.open(holder, wrong, deal, cut)
    seeded = Holder(mri.sharing, "lab", {"mri": block})
    to_lab = sealed(split, mri, "lab", sent)
    assert lab.open(seeded, block, to_lab, cut).numbers is None
    with pytest.raises(FederationError, match="committed"):
        lab.open(seeded, replace(block, seeds=(commitment(b"another"),)), to_lab, cut)


def test_shares_for_the_server_are_uniform_by_themselves():
    """Each share carries a mask of its own: without the others it is the same whatever was multiplied. Together they are zero."""
    masks = [[circle.zero(k, (1, 30, 30)) for circle in circles()] for k in range(3)]
    assert not np.array_equal(masks[0][0], masks[1][0])
    for of_pair in masks:
        assert not (of_pair[0] + of_pair[1] + of_pair[2]).any()
        for mask in of_pair:
            assert stats.kstest(mask.ravel() / 2.0**64, "uniform").pvalue > 1e-3


def test_one_site_sees_the_same_law_whatever_the_others_hold():
    """Two data sets that could not differ more, the same uniform law of each share, and no trace of the data."""
    zero, large = np.zeros((2000, 5), dtype=np.uint64), np.full((2000, 5), 2**30, dtype=np.uint64)
    for sharing, site in ((ROSTERS["three sites"], "a"), (ROSTERS["five sites"], "a")):  # a holder, and one that holds none
        seen = [Splitting(sharing, site, bytes([k]) * 32).shares(3, data) for k, data in enumerate((zero, large))]
        for place, view in (*seen[0].items(), *seen[1].items()):
            for bit in (0, 13, 30, 47, 63):
                ones = int(((view >> np.uint64(bit)) & np.uint64(1)).sum())
                assert stats.binomtest(ones, view.size).pvalue > 1e-3, (place, bit)
            assert stats.kstest(view.ravel() / 2.0**64, "uniform").pvalue > 1e-3
        for place in seen[0]:
            assert stats.ks_2samp(seen[0][place].ravel() / 2.0**64, seen[1][place].ravel() / 2.0**64).pvalue > 1e-3


def test_folds_are_equal_in_size_and_need_the_key():
    tokens = np.random.default_rng(0).integers(0, 256, (103, 16), dtype=np.uint8)
    part = fold_places(tokens, b"k" * 32, 5)
    assert sorted(np.bincount(part)) == [20, 20, 21, 21, 21]
    assert np.array_equal(np.bincount(part), [21, 21, 21, 20, 20])  # as `SketchPlan.fold_sizes` says
    shuffled = np.random.default_rng(1).permutation(103)
    assert np.array_equal(fold_places(tokens[shuffled], b"k" * 32, 5), part[shuffled])
    assert (fold_places(tokens, b"q" * 32, 5) == part).mean() < 0.5


def test_blocks_end_where_a_fold_does():
    found = cuts((250, 249), 100)
    assert [(cut.fold, cut.start, cut.stop) for cut in found] == [
        (0, 0, 100), (0, 100, 200), (0, 200, 250), (1, 250, 350), (1, 350, 450), (1, 450, 499)
    ]  # fmt: skip
