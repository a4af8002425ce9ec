"""The slow suite, and what came of it: a row for each file of tests, with the commit, the date and the seconds of its last run.

    python -m experiments.slow                                     # all of it, as `make test-slow` does; hours
    python -m experiments.slow tests/statistical/test_joint.py     # some files; the rows of the others stay

Kept in experiments/results/slow.jsonl. A commit that ends in + had changes that were not committed.
"""

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.kept import keep, read_rows

RESULT = Path(__file__).parent / "results" / "slow.jsonl"
ROOT = Path(__file__).parents[1]


def commit() -> str:
    """Of the tree that is tested."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def outcome(report: Path) -> dict[str, dict[str, Any]]:
    """By file of tests: how many ran, failed, were skipped, and the seconds they took."""
    found: dict[str, dict[str, Any]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("classname", "").replace(".", "/") + ".py"
        row = found.setdefault(name, {"tests": 0, "failed": 0, "skipped": 0, "seconds": 0.0})
        row["tests"] += 1
        row["failed"] += case.find("failure") is not None or case.find("error") is not None
        row["skipped"] += case.find("skipped") is not None
        row["seconds"] = round(row["seconds"] + float(case.get("time", 0)), 1)
    return found


def together(rows: list[dict[str, Any]], new: dict[str, dict[str, Any]], of: dict[str, str], whole: bool) -> list[dict[str, Any]]:
    """The kept rows with those of this run in their place; after a whole run nothing else stays."""
    kept = {} if whole else {row["file"]: row for row in rows}
    kept |= {name: {"file": name, **row, **of} for name, row in new.items()}
    return [kept[name] for name in sorted(kept)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files of tests; all by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "slow", f"--junitxml={report}", *args.files]
        done = subprocess.run(command, cwd=ROOT)
        if not report.exists():
            return done.returncode
        of = {"commit": commit(), "date": datetime.now(UTC).strftime("%Y-%m-%d")}
        rows = together(read_rows(RESULT), outcome(report), of, not args.files)
    keep(RESULT, rows)
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
