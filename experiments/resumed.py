"""Run what is not kept yet, side by side, and keep each row as it comes: a run that was stopped goes on where it was."""

import argparse
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments.kept import keep

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # one process for each core

Row = dict[str, Any]


def options(about: str | None, result: Path, sets: int) -> argparse.ArgumentParser:
    """A parser with what every such benchmark takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=sets, help=f"data sets of each kind (default: {sets})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes side by side (default: every core)")
    parser.add_argument("--out", type=Path, default=result, help="where rows are kept")
    return parser


def kept(path: Path) -> list[Row]:
    """The rows of a file, one per line; none where there is no file."""
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def gather(tasks: Iterable[Any], key: Callable[[Any], Row], one: Callable[[Any], Row], path: Path, jobs: int) -> list[Row]:
    """`one(task)` for each task whose `key(task)` no kept row has; all rows, in the order in which they were made.

    A row is what `one` gives with the key in front. Costly tasks come first, so that no core waits long at the end.
    """
    rows = kept(path)
    open_ = [task for task in tasks if not any(key(task).items() <= row.items() for row in rows)]
    if not open_:
        return rows
    # Fresh processes: nothing of this one's threads and compiled code is forked into them.
    with ProcessPoolExecutor(max(1, min(jobs, len(open_))), get_context("spawn")) as pool:
        waiting = {pool.submit(one, task): task for task in open_}
        for done in as_completed(waiting):
            rows.append(key(waiting[done]) | done.result())
            keep(path, rows)
            print(f"{len(rows)} rows: {json.dumps(rows[-1])}", flush=True)
    return rows
