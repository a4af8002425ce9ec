"""Text of other parties made harmless before a person's terminal or spreadsheet sees it."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

# A spreadsheet takes a cell that begins with one of these for a formula and runs it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
# In half of Europe a spreadsheet parts the lines of a table at semicolons, quoted or not: what follows one is a new cell.
_AFTER_SEMICOLON = re.compile(r"""(;[\s"']*)(?=[=+\-@＝＋－＠])""")


def plural(count: int, thing: str) -> str:
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def some(names: Sequence[str], shown: int = 8, *, rest: str = "") -> str:
    """Names in a line: the first of them, and how many more there are; `rest` says where those are listed."""
    more = f" and {len(names) - shown:,} more{rest}" if len(names) > shown else ""
    return (", ".join(names[:shown]) or "none") + more


def meant(name: str, names: Sequence[str]) -> str:
    """The end of a sentence about a name that is not there: which was probably meant."""
    like = get_close_matches(name.lower(), [other.lower() for other in names], 1)
    found = [other for other in names if like and other.lower() == like[0]]
    return f"; did you mean {found[0]!r}?" if found else "."


def probability(value: float, draws: float = 1000) -> str:
    """A probability with three places, told from so many draws: never as nought or one, which no number of draws can show."""
    least = max(0.001, 1.0 / max(2.0, draws))
    if least > 0.001:
        least = float(f"{least:.1g}")
    if value < least:
        return f"< {least:g}"
    return f"> {1 - least:g}" if value > 1 - least else f"{value:.3f}"


def two_places(value: float) -> str:
    """A share with two places; what is small is not called nought."""
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.005 else "less than 0.01"


def printable(text: str) -> str:
    """The text with control, escape and direction-changing characters written out (`\\x1b`), so that it moves no cursor.

    A line break stays: our own messages have them, and a forged line is visible as what it is.
    """
    return "".join(c if c == "\n" or not _active(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str) -> str:
    """The same for text of another party inside a line of ours: line breaks are written out too."""
    return printable(text).replace("\n", "\\n")


def _active(character: str) -> bool:
    # Cc: control; Cf: format, such as the marks that turn the direction of text; Cs, Co, Cn: no character; Zl, Zp: breaks.
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def cell(value: Any) -> Any:
    """A value as a spreadsheet may read it: text that would be a formula gets an apostrophe before it; numbers stay."""
    if not isinstance(value, str):
        return value
    text = _AFTER_SEMICOLON.sub(r"\1'", one_line(value))
    try:
        float(text)
        return text  # a number written as text, such as the id -12, is no formula
    except ValueError:
        pass
    return f"'{text}" if value.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row of a table, every cell and heading harmless."""
    return {str(cell(name)): cell(value) for name, value in row.items()}
