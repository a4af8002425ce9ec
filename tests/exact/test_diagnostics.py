"""The batch diagnostics equal ArviZ's one at a time; the verdict says what to do."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from arviz_stats.base import array_stats
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import InputError
from intarsia.server.assess import diagnostics
from intarsia.server.assess.convergence import Diagnosis, diagnose
from intarsia.server.assess.diagnostics import entries, rhat_from_moments
from intarsia.server.posterior.draws import Draws, diagonal

ARVIZ = {
    "rhat": lambda x: array_stats.rhat(x, method="z_scale"),
    "rhat_folded": lambda x: array_stats.rhat(x, method="folded"),
    "ess_bulk": lambda x: array_stats.ess(x, method="bulk"),
    "ess_tail": lambda x: array_stats.ess(x, method="tail", prob=(0.05, 0.95)),
    "mcse": lambda x: array_stats.mcse(x, method="mean"),
    "mcse_sd": lambda x: mcse_sd(x),
}


def mcse_sd(x: np.ndarray) -> float:
    """By the effective sample size of the squares, as ArviZ 0.23 and 1.3 have it; arviz-stats 0.8 takes that of the mean."""
    squares = np.square(x - x.mean())
    spread = np.square(squares).mean() - squares.mean() ** 2
    return float(np.sqrt(spread / array_stats.ess(squares, method="mean") / squares.mean() / 4))


def autoregressive(seed: int, chains: int, draws: int, entries: int = 24) -> np.ndarray:
    """AR(1) from almost alternating to almost stuck, with every kind of column that needs care."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((chains, draws, entries))
    phi = np.linspace(-0.95, 0.995, entries)
    for t in range(1, draws):
        x[:, t] += phi * x[:, t - 1]
    x[:, :, 3] = 2.0
    x[0, 1, 4] = np.nan
    x[:, :, 5] = np.round(x[:, :, 5])
    x[0, :, 6] += 5
    x[:, :, 7] = np.sign(x[:, :, 7])
    x[:, :, 8] **= 5
    x[:, :, 9] *= 1e-12
    x[0, :, 10] = 1.0
    return x


@pytest.mark.parametrize(("chains", "draws"), [(4, 101), (2, 100), (3, 300), (2, 401), (3, 4), (4, 7), (2, 5)])
def test_equals_arviz(chains, draws, caplog):
    caplog.set_level(logging.ERROR)
    x = autoregressive(7, chains, draws)
    ours = entries(x)
    with np.errstate(all="ignore"):
        for name, reference in ARVIZ.items():
            theirs = np.array([reference(x[:, :, i]) for i in range(x.shape[2])])
            np.testing.assert_allclose(ours[name], theirs, rtol=1e-8, err_msg=name)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), chains=st.integers(2, 5), draws=st.integers(4, 90), ties=st.booleans())
def test_equals_arviz_on_anything(seed, chains, draws, ties):
    x = np.random.default_rng(seed).standard_t(2, size=(chains, draws, 2)).cumsum(axis=1)
    if ties:
        x = np.round(x)
    ours = entries(x)
    logging.disable(logging.WARNING)
    try:
        with np.errstate(all="ignore"):
            for name, reference in ARVIZ.items():
                theirs = np.array([reference(x[:, :, i]) for i in range(2)])
                np.testing.assert_allclose(ours[name], theirs, rtol=1e-8, err_msg=name)
    finally:
        logging.disable(logging.NOTSET)


def series(rng, chains, draws, phi):
    x = rng.standard_normal((chains, draws, 30))
    for i in range(1, draws):
        x[:, i] += phi * x[:, i - 1]
    return x


def test_one_chain_is_judged_by_its_halves():
    x = np.random.default_rng(0).standard_normal((1, 200, 2))
    x[0, 100:, 1] += 4
    ours = entries(x)
    assert ours["rhat"][0] < 1.05 < 1.5 < ours["rhat"][1]


def test_chunks_workers_and_disk_change_nothing(tmp_path, monkeypatch):
    x = autoregressive(3, 4, 60, 30).reshape(4, 60, 6, 5)
    whole = entries(x)
    np.save(tmp_path / "C.npy", x)
    monkeypatch.setattr(diagnostics, "_CHUNK", 4 * 60 * 4)
    parts = entries(np.load(tmp_path / "C.npy", mmap_mode="r"), workers=3)
    for name in whole:
        assert whole[name].shape == (6, 5)
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-12)


def test_moments_give_the_plain_rhat():
    x = np.random.default_rng(1).standard_normal((3, 40, 4, 2)) + np.arange(3)[:, None, None, None]
    mean, square = x.mean(axis=1), x.var(axis=1) * 40
    within, between = x.var(axis=1, ddof=1).mean(axis=0), 40 * mean.var(axis=0, ddof=1)
    expected = np.sqrt((between / within + 39) / 40)
    np.testing.assert_allclose(rhat_from_moments(np.full(3, 40.0), mean, square), expected, rtol=1e-12)
    assert np.isnan(rhat_from_moments(np.array([1.0, 40, 40]), mean, square)).all()


def made(**changes) -> Diagnosis:
    shape = (10, 5)
    values = {
        name: np.full(shape, v)
        for name, v in {
            "rhat": 1.0,
            "rhat_folded": 1.0,
            "ess_bulk": 2000.0,
            "ess_tail": 1500.0,
            "mcse": 0.1,
            "mcse_sd": 0.1,
        }.items()
    }
    for name, where in changes.items():
        for index, value in where.items():
            values[name][index] = value
    return Diagnosis(**values, chains=4, draws=1000)


def test_verdict_when_all_is_well():
    fine = made()
    assert fine.converged
    assert fine.verdict == "all 50 coefficients have R̂ ≤ 1.01, folded R̂ ≤ 1.02 and at least 1,500 effective samples"
    assert fine.more_draws() == 0


def test_verdict_counts_and_says_how_many_more_draws():
    some = made(rhat={(0, 0): 1.03, (1, 2): 1.02, (3, 3): 1.011})
    assert not some.converged
    assert some.verdict == "3 of 50 coefficients have R̂ > 1.01: run 2,000 more draws"
    assert [(w["feature"], w["response"]) for w in some.worst(2)] == [(0, 0), (1, 2)]


def test_verdict_of_a_slow_spread_and_of_few_samples():
    slow = made(rhat_folded={(0, 0): 1.03}, ess_tail={(0, 0): 200.0, (0, 1): 390.0})
    assert slow.verdict == (
        "1 of 50 coefficients has folded R̂ > 1.02 (the spread has not settled), "
        "2 have fewer than 400 effective samples: run 1,000 more draws"
    )


def test_verdict_when_draws_alone_will_not_do():
    assert "double the warm-up" in made(rhat={(0, 0): 2.5}).verdict


@pytest.mark.parametrize(
    ("rhat", "noise", "advised"), [(1.2, 1.3, True), (2.5, 1.3, True), (1.2, 1.02, False), (1.03, 1.3, False)]
)
def test_where_chains_disagree_on_the_noise_a_number_of_features_is_advised(rhat, noise, advised):
    """Not where the noise has settled, nor where draws that are in reach will do."""
    one = np.full(5, 1.0)
    of_noise = Diagnosis(one * noise, one, one * 2000, one * 2000, one, one, chains=4, draws=1000)
    assert ("expected_features" in replace(made(rhat={(0, 0): rhat}), noise=of_noise).verdict) == advised


def test_verdict_of_draws_that_are_not_finite_and_of_a_constant():
    C = np.random.default_rng(0).standard_normal((4, 400, 3, 2))
    C[1, 7, 0, 1] = np.inf
    C[:, :, 2, 0] = 0.0
    bad = diagnose(C)
    assert bad.verdict.startswith("1 of 6 coefficients has draws that are not finite")
    assert bad.verdict.endswith("1 never moved")
    assert not bad.converged
    assert bad.worst(1)[0] == pytest.approx({"feature": 0, "response": 1, **dict.fromkeys(ARVIZ, np.nan)}, nan_ok=True)
    C[1, 7, 0, 1] = 0.0
    assert diagnose(C).converged


def test_noise_is_diagnosed_with_the_coefficients():
    rng = np.random.default_rng(5)
    C = rng.standard_normal((4, 500, 3, 2))
    sigma2 = rng.gamma(3, size=(4, 500, 2))
    sigma2[0, :, 1] += 9
    found = diagnose(Draws(C, diagonal(sigma2), {"tau": rng.gamma(1, size=(4, 500, 2))}))
    assert not found.converged
    assert ". Noise: 1 of 2 noise variances has R̂ > 1.05" in found.verdict
    assert found.noise is not None
    assert (int((found.noise.rhat > 1.05).sum()), int((found.rhat > 1.01).sum())) == (1, 0)


def test_too_few_draws_or_the_wrong_shape_are_refused():
    with pytest.raises(InputError, match="at least 4"):
        diagnose(np.zeros((2, 3, 1, 1)))
    with pytest.raises(InputError, match="expected 4"):
        diagnose(np.zeros((2, 30, 1)))
