"""What a result looks like in a notebook: a little HTML without scripts or style sheets, every text escaped."""

from collections.abc import Iterable, Sequence
from html import escape

from intarsia.wire.plain import one_line

_MOST_ROWS = 60
_CELL = "style='text-align:left;vertical-align:top;white-space:normal'"


def heading(said: str) -> str:
    return f"<p><strong>{_safe(said)}</strong></p>"


def text(said: str) -> str:
    return f"<p>{_safe(said)}</p>" if said else ""


def verdict(said: str, good: bool) -> str:
    """In words first: the mark is no colour."""
    return f"<p><strong>{'✓' if good else '✗'} {_safe(said)}</strong></p>"


def listed(items: Iterable[str], title: str = "") -> str:
    points = "".join(f"<li>{_safe(item)}</li>" for item in items)
    if not points:
        return ""
    return (f"<p>{_safe(title)}:</p>" if title else "") + f"<ul>{points}</ul>"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with its title; of many rows the first."""
    more = len(rows) - _MOST_ROWS
    last = f"<p>… and {more:,} more.</p>" if more > 0 else ""
    names = "".join(f"<th scope='col' {_CELL}>{_safe(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td {_CELL}>{_safe(str(cell))}</td>" for cell in row) + "</tr>" for row in rows[:_MOST_ROWS]
    )
    return f"<table><caption>{_safe(title)}</caption><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>{last}"


def page(parts: Iterable[str]) -> str:
    return "<div>" + "".join(parts) + "</div>"


def _safe(said: str) -> str:
    return escape(one_line(said))
