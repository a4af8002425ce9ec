"""From a linear model of a yes/no response to log odds ratios.

For log odds a + η with normal η, the share of yes and the explained share of variance say how widely η varies, and so the mean
slope E[p(1 − p)] at which a change of the log odds changes the probability: Cov(x, y) = β E[p(1 − p)] for a normal feature x. A
skewed feature adds γ β² E[p(1 − p)(1 − 2p)] / 2, γ its skewness: the equation is solved for β.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from math import hypot, log
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError

Array = NDArray[np.float64]

WIDEST = 3.5  # standard deviation of the log odds: beyond, a little more explained variance would mean any effect whatever
_STEPS, _NODES, _HALVINGS, _FARTHEST = 71, 61, 60, 40.0
_GOLDEN = (5**0.5 - 1) / 2  # its multiples fill the unit interval evenly
STRONG = log(5.0)  # a log odds ratio per standard deviation of the feature beyond which it hangs on how nearly normal that is
VERY_RARE = 0.01  # share of the rarer answer below which intervals of odds ratios hold too seldom
WIDE = 3.0  # standard deviation of the log odds beyond which odds ratios come out a tenth and more too near to 1
_NEARLY_ALL = 0.95  # share of the draws
SCORES = ("auc", "auc_lower", "auc_upper", "brier", "brier_lower", "brier_upper")
_GRID, _FARTHEST_Z = 801, 7.0  # points, standard deviations
_FLATTEST = 0.01  # of 1 + 2kβ, below which a skewed feature's equation has no solution


@dataclass(frozen=True)
class _Curve:
    """For one share of yes, over growing spread of η: explained share of variance, E[p(1 − p)], E[p(1 − p)(1 − 2p)] over that,
    the probability that η is higher for a yes than for a no, and the constant a."""

    explained: Array = field(repr=False)
    slope: Array = field(repr=False)
    bend: Array = field(repr=False)
    auc: Array = field(repr=False)
    constant: Array = field(repr=False)

    def brier(self, told: float, true: float) -> float:
        """The mean squared distance from what comes of probabilities made for a prediction that explains so much (`told`), where
        it explains `true`: overconfident or timid where the two differ."""
        z, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        sd = np.interp([told, true], self.explained, np.linspace(0.0, WIDEST, _STEPS))
        constant = np.interp(sd, np.linspace(0.0, WIDEST, _STEPS), self.constant)
        p, q = _expit(constant[:, None] + sd[:, None] * z)
        return float((weights * ((1 - p) ** 2 * q + p**2 * (1 - q))).sum() / weights.sum())


def share_of_rarer(s_y: float) -> float:
    """The share of the rarer answer, which the standard deviation of a yes/no response tells."""
    return float((1 - np.sqrt(max(1 - 4 * s_y**2, 0.0))) / 2)


def mean_slope(s_y: float, sigma2: Any) -> Array:
    """E[p(1 − p)], from the standard deviation of the response and the noise variance on the standardised scale."""
    curve = _curve(round(share_of_rarer(s_y), 6))
    return np.asarray(np.interp(1 - np.asarray(sigma2, dtype=np.float64), curve.explained, curve.slope))


def response_caution(s_y: float, sigma2: Any) -> str:
    """Where the approximation ends for all odds ratios on a response; empty where it does not.

    `sigma2` are draws of the noise variance: few rows leave it uncertain, and a warning stands where nearly all draws say so.
    """
    share = share_of_rarer(s_y)
    if share < VERY_RARE:
        return (
            f"rough: a very rare answer, fewer than {VERY_RARE:.0%} of subjects have it; intervals hold less often than they say,"
            " much less for skewed features"
        )
    curve, most = _curve(round(share, 6)), float(np.quantile(np.asarray(sigma2, dtype=np.float64), _NEARLY_ALL))
    if 1 - most > float(np.interp(WIDE, np.linspace(0.0, WIDEST, _STEPS), curve.explained)):
        return "rough: the features tell the answers almost apart; odds ratios come out a tenth and more too near to 1"
    return ""


def effect_caution(effect: float) -> str:
    """Where one log odds ratio per standard deviation of the feature is too strong for the approximation."""
    return "rough: beyond an odds ratio of 5 per standard deviation" if abs(effect) > STRONG else ""


def expected_scores(s_y: float, explained: tuple[float, float, float], subjects: int, interval: float) -> dict[str, float]:
    """AUC and Brier score to be expected of probabilities for new subjects, with intervals, from the share of variance that the
    linear prediction will explain and the ends of its interval. The Brier score's is that of the same probabilities where they
    prove too extreme or too timid; it hangs also on how common the answers are, which so many subjects tell.

    For a normally distributed prediction: then the share of yes and what is explained say how widely calibrated log odds vary.
    The mean squared distance of calibrated probabilities from what comes is E[p(1 − p)]. Both are the same for the rarer and the
    other answer.
    """
    curve = _curve(round(share_of_rarer(s_y), 6))
    auc, brier = np.interp(explained, curve.explained, curve.auc).tolist(), [curve.brier(explained[0], one) for one in explained]
    # p(1 − p) changes by 1 − 2p with p, and the score in proportion.
    of_share = NormalDist().inv_cdf((1 + interval) / 2) * brier[0] / s_y**2 * (1 - 2 * share_of_rarer(s_y)) * s_y / subjects**0.5
    low, high = brier[0] - hypot(brier[0] - brier[2], of_share), brier[0] + hypot(brier[1] - brier[0], of_share)
    out = dict(zip(("auc", "auc_lower", "auc_upper"), auc, strict=True))
    return out | {"brier": brier[0], "brier_lower": max(low, 0.0), "brier_upper": high}


def log_odds_ratio(C: Any, s_y: float, sigma2: Any, skewness: Any = 0.0, share: float | None = None) -> Array:
    """Log odds ratios per standard deviation of the feature; `skewness` (of the features) is made up for where the `share` of yes
    is known: s_y alone does not say which answer is the rarer one."""
    C, sigma2 = np.asarray(C, dtype=np.float64), np.asarray(sigma2, dtype=np.float64)
    plain = C * s_y / mean_slope(s_y, sigma2)
    if share is None or not np.any(skewness):
        return np.asarray(plain)
    curve = _curve(round(min(share, 1 - share), 6))
    bend = np.interp(1 - sigma2, curve.explained, curve.bend) * (1 if share <= 0.5 else -1)
    k = np.broadcast_to(np.asarray(skewness, dtype=np.float64) * bend, plain.shape)
    near = np.abs(k * plain) < 1e-6
    safe = np.where(near, 1.0, k)
    return np.where(near, plain, (np.sqrt(np.maximum(1 + 2 * k * plain, _FLATTEST)) - 1) / safe)


def normal_draws(mean: Array, sd: Array, number: int) -> Array:
    """Draws (number, …) of a normal law: its quantiles, in an order that has nothing to do with other draws beside them."""
    at = ((np.arange(number) + 0.5) * _GOLDEN) % 1.0
    z = np.array([NormalDist().inv_cdf(one) for one in at.tolist()])
    return np.asarray(mean + z.reshape(-1, *([1] * np.ndim(mean))) * sd)


@lru_cache(maxsize=256)
def _curve(share: float) -> _Curve:
    if not 0 < share <= 0.5:
        raise InputError("The standard deviation of a yes/no response must lie above 0.")
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    weights = weights / weights.sum()
    sd = np.linspace(0.0, WIDEST, _STEPS)[:, None]
    low, high = np.full(_STEPS, -_FARTHEST - 8 * WIDEST), np.full(_STEPS, _FARTHEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = _expit(middle[:, None] + sd * nodes) @ weights > share
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    p = _expit(low[:, None] + sd * nodes)
    slope = p * (1 - p) @ weights
    bend = p * (1 - p) * (1 - 2 * p) @ weights / slope
    return _Curve(np.square(sd[:, 0] * slope) / (share * (1 - share)), slope, bend, _auc(low[:, None], sd), low)


def _auc(constant: Array, sd: Array) -> Array:
    """The probability that log odds constant + sd z are higher for a yes than for a no (ties count half), on a grid of z."""
    z = np.linspace(-_FARTHEST_Z, _FARTHEST_Z, _GRID)
    p, weights = _expit(constant + sd * z), np.exp(-0.5 * z**2)
    yes, no = p * weights, (1 - p) * weights
    below = np.cumsum(no, axis=1) - no / 2
    return np.asarray((yes * below).sum(axis=1) / (yes.sum(axis=1) * no.sum(axis=1)))


def _expit(values: Array) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)))
