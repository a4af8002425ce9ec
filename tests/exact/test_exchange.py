"""Look-alikes exchange their scales: against the dense density, sets by hand, and what chains gain by it."""

from dataclasses import replace

import numpy as np
import pytest

from intarsia.server.assess.convergence import diagnose
from intarsia.server.sampler import backends, compiled, exchange, look_alikes, without_b
from intarsia.server.sampler import sweep as readable
from intarsia.server.sampler.exchange import Alike
from intarsia.server.sampler.look_alikes import MEMBERS
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.schedule import FULL, Sweep, draw_noise
from intarsia.server.sampler.schedule import plan as make_plan
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.sparse_start import SparseStart, sparse_start
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.state import prepare

BE = backends.get("numpy")
M, P, Q, R = 12, 30, 3, 2
SETS = Alike(np.array([[3, 4, 5, 6], [20, 11, 20, 20], [9, 0, 29, 9]]), np.array([4, 2, 3]))


def problem(seed):
    """Scales that the data resolve, columns of unlike length that correlate."""
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((M, P)) + rng.standard_normal((M, 1))) * np.exp(rng.normal(0.0, 0.7, P))
    X[:, 4] = X[:, 3] + 0.1 * rng.standard_normal(M)
    lam, d = np.exp(rng.normal(-1.0, 1.5, P)), np.array([0.7, 0.2])
    y = np.stack([np.linalg.cholesky(system(X, lam, each)) @ rng.standard_normal(M) for each in d])
    return rng, X, lam, d, y


def system(X, lam, d):
    return np.eye(M) + d**2 * (X * lam**2) @ X.T


def log_density(X, lam, d, y):
    """Of y_j ~ N(0, I + d_j² G)."""
    value = 0.0
    for each, mine in zip(d, y, strict=True):
        S = system(X, lam, each)
        value -= 0.5 * (np.linalg.slogdet(S)[1] + mine @ np.linalg.solve(S, mine))
    return value


def by_hand(X, lam, d, y, sets, edge, who, u):
    """Each exchange decided by the whole density."""
    tried = done = 0
    for at, size, whom, limit in zip(sets.features, sets.size, who, u, strict=True):
        for k, bound in zip(whom, limit, strict=True):
            every = [(i, j) for i in range(size) if lam[at[i]] > edge for j in range(size) if j != i]
            if not every:
                continue
            i, j = every[int(k * len(every))]
            p, q = at[i], at[j]
            new = lam.copy()
            new[p], new[q] = lam[q], lam[p]
            tried += 1
            if np.log(bound) < log_density(X, new, d, y) - log_density(X, lam, d, y):
                lam, done = new, done + 1
    return lam, tried, done


@pytest.mark.parametrize("name", ["numpy", "compiled", "jax"])
def test_an_exchange_is_decided_by_the_density_with_B_integrated_out(name):
    be = pytest.importorskip("jax") and backends.on_device() if name == "jax" else BE
    scales = compiled.exchanged if name == "compiled" else exchange.scales
    tried = done = 0
    number = set()  # of features that are in
    for seed in range(4 if name == "jax" else 40):
        rng, X, lam, d, y = problem(seed)
        edge, who, u = np.median(lam), rng.random((3, 8)), rng.random((3, 8))
        expected, more, fewer = by_hand(X, lam, d, y, SETS, edge, who, u)
        number.update((lam[at[:size]] > edge).sum() for at, size in zip(*SETS, strict=True))
        tried, done = tried + more, done + fewer
        columns = X[:, SETS.features.reshape(-1)]
        solved = np.stack([np.linalg.solve(system(X, lam, each), columns) for each in d])
        systems = columns.T @ solved, (solved.swapaxes(1, 2) @ y[:, :, None])[:, :, 0], d
        with be.precision() if name == "jax" else np.errstate():
            given = exchange.Systems(*map(be.asarray, systems))
            old, *tries = map(be.asarray, (lam[SETS.features], edge, who, u))
            new = np.asarray(scales(be, given, old, be.xp.asarray(SETS.size), exchange.Tries(*tries)))
        for at, size, mine in zip(SETS.features, SETS.size, new, strict=True):
            np.testing.assert_array_equal(mine[:size], expected[at[:size]])
    assert 0.1 * tried < done < 0.9 * tried
    assert {0, 1, 2, 3} <= number


def test_what_is_known_of_the_system_goes_along(monkeypatch):
    monkeypatch.setattr("intarsia.server.sampler.schedule.SEARCHED", 20)
    rng = np.random.default_rng(3)
    X = rng.standard_normal((M, P)) + 3 * rng.standard_normal((M, 1))
    Y = X[:, :1] + rng.standard_normal((M, Q))
    plan = replace(make_plan(Model(rank=R), X, Y), exchanges=3)
    data, moved = prepare(BE, X, Y)._replace(alike=SETS), 0
    state, tuning = initial(plan, data, rng), initial_tuning(plan)
    ways, still = without_b.Ways(readable.walk, exchange.scales), 0
    for _ in range(40):
        noise = draw_noise(plan, rng, FULL)
        now = Sweep(BE, plan, data, tuning, noise, FULL)
        factor = without_b.factored(now, state, BE.weigh(X, state.lam, noise["Z"])[0])
        new, G, more = without_b.exchanged(now, state, factor, ways)
        assert (G is factor.G) == np.array_equal(new.lam, state.lam)
        still += G is factor.G
        np.testing.assert_allclose(np.tril(G), np.tril((X * new.lam**2) @ X.T), rtol=1e-8)
        np.testing.assert_allclose(more, X @ ((new.lam - state.lam)[:, None] * noise["Z"]), rtol=1e-8, atol=1e-10)
        for features, size in zip(*SETS, strict=True):
            mine = features[:size]
            np.testing.assert_array_equal(np.sort(new.lam[mine]), np.sort(state.lam[mine]))
        alone = np.setdiff1d(np.arange(P), SETS.features)
        np.testing.assert_array_equal(new.lam[alone], state.lam[alone])
        moved += int((new.lam != state.lam).sum())
        state = new
    assert moved
    assert still  # then the factor serves as it is


def solution(X, Y, features):
    """As `sparse_start` leaves it, for features that are given."""
    scale = np.linalg.norm(X[:, features], axis=0)
    C = np.linalg.lstsq(X[:, features] / scale, Y, rcond=None)[0] / scale[:, None]
    left = Y - X[:, features] @ C
    return SparseStart(np.array(features), C, left.T @ left / (len(Y) - len(features)))


def lost(X, Y, found, centre, q):
    """What the likelihood loses, in logarithms, by q in place of the centre, each fitted to what the others leave."""
    rest = np.flatnonzero(found.features != centre)
    left = Y - X[:, found.features[rest]] @ found.C[rest]
    white = np.linalg.cholesky(np.linalg.inv(found.residual))

    def gain(p):
        return 0.5 * np.square(X[:, p] @ left @ white).sum() / (X[:, p] @ X[:, p])

    return gain(centre) - gain(q)


def test_sets_are_made_of_what_could_stand_in_a_feature_s_place_and_share_nothing():
    rng = np.random.default_rng(0)
    m, blocks = 200, 40
    common = np.repeat(rng.standard_normal((m, blocks)), 20, axis=1)
    X = np.sqrt(0.9) * common + np.sqrt(0.1) * rng.standard_normal((m, 20 * blocks))
    X[:, 7], X[:, 50], X[:, 300] = 0.0, -2.5 * X[:, 45], 0.5 * X[:, 103]
    Y = 0.7 * X[:, [45]] + 0.8 * X[:, [103]] + 5.0 * X[:, [790]] + 0.2 * X[:, [400]] + rng.standard_normal((m, 1))
    found = solution(X, Y, [45, 103, 400, 790])
    alike = look_alikes.look_alikes(X, Y, found)
    assert len(alike.size) == 2  # 790 stands for itself; the others can do without 400
    needed = replace(solution(X, Y, [45, 103, 790]), residual=found.residual)
    for centre, twin, features, size in zip((45, 103), (50, 300), *alike, strict=True):
        mine = features[:size].tolist()
        assert {centre, twin} <= set(mine)
        assert len(set(mine)) == size
        assert set(features[size:].tolist()) <= {mine[0]}
        block = 20 * (centre // 20)
        own = np.union1d(np.arange(block, block + 20), twin)
        costs = np.array([lost(X, Y, needed, centre, q) for q in own])
        order = np.argsort(costs)
        cheap = own[order[costs[order] < costs.min() + look_alikes.COSTS]]
        assert 1 < cheap.size != 20
        np.testing.assert_array_equal(np.sort(mine), np.sort(cheap[:MEMBERS]))


def test_what_the_solution_leaves_has_sets_too():
    rng = np.random.default_rng(2)
    m = 150
    X = rng.standard_normal((m, 3_000))
    X[:, 1:2_000:2] = X[:, 0:2_000:2] + 0.2 * rng.standard_normal((m, 1_000))
    Y = X[:, [40, 200, 702, 2_500]] @ np.array([[0.6, 0.3], [0.5, 0.5], [0.8, -0.4], [1.0, 1.0]]) + rng.standard_normal((m, 2))
    alike = look_alikes.look_alikes(X, Y, solution(X, Y, [40, 200]))
    sets = [set(features[:size].tolist()) for features, size in zip(*alike, strict=True)]
    assert all(pair in sets for pair in ({40, 41}, {200, 201}, {702, 703}))
    assert 2_500 not in alike.features  # nothing looks like it
    assert len(sets) <= 2 + look_alikes.BESIDE


def test_neighbours_that_a_lasso_took_for_one_feature_are_one_set():
    """Of those that it took, the middle one is the true one; the others cost much in its place, but chains may start at them."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((300, 2_000))
    for p in range(1, 2_000):
        X[:, p] = 0.9 * X[:, p - 1] + np.sqrt(1 - 0.81) * X[:, p]
    Y = X[:, [500]] @ np.array([[0.5, 0.4]]) + X[:, [900]] + X[:, [901]] * np.array([-1.0, 1.0]) + rng.standard_normal((300, 2))
    found = solution(X, Y, [499, 500, 501, 900, 901])
    sets = [set(features[:size].tolist()) for features, size in zip(*look_alikes.look_alikes(X, Y, found), strict=True)]
    assert sets == [{499, 500, 501}]  # both 900 and 901 are needed
    assert min(lost(X, Y, solution(X, Y, [500, 900, 901]), 500, q) for q in (499, 501)) > look_alikes.COSTS


@pytest.mark.parametrize("m", [30, 100, 300])
def test_features_that_correlate_by_chance_make_no_sets(m):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((m, 20_000))
    Y = 0.9 * X[:, [3, 8]] + rng.standard_normal((m, 2))
    found = solution(X, Y, [3, 8, *range(10_000, 10_008)])
    assert look_alikes.look_alikes(X, Y, found).size.tolist() == []
    X[:, 100] = X[:, 3] + 0.05 * rng.standard_normal(m)
    assert [set(features.tolist()) for features in look_alikes.look_alikes(X, Y, found).features] == [{3, 100}]


def test_common_correlation_makes_no_sets_around_what_is_clear():
    """As in the paper's simulations: every two features correlate at .7."""
    rng = np.random.default_rng(3)
    X = np.sqrt(0.7) * rng.standard_normal((200, 1)) + np.sqrt(0.3) * rng.standard_normal((200, 1_000))
    Y = X[:, :10] @ rng.choice([-1.0, 1.0], (10, 3)) + rng.standard_normal((200, 3))
    assert look_alikes.look_alikes(X, Y, solution(X, Y, list(range(10)))).size.tolist() == []


def test_sets_of_a_root_of_the_gram_matrix_are_those_of_its_rows():
    X, Y = twins()
    both = np.concatenate([X, Y], axis=1)
    _U, values, Vt = np.linalg.svd(both, full_matrices=False)
    root = values[:, None] * Vt
    found = sparse_start(X, Y)
    sets = look_alikes.look_alikes(X, Y, found)
    assert len(sets.size)
    again = look_alikes.look_alikes(root[:, :-2], root[:, -2:], found, len(X))
    np.testing.assert_array_equal(again.features, sets.features)


def test_units_of_the_columns_do_not_matter():
    X, Y = twins()
    units = 10.0 ** np.random.default_rng(0).uniform(-6, 6, X.shape[1])
    for features in (sparse_start(X, Y).features.tolist(), [10, 20, 30, 40, 50, 700]):
        one, two = (look_alikes.look_alikes(Z, Y, solution(Z, Y, features)) for Z in (X, X * units))
        assert len(one.size)
        np.testing.assert_array_equal(one.features, two.features)


@pytest.mark.parametrize("Q", [1, 3])
def test_responses_that_are_exact_or_nothing_make_no_trouble(Q):
    X, _ = twins()
    for Y in (np.zeros((len(X), Q)), X[:, :Q].copy(), np.zeros((len(X), Q)) + X[:, [10]]):
        found = sparse_start(X, Y)
        alike = look_alikes.look_alikes(X, Y, found)
        assert alike.features.shape == (len(alike.size), alike.size.max(initial=0))


@pytest.mark.parametrize("name", ["numpy", "jax"])
@pytest.mark.parametrize("inside", [0, 3, 30])
def test_sets_in_which_a_feature_is_in_are_visited_in_turn_and_no_others(name, inside):
    be = pytest.importorskip("jax") and backends.on_device() if name == "jax" else BE
    number, most, members, times = 40, exchange.VISITED, 5, 200 if name == "jax" else 2_000
    rng = np.random.default_rng(inside)
    lam, seen, which = np.full(number * members, 0.1), np.zeros(number, dtype=int), rng.permutation(number)[:inside]
    lam[which * members + rng.integers(0, members, inside)] = 9.0
    with be.precision() if name == "jax" else np.errstate():
        there, alike = be.asarray(lam), Alike(be.xp.arange(lam.size).reshape(number, members), be.xp.full(number, members))
        for _ in range(times):
            found = exchange.visited(be, alike, there, 2.0, be.asarray(rng.random(number)))
            sets = np.asarray(found.features)[:, 0] // members
            assert len(sets) == (most if name == "jax" else min(most, max(1, inside)))
            seen[sets] += 1
    if name == "numpy" and inside:
        assert np.delete(seen, which).sum() == 0
    share = min(most, inside) / max(1, inside)
    assert np.abs(seen[which] / times - share).max(initial=0.0) <= 5 * np.sqrt(share * (1 - share) / times)


def twins(m=120, P=1_500):
    """Five features in pairs of which the data hardly say which member it is."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((m, P))
    X[:, 10:60:10] = 0.97 * X[:, 11:61:10] + np.sqrt(1 - 0.97**2) * X[:, 10:60:10]
    Y = X[:, 10:60:10] @ np.full((5, 2), 0.8) + rng.standard_normal((m, 2))
    return X, Y


def test_chains_agree_on_which_of_two_look_alikes_it_is(monkeypatch):
    X, Y = twins()
    asked = Settings(draws=400, warmup=60, chains=4, thin=1, seed=1, workers=1)
    pairs = np.concatenate([np.arange(10, 60, 10), np.arange(11, 61, 10)])
    assert diagnose(sample(X, Y, settings=asked)).rhat[pairs].max() < 1.05
    none = Alike(np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64))
    monkeypatch.setattr("intarsia.server.sampler.sample.look_alikes", lambda *given: none)
    assert diagnose(sample(X, Y, settings=asked)).rhat[pairs].max() > 1.3
