"""Geweke's joint test of the whole sweep, with independent replicates.

(parameters, data) from the joint law, then a few sweeps given those data: the result must have the joint law again, exactly.
Some twenty functions per setting are compared by Kolmogorov-Smirnov; FAILURE is the chance that a correct sampler fails one.
A planted bug must fail the same test, on the path users take: in the compiled sweep.
"""

import inspect
import math

import numpy as np
import pytest
from joint import BE, Setting, pairs
from scipy.stats import ks_2samp

from intarsia.server.sampler import compiled, inclusion, integrated, kernels, priors, small_shares, without_b
from intarsia.server.sampler import sweep as steps_of
from intarsia.server.sampler.covariance import NU, Correlated
from intarsia.server.sampler.schedule import DEEP, FULL, LIGHT, PLAIN, SHORT, Kind, Sweep, draw_noise

FAILURE = 1e-4
R_SMALL = 2 * 4  # coefficients in B of the features that are not clear
SCHEDULE, SMALL = (FULL, SHORT, SHORT, LIGHT), (DEEP, PLAIN, LIGHT, PLAIN)
LARGE, WIDE = (SHORT, SHORT, FULL), FULL._replace(score=True)
NARROW = Kind(True, False, False)  # the moves without B and the draw of B alone: a bug in them shows soonest
MANY = {"kinds": (WIDE, NARROW), "many": True}
SETTINGS = {
    "row": {}, "row, readable": {"compiled": False}, "row, light sweeps": {"kinds": (LIGHT,)},
    "row, small light sweeps": {"kinds": (LIGHT,), "shared": False},
    "row, small problem's kinds of sweep": {"kinds": SMALL, "shared": False, "Q": 3, "R": 3},
    "row, every kind of sweep": {"kinds": SCHEDULE},
    "row, every kind of sweep, rank 1 of 3": {"kinds": SCHEDULE, "Q": 3, "R": 1},
    "row, more rows than features": {"m": 7, "P": 3}, "row, rank 1 of 3": {"Q": 3, "R": 1},
    "row, independent noise": {"noise": "independent"}, "row, one response": {"Q": 1, "R": 1},
    "row, plain Gibbs": {"mixing": False}, "element": {"local": "element"},
    "element, independent noise": {"local": "element", "noise": "independent"},
    "row, many features": MANY, "row, many features, reach": MANY | {"reach": 1.0},
    "row, many features, readable": MANY | {"reach": 1.0, "compiled": False},
    "row, many features, independent noise": MANY | {"noise": "independent"},
    "row, large problem's kinds of sweep": {"kinds": LARGE},
    "row, large problem's kinds of sweep, readable": {"kinds": LARGE, "compiled": False, "Q": 3, "R": 2},
    "row, large problem's kinds of sweep, independent noise": {"kinds": LARGE, "noise": "independent"},
    "row, many features, scales at once": MANY | {"at_once": True, "compiled": False},
    "row, searched features, large problem's kinds of sweep": {"kinds": (SHORT, SHORT, WIDE), "many": True, "reach": 1.0},
    "row, many look-alikes": MANY | {"alike": True, "reach": 1.0},
    "row, many look-alikes, readable": MANY | {"alike": True, "compiled": False},
    "row, searched look-alikes, large problem's kinds of sweep": {"kinds": (SHORT, SHORT, WIDE), "many": True, "alike": True},
    "row, group lasso": {"law": "laplace"}, "row, student": {"law": "student"},
    "element, lasso": {"local": "element", "law": "laplace"}, "element, student": {"local": "element", "law": "student"},
}  # fmt: skip


def smallest(setting, replicates=1500, sweeps=4, seed=1):
    before, after = pairs(setting, replicates, sweeps, seed)
    p = [ks_2samp(before[:, i], after[:, i]).pvalue for i in range(before.shape[1])]
    return min(p) * len(p)


# The others are in the slow test below alone.
QUICK = ("row", "row, readable", "row, small problem's kinds of sweep", "row, every kind of sweep", "row, independent noise",
         "row, large problem's kinds of sweep",
         "row, more rows than features", "row, many features, reach", "row, many features, scales at once",
         "row, searched features, large problem's kinds of sweep", "row, many look-alikes",
         "row, searched look-alikes, large problem's kinds of sweep", "element", "element, lasso")  # fmt: skip


@pytest.fixture(autouse=True)
def few_count_as_many(request, monkeypatch):
    """Where a test is about many features, six are."""
    name = request.node.name
    if "many" in name or "searched" in name:
        monkeypatch.setattr("intarsia.server.sampler.schedule.SEARCHED", 6)
    if "many" in name:
        monkeypatch.setattr("intarsia.server.sampler.schedule.WIDE_FROM", 6)
        monkeypatch.setattr("intarsia.server.sampler.schedule.WIDE_RESHAPES", 10)
    if "large" in name:
        monkeypatch.setattr("intarsia.server.sampler.schedule.COSTLY", 0)


@pytest.mark.parametrize("name", QUICK)
def test_the_sweep_keeps_the_joint_law(name):
    setting = Setting(**SETTINGS[name])
    readable = ("readable", "plain", "element", "lasso", "student", "at once")
    assert setting.plan.compiled is not any(word in name for word in readable)
    # The readable sweep takes ten times as long; what it shares with the compiled one is tested there too.
    heavy = any(word in name for word in ("many", "large"))
    assert bool(setting.plan.reshapes) is heavy
    assert setting.plan.wide is ("many" in name)
    replicates, sweeps = (1500, 4) if setting.plan.compiled and not heavy else (400, 3)
    assert smallest(setting, replicates, sweeps) > FAILURE


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_the_sweep_keeps_the_joint_law_at_length(name):
    assert smallest(Setting(**SETTINGS[name]), replicates=20_000, sweeps=6, seed=2) > FAILURE


# --- planted bugs: each stands in the compiled sweep; the steps that call it run as the Python they are written in ------------


def wrong_tau(tau, B, lam, scale, reach, noise):
    """The paper's appendix B: a truncated exponential for tau."""
    rate = ((B / lam[:, None]) ** 2).sum(axis=0) / 2
    u = noise[1] / (1 + 1 / tau**2)
    return 1 / np.sqrt(np.clip(-np.log1p(noise[2] * np.expm1(-rate * (1 - u) / u)) / rate, 1e-30, 1e30))


def wrong_rate(lam, B, tau, noise):
    """Exp(2/mu) with 2/mu as a rate."""
    mu = ((B / tau) ** 2).sum(axis=1)
    numbers = dict(zip(("low", "u", "v"), noise, strict=True))
    return 1 / np.sqrt(priors.HalfCauchy().draw(np, 1 / lam**2, float(B.shape[1]), 4 / mu, numbers))


def wrong_columns(A, B, tau, scale, reach, noise):
    a = 2 * noise[0] / (A**2).sum(axis=0)
    return A * np.sqrt(a), B / np.sqrt(a), tau


def wrong_borderline(systems, *rest):
    return right["borderline"](systems._replace(Yr=3.0 * systems.Yr), *rest)


def wrong_site(columns, gram, W, delta, slack):
    return np.ones(delta.shape[0], dtype=bool), W


def wrong_volume(K, log_det, scale, correlated):
    """The density with respect to dSigma, as if stretching did not change it."""
    return right["_log_covariance"](K, log_det, scale, correlated) - (scale.size + 1) / 2 * log_det


def wrong_collapsed(systems, K, log_det, A, tau, constants):
    return right["_collapsed"](systems, K, log_det, 0.5 * A, tau, constants)


def wrong_rotation(Sigma, Y, A, correlated):
    """A is not turned as the responses are."""
    U, D, YU, _ = right["rotated"](Sigma, Y, A, correlated)
    return U, D, YU, A


def wrong_relaxation(Xt, Y, B, given, noise, back, stiff):
    """The mean is passed, but the noise is not made smaller."""
    Z, E = (z / math.sqrt(1 - back**2) for z in noise)
    return right["draw_B"](Xt, Y, B, given, (Z, E), back, stiff)


def wrong_degrees(self, rows, Q):
    degrees = NU + rows  # Q - 1 too few
    chi = "gamma", (Q,), tuple((degrees - i) / 2 for i in range(Q))
    return right_needs(self, rows, Q) | {"chi": chi}


def wrong_factor(be, plan, data, state, known=None, top=None):
    """The system of scales that have moved since."""
    return right_factor(be, plan, data, state._replace(lam=0.7 * state.lam))


right = {name: getattr(kernels, name) for name in ("borderline", "_log_covariance", "_collapsed", "rotated", "draw_B")}
right_factor, right_needs = steps_of.factored, Correlated.needs
# name -> (where, what, the bug, the compiled steps between the sweep and it)
PLANTED = {
    "tau as printed": (kernels, "draw_tau", wrong_tau, ("given_B",)),
    "lam with mean for rate": (kernels, "draw_lam", wrong_rate, ("given_B",)),
    "rescaling forgets tau": (kernels, "rescale_columns", wrong_columns, ("given_B",)),
    "borderline with a wrong projection": (kernels, "borderline", wrong_borderline, ("integrated",)),
    "single-site always accepted": (kernels, "single_site", wrong_site, ("sites",)),
    "the volume of a stretch forgotten": (kernels, "_log_covariance", wrong_volume, ("_collapsed", "integrated")),
    "B integrated out with another A": (kernels, "_collapsed", wrong_collapsed, ("integrated",)),
    "A not rotated": (kernels, "rotated", wrong_rotation, ()),
    "wrong degrees of freedom": (Correlated, "needs", wrong_degrees, ()),
    "relaxation with all of the noise": (kernels, "draw_B", wrong_relaxation, ()),
    "a factor of other scales": (steps_of, "factored", wrong_factor, ()),
}


LONGER = {"a factor of other scales", "relaxation with all of the noise", "borderline with a wrong projection",
          "B integrated out with another A", "rescaling forgets tau"}  # fmt: skip


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.slow] if bug in LONGER else []) for bug in PLANTED])
def test_a_planted_bug_is_caught(bug, monkeypatch):
    where, name, wrong, through = PLANTED[bug]
    for step in through:
        monkeypatch.setattr(kernels, step, getattr(kernels, step).py_func)
    monkeypatch.setattr(where, name, wrong)
    monkeypatch.setattr("joint.factored", steps_of.factored)
    light = name in ("draw_B", "factored", "rotated")
    setting = Setting(kinds=(LIGHT,), shared=name == "factored") if light else Setting()
    assert setting.plan.compiled
    assert compiled.kernels is kernels
    assert smallest(setting, replicates=2500 if light else 1000, sweeps=8) < 1e-6


def test_among_many_features_a_choice_without_its_correction_is_caught(monkeypatch):
    right = inclusion.choose

    def wrong(*given):
        border = right(*given)
        return border._replace(out=np.ones_like(border.out))

    monkeypatch.setattr(inclusion, "choose", wrong)
    assert smallest(Setting(kinds=(NARROW,), many=True), replicates=700, sweeps=9) < 1e-6


def test_among_many_features_looks_that_fit_without_noise_are_caught(monkeypatch):
    right = without_b.fitted
    monkeypatch.setattr(without_b, "fitted", lambda factor, d, Yr, z, e: right(factor, d, Yr, z, 0 * e))
    monkeypatch.setattr("intarsia.server.sampler.schedule.LOOKS", 3)  # more of them show it sooner
    assert smallest(Setting(kinds=(NARROW,), many=True), replicates=1000) < 1e-6


def test_among_many_look_alikes_an_exchange_whatever_the_data_say_is_caught(monkeypatch):
    """On the path users take."""
    right = compiled.exchanged
    whatever = lambda be, systems, *more: right(be, systems._replace(d=0 * systems.d), *more)  # noqa: E731
    monkeypatch.setattr(compiled, "exchanged", whatever)
    setting = Setting(kinds=(NARROW,), many=True, alike=True)
    assert setting.plan.compiled
    assert smallest(setting, replicates=1000, sweeps=4) < 1e-6


def by_the_readable_sweep(now, state, factor, Yrot, noise):
    return small_shares.stretch(without_b.target(now, state, factor, Yrot), now.data, state, now.tuning.clear, noise)


def alone(way, setting, kind, replicates=900, times=12):
    """The joint law before and after one move of A and Sigma, and nothing else: the smallest p-value."""
    rng, before, after = np.random.default_rng(3), [], []
    with np.errstate(all="ignore"):
        for _ in range(replicates):
            state = setting.prior(rng)
            Y, data = setting.data(state, rng)
            before.append(setting.functions(state, Y)[[6, 7, 8, 9, 18, 19]])  # of Sigma and A, which alone move
            now = Sweep(BE, setting.plan, data, setting.tuning, {}, kind)
            factor = without_b.factored(now, state, BE.weigh(setting.X, state.lam, np.zeros((setting.plan.P, 0)))[0])
            for _ in range(times):
                noise = draw_noise(setting.plan, rng, kind)
                state = way(now, state, factor, factor.rotate(data.Y), noise)
            after.append(setting.functions(state, Y)[[6, 7, 8, 9, 18, 19]])
    p = [ks_2samp(a, b).pvalue for a, b in zip(np.transpose(before), np.transpose(after), strict=True)]
    return min(p) * len(p)


STRETCHES = {
    "readable": (by_the_readable_sweep, small_shares, small_shares.stretch, " + R * step"),
    "compiled": (compiled.stretched, kernels, kernels.stretch.py_func, " + R * steps[k]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", STRETCHES)
def test_among_many_features_the_stretch_alone_keeps_the_joint_law(which, monkeypatch):
    way, where, stretch, volume = STRETCHES[which]
    setting = Setting(kinds=(NARROW,), many=True)
    assert alone(way, setting, NARROW) > FAILURE
    without_volume(monkeypatch, where, "stretch", stretch, volume)
    assert alone(way, setting, NARROW) < 1e-6


def without_volume(monkeypatch, where, name, step, volume):
    """Plant a bug: the volume by which A is stretched is forgotten."""
    text = inspect.getsource(step)
    text = text[text.index(f"def {name}(") :]
    assert volume in text
    wrong = dict(vars(where))
    exec(text.replace(volume, ""), wrong)
    monkeypatch.setattr(where, name, wrong[name])


def reshaped_by_the_readable_sweep(now, state, factor, Yrot, noise):
    root = now.plan.covariance(now.data.noise_scale).rotation(BE, state.Sigma).root()
    return state._replace(A=integrated.collapsed_A(without_b.target(now, state, factor, Yrot), root, noise))


RESHAPED = {
    "readable": (reshaped_by_the_readable_sweep, integrated, integrated.collapsed_A, " + Q * step"),
    "compiled": (compiled.reshaped, kernels, kernels.collapsed_A.py_func, " + Q * steps[k]"),
}


@pytest.mark.parametrize("which", ["compiled", pytest.param("readable", marks=pytest.mark.slow)])
def test_in_large_problems_steps_of_A_alone_keep_the_joint_law(which, monkeypatch):
    way, where, step, volume = RESHAPED[which]
    setting = Setting(Q=3, R=2)
    assert setting.plan.reshapes
    assert alone(way, setting, FULL, 600, 2) > FAILURE
    without_volume(monkeypatch, where, "collapsed_A", step, volume)
    assert alone(way, setting, FULL, 400, 2) < 1e-6


def resized(setting, replicates=700, times=8):
    """The joint law before and after the small coefficients are resized, and nothing else: the smallest p-value."""
    rng, before, after = np.random.default_rng(5), [], []
    law = setting.plan.covariance(np.ones(setting.Q))
    for _ in range(replicates):
        other, state = setting.prior(rng), setting.prior(rng)
        before.append(setting.functions(other, setting.data(other, rng)[0]))
        Y, data = setting.data(state, rng)
        drawn = without_b.Drawn(state, setting.X @ state.B, law.rotation(BE, state.Sigma), None)
        for _ in range(times):
            noise = {name: value for name, value in draw_noise(setting.plan, rng, WIDE).items() if name.startswith("resize")}
            now, view = Sweep(BE, setting.plan, data, setting.tuning, noise, WIDE), drawn.state
            d = np.linalg.svd(np.linalg.solve(np.linalg.cholesky(view.Sigma), view.A * view.tau), compute_uv=False)
            drawn = without_b.resized(now, drawn, d)
        np.testing.assert_allclose(drawn.F, setting.X @ drawn.state.B, rtol=1e-6, atol=1e-6 * np.abs(drawn.F).max())
        after.append(setting.functions(drawn.state, Y))
    p = [ks_2samp(a, b).pvalue for a, b in zip(np.transpose(before), np.transpose(after), strict=True)]
    return min(p) * len(p)


def sizes_move_far(monkeypatch, m=6):
    """Data that say little, and long steps. With six rows all features are listed."""
    for name, value in (("SIZES", (1.0,) * 12), ("LARGE", 0.02), ("WIDTH", 2.0)):
        monkeypatch.setattr(small_shares, name, value)
    setting = Setting(kinds=(NARROW,), many=True, reach=1.0, m=m)
    setting.X *= 0.02
    return setting


# Of many features the state itself says which are large.
@pytest.mark.parametrize(("which", "m"), [("searched", 5), ("many", 5), ("many", 6)])
def test_resizing_the_small_coefficients_keeps_the_joint_law(which, m, monkeypatch):
    setting = sizes_move_far(monkeypatch, m)
    assert setting.plan.wide is (which == "many")
    assert resized(setting) > FAILURE
    if (which, m) == ("many", 5):
        return  # x ends early there; the test below plants a bug in just that
    right = small_shares.Sizing.__call__
    monkeypatch.setattr(small_shares.Sizing, "__call__", lambda self, x: right(self, x) - R_SMALL * x)
    assert resized(setting) < 1e-6  # the volume of the small coefficients counted, their prior not


def test_among_many_features_the_volume_of_those_that_go_along_in_part_counts(monkeypatch):
    setting = sizes_move_far(monkeypatch)
    right = small_shares.along
    monkeypatch.setattr(small_shares, "along", lambda xp, over, x: (right(xp, over, x)[0], np.zeros_like(over)))
    assert resized(setting, replicates=1500) < 1e-6


def test_among_many_features_a_list_that_another_one_may_pass_is_caught(monkeypatch):
    setting = sizes_move_far(monkeypatch, m=5)
    right = small_shares.listed
    monkeypatch.setattr(small_shares, "listed", lambda be, over, number: right(be, over, 1)._replace(room=np.inf))
    assert resized(setting) < 1e-6


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


def test_correlations_are_uniform_and_noise_levels_half_t_under_the_prior():
    rng, setting = np.random.default_rng(1), Setting(Q=3, R=3)
    Sigma = np.array([setting.covariance(rng) for _ in range(4000)])
    sigma = np.sqrt(np.diagonal(Sigma, axis1=1, axis2=2))
    correlation = Sigma[:, 0, 2] / sigma[:, 0] / sigma[:, 2]
    assert ks_2samp(correlation, rng.uniform(-1, 1, 20_000)).pvalue > 1e-4
    assert ks_2samp(sigma[:, 1], np.abs(rng.standard_t(2, 20_000))).pvalue > 1e-4


def test_a_full_sweep_has_noise_for_every_move():
    assert set(Setting().plan.noise()) >= {"border.pick", "steps.u", "single.u", "columns.u", "Sigma.chi"}
