"""The sparse engine's conditionals, each against the density written out, and all of them against every model enumerated."""

import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp
from tests.statistical.sparse_joint import copy_with

from intarsia.server.sampler.sparse import laws, patterns, places, problem, scan, state, sweep, together

RNG = np.random.default_rng(7)


def case(P=4, m=9, Q=2, *, background=True, power=1.0, looked_at=None, seed=3):
    """A small problem with a state whose parameters are arbitrary, empty of features."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, P))
    X[:, 1] = 0.9 * X[:, 0] + 0.4 * X[:, 1]
    Y = X[:, :1] @ rng.standard_normal((1, Q)) * 0.5 + rng.standard_normal((m, Q))
    made, _ = problem.prepare(X, Y, problem.Prior(looked_at, power=power), background=background, every_row=True)
    st = problem.start(made, rng)
    A = rng.standard_normal((Q, Q + 3))
    st.Sigma[:] = A @ A.T / (Q + 3)
    A = rng.standard_normal((Q, Q + 3))
    st.V[:] = 0.4 * A @ A.T / (Q + 3)
    st.rho[:] = rng.uniform(0.3, 0.8, Q)
    st.scalars[state.PI] = 0.3
    if background:
        st.scalars[state.RATIO] = 8
    return made, st


def log_evidence(made, st, rows):
    """Log marginal likelihood of Y with effects N(0, V) at the places of `rows` (P, Q): a Gaussian written out."""
    P, m = made.X.shape
    Q = made.Y.shape[1]
    weight = 1 + made.ratios[int(st.scalars[state.RATIO])] * made.d
    cov = np.kron(np.diag(weight), st.Sigma / made.power)  # rows one after the other
    for p in range(P):
        on = np.flatnonzero(rows[p])
        if on.size:
            design = np.kron(made.X[p].astype(float)[:, None], np.eye(Q)[:, on])
            cov += design @ st.V[np.ix_(on, on)] @ design.T
    return stats.multivariate_normal(np.zeros(m * Q), cov, allow_singular=True).logpdf(made.Y.ravel())


def log_prior(st, rows):
    nowhere = np.prod(1 - st.rho)
    total = 0.0
    for row in rows:
        if row.any():
            total += np.log(st.scalars[state.PI] / (1 - nowhere)) + np.log(np.where(row, st.rho, 1 - st.rho)).sum()
        else:
            total += np.log1p(-st.scalars[state.PI])
    return total


def traces(P, Q):
    wide = np.zeros((P, Q), np.float32)
    return state.Trace(np.zeros(P, np.float32), np.zeros(P, np.int32), wide, wide.copy(), np.zeros(1, np.int64))


def enumerated(made, st):
    """Every model's patterns and its posterior probability."""
    P, Q = made.X.shape[0], made.Y.shape[1]
    patterns = [np.array(p, dtype=bool) for p in itertools.product([False, True], repeat=Q)]
    models = [np.stack(rows) for rows in itertools.product(patterns, repeat=P)]
    logs = np.array([log_prior(st, rows) + log_evidence(made, st, rows) for rows in models])
    return np.array(models), np.exp(logs - logsumexp(logs))


def visited(made, st, sweeps, scanning=scan, near=None):
    """PIPs that sweeps with all parameters fixed tell, how often each response is acted on, and the error of these."""
    P, Q = made.X.shape[0], made.Y.shape[1]
    rng, trace, g = np.random.default_rng(1), traces(P, Q), int(st.scalars[state.RATIO])
    weight = 1 / (1 + made.ratios[g] * made.d)
    at = scan.coordinates(made, st)
    pip, acting, blocks = np.zeros(P), np.zeros((P, Q)), np.zeros((30, P))
    for t in range(sweeps):
        R = sweep.residual(made, st) @ at.T
        scanning.scan(rng, made, st, at, R, weight, trace)
        pip += trace.pip
        few = np.array(near or ())
        if near == "those that are in":
            few = st.feature[: st.count[0]].astype(int)
        if near is None:
            places.place(rng, made, st, at, R, scan.Among(np.arange(P), made.X, weight), 2)
        elif few.size:
            among = scan.Among(few, made.X[few], weight)
            together.scan_together(rng, made, st, at, R, among)
            laws.draw_effects(rng, made, st, at, R, weight)
            scan.scan_some(rng, made, st, at, R, among, traces(len(few), Q))
            places.place(rng, made, st, at, R, among, 2)
        laws.draw_effects(rng, made, st, at, R, weight)
        assert t % 1000 or np.allclose(R, sweep.residual(made, st) @ at.T, atol=1e-4)  # kept current
        rows = np.zeros((P, Q), dtype=bool)
        k = int(st.count[0])
        rows[st.feature[:k]] = st.acts[:k]
        acting += rows
        blocks[t * 30 // sweeps] += rows.any(axis=1)
    error = blocks.std(axis=0, ddof=1) / (sweeps / 30) / np.sqrt(30)
    return pip / sweeps, acting / sweeps, float(error.max())


@pytest.mark.parametrize(
    ("P", "Q", "background", "power", "near"),
    [
        (4, 2, True, 1.0, None),
        (6, 1, False, 1.0, None),
        (3, 3, True, 0.6, None),
        (4, 2, True, 1.0, (0, 1, 3)),
        (6, 1, False, 1.0, (0, 1)),
    ],
)
def test_every_model_has_its_probability(P, Q, background, power, near):
    """Scan, places and effects, with all parameters fixed, have each pattern as often as its posterior probability says; so
    they do where some features are scanned twice and effects move among these alone.
    """
    made, st = case(P, 9, Q, background=background, power=power)
    models, true = enumerated(made, st)
    pip, acting, error = visited(made, st, 20_000, near=near)
    assert np.abs(pip - np.tensordot(true, models.any(axis=2), 1)).max() < 5 * error
    assert np.abs(acting - np.tensordot(true, models, 1)).max() < 6 * error


SPIKE = ("scan", "                mean += given[q, r] * effect[r]", "                mean += 0.0")


OPEN = {
    "prior odds are forgotten": ("    out[1] = at.log_all\n", "    out[1] = at.log_out\n"),
    "one that acts alone keeps its effect": ("h[q] = one.h[i, q] + x[q] * old[q]", "h[q] = one.h[i, q]"),
    "one that acts alone is not taken from the rows": ("R[r, q] -= columns[i, r] * step[q]", "R[r, q] -= 0.0"),
    "one that goes stays open": ("            leave(one, j, i, at.v, products)\n", "            pass\n"),
}


def alike():
    """Four neighbours that are all alike, none of them in."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((30, 1)) + 0.6 * rng.standard_normal((30, 4))
    made, _ = problem.prepare(
        X, 0.4 * X[:, :1] + 0.3 * X[:, 1:3] + rng.standard_normal((30, 2)), background=False, every_row=True
    )
    st = problem.start(made, rng)
    st.Sigma[:], st.V[:] = 0.4 * (np.eye(2) + 0.5), 0.3 * np.eye(2)
    st.rho[:], st.scalars[state.PI] = [0.7, 0.6], 0.4
    return made, st


@pytest.mark.parametrize("bug", [None, *OPEN])
def test_models_scanned_together_have_their_probability(bug):
    """Scanned with open effects, but for one that is not near, and by nothing else: every model is as often as it should be."""
    made, st = alike()
    models, chances = enumerated(made, st)
    how = copy_with(("together", *OPEN[bug])).together if bug else together
    rng, at, few, last = np.random.default_rng(1), scan.coordinates(made, st), np.array([0, 1, 3]), np.array([2])
    weight = 1 / (1 + made.ratios[int(st.scalars[state.RATIO])] * made.d)
    R, n, number = sweep.residual(made, st) @ at.T, 30, 400 if bug else 1_000
    acting, trace = np.zeros((n, 4, 2)), traces(1, 2)
    for t in range(n * number):
        how.scan_together(rng, made, st, at, R, scan.Among(few, made.X[few], weight))
        laws.draw_effects(rng, made, st, at, R, weight)
        scan.scan_some(rng, made, st, at, R, scan.Among(last, made.X[last], weight), trace)
        k = int(st.count[0])
        acting[t // number, st.feature[:k]] += st.acts[:k] / number
    error = acting.std(axis=0, ddof=1).max() / np.sqrt(n)
    kept = np.allclose(R, sweep.residual(made, st) @ at.T, atol=1e-4)
    right = np.abs(acting.mean(axis=0) - np.tensordot(chances, models, 1)).max() < 5 * error
    assert bool(kept and right) is (bug is None)


SWITCHED = {
    "where none is in none comes": (
        "    if state.acts[:k].sum() > MOST_OPEN:\n",
        "    if k == 0:\n        return True\n    if state.acts[:k].sum() > MOST_OPEN:\n",
    ),
    "prior odds are forgotten": ("            out -= at.log_odds[q]\n", "            pass\n"),
    "the slab's determinant is forgotten": ("there - now + slab + log_prior", "there - now + log_prior"),
    "one that comes has no score": ("            u[i] = at.T @ ((columns[i] * weight) @ R)", "            u[i] = 0.0"),
    "the last one is not moved": ("                columns[i], u[i], blocks[i]", "                _, _, blocks[i]"),
    "the evidence is not kept": ("now, slabs[i] = there, slab", "slabs[i] = slab"),
}


@pytest.mark.parametrize("bug", [None, *SWITCHED])
def test_models_switched_have_their_probability(bug):
    """Entries switched while all effects are open, and by nothing else: every model is as often as it should be, none too."""
    made, st = alike()
    if bug in (None, "where none is in none comes"):
        st.scalars[state.PI], made.Y[:] = 0.2, 0.5 * made.Y
    models, chances = enumerated(made, st)
    how = copy_with(("patterns", *SWITCHED[bug])).patterns if bug else patterns
    if bug:
        how.WITHIN, how.ANYWHERE = 1, 1  # plain Python is slow
    rng, at, st = np.random.default_rng(1), scan.coordinates(made, st), st._replace(near=np.arange(4))
    weight = 1 / (1 + made.ratios[int(st.scalars[state.RATIO])] * made.d)
    R, n, number = sweep.residual(made, st) @ at.T, 30, 150 if bug else 1_500
    acting = np.zeros((n, 4, 2))
    scan.put(st, 0, np.array([True, True]), np.zeros(2))
    for t in range(n * number):
        assert how.switch(rng, made, st, at, R, weight)
        k = int(st.count[0])
        acting[t // number, st.feature[:k]] += st.acts[:k] / number
    error = acting.std(axis=0, ddof=1).max() / np.sqrt(n)
    kept = np.allclose(R, sweep.residual(made, st) @ at.T, atol=1e-4)
    right = np.abs(acting.mean(axis=0) - np.tensordot(chances, models, 1)).max() < 5 * error
    assert bool(kept and right) is (bug is None)


def open_with(made, st, inside, alone=None):
    """What is open where some features act everywhere, one perhaps on the second response alone, with an effect of .3."""
    st.slot[:], st.count[0] = -1, 0
    for p in inside:
        scan.put(st, p, np.ones(2, dtype=bool), np.array([0.2, -0.1]))
    if alone is not None:
        scan.put(st, alone, np.array([False, True]), np.array([0.0, 0.3]))
    at, features = scan.coordinates(made, st), np.arange(len(made.X))
    weight = 1 / (1 + made.ratios[int(st.scalars[state.RATIO])] * made.d)
    R = sweep.residual(made, st) @ at.T
    return together.opened(made, st, at, R, scan.Among(features, made.X, weight)), at, R, (made.X * weight) @ made.X.T, weight


def assert_same_open(one, other):
    n = int(one.number[0])
    order = np.argsort(one.member[:n])
    back = order[np.argsort(np.argsort(other.member[:n]))]
    outside = np.setdiff1d(np.arange(len(one.x)), one.member[:n])
    assert (one.member[back] == other.member[:n]).all()
    assert one.pull[back] == pytest.approx(other.pull[:n], abs=1e-4)
    assert one.shared[back] == pytest.approx(other.shared[:n], abs=1e-4)
    assert one.inverse[:, back][:, :, back] == pytest.approx(other.inverse[:, :n, :n], abs=1e-5)
    assert one.x[outside] == pytest.approx(other.x[outside], abs=1e-3)
    assert one.h[outside] == pytest.approx(other.h[outside], abs=1e-3)


def test_what_is_open_is_kept_current():
    """One that comes, goes, or takes an effect of its own leaves what opening it all anew would give."""
    made, st = case(7, 30, 2)
    one, at, R, products, weight = open_with(made, st, [0, 2, 4, 5])
    together.come(one, 1, 1, at.v, (made.X[1] * weight) @ R, products[1])
    assert_same_open(one, open_with(made, st, [0, 1, 2, 4, 5])[0])
    together.leave(one, int(np.flatnonzero(one.member[:5] == 2)[0]), 2, at.v, products[2])
    one = together.wider(one)
    assert_same_open(one, open_with(made, st, [0, 1, 4, 5])[0])
    together.take(one, 3, np.array([0.0, 0.3]) @ at.T, products[3])
    again, _at, _R, _products, _weight = open_with(made, st, [0, 1, 4, 5], alone=3)
    assert_same_open(one, again)
    x, h = np.zeros(2), np.zeros(2)
    together.left_to_member(again, 1, at.v, x, h)
    other = open_with(made, st, [0, 4, 5], alone=3)[0]
    assert x == pytest.approx(other.x[1], abs=1e-3)
    assert h == pytest.approx(other.h[1], abs=1e-3)


def test_rounds_among_features_chosen_by_the_state_would_be_wrong():
    """Those near must stay the same. Where they are those that are in, models are visited with other frequencies."""
    made, st = case(4, 9, 2)
    models, true = enumerated(made, st)
    _pip, acting, error = visited(made, st, 8_000, near="those that are in")
    assert np.abs(acting - np.tensordot(true, models, 1)).max() > 8 * error


def scanned(made, st, scanning, sweeps=4_000):
    """PIPs by scans alone, and their error."""
    rng, trace, g = np.random.default_rng(1), traces(*st.slot.shape, st.rho.size), int(st.scalars[state.RATIO])
    weight, at = 1 / (1 + made.ratios[g] * made.d), scan.coordinates(made, st)
    blocks = np.zeros((30, st.slot.size))
    for t in range(sweeps):
        scanning.scan(rng, made, st, at, sweep.residual(made, st) @ at.T, weight, trace)
        blocks[t * 30 // sweeps] += trace.pip * 30 / sweeps
    return blocks.mean(axis=0), blocks.std(axis=0, ddof=1).max() / np.sqrt(30)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bug", [None, "scores are not updated", "the order depends on the state"])
def test_near_copies_know_of_each_other_within_a_scan(bug):
    """Three features nearly the same: one that came in or went out changes the scores of the next."""
    planted = {
        "scores are not updated": ("scores[i + 1 - first + j, q] -= along[j] * step[q]", "scores[i + 1 - first + j, q] -= 0.0"),
        "the order depends on the state": (
            "        for i in range(first, last):\n",
            "        for i in sorted(range(first, last), key=lambda i: (state.slot[features[i]] < 0, i)):\n",
        ),
    }
    rng = np.random.default_rng(1)
    z = rng.standard_normal((9, 1))
    X, Y = z + 0.25 * rng.standard_normal((9, 3)), 0.45 * z + rng.standard_normal((9, 1))
    made, _ = problem.prepare(X, Y, background=False, every_row=True)
    st = problem.start(made, rng)
    st.Sigma[:], st.V[:], st.scalars[state.PI] = 0.8, 0.5, 0.4
    models, true = enumerated(made, st)
    pip, error = scanned(made, st, copy_with(("scan", *planted[bug])).scan if bug else scan)
    assert np.allclose(pip, np.tensordot(true, models.any(axis=2), 1), atol=5 * error) is (bug is None)


def test_chances_of_a_feature_are_those_of_the_models():
    made, st = case(4, 9, 3)
    at = scan.coordinates(made, st)
    g = int(st.scalars[state.RATIO])
    weight = 1 / (1 + made.ratios[g] * made.d)
    p, Q = 2, 3
    h = made.X[p] @ (weight[:, None] * (made.Y @ at.T))
    chances = np.zeros(Q + 2)
    inside = scan.pattern_chances(h, at.T @ h, float(made.squares[g, p]), at, chances)
    rows = np.zeros((4, Q), dtype=bool)
    base = log_evidence(made, st, rows) + log_prior(st, rows)
    expected = [0.0]
    for pattern in [np.ones(Q, bool), *np.eye(Q, dtype=bool)]:
        rows[p] = pattern
        expected.append(log_evidence(made, st, rows) + log_prior(st, rows) - base)
    assert np.log(chances / chances[0]) == pytest.approx(expected, abs=1e-4)
    assert inside == pytest.approx(1 - chances[0] / chances.sum())


@pytest.mark.parametrize("bug", [None, "a spike ignores the slab of the others"])
def test_spikes_of_a_row_given_the_others(bug):
    """draw_entries again and again has each pattern as often as its probability says, its effects integrated out."""
    made, st = case(3, 9, 3)
    st.V[:], st.rho[:] = 0.5 * (0.1 * np.eye(3) + 0.9), [0.5, 0.3, 0.4]
    at = scan.coordinates(made, st)
    x, u = 3.0, np.array([3.0, -0.7, 4.0])
    patterns = [np.array(p) for p in itertools.product([False, True], repeat=3) if any(p)]
    logs = []
    for on in patterns:
        precision = np.linalg.inv(st.V[np.ix_(on, on)])
        after = precision + x * at.Omega[np.ix_(on, on)]
        fit = 0.5 * u[on] @ np.linalg.solve(after, u[on])
        volume = 0.5 * (np.linalg.slogdet(precision)[1] - np.linalg.slogdet(after)[1])
        logs.append(fit + volume + np.log(np.where(on, st.rho, 1 - st.rho)).sum())
    true = np.exp(logs - logsumexp(logs)) @ np.array(patterns)
    how = copy_with(SPIKE).scan if bug else scan
    rng, n, number = np.random.default_rng(2), 30, 500
    effect, acts, surely = np.array([0.3, 0.0, -0.2]), np.array([True, False, True]), np.zeros(3)
    acting, told = np.zeros((n, 3)), np.zeros((n, 3))
    for t in range(n * number):
        how.draw_entries(rng, u, x, at, effect, acts, surely)
        acting[t // number] += acts / number
        told[t // number] += surely / number
    error = acting.std(axis=0, ddof=1).max() / np.sqrt(n)
    assert bool(np.abs(acting.mean(axis=0) - true).max() < 5 * error) is (bug is None)
    assert bug or np.abs(told.mean(axis=0) - true).max() < 5 * error


def test_condition_is_a_regression_and_release_undoes_it():
    A = RNG.standard_normal((4, 9))
    V = A @ A.T
    M = V.copy()
    for k in (2, 0):
        scan.condition(M, k)
    on, off = [0, 2], [1, 3]
    assert M[np.ix_(off, on)] == pytest.approx(V[np.ix_(off, on)] @ np.linalg.inv(V[np.ix_(on, on)]))
    left = V[np.ix_(off, off)] - V[np.ix_(off, on)] @ np.linalg.inv(V[np.ix_(on, on)]) @ V[np.ix_(on, off)]
    assert M[np.ix_(off, off)] == pytest.approx(left)
    for k in (0, 2):
        scan.release(M, k)
    assert pytest.approx(V) == M


def test_inverse_wishart_has_its_mean():
    S, rng = np.array([[2.0, 0.5], [0.5, 1.0]]), np.random.default_rng(4)
    draws = np.mean([laws.inverse_wishart(rng, 12.0, S) for _ in range(20_000)], axis=0)
    assert draws == pytest.approx(S / (12 - 2 - 1), rel=0.03)


def test_the_slabs_scale_has_its_density():
    """draw_spread against the density on a grid."""
    rng, squares, degrees, k = np.random.default_rng(5), np.array([0.5, 0.02]), 14.0, 3
    grid = np.linspace(-9, 3, 4001)
    logs = np.array([laws.spread_density(v, squares, degrees, k) for v in grid])
    chances = np.exp(logs - logsumexp(logs))
    now, drawn = 0.1, []
    for _ in range(20_000):
        now = laws.draw_spread(rng, now, squares, degrees, k)
        drawn.append(np.log(now))
    assert np.mean(drawn) == pytest.approx(chances @ grid, abs=0.05)
    assert np.std(drawn) == pytest.approx(np.sqrt(chances @ (grid - chances @ grid) ** 2), rel=0.06)


def test_the_ratio_and_the_noise():
    """w with Σ integrated out: its probabilities from the density of the residual rows, one response."""
    made, st = case(5, 12, 1)
    raw = RNG.standard_normal((12, 1)) * np.sqrt(1 + 2 * made.d)[:, None]
    logs = []
    for w, prior in zip(made.ratios, made.ratio_prior, strict=True):
        v = 1 + w * made.d
        scatter = (raw[:, 0] ** 2 / v).sum() + laws.NOISE_SCATTER
        logs.append(prior - 0.5 * np.log(v).sum() - 0.5 * (1 + laws.NOISE_DEGREES + made.rows) * np.log(scatter))
    expected = np.exp(np.array(logs) - logsumexp(logs))
    rng, counts = np.random.default_rng(6), np.zeros(len(expected))
    for _ in range(20_000):
        laws.draw_noise(rng, made, st, raw)
        counts[int(st.scalars[state.RATIO])] += 1
    assert counts / 20_000 == pytest.approx(expected, abs=0.015)


def test_the_prior_counts_what_was_looked_at():
    made, st = case(4, 9, 2, looked_at=1000)
    rng = np.random.default_rng(8)
    drawn = []
    for _ in range(5_000):
        laws.draw_shares(rng, made, st)
        drawn.append(st.scalars[state.PI])
    a, b = 1.0, 1000 / 3 + 1000
    assert np.mean(drawn) == pytest.approx(a / (a + b), rel=0.06)


def test_the_order_of_features_is_that_of_the_columns():
    """What the scan does with one feature depends on earlier ones alone: the same uniforms, and a later feature changed."""
    made, st = case(6, 9, 2)
    at, g = scan.coordinates(made, st), int(st.scalars[state.RATIO])
    weight = 1 / (1 + made.ratios[g] * made.d)
    first = []
    for change in (False, True):
        _, own = case(6, 9, 2)
        X = made.X.copy()
        if change:
            X[5] *= -1.0  # the same square, another sign: earlier features must not notice
        trace = traces(6, 2)
        R = made.Y @ at.T
        scan.scan(np.random.default_rng(11), made._replace(X=X), own, at, R, weight, trace)
        first.append(trace.pip[:5].copy())
    assert np.array_equal(*first)
