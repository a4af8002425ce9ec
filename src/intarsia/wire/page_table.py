"""A table of results for a page of a paper: one cell for an effect and its interval, units in the heading, digits that are known.

The other kinds of file keep every column and digit; this is for eyes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Rows = Sequence[Mapping[str, Any]]
# An effect and its ends become one column, called so; a ratio's likewise.
_MERGED = {
    "effect": ("effect", "lower", "upper", "Effect"),
    "odds_ratio": ("odds_ratio", "or_lower", "or_upper", "Odds ratio"),
}
_HEADINGS = {
    "feature": "Feature", "role": "Role", "site": "Site", "response": "Response", "unit": "Unit", "pip": "PIP",
    "lfsr": "Sign rate", "selected_here": "Selected here", "selected": "Selected", "stands": "Stands", "set": "Set",
    "coverage": "Coverage", "caution": "Caution",
}  # fmt: skip
_INSIDE = frozenset(("lower", "upper", "or_lower", "or_upper", "sd", "interval"))


@dataclass(frozen=True)
class Page:
    """What a page adds: a caption and a label for references (LaTeX), and what columns are called."""

    caption: str = ""
    label: str = ""
    names: Mapping[str, str] = field(default_factory=dict)  # by column of the tables


def is_of_results(rows: Rows) -> bool:
    """Whether these are effects with intervals, and not another table."""
    return bool(rows) and {"effect", "lower", "upper", "interval"} <= set(rows[0])


def for_page(rows: Rows, page: Page) -> list[dict[str, Any]]:
    """The same rows as a reader wants them; columns that a page leaves out or that are empty are left to the writer."""
    out = []
    probability = next((row["interval"] for row in rows if row.get("interval")), None)
    interval = "" if probability is None else f" ({probability:.0%} interval)"
    units = list(dict.fromkeys(str(row["unit"]) for row in rows if row.get("unit")))
    one_unit = len(units) == 1
    for row in rows:
        made: dict[str, Any] = {}
        for name, value in row.items():
            if name in _MERGED:
                centre, low, high, heading = _MERGED[name]
                in_unit = f", {units[0]}" if one_unit and name == "effect" else ""
                made[f"{heading}{in_unit}{interval}"] = effect_in_words(row.get(centre), row.get(low), row.get(high))
            elif name not in _INSIDE and not (name == "unit" and one_unit):
                made[_HEADINGS.get(name, name)] = called(value, page) if name in ("feature", "response") else value
        out.append(made)
    return out


def called(value: Any, page: Page) -> Any:
    """A column by its label; an indicator of a category by its column's, and every member of a set by its own."""
    if not isinstance(value, str):
        return value
    if value in page.names:
        return page.names[value]
    if " / " in value:
        return " / ".join(str(called(one, page)) for one in value.split(" / "))
    column, is_level, level = value.partition("=")
    return f"{page.names[column]}: {level}" if is_level and column in page.names else value


def effect_in_words(centre: Any, low: Any, high: Any) -> str:
    """With as many decimals as the interval's width is worth two figures of; an end of exactly zero is none.

    The sparse prior has a feature out in some draws: if in more than an end allows, that end is zero and bounds nothing.
    """
    if centre is None or centre != centre:
        return ""
    if low is None or high is None or low != low or high != high:
        return _number(centre, 3)
    width = abs(high - low)
    places = min(max(1 - math.floor(math.log10(width)), 0), 8) if width > 0 else 3
    if low == high == 0:
        return f"{_number(centre, places)} (out in nearly every draw)"
    ends = f"{_number(low, places)} to {_number(high, places)}"
    ends = f"up to {_number(high, places)}" if low == 0 else f"down to {_number(low, places)}" if high == 0 else ends
    return f"{_number(centre, places)} ({ends})"


def _number(value: float, places: int) -> str:
    out = f"{value:,.{places}f}"
    return out.replace("-", "−" if float(out.replace(",", "")) else "")
