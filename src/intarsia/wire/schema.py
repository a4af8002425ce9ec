"""Checks on parsed study text: each complaint knows its line, all complaints are reported together."""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

from intarsia.errors import StudyError

Path = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_NO_INTEGER, _NO_NUMBER = (
    2**64,
    1e308,
)  # from here on a number in a study file is none: it could not be written out or computed with
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def check_name(name: str) -> bool:
    """A name that is safe as a file name, a certificate name and in a message: letters, digits, `_`, `-`."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def line_numbers(text: str) -> dict[Path, int]:
    """The line on which each table and key of a TOML text first stands.

    Good enough for pointing: inside a multi-line string a line that looks like a key may be taken for one, which
    only ever moves a line number in a complaint.
    """
    at: dict[Path, int] = {}
    here: Path = ()
    counts: dict[Path, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            parts = _parts(header[2])
            if header[1] == "[[":
                index = counts.get(parts, -1) + 1
                counts[parts] = index
                here = (*parts, index)
                at.setdefault(parts, number)
            else:
                here = parts
            at.setdefault(here, number)
        elif key := _KEY.match(line):
            at.setdefault((*here, *_parts(key[1])), number)
    return at


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, with or without the ends."""

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float) -> bool:
        below = self.low is not None and (value < self.low or (self.open_low and value == self.low))
        above = self.high is not None and (value > self.high or (self.open_high and value == self.high))
        return not below and not above


POSITIVE = Range(0.0, open_low=True)
ABOVE_ONE = Range(1.0, open_low=True)
PROBABILITY = Range(0.0, 1.0, open_low=True, open_high=True)


class Checker:
    """Takes values out of parsed text and collects what is wrong with them."""

    def __init__(self, source: str, text: str):
        self.source = source
        self.lines = line_numbers(text)
        self.problems: list[tuple[int, str]] = []

    def fail(self, path: Path, text: str) -> None:
        line = 0
        while path and not line:
            line = self.lines.get(path, 0)
            path = path[:-1]
        self.problems.append((line, text))

    def finish(self) -> None:
        """Raise one StudyError with every complaint, in the order of the lines."""
        if self.problems:
            self._raise()

    def _raise(self) -> NoReturn:
        rows = [f"line {n}: {text}" if n else text for n, text in sorted(set(self.problems))]
        if len(rows) == 1:
            raise StudyError(f"{self.source}, {rows[0]}{'' if rows[0].endswith('?') else '.'}")
        raise StudyError(f"{self.source} has {len(rows)} problems:\n  " + "\n  ".join(rows))

    def known(self, table: Mapping[str, Any], at: Path, names: Sequence[str]) -> None:
        for key in table:
            if key not in names:
                near = get_close_matches(key, names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(names)}"
                self.fail((*at, key), f"unknown entry {key!r}{hint}")

    def table(self, content: Mapping[str, Any], key: str, required: bool = False) -> dict[str, Any]:
        value = content.get(key)
        if value is None:
            if required:
                self.fail((), f"the table [{key}] is missing")
            return {}
        if not isinstance(value, dict):
            self.fail((key,), f"{key} must be a table, written [{key}]")
            return {}
        return value

    def text(self, table: Mapping[str, Any], at: Path, key: str, default: str | None = None) -> str:
        value = table.get(key, default)
        if value is None:
            self.fail(at, f"{key} is missing")
            return ""
        if not isinstance(value, str) or len(value) > 4096 or "\x00" in value:
            self.fail((*at, key), f"{key} must be text in quotes")
            return ""
        return value

    def label(self, table: Mapping[str, Any], at: Path, key: str) -> str:
        value = self.text(table, at, key)
        if value and not check_name(value):
            self.fail(
                (*at, key),
                f"{key} {value[:64]!r} must be 1 to 63 letters, digits, '-' or '_'",
            )
        elif not value and key in table and isinstance(table[key], str):
            self.fail((*at, key), f"{key} is empty")
        return value

    def choice(self, table: Mapping[str, Any], at: Path, key: str, values: Sequence[str], default: str) -> str:
        value = self.text(table, at, key, default)
        if value and value not in values:
            self.fail((*at, key), f"{key} {value[:64]!r} is not one of {', '.join(values)}")
            return default
        return value

    def integer(
        self,
        table: Mapping[str, Any],
        at: Path,
        key: str,
        default: int | None = None,
        low: int | None = None,
        high: int | None = None,
    ) -> int:
        value = table.get(key, default)
        fallback = low if default is None else default
        if value is None:
            self.fail(at, f"{key} is missing")
            return fallback or 0
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _NO_INTEGER:
            self.fail((*at, key), f"{key} must be a whole number of at most 64 bits")
            return fallback or 0
        if (low is not None and value < low) or (high is not None and value > high):
            self.fail((*at, key), f"{key} = {value} is out of range{_range(low, high)}")
        return value

    def number(
        self,
        table: Mapping[str, Any],
        at: Path,
        key: str,
        default: float | None = None,
        within: Range | None = None,
    ) -> float:
        value = table.get(key, default)
        if value is None:
            self.fail(at, f"{key} is missing")
            return 1.0
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _NO_NUMBER
        if not number:  # NaN is below nothing
            self.fail((*at, key), f"{key} must be a finite number")
            return 1.0
        if within is not None and not within.holds(value):
            self.fail((*at, key), f"{key} = {value:g} is out of range{_range(within.low, within.high)}")
        return float(value)

    def boolean(self, table: Mapping[str, Any], at: Path, key: str, default: bool) -> bool:
        value = table.get(key, default)
        if not isinstance(value, bool):
            self.fail((*at, key), f"{key} must be true or false")
            return default
        return value

    def strings(self, table: Mapping[str, Any], at: Path, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = table.get(key, list(default))
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list) or not all(isinstance(v, str) and v and "\x00" not in v for v in value):
            self.fail((*at, key), f'{key} must be a list of texts, such as ["age", "gene_*"]')
            return default
        twice = sorted(v for v, count in Counter(value).items() if count > 1)
        if twice:
            self.fail((*at, key), f"{key} names {twice[0]!r} twice")
        return tuple(value)

    def numbers(self, table: Mapping[str, Any], at: Path, key: str, positive: bool = False) -> dict[str, float]:
        value = table.get(key, {})
        if not isinstance(value, dict):
            self.fail((*at, key), f"{key} must be a table of numbers")
            return {}
        within = POSITIVE if positive else None
        return {name: self.number(value, (*at, key), name, within=within) for name in value}

    def nested_numbers(self, table: Mapping[str, Any], at: Path, key: str, positive: bool = False) -> dict[str, dict[str, float]]:
        value = table.get(key, {})
        if not isinstance(value, dict):
            self.fail((*at, key), f"{key} must be a table of tables, written [privacy.{key}.SITE]")
            return {}
        return {name: self.numbers(value, (*at, key), name, positive) for name in value}

    def key(self, table: Mapping[str, Any], at: Path, key: str) -> str | None:
        """A public key: 32 bytes in base64, as `intarsia site init` prints it."""
        if key not in table:
            return None
        value = self.text(table, at, key)
        try:
            raw = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != 32 or base64.b64encode(raw).decode() != value:  # one key has one spelling: it names whom it belongs to
            self.fail((*at, key), f"{key} must be 32 bytes in base64, as `intarsia site init` prints it")
        return value


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" ({low:g} to {high:g})"
    if low is not None:
        return f" (at least {low:g})"
    return f" (at most {high:g})" if high is not None else ""
