"""Predictions of a yes/no response at its owner: probabilities, and how well they hold (AUC, Brier score, calibration)."""

from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from intarsia.errors import InputError

_STEPS = 50  # of Newton's method, at most
_NODES = 41  # of the quadrature
_FARTHEST = 40.0  # log odds beyond which a probability is 0 or 1 in every digit


def centred(prevalence: float, sd: float) -> float:
    """The constant a with E[expit(a + η)] = prevalence for η ~ N(0, sd²): log odds are known up to it, and subjects of the cohort
    have mean 0 by construction.
    """
    if not 0 < prevalence < 1 or not 0 <= sd < np.inf:
        raise InputError("The share of yes must lie between 0 and 1, and the spread of the log odds must be finite.")
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    start = float(logit(prevalence))
    reach = _FARTHEST + 8 * sd
    return float(brentq(lambda a: float(weights @ expit(a + sd * nodes)) - prevalence, start - reach, start + reach, xtol=1e-12))


def auc(y: Any, score: Any) -> float:
    """The probability that a subject with yes has the higher score than one without (ties count half)."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(_yes(y), np.asarray(score, dtype=np.float64)))


def brier(y: Any, p: Any) -> float:
    """The mean squared distance of the probabilities from what came: 0 is perfect."""
    from sklearn.metrics import brier_score_loss

    return float(brier_score_loss(_yes(y), np.asarray(p, dtype=np.float64)))


def calibration(y: Any, p: Any) -> tuple[float, float]:
    """Intercept and slope of the logistic regression of what came on the predicted log odds; 0 and 1 are perfect.

    A slope below 1: predictions are too extreme. An intercept below 0: they are too high.
    """
    yes = _yes(y).astype(np.float64)
    x = logit(np.clip(np.asarray(p, dtype=np.float64), 1e-12, 1 - 1e-12))
    X = np.column_stack([np.ones_like(x), x])
    b = np.array([0.0, 1.0])
    for _ in range(_STEPS):
        fitted = expit(X @ b)
        step = np.linalg.lstsq((X * (fitted * (1 - fitted))[:, None]).T @ X, X.T @ (yes - fitted), rcond=None)[0]
        b += step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    return float(b[0]), float(b[1])


def _yes(y: Any) -> np.ndarray:
    values = np.asarray(y, dtype=np.float64)
    if not np.isin(values, (0.0, 1.0)).all() or not 0 < values.sum() < len(values):
        raise InputError("What came must be 0 or 1 for every subject, and some of each.")
    return values > 0
