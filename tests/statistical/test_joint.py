"""Geweke's joint test of the whole sweep, with independent replicates.

(parameters, data) from the joint law, then a few sweeps given those data: the result must have the joint law again, exactly.
Some twenty functions per setting are compared by Kolmogorov-Smirnov; FAILURE is the chance that a correct sampler fails one.
A planted bug must fail the same test.
"""

import inspect
import math

import numpy as np
import pytest
from joint import Setting, pairs
from scipy.stats import ks_2samp

from intarsia.server.sampler.horseshoe import collapsed, conditionals, noise
from intarsia.server.sampler.horseshoe import sweep as steps_of
from intarsia.server.sampler.horseshoe.collapsed import Place, Target
from intarsia.server.sampler.horseshoe.model import Law, local_law, log_density
from intarsia.server.sampler.horseshoe.noise import NU
from intarsia.server.sampler.horseshoe.sweep import DEEP, FULL, LIGHT, PLAIN, SHORT, Kind
from intarsia.server.sampler.horseshoe.systems import System

FAILURE = 1e-4
SMALL, LARGE = (DEEP, PLAIN, LIGHT, PLAIN), (SHORT, FULL)  # the kinds of sweep that small and large problems make
SETTINGS = {
    "row": {}, "row, light sweeps": {"kinds": (LIGHT,)},
    "row, small problem's kinds of sweep": {"kinds": SMALL, "Q": 3, "R": 3},
    "row, large problem's kinds of sweep": {"kinds": LARGE, "costly": True},
    "row, large problem's kinds of sweep, rank 2 of 3": {"kinds": LARGE, "costly": True, "Q": 3, "R": 2},
    "row, large problem's kinds of sweep, independent noise": {"kinds": LARGE, "costly": True, "noise": "independent"},
    "row, more rows than features": {"m": 7, "P": 3}, "row, rank 1 of 3": {"Q": 3, "R": 1},
    "row, independent noise": {"noise": "independent"}, "row, one response": {"Q": 1, "R": 1},
    "row, plain Gibbs": {"mixing": False}, "element": {"local": "element"},
    "element, rank 3": {"local": "element", "Q": 3, "R": 3},
    "element, independent noise": {"local": "element", "noise": "independent"},
    "element, plain Gibbs": {"local": "element", "mixing": False},
    "row, group lasso": {"law": "laplace"}, "row, student": {"law": "student"},
    "element, lasso": {"local": "element", "law": "laplace"}, "element, student": {"local": "element", "law": "student"},
}  # fmt: skip


def smallest(setting, replicates=1500, sweeps=4, seed=1):
    before, after = pairs(setting, replicates, sweeps, seed)
    p = [ks_2samp(before[:, i], after[:, i]).pvalue for i in range(before.shape[1])]
    return min(p) * len(p)


# The others are in the slow test below alone.
QUICK = ("row", "row, small problem's kinds of sweep", "row, large problem's kinds of sweep", "row, independent noise",
         "row, more rows than features", "row, group lasso", "element", "element, lasso")  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_the_sweep_keeps_the_joint_law(name):
    setting = Setting(**SETTINGS[name])
    replicates, sweeps = (800, 3) if setting.element or setting.case.costly else (1500, 4)
    assert smallest(setting, replicates, sweeps) > FAILURE


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_the_sweep_keeps_the_joint_law_at_length(name):
    assert smallest(Setting(**SETTINGS[name]), replicates=20_000, sweeps=6, seed=2) > FAILURE


# --- planted bugs: a compiled function that calls the wrong one runs as the Python it is written in ----------------------------


def wrong_tau(tau, B, lam, law, numbers):
    """The paper's appendix B: a truncated exponential for tau."""
    rate = ((B / lam) ** 2).sum(axis=0) / 2
    u = numbers[1] / (1 + 1 / tau**2)
    return 1 / np.sqrt(np.clip(-np.log1p(numbers[2] * np.expm1(-rate * (1 - u) / u)) / rate, 1e-30, 1e30))


def wrong_rate(law, eta, k, mu, g, u, v):
    """Exp(2/mu) with 2/mu as a rate."""
    return right["draw_precision"](law, eta, k, 4 / mu, g, u, v)


def wrong_columns(A, B, tau, law, g, u):
    a = 2 * g / (A**2).sum(axis=0)
    return A * np.sqrt(a), B / np.sqrt(a), tau


def wrong_borderline(target, at, *rest):
    return right["borderline"](target._replace(Y=3.0 * target.Y), at, *rest)


def wrong_site(blocks, grams, W, delta, slack):
    return np.ones(delta.shape[0], dtype=bool), W


def wrong_volume(K, log_det, prior):
    """The density with respect to dSigma, as if stretching did not change it."""
    return right["log_prior"](K, log_det, prior) - (len(K) + 1) / 2 * log_det


def wrong_collapsed(target, at):
    return right["log_posterior"](target, at._replace(A=0.5 * at.A))


def wrong_rotation(problem, state):
    """A is not turned as the responses are."""
    return right["rotated"](problem, state)._replace(A=state.A)


def wrong_relaxation(draw, back, B, Y, Z, E):
    """The mean is passed, but the noise is not made smaller."""
    keep = math.sqrt(1 - back**2)
    return right["relaxed"](draw, back, B, Y, Z / keep, E / keep)


def wrong_degrees(prior, rows, rng):
    numbers = right["numbers_for"](prior, rows, rng)
    return numbers._replace(third=rng.standard_gamma((NU + rows - np.arange(len(numbers.third))) / 2))  # Q - 1 too few


class WrongSystem(System):
    """The system of scales that have moved since."""

    def __init__(self, X, lam):
        super().__init__(X, 0.7 * lam)


right = {
    "draw_precision": conditionals.draw_precision, "borderline": collapsed.borderline, "log_prior": collapsed.log_prior,
    "log_posterior": collapsed.log_posterior, "rotated": steps_of.rotated, "relaxed": conditionals.relaxed,
    "numbers_for": noise.numbers_for,
}  # fmt: skip
# name -> (where, what, the bug, the compiled steps between the sweep and it, kind of sweep)
PLANTED = {
    "tau as printed": (conditionals, "draw_tau", wrong_tau, (), FULL),
    "lam with mean for rate": (conditionals, "draw_precision", wrong_rate, ("draw_lam",), FULL),
    "rescaling forgets tau": (conditionals, "rescale_columns", wrong_columns, (), FULL),
    "borderline with a wrong projection": (collapsed, "borderline", wrong_borderline, (), FULL),
    "single-site always accepted": (conditionals, "single_site", wrong_site, (), FULL),
    "the volume of a stretch forgotten": (collapsed, "log_prior", wrong_volume, ("log_posterior", "move_scales"), FULL),
    "B integrated out with another A": (collapsed, "log_posterior", wrong_collapsed, ("move_scales",), FULL),
    "A not rotated": (steps_of, "rotated", wrong_rotation, (), LIGHT),
    "wrong degrees of freedom": (noise, "numbers_for", wrong_degrees, (), FULL),
    "relaxation with all of the noise": (conditionals, "relaxed", wrong_relaxation, (), LIGHT),
    "a factor of other scales": (steps_of, "System", WrongSystem, (), LIGHT),
}


LONGER = {"relaxation with all of the noise", "borderline with a wrong projection", "rescaling forgets tau"}


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.slow] if bug in LONGER else []) for bug in PLANTED])
def test_a_planted_bug_is_caught(bug, monkeypatch):
    where, name, wrong, through, kind = PLANTED[bug]
    for step in through:
        monkeypatch.setattr(where, step, getattr(where, step).py_func)
    monkeypatch.setattr(where, name, wrong)
    assert smallest(Setting(kinds=(kind,)), replicates=2500 if kind == LIGHT else 1000, sweeps=8) < 1e-6


NARROW = Kind(True, False, False)  # the moves without B and the draw of B alone


def stretched(setting, replicates, times=2):
    """The joint law before and after A is stretched, and nothing else: the smallest p-value."""
    rng, before, after = np.random.default_rng(3), [], []
    for _ in range(replicates):
        state = setting.prior(rng)
        Y, problem = setting.data(state, rng)
        before.append(setting.functions(state, Y)[[18, 19]])  # of A, which alone moves
        K, log_det = noise.root(state.Sigma, problem.noise.correlated)
        factor, at = System(problem.X, state.lam).factor(1e3), Place(state.A, state.tau, K, log_det)
        target = Target(
            factor.diag, factor.off, np.ascontiguousarray(factor.rotate(problem.Y)), problem.rss0, problem.rows,
            problem.model.power, problem.noise, problem.tau,
        )  # fmt: skip
        for _ in range(times):
            sizes = np.resize(collapsed.SHAPES, 30) * rng.standard_normal(30)
            steps = collapsed.Steps(rng.standard_normal((30, setting.R)), sizes, np.log(1 - rng.random(30)))
            at = collapsed.stretch_A(target, at, steps)
        after.append(setting.functions(state._replace(A=at.A), Y)[[18, 19]])
    p = [ks_2samp(a, b).pvalue for a, b in zip(np.transpose(before), np.transpose(after), strict=True)]
    return min(p) * len(p)


def test_stretching_A_alone_keeps_the_joint_law(monkeypatch):
    setting = Setting(Q=3, R=2)
    assert stretched(setting, 600) > FAILURE
    # Plant a bug: the volume by which A is stretched is forgotten.
    text, volume = inspect.getsource(collapsed.stretch_A.py_func), " + Q * steps.sizes[k]"
    assert volume in text
    wrong = dict(vars(collapsed))
    exec(text.replace(volume, "").removeprefix("@compiled\n"), wrong)
    monkeypatch.setattr(collapsed, "stretch_A", wrong["stretch_A"])
    assert stretched(setting, 400) < 1e-6


def test_prior_draws_are_what_the_laws_say():
    """The joint test's own prior sampler agrees with the laws' densities (a sampler and its test must not share a slip)."""
    rng = np.random.default_rng(0)
    for law, k in (("horseshoe", 2), ("student", 2), ("laplace", 2)):
        t = np.log(Setting(law=law).scale(rng, 200_000, law))
        x = np.linspace(-12, 12, 4001)
        f = np.exp([log_density(local_law(law, k), at) for at in x])
        cdf = np.cumsum(f) / f.sum()
        edges = np.quantile(t, [0.05, 0.25, 0.5, 0.75, 0.95])
        np.testing.assert_allclose(np.interp(edges, x, cdf), [0.05, 0.25, 0.5, 0.75, 0.95], atol=0.006)
    assert local_law("horseshoe", 2) == Law()


def test_correlations_are_uniform_and_noise_levels_half_t_under_the_prior():
    rng, setting = np.random.default_rng(1), Setting(Q=3, R=3)
    Sigma = np.array([setting.covariance(rng) for _ in range(4000)])
    sigma = np.sqrt(np.diagonal(Sigma, axis1=1, axis2=2))
    correlation = Sigma[:, 0, 2] / sigma[:, 0] / sigma[:, 2]
    assert ks_2samp(correlation, rng.uniform(-1, 1, 20_000)).pvalue > 1e-4
    assert ks_2samp(sigma[:, 1], np.abs(rng.standard_t(2, 20_000))).pvalue > 1e-4
