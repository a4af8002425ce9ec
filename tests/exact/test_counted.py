"""Findings, sets and convergence of a sparse posterior, on draws whose truth is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.sparse_draws import CHAINS, DRAWS, P, Q, at_random, made

from intarsia.server.assess.assessment import Assessment, Flat, assess, keep, kept
from intarsia.server.assess.convergence import diagnose
from intarsia.server.assess.effects import effects_of, sets_of
from intarsia.server.assess.findings import select
from intarsia.server.assess.leave_one_out import Rows, with_background
from intarsia.server.assess.sets import COVERAGE
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.posterior.sparse import LEAST_PIP
from intarsia.wire.plain import probability
from intarsia.wire.result_table import table_columns, table_rows

m = 80


def rows(seed: int = 0, twins: float = 0.95) -> np.ndarray:
    """Rows whose features 5, 6 and 7 are alike, the others not."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, P))
    for p in (6, 7):
        X[:, p] = twins * X[:, 5] + np.sqrt(1 - twins**2) * X[:, p]
    return X - X.mean(axis=0)


def one_of(members: list[int], shares: list[float], seed: int = 0) -> np.ndarray:
    """Feature 0 always; of the members one at a time, as often as said; the others seldom."""
    rng = np.random.default_rng(seed)
    inside = rng.random((4, 500, P)) < 0.005
    who = rng.choice([*members, -1], size=(4, 500), p=[*shares, 1 - sum(shares)])
    inside[..., members] = who[..., None] == np.array(members)
    inside[..., 0] = True
    return inside


def test_probabilities_are_counted_and_never_none_or_all() -> None:
    inside = at_random()
    draws, C = made(inside)
    found = select(draws)
    N = CHAINS * DRAWS
    np.testing.assert_allclose(found.pip, inside.mean(axis=(0, 1)))
    positive, negative = ((C > 0).sum(axis=(0, 1)), (C < 0).sum(axis=(0, 1)))
    np.testing.assert_allclose(found.lfsr, (np.minimum(N - positive, N - negative) + 0.5) / (N + 1))
    zero = ((C == 0).sum(axis=(0, 1)) + 0.5) / (N + 1)
    np.testing.assert_allclose(found.local_fdr_by_response, np.maximum(zero, 1 - found.pip[:, None]))
    assert ((found.lfsr > 0) & (found.lfsr < 1)).all()
    assert found.counted
    # In one draw of ten these features are out, and in one of five more without an effect on the second response.
    assert select(draws, fdr=0.15).by_response[:4].tolist() == [[True, False]] * 4


def test_the_rate_is_used_where_there_is_doubt_and_nothing_is_chosen_that_is_likelier_wrong() -> None:
    draws, _ = made(at_random())
    assert draws.inclusion is not None
    pip = np.zeros(P)
    pip[:10] = [1, 1, 1, 1, 1, 1, 0.9, 0.75, 0.72, 0.49]
    sure = replace(draws, inclusion=replace(draws.inclusion, pip=np.tile(pip, (CHAINS, 1))))
    found = select(sure, fdr=0.08)
    assert np.flatnonzero(found.selected).tolist() == list(range(9))
    assert found.expected_fdr == pytest.approx((0.1 + 0.25 + 0.28) / 9)
    assert np.flatnonzero(select(sure, fdr=0.05).selected).tolist() == list(range(8))
    assert np.flatnonzero(select(sure, fdr=0.2).selected).tolist() == list(range(9))  # .49 stays out, whatever room there is


def test_a_finding_stands_beyond_a_background_without_one_or_both() -> None:
    draws, _ = made(at_random())
    assert draws.inclusion is not None
    pip, without = np.zeros(P), np.zeros(P)
    pip[[0, 1]], without[[1, 2]] = 0.99, 0.99
    known = replace(draws.inclusion, pip=np.tile(pip, (CHAINS, 1)), pip_without=without)
    found = select(replace(draws, inclusion=known))
    assert [found.stands(p) for p in range(4)] == ["beyond a background", "both", "without a background", ""]
    assert np.flatnonzero(found.selected).tolist() == [0, 1]
    posterior = Posterior.from_draws(replace(draws, inclusion=known))
    assessment = assess(posterior)
    assert assessment.summary(posterior.features, posterior.responses)["stands"] == {
        "x0": "beyond a background", "x1": "both", "x2": "without a background",
    }  # fmt: skip
    told = {row["feature"]: row["stands"] for row in table_rows(table_columns(effects_of(posterior, assessment)))}
    assert (told["x1"], told["x2"], told["x3"]) == ("both", "without a background", None)


def test_features_that_stand_for_each_other_are_a_set() -> None:
    draws, _ = made(one_of([5, 6, 7], [0.5, 0.3, 0.18]))
    found = select(draws, X=rows())
    (one,) = found.sets
    assert one.members.tolist() == [5, 6, 7]
    assert 0.95 < one.coverage < 1
    assert one.purity == pytest.approx(np.abs(np.corrcoef(rows()[:, [5, 6, 7]].T)).min())
    prior = 1 - 0.95**3
    assert one.log_bayes_factor == pytest.approx(np.log(one.coverage / one.local_fdr / (prior / (1 - prior))))
    assert [f.tolist() for f in found.findings] == [[0], [5, 6, 7]]
    assert one.acts_on(0.05)[0] == 0  # on the second response one in five of these effects is zero
    assert found.expected_fdr == pytest.approx(np.mean([found.local_fdr[0], one.local_fdr]))
    posterior = Posterior.from_draws(draws)
    (row, *_) = sets_of(posterior, assess(posterior, X=rows()))
    assert (row["feature"], row["role"], row["set"]) == ("one of x5, x6, x7", "set", 1)
    assert row["coverage"] == one.coverage


def test_the_smallest_set_that_covers_is_taken() -> None:
    found = select(made(one_of([5, 6, 7], [0.6, 0.38, 0.015]))[0], X=rows())
    assert [one.members.tolist() for one in found.sets] == [[5, 6]]


@pytest.mark.parametrize(
    ("shares", "twins", "together"),
    [([0.5, 0.3, 0.1], 0.95, False), ([0.5, 0.3, 0.18], 0.2, False), ([0.5, 0.3, 0.18], 0.95, True)],
    ids=["they do not cover", "the data tell them apart", "they are in together"],
)
def test_what_does_not_cover_or_substitute_is_no_set(shares: list[float], twins: float, together: bool) -> None:
    inside = one_of([5, 6, 7], shares)
    if together:  # each by itself as often as it likes: that one is in says nothing of the others
        inside[..., 5:8] = np.random.default_rng(1).random((4, 500, 3)) < [0.7, 0.7, 0.7]
    assert select(made(inside)[0], X=rows(twins=twins)).sets == ()


@pytest.mark.parametrize("seldom", [True, False])
def test_two_that_are_often_in_must_meet_and_still_stand_for_each_other(seldom: bool) -> None:
    """Where few features were looked at a twin is in now and then beside the one that carries the effect."""
    inside = one_of([5, 6, 7], [0.5, 0.3, 0.18])
    rng = np.random.default_rng(2)
    first, second = rng.random((2, 4, 500)) < 0.8
    inside[..., 5], inside[..., 7] = first, False
    inside[..., 6] = np.where(first, rng.random((4, 500)) < 0.6, rng.random((4, 500)) < 0.98) if seldom else second
    found = select(made(inside)[0], X=rows()).sets
    assert [one.members.tolist() for one in found] == ([[5, 6]] if seldom else [])


def test_every_two_members_are_alike() -> None:
    """Both 6 and 7 are like 5 and not like each other: the three together name nothing."""
    X = np.random.default_rng(0).standard_normal((m, P))
    X[:, 6], X[:, 7] = 0.8 * X[:, 5] + 0.6 * X[:, 6], 0.8 * X[:, 5] - 0.6 * X[:, 6]
    assert select(made(one_of([5, 6, 7], [0.5, 0.3, 0.18]))[0], X=X).sets == ()


def test_a_feature_that_can_be_named_is_in_no_set() -> None:
    found = select(made(one_of([5, 6, 7], [0.97, 0.02, 0.01]))[0], X=rows())
    assert found.sets == ()
    assert np.flatnonzero(found.selected).tolist() == [0, 5]


def test_sets_cover_what_they_state() -> None:
    """Over many posteriors of which one member is the true one: told by chance as often as it is in."""
    rng, told, true = np.random.default_rng(3), 0, 0
    for seed in range(60):
        shares = rng.dirichlet([2, 2, 1]) * 0.985
        who = rng.choice([5, 6, 7, -1], p=[*shares, 1 - shares.sum()])
        for one in select(made(one_of([5, 6, 7], shares.tolist(), seed))[0], X=rows()).sets:
            told += 1
            true += who in one.members
    assert told > 40
    assert true / told > COVERAGE - 2 * np.sqrt(COVERAGE * (1 - COVERAGE) / told)


def test_convergence_is_that_of_what_comes_into_play() -> None:
    draws, _ = made(one_of([5], [0.5]))
    found = diagnose(draws)
    assert draws.inclusion is not None
    assert found.places is not None
    assert found.places.tolist() == np.flatnonzero(draws.inclusion.mean() > LEAST_PIP).tolist()
    assert found.converged
    assert f"of features that come into play ({len(found.places)})" in found.verdict
    assert found.rhat.shape == (len(found.places), Q)
    assert {row["parameter"] for row in found.parameters.worst(9)} == {"included", "slab", "background_ratio"}  # type: ignore[union-attr]


def test_chains_that_differ_in_what_they_include_have_not_converged() -> None:
    inside = one_of([5], [0.5])
    inside[0, :, 5], inside[1, :, 5] = True, False
    found = diagnose(Posterior.from_draws(made(inside)[0]))
    assert not found.converged
    assert found.pip_gap == 1.0
    assert "differ between chains by at most 1, more than 0.25" in found.verdict
    assert found.worst(1)[0]["feature"] == "x5"


def test_an_assessment_of_sparse_draws_is_kept_by_its_fields(tmp_path: Path) -> None:
    draws, _ = made(one_of([5, 6, 7], [0.5, 0.3, 0.18]), without=np.linspace(0, 1, P))
    X = rows()
    Y = draws.fitted(X, np.array([0]))[0] + np.random.default_rng(0).standard_normal((m, Q))
    posterior = Posterior.from_draws(draws)
    made_here = keep(posterior, assess(posterior, Rows.of(X, Y), X=X, Y=Y))
    back = kept(Posterior.load(posterior.save(tmp_path / "fit.nc")))
    assert isinstance(back, Assessment)
    assert isinstance(back.flat, Flat)
    assert [one.to_dict() for one in back.findings.sets] == [one.to_dict() for one in made_here.findings.sets]
    for one, other in ((back.findings, made_here.findings), (back.diagnosis, made_here.diagnosis), (back.loo, made_here.loo)):
        for name, value in vars(other).items():
            if isinstance(value, np.ndarray):
                assert getattr(one, name).dtype == value.dtype, name
                np.testing.assert_array_equal(getattr(one, name), value, err_msg=name)
    assert back.summary(posterior.features, posterior.responses) == made_here.summary(posterior.features, posterior.responses)
    assert back.diagnosis.verdict == made_here.diagnosis.verdict
    keep(posterior, replace(made_here, flat=None))
    again = kept(posterior)
    assert again is not None
    assert again.flat is None


def test_rows_that_share_a_background_are_left_out_exactly() -> None:
    """Against the conditional law of one row given the others, from the joint covariance of all."""
    draws, _ = made(at_random(), background=True)
    X = rows()
    Y = np.random.default_rng(5).standard_normal((m, Q))
    at = replace(draws, parameters=draws.parameters | {"background_ratio": np.full((CHAINS, DRAWS), 0.7)})
    posterior = Posterior.from_draws(at)
    density, mean = with_background(posterior, Rows.of(X, Y))
    scaled = X / np.sqrt(np.square(X).mean(axis=0))
    S = np.eye(m) + 0.7 * scaled @ scaled.T / P
    left = Y - replace(at, background=None).times(X)[1, 7]
    for i in (0, 33):
        others = np.arange(m) != i
        weight = np.linalg.solve(S[np.ix_(others, others)], S[others, i])
        variance = S[i, i] - weight @ S[others, i]
        centre = Y[i] - left[i] + weight @ left[others]
        np.testing.assert_allclose(mean[1, 7, i], centre)
        Sigma = variance * at.Sigma[1, 7]
        off = Y[i] - centre
        expected = -0.5 * off @ np.linalg.solve(Sigma, off) - 0.5 * np.linalg.slogdet(2 * np.pi * Sigma)[1]
        assert density[1, 7, i] == pytest.approx(expected)


def test_a_probability_is_told_no_closer_than_its_draws_can() -> None:
    assert [probability(p) for p in (0.0, 0.0004, 0.25, 0.9996, 1.0)] == ["< 0.001", "< 0.001", "0.250", "> 0.999", "> 0.999"]
    assert probability(1.0, 200) == "> 0.995"
    assert probability(0.0, 10**6) == "< 0.001"
