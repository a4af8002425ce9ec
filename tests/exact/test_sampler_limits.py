"""The sampler where numbers are extreme: it stays finite and, where the answer is known, right."""

from dataclasses import replace

import numpy as np
import pytest

from intarsia.server.sampler.horseshoe.chain import start, untuned
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.horseshoe.sweep import FULL, LIGHT, Sweep, prepare, sweep
from intarsia.server.sampler.settings import Settings

RUN = Settings(draws=60, warmup=60, chains=2, thin=1, seed=1)


def data(m=15, P=30, Q=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, P))
    C = np.zeros((P, Q))
    C[0] = 2.0
    return X, X @ C + 0.3 * rng.standard_normal((m, Q)), C


@pytest.mark.parametrize("local", ["row", "element"])
@pytest.mark.parametrize(
    "change",
    [
        {"Q": 1}, {"m": 2}, {"m": 3, "P": 1}, {"m": 60, "P": 4}, {"P": 400, "m": 6}, {"P": 1, "m": 2, "Q": 1},
        {"Q": 4, "rank": 1}, {"Q": 4, "rank": 2},
    ],
    ids=str,
)  # fmt: skip
def test_every_shape_runs(local, change):
    rank = change.get("rank")
    X, Y, _ = data(**{k: v for k, v in change.items() if k != "rank"})
    draws = sample(X, Y, Model(local=local, rank=rank), RUN)
    assert draws.C.shape == (2, 60, X.shape[1], Y.shape[1])
    assert np.isfinite(draws.C).all()
    assert (draws.sigma2 > 0).all()


@pytest.mark.parametrize("local", ["row", "element"])
def test_duplicated_collinear_and_zero_columns_and_a_constant_response(local):
    X, Y, _ = data()
    X[:, 3], X[:, 4], X[:, 5] = X[:, 0], X[:, 1] + X[:, 2], 0.0
    Y[:, 2] = 0.0
    draws = sample(X, Y, Model(local=local), RUN)
    assert np.isfinite(draws.C).all()
    together = draws.C[..., 0, 0] + draws.C[..., 3, 0]
    assert abs(together.mean() - 2.0) < 0.5  # a signal and its copy share the effect
    assert np.abs(draws.C[..., 2]).mean() < 0.2


@pytest.mark.parametrize("local", ["row", "element"])
@pytest.mark.parametrize(("m", "P", "Q", "used"), [(20, 1, 6, 1), (16, 20, 6, 3), (60, 3, 2, 3), (90, 40, 3, 1)])
def test_responses_that_are_exact_functions_of_the_features(local, m, P, Q, used):
    rng = np.random.default_rng(m)
    X, C = rng.standard_normal((m, P)), np.zeros((P, Q))
    C[:used] = rng.standard_normal((used, Q))
    draws = sample(X, X @ C, Model(local=local), replace(RUN, draws=300, warmup=300))
    assert np.isfinite(draws.C).all()
    away = np.abs(np.median(draws.C, axis=1) - C).max(axis=(1, 2))
    # With fewer rows than features and no noise at all a chain may stay where it is: in about a third of such data sets both find
    # C. Where the rows suffice every chain does.
    assert (away.min() if m < P else away.max()) < 0.1


@pytest.mark.parametrize("local", ["row", "element"])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("which", ["lam", "tau", "Sigma", "half of lam"])
def test_scales_over_twenty_four_orders_of_magnitude(local, scale, which):
    X, Y, _ = data()
    problem, rng = prepare(Model(local=local), X, Y), np.random.default_rng(3)
    state, kind = start(problem, rng), FULL if local == "row" else LIGHT
    if which == "half of lam":
        lam = state.lam.copy()
        lam[::2] *= scale
        state = state._replace(lam=lam)
    else:
        state = state._replace(**{which: getattr(state, which) * scale})
    with np.errstate(all="ignore"):
        for _ in range(300):
            state, _ = sweep(Sweep(problem, untuned(problem), kind, rng), state)
            assert all(np.isfinite(v).all() for v in state)
    C = state.B @ state.A.T
    assert np.abs(C[0] - 2.0).max() < 1.5  # it has found its way back


@pytest.mark.parametrize("local", ["row", "element"])
def test_a_response_that_the_features_give_exactly_is_found_beside_noisy_ones(local):
    X, Y, _ = data(m=40, P=20, Q=3)
    draws = sample(X, np.hstack([Y, X[:, :1] - X[:, 1:2]]), Model(local=local), replace(RUN, draws=150, warmup=150))
    for chain in draws.C:
        np.testing.assert_allclose(np.median(chain, axis=0)[:2, -1], [1.0, -1.0], atol=0.01)


@pytest.mark.parametrize("local", ["row", "element"])
def test_copies_and_sums_of_responses_do_not_stop_a_chain(local):
    """The noise's covariance is singular: a response twice, one that is the sum of others, one that the features give exactly."""
    X, Y, _ = data(m=40, P=20, Q=3)
    Y = np.hstack([Y, Y[:, :1], Y[:, :1] + Y[:, 1:2], X[:, :1] - X[:, 1:2]])
    draws = sample(X, Y, Model(local=local), RUN)
    assert np.isfinite(draws.C).all()
    assert np.isfinite(draws.Sigma).all()
    assert (draws.sigma2 > 0).all()


def test_row_and_element_scales_agree_when_the_truth_is_dense_and_small():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((200, 3))
    C = np.array([[1.0, -1.0], [0.8, 0.5], [-1.2, 0.7]])
    Y = X @ C + rng.standard_normal((200, 2))
    run = Settings(draws=400, warmup=200, chains=2, thin=2, seed=2)
    row, element = (sample(X, Y, Model(local=local), run) for local in ("row", "element"))
    np.testing.assert_allclose(row.C.mean((0, 1)), element.C.mean((0, 1)), atol=0.03)
    np.testing.assert_allclose(row.C.std((0, 1)), element.C.std((0, 1)), rtol=0.15)
    ols = np.linalg.lstsq(X, Y, rcond=None)[0]
    np.testing.assert_allclose(row.C.mean((0, 1)), ols, atol=0.06)


def test_the_fractional_posterior_is_wider_by_the_root_of_its_power():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((400, 2))
    Y = X @ np.array([[1.0], [-1.0]]) + rng.standard_normal((400, 1))
    run = Settings(draws=800, warmup=100, chains=1, thin=1, seed=2)
    whole, half = (sample(X, Y, Model(power=a), run) for a in (1.0, 0.25))
    np.testing.assert_allclose(half.C.std((0, 1)) / whole.C.std((0, 1)), 2.0, rtol=0.15)
    np.testing.assert_allclose(half.C.mean((0, 1)), whole.C.mean((0, 1)), atol=0.03)
    np.testing.assert_allclose(half.sigma2.mean(), whole.sigma2.mean(), rtol=0.1)


def test_pure_noise_gives_small_coefficients_and_the_right_noise_level():
    rng = np.random.default_rng(6)
    draws = sample(
        rng.standard_normal((80, 120)), rng.standard_normal((80, 2)), settings=Settings(draws=600, warmup=600, chains=2, thin=2)
    )
    assert np.abs(draws.C.mean((0, 1))).max() < 0.2
    assert 0.6 < draws.sigma2.mean() < 1.3
