"""Sets of interchangeable features, on posteriors whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from intarsia.server.assess import sets as module
from intarsia.server.assess.findings import select
from intarsia.server.assess.local_fdr import calibrate
from intarsia.server.assess.sets import FeatureSet

m, P, Q = 200, 12, 2


def undecided(r: float = 0.99, sign: float = 1.0, sure: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows and draws: features 0 and 1 are twins, in each draw one of them carries the effect; 5 is sure; the rest is null."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, P))
    X[:, 1] = sign * (r * X[:, 0] + np.sqrt(1 - r**2) * rng.standard_normal(m))
    C = 0.02 * rng.standard_t(3, (2, 500, P, Q))
    C[:, :, 5] = 1 + 0.1 * rng.standard_normal((2, 500, Q))
    first = np.ones((2, 500), dtype=bool) if sure else rng.random((2, 500)) < 0.5
    effect = np.array([1.3, -0.8]) + 0.1 * rng.standard_normal((2, 500, Q))
    C[:, :, 0] += first[..., None] * effect
    C[:, :, 1] += ~first[..., None] * sign * effect
    return C, X


def test_undecided_twins_are_found_as_a_set():
    C, X = undecided()
    alone = select(C)
    assert alone.selected.tolist() == [p == 5 for p in range(P)]
    found = select(C, X=X)
    np.testing.assert_array_equal(found.selected, alone.selected)
    assert [f.tolist() for f in found.findings] == [[5], [0, 1]]
    (pair,) = found.sets
    assert pair.local_fdr < 0.01
    np.testing.assert_allclose(pair.mean, [1.3, -0.8], atol=0.15)
    assert 0.95 < pair.purity < 1
    assert pair.strongest == 0
    assert found.expected_fdr <= 0.05
    told = pair.to_dict()
    assert told["members"] == [0, 1]
    assert told["coverage"] > 0.99
    assert told["log_bayes_factor"] is None  # the horseshoe gives no set prior odds


def test_twins_of_opposite_sign_are_one_set_too():
    C, X = undecided(sign=-1.0)
    assert [f.tolist() for f in select(C, X=X).findings] == [[5], [0, 1]]


def test_a_twin_that_can_be_named_is_named():
    C, X = undecided(sure=True)
    assert [f.tolist() for f in select(C, X=X).findings] in ([[0], [5]], [[5], [0]])


def test_features_the_data_tell_apart_are_no_set():
    C, X = undecided(r=0.2)
    assert [f.tolist() for f in select(C, X=X).findings] == [[5]]


def neighbours(t: int) -> tuple[np.ndarray, np.ndarray]:
    """Forty features correlated at .9 with the next: t or one of its two neighbours carries the effect in each draw."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((300, 40))
    for p in range(1, 40):
        X[:, p] = 0.9 * X[:, p - 1] + np.sqrt(1 - 0.81) * X[:, p]
    C = 0.005 * rng.standard_t(3, (2, 400, 40, Q))
    who = t + rng.choice([-1, 0, 1], size=(2, 400), p=[0.2, 0.6, 0.2])
    effect = np.array([0.6, -0.4]) + 0.05 * rng.standard_normal((2, 400, Q))
    C += (np.arange(40) == who[..., None])[..., None] * effect[:, :, None]
    return C, X - X.mean(axis=0)


def test_a_feature_and_its_neighbours_are_one_set_wherever_they_stand(monkeypatch):
    """A tree cuts somewhere: sets from trees alone miss some of them."""
    for t in range(2, 38):
        C, X = neighbours(t)
        (found,) = select(C, X=X).findings
        assert t in found
        assert len(found) <= module.MOST_AROUND
    monkeypatch.setattr(module, "MOST_CENTRES", 0)
    assert any(not select(*neighbours(t)[:1], X=neighbours(t)[1]).findings for t in range(2, 38))


def test_null_twins_are_nothing():
    C, X = undecided()
    C[:, :, :2] = 0.02 * np.random.default_rng(3).standard_t(3, (2, 500, 2, Q))
    assert select(C, X=X).sets == ()


def test_the_smallest_set_is_taken():
    """A third feature, correlated less, stays outside when the pair alone passes."""
    C, X = undecided()
    X[:, 2] = 0.8 * X[:, 0] + 0.6 * X[:, 2]
    (pair,) = select(C, X=X).sets
    assert pair.members.tolist() == [0, 1]


def test_a_doubtful_feature_gives_way_to_its_set():
    """Sure features leave room for a single with a local fdr above the rate; the set of twins says more, and says it surely."""
    C, X = undecided()
    rng = np.random.default_rng(1)
    C[:, :, :2] = 0
    mostly = rng.random((2, 500)) < 0.93
    effect = 1.3 + 0.1 * rng.standard_normal((2, 500, Q))
    spike = 0.01 * rng.standard_normal((2, 500, 2, Q))
    C[:, :, 0] = spike[:, :, 0] + mostly[..., None] * effect
    C[:, :, 1] = spike[:, :, 1] + ~mostly[..., None] * effect
    C[:, :, 6:] = 1 + 0.1 * rng.standard_normal((2, 500, P - 6, Q))
    alone = select(C, max_local_fdr=0.2)
    assert 0.05 < alone.local_fdr[0] < 0.2
    assert alone.selected[0]
    found = select(C, X=X, max_local_fdr=0.2)
    assert not found.selected[0]
    assert [g.members.tolist() for g in found.sets] == [[0, 1]]
    assert found.expected_fdr < alone.expected_fdr


def doubtful(share: float = 0.055, sure: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Twins of which neither carries the effect in a share of the draws, beside so many sure features."""
    C, X = undecided()
    rng = np.random.default_rng(2)
    without = rng.random((2, 500)) < share
    C[:, :, :2][without] = 0.02 * rng.standard_normal((without.sum(), 2, Q))
    C[:, :, 5] = 0.02 * rng.standard_t(3, (2, 500, Q))
    C[:, :, 5 : 5 + sure] = 1 + 0.1 * rng.standard_normal((2, 500, sure, Q))
    return C, X


def test_sure_findings_leave_room_for_a_doubtful_set():
    C, X = doubtful()
    found = select(C, X=X)
    (pair,) = found.sets
    assert pair.members.tolist() == [0, 1]
    assert 0.05 < pair.local_fdr < 0.1
    assert len(found.findings) == 6
    np.testing.assert_allclose(found.expected_fdr, np.mean([*found.local_fdr[5:10], pair.local_fdr]))
    assert found.expected_fdr <= 0.05


def test_without_that_room_or_with_more_doubt_it_stays_out():
    C, X = doubtful(sure=0)
    assert not select(C, X=X).findings
    C, X = doubtful()
    assert len(select(C, X=X, max_local_fdr=0.05).findings) == 5
    assert len(select(C, X=X, fdr=0.005).findings) == 5
    C, X = doubtful(share=0.12)
    assert len(select(C, X=X).findings) == 5


def test_units_do_not_matter():
    C, X = undecided()
    scale = np.ones(P)
    scale[1] = 1000.0
    (pair,) = select(C, X=X).sets
    (scaled,) = select(C / scale[:, None], X=X * scale).sets
    np.testing.assert_allclose(scaled.mean, pair.mean, rtol=1e-10)


def test_of_very_many_features_the_largest_are_looked_at(monkeypatch):
    monkeypatch.setattr(module, "MOST_CENTRES", 1)
    monkeypatch.setattr(module, "LARGEST", 4)
    C, X = undecided()
    assert [f.tolist() for f in select(C, X=X).findings] == [[5], [0, 1]]


def test_a_set_acts_where_it_shows_most_and_where_it_is_sure_by_itself() -> None:
    def made(mean: list[float]) -> FeatureSet:
        sd = np.full(len(mean), 0.1)
        local = calibrate(2 * stats.norm.sf(np.abs(mean) / sd))
        return FeatureSet(np.array([1, 2]), 0.999, 0.9, np.array(mean), sd, local)

    one = made([0.9, 0.2, -0.4, 0.01])
    assert one.acts_on(0.05) == [0, 2]  # two standard deviations are an interval without zero, and no finding
    assert one.local_fdr == pytest.approx(0.001)
    assert made([0.01, 0.2]).acts_on(0.05) == [1]
