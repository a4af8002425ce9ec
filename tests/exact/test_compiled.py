"""The compiled sweep against the readable one: same noise in, same state out."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtri
from sweep_cases import CASES, close, problem

from intarsia.server.sampler import adapt, backends, kernels
from intarsia.server.sampler.exchange import Alike
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.schedule import DEEP, FULL, LIGHT, PLAIN, SHORT, Sweep, draw_noise
from intarsia.server.sampler.schedule import plan as make_plan
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.state import prepare
from intarsia.server.sampler.sweep import factored, strength, sweep

BE = backends.get("numpy")
KINDS = {"full": FULL, "deep": DEEP, "light": LIGHT, "plain": PLAIN, "short": SHORT}
COMPILED = [name for name in CASES if problem(**CASES[name])[2].compiled]


def test_the_models_users_take_are_compiled():
    row = {name for name in CASES if name.startswith("row")}
    readable = {"row, some blocks", "row, plain Gibbs", "row, group lasso", "row, student", "row, jeffreys"}
    assert set(COMPILED) == row - readable
    for m, P, Q in ((50, 300, 5), (200, 1000, 5), (300, 19_000, 1)):
        assert make_plan(Model(), np.broadcast_to(0.0, (m, P)), np.broadcast_to(0.0, (m, Q))).compiled


def test_a_switch_runs_the_readable_sweep(monkeypatch):
    monkeypatch.setenv("INTARSIA_COMPILED", "0")
    assert not problem()[2].compiled


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", COMPILED)
def test_the_same_noise_gives_the_same_state(name, kind, monkeypatch):
    monkeypatch.setattr("intarsia.server.sampler.schedule.COSTLY", 0 if kind == SHORT else 2e7)  # short sweeps share a factor
    hold_together(name, lambda plan, number: kind)


@pytest.mark.parametrize("name", COMPILED)
def test_in_large_problems_too(name, monkeypatch):
    """All sweeps of a round share a factor there, and the full ones move A with B integrated out."""
    monkeypatch.setattr("intarsia.server.sampler.schedule.COSTLY", 0)
    hold_together(name, lambda plan, number: plan.kind(number))


def hold_together(name, kind_of):
    X, Y, plan = problem(**CASES[name])
    readable = replace(plan, compiled=False)
    data, rng, warmup = prepare(BE, X, Y, block=plan.block), np.random.default_rng(1), 30
    state, tuning, memory = initial(plan, data, rng), initial_tuning(plan), adapt.start(plan)
    moved = 0
    with np.errstate(all="ignore"):
        for number in range(warmup):
            kind = kind_of(plan, number)
            noise = draw_noise(plan, rng, kind)
            factor = factored(BE, plan, data, state) if plan.hold > 1 else None
            other, others = sweep(Sweep(BE, readable, data, tuning, noise, kind, factor), state)
            new, stats = sweep(Sweep(BE, plan, data, tuning, noise, kind, factor), state)
            close(other, new)
            for one, two in zip(others[:2], stats[:2], strict=True):
                np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
            moved += sum(int(np.asarray(part).sum()) for part in stats[:2])
            state = new
            seen = adapt.Seen(number, warmup, kind, stats, strength(BE, plan, data, state))
            tuning, memory = adapt.adapt(BE, plan, tuning, memory, seen)
    assert moved or not (kind.collapse or kind.sites)


@pytest.mark.parametrize("model", [{}, {"noise": "independent"}, {"rank": 2}], ids=["correlated", "independent", "rank 2 of 3"])
def test_with_many_features_the_same_noise_gives_the_same_state(model, monkeypatch):
    """With looks before each sweep."""
    monkeypatch.setattr("intarsia.server.sampler.schedule.SEARCHED", 150)
    monkeypatch.setattr("intarsia.server.sampler.schedule.WIDE_FROM", 150)
    X, Y, plan = problem(tau_scale=0.01, **model)
    plan = replace(plan, tau_reach=1.0, borderline=60, exchanges=2)
    assert plan.searches
    assert [plan.kind(i) for i in range(3)] == [FULL._replace(score=True)] * 3
    assert plan.looks == 1
    plan = replace(plan, looks=2)
    readable = replace(plan, compiled=False)
    data, rng, warmup = prepare(BE, X, Y, block=plan.block), np.random.default_rng(1), 45
    data = data._replace(alike=Alike(np.array([[0, 5, 6, 7], [9, 20, 9, 9]]), np.array([4, 2])))
    state, tuning, memory = initial(plan, data, rng), initial_tuning(plan), adapt.start(plan)
    changed = 0
    with np.errstate(all="ignore"):
        for number in range(60):
            kind = plan.kind(number, warmup)
            noise = draw_noise(plan, rng, kind)
            other, others = sweep(Sweep(BE, readable, data, tuning, noise, kind), state)
            new, stats = sweep(Sweep(BE, plan, data, tuning, noise, kind), state)
            close(other, new, 1e-9)
            np.testing.assert_array_equal(others.steps, stats.steps)
            changed += int((state.lam != new.lam).sum())
            if stats.scored is not None:
                np.testing.assert_allclose(stats.scored.likely, others.scored.likely, rtol=1e-6)
            state = new
            if number < warmup:
                seen = adapt.Seen(number, warmup, kind, stats, strength(BE, plan, data, state))
                tuning, memory = adapt.adapt(BE, plan, tuning, memory, seen)
    assert changed > 20


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("d2", [1e-30, 1.0, 1e6])
def test_a_system_is_solved_whatever_the_size_of_its_right_hand_side(size, d2):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, b = rng.standard_normal((30, 10)), size * rng.standard_normal(30)
        G = X @ X.T
        expected = np.linalg.solve(np.eye(30) + d2 * G, b)
        np.testing.assert_allclose(kernels._solve_one(G, d2, b), expected, rtol=1e-6, atol=1e-9 * size)


def test_normal_scores_are_those_of_the_library():
    p = np.exp(np.linspace(-80, np.log(0.5), 2000))[:-1]
    found = [kernels.lower_score(x) for x in p]
    np.testing.assert_allclose(found, ndtri(p), rtol=1e-13)


def test_a_system_that_is_not_positive_definite_has_no_number():
    """No proposal is accepted there, and no chain goes on from it."""
    factor = BE.factor(np.diag([4.0, 1.0, 2.0]), np.eye(3), np.ones(3), 1.0)
    factor.diag, factor.off = np.array([1.0, -3.0, 1.0]), np.array([0.5, 0.5])
    assert np.isnan(factor.log_marginal(np.ones(1), np.ones((3, 1))))
    assert np.isnan(factor.solve(np.ones(1), np.ones((1, 3, 1)))).any()
    assert np.isnan(kernels.log_marginal(factor.diag, factor.off, np.ones(1), np.ones((3, 1))))
    assert np.isnan(kernels.solve(factor.diag, factor.off, np.ones(1), np.ones((1, 3, 1)))).any()
