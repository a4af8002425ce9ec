"""Log odds ratios from the linear model on a sketch: 95 % intervals cover the logistic model's coefficients.

Least squares on the sketch (a flat prior) with the noise variance drawn, so that the interval is that of β = C / (σ² s_y).
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit

from intarsia.site.data.kinds import prepare
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.probabilities import auc, brier, calibration, centred
from intarsia.site.sketch.sketch import SketchTerms, Work, sketch

N, M, P = 4000, 400, 20
Draw = Callable[[np.random.Generator], np.ndarray]


def normal(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((N, P))


def skewed(rng: np.random.Generator) -> np.ndarray:
    return rng.gamma(4.0, size=(N, P))  # skewness 1


def intervals(rng: np.random.Generator, features: Draw, prevalence: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The true log odds ratios per standard deviation, and a 95 % interval for each."""
    X = features(rng)
    beta = rng.normal(0, 0.15, P)
    eta = (X - X.mean(axis=0)) / X.std(axis=0, ddof=1) @ beta
    y = (rng.random(N) < expit(centred(prevalence, float(eta.std())) + eta)) * 1.0
    prepared = prepare(y, "binary")
    table = Table.open(
        np.column_stack([X, prepared.values]), responses="y", rules=TableRules(names=[*(f"x{j}" for j in range(P)), "y"])
    )
    result = sketch(table, SketchKey(rng.bytes(32)), SketchTerms("s", "1", M), work=Work(threads=1))
    A, b = result.message.X, result.message.Y[:, 0]
    inverse = np.linalg.inv(A.T @ A)
    C = inverse @ A.T @ b
    left = M - P
    sigma2 = ((b - A @ C) ** 2).sum() / rng.chisquare(left, 2000)
    draws = C + rng.standard_normal((2000, P)) @ np.linalg.cholesky(inverse).T * np.sqrt(sigma2)[:, None]
    # The sketch has rows of variance 1 per subject, so σ² is on the scale of the standardised response.
    effects = prepared.back.effect(draws, s_y=float(y.std(ddof=1)), sigma2=sigma2[:, None])
    low, high = np.quantile(effects, [0.025, 0.975], axis=0)
    return beta, low, high


def coverage(sets: int, features: Draw, prevalence: float, seed: int) -> tuple[float, float]:
    """The share of intervals that cover, and the slope of their middles on the truth."""
    rng = np.random.default_rng(seed)
    found = [intervals(rng, features, prevalence) for _ in range(sets)]
    beta, low, high = (np.concatenate(part) for part in zip(*found))
    return float(((low <= beta) & (beta <= high)).mean()), float(beta @ (low + high) / 2 / (beta @ beta))


def test_log_odds_are_covered() -> None:
    covered, slope = coverage(15, normal, 0.3, seed=1)
    assert 0.92 <= covered <= 0.98
    assert 0.9 <= slope <= 1.1


@pytest.mark.slow
@pytest.mark.parametrize(("features", "prevalence"), [(normal, 0.5), (normal, 0.07), (skewed, 0.5), (skewed, 0.07)])
def test_log_odds_are_covered_in_four_settings(features: Draw, prevalence: float) -> None:
    covered, slope = coverage(60, features, prevalence, seed=2)
    assert 0.92 <= covered <= 0.97
    assert 0.9 <= slope <= 1.12


def test_probabilities_are_those_of_the_logistic_model() -> None:
    rng = np.random.default_rng(3)
    eta = rng.normal(0, 1, 50_000)
    assert expit(centred(0.2, 1.0) + eta).mean() == pytest.approx(0.2, abs=0.003)
    assert expit(centred(0.2, 0.0)) == pytest.approx(0.2, abs=1e-9)
    y = (rng.random(50_000) < expit(eta - 1.7)) * 1.0
    intercept, slope = calibration(y, expit(eta - 1.7))
    assert (intercept, slope) == (pytest.approx(0, abs=0.06), pytest.approx(1, abs=0.05))
    assert calibration(y, expit(2 * (eta - 1.7)))[1] == pytest.approx(slope / 2, abs=1e-6)  # too extreme: slope below 1
    few, score = np.array([0, 0, 1, 1, 0]), np.array([0.1, 0.4, 0.35, 0.8, 0.35])
    assert auc(few, score) == pytest.approx(4.5 / 6)
    assert brier(few, score) == pytest.approx(np.mean((few - score) ** 2))
