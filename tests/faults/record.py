"""What the suite tried and found, kept in parts: each says the commit it ran on, its seeds, its counts and its faults.

A long run is written down as it goes and can be stopped at any moment; `--more` goes on after the seeds that are kept.
A fault stays in the record. Its seed, tried again on a later commit, is written beside it with what came of it.
"""

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any


def commit() -> str:
    """The commit of this tree, with a mark where files differ from it (but for what is kept here)."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", ".", ":!tests/faults/last_run.json")
    return git("rev-parse", "--short=12", "HEAD") + (" and changes" if changed else "")


class Record:
    """`path`, read and written. `more`: after the parts that it has; else in place of them. What else it has stays."""

    def __init__(self, path: Path, *, more: bool):
        self.path = path
        self._whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self.parts: list[dict[str, Any]] = self._whole.get("parts", []) if more else []

    def next_seed(self, what: str) -> int:
        return max((part["seeds"][what][1] + 1 for part in self.parts if what in part["seeds"]), default=0)

    def begin(self) -> None:
        self.parts.append({"commit": commit(), "date": time.strftime("%Y-%m-%d"), "seeds": {}, "trials": {}, "faults": []})

    def keep(self, seeds: dict[str, tuple[int, int]], trials: Counter[str], faults: list[dict[str, str]]) -> None:
        """The last part as it is now, written whole or not at all."""
        tried = {what: list(ends) for what, ends in seeds.items()}
        self.parts[-1].update(seeds=tried, trials=dict(sorted(trials.items())), faults=faults)
        self._write()

    def tried_again(self, trial: str, faults: list[dict[str, str]]) -> None:
        """A fault's seed, on this commit; nothing where the record has no such fault."""
        outcome = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "faults": [fault["fault"] for fault in faults]}
        known = [fault for part in self.parts for fault in part["faults"] if fault["trial"].startswith(f"{trial}:")]
        for fault in known:
            fault["again"] = outcome
        if known:
            self._write()

    def _write(self) -> None:
        totals: Counter[str] = Counter()
        for part in self.parts:
            for name, count in part["trials"].items():
                totals[name.partition(",")[0]] += count
        found = [fault for part in self.parts for fault in part["faults"]]
        summary = {"faults": len(found), "open": sum(fault.get("again", {"faults": [1]})["faults"] != [] for fault in found)}
        kept = {**self._whole, "totals": dict(sorted(totals.items())) | summary, "parts": self.parts}
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(beside, self.path)
