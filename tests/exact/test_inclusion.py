"""Whom the borderline move looks at among many features: the posterior of the scales is kept, and missing features are found."""

from types import SimpleNamespace

import numpy as np
import pytest

from intarsia.server.sampler import backends, inclusion, integrated, kernels, schedule, without_b
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.priors import HalfCauchy
from intarsia.server.sampler.schedule import FULL, Sweep, draw_noise, plan, with_start
from intarsia.server.sampler.sparse_start import sparse_start
from intarsia.server.sampler.start import initial_tuning
from intarsia.server.sampler.state import Border, State, Stats, Tuning, prepare
from intarsia.server.sampler.sweep import sweep, walk

BE = backends.get("numpy")
CANDIDATES = 6
WIDE = FULL._replace(score=True)
PLAN = SimpleNamespace(searches=True, borderline=3)


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((12, 3))
    X[:, 2] = 0.8 * X[:, 1] + 0.6 * X[:, 2]
    d = np.array([0.6, 0.25])
    Y = np.stack([0.9 * X[:, 0] + 0.35 * X[:, 1], 0.3 * X[:, 0]], axis=1) + rng.standard_normal((12, 2))
    return X, d, Y


def log_posterior(X: np.ndarray, d: np.ndarray, Y: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Of rows of t = log lam under C⁺(0,1), by dense determinants."""
    value = -np.log(np.cosh(t)).sum(axis=1)
    G = np.einsum("mp,tp,np->tmn", X, np.exp(2 * t), X)
    for j in range(d.size):
        M = np.eye(len(X)) + d[j] ** 2 * G
        solved = np.linalg.solve(M, np.broadcast_to(Y[:, j, None], (len(t), len(X), 1)))[:, :, 0]
        value -= 0.5 * np.linalg.slogdet(M)[1] + 0.5 * solved @ Y[:, j]
    return value


def tuning() -> Tuning:
    """Features that are out are taken seldom, each with a probability of its own; those that are in nearly always."""
    rates = {"doubt": np.log([0.9, 0.4, 0.2]), "limit": np.log(2.0), "rate": np.log([0.95, 0.3, 0.6])}
    return Tuning(theta=np.zeros(3), log_steps=np.zeros(2), clear=np.zeros(3, dtype=bool), **rates)


def chain(steps: int, seed: int = 1) -> np.ndarray:
    """Log scales after each borderline move."""
    X, d, Y = problem()
    data, rng = SimpleNamespace(norm2=(X**2).sum(axis=0)), np.random.default_rng(seed)
    lam, kept = np.ones(3), []
    for _ in range(steps):
        G, _ = BE.weigh(X, lam, np.zeros((3, 0)))
        factor = BE.factor(G, X, lam, float(d.max() ** 2))
        border = inclusion.choose(BE, PLAN, data, tuning(), lam, 1 - rng.random(3))
        chosen = border.features
        systems = integrated.Systems(factor, d, factor.rotate(Y), np.zeros((12, 2)))
        numbers = {name: 1 - rng.random((chosen.size, CANDIDATES)) for name in ("value", "mix")}
        numbers["pick"] = 1 - rng.random(chosen.size)
        Xk = factor.rotate(X[:, chosen])
        taken = integrated.Taken(Xk, np.zeros((chosen.size, 2)), lam[chosen])
        new, _ = integrated.borderline(BE, systems, taken, border, HalfCauchy(), numbers)
        lam = BE.put(lam, chosen, new)
        kept.append(np.log(lam))
    return np.array(kept)


def limits() -> np.ndarray:
    return np.log(2.0) - 0.5 * np.log((problem()[0] ** 2).sum(axis=0))


def found(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each feature, and the first two together, are in, with standard errors from the chain's batches."""
    inside = chain(steps) > limits()
    seen = np.concatenate([inside, (inside[:, 0] & inside[:, 1])[:, None]], axis=1).astype(float)
    batches = seen[: len(seen) // 40 * 40].reshape(40, -1, 4).mean(axis=1)
    return seen.mean(axis=0), batches.std(axis=0, ddof=1) / np.sqrt(40)


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    """The same, by integration over a grid."""
    X, d, Y = problem()
    grid = 0.45 * (np.arange(-18, 18) + 0.5)  # midpoints of cells, none of which the limit cuts
    t = np.stack(np.meshgrid(*(grid + edge for edge in limits()), indexing="ij"), axis=-1).reshape(-1, 3)
    log = log_posterior(X, d, Y, t)
    weight = np.exp(log - log.max())
    inside = t > limits()
    return np.array([weight[inside[:, k]].sum() for k in range(3)] + [weight[inside[:, 0] & inside[:, 1]].sum()]) / weight.sum()


def test_the_posterior_of_the_scales_is_kept(truth: np.ndarray) -> None:
    mean, error = found(6_000)
    assert (error < 0.03).all()
    assert (np.abs(mean - truth) < 4 * error + 0.01).all(), (mean, truth, error)


def test_forgetting_that_features_that_are_out_are_taken_less_often_is_noticed(
    truth: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: no correction."""
    right = inclusion.choose

    def wrong(*given: object) -> Border:
        border = right(*given)  # type: ignore[arg-type]
        return border._replace(out=np.ones_like(border.out))

    monkeypatch.setattr(inclusion, "choose", wrong)
    mean, error = found(6_000)
    assert (np.abs(mean - truth) > 4 * error + 0.01).any(), (mean, truth, error)


def test_with_more_features_taken_than_there_are_places_none_moves() -> None:
    data = SimpleNamespace(norm2=np.ones(40))
    every = initial_tuning(SimpleNamespace(element=False, searches=True, P=40, R=1, m=9))
    few = SimpleNamespace(searches=True, borderline=5)
    for be in (BE, backends.on_device()):
        border = inclusion.choose(be, few, data, every, np.ones(40), np.full(40, 0.5))
        assert border.features.shape == (5,)
        assert not np.asarray(border.taken).any()


def many_features(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((100, 2500))
    return X, np.stack([X[:, 17] * 1.0, X[:, 17] * -0.7], axis=1) + rng.standard_normal((100, 2))


@pytest.mark.parametrize("tau", [0.004, 0.00004])  # the limit is near the middle of the law of the scales, or far out in its tail
@pytest.mark.parametrize("wide", [True, False])
def test_scores_are_those_of_each_feature_alone(tau: float, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the conditional of one feature's scale, integrated on a fine grid with the feature's own length and level; where
    sweeps share a system, above a higher limit.
    """
    monkeypatch.setattr(schedule, "WIDE_FROM", 2000 if wide else 3000)
    X, Y = many_features()
    found = plan(Model(), X, Y)
    data = prepare(BE, X, Y)
    lam = np.full(2500, 0.5)
    lam[17] = 0.6 / tau  # what is in explains its part
    state = State(np.eye(2), np.zeros((2500, 2)), lam, np.array([tau, tau / 2]), np.eye(2))
    G, _ = BE.weigh(X, lam, np.zeros((2500, 0)))
    scored = inclusion.scored(BE, found, data, state, BE.factor(G, X, lam, 1.0))
    d2 = np.array([tau, tau / 2]) ** 2
    limit = scored.limit - 0.5 * np.log((X**2).sum(axis=0))
    assert scored.limit == pytest.approx(-np.log(tau) + (0.0 if wide else 0.6))
    t = np.linspace(-25, 25, 4001)
    likeliest = [p for p in np.argsort(-scored.likely)[:60] if p != 17]
    wrong = {}
    for p in (*likeliest, 3, 400, 1234):
        x2, zz = [], []
        for j in range(2):
            solved = np.linalg.solve(np.eye(100) + d2[j] * (X * lam**2) @ X.T, np.stack([X[:, p], Y[:, j]], axis=1))
            a, z = X[:, p] @ solved[:, 0], X[:, p] @ solved[:, 1]
            left = 1 - d2[j] * lam[p] ** 2 * a
            x2.append(d2[j] * a / left * np.exp(2 * t))
            zz.append(z**2 / (a * left))
        log = 0.5 * sum(z * x / (1 + x) - np.log1p(x) for z, x in zip(zz, x2, strict=True)) - np.log(np.cosh(t))
        weight = np.exp(log - log.max())
        expected = weight[t > limit[p]].sum() / weight.sum()
        odds = scored.likely[p] / (1 - scored.likely[p]) / (expected / (1 - expected))
        assert 1 / 3 < odds < 3, (p, scored.likely[p], expected)
        wrong[p] = np.log(odds)
    length = (X[:, likeliest] ** 2).sum(axis=0)
    assert abs(np.corrcoef(length, [wrong[p] for p in likeliest])[0, 1]) < 0.4  # one that is short is not looked at less
    assert scored.likely[17] == 1.0
    assert np.median(scored.likely) < 0.02


def test_a_missing_feature_is_found_among_many() -> None:
    """Scored, looked at, and in, within a short warm-up."""
    from intarsia.server.sampler import adapt

    X, Y = many_features()
    made, data, rng = with_start(plan(Model(), X, Y), sparse_start(X, Y)), prepare(BE, X, Y), np.random.default_rng(0)
    assert made.searches
    state = State(np.eye(2), np.zeros((2500, 2)), np.full(2500, 0.5), np.array([0.004, 0.004]), np.eye(2))
    tuned, memory = initial_tuning(made), adapt.start(made)
    for number in range(60):
        kind = made.kind(number)
        state, stats = sweep(Sweep(BE, made, data, tuned, draw_noise(made, rng, kind), kind), state)
        seen = adapt.Seen(number, 60, kind, stats, np.zeros(0))
        tuned, memory = adapt.adapt(BE, made, tuned, memory, seen)
    assert np.abs((state.B @ state.A.T)[17]).max() > 0.5
    assert np.exp(tuned.doubt[17]) > 0.5
    assert np.exp(tuned.doubt).sum() < 0.5 * made.borderline


def test_the_gram_matrix_after_a_look_belongs_to_the_scales() -> None:
    X, Y = many_features()
    made, data, rng = plan(Model(), X, Y), prepare(BE, X, Y), np.random.default_rng(0)
    tuned = initial_tuning(made)._replace(doubt=np.full(2500, np.log(0.02)), limit=np.log(250.0), rate=np.zeros(2500))
    state = State(np.eye(2), np.zeros((2500, 2)), np.full(2500, 0.5), np.array([0.004, 0.004]), np.eye(2))
    before, G = state.lam, BE.weigh(X, state.lam, np.zeros((2500, 0)))[0]
    for _ in range(5):
        now = Sweep(BE, made, data, tuned, draw_noise(made, rng, WIDE), WIDE)
        state, G = without_b.looks(now, state, G, walk)
    assert (before != state.lam).sum() > 50
    np.testing.assert_allclose(np.tril(G), np.tril((X * state.lam**2) @ X.T), rtol=1e-8)


@pytest.mark.parametrize(("doubtful", "often"), [(10, 6.0), (2000, None)])
def test_a_feature_is_taken_by_the_probability_of_its_other_state(doubtful: int, often: float | None) -> None:
    """With places enough by six times that; without, those that are in half of the time are taken more often than others."""
    from intarsia.server.sampler import adapt

    X, Y = many_features()
    made = plan(Model(), X, Y)
    chance = np.full(2500, 1e-4)
    chance[:20], chance[20 : 20 + doubtful], chance[2400:2420] = 1.0, 0.05, 0.5  # clear, in doubt, in half of the time
    likely = chance + (1 - chance) * chance  # what scores come to on average: a feature that is in counts as one
    memory = adapt.start(made)._replace(likely=likely, scored=np.array(40.0))
    stats = Stats(np.zeros(2500), np.zeros(3), inclusion.Scored(likely, np.zeros(())))
    tuned, _ = adapt.adapt(BE, made, initial_tuning(made), memory, adapt.Seen(99, 100, WIDE, stats, np.zeros(0)))
    inside, out = np.exp(tuned.rate), np.exp(tuned.doubt)
    everybody = 0.2 * 0.8 * made.borderline / 2500
    assert inside[:20] == pytest.approx(0.1)
    assert out[2300] == pytest.approx(everybody, rel=0.1)
    if often is not None:
        assert out[:20] == pytest.approx(1.0)  # one that is needed is looked at whenever it is out
        assert out[20] == pytest.approx(often * 0.05 + everybody)
        assert inside[20] == pytest.approx(1.0)
    else:
        factor = inside[20] / (0.25 + 0.75 * 4 * 0.05 * 0.95)
        assert inside[20] < 0.6 * inside[2400]
        assert inside[2400] == pytest.approx(min(factor, 1.0))
        assert out[2400] == pytest.approx(factor * 0.5 + everybody)
        assert out[:20] == pytest.approx(0.25 * factor + everybody)
        expected = (chance * inside + (1 - chance) * out).sum()
        assert 0.75 * made.borderline < expected < 0.81 * made.borderline


@pytest.mark.parametrize("K", [0, 1, 31, 33, 70])
def test_panels_of_borderline_features_solve_the_systems_of_their_new_scales(K: int) -> None:
    """M' W = rhs', both with the new scales, however many panels the features fill."""
    rng, m, d = np.random.default_rng(K + 1), 20, np.array([1.0, 2.0, 0.5])
    X, Z, lam = rng.standard_normal((m, K)), rng.standard_normal((K, 3)), np.full(K, 0.1)
    G = rng.standard_normal((m, m))
    G, rhs = G @ G.T, rng.standard_normal((m, 3))
    border = Border(np.arange(K), np.ones(K, dtype=bool), np.ones(K), np.ones(K))
    numbers = {name: 1 - rng.random((K, 4)) for name in ("value", "mix")} | {"pick": 1 - rng.random(K)}
    factor = SimpleNamespace(solve=lambda d, b: np.stack([np.linalg.solve(np.eye(m) + x**2 * G, y) for x, y in zip(d, b)]))
    systems = integrated.Systems(factor, d, rng.standard_normal((m, 3)), rhs)
    new, W = integrated.borderline(BE, systems, integrated.Taken(X, Z, lam), border, HalfCauchy(), numbers)
    assert K == 0 or (new != lam).any()
    for j in range(3):
        M = np.eye(m) + d[j] ** 2 * (G + (X * (new**2 - lam**2)) @ X.T)
        np.testing.assert_allclose(M @ W[:, j], rhs[:, j] - d[j] * X @ ((new - lam) * Z[:, j]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("K", [1, 31, 33, 70])
def test_the_compiled_borderline_move_is_the_readable_one(K: int) -> None:
    """However many panels the features fill, some of them not taken."""
    rng, m, d = np.random.default_rng(K), 20, np.array([1.0, 2.0, 0.5])
    X, Z, lam = rng.standard_normal((m, K)), rng.standard_normal((K, 3)), np.full(K, 0.1)
    diag, off = 3 + rng.random(m), rng.standard_normal(m - 1) / 2
    G, Y, rhs = np.diag(diag) + np.diag(off, 1) + np.diag(off, -1), rng.standard_normal((m, 3)), rng.standard_normal((m, 3))
    border = Border(np.arange(K), rng.random(K) < 0.8, np.full(K, 0.05), np.full(K, 0.4))
    numbers = {name: 1 - rng.random((K, 4)) for name in ("value", "mix")} | {"pick": 1 - rng.random(K)}
    factor = SimpleNamespace(solve=lambda d, b: np.stack([np.linalg.solve(np.eye(m) + x**2 * G, y) for x, y in zip(d, b)]))
    taken = integrated.Taken(X, Z, lam)
    new, W = integrated.borderline(BE, integrated.Systems(factor, d, Y, rhs), taken, border, HalfCauchy(), numbers)
    found = kernels.borderline(kernels.Systems(diag, off, d, Y, rhs), taken, border, kernels.Candidates(**numbers))
    np.testing.assert_allclose(found[0], new, rtol=1e-10)
    np.testing.assert_allclose(found[1], W, rtol=1e-9, atol=1e-10)


def test_an_indefinite_system_is_said_by_nan() -> None:
    rng, m, K = np.random.default_rng(0), 6, 3
    diag, off, d = np.full(m, -2.0), np.zeros(m - 1), np.ones(2)
    Y, X = rng.standard_normal((m, 2)), rng.standard_normal((m, K))
    taken = integrated.Taken(X, rng.standard_normal((K, 2)), np.ones(K))
    border = Border(np.arange(K), np.ones(K, dtype=bool), np.ones(K), np.ones(K))
    numbers = kernels.Candidates(np.full((K, 4), 0.5), np.full((K, 4), 0.5), np.full(K, 0.5))
    new, W = kernels.borderline(kernels.Systems(diag, off, d, Y, Y), taken, border, numbers)
    assert np.isnan(new).all()
    assert np.isnan(W).all()
