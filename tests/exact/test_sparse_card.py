"""The accelerator's sparse sampler against the CPU's, piece by piece on the same numbers, and against enumeration."""

import itertools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from intarsia.errors import InputError
from intarsia.server.sampler.sparse import card_device, card_problem, card_scan, places, problem, scan, state, sweep
from intarsia.server.sampler.sparse.card import CardChains
from intarsia.server.sampler.sparse.card_chain import Chain, expectations, take_turns
from intarsia.server.sampler.sparse.chain import SparseChain


def data(P=40, m=30, Q=3, true=4, seed=1, *, copies=False, **options):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, P))
    if copies:
        X[:, 1::2] = 0.95 * X[:, : P // 2 * 2 : 2] + 0.3 * X[:, 1::2]
    B = np.zeros((P, Q))
    B[rng.choice(P, true, replace=False)] = rng.standard_normal((true, Q))
    Y = X @ B + rng.standard_normal((m, Q))
    background = options.pop("background", True)
    made, _scales = problem.prepare(X, Y, problem.Prior(**options), background=background)
    return made


def a_state(made, seed=2, wrong=8):
    """A position with patterns of every kind and a covariance that is not diagonal."""
    rng = np.random.default_rng(seed)
    Q = made.Y.shape[1]
    st = problem.start(made, rng, wrong)
    root = np.eye(Q) + 0.3 * rng.standard_normal((Q, Q))
    st.Sigma[:], st.V[:] = 0.2 * root @ root.T, 0.1 * (root.T @ root)
    st.rho[:] = np.linspace(0.3, 0.8, Q)
    st.scalars[state.RATIO] = min(3, made.ratios.size - 1)
    k = int(st.count[0])
    st.acts[:k] = rng.random((k, Q)) < 0.6
    st.acts[:k, 0] |= ~st.acts[:k].any(axis=1)
    st.effect[:k] = np.where(st.acts[:k], 0.2 * rng.standard_normal((k, Q)), 0.0)
    return st


def together(made, states, width=None, seed=5, **options):
    chains = CardChains(card_problem.from_host(made, width=width, **options), seed, range(len(states)), states)
    return chains.all


def position(made, st):
    """Coordinates, residuals and weights of the CPU's sweep."""
    at = scan.coordinates(made, st)
    g = int(st.scalars[state.RATIO])
    return at, sweep.residual(made, st) @ at.T, 1.0 / (1.0 + made.ratios[g] * made.d), g


def a_trace(P, Q):
    wide = np.zeros((P, Q), np.float32)
    return state.Trace(np.zeros(P, np.float32), np.zeros(P, np.int32), wide, wide.copy(), np.zeros(1, np.int64))


@pytest.mark.parametrize("Q", [1, 3])
def test_odds_are_those_of_the_cpu(Q):
    made = data(Q=Q)
    st = a_state(made, wrong=0)
    all_ = together(made, [st])
    all_.begin()
    at = scan.coordinates(made, st)
    rng = np.random.default_rng(3)
    h, x = 8 * rng.standard_normal((50, Q)), rng.gamma(4.0, 5.0, 50).astype(np.float32)
    odds = np.asarray(card_device.log_odds(h.T[None].astype(np.float32), x[None], all_.at))[0]
    chances, wanted = np.zeros(Q + 2), np.empty(50)
    for p in range(50):
        inside = scan.pattern_chances(h[p], at.T @ h[p], float(x[p]), at, chances)
        wanted[p] = np.log(inside) - np.log(chances[0] / chances.sum())
    assert np.abs(odds - wanted).max() < 2e-3 * (1 + np.abs(wanted)).max()
    assert np.ptp(wanted) > 20


@pytest.mark.parametrize(("Q", "wrong"), [(1, 8), (3, 8), (3, 0)])
def test_turns_are_the_scan_of_the_cpu_by_the_same_random_numbers(Q, wrong):
    made = data(Q=Q)
    st = a_state(made, wrong=wrong)
    P = len(made.X)
    at, R, weight, g = position(made, st)
    rng = np.random.Generator(np.random.PCG64(7))
    uniforms = rng.random(P)
    acts, effect = np.zeros((P, Q), bool), state.dense_effects(st)
    acts[st.feature[: st.count[0]]] = st.acts[: st.count[0]]
    heavy = made.X * weight
    got = take_turns(rng, heavy @ R, made.squares[g], uniforms, heavy @ made.X.T.astype(float), at, acts, effect, 1000)
    trace = a_trace(P, Q)
    scan.scan(np.random.Generator(np.random.PCG64(7)), made, st, at, R, weight, trace)
    assert int(st.count[0]) != wrong
    assert np.abs(got[1] - state.dense_effects(st)).max() < 1e-4
    assert np.abs(got[3] - trace.pip).max() < 1e-4
    listed = trace.listed[: trace.number[0]]
    assert np.array_equal(np.flatnonzero(got[6]), listed)
    assert np.abs(got[4][listed] - trace.expected[: len(listed)]).max() < 1e-4
    assert np.abs(got[5][listed] - trace.acting[: len(listed)]).max() < 1e-4


def test_turns_leave_no_more_features_in_than_there_is_room_for():
    made = data(true=12, P=40, m=60)
    st = a_state(made, wrong=0)
    at, R, weight, g = position(made, st)
    heavy, Q = made.X * weight, 3
    none = np.zeros((40, Q))
    args = heavy @ R, made.squares[g], np.full(40, 1e-3), heavy @ made.X.T.astype(float), at, none.astype(bool), none
    assert take_turns(np.random.default_rng(1), *args, 5)[0].any(axis=1).sum() == 5
    assert take_turns(np.random.default_rng(1), *args, 500)[0].any(axis=1).sum() > 5


@pytest.fixture
def one_ahead(monkeypatch):
    """The card guesses one feature at a time."""
    jax.clear_caches()
    monkeypatch.setattr(card_device, "AHEAD", 1)
    monkeypatch.setattr(card_device, "LIKELY", 1.0)
    yield
    jax.clear_caches()


@pytest.mark.parametrize("width", [None, 16, 7])
def test_a_scan_with_guesses_is_the_scan_of_all_features(width, nothing_placed):
    check_guesses(width)


def test_a_scan_with_one_guess_at_a_time_is_the_scan_of_all_features(one_ahead, nothing_placed):
    check_guesses(16)


@pytest.fixture
def nothing_placed(monkeypatch):
    monkeypatch.setattr(card_scan, "place_near", lambda *_: None)


def check_guesses(width):
    """Every feature takes its turn, though the card tells the host of a few only."""
    made = data(P=41, true=8, copies=True, m=41)
    states = [a_state(made, seed, wrong) for seed, wrong in ((2, 8), (3, 0), (4, 20))]
    states[1].scalars[state.RATIO] = 0
    all_ = together(made, states, width)
    all_.begin()
    P, Q = 41, 3
    uniforms = np.concatenate([
        np.asarray(card_device.uniforms_of(all_.keys, 0, np.int32(all_.made.span(w)[0]), all_.made.width, P))
        for w in range(len(all_.made.windows))
    ], axis=1)[:, :P]  # fmt: skip
    wanted = []
    for c, (chain, st) in enumerate(zip(all_.chains, states, strict=True)):
        at, R, weight, g = position(made, st)
        acts, effect = np.zeros((P, Q), bool), state.dense_effects(st)
        acts[st.feature[: st.count[0]]] = st.acts[: st.count[0]]
        heavy, rng = made.X * weight, np.random.Generator(np.random.PCG64())
        rng.bit_generator.state = chain.rng.bit_generator.state
        products = heavy @ made.X.T.astype(float)
        wanted.append((take_turns(rng, heavy @ R, made.squares[g], uniforms[c], products, at, acts, effect, 1000), rng.random()))
    sums = [
        card_scan.scan(all_, w, X, np.zeros((2, 3, all_.made.width), np.float32), True) for w, X in enumerate(all_.made.windows)
    ]
    pips, without = np.concatenate([np.asarray(part) for part in sums], axis=2)
    assert all_.ratio.tolist() == [3, 0, 3]
    assert np.array_equal(without, pips * np.array([[0], [1], [0]]))
    changed = 0
    for c, (chain, ((acts, effect, _step, chance, expected, acting, listed), following)) in enumerate(
        zip(all_.chains, wanted, strict=True)
    ):
        assert np.array_equal(chain.ids, np.flatnonzero(acts.any(axis=1)))
        assert np.array_equal(chain.acts, acts[chain.ids])
        assert np.abs(chain.effect - effect[chain.ids]).max() < 1e-4
        assert np.abs(pips[c, :P] - chance).max() < 1e-4
        assert not pips[c, P:].any()
        assert np.abs(chain.R - (made.Y - made.X.T @ effect) @ chain.at.T).max() < 1e-4
        assert chain.rng.random() == following
        features, chances, means, spikes = (np.concatenate(part) for part in zip(*chain.found, strict=True))
        near = np.abs(chance - state.WORTH_LISTING) < 1e-5
        assert set(np.flatnonzero(listed & ~near)) <= set(features) <= set(np.flatnonzero(listed | near))
        assert np.abs(chances - chance[features]).max() < 1e-4
        assert np.abs(means - expected[features]).max() < 1e-4
        assert np.abs(spikes - acting[features]).max() < 1e-4
        changed += np.setxor1d(chain.ids, states[c].feature[: states[c].count[0]]).size
    assert changed > 8


def test_more_slots_are_taken_where_they_do_not_suffice(monkeypatch, one_ahead, nothing_placed):
    made = data(P=60, true=12, m=60)
    asked = []

    class Small(card_scan.WindowScan):
        def __init__(self, *args):
            asked.append(args[-1])
            super().__init__(*args)

    def run():
        all_ = together(made, [a_state(made, 3, 0)])
        all_.begin()
        sums = card_scan.scan(all_, 0, all_.made.windows[0], np.zeros((2, 1, 60), np.float32), True)
        return all_.chains[0].ids, all_.chains[0].effect, np.asarray(sums), all_.chains[0].found

    wanted = run()
    monkeypatch.setattr(card_scan, "WindowScan", Small)
    monkeypatch.setattr(card_scan, "SLOTS", (4, 8, 16, 32, 64))
    monkeypatch.setattr(card_scan, "LISTED", 1)
    got = run()
    assert len(asked) > 2
    assert np.array_equal(got[0], wanted[0])
    assert len(got[0]) > 8
    for i in (1, 2):
        assert np.abs(got[i] - wanted[i]).max() < 1e-4
    assert np.array_equal(got[3][0].feature, wanted[3][0].feature)


def test_expected_effects_of_listed_features():
    made = data()
    st = a_state(made, wrong=0)
    at, R, weight, g = position(made, st)
    h = (made.X * weight) @ R
    chances, wanted = np.zeros(5), np.zeros(3)
    got = expectations(h, made.squares[g], at)
    for p in range(40):
        u, x = at.T @ h[p], float(made.squares[g, p])
        scan.pattern_chances(h[p], u, x, at, chances)
        scan.expect(wanted, scan.Score(h[p], u, x), at, chances, np.zeros(3), False)
        assert np.allclose(got[p], wanted)


class Certain:
    """A generator that chooses one slot."""

    def __init__(self, seed, slot):
        self.rng, self.slot = np.random.default_rng(seed), slot

    def integers(self, low, high):
        assert low <= self.slot < high
        return self.slot

    def __getattr__(self, name):
        return getattr(self.rng, name)


@pytest.mark.parametrize("pattern", [(True, True, True), (True, False, True), (False, True, False)])
@pytest.mark.parametrize("how", ["all", "windows", "near", "shifted"])
def test_places_are_drawn_by_their_bayes_factors(pattern, how):
    """Thousands of chains at one position: an effect goes where the CPU's log Bayes factors say."""
    made = data(copies=True)
    number = 4000
    st = a_state(made)
    st.Sigma[:] *= 8  # several places are likely
    k = int(st.count[0])
    st.acts[:k], st.effect[:k] = True, 0.05
    slot = int(np.argmin(st.feature[:k]))
    p = int(st.feature[slot])
    st.acts[slot] = pattern
    st.effect[slot] = np.where(pattern, st.effect[slot], 0.0)
    all_ = together(made, [st], 9 if how == "windows" else None)
    one = all_.chains[0]
    unsorted = one.rows[np.argsort(np.argsort(st.feature[:k]))]
    all_.chains = [Chain(made, Certain(c, 0), st, unsorted) for c in range(number)]
    all_.keys = np.repeat(all_.keys, number, axis=0)
    all_.sweep = int(how == "shifted")
    all_.begin()
    windows, among = all_.made.windows, np.ones(40, bool)
    if how in ("all", "windows"):
        card_scan.place(all_, list(range(len(windows))), windows)
    else:
        shift = card_device.NEAR // 2 * all_.sweep
        among = (np.arange(40) + shift) // card_device.NEAR == (p + shift) // card_device.NEAR
        assert 0 < among.sum() < 40
        x = np.repeat(made.squares[None, int(all_.ratios[0])], number, axis=0)
        card_scan.place_near(all_, 0, windows[0], x)
    at, R, weight, g = position(made, st)
    R = R + np.outer(made.X[p], st.effect[slot] @ at.T)
    axes, logs = places.pattern_axes(st.acts[slot], at), np.empty(40)
    scores = (made.X * weight) @ R
    places.log_factors(scores @ axes.of_score, made.squares[g], axes, logs)
    logs[np.setdiff1d(st.feature[:k], p)] = -np.inf
    logs[~among] = -np.inf
    chance = np.exp(logs - logsumexp(logs))
    others = set(st.feature[:k].tolist()) - {p}
    went, effects = np.empty(number, int), np.empty((number, 3))
    for c, chain in enumerate(all_.chains):
        assert (np.diff(chain.ids) > 0).all()
        if how in ("all", "windows"):
            here = next(i for i, q in enumerate(chain.ids) if q not in others)
        else:  # the others move too, later; this one's pattern is its own unless it is full
            match = np.flatnonzero((chain.acts == pattern).all(axis=1))
            here = int(match[0]) if not all(pattern) else -1
        if c < 50:
            wanted = (made.Y - chain.rows.T.astype(float) @ chain.effect) @ chain.at.T
            assert np.abs(chain.R - wanted).max() < 1e-4
            assert np.array_equal(chain.rows, made.X[chain.ids])
            assert (chain.effect[~chain.acts] == 0).all()
            assert (chain.effect[chain.acts] != 0).all()
        went[c], effects[c] = (chain.ids[here], chain.effect[here]) if here >= 0 else (-1, np.nan)
    if (went < 0).any():
        return
    counts = np.bincount(went, minlength=40)
    assert (counts[chance == 0] == 0).all()
    likely = chance > 0.02
    assert likely.sum() > 1
    z = (counts - number * chance)[likely] / np.sqrt(number * chance * (1 - chance))[likely]
    assert np.abs(z).max() < 4.5
    assert abs(counts[~likely].sum() - number * chance[~likely].sum()) < 4.5 * np.sqrt(number * 0.25)
    to = int(counts.argmax())
    mean = (scores[to] @ axes.of_score / (made.squares[g, to] + axes.v)) @ axes.to_effect
    mine = effects[went == to][:, list(pattern)]
    assert (np.abs(mine.mean(axis=0) - mean[list(pattern)]) < 4.5 * mine.std(axis=0) / np.sqrt(len(mine))).all()


def test_moves_one_after_the_other_keep_the_residuals():
    made = data(copies=True)
    all_ = together(made, [a_state(made, seed) for seed in range(6)], 9)
    all_.begin()
    before = [chain.ids.copy() for chain in all_.chains]
    for t in range(6):
        all_.sweep = t
        card_scan.place(all_, list(range(5)), all_.made.windows)
        for w, X in enumerate(all_.made.windows):
            card_scan.place_near(all_, w, X, all_.made.squares[w][all_.ratio])
    for chain in all_.chains:
        assert (np.diff(chain.ids) > 0).all()
        assert np.array_equal(chain.rows, made.X[chain.ids])
        wanted = (made.Y - chain.rows.T.astype(float) @ chain.effect) @ chain.at.T
        assert np.abs(chain.R - wanted).max() < 1e-4
    assert any(not np.array_equal(was, chain.ids) for was, chain in zip(before, all_.chains, strict=True))


def enumerated(made, sigma, V, pi, rho):
    """P(in) and E[effect] given everything but which features are in and where they act, by all 2^(P Q) patterns."""
    P, m = made.X.shape
    Q = len(V)
    X, noise = made.X.T.astype(float), np.kron(np.diag(np.ones(m)), sigma)  # rows of Y one after the other
    logs, inside, means = [], [], []
    rows = list(itertools.product([False, True], repeat=Q))
    nowhere = np.prod(1 - rho)
    prior = [
        np.log1p(-pi) if not any(row) else np.log(pi / (1 - nowhere)) + np.where(row, np.log(rho), np.log1p(-rho)).sum()
        for row in rows
    ]
    for patterns in itertools.product(range(len(rows)), repeat=P):
        S = np.zeros((P * Q, P * Q))
        for p, i in enumerate(patterns):
            on = np.array(rows[i])
            S[p * Q : p * Q + Q, p * Q : p * Q + Q] = np.where(np.outer(on, on), V, 0.0)
        design = np.kron(X, np.eye(Q))
        cover = design @ S
        total = noise + cover @ design.T
        y = made.Y.reshape(-1)
        solved = np.linalg.solve(total, y)
        logs.append(sum(prior[i] for i in patterns) - 0.5 * (np.linalg.slogdet(total)[1] + y @ solved))
        inside.append([any(rows[i]) for i in patterns])
        means.append((cover.T @ solved).reshape(P, Q))
    weight = np.exp(np.array(logs) - logsumexp(logs))
    return np.tensordot(weight, np.array(inside, float), 1), np.tensordot(weight, np.array(means), 1)


@pytest.mark.parametrize(("P", "Q"), [(8, 1), (4, 2)])
def test_inclusion_agrees_with_enumeration(P, Q, monkeypatch):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((12, P))
    X[:, 1] = 0.9 * X[:, 0] + 0.4 * X[:, 1]
    Y = 0.8 * X[:, [0]] + 0.35 * X[:, [2]] * np.eye(Q)[0] + rng.standard_normal((12, Q))
    made, _ = problem.prepare(X, Y, background=False)
    sigma, V = 0.5 * np.eye(Q) + 0.2, 0.2 * np.eye(Q) + 0.1
    rho, pi = np.linspace(0.4, 0.7, Q), 0.3
    monkeypatch.setattr(Chain, "laws", Chain.reconsider)  # all else stays

    states = []
    for _ in range(8):
        st = problem.start(made, rng)
        st.Sigma[:], st.V[:], st.rho[:], st.scalars[state.PI] = sigma, V, rho, pi
        states.append(st)
    chains = CardChains(card_problem.from_host(made), 1, range(8), states)
    chains.advance(10, keep=False)
    draws = chains.advance(400)
    inside, means = enumerated(made, sigma, V, pi, rho if Q > 1 else np.full(1, 0.5))
    pip = chains.pip()
    assert np.abs(pip.mean(axis=0) - inside).max() < max(0.01, 4.5 * (pip.std(axis=0) / np.sqrt(7)).max())
    assert (pip.std(axis=0) / np.sqrt(7)).max() < 0.015
    effects = np.zeros((8, P, Q))
    for of_sweep in draws:
        for c, draw in enumerate(of_sweep):
            effects[c, draw.features] += draw.effects / 400
    error = effects.std(axis=0) / np.sqrt(7)
    assert np.abs(effects.mean(axis=0) - means).max() < max(0.01, 4.5 * error.max())


def test_what_is_near_is_found_and_kept(monkeypatch):
    """At the end of the warm-up: the features that act and their close copies, for each chain, the same after a continuation."""
    import intarsia.server.sampler.sparse.card as module

    monkeypatch.setattr(module, "NEAR", 12)
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, 60))
    X[:, 30] = 0.99 * X[:, 7] + 0.1 * X[:, 30]  # as good as the one that acts
    Y = X[:, [7]] - X[:, [50]] + rng.standard_normal((40, 2))
    made, _ = problem.prepare(X, Y)

    def fresh():
        starts = [problem.start(made, np.random.default_rng(k)) for k in range(2)]
        return CardChains(card_problem.from_host(made, width=16), 9, range(2), starts)

    chains = fresh()
    assert all(not len(chain.near) for chain in chains.all.chains)
    chains.advance(30)
    chains.find_near()
    assert chains.kept == 0
    assert chains.pip().max() == 0
    for chain in chains.all.chains:
        assert len(chain.near) == 12
        assert {7, 30, 50} <= set(chain.near.tolist())
        assert np.array_equal(chain.near_rows, made.X[chain.near])
    chains.advance(2)
    kept = chains.arrays()
    after, again = chains.advance(3), fresh()
    again.restore(kept)
    for one, other in zip(after, again.advance(3), strict=True):
        assert all(np.array_equal(a.effects, b.effects) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("options", [{}, {"independent": True, "power": 0.7, "looked_at": 500.0}])
def test_both_engines_find_the_same(options):
    made = data(P=120, m=60, Q=2, true=6, copies=True, **options)
    cpu = []
    for k in range(4):
        chain = SparseChain(made, k, 11, 100)
        chain.advance(500)
        cpu.append(chain)
    starts = [problem.start(made, np.random.default_rng(k), 10 * (k % 2)) for k in range(4)]
    chains = CardChains(card_problem.from_host(made, width=50), 12, range(4), starts)
    chains.advance(100, keep=False)
    draws = chains.advance(400)
    ours, theirs = chains.pip(), np.array([chain.pip / chain.kept for chain in cpu])
    spread = np.sqrt((ours.var(axis=0, ddof=1) + theirs.var(axis=0, ddof=1)) / 4)
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 5 * spread + 0.03).all()
    assert spread.max() < 0.1
    assert theirs.max() > 0.9
    assert (np.abs(theirs.mean(axis=0) - 0.5) < 0.4).any()
    for name, of in {
        "noise": lambda d: np.log(np.diagonal(d.Sigma)), "slab": lambda d: np.log(np.trace(d.V))[None],
        "number": lambda d: d.scalars[:1], "rho": lambda d: d.rho,
    }.items():  # fmt: skip
        a = np.array([[of(draw) for draw in (sweep_[c] for sweep_ in draws)] for c in range(4)])
        b = np.array([[of(draw) for draw in chain.draws] for chain in cpu])
        apart = np.abs(a.mean(axis=(0, 1)) - b.mean(axis=(0, 1)))
        sizes = np.sqrt((a.mean(axis=1).var(axis=0, ddof=1) + b.mean(axis=1).var(axis=0, ddof=1)) / 4)
        assert (apart < 5 * sizes + 0.15 * b.std(axis=(0, 1))).all(), name


def test_rank_may_be_limited():
    made = data(Q=4)
    st = [problem.start(made, np.random.default_rng(k), rank=1) for k in range(2)]
    draws = CardChains(card_problem.from_host(made), 1, range(2), st).advance(5)
    V = draws[-1][0].V
    values = np.linalg.eigvalsh(V)
    assert np.allclose(values[:-1], values[0])
    assert values[-1] > values[0]


def test_a_restored_run_goes_on_bit_for_bit():
    made = data(true=8)

    def fresh():
        starts = [problem.start(made, np.random.default_rng(k), 6 * k) for k in range(2)]
        return CardChains(card_problem.from_host(made, width=16), 9, [3, 5], starts)

    whole = fresh()
    whole.advance(4, keep=False)
    whole.advance(3)
    stored = {name: value.copy() for name, value in whole.arrays().items()}
    wanted = whole.advance(5)
    again = fresh()
    again.restore(stored)
    got = again.advance(5)
    for a, b in zip(itertools.chain(*wanted), itertools.chain(*got), strict=True):
        for x, y in zip(a, b, strict=True):
            assert np.array_equal(x, y)
    assert np.array_equal(whole.pip(), again.pip())
    for name, value in whole.arrays().items():
        assert np.array_equal(value, again.arrays()[name]), name


def test_a_chain_does_not_depend_on_those_beside_it():
    made = data(true=8)
    starts = [problem.start(made, np.random.default_rng(k), 6 * k) for k in range(2)]
    both = CardChains(card_problem.from_host(made), 9, [3, 5], starts).advance(3)
    alone = CardChains(card_problem.from_host(made), 9, [5], starts[1:]).advance(3)
    assert np.array_equal(both[-1][1].features, alone[-1][0].features)
    assert np.allclose(both[-1][1].effects, alone[-1][0].effects, atol=1e-4)


@pytest.mark.parametrize("resident", [True, False])
def test_a_design_prepared_on_the_card_is_the_cpus(resident):
    rng = np.random.default_rng(2)
    X, Y = rng.standard_normal((20, 50)) * rng.uniform(0.5, 2, 50), rng.standard_normal((20, 2))
    prior = problem.Prior(looked_at=400.0, power=0.8)
    wanted, scales = problem.prepare(X, Y, prior, rows=25.0)
    windows = [np.zeros((30, 20), np.float32), np.zeros((30, 20), np.float32)]
    windows[0][:], windows[1][:20] = X.T[:30], X.T[30:]
    made, own = card_problem.prepare(windows, 50, Y, prior, rows=25.0, resident=resident)
    assert np.allclose(own.x, scales.x, rtol=1e-6)
    assert np.allclose(own.y, scales.y)
    assert np.allclose(made.problem.d, wanted.d, atol=1e-5)
    squares = np.concatenate([np.asarray(part) for part in made.squares], axis=1)[:, :50]
    assert np.allclose(squares, wanted.squares, rtol=1e-3)
    columns = made.columns(np.arange(50)).astype(float)
    assert np.allclose(columns @ columns.T, wanted.X @ wanted.X.T, atol=1e-3)  # whatever the signs of the rotation
    assert np.allclose(columns @ made.problem.Y, wanted.X @ wanted.Y, atol=1e-3)
    for name in ("rows", "power", "looked_at", "expected", "independent"):
        assert getattr(made.problem, name) == getattr(wanted, name)
    assert isinstance(made.windows[0], np.ndarray) is not resident


def test_a_design_on_the_host_gives_the_same_scan():
    """Sent window by window. Places differ: effects move within windows."""
    made = data(true=8)
    found = []
    for resident in (True, False):
        all_ = together(made, [a_state(made, seed) for seed in (1, 2)], 16, resident=resident)
        all_.begin()
        for w, X in enumerate(all_.made.sent()):
            card_scan.scan(all_, w, X, np.zeros((2, 2, 16), np.float32), True)
        found.append([(chain.ids, chain.effect) for chain in all_.chains])
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a[0], b[0])
        assert np.array_equal(a[1], b[1])
    starts = [problem.start(made, np.random.default_rng(k), 6 * (k % 2)) for k in range(6)]
    pips = []
    for resident in (True, False):
        chains = CardChains(card_problem.from_host(made, width=16, resident=resident), 9, range(6), starts)
        chains.advance(20, keep=False)
        chains.advance(200)
        pips.append(chains.pip())
    error = np.sqrt(sum(of_engine.var(axis=0, ddof=1) / 6 for of_engine in pips))
    assert (np.abs(pips[0].mean(axis=0) - pips[1].mean(axis=0)) < 5 * error + 0.02).all()
    assert error.max() < 0.1


def test_windows_of_other_shapes_are_refused():
    Y = np.zeros((20, 2))
    with pytest.raises(InputError, match="2 shapes"):
        card_problem.prepare([np.zeros((30, 20)), np.zeros((20, 20))], 50, Y)
    with pytest.raises(InputError, match="width_of"):
        card_problem.prepare([np.zeros((30, 20)), np.zeros((30, 20))], 70, Y)
    with pytest.raises(InputError, match="one chain or more"):
        CardChains(card_problem.from_host(data()), 1, [1, 2], [])


def test_width_of_windows():
    for P in (1, 10, 1024, 1025, 100_000, 1_000_000, 10_000_000):
        width = card_problem.width_of(P)
        assert width % min(width, card_device.GROUPS) == 0
        assert 1 <= -(-P // width) <= card_problem.WINDOWS


def test_uniforms_resolve_what_ten_million_features_need():
    u = np.asarray(card_device.uniforms_of(np.array([[1, 2]], np.uint32), 0, np.int32(0), 1 << 22, 1 << 22))[0]
    assert (u > 0).all()
    assert u.min() < 1e-6
    assert np.unique(u[u < 1e-4]).size > 0.99 * (u < 1e-4).sum()
    assert abs(u.mean() - 0.5) < 1e-3


def test_places_of_a_mask():
    rng = np.random.default_rng(1)
    for p in (5, 1024, 4096):
        mask = rng.random(p) < 20 / p
        got = np.asarray(card_device.places_of(jnp.asarray(mask), 64))
        assert np.array_equal(np.sort(got[got < p]), np.flatnonzero(mask))
        assert (got == p).sum() == 64 - mask.sum()


PROGRAM = """
import json
import numpy as np
from intarsia.server.sampler.sparse import card_problem, problem
from intarsia.server.sampler.sparse.card import CardChains
rng = np.random.default_rng(1)
X, Y = rng.standard_normal((250, 2500)), rng.standard_normal((250, 5))
Y[:, 0] += X[:, 7]
made, _ = problem.prepare(X, Y)
starts = [problem.start(made, np.random.default_rng(k), 20 * (k % 2)) for k in range(4)]
chains = CardChains(card_problem.from_host(made), 1, range(4), starts)
chains.advance(12)
print(json.dumps(chains.pip()[:, 7].tolist()))
"""


def test_a_larger_problem_ends_where_an_earlier_engine_hung():
    """In a process of its own: what hangs is ended."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=True)
    assert min(json.loads(done.stdout.splitlines()[-1])) > 0.7
