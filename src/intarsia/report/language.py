"""Effects in the language of their response: odds ratios, months, ratios, units; standard deviations where no scale is shared.

Everything is per standard deviation of the feature: the server does not know the features' scales.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.report.gather import Material
from intarsia.report.html import fixed, number
from intarsia.wire.kinds import ODDS_RATIO, Back, planned
from intarsia.wire.log_odds import effect_caution

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Language:
    """How effects on one response are told. Without a scale (None) they stay in its standard deviations."""

    back: Back
    scale: float | None
    noise: float

    def effect(self, C: Any) -> Array:
        """Effects of standardised coefficients: log odds ratios, months, units; unchanged where no scale is known."""
        values = np.asarray(C, dtype=np.float64)
        return values if self.scale is None else self.back.effect(values, s_y=self.scale, sigma2=self.noise)

    @property
    def is_ratio(self) -> bool:
        return self.scale is not None and bool(self.back.language.ratio)

    @property
    def name(self) -> str:
        """What a number in this language is: "odds ratio", "months", "sd"; empty for a measurement without a unit of its own."""
        if self.scale is None:
            return "sd"
        return self.back.language.ratio or self.back.language.unit

    @property
    def axis(self) -> str:
        """The same for an axis, on which ratios have their logarithm."""
        if self.scale is None:
            return "effect (sd per sd)"
        return f"{self.back.effect_unit} per sd"

    def told(self, C: float) -> str:
        """The number alone."""
        if self.scale is None:
            return _no_false_zero(C, 3)
        value = float(self.effect(C))
        if self.is_ratio:
            ratio = float(np.exp(value))
            return fixed(ratio, 2) if ratio < 100 else number(ratio, 3)
        return number(value, 3)

    def ends(self, C: float, lower: float, upper: float) -> list[str]:
        """An effect and the ends of its interval, all three with the decimals that the interval's width is worth."""
        if self.scale is None or self.is_ratio:
            return [self.told(value) for value in (C, lower, upper)]
        values = [float(self.effect(value)) for value in (C, lower, upper)]
        width = abs(values[2] - values[1])
        places = 1 - math.floor(math.log10(width)) if width > 0 else 3
        return [number(value, 3) if places > 6 else _no_false_zero(value, max(places, 0)) for value in values]

    def interval(self, C: float, lower: float, upper: float, between: str = " to ") -> str:
        """The interval alone. An end of exactly zero says that the feature is out in so many draws: it is no bound."""
        _effect, low, high = self.ends(C, lower, upper)
        if lower == upper == 0:
            return "out in nearly every draw"
        return f"up to {high}" if lower == 0 else f"down to {low}" if upper == 0 else f"{low}{between}{high}"

    def words(self, C: float, lower: float, upper: float) -> str:
        """Effect and interval with what they are."""
        of = f" {self.name}" if self.name else ""
        effect = self.ends(C, lower, upper)[0]
        return f"{effect}{of} [{self.interval(C, lower, upper, ', ')}]"

    def caution(self, C: float) -> str:
        """Where the reading of one effect is rough."""
        if self.scale is None or self.back.kind != "binary":
            return ""
        return effect_caution(float(self.effect(C)))


def languages(m: Material) -> list[Language]:
    """The language of every response."""
    kinds: Mapping[str, Mapping[str, Any]] = {} if m.study is None else m.study.kinds
    noise = m.posterior.draws.sigma2.mean(axis=(0, 1))
    out = []
    for q, response in enumerate(m.responses):
        back = planned(kinds[response]) if response in kinds else Back("continuous")
        out.append(Language(back, m.scales.get(response), float(noise[q])))
    return out


def several(m: Material) -> bool:
    """Whether responses are told in different languages, so that every number must say its own."""
    return m.study is not None and any(said["kind"] != "continuous" or "unit" in said for said in m.study.kinds.values())


def in_units(m: Material, q: int, ends: Sequence[float]) -> tuple[str, str]:
    """A coefficient of response q and its interval (mean, lower, upper) as a person reads them: in the response's language where
    its scale is known.
    """
    language = m.languages[q]
    return f"{language.ends(*ends)[0]} {named(m, q)}".rstrip(), language.interval(*ends)


def named(m: Material, q: int) -> str:
    """What a number of response q is, where a page has numbers of several sorts; else empty."""
    return m.languages[q].name if several(m) else ""


def of_response(m: Material, shrunk: bool = True) -> str:
    """In which language effects are told; those of features are shrunk, those of covariates are not."""
    if not m.scales:
        return "standard deviations of the response"
    if not several(m):
        return "units of the response (their owners share the scales)"
    odds = shrunk and any(language.name == ODDS_RATIO for language in m.languages)
    return "the response's own language, named beside each" + (
        " (odds ratios are those of the sparse posterior, drawn towards 1)" if odds else ""
    )


def _no_false_zero(value: float, places: int) -> str:
    """So many places; what only rounds to zero keeps one figure."""
    out = fixed(value, places)
    return "0" if value == 0 else number(float(f"{value:.1g}"), 1) if not float(out.replace("−", "-")) else out
