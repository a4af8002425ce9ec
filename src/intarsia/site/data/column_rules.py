"""What a site says about single columns: categorical or not, reference level, codes that mean "missing", what to do then; levels
that are merged, categories in order and numbers beyond which nothing is told apart.

    rules = Rules.of({"centre": {"categorical": True, "reference": "3"}, "bmi": {"missing_codes": [999], "missing": "mean"}})

A rule is given by a column's name or by a pattern (`lab_*`); a name comes before a pattern.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from intarsia.errors import InputError
from intarsia.site.data.roles import meant, those_there

_WHOLE = re.compile(r"^(-?\d+)\.0*$")
MISSING = ("error", "mean", "regression")
KNOWN = ("categorical", "reference", "levels", "merge", "order", "scores", "at_least", "at_most", "missing_codes", "missing")


@dataclass(frozen=True)
class ColumnRule:
    """One column's own rules; None means that the table's rule holds."""

    categorical: bool = False
    reference: str | None = None
    levels: tuple[str, ...] | None = None
    missing_codes: tuple[str, ...] = ()
    missing: str | None = None
    at_least: float | None = None  # numbers below are taken as this one
    at_most: float | None = None  # numbers above are taken as this one
    merge: tuple[tuple[str, str], ...] = ()  # level as it is written, level it is taken as
    order: tuple[str, ...] = ()  # categories from the lowest to the highest, read as numbers
    scores: tuple[float, ...] = ()  # the number that each of them is read as

    @classmethod
    def of(cls, name: str, given: "Mapping[str, Any] | ColumnRule") -> "ColumnRule":
        if isinstance(given, ColumnRule):
            return given
        unknown = sorted(set(given) - set(KNOWN))
        if unknown:
            raise InputError(
                f"Column {name!r}: nothing is known by the name {unknown[0]!r}. A column has {', '.join(KNOWN[:-1])} and "
                f"{KNOWN[-1]}."
            )
        if not isinstance(given.get("categorical", False), bool):
            raise InputError(f"Column {name!r}: categorical is true or false.")
        missing = given.get("missing")
        if missing is not None and missing not in MISSING:
            raise InputError(f"Column {name!r}: missing is one of {', '.join(MISSING)}.")
        levels = None if given.get("levels") is None else codes_of(given["levels"], name, "levels")
        reference = given.get("reference")
        named = None if reference is None else codes_of([reference], name, "reference")[0]
        merge = _merged(given.get("merge", {}), name)
        low, high = (_limit(given, name, key) for key in ("at_least", "at_most"))
        categorical = bool(given.get("categorical", False)) or named is not None or levels is not None or bool(merge)
        if categorical and (low is not None or high is not None):
            raise InputError(f"Column {name!r}: at_least and at_most are for numbers, and this column is categorical. Use merge.")
        if low is not None and high is not None and low >= high:
            raise InputError(f"Column {name!r}: at_least must be below at_most.")
        codes = codes_of(given.get("missing_codes", ()), name, "missing_codes")
        order, scores = _scale(given, name)
        if order and (categorical or low is not None or high is not None):
            raise InputError(
                f"Column {name!r}: categories in order are read as numbers, without indicators or limits. Leave out categorical, "
                "reference, levels, merge, at_least and at_most; two categories become one by equal scores."
            )
        return cls(categorical, named, levels, codes, missing, low, high, merge, order, scores)


def _scale(given: Mapping[str, Any], name: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Categories in order and their scores: 1, 2, 3, … where none are given."""
    order = codes_of(given.get("order", ()), name, "order")
    scores = given.get("scores", range(1, len(order) + 1))
    if len(order) == 1 or len(set(order)) < len(order):
        raise InputError(f"Column {name!r}: order names two or more categories, each once, from the lowest to the highest.")
    if not isinstance(scores, list | tuple | range) or not all(_finite(score) for score in scores):
        raise InputError(f"Column {name!r}: scores are numbers, one for each category in order.")
    if len(scores) != len(order) or any(b < a for a, b in pairwise(scores)) or (order and scores[0] == scores[-1]):
        raise InputError(f"Column {name!r}: {len(order)} categories in order need as many scores, none below the one before.")
    return order, tuple(float(score) for score in scores)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _limit(given: Mapping[str, Any], name: str, key: str) -> float | None:
    value = given.get(key)
    if value is None:
        return None
    if not _finite(value):
        raise InputError(f"Column {name!r}: {key} is a number.")
    return float(value)


def _merged(given: Any, name: str) -> tuple[tuple[str, str], ...]:
    """Which level is taken as which: `{"other": ["bird", "ferret"]}` turned round."""
    if not isinstance(given, Mapping):
        raise InputError(
            f'Column {name!r}: merge names the levels that become one, such as merge = {{ other = ["bird", "ferret"] }}.'
        )
    pairs = [(text, str(new)) for new, old in given.items() for text in codes_of(old, name, "merge")]
    if len({text for text, _ in pairs}) < len(pairs):
        raise InputError(f"Column {name!r}: merge has a level twice.")
    return tuple(pairs)


def codes_of(given: Any, name: str, what: str) -> tuple[str, ...]:
    """Codes as text: 1, 1.0 and "1" are the same code."""
    values = [given] if isinstance(given, str | int | float) else list(given)
    if not all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in values):
        raise InputError(f"{what} of column {name!r} must be numbers or texts, in a list.")
    texts = (str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values)
    return tuple(_WHOLE.sub(r"\1", text) for text in texts)


_NOTHING = ColumnRule()


@dataclass(frozen=True)
class Rules:
    """The rules of a table: those of all its columns, and those of some."""

    columns: dict[str, ColumnRule] = field(default_factory=dict)
    missing_codes: tuple[str, ...] = ()

    @classmethod
    def of(cls, columns: Mapping[str, Any] | None = None, missing_codes: Sequence[Any] = ()) -> "Rules":
        given = {name: ColumnRule.of(name, rule) for name, rule in (columns or {}).items()}
        return cls(given, codes_of(missing_codes, "*", "missing_codes"))

    def at(self, name: str) -> ColumnRule:
        if not self.columns:
            return _NOTHING  # a table of a million columns asks a million times
        if name in self.columns:
            return self.columns[name]
        return next((rule for pattern, rule in self.columns.items() if fnmatchcase(name, pattern)), _NOTHING)

    def codes(self, name: str) -> tuple[str, ...]:
        """The codes that mean "missing" in a column: its own, or those of the whole table."""
        return self.at(name).missing_codes or self.missing_codes

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse a rule for a column that is not there: a slip of the pen must not switch a rule off."""
        for pattern in self.columns:
            if pattern not in names and not any(fnmatchcase(name, pattern) for name in names):
                raise InputError(
                    f"There are rules for a column {pattern!r} that is not in the table{meant(pattern, names)} It has "
                    f"{those_there(names)}."
                )
