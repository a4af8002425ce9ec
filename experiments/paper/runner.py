"""Run an experiment: replicates in parallel processes, results appended as they come, finished ones never redone.

The results of experiment E at size S are `E/S.csv`: one line for each fit, tidy text that git can follow. Only the
parent writes; a killed run leaves at most a torn last line, which the next run drops.
"""

import contextlib
import csv
import io
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import intarsia
from experiments.paper.designs import find
from experiments.paper.designs.design import COLUMNS, KEY, SIZES, Cell, Experiment
from experiments.paper.methods import METHODS, Row
from intarsia import files
from intarsia.errors import InputError

Task = tuple[str, str, int, int, tuple[tuple[str, int | None], ...], dict[str, Any]]
Progress = Callable[[int, int, str], None]


def result_file(folder: str | os.PathLike[str], experiment: str, size: str) -> Path:
    return Path(folder) / experiment / f"{size}.csv"


def kept_size(folder: str | os.PathLike[str], experiment: str) -> str | None:
    """The largest size that has results here."""
    return next((size for size in reversed(SIZES) if result_file(folder, experiment, size).exists()), None)


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
    """Cut a torn last line off, so that the next row does not grow onto it; give an older file today's columns."""
    with path.open("r+b") as file:
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)
    rows = read_rows(path)
    if rows and tuple(rows[0]) != COLUMNS:
        _write(path, rows)


def _cell_value(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(_cell_value(row.get(name)) for name in KEY)


def _write(path: Path, rows: Iterable[Row]) -> None:
    """Replace the file as a whole, so that a kill leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, _lines(rows, heading=True))


def _append(path: Path, rows: Iterable[Row]) -> None:
    fresh = not path.exists() or path.stat().st_size == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if lines := _lines(rows, heading=fresh):
        files.append(path, lines.removesuffix(b"\n"))


def _lines(rows: Iterable[Row], *, heading: bool) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if heading:
        writer.writerow(COLUMNS)
    writer.writerows([_cell_value(row.get(name)) for name in COLUMNS] for row in rows)
    return text.getvalue().encode()


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Processes that are started meanwhile load a BLAS with one thread; this one's settings stay as they are."""
    names = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"
    unset = [name for name in names if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "1"))
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]


def _one_thread() -> None:
    """Workers get one BLAS thread each: they are as many as the cores."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)


def processor() -> str:
    """The processor's name: what times in a row depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def run_task(task: Task) -> list[Row]:
    """One data set, in a worker."""
    name, size, index, replicate, wanted, options = task
    experiment = find(name)
    cell = experiment.cells[size][index]
    seed = experiment.seed(cell, replicate)
    settings = replace(experiment.settings[size], **options.get("chain", {}))
    which = {
        "experiment": name, "size": size, "replicate": replicate, "seed": seed, "machine": processor(),
        "version": intarsia.__version__, **cell.columns(),
    }  # fmt: skip
    return [which | row for row in experiment.run(cell, seed, wanted, settings, options)]


@dataclass(frozen=True)
class Part:
    """Which part of an experiment: None is all of it. `options["chain"]` changes the length of chains (fields of `Effort`).

    After `minutes` no further data set is begun; the next run goes on from there.
    """

    replicates: int | None = None
    methods: Collection[str] | None = None
    cells: Collection[str] | None = None  # texts, one of which a cell's label must hold
    options: Mapping[str, Any] = field(default_factory=dict)
    minutes: float | None = None


EVERYTHING = Part()


def plan(experiment: Experiment, size: str, done: Collection[tuple[str, ...]], part: Part = EVERYTHING) -> list[Task]:
    """What is still to do, replicate by replicate over all cells, so that an early stop leaves a balanced table."""
    if size not in SIZES:
        raise InputError(f"Size {size!r} is not known; use one of {', '.join(SIZES)}.")
    unknown = set(part.methods or ()) - set(METHODS)
    if unknown:
        raise InputError(f"Method {sorted(unknown)[0]!r} is not known; use one of {', '.join(METHODS)}.")
    tasks: list[Task] = []
    for replicate in range(experiment.replicates[size] if part.replicates is None else part.replicates):
        for index, cell in enumerate(experiment.cells[size]):
            if part.cells and not any(text in cell.label for text in part.cells):
                continue
            wanted = tuple(
                (method, m)
                for method, m in experiment.fits(cell, part.methods or experiment.methods)
                if _key({"cell": cell.label, "replicate": replicate, "method": method, "m": m}) not in done
            )
            # Fits of real data take minutes and share nothing: one task each. Those of simulated data share the data set.
            for some in [(pair,) for pair in wanted] if cell.scenario is None else [wanted] if wanted else []:
                tasks.append((experiment.name, size, index, replicate, some, {**part.options, "replicate": replicate}))
    return tasks


def run(
    name: str,
    size: str = "quick",
    folder: str | os.PathLike[str] = "experiments/results",
    part: Part = EVERYTHING,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Run what is missing of an experiment and return the result file.

    Rows tell the length of their chains; runs of another length than the size's own want a folder of their own.
    """
    begun = time.monotonic()
    end = float("inf") if part.minutes is None else begun + 60 * part.minutes

    def late() -> bool:
        return time.monotonic() > end

    experiment = find(name)
    path = result_file(folder, name, size)
    if path.exists():
        _mend(path)
    tasks = plan(experiment, size, {_key(row) for row in read_rows(path)}, part)
    if tasks:
        _describe(path, experiment, size)
    workers = workers or os.cpu_count() or 1
    tell = progress or (lambda done, total, text: None)
    tell(0, len(tasks), "")
    if workers == 1:
        for count, task in enumerate(tasks, 1):
            if late():
                break
            _append(path, run_task(task))
            tell(count, len(tasks), experiment.cells[size][task[2]].label)
        return path
    # Spawned, not forked: BLAS threads do not survive a fork, and every platform behaves the same.
    context = multiprocessing.get_context("spawn")
    with one_thread_each(), ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
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
                if late():
                    waiting = {future: task for future, task in waiting.items() if not future.cancel()}
        except BaseException:
            for future in waiting:
                future.cancel()
            raise
    return path


def gather(
    name: str,
    size: str,
    folder: str | os.PathLike[str],
    files: Iterable[str | os.PathLike[str]],
    *,
    renewed: Collection[str] = (),
) -> int:
    """Take rows made elsewhere into the results: those of the same experiment and size that are not there yet.

    The kept rows of `renewed` methods go first, so that no table mixes two versions of a method. A method that the files do not
    have keeps its rows. The file is left in the order of cells, methods and replicates, whatever order the fits ended in.
    """
    experiment = find(name)
    path = result_file(folder, name, size)
    if path.exists():
        _mend(path)
    cells = {cell.label: (i, cell) for i, cell in enumerate(experiment.cells[size])}
    new = [row for file in files for row in _made_elsewhere(Path(file), experiment, size, cells)]
    gone = set(renewed) & {row["method"] for row in new}
    rows = {_key(row): row for row in read_rows(path) if row["method"] not in gone}
    before = len(rows)
    for row in new:
        rows.setdefault(_key(row), row)
    methods = {method: i for i, method in enumerate(METHODS)}
    order = sorted(
        rows.values(), key=lambda r: (cells[r["cell"]][0], methods[r["method"]], float(r["m"] or 0), int(r["replicate"]))
    )
    _write(path, order)
    if not path.with_suffix(".json").exists():
        _describe(path, experiment, size)
    return len(rows) - before


def _made_elsewhere(file: Path, experiment: Experiment, size: str, cells: Mapping[str, tuple[int, Cell]]) -> Iterator[Row]:
    """The rows of a file to gather, each held against the experiment's cells and seeds."""
    if not file.exists():
        raise InputError("A file of results to gather is not there; give the CSV that `intarsia lab run` wrote.")
    for row in read_rows(file):
        if row.get("experiment") != experiment.name or row.get("size") != size:
            raise InputError(
                f"A file to gather holds rows of {row.get('experiment')!r} at size {row.get('size')!r}; "
                f"expected {experiment.name!r} at size {size!r}."
            )
        place = cells.get(row["cell"])
        if place is None or str(experiment.seed(place[1], int(row["replicate"]))) != row["seed"]:
            raise InputError(
                "A file to gather has a row whose cell or seed this experiment does not have: it was made by "
                "another version. Run it again."
            )
        yield row


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
    files.replace(path.with_suffix(".json"), json.dumps(about, indent=2, ensure_ascii=False).encode() + b"\n")
