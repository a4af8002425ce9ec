"""Times to event through the linear model: martingale residuals agree with a Cox model, pseudo-observations with true means."""

import numpy as np
import pytest

from intarsia.site.data.kinds import prepare

N, P = 4000, 6
BETA = np.array([0.25, -0.2, 0.15, 0.0, 0.0, 0.0])  # log hazard ratios


def cohort(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, P))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    death = rng.exponential(20 * np.exp(-X @ BETA))
    seen = rng.uniform(5, 60, N)
    return X, np.minimum(death, seen), (death <= seen) * 1.0


def cox(X: np.ndarray, t: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Newton's method on the partial likelihood; no ties in continuous time."""
    order = np.argsort(-t)
    X, d = X[order], d[order]
    beta = np.zeros(X.shape[1])
    for _ in range(20):
        w = np.exp(X @ beta)
        s0, s1 = np.cumsum(w), np.cumsum(w[:, None] * X, axis=0)
        s2 = np.cumsum(w[:, None, None] * X[:, :, None] * X[:, None, :], axis=0)
        mean = s1 / s0[:, None]
        score = (d[:, None] * (X - mean)).sum(axis=0)
        information = (d[:, None, None] * (s2 / s0[:, None, None] - mean[:, :, None] * mean[:, None, :])).sum(axis=0)
        step = np.linalg.solve(information, score)
        beta += step
        if np.abs(step).max() < 1e-10:
            break
    return beta


def least_squares(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Standardised coefficients, their standard errors, and the response's standard deviation."""
    s_y = float(y.std(ddof=1))
    Y = (y - y.mean()) / s_y
    C, rest, *_ = np.linalg.lstsq(X, Y, rcond=None)
    se = np.sqrt(rest[0] / (N - P - 1) * np.diag(np.linalg.inv(X.T @ X)))
    return C, se, s_y


def test_martingale_residuals_give_the_hazard_ratios_of_a_cox_model_and_select_the_same_features() -> None:
    X, t, d = cohort(0)
    prepared = prepare((t, d), "time", {"method": "martingale"})
    C, se, s_y = least_squares(X, prepared.values)
    ours, theirs = prepared.back.effect(C, s_y=s_y), cox(X, t, d)
    assert theirs == pytest.approx(BETA, abs=0.06)
    assert ours == pytest.approx(theirs, abs=0.05)
    assert (np.abs(C / se) > 4).tolist() == [True, True, True, False, False, False]


def test_pseudo_observations_give_differences_in_mean_time_that_intervals_cover() -> None:
    """The truth from a million uncensored subjects: the linear projection of min(T, 24) on the features."""
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((1_000_000, P))
    life = np.minimum(rng.exponential(20 * np.exp(-Z @ BETA)), 24.0)
    truth = Z.T @ (life - life.mean()) / len(Z)
    covered = []
    for seed in range(40):
        X, t, d = cohort(seed)
        prepared = prepare((t, d), "time", {"horizon": 24, "unit": "months"})
        C, se, s_y = least_squares(X, prepared.values)
        effect, wide = prepared.back.effect(C, s_y=s_y), 1.96 * se * s_y
        covered += ((effect - wide <= truth) & (truth <= effect + wide)).tolist()
    assert 0.92 <= np.mean(covered) <= 0.98
