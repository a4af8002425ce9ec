"""The compiled loops against their twins written for any array library: same noise in, same state out."""

import importlib.util

import numpy as np
import pytest
from scipy.special import ndtri
from test_jax_backend import CASES, close, problem

from intarsia.server.sampler import adapt, backend, gibbs

pytestmark = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")
BE = backend.get("numpy")


KINDS = {"full": gibbs.FULL, "deep": gibbs.DEEP, "light": gibbs.LIGHT, "plain": gibbs.PLAIN, "short": gibbs.SHORT}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", CASES)
def test_the_same_noise_gives_the_same_state(name, kind, monkeypatch):
    X, Y, plan = problem(**CASES[name])
    data, rng, warmup = gibbs.prepare(BE, X, Y, block=plan.block), np.random.default_rng(1), 30
    state, tuning, memory = gibbs.initial(plan, data, rng), gibbs.initial_tuning(plan), adapt.start(plan)
    moved = 0
    with np.errstate(all="ignore"):
        for sweep in range(warmup):
            noise = gibbs.draw_noise(plan, rng, kind)
            with monkeypatch.context() as plain:
                plain.setattr(backend, "KERNELS", None)
                plain.setattr(backend.NumpyBackend, "kernels", None)
                other, others = gibbs.sweep(BE, plan, data, state, tuning, noise, kind)
            new, stats = gibbs.sweep(BE, plan, data, state, tuning, noise, kind)
            close(other, new)
            for one, two in zip(others, stats, strict=True):
                np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
            moved += sum(int(np.asarray(part).sum()) for part in stats)
            state = new
            strength = gibbs.strength(BE, data, state)
            tuning, memory = adapt.adapt(plan, tuning, memory, stats, strength, sweep, warmup, kind=kind)
    assert moved or not (plan.mixing and kind.scales)


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("d2", [1e-30, 1.0, 1e6])
def test_a_system_is_solved_whatever_the_size_of_its_right_hand_side(size, d2):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, b = rng.standard_normal((30, 10)), size * rng.standard_normal(30)
        G = X @ X.T
        expected = np.linalg.solve(np.eye(30) + d2 * G, b)
        np.testing.assert_allclose(backend.KERNELS._solve_one(G, d2, b), expected, rtol=1e-6, atol=1e-9 * size)


def test_normal_scores_are_those_of_the_library():
    p = np.exp(np.linspace(-80, np.log(0.5), 2000))[:-1]
    found = [backend.KERNELS.lower_score(x) for x in p]
    np.testing.assert_allclose(found, ndtri(p), rtol=1e-13)


def test_a_system_that_is_not_positive_definite_is_told(monkeypatch):
    from intarsia.errors import ConvergenceError

    factor = BE.factor(np.diag([4.0, 1.0, 2.0]), np.eye(3), np.ones(3), 1.0)
    factor.diag, factor.off = np.array([1.0, -3.0, 1.0]), np.array([0.5, 0.5])
    for kernels in (backend.KERNELS, None):
        monkeypatch.setattr(backend, "KERNELS", kernels)
        with pytest.raises(ConvergenceError):
            factor.log_marginal(np.ones(1), np.ones((3, 1)))
        with pytest.raises(ConvergenceError):
            factor.solve(np.ones(1), np.ones((1, 3, 1)))
