"""A site's effects and predictions in the language of its own responses: log odds ratios, months, ratios, probabilities.

The sketched model is linear and standardised. For a plain measurement a coefficient is scaled; for a response of another kind
(`wire.kinds.Back`) it is mapped, draw by draw where draws were delivered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan, nan, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia.site.units import Units
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.kinds import Back
from intarsia.wire.log_odds import effect_caution, normal_draws, response_caution
from intarsia.wire.result_table import UNSHRUNK, Told, flat_interval

if TYPE_CHECKING:  # its libraries of tables are not needed to read an effect
    from intarsia.site.response_kinds import Meaning

Array = NDArray[np.float64]
_ROUGH = 0.1  # of the log odds ratio: below, the skewness of a feature is not worth a word
_VERY_ROUGH = 0.3  # beyond, what was made up for it is itself rough
_LONG_TAIL = 1.3  # skewness times the log odds ratio beyond which no second-order correction helps
_SUMMARY = ("mean", "sd", "lower", "upper")
_ENOUGH = 100  # delivered draws; the ends of an interval are better told by the summaries, of all draws, than by fewer


@dataclass(frozen=True)
class Response:
    """What its owner knows of a response: mean, standard deviation, the way back, its noise variance, how much wider the
    predictions are than the draws say (`spread`), what share of variance they will explain in new subjects with the ends of its
    interval (`expected`; None where no row was left out), and how many `subjects` have it. Who reads a response whose scale is
    shared does not know its mean: NaN."""

    y_mean: float
    s_y: float
    back: Back
    sigma2_mean: float
    sigma2: Array | None = field(default=None, repr=False)
    spread: float = 1.0
    expected: tuple[float, float, float] | None = None
    subjects: int = 0

    def features(self, c: Coefficients, q: int, skewness: Array) -> dict[str, Any]:
        """Effects of the site's features on response number q, from the draws where enough are there; else from the summaries,
        with the noise variance at its mean."""
        if self.back.kind != "binary" or c.draws is None or len(c.draws) < _ENOUGH or self.sigma2 is None:
            return self._scaled({name: getattr(c, name)[:, q] for name in _SUMMARY}, skewness)
        draws = self._effect(c.draws[:, :, q].astype(np.float64), self.sigma2[:, None], skewness)
        low, high = np.quantile(draws, [(1 - c.interval) / 2, (1 + c.interval) / 2], axis=0)
        return dict(zip(_SUMMARY, (draws.mean(axis=0), draws.std(axis=0, ddof=1), low, high), strict=True))

    def unshrunk(self, c: Coefficients, q: int, skewness: Array) -> dict[str, Array]:
        """Effects under a flat prior of their own with their intervals, by column of the table."""
        if c.unshrunk is None or c.unshrunk_sd is None:
            return {}
        mean, sd = c.unshrunk[:, q], c.unshrunk_sd[:, q]
        if self.back.kind != "binary" or self.sigma2 is None:
            ends = flat_interval((mean, sd), c.interval)
            return {name: self._effect(values, self.sigma2_mean, skewness) for name, values in ends.items()}
        draws = self._effect(normal_draws(mean, sd, len(self.sigma2)), self.sigma2[:, None], skewness)
        low, high = np.quantile(draws, [(1 - c.interval) / 2, (1 + c.interval) / 2], axis=0)
        return dict(zip(UNSHRUNK, (draws.mean(axis=0), low, high), strict=True))

    def covariates(self, c: Coefficients, q: int) -> dict[str, Any]:
        return self._scaled({name: getattr(c, f"covariate_{name}")[:, q] for name in _SUMMARY})

    def _scaled(self, summary: Mapping[str, Array], skewness: Array | float = 0.0) -> dict[str, Array]:
        out = {name: self._effect(values, self.sigma2_mean, skewness) for name, values in summary.items() if name != "sd"}
        return out | {"sd": self._effect(summary["sd"], self.sigma2_mean, 0.0)}

    def _effect(self, C: Array, sigma2: Any, skewness: Array | float) -> Array:
        share = None if isnan(self.y_mean) else self.y_mean
        return self.back.effect(C, s_y=self.s_y, sigma2=sigma2, skewness=skewness, share=share)

    def caution(self, effect: float, skewness: float) -> str | None:
        """What to mind about one log odds ratio per standard deviation of the feature; None where nothing is.

        To second order the linear model's log odds ratio is β + γ(1 − 2p)β²/2, γ the feature's skewness and p the share of yes.
        The owner makes up for it. Who does not know p cannot: s_y² = p(1 − p) says how far p is from a half, not to which side.
        """
        if self.back.kind != "binary":
            return None
        off = 0.5 * skewness * sqrt(max(1 - 4 * self.s_y**2, 0.0)) * effect
        if abs(off) > _ROUGH and isnan(self.y_mean):
            return f"rough: the feature is skewed, the log odds ratio is about {min(abs(off), 1.0):.0%} too large or too small"
        if abs(off) > _VERY_ROUGH or abs(skewness * effect) > _LONG_TAIL:
            return "rough: the feature is skewed and its effect strong; bring it as normal scores of its ranks"
        return effect_caution(effect) or self.limit or None

    @cached_property
    def limit(self) -> str:
        """Where the approximation ends for all odds ratios on this response."""
        if self.back.kind != "binary":
            return ""
        return response_caution(self.s_y, self.sigma2_mean if self.sigma2 is None else self.sigma2)

    def predicted(self, c: Coefficients, total: Array) -> dict[str, Array]:
        """Mean and interval for new subjects from the standardised total (its mean, then its sd where there are draws)."""
        reach = NormalDist().inv_cdf((1 + c.interval) / 2)
        spread = total[1] if len(total) > 1 else None
        if self.back.kind == "binary":
            return self.probabilities(reach, total[0], None if spread is None else np.sqrt(self.spread) * spread)
        mean = self.y_mean + self.s_y * total[0]
        out = {"mean": mean}
        if spread is not None:
            sd = self.s_y * np.sqrt(self.spread * (spread**2 + self.sigma2_mean))
            out |= {"sd": sd, "lower": mean - reach * sd, "upper": mean + reach * sd}
        turn = _TURN.get(self.back.transform)
        if turn is None:
            return out
        # On a curved scale the ends are turned back; a standard deviation has no counterpart there.
        return {name: np.full_like(mean, np.nan) if name == "sd" else turn(values) for name, values in out.items()}

    def probabilities(self, reach: float, line: Array, spread: Array | None) -> dict[str, Array]:
        """The probability of yes; its interval is that of the probability itself: what comes is yes or no.

        What is predicted is less than what could be: log odds are as far apart as the share of variance that predictions explain
        in rows left out allows, not the whole model's.
        """
        sigma2 = self.sigma2_mean if self.expected is None else 1.0 - self.expected[0]
        slope = float(self.back.effect(1.0, s_y=self.s_y, sigma2=sigma2))
        from intarsia.site.probabilities import centred  # its libraries are not for every process that starts

        constant = centred(self.y_mean, slope * np.sqrt(max(1.0 - sigma2, 0.0)))
        p = _expit(constant + slope * line)
        if spread is None:
            return {"mean": p}
        low, high = (_expit(constant + slope * (line + side * reach * spread)) for side in (-1, 1))
        return {"mean": p, "sd": slope * spread * p * (1 - p), "lower": low, "upper": high}


def own_responses(c: Coefficients, u: Units, meaning: "Meaning") -> dict[str, Response]:
    """The site's own responses by label, a plain measurement among them as such."""
    out = {}
    for k, label in enumerate(u.responses):
        back = meaning.backs.get(label, Back("continuous"))
        sigma2 = None if c.sigma2 is None else c.sigma2[:, k]
        expected = (c.r2_expected[k], c.r2_expected_lower[k], c.r2_expected_upper[k]) if c.r2_expected else None
        out[label] = Response(
            float(u.y_mean[k]), float(u.y_scale[k]), back, float(c.sigma2_mean[k]), sigma2,
            1.0 if c.spread is None else float(c.spread[k]), expected, meaning.subjects.get(label, 0),
        )  # fmt: skip
    return out


def shared_responses(c: Coefficients, meaning: "Meaning") -> dict[str, Response]:
    """Other sites' responses that study.toml calls no plain measurements, where their scale is shared and says enough."""
    out = {}
    for label, scale in zip(c.responses, c.response_scales, strict=False):
        back, noise = meaning.planned.get(label), c.noise_variances.get(label)
        if back is None or (back.kind == "binary" and noise is None):
            continue
        out[label] = Response(nan, scale, back, 1.0 if noise is None else noise)
    return out


def told(
    c: Coefficients, known: Mapping[str, Response], skewness: Mapping[str, float]
) -> tuple[dict[str, Told], dict[str, Told]]:
    """For the table of results: effects of the site's features and of its covariates on responses that are no measurements."""
    features, covariates = {}, {}
    for q, label in enumerate(c.responses):
        if label not in known or known[label].back == Back("continuous"):
            continue
        response = known[label]
        words: dict[str, Any] = {"unit": response.back.effect_unit, "ratio": response.back.language.ratio}
        shape = np.array([skewness.get(feature, 0.0) for feature in c.features])
        found, flat = response.features(c, q, shape), response.unshrunk(c, q, shape)
        cautions = [response.caution(float(e), skewness.get(f, 0.0)) for e, f in zip(found["mean"], c.features, strict=True)]
        features[label] = Told(**found, **words, cautions=cautions, unshrunk=flat)
        covariates[label] = Told(**response.covariates(c, q), **words)
    return features, covariates


def _expit(values: Any) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * np.asarray(values, dtype=np.float64))))


def _count(values: Array) -> Array:
    return np.asarray(np.maximum(values / 2, 0.0) ** 2 - 0.375)


_TURN: dict[str, Callable[[Array], Array]] = {"log": np.exp, "anscombe": _count}
