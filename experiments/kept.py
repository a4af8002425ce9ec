"""Kept results: one row a line, so that git shows what a new measurement changed."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def read(name: str) -> Any:
    """A kept result: `read("answer")` is the content of results/answer.json, else the rows of results/answer.jsonl."""
    whole, rows = RESULTS / f"{name}.json", RESULTS / f"{name}.jsonl"
    return read_rows(rows) if rows.exists() else json.loads(whole.read_text(encoding="utf-8"))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def keep(path: Path, found: Any) -> None:
    """A list has a line for each row; an object one for each entry, or for each part of an entry. A .jsonl file is rows alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(_line(row) + "\n" for row in found), encoding="utf-8")
        return
    path.write_text(_lines(found, 2) + "\n", encoding="utf-8")


def _lines(found: Any, depth: int) -> str:
    parts: Iterable[str]
    if depth and isinstance(found, list) and any(isinstance(one, dict) for one in found):
        parts, ends = (_line(one) for one in found), "[]"
    elif depth and isinstance(found, dict) and (depth == 2 or any(isinstance(one, dict) for one in found.values())):
        parts, ends = (f"{_line(name)}: {_lines(one, depth - 1)}" for name, one in found.items()), "{}"
    else:
        return _line(found)
    return f"{ends[0]}\n" + ",\n".join(parts) + f"\n{ends[1]}"


def _line(found: Any) -> str:
    return json.dumps(found, ensure_ascii=False)
