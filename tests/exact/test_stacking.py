"""The dense companion fit and its weighing with the sparse one."""

from pathlib import Path

import numpy as np
import pytest

from intarsia.server.assess import stacking as ridges
from intarsia.server.assess.assessment import assess, keep, kept
from intarsia.server.assess.leave_one_out import Rows
from intarsia.server.assess.stacking import (
    SHRINK,
    Weighed,
    best_factor,
    best_weights,
    fold_of_rows,
    foretold,
    from_all_rows,
    interval_of_explained,
    ridge,
    stack,
    standard_errors_better,
)
from intarsia.server.covariates import Covariates, sample_adjusted
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.prediction_weights import refit_settings, shares_noise, weigh
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings


def refit(C: np.ndarray, Sigma: np.ndarray) -> Draws:
    """Of draws of C (draw, P, Q) with the same Sigma in each."""
    return Draws(C[None], np.broadcast_to(Sigma, (1, len(C), *Sigma.shape)))


def evidence(X: np.ndarray, y: np.ndarray, k: float) -> float:
    """Log marginal likelihood of y ~ N(0, s²(I + k XXᵀ)), s² at its best, by a dense determinant."""
    K = np.eye(len(y)) + k * X @ X.T
    s2 = y @ np.linalg.solve(K, y) / len(y)
    return float(-0.5 * len(y) * np.log(s2) - 0.5 * np.linalg.slogdet(K)[1])


@pytest.mark.parametrize(("m", "P"), [(30, 80), (60, 12)])
def test_the_ridge_is_the_conditional_mean_at_the_largest_evidence(m: int, P: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m, P)) * 7.0
    Y = X @ rng.standard_normal((P, 2)) * 0.02 + rng.standard_normal((m, 2))
    found = ridge(X, Y)
    grid = np.exp(np.linspace(-20, 4, 4001))
    for q in range(2):
        k = grid[np.argmax([evidence(X, Y[:, q], value) for value in grid])]
        expected = k * X.T @ np.linalg.solve(np.eye(m) + k * X @ X.T, Y[:, q])
        assert np.allclose(found[:, q], expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("centred", [False, True])
def test_rows_are_left_out_in_closed_form(centred: bool) -> None:
    """As a ridge on the other rows predicts them, one by one; where rows are centred, with an intercept."""
    rng = np.random.default_rng(3)
    X, Y = rng.standard_normal((25, 40)), rng.standard_normal((25, 2))
    if centred:
        X, Y = X - X.mean(axis=0), Y - Y.mean(axis=0)
    log_k = np.array([-2.0, 0.5])
    found = ridges._System.of(X, Y).left_out(log_k)
    for i in range(25):
        others = np.arange(25) != i
        x, y = X[others], Y[others]
        mean_x, mean_y = (x.mean(axis=0), y.mean(axis=0)) if centred else (0.0, 0.0)
        for q, k in enumerate(np.exp(log_k)):
            K = np.eye(24) / k + (x - mean_x) @ (x - mean_x).T
            predicted = (mean_y[q] if centred else 0.0) + (X[i] - mean_x) @ (x - mean_x).T @ np.linalg.solve(
                K, (y - mean_y)[:, q]
            )
            assert found[i, q] == pytest.approx(Y[i, q] - predicted, rel=1e-8)


def components(first: int, last: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of which some components are large, as those of gene expression; some components carry all signal."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((1200, 60)) @ (rng.standard_normal((60, 200)) / np.arange(1.0, 61)[:, None])
    X = X / X.std(axis=0) + 0.6 * rng.standard_normal(X.shape)
    U = np.linalg.svd(X, full_matrices=False)[0][:, first:last]
    signal = U @ rng.standard_normal((last - first, 10))
    return X, signal / signal.std(axis=0) + 0.7 * rng.standard_normal(signal.shape)


@pytest.mark.parametrize(("first", "last", "rows", "gain"), [(0, 3, 150, 0.005), (20, 60, 80, 0.01), (0, 60, 150, -0.005)])
def test_where_the_evidence_answers_another_question_rows_left_out_choose(
    first: int, last: int, rows: int, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New rows are predicted better where few components, or small ones, matter; elsewhere no worse."""
    errors = []
    for clearly in (ridges.CLEARLY, np.inf):
        monkeypatch.setattr(ridges, "CLEARLY", clearly)
        each = []
        for seed in range(4):
            X, Y = components(first, last, seed)
            C = ridge(X[:rows], Y[:rows])
            each.append(np.square(Y[150:] - X[150:] @ C).sum() / np.square(Y[150:]).sum())
        errors.append(np.mean(each))
    chosen, by_evidence = errors
    assert by_evidence - chosen > gain


def test_the_ridge_of_a_response_of_noughts_is_nought() -> None:
    X = np.random.default_rng(1).standard_normal((20, 5))
    assert np.array_equal(ridge(X, np.zeros((20, 1))), np.zeros((5, 1)))


def test_centred_rows_are_one_observation_fewer() -> None:
    """With more features than rows the fit of n centred rows is that of the n − 1 rows they are worth."""
    rng = np.random.default_rng(9)
    X, Y = rng.standard_normal((20, 60)), rng.standard_normal((20, 2))
    Y += 0.3 * X[:, :2]
    X, Y = X - X.mean(axis=0), Y - Y.mean(axis=0)
    contrast = np.linalg.qr(np.c_[np.ones(20), np.eye(20)[:, :19]])[0][:, 1:].T
    assert np.allclose(ridge(X, Y), ridge(contrast @ X, contrast @ Y), atol=1e-5)


def test_units_of_the_features_do_not_matter() -> None:
    rng = np.random.default_rng(2)
    X, Y = rng.standard_normal((25, 40)), rng.standard_normal((25, 1))
    Y += X[:, :1]
    assert np.allclose(ridge(1e6 * X, Y) * 1e6, ridge(X, Y), rtol=1e-6)


def log_posterior(Y: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> float:
    """Of the weights of all predictions but the first, whose weight is the rest, up to a constant."""
    variance = np.square(Y - predictions.mean(axis=0)).mean(axis=0)
    mixed = np.tensordot([1 - weights.sum(), *weights], predictions, axes=1)
    return float(-0.5 * (np.square(Y - mixed) / variance).sum() - 0.5 * np.square(weights).sum() / SHRINK)


def test_the_weight_is_the_mode_of_its_posterior() -> None:
    """Against a fine grid of the log posterior."""
    rng = np.random.default_rng(3)
    Y, a, b = rng.standard_normal((3, 40, 2))
    predictions = np.stack([0.3 * b, 0.3 * Y + 0.3 * a])
    grid = np.linspace(0, 1, 1001)
    best = grid[int(np.argmax([log_posterior(Y, predictions, np.array([w])) for w in grid]))]
    weights = best_weights(Y, predictions)
    assert weights.sum() == pytest.approx(1.0)
    assert 0.05 < weights[1] < 0.95
    assert abs(weights[1] - best) <= 1e-3


@pytest.mark.parametrize("shares", [(0.5, 0.2, 0.1), (0.0, 0.3, 0.9), (0.3, -0.4, 0.6)])
def test_three_weights_are_the_mode_of_their_posterior(shares: tuple[float, ...]) -> None:
    """Inside, where the ridge gets nothing, and where one of the sparse fits gets nothing."""
    rng = np.random.default_rng(7)
    predictions = rng.standard_normal((3, 60, 2))
    Y = np.tensordot(shares, predictions, axes=1) + 0.7 * rng.standard_normal((60, 2))
    steps = np.linspace(0, 1, 101)
    grid = np.array([[a, b] for a in steps for b in steps if a + b <= 1 + 1e-9])
    best = grid[int(np.argmax([log_posterior(Y, predictions, weights) for weights in grid]))]
    found = best_weights(Y, predictions)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= 0).all()
    assert np.abs(found[1:] - best).max() <= 0.01
    # A response that a row lacks says nothing.
    holes = np.where(rng.random(Y.shape) < 0.2, np.nan, Y)
    assert np.isfinite(best_weights(holes, predictions)).all()


def test_the_better_predictor_gets_the_weight() -> None:
    rng = np.random.default_rng(4)
    truth = rng.standard_normal((400, 3))
    Y, nothing = truth + 0.3 * rng.standard_normal((400, 3)), np.zeros_like(truth)
    assert best_weights(Y, np.stack([nothing, truth]))[1] > 0.9
    assert best_weights(Y, np.stack([truth, nothing]))[1] < 0.05
    assert best_weights(Y, np.stack([nothing, nothing, truth]))[2] > 0.9


def test_rows_left_out_are_not_seen() -> None:
    """A fit that memorises its rows gains nothing from it: each row is predicted without itself."""
    rng = np.random.default_rng(5)
    X, Y = rng.standard_normal((50, 8)), rng.standard_normal((50, 2))
    seen = []

    def fit(x: np.ndarray, y: np.ndarray) -> Draws:
        seen.append({tuple(row) for row in x})
        return refit(np.linalg.lstsq(x, y, rcond=None)[0][None], np.diag([1.0, 4.0]))

    sparse = rng.standard_normal((8, 2))
    found = stack(X, Y, sparse, fit)
    assert found is not None
    part = fold_of_rows(50)
    for k, rows in enumerate(seen):
        assert rows.isdisjoint({tuple(row) for row in X[part == k]})
        assert len(rows) == 40
    plain, shrunk = np.empty_like(Y), np.empty_like(Y)
    for k in range(5):
        plain[part == k] = X[part == k] @ np.linalg.lstsq(X[part != k], Y[part != k], rcond=None)[0]
        shrunk[part == k] = X[part == k] @ ridge(X[part != k], Y[part != k])
    weight = best_weights(Y, np.stack([shrunk, plain]))[1]
    assert found.weight == pytest.approx(weight)
    error = np.square(Y - weight * plain - (1 - weight) * shrunk).sum(axis=0) / np.square(Y).sum(axis=0)
    assert np.allclose(found.r2, 1 - error)
    assert (found.r2 < 0.1).all()  # pure noise is not predicted
    assert np.allclose(found.spread, error * np.square(Y).mean(axis=0) / [1.0, 4.0])
    assert np.allclose(sparse + found.coefficients, weight * sparse + (1 - weight) * ridge(X, Y))


def test_rows_that_come_in_turns_are_not_left_out_in_turns() -> None:
    """Five visits per person, one after the other: no part is one visit."""
    part = fold_of_rows(100)
    assert np.bincount(part).tolist() == [20] * 5
    for k in range(5):
        assert len(set(np.flatnonzero(part == k) % 5)) >= 3
    assert np.array_equal(part, fold_of_rows(100))


def test_another_fit_is_used_where_it_is_clearly_better_and_not_made_again_where_it_is_not() -> None:
    rng = np.random.default_rng(10)
    X, C = rng.standard_normal((80, 30)), np.zeros((30, 3))
    C[0] = 1.0
    Y = X @ C + rng.standard_normal((80, 3))
    nothing = refit(np.zeros((1, 30, 3)), np.eye(3))
    asked: list[int] = []

    def other(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        asked.append(len(x))
        return C

    found = stack(X, Y, np.zeros((30, 3)), lambda x, y: nothing, other)
    assert found is not None
    assert asked == [64] * 5 + [80]
    assert found.weight_independent > 0.5
    assert np.allclose(found.coefficients[0], C[0], atol=0.2)

    asked.clear()
    C = -C
    found = stack(X, Y, np.zeros((30, 3)), lambda x, y: nothing, other)
    assert found is not None
    assert asked == [64] * 5
    assert found.weight_independent == 0.0
    without = stack(X, Y, np.zeros((30, 3)), lambda x, y: nothing)
    assert without is not None
    np.testing.assert_array_equal(found.coefficients, without.coefficients)


def test_how_clearly_one_prediction_is_better_is_counted_in_rows() -> None:
    """Ten responses that say the same are no more evidence than one."""
    rng = np.random.default_rng(11)
    y, one, than = rng.standard_normal((3, 50, 1))
    once, often = (standard_errors_better(*(np.repeat(values, times, axis=1) for values in (y, one, than))) for times in (1, 10))
    assert once == pytest.approx(often)
    gain = np.square(y - than) - np.square(y - one)
    assert once == pytest.approx(gain.sum() / np.sqrt(np.square(gain).sum()))
    assert standard_errors_better(y, one, one) == 0.0
    lacking = np.where(np.arange(50)[:, None] < 5, np.nan, y)
    assert standard_errors_better(lacking, one, than) == pytest.approx(standard_errors_better(y[5:], one[5:], than[5:]))


@pytest.mark.parametrize(("noise", "Q"), [("correlated", 5), ("independent", 5), ("correlated", 1)])
def test_what_responses_share_is_predicted_where_it_is_signal(noise: str, Q: int) -> None:
    """Signal that a model with correlated noise takes for noise is found by the same model with independent noise.

    The sampler's part is played by the two answers it gives on such data (`experiments.look_alikes`, connectome).
    """
    rng = np.random.default_rng(1)
    X, C = rng.standard_normal((90, 40)), np.zeros((40, Q))
    C[:8] = np.sqrt(0.6 / 8)
    Y = X @ C + np.sqrt(0.4) * rng.standard_normal((90, Q))
    asked: list[tuple[int, str]] = []

    def run(X: np.ndarray, Y: np.ndarray, model: Model, settings: Settings) -> Draws:
        asked.append((len(X), model.noise))
        found = C if model.noise == "independent" else 0 * C
        Sigma = np.eye(Q) if model.noise == "independent" else 0.4 * np.eye(Q) + 0.6
        return Draws(np.tile(found, (1, 4, 1, 1)), np.tile(Sigma, (1, 4, 1, 1)))

    model, settings = Model(noise=noise), Settings(draws=4, warmup=4, workers=1)
    fitted = sample_adjusted(lambda X, Y: run(X, Y, model, settings), X, Y, Covariates(np.empty((90, 0))), seed=1)
    asked.clear()
    weighed = weigh(fitted, run, model, settings)
    assert weighed is not None
    if noise == "correlated" and Q > 1:
        assert asked == [(72, "correlated"), (72, "independent")] * 5 + [(90, "independent")]
        assert weighed.weight_independent > 0.7
        assert (weighed.r2 > 0.3).all()
    else:  # one response shares its noise with none; a model that has independent noise needs no other
        assert asked == [(72, noise)] * 5
        assert weighed.weight_independent == 0.0


def test_refits_are_short_and_no_longer_than_the_fit() -> None:
    rng = np.random.default_rng(13)
    X, Y = rng.standard_normal((30, 40)), rng.standard_normal((30, 1))
    asked: list[Settings] = []

    def run(X: np.ndarray, Y: np.ndarray, model: Model, settings: Settings) -> Draws:
        asked.append(settings)
        return Draws(np.zeros((2, 4, 40, 1)), np.ones((2, 4, 1, 1)))

    for whole, draws, warmup in ((Settings(seed=5), 100, 250), (Settings(draws=10, warmup=7, seed=5), 10, 7)):
        fitted = sample_adjusted(lambda X, Y, whole=whole: run(X, Y, Model(), whole), X, Y, Covariates(np.empty((30, 0))), seed=1)
        asked.clear()
        assert weigh(fitted, run, Model(), whole) is not None
        assert asked == [refit_settings(whole, Model.REFIT)] * 5
        assert (asked[0].seed, asked[0].draws, asked[0].warmup, asked[0].chains) == (5, draws, warmup, 1)


def test_noise_is_shared_where_it_correlates_beyond_chance() -> None:
    rng = np.random.default_rng(12)

    def found(rho: float, Q: int, rows: int) -> bool:
        E = rng.standard_normal((rows, Q)) * np.sqrt(1 - rho) + np.sqrt(rho) * rng.standard_normal((rows, 1))
        return shares_noise(Draws(np.zeros((1, 4, 2, Q)), np.tile(E.T @ E / rows, (1, 4, 1, 1))), rows)

    assert not found(0.0, 1, 50)
    assert sum(found(0.0, 6, 100) for _ in range(40)) <= 2
    assert all(found(0.3, 6, 100) for _ in range(40))
    assert sum(found(0.0, 6, 10_000) for _ in range(40)) <= 2


def test_too_few_rows_are_said() -> None:
    X, Y = np.ones((9, 2)), np.ones((9, 1))
    assert stack(X, Y, np.zeros((2, 1)), lambda x, y: refit(np.zeros((1, 2, 1)), np.eye(1))) is None


def test_foretold_variances_include_noise_and_doubt() -> None:
    """Against the law of total variance by simulation."""
    rng = np.random.default_rng(6)
    C = rng.normal(1.0, 0.5, (4000, 3, 2))
    Sigma = np.array([[1.0, 0.5], [0.5, 2.0]])
    x = np.array([[1.0, -2.0, 0.5]])
    mean, variance = foretold(refit(C, Sigma), x)
    simulated = (x @ C)[:, 0] + rng.multivariate_normal([0, 0], Sigma, 4000)
    assert np.allclose(mean[0], simulated.mean(axis=0), atol=0.1)
    assert np.allclose(variance[0], simulated.var(axis=0), rtol=0.08)


def test_what_is_weighed_is_kept_with_the_draws(tmp_path: Path) -> None:
    """Many small effects and more features than rows: the ridge gets the weight, and the file says so again."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((60, 90))
    Y = X @ rng.normal(0, 0.2, (90, 2)) + rng.standard_normal((60, 2))
    run = Settings(draws=40, warmup=80, thin=2, chains=1, workers=1)
    fitted = sample_adjusted(lambda X, Y: sample(X, Y, settings=run), X, Y, Covariates(np.empty((60, 0))), seed=1)
    weighed = weigh(fitted, sample, Model(), run)
    assert weighed is not None
    assert weighed.weight < 0.7
    posterior = Posterior.from_draws(fitted.draws)
    found = keep(posterior, assess(posterior, Rows.of(X, Y), X=X, weighed=weighed))
    assert found.loo is not None
    np.testing.assert_array_equal(found.loo.r2, weighed.r2)
    posterior.save(tmp_path / "p.nc")
    again = kept(Posterior.load(tmp_path / "p.nc"))
    assert again is not None
    assert again.weighed is not None
    for name in ("coefficients", "effects", "spread", "r2", "r2_se", "alike", "rows", "weight", "weight_independent"):
        np.testing.assert_array_equal(getattr(again.weighed, name), getattr(weighed, name))


def test_where_predictions_do_worse_than_the_mean_nothing_is_expected_of_them() -> None:
    """After covariates a share explained may come out just below nought; what a site is told must be one that can be."""
    some = np.array([-0.01, 0.3])
    weighed = Weighed(np.zeros((3, 2)), np.zeros((1, 2)), np.ones(2), some, some, some, np.full(2, 100.0), 0.5)
    C = np.random.default_rng(0).standard_normal((2, 40, 3, 2))
    posterior = Posterior.from_draws(Draws(C, np.tile(np.eye(2), (2, 40, 1, 1))))
    found = assess(posterior, weighed=weighed).expected_r2(np.array([1.02, 0.6]), 0.95)
    assert found is not None
    mean, lower, upper = found
    assert mean[0] == lower[0] == 0
    assert 0 < lower[1] < mean[1] < upper[1] < 1


def test_a_timid_prediction_is_stretched_and_one_that_tells_nothing_is_left() -> None:
    rng = np.random.default_rng(3)
    line, nothing = rng.standard_normal((2, 4000))
    Y = np.column_stack([line + 0.5 * rng.standard_normal(4000), rng.standard_normal(4000)])
    found = best_factor(Y, np.column_stack([0.5 * line, 0.01 * nothing]))
    assert found == pytest.approx([2.0, 1.0], abs=0.05)


def test_only_the_responses_that_ask_for_it_are_stretched() -> None:
    rng = np.random.default_rng(8)
    X = rng.standard_normal((100, 6))
    Y = X[:, :1] * [1.0, 1.0] + 0.5 * rng.standard_normal((100, 2))
    half = np.zeros((6, 2))
    half[0] = 0.4

    def timid(X: np.ndarray, Y: np.ndarray) -> Draws:
        return refit(half[None], np.eye(2))

    plain, found = stack(X, Y, half, timid), stack(X, Y, half, timid, stretched=np.array([True, False]))
    assert plain is not None
    assert found is not None
    factor = (half + found.coefficients)[0] / (half + plain.coefficients)[0]
    assert factor[0] > 1.01
    assert factor[1] == pytest.approx(1.0, abs=1e-12)
    assert found.r2[0] > plain.r2[0]


def test_a_fit_to_all_rows_explains_at_most_a_quarter_more() -> None:
    """At the beginning of the curve in proportion to the rows, at its end nothing; what could be explained only bends it."""
    found = from_all_rows(np.array([0.01, 0.2, 0.3, 0.0]), np.array([0.1, 0.6, 0.8, 1.1]))
    np.testing.assert_allclose(found, [0.0125 / (1 + 0.25 / 90), 0.25 / 1.125, 0.3, 0.0], rtol=1e-12)


@pytest.mark.parametrize(("explained", "signals"), [(0.15, 10), (0.4, 10), (0.0, 0)])
def test_what_new_rows_show_lies_where_rows_left_out_say(explained: float, signals: int) -> None:
    """Three kinds of data, 40 times each, with a stand-in for the sparse fit: the four largest of all correlations."""
    P, m, held, off = 60, 120, 0, []

    def fit(X: np.ndarray, Y: np.ndarray) -> Draws:
        C = X.T @ Y / len(X)
        C[np.abs(C) < np.sort(np.abs(C), axis=0)[-4]] = 0.0
        return refit(C[None], np.eye(1))

    for number in range(40):
        rng = np.random.default_rng([9, number])
        true = np.zeros((P, 1))
        true[:signals] = np.sqrt(explained / max(signals, 1))
        X = rng.standard_normal((m, P))
        Y = X @ true + np.sqrt(1 - explained) * rng.standard_normal((m, 1))
        sparse = fit(X, Y).mean()
        found = stack(X, Y, sparse, fit, stretched=np.array([True]))
        assert found is not None
        C = sparse + found.coefficients
        came = float((C.T @ true).item() ** 2 / max((C.T @ C).item(), 1e-300))
        told = from_all_rows(found.alike, np.array([1 - explained]))
        low, high = interval_of_explained(told, found.rows, 0.95)
        held += float(low[0]) <= came <= float(high[0])
        off.append(np.sqrt(told[0]) - np.sqrt(came))
    assert held >= 36  # nine in ten
    assert not signals or np.mean(off) < 0.02  # not too hopeful; where there is nothing to predict none can be too low


def test_each_response_is_judged_by_the_rows_that_have_it() -> None:
    """A response that half of the rows lack: weights, slope and R² are those of the other half alone."""
    rng = np.random.default_rng(12)
    X = rng.standard_normal((120, 5))
    Y = X[:, :1] + 0.5 * rng.standard_normal((120, 2))
    half = np.zeros((5, 2))
    half[0] = 0.6

    def same(X: np.ndarray, Y: np.ndarray) -> Draws:
        return refit(half[None], np.eye(2))

    lacking = Y.copy()
    lacking[::2, 1] = np.nan
    whole, found = (stack(X, values, half, same, stretched=np.array([True, True])) for values in (Y, lacking))
    assert whole is not None
    assert found is not None
    assert found.rows.tolist() == [120, 60]
    assert np.isfinite(found.coefficients).all()
    # The rows that lack it may say whatever they like of it.
    Y[::2, 1] += 100.0
    Y[::2, 1] = np.nan
    again = stack(X, Y, half, same, stretched=np.array([True, True]))
    assert again is not None
    np.testing.assert_array_equal(again.coefficients, found.coefficients)
    predicted = X[1::2] @ (half + found.coefficients)[:, 1]
    assert found.r2[1] == pytest.approx(1 - np.square(Y[1::2, 1] - predicted).sum() / np.square(Y[1::2, 1]).sum(), abs=0.05)
    assert found.spread[1] == pytest.approx(whole.spread[1], rel=0.3)
