"""How commands print: JSON when asked, a table on a terminal, plain text elsewhere."""

import argparse
import json
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from intarsia.wire.plain import one_line, printable

EVERY_SECONDS = 5.0  # seconds between lines about a table that is read


class Passes:
    """Tells of a table that is read again and again: a line every few seconds, and none of what is over before the first."""

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self._said, self._passes, self._done = time.monotonic(), 1, 0

    def __call__(self, done: int, n: int) -> None:
        self._passes += done < self._done
        self._done = done
        if (now := time.monotonic()) - self._said >= EVERY_SECONDS:
            self._said = now
            print(f"  reading the table, pass {self._passes}: {done:,} of {n:,} rows", file=self.stream, flush=True)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def emit(args: argparse.Namespace, data: Any, lines: Sequence[str] = ()) -> None:
    """Print `data` as JSON with --json, else the lines."""
    if getattr(args, "json", False):
        print(json.dumps(data, indent=1, default=str))
    else:
        for line in lines:
            print(fitted(printable(line), sys.stdout))


def fitted(text: str, stream: TextIO) -> str:
    """On a terminal, lines folded between words at its width, the folded parts indented; elsewhere the text as it is."""
    if not stream.isatty():
        return text
    width = max(40, shutil.get_terminal_size().columns)
    return "\n".join(fold(line, width) for line in text.split("\n"))


def fold(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return "\n".join(textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """A table on the standard output."""
    cells = [[one_line(_text(row.get(column, ""))) for column in columns] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        pretty = Table(title=title, title_justify="left")
        for column in columns:
            pretty.add_column(column)
        for row in cells:
            pretty.add_row(*map(escape, row))
        Console().print(pretty)
        return
    widths = [max([len(column), *(len(row[i]) for row in cells)]) for i, column in enumerate(columns)]
    print(title)
    for row in [list(columns), *cells]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    return str(value)


def print_json(value: Any) -> int:
    """Strict JSON: numbers that it cannot write become words."""
    print(json.dumps(_plain(value), indent=1, allow_nan=False))
    return 0


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "infinite" if value == float("inf") else str(value)
    return value.item() if hasattr(value, "item") else value


def grid(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table with ruled lines, on a terminal and elsewhere; long cells are folded."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as Grid

    ruled = Grid(title=title, title_justify="left")
    for i, name in enumerate(head):
        ruled.add_column(name, justify="left" if i == 0 else "right" if len(head) > 2 else "left", overflow="fold")
    for row in rows:
        ruled.add_row(*(escape(one_line(str(cell))) for cell in row))
    wide = not sys.stdout.isatty()
    Console(width=140 if wide else None, no_color=wide, highlight=False).print(ruled)
