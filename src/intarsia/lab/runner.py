"""Run an experiment: replicates in parallel processes, results appended as they come, finished ones never redone.

The results of experiment E at size S are `E/S.csv`: one line for each fit, tidy text that git can follow. Only the
parent writes; a killed run leaves at most a torn last line, which the next run drops.
"""

import csv
import json
import multiprocessing
import os
import platform
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import intarsia
from intarsia.errors import InputError
from intarsia.lab.experiments import find
from intarsia.lab.experiments.base import COLUMNS, KEY, SIZES, Experiment
from intarsia.lab.methods import METHODS, Row

Task = tuple[str, str, int, int, tuple[tuple[str, int | None], ...], dict[str, Any]]
Progress = Callable[[int, int, str], None]


def result_file(folder: str | os.PathLike[str], experiment: str, size: str) -> Path:
    return Path(folder) / experiment / f"{size}.csv"


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """The rows of a result file; none when it is not there. A torn last line is left out."""
    path = Path(path)
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        text = file.read()
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(whole.splitlines()))


def _mend(path: Path) -> None:
    """Cut a torn last line off, so that the next row does not grow onto it."""
    with path.open("r+b") as file:
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)


def _cell_value(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(_cell_value(row.get(name)) for name in KEY)


def _append(path: Path, rows: Iterable[Row]) -> None:
    fresh = not path.exists() or path.stat().st_size == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(COLUMNS)
        writer.writerows([_cell_value(row.get(name)) for name in COLUMNS] for row in rows)
        file.flush()
        os.fsync(file.fileno())


def _one_thread() -> None:
    """Workers get one BLAS thread each: they are as many as the cores."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)


def run_task(task: Task) -> list[Row]:
    """One data set, in a worker."""
    name, size, index, replicate, wanted, options = task
    experiment = find(name)
    cell = experiment.cells[size][index]
    seed = experiment.seed(cell, replicate)
    which = {"experiment": name, "size": size, "replicate": replicate, "seed": seed, **cell.columns()}
    return [which | row for row in experiment.run(cell, seed, wanted, experiment.settings[size], options)]


def plan(
    experiment: Experiment,
    size: str,
    done: Collection[tuple[str, ...]],
    replicates: int | None = None,
    methods: Collection[str] | None = None,
    cells: Collection[str] | None = None,
    options: dict[str, Any] | None = None,
) -> list[Task]:
    """What is still to do, replicate by replicate over all cells, so that an early stop leaves a balanced table."""
    if size not in SIZES:
        raise InputError(f"Size {size!r} is not known; use one of {', '.join(SIZES)}.")
    unknown = set(methods or ()) - set(METHODS)
    if unknown:
        raise InputError(f"Method {sorted(unknown)[0]!r} is not known; use one of {', '.join(METHODS)}.")
    tasks: list[Task] = []
    for replicate in range(experiment.replicates[size] if replicates is None else replicates):
        for index, cell in enumerate(experiment.cells[size]):
            if cells and not any(text in cell.label for text in cells):
                continue
            wanted = tuple(
                (method, m)
                for method, m in experiment.fits(cell, methods or experiment.methods)
                if _key({"cell": cell.label, "replicate": replicate, "method": method, "m": m}) not in done
            )
            if wanted:
                tasks.append(
                    (experiment.name, size, index, replicate, wanted, {**(options or {}), "replicate": replicate})
                )
    return tasks


def run(
    name: str,
    size: str = "quick",
    folder: str | os.PathLike[str] = "benchmarks/results",
    *,
    replicates: int | None = None,
    methods: Collection[str] | None = None,
    cells: Collection[str] | None = None,
    workers: int | None = None,
    options: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Run what is missing of an experiment and return the result file."""
    experiment = find(name)
    path = result_file(folder, name, size)
    if path.exists():
        _mend(path)
    tasks = plan(experiment, size, {_key(row) for row in read_rows(path)}, replicates, methods, cells, options)
    if tasks:
        _describe(path, experiment, size)
    workers = workers or os.cpu_count() or 1
    tell = progress or (lambda done, total, text: None)
    tell(0, len(tasks), "")
    if workers == 1:
        for count, task in enumerate(tasks, 1):
            _append(path, run_task(task))
            tell(count, len(tasks), experiment.cells[size][task[2]].label)
        return path
    # Spawned, not forked: BLAS threads do not survive a fork, and every platform behaves the same.
    context = multiprocessing.get_context("spawn")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        waiting = {pool.submit(run_task, task): task for task in tasks}
        count = 0
        try:
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    task = waiting.pop(future)
                    _append(path, future.result())
                    count += 1
                    tell(count, len(tasks), experiment.cells[size][task[2]].label)
        except BaseException:
            for future in waiting:
                future.cancel()
            raise
    return path


def _describe(path: Path, experiment: Experiment, size: str) -> None:
    """What made the file, beside it: versions and sampler settings."""
    import numpy
    import scipy
    import sklearn

    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "experiment": experiment.name,
        "title": experiment.title,
        "size": size,
        "settings": asdict(experiment.settings[size]),
        "command": f"intarsia lab run {experiment.name} --size {size}",
        "versions": {
            "intarsia": intarsia.__version__,
            "python": platform.python_version(),
            "numpy": numpy.__version__,
            "scipy": scipy.__version__,
            "scikit-learn": sklearn.__version__,
        },
    }
    path.with_suffix(".json").write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
