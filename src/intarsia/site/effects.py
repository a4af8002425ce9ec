"""A site's effects and predictions in the language of its own responses: log odds ratios, months, ratios, probabilities.

The sketched model is linear and standardised. For a plain measurement a coefficient is scaled; for a response of another kind
(`wire.kinds.Back`) it is mapped, draw by draw where draws were delivered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.site.probabilities import centred
from intarsia.site.response_kinds import Meaning
from intarsia.site.units import Units
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.kinds import Back

Array = NDArray[np.float64]
_STRONG = log(5.0)  # per standard deviation of the feature: beyond, the linear model's log odds are off by more than 8 %
_ROUGH = 0.1  # of the log odds ratio: below, the skewness of a feature is not worth a word


@dataclass(frozen=True)
class Effects:
    """One response: mean, sd and interval of every feature's effect, per standard deviation of the feature (P,)."""

    mean: Array
    sd: Array
    lower: Array
    upper: Array
    back: Back
    unit: str

    @property
    def ratios(self) -> tuple[Array, Array, Array] | None:
        """exp of effect, lower and upper end, where that has a name."""
        if not self.back.language.ratio:
            return None
        return np.exp(self.mean), np.exp(self.lower), np.exp(self.upper)


@dataclass(frozen=True)
class Own:
    """The site's own response number `at` among all and `own` among its own, with its standard deviation and the way back."""

    at: int
    own: int
    s_y: float
    back: Back

    def features(self, c: Coefficients) -> Effects:
        """From the draws where they are there; else from the summaries, with the noise variance at its mean."""
        if self.back.kind != "binary" or c.draws is None or c.sigma2 is None:
            return self._scaled(c, *(values[:, self.at] for values in (c.mean, c.sd, c.lower, c.upper)))
        draws = self.back.effect(c.draws[:, :, self.at], s_y=self.s_y, sigma2=c.sigma2[:, [self.own]])
        ends = np.quantile(draws, [(1 - c.interval) / 2, (1 + c.interval) / 2], axis=0)
        return Effects(draws.mean(axis=0), draws.std(axis=0, ddof=1), ends[0], ends[1], self.back, _unit(self.back))

    def covariates(self, c: Coefficients) -> Effects:
        found = (c.covariate_mean, c.covariate_sd, c.covariate_lower, c.covariate_upper)
        return self._scaled(c, *(values[:, self.at] for values in found))

    def _scaled(self, c: Coefficients, *summary: Array) -> Effects:
        sigma2 = float(c.sigma2_mean[self.own])
        mean, sd, lower, upper = (self.back.effect(values, s_y=self.s_y, sigma2=sigma2) for values in summary)
        return Effects(mean, sd, lower, upper, self.back, _unit(self.back))

    def predicted(self, c: Coefficients, y_mean: float, total: Array) -> dict[str, Array]:
        """Mean and interval for new subjects from the standardised total (its mean, then its sd where there are draws)."""
        sigma2 = float(c.sigma2_mean[self.own])
        reach = NormalDist().inv_cdf((1 + c.interval) / 2)
        spread = total[1] if len(total) > 1 else None
        if self.back.kind == "binary":
            return self._probabilities(y_mean, sigma2, reach, total[0], spread)
        mean = y_mean + self.s_y * total[0]
        out = {"mean": mean}
        if spread is not None:
            sd = self.s_y * np.sqrt(spread**2 + sigma2)
            out |= {"sd": sd, "lower": mean - reach * sd, "upper": mean + reach * sd}
        turn = _TURN.get(self.back.transform)
        if turn is None:
            return out
        # On a curved scale the ends are turned back; a standard deviation has no counterpart there.
        return {name: np.full_like(mean, np.nan) if name == "sd" else turn(values) for name, values in out.items()}

    def _probabilities(self, share: float, sigma2: float, reach: float, line: Array, spread: Array | None) -> dict[str, Array]:
        """The probability of yes; its interval is that of the probability itself: what comes is yes or no."""
        slope = float(self.back.effect(1.0, s_y=self.s_y, sigma2=sigma2))
        constant = centred(share, slope * np.sqrt(max(1.0 - sigma2, 0.0)))
        p = _expit(constant + slope * line)
        if spread is None:
            return {"mean": p}
        low, high = (_expit(constant + slope * (line + side * reach * spread)) for side in (-1, 1))
        return {"mean": p, "sd": slope * spread * p * (1 - p), "lower": low, "upper": high}


def own_responses(c: Coefficients, u: Units, meaning: Meaning) -> dict[str, Own]:
    """The site's own responses by label, a plain measurement among them as such."""
    place = {label: at for at, label in enumerate(c.responses)}
    return {
        label: Own(place[label], k, float(u.y_scale[k]), meaning.backs.get(label, Back("continuous")))
        for k, label in enumerate(u.responses)
    }


def caution(own: Own, effect: float, skewness: float, share: float) -> str:
    """What to mind about one log odds ratio per standard deviation of the feature; empty where nothing is.

    To second order the linear model's log odds ratio is β + γ(1 − 2p)β²/2, γ the feature's skewness and p the share of yes.
    """
    if own.back.kind != "binary":
        return ""
    off = 0.5 * skewness * (1 - 2 * share) * effect
    if abs(off) > _ROUGH:
        way = "large" if off > 0 else "small"
        return f"rough: the feature is skewed, the log odds ratio is about {min(abs(off), 1.0):.0%} too {way}"
    return "rough: beyond an odds ratio of 5 per standard deviation" if abs(effect) > _STRONG else ""


def _unit(back: Back) -> str:
    language = back.language
    return language.unit or ("response units" if language.effect == "difference" else language.effect)


def _expit(values: Any) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * np.asarray(values, dtype=np.float64))))


def _count(values: Array) -> Array:
    return np.asarray(np.maximum(values / 2, 0.0) ** 2 - 0.375)


_TURN: dict[str, Callable[[Array], Array]] = {"log": np.exp, "anscombe": _count}
