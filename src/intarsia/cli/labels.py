"""`--labels FILE`: what columns are called in a table for a page, with their units."""

import argparse
import csv
from pathlib import Path

from intarsia.errors import InputError
from intarsia.wire.plain import some

HELP = "a CSV of name,label and, if you like, unit: what columns are called in a table for a page (.tex, .md)"


def add_labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--labels", type=Path, metavar="FILE", help=HELP)


def read_labels(path: Path | None) -> dict[str, str]:
    """By column its label, with its unit in brackets."""
    if path is None:
        return {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows, head = list(reader), list(reader.fieldnames or ())
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path} is not a CSV file in UTF-8.") from None
    if not {"name", "label"} <= set(head):
        raise InputError(f"{path} has the columns {some(head)}; it needs name and label, and may have unit.")
    out: dict[str, str] = {}
    for number, row in enumerate(rows, 2):
        name, label, unit = ((row.get(key) or "").strip() for key in ("name", "label", "unit"))
        if not name or not label:
            raise InputError(f"{path}, line {number}: a name and a label are needed.")
        if name in out:
            raise InputError(f"{path}, line {number}: {name!r} has a label already.")
        out[name] = f"{label} ({unit})" if unit else label
    return out
