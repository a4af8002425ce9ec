"""Logs of a site that nobody outside can fill, and from which nobody outside can push anything: the first of a kind is written in
full and stays, what comes again is counted.

`NAME.jsonl` has the lines. `NAME.counts.json` has for each kind how often it came, when last, and which lines of it were written.
When a kind has come 10, 100, 1,000 … times, that is a line too.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from intarsia import files

MOST_OF_A_KIND = 20  # different lines written for one kind: a liar varies what it sends, and so the words of its refusals
MOST_CHARACTERS = 2000  # of a text in a line


class CountedLog:
    """`limited`: of one kind at most `MOST_OF_A_KIND` different lines are written; else every line that is new."""

    def __init__(self, folder: Path, name: str, *, limited: bool):
        self.lines, self.counts, self.limited = folder / f"{name}.jsonl", folder / f"{name}.counts.json", limited

    def note(self, kind: str, line: dict[str, object]) -> None:
        """One more of this kind; the time is added here and does not make a line new."""
        digest = hashlib.sha256(json.dumps(line, sort_keys=True, default=str).encode()).hexdigest()[:16]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with files.locked(self.lines.with_name(f".{self.lines.stem}.lock")):  # two steps at the same moment
            counts = _read(self.counts)
            found = counts.setdefault(kind, {"times": 0, "last": now, "lines": []})
            found["times"], found["last"] = found["times"] + 1, now
            new = digest not in found["lines"] and not (self.limited and len(found["lines"]) >= MOST_OF_A_KIND)
            if new:
                found["lines"].append(digest)
                self._write({"time": now} | line)
            elif str(found["times"]).strip("0") == "1":  # a power of ten
                self._write({"time": now} | line | {"times": found["times"]})
            files.replace_json(self.counts, counts, mode=files.OWNER_ONLY)

    def _write(self, line: dict[str, object]) -> None:
        cut = {k: v[:MOST_CHARACTERS] + "…" if isinstance(v, str) and len(v) > MOST_CHARACTERS else v for k, v in line.items()}
        files.append(self.lines, json.dumps(cut).encode(), mode=files.OWNER_ONLY)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """What was counted; a file that is damaged counts from nought again, and the lines stay."""
    try:
        return files.read_json(path, "")
    except (FileNotFoundError, files.DamagedFileError):
        return {}
