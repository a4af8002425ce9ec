"""Geweke's joint test of the whole sweep, with independent replicates.

(parameters, data) from the joint law, then a few sweeps given those data: the result must have the joint law again, exactly.
Twenty functions a setting are compared by Kolmogorov-Smirnov; FAILURE is the chance that a correct sampler fails a setting.
A planted bug must fail the same test.
"""

import numpy as np
import pytest
from joint import Setting, pairs
from scipy.stats import ks_2samp

from intarsia.server.sampler import conditionals, gibbs, moves, priors

FAILURE = 1e-4
LIGHT, SCHEDULE = (gibbs.LIGHT,), (gibbs.FULL, gibbs.SHORT, gibbs.SHORT, gibbs.LIGHT)
SMALL = gibbs.DEEP, gibbs.PLAIN, gibbs.LIGHT, gibbs.PLAIN
SETTINGS = {
    "row": {}, "row, light sweeps": {"kinds": LIGHT}, "row, small light sweeps": {"kinds": LIGHT, "shared": False},
    "row, small problem's kinds of sweep": {"kinds": SMALL, "shared": False},
    "row, every kind of sweep": {"kinds": SCHEDULE},
    "row, every kind of sweep, rank 1 of 3": {"kinds": SCHEDULE, "Q": 3, "R": 1},
    "row, more rows than features": {"m": 7, "P": 3}, "row, rank 1 of 3": {"Q": 3, "R": 1},
    "row, one response": {"Q": 1, "R": 1}, "row, plain Gibbs": {"mixing": False}, "element": {"local": "element"},
    "row, group lasso": {"law": "laplace"}, "row, student": {"law": "student"},
    "element, lasso": {"local": "element", "law": "laplace"}, "element, student": {"local": "element", "law": "student"},
}  # fmt: skip


def smallest(setting, replicates=1500, sweeps=4, seed=1):
    before, after = pairs(setting, replicates, sweeps, seed)
    p = [ks_2samp(before[:, i], after[:, i]).pvalue for i in range(before.shape[1])]
    return min(p) * len(p)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_sweep_keeps_the_joint_law(name):
    assert smallest(Setting(**SETTINGS[name])) > FAILURE


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_the_sweep_keeps_the_joint_law_at_length(name):
    assert smallest(Setting(**SETTINGS[name]), replicates=20_000, sweeps=6, seed=2) > FAILURE


def wrong_tau(be, tau, B, lam, law, noise):
    """The paper's appendix B: a truncated exponential for tau."""
    rows = lam if lam.ndim == 2 else lam[:, None]
    rate = ((B / rows) ** 2).sum(axis=0) / 2
    u = noise["u"] / (1 + 1 / tau**2)
    bound = (1 - u) / u
    return 1 / np.sqrt(np.clip(-np.log1p(noise["v"] * np.expm1(-rate * bound)) / rate, 1e-30, 1e30))


def wrong_rate(be, lam, B, tau, law, noise):
    """Exp(2/mu) with 2/mu as a rate."""
    b2 = (B / tau) ** 2
    mu = b2.sum(axis=1) if lam.ndim == 1 else b2
    return 1 / np.sqrt(law.draw(np, 1 / lam**2, 1.0 if lam.ndim == 2 else float(B.shape[1]), 4 / mu, noise))


def wrong_columns(be, A, B, tau, law, g, u):
    a = 2 * g / (A**2).sum(axis=0)
    return A * np.sqrt(a), B / np.sqrt(a), tau


def wrong_shift(be, lam, tau, local, global_, step, u):
    return lam / np.exp(4 * step), tau * np.exp(4 * step), np.ones(())


def wrong_borderline(be, factor, d, Yr, *rest):
    return right_borderline(be, factor, d, 3.0 * Yr, *rest)


def wrong_site(be, blocks, W, delta, log_prior, u, visited):
    return np.ones(delta.shape[0], dtype=bool), W


def wrong_scales(be, *arguments):
    *rest, steps, u = arguments
    sigma2, tau, accepted = right_scales(be, *rest, steps, u)
    return sigma2 * np.exp(0.6 * accepted[: len(sigma2)]), tau, accepted


def wrong_relaxation(draw, back, B, Y, Z, E):
    """The mean is passed, but the noise is not made smaller."""
    return draw((1 + back) * Y, Z, E) - back * B


def wrong_factor(be, plan, data, state, known=None, top=None):
    """The system of scales that have moved since."""
    return right_factor(be, plan, data, state._replace(lam=0.7 * state.lam))


def wrong_compensation(be, fit, residual, *rest):
    return right_compensation(be, 0.0 * fit, residual, *rest)


right_factor, right_borderline = gibbs.factored, gibbs._borderline
right_scales, right_compensation = moves.collapsed_scales, moves.compensated_scale
PLANTED = {
    "tau as printed": (conditionals, "draw_tau", wrong_tau),
    "lam with mean for rate": (conditionals, "draw_lam", wrong_rate),
    "rescaling forgets tau": (moves, "rescale_columns", wrong_columns),
    "shift always accepted": (moves, "shift_scales", wrong_shift),
    "borderline with a wrong projection": (gibbs, "_borderline", wrong_borderline),
    "single-site always accepted": (moves, "single_site", wrong_site),
    "noise level drifts": (moves, "collapsed_scales", wrong_scales),
    "compensation ignores the data": (moves, "compensated_scale", wrong_compensation),
    "relaxation with all of the noise": (conditionals, "relaxed", wrong_relaxation),
    "a factor of other scales": (gibbs, "factored", wrong_factor),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    module, name, wrong = PLANTED[bug]
    monkeypatch.setattr(module, name, wrong)
    monkeypatch.setattr(gibbs.Plan, "compiled", False)  # move by move: whole compiled steps do not look at what is planted
    only_light = name in ("relaxed", "factored")
    setting = Setting(kinds=LIGHT) if only_light else Setting()
    assert smallest(setting, replicates=2500 if only_light else 800, sweeps=8) < 1e-6


def test_prior_draws_are_what_the_laws_say():
    """The joint test's own prior sampler agrees with the laws' densities (a sampler and its test must not share a slip)."""
    rng = np.random.default_rng(0)
    for law, k in (("horseshoe", 2), ("student", 2), ("laplace", 2)):
        t = np.log(Setting(law=law).scale(rng, 200_000, law))
        x = np.linspace(-12, 12, 4001)
        f = np.exp(priors.local_law(law, k).log_density(np, x))
        cdf = np.cumsum(f) / f.sum()
        edges = np.quantile(t, [0.05, 0.25, 0.5, 0.75, 0.95])
        np.testing.assert_allclose(np.interp(edges, x, cdf), [0.05, 0.25, 0.5, 0.75, 0.95], atol=0.006)


def test_state_and_tuning_cover_every_move():
    setting = Setting()
    assert setting.tuning.clear.any()
    assert setting.plan.mixing
    assert set(setting.plan.noise()) >= {"border.pick", "steps.u", "single.u", "compensate.u", "shift.u", "columns.u"}
    assert isinstance(setting.plan, gibbs.Plan)
