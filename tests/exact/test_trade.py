"""The trade of the small coefficients' variance against the noise: its density against a dense one, and that it can be undone."""

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from intarsia.server.sampler import backends, trade
from intarsia.server.sampler.covariance import NU, Correlated, covariance_law
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.moves import Laws
from intarsia.server.sampler.priors import HalfCauchy
from intarsia.server.sampler.schedule import Kind, draw_noise, plan
from intarsia.server.sampler.state import State, prepare

M, P, Q, R = 9, 30, 3, 2
TRADING = Kind(True, True, False, trade=True)
LAWS = Laws(HalfCauchy(), HalfCauchy(0.2))


def problem(rows=M, features=P, noise="correlated"):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((rows, features))
    Y = X[:, :2] @ rng.standard_normal((2, Q)) + rng.standard_normal((rows, Q))
    lam = np.abs(rng.standard_cauchy(features))
    lam[:3] = 20.0, 30.0, 25.0
    root = rng.standard_normal((Q, 5))
    Sigma = root @ root.T / 5 if noise == "correlated" else np.diag([0.5, 1.0, 1.5])
    state = State(rng.standard_normal((Q, R)), np.zeros((features, R)), lam, np.array([0.03, 0.05]), Sigma)
    return X, Y, state


def dense(X, Y, state, scale, noise):
    """Log posterior density of (log lam, log tau, Sigma), B integrated out, up to a constant, from the laws as written."""
    K = np.kron(state.Sigma, np.eye(len(X)))
    K += np.kron((state.A * state.tau**2) @ state.A.T, (X * state.lam**2) @ X.T)
    value = multivariate_normal(np.zeros(K.shape[0]), K).logpdf(Y.T.ravel())
    value += np.log(state.lam / (1 + state.lam**2)).sum() + np.log(state.tau / (1 + (state.tau / 0.2) ** 2)).sum()
    if noise == "independent":  # half-Cauchy standard deviations, as a density of the variances
        sigma2 = np.diag(state.Sigma)
        return value - np.log((1 + sigma2 / scale**2) * np.sqrt(sigma2)).sum()
    precision = np.diag(np.linalg.inv(state.Sigma))  # Huang & Wand (2013), a integrated out
    value -= (NU + 2 * Q) / 2 * np.linalg.slogdet(state.Sigma)[1]
    return value - (NU + Q) / 2 * np.log(NU * precision + 1 / scale**2).sum()


@pytest.mark.parametrize("name", ["numpy", "jax"])
@pytest.mark.parametrize("noise", ["correlated", "independent"])
@pytest.mark.parametrize("rows", [M, 40])
def test_the_density_is_the_dense_one(name, noise, rows, monkeypatch):
    """Every accepted or refused step is decided by differences of this density; `rows` above P rotates the data first."""
    be = backends.get("numpy") if name == "numpy" else backends.on_device()
    X, Y, state = problem(rows, noise=noise)
    seen = []
    original = trade.Target.__call__

    def noted(self, x, at):
        value = original(self, x, at)
        seen.append((float(x), np.linalg.inv(np.asarray(at.K).T @ np.asarray(at.K)), float(value)))
        return value

    monkeypatch.setattr(trade.Target, "__call__", noted)
    rng = np.random.default_rng(0)
    numbers = {"Z": rng.standard_normal((P, R)), "trade.z": rng.standard_normal(6), "trade.u": np.full(6, 1e-12)}
    if name == "jax":
        monkeypatch.setattr(be, "scan", backends.get("numpy").scan)  # step by step, so that the values can be looked at
        with be.precision():
            data = prepare(be, X, Y)
            law = covariance_law(noise, data.noise_scale, Q)
            moved = trade.trade(
                be, data, State(*map(be.asarray, state)), be.weigh(data.X, state.lam, numbers["Z"]), (LAWS, law, 1.0), numbers
            )
    else:
        data = prepare(be, X, Y)
        law = covariance_law(noise, data.noise_scale, Q)
        moved = trade.trade(be, data, state, be.weigh(data.X, state.lam, numbers["Z"]), (LAWS, law, 1.0), numbers)
    scale = np.sqrt((Y**2).mean(axis=0))
    plain = backends.get("numpy")
    found_in = trade.inside(plain, prepare(plain, X, Y), state, covariance_law(noise, scale, Q))
    inside = found_in.chosen[found_in.counts]
    assert 1 <= inside.size < P
    values = []
    for x, Sigma, _ in seen:
        lam = state.lam.copy()
        lam[inside] *= math.exp(-x)
        values.append(dense(X, Y, state._replace(lam=lam, tau=state.tau * math.exp(x), Sigma=Sigma), scale, noise))
    assert len({round(x, 6) for x, _, _ in seen}) > 3
    found = np.array([value for _, _, value in seen])
    np.testing.assert_allclose(found - found[0], np.array(values) - values[0], rtol=1e-7, atol=1e-7)
    # What is handed on belongs to the scales that came out.
    lam, G = np.asarray(moved.state.lam), np.tril(np.asarray(moved.G))
    rotated = np.asarray(data.X)
    np.testing.assert_allclose(G, np.tril((rotated * lam**2) @ rotated.T), rtol=1e-9)
    np.testing.assert_allclose(moved.XZ, (rotated * lam) @ numbers["Z"], rtol=1e-8, atol=1e-8)
    product = np.asarray(moved.state.lam) * np.asarray(moved.state.tau[0])
    np.testing.assert_allclose(product[inside], (state.lam * state.tau[0])[inside])  # the large ones keep their prior


def test_what_comes_out_has_the_same_features_in():
    """The way back must start from the same list; many random numbers, none may change it."""
    be, (X, Y, state) = backends.get("numpy"), problem()
    data, law = prepare(be, X, Y), Correlated(np.sqrt((Y**2).mean(axis=0)))
    before, moved = trade.inside(be, data, state, law), 0
    for seed in range(40):
        noise = draw_noise(plan(Model(rank=R), X, Y), np.random.default_rng(seed), TRADING)
        after, _, _ = trade.trade(be, data, state, be.weigh(data.X, state.lam, noise["Z"]), (LAWS, law, 1.0), noise)
        now = trade.inside(be, data, after, law)
        assert set(now.chosen[now.counts]) == set(before.chosen[before.counts])
        moved += not np.array_equal(after.tau, state.tau)
    assert moved > 20


def test_with_too_many_features_in_nothing_moves(monkeypatch):
    be, (X, Y, state) = backends.get("numpy"), problem()
    monkeypatch.setattr(trade, "most", lambda rows, features: 2)
    data, law = prepare(be, X, Y), Correlated(np.sqrt((Y**2).mean(axis=0)))
    noise = draw_noise(plan(Model(rank=R), X, Y), np.random.default_rng(0), TRADING)
    after, _, _ = trade.trade(be, data, state, be.weigh(data.X, state.lam, noise["Z"]), (LAWS, law, 1.0), noise)
    np.testing.assert_array_equal(after.tau, state.tau)
    np.testing.assert_array_equal(after.Sigma, state.Sigma)
