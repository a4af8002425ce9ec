"""The whole way of a user, from a joined sketch to report.html: `python -m experiments.whole_answer CASE … --seeds 1 2`.

The same data as `experiments.answer`, given to the estimator with its default settings: start, sampling to the stopping rule, R̂,
selection, leave-one-out, effects without shrinkage, refits that weigh predictions (up to 20,000 features), then the report. One
JSON object per row, kept in experiments/results/whole_answer.json, with the host's memory beyond the sketch and the disk that was
used on the way.
"""

import argparse
import json
import os
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from experiments.answer import CASES, Case, data
from experiments.child import high_mb
from experiments.kept import keep

RESULT = Path(__file__).parent / "results" / "whole_answer.json"


class DiskWatch:
    """The most that lay in a folder, looked at once per second."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most, self._done = folder, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "DiskWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, _bytes_in(self.folder))
            if self._done.wait(1.0):
                return


def _bytes_in(folder: Path) -> int:
    """Bytes that the files of a folder take on disk; a file may go while it is looked at."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += 512 * os.stat(os.path.join(at, name)).st_blocks
            except FileNotFoundError:
                continue
    return total


def whole(case: Case, seed: int, draws: int | None) -> dict[str, Any]:
    from intarsia import SparseRegression
    from intarsia.report import render
    from intarsia.report.gather import gather
    from intarsia.wire.messages import Joined

    X, Y, C = data(case, seed)
    names = tuple(f"x{p}" for p in range(case.P)), tuple(f"y{q}" for q in range(case.Q))
    sites = ("chip",) * case.P, ("clinic",) * case.Q
    sketch = Joined(X, Y, *names, *sites, 20 * case.m, case.m, "orthonormal", "0" * 64)
    before = high_mb()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        with DiskWatch(Path(folder)) as disk:
            began = time.perf_counter()
            with warnings.catch_warnings(record=True):
                model = SparseRegression(draws=draws, random_state=seed, backend=case.backend).fit_sketch(sketch)
            fitted = time.perf_counter() - began
            page = Path(folder) / "report.html"
            page.write_text(render(gather(model.posterior_)), encoding="utf-8")
            seconds = time.perf_counter() - began
        tempfile.tempdir, size = None, page.stat().st_size
    true = set(np.flatnonzero(C.any(axis=1)).tolist())
    found = [{int(p)} for p in np.flatnonzero(model.selected_)] + [{int(p) for p in one.members} for one in model.sets_]
    return {
        "P": case.P, "m": case.m, "Q": case.Q, "s": case.s, "design": case.design, "seed": seed,
        "device": model.posterior_.attrs["device"],
        "seconds": round(seconds, 1), "seconds_report": round(seconds - fitted, 1),
        "draws": model.posterior_.draws.draws, "converged": bool(model.diagnosis_.converged),
        "power": round(len(true & set().union(*found)) / len(true), 3),
        "fdr": round(sum(not group & true for group in found) / max(1, len(found)), 3),
        "report_mb": round(size / 1e6, 2), "peak_host_gb": round((high_mb() - before) / 1024, 2),
        "peak_disk_gb": round(disk.most / 1e9, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["20000"], help=f"of {', '.join(CASES)}")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--draws", type=int, help="per chain at most (default: the sampler's)")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    for case in args.cases:
        for seed in args.seeds:
            row = {"case": case, **whole(CASES[case], seed, args.draws)}
            rows = [old for old in rows if (old["case"], old["seed"]) != (case, seed)] + [row]
            keep(args.out, rows)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
