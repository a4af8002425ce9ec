"""The demo as a user runs it, and the report of a large study: what README says of them.

    python -m experiments.demo              # three runs, about two minutes of one core; writes results/demo.json
    python -m experiments.demo --runs 1

Each run is `intarsia demo --json` in an empty folder and a process of its own. Its key, and so its sketch, is new each time.
Processor seconds are of all its processes; they count more than seconds by the clock, which other programs share.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.kept import keep
from intarsia.report.page import collect

RESULT = Path(__file__).parent / "results" / "demo.json"


def children_s() -> float:
    """Processor seconds of every ended child process of this one, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def demo(options: tuple[str, ...] = ()) -> dict[str, Any]:
    """One run: features found, false and missed; processor seconds; the largest membership AUC that a gate reported."""
    with tempfile.TemporaryDirectory() as folder:
        out, used, began = Path(folder) / "demo", children_s(), time.perf_counter()
        command = [sys.executable, "-m", "intarsia", "demo", "--json", "--out", str(out), *options]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        gates = [json.loads(path.read_text(encoding="utf-8")) for path in out.rglob("preflight.json")]
    return {
        **{key: told[key] for key in ("right", "wrong", "missed", "features")},
        "cpu_s": round(children_s() - used, 1), "wall_s": round(time.perf_counter() - began, 1),
        "membership_auc": max((gate["membership_auc"] for gate in gates if gate.get("membership_auc")), default=None),
    }  # fmt: skip


def report(P: int = 100_000) -> dict[str, Any]:
    """The page of a study with many features: processor seconds to make it, and its size."""
    from tests.reports import made_up

    from intarsia.report.page import render

    posterior, _, _ = made_up(P=P, Q=2, active=30, chains=2, draws=10)
    began = time.process_time()
    page = render(collect(posterior, top=100))
    return {"P": P, "cpu_s": round(time.process_time() - began, 1), "bytes": len(page.encode())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--add", action="store_true", help="beside the runs that are kept already")
    args = parser.parse_args()
    runs = json.loads(RESULT.read_text(encoding="utf-8"))["runs"] if args.add else []
    for _ in range(args.runs):
        runs.append(demo())
        print(runs[-1], flush=True)
    found = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "cores": os.cpu_count(), "python": platform.python_version()}
    keep(RESULT, {**found, "runs": runs, "report": report()})
    print(f"written: {RESULT}")


if __name__ == "__main__":
    main()
