"""Which rows to mend: text in a column of numbers, ids that occur twice. For the site's own operator, by row and value.

No error says such things, because errors may leave the site. Whoever asks for them here prints them where the table lies.
"""

from collections.abc import Iterator
from typing import Any

from intarsia.errors import IntarsiaError
from intarsia.site.data.id_column import IdColumn
from intarsia.site.data.open import open_source
from intarsia.site.data.roles import assign
from intarsia.site.data.sources import LEVEL, Source
from intarsia.wire.plain import one_line, plural

MOST_SHOWN = 5  # cells of a column, or ids
MOSTLY = 0.5  # a column of which more are numbers was meant to be one of numbers
_ROWS = 1 << 14


def odd_cells(site: Any) -> list[str]:
    """What to mend, in words; nothing where the table cannot be opened at all (its error says why)."""
    rules, roles = site.rules, site.roles
    id = roles["id"] if isinstance(roles["id"], str) else None
    try:
        source = open_source(site.data, rules.names, rules.reading_of(id))
        chosen = assign(source.names, **{**roles, "id": id})
        out = _repeated(source, roles["id"])
        for name in chosen.all:
            rule = rules.by_column.at(name)
            if source.kinds[name] == LEVEL and not rule.categorical and rule.levels is None and not rule.merge:
                out += _texts(source, name, rules.by_column.codes(name))
    except IntarsiaError:
        return []
    return out


def _repeated(source: Source, id: Any) -> list[str]:
    if id is None:
        return []
    rows: dict[str, list[int]] = {}
    for row, text in _cells(IdColumn(source, id).arrays()):
        rows.setdefault(text or "", []).append(row)
    missing = rows.pop("", [])
    twice = {text: at for text, at in rows.items() if len(at) > 1}
    out = [f"rows without an id: {_some([str(row) for row in missing])}"] if missing else []
    if twice:
        each = [f"{one_line(text)} (rows {', '.join(map(str, at[:MOST_SHOWN]))})" for text, at in twice.items()]
        out.append(f"ids that occur more than once: {_some(each)}")
    return out


def _texts(source: Source, name: str, codes: Any) -> list[str]:
    """Cells that are no numbers, of a column most of whose cells are."""
    odd: list[tuple[int, str]] = []
    numbers = 0
    for row, text in _cells(batch.text(name) for batch in source.batches([name], _ROWS)):
        if text is None or text in codes:
            continue
        if _number(text):
            numbers += 1
        else:
            odd.append((row, text))
    if not odd or numbers <= MOSTLY * (numbers + len(odd)):
        return []
    each = [f"row {row}: {one_line(text)[:40]!r}" for row, text in odd]
    say = f'a code for missing is said by missing_codes = ["{one_line(odd[0][1])[:40]}"] under [table.columns.{name}]'
    return [f"{name} is taken for categories, because {plural(len(odd), 'cell')} hold text: {_some(each)}; {say}"]


def _cells(arrays: Iterator[Any]) -> Iterator[tuple[int, str | None]]:
    """Every cell with its row, the first row of data being 1."""
    row = 0
    for array in arrays:
        for text in array.to_pylist():
            row += 1
            yield row, text


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _some(items: list[str]) -> str:
    more = len(items) - MOST_SHOWN
    return "; ".join(items[:MOST_SHOWN]) + (f"; and {more:,} more" if more > 0 else "")
