"""Kinds of responses: what may be said of them in study.toml and site.toml, and the way back from a linear coefficient to the
response's own language: odds ratios, months, ratios.

The sketched model is linear: C is the change of the prepared response, in its standard deviations, per standard deviation of a
feature. What a response was prepared from (site/data/kinds) decides how C is to be read. Nothing here sees a subject.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

import numpy as np

from intarsia.errors import InputError
from intarsia.wire.log_odds import log_odds_ratio

KINDS = ("continuous", "binary", "time", "count", "skewed", "ordinal")
TRANSFORMS = ("log", "anscombe", "rank-normal")
RMST, MARTINGALE = "rmst", "martingale"
OPTIONS = {
    "continuous": ("unit",), "binary": ("yes",), "time": ("event", "method", "horizon", "unit"), "count": ("transform", "cap"),
    "skewed": ("transform",), "ordinal": ("order", "scores"),
}  # fmt: skip
PROBABILITY, ODDS_RATIO = "probability", "odds ratio"
_MOST_TEXT = 64  # characters


def check_kind(given: Any) -> dict[str, Any]:
    """What is said of one response, as {"kind": …} and its options: a bare kind, or a table. InputError where it cannot be."""
    said = {"kind": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
    kind = said.get("kind")
    if kind not in KINDS:
        raise InputError(f'a response has a kind, one of {", ".join(KINDS)}, such as "binary" or {{ kind = "binary" }}')
    for name, value in said.items():
        if name != "kind" and name not in OPTIONS[kind]:
            raise InputError(f"a response of kind {kind!r} has no option {name!r}; it has: {', '.join(OPTIONS[kind])}")
        if not _fits(name, value):
            raise InputError(f"{name} of a response of kind {kind!r} must be {_EXPECTED[name]}")
    if "horizon" in said:
        said["horizon"] = float(said["horizon"])
    for name in ("order", "scores"):
        if name in said:
            said[name] = list(said[name])
    return said


_EXPECTED = {
    "kind": "text", "unit": "a short text", "event": "the name of a column", "yes": "the level that counts as yes",
    "method": f"one of {RMST}, {MARTINGALE}", "horizon": "a number above 0", "transform": f"one of {', '.join(TRANSFORMS)}",
    "cap": "a whole number above 0", "order": "the grades from the lowest to the highest", "scores": "a number for each grade",
}  # fmt: skip


def _fits(name: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    text = isinstance(value, str) and 0 < len(value) <= _MOST_TEXT and value.isprintable()
    if name in ("order", "scores"):
        return isinstance(value, list | tuple) and all(_fits("yes" if name == "order" else "score", one) for one in value)
    if name == "horizon":
        return number and value > 0
    if name == "cap":
        return number and value > 0 and value == int(value)
    if name == "score":
        return number
    choices = {"kind": KINDS, "method": (RMST, MARTINGALE), "transform": TRANSFORMS}.get(name)
    return value in choices if choices else text or (name == "yes" and number)


def planned(said: Mapping[str, Any]) -> "Back":
    """The way back as the study file alone tells it: words and units, without what only the owner knows (`centre`; it is
    in the scale that the owner shares)."""
    kind = said["kind"]
    how = {"time": said.get("method", RMST), "count": "anscombe", "skewed": "log"}.get(kind, "")
    return Back(kind, said.get("transform", how), said.get("unit", ""))


def in_words(said: Mapping[str, Any]) -> str:
    """One response's kind and how its effects are told, in a few words."""
    back = planned(said)
    language = back.language
    unit = "" if language.unit in language.effect else f" in {language.unit}"
    effect = language.ratio or f"{language.effect}{unit}"
    more = f" up to {said['horizon']:g} {back.unit}".rstrip() if "horizon" in said else ""
    if "cap" in said:
        more = f" (more than {said['cap']:g} taken as {said['cap']:g})"
    if said.get("order"):
        more = f" ({' < '.join(str(grade) for grade in said['order'])})"
    return f"{_WORDS[back.kind]}{more}; its effects are told as {effect}"


_WORDS = {
    "continuous": "a measurement", "binary": "yes or no", "time": "a time to an event", "count": "a count",
    "skewed": "a skewed positive measurement", "ordinal": "grades in order",
}  # fmt: skip


@dataclass(frozen=True)
class Language:
    """The words in which a response's effects are told."""

    effect: str  # what the number is: "difference", "log odds ratio", …
    unit: str  # its unit, "" for a pure number
    ratio: str = ""  # what exp(effect) is called, where it means something
    caution: str = ""  # where it is an approximation, and when that degrades


@dataclass(frozen=True)
class Back:
    """From C (standardised) to effects per standard deviation of the feature. Small, and free of any subject's value.

    `centre` is the mean count (Anscombe) or the share of subjects with an event (martingale residuals); 1 elsewhere.
    """

    kind: str
    transform: str = ""
    unit: str = ""
    centre: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"No kind of response is called {self.kind!r}. The kinds are {', '.join(KINDS)}.")

    @property
    def language(self) -> Language:
        if self.kind == "binary":
            return Language(
                "log odds ratio", "", ODDS_RATIO,
                "from a linear model, so right for normally distributed features. For a skewed one the log odds are somewhat too "
                "large (skewness 1, odds ratio 2, outcome in 5 % of people: by 5 % at the outcome's owner, by 34 % elsewhere): "
                "bring a very skewed feature with a strong effect as normal scores of its ranks",
            )  # fmt: skip
        if self.kind == "time" and self.transform == RMST:
            return Language(
                "difference in mean survival time", self.unit, "",
                "mean time without the event up to the horizon; censoring is taken to be independent of the features",
            )  # fmt: skip
        if self.kind == "time":
            return Language(
                "log hazard ratio", "", "hazard ratio",
                "one step from no effect (martingale residuals): meant for selection; large effects are drawn towards 1",
            )  # fmt: skip
        if self.transform == "log":
            return Language("log ratio", "", "ratio of geometric means")
        if self.transform == "anscombe":
            return Language("log ratio", "", "ratio at the mean count", "a first-order approximation around the mean count")
        if self.transform == "rank-normal":
            return Language("difference of normal scores", "sd", "", "on the scale of the ranks' normal scores")
        if self.kind == "ordinal":
            caution = "the grades count as numbers: the scores given, else their own numbers, else 1, 2, 3, …"
            return Language("difference of scores", "score", "", caution)
        return Language("difference", self.unit)

    @property
    def effect_unit(self) -> str:
        """The unit of an effect in the table of results, before "per …"."""
        language = self.language
        return language.unit or ("units of the response" if language.effect == "difference" else language.effect)

    def shared_scale(self, s_y: float) -> float:
        """What the owner publishes where the study shares scales: the standard deviation or, where reading an effect needs
        `centre` too, the two in one number, by which others read it with a `centre` of 1."""
        return float(self.effect(1.0, s_y=s_y)) if self.transform in ("anscombe", MARTINGALE) else s_y

    @property
    def predicts(self) -> str:
        """What a predicted value of this response is; empty for a plain measurement."""
        if self.kind == "binary":
            return PROBABILITY
        if self.kind == "time":
            return f"mean time to the event {self.unit}".strip() if self.transform == RMST else "martingale residual"
        if self.transform in ("log", "anscombe"):
            return "median" if self.transform == "log" else "count"
        return {"ordinal": "score"}.get(self.kind, "normal score" if self.transform == "rank-normal" else self.unit)

    def effect(self, C: Any, *, s_y: float, sigma2: Any = 1.0, skewness: Any = 0.0, share: float | None = None) -> np.ndarray:
        """Effects per standard deviation of the feature, of draws or of point estimates.

        `s_y` is the standard deviation of the prepared response, `sigma2` the residual variance on the standardised scale (of the
        same draws). For a yes/no response (`log_odds`) `skewness` is that of the features and `share` the share of yes.
        """
        if not 0 < s_y < np.inf:
            raise InputError("The standard deviation of a response must be positive and finite.")
        C = np.asarray(C, dtype=np.float64)
        if self.kind == "binary":
            return log_odds_ratio(C, s_y, sigma2, skewness, share)
        if self.transform in ("anscombe", MARTINGALE):
            # 2√(μ + 3/8) changes by dμ/√μ; a martingale residual by log HR × (share of subjects with an event).
            return C * s_y / (np.sqrt(self.centre) if self.transform == "anscombe" else self.centre)
        return C * s_y

    def ratio(self, effect: Any) -> np.ndarray | None:
        """exp(effect) where it has a name: odds, hazard or plain ratio; else None."""
        return np.exp(np.asarray(effect, dtype=np.float64)) if self.language.ratio else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Back":
        if set(found) != {f.name for f in fields(cls)}:
            raise InputError("The file of this site's kinds of responses is damaged. Sketch again to make it.")
        return cls(**found)
