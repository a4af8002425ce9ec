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


def by_zone(be, state, number):
    """Large, small and what is between, by the present state."""
    lam = be.asarray(state.lam)
    return small_shares.listed(be, small_shares.over_limit(be, lam, be.xp.ones(P), be.xp.asarray([0.1, 0.05])), number)


def by_mark(be, state, number):
    return small_shares.listed_as(be, be.xp.asarray(CLEAR), number)


LISTS = {"by zone": (by_zone, P), "by zone, some": (by_zone, 9), "by mark": (by_mark, 3), "by mark, filled up": (by_mark, 9)}


def target_of(be, X, Y, state, listed):
    chosen, counts = np.asarray(listed.chosen), np.asarray(listed.counts)
    C = (state.B[chosen] * counts[:, None]) @ state.A.T
    residual = Y - X @ state.B @ state.A.T
    fit = small_shares.Fit(residual, X @ state.B @ state.A.T - X[:, chosen] @ C, X[:, chosen], C)
    return small_shares.Sizing.of(be, State(*map(be.asarray, state)), listed, small_shares.Fit(*map(be.asarray, fit)), LAWS)


def joint(X, Y, state):
    """Log density of the data, B, log lam and log tau, from the laws as written; Sigma is the identity."""
    value = -0.5 * np.square(Y - X @ state.B @ state.A.T).sum()
    scale = state.lam[:, None] * state.tau
    value += (-0.5 * np.square(state.B / scale) - np.log(scale)).sum()
    value += np.log(state.lam / (1 + state.lam**2)).sum()
    return value + (np.log(state.tau / (1 + (state.tau / 0.2) ** 2)) - 0.5 * (state.tau / 0.3) ** 2).sum()


@pytest.mark.parametrize("which", LISTS)
@pytest.mark.parametrize("name", ["numpy", "jax"])
def test_the_density_is_the_joint_one_with_its_volume(name, which):
    be = backends.get("numpy") if name == "numpy" else backends.on_device()
    make, number = LISTS[which]
    X, Y, state = problem()
    with backends.on_device().precision():
        listed = make(be, state, number)
        target = target_of(be, X, Y, state, listed)
        for x in (-0.7, 0.2, min(1.1, 0.9 * float(listed.room))):
            there = moved(be, state, listed, x)[0]
            # B goes along with its scale; log lam is shifted, and between small and large drawn together or apart.
            volume = R * np.log(there.B[:, 0] / state.B[:, 0]).sum()
            if listed.over is not None:
                over = np.asarray(listed.over)
                volume += np.log((along(over + 1e-6, x) - along(over - 1e-6, x)) / 2e-6).sum()
            expected = joint(X, Y, there) - joint(X, Y, state) + volume
            found = float(target(be.xp.asarray(x)) - target(be.xp.asarray(0.0)))
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-7)


def along(over, x):
    return small_shares.along(np, np.asarray(over), np.asarray(x))[0]


def moved(be, state, listed, x):
    there, own = small_shares.moved(be, State(*map(be.asarray, state)), listed, be.xp.asarray(x))
    return State(*map(np.asarray, there)), np.asarray(own)


def test_between_small_and_large_features_go_along_in_part():
    over = np.linspace(-3, 2, 401)
    for x, y in ((0.3, 0.5), (0.8, -0.6), (-0.4, -1.0), (-0.7, 0.7)):
        np.testing.assert_allclose(along(along(over, x), y), along(over, x + y), atol=1e-9)  # one way, whatever the steps
        there = along(over, x)
        assert (np.diff(there) > 0).all()  # the order stays
        small, large = np.maximum(over, there) < -small_shares.WIDTH, over > small_shares.WIDTH
        assert small.any()
        np.testing.assert_allclose((there - over)[small], x)
        np.testing.assert_array_equal(there[large], over[large])
        between = ~small & ~large
        assert (np.abs(there - over)[between] <= abs(x) + 1e-12).all()
        slope = np.gradient(there, over)[between]
        np.testing.assert_allclose(np.log(slope[2:-2]), small_shares.along(np, over, np.array(x))[1][between][2:-2], atol=0.06)


def test_the_list_is_the_same_all_along_and_ends_where_another_feature_grows_too_large():
    be, state = backends.get("numpy"), problem()[2]
    listed = by_zone(be, state, 9)
    assert 0 < listed.room < 4
    for x in (-2.0, 0.9 * listed.room):
        there = moved(be, state, listed, x)[0]
        grown = there._replace(lam=there.lam * np.exp(x))  # d grows as tau does
        again = by_zone(be, grown, 9)
        np.testing.assert_array_equal(again.chosen, listed.chosen)
        assert again.room == pytest.approx(listed.room - x)
        np.testing.assert_allclose(again.over, along(listed.over, x), atol=1e-9)
    noise = {"resize.z": np.full(len(small_shares.SIZES), 10.0), "resize.u": np.full(len(small_shares.SIZES), 1e-300)}
    target = target_of(be, *problem(), listed)
    assert small_shares.resize(target, noise) < listed.room
    beyond = target._replace(listed=listed._replace(room=-np.inf))
    assert small_shares.resize(beyond, noise | {"resize.z": -noise["resize.z"]}) == 0.0


@pytest.mark.parametrize("which", LISTS)
def test_the_large_features_keep_their_coefficients_and_all_their_prior(which):
    """On a device the list of marked ones is filled up with others, which count as small."""
    make, number = LISTS[which]
    X, Y, state = problem()
    noise = {"resize.z": np.full(len(small_shares.SIZES), 0.1), "resize.u": np.full(len(small_shares.SIZES), 1e-12)}
    for be in (backends.get("numpy"), backends.on_device()):
        with backends.on_device().precision():
            listed = make(be, state, number)
            x = small_shares.resize(target_of(be, X, Y, state, listed), {k: be.asarray(v) for k, v in noise.items()})
            there, own = moved(be, state, listed, x)
            factor = math.exp(float(x))
        assert factor == pytest.approx(math.exp(0.1 * sum(small_shares.SIZES)))
        counts, chosen = np.asarray(listed.counts), np.asarray(listed.chosen)
        large = counts if listed.over is None else np.asarray(listed.over) > small_shares.WIDTH
        stays = np.isin(np.arange(P), chosen[large & counts])
        goes = ~np.isin(np.arange(P), chosen[counts])
        assert stays.sum() >= 2
        assert goes.any() or number == P
        np.testing.assert_allclose(there.B[stays], state.B[stays])
        np.testing.assert_allclose(there.B[goes], state.B[goes] * factor)
        np.testing.assert_allclose(there.B[chosen], state.B[chosen] * own[:, None])
        np.testing.assert_allclose((there.lam * there.tau[0])[stays], (state.lam * state.tau[0])[stays])
        np.testing.assert_allclose(there.lam[goes], state.lam[goes], rtol=1e-12)
        unit = [now.B / now.lam[:, None] / now.tau for now in (there, state)]
        np.testing.assert_allclose(unit[0], unit[1])


def test_nothing_moves_where_nothing_is_accepted():
    X, Y, state = problem()
    be = backends.get("numpy")
    listed = by_mark(be, state, 9)
    noise = {"resize.z": np.full(len(small_shares.SIZES), 40.0), "resize.u": np.ones(len(small_shares.SIZES))}
    x = small_shares.resize(target_of(be, X, Y, state, listed), noise)
    assert x == 0.0
    for before, after in zip(state, moved(be, state, listed, x)[0], strict=True):
        np.testing.assert_array_equal(before, after)
