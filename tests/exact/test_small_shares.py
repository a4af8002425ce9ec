"""The share of the small coefficients, moved as a whole: its density against the joint one written out, and what it leaves."""

import math

import numpy as np
import pytest

from intarsia.server.sampler import backends, small_shares
from intarsia.server.sampler.moves import Laws
from intarsia.server.sampler.priors import HalfCauchy
from intarsia.server.sampler.state import State

M, P, Q, R = 9, 30, 3, 2
LAWS = Laws(HalfCauchy(), HalfCauchy(0.2, 1.5))
CLEAR = np.isin(np.arange(P), [0, 4, 7])


def problem():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((M, P))
    lam, tau = np.abs(rng.standard_cauchy(P)), np.array([0.03, 0.05])
    lam[CLEAR] = 20.0, 30.0, 25.0
    A, B = rng.standard_normal((Q, R)), rng.standard_normal((P, R)) * lam[:, None] * tau
    Y = X @ B @ A.T + rng.standard_normal((M, Q))
    return X, Y, State(A, B, lam, tau, np.eye(Q))


def fit_of(X, Y, state):
    small = X[:, ~CLEAR] @ state.B[~CLEAR] @ state.A.T
    return small_shares.Fit(Y - X @ state.B @ state.A.T, small)


def joint(X, Y, state):
    """Log density of the data, B, log lam and log tau, from the laws as written; Sigma is the identity."""
    value = -0.5 * np.square(Y - X @ state.B @ state.A.T).sum()
    scale = state.lam[:, None] * state.tau
    value += (-0.5 * np.square(state.B / scale) - np.log(scale)).sum()
    value += np.log(state.lam / (1 + state.lam**2)).sum()
    return value + (np.log(state.tau / (1 + (state.tau / 0.2) ** 2)) - 0.5 * (state.tau / 0.3) ** 2).sum()


@pytest.mark.parametrize("name", ["numpy", "jax"])
def test_the_density_is_the_joint_one_with_its_volume(name):
    be = backends.get("numpy") if name == "numpy" else backends.on_device()
    X, Y, state = problem()
    fit = fit_of(X, Y, state)
    clear = small_shares.listed(backends.get("numpy"), CLEAR, 9)
    inner = (fit.residual * fit.small).sum(), (fit.small**2).sum()
    target = small_shares.Sizing(be, *inner, np.log(state.tau), np.log(state.lam[clear.chosen]), clear.counts, LAWS)
    with backends.on_device().precision():
        for x in (-0.7, 0.2, 1.1):
            there = small_shares.moved(backends.get("numpy"), state, clear, np.array(x))
            volume = x * R * (~CLEAR).sum()  # B of the small ones is multiplied, log lam and log tau are shifted
            expected = joint(X, Y, there) - joint(X, Y, state) + volume
            assert float(target(x) - target(0.0)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("number", [3, 9])
def test_the_clear_features_keep_their_coefficients_and_their_prior(number):
    """On a device the list is filled up with others, which count as small."""
    X, Y, state = problem()
    noise = {"resize.z": np.full(len(small_shares.SIZES), 0.1), "resize.u": np.full(len(small_shares.SIZES), 1e-12)}
    for be in (backends.get("numpy"), backends.on_device()):
        with backends.on_device().precision():
            clear = small_shares.listed(be, be.xp.asarray(CLEAR), number)
            there, factor = small_shares.resize(be, State(*map(be.asarray, state)), clear, fit_of(X, Y, state), LAWS, noise)
            there = State(*map(np.asarray, there))
        assert float(factor) == pytest.approx(math.exp(0.1 * sum(small_shares.SIZES)))
        np.testing.assert_allclose(there.B[CLEAR], state.B[CLEAR])
        np.testing.assert_allclose(there.B[~CLEAR], state.B[~CLEAR] * float(factor))
        np.testing.assert_allclose((there.lam * there.tau[0])[CLEAR], (state.lam * state.tau[0])[CLEAR])
        np.testing.assert_array_equal(there.lam[~CLEAR], state.lam[~CLEAR])
        unit = [now.B[~CLEAR] / now.lam[~CLEAR, None] / now.tau for now in (there, state)]
        np.testing.assert_allclose(unit[0], unit[1])


def test_nothing_moves_where_nothing_is_accepted():
    X, Y, state = problem()
    be = backends.get("numpy")
    noise = {"resize.z": np.full(len(small_shares.SIZES), 40.0), "resize.u": np.ones(len(small_shares.SIZES))}
    there, factor = small_shares.resize(be, state, small_shares.listed(be, CLEAR, 9), fit_of(X, Y, state), LAWS, noise)
    assert factor == 1.0
    for before, after in zip(state, there, strict=True):
        np.testing.assert_array_equal(before, after)
