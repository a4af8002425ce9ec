"""What `intarsia lab` does: the paper's experiments, tables and figures."""

import argparse
import json
import sys
from collections.abc import Callable

EXAMPLES = """examples:
  intarsia lab list
  intarsia lab run sim2 --size quick            two replicates of each cell, resumable; Ctrl-C keeps what is done
  intarsia lab run sim2 --size full --methods intarsia --workers 2
  intarsia lab run brain --data FOLDER          the connectome analysis, public fMRI data where present
  intarsia lab tables sim2                      the paper's Table 2 beside ours
  intarsia lab gather sim2 elsewhere/*.csv      rows that `lab run` made on another machine
  intarsia lab figures --out figures            Figures 2 to 6
"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    sub = parser.add_subparsers(dest="what", required=True, metavar="WHAT")

    run = _add(sub, "run", "run an experiment", _run)
    run.add_argument("experiment", help="sim1, sim2, harder, brain or real")
    run.add_argument("--replicates", type=int, help="data sets per cell (default: by size)")
    run.add_argument("--methods", help="comma-separated names (default: all of the experiment)")
    run.add_argument("--cells", help="comma-separated parts of cell labels to run (default: all), e.g. 'rho=0.5 s=10'")
    run.add_argument("--workers", type=int, help="parallel processes (default: all cores)")
    run.add_argument("--minutes", type=float, help="begin no further data set after so long; the same command goes on from there")
    for name in ("chains", "warmup", "draws", "thin"):
        text = f"chains of another length than the size's: {name} (use --results for a folder of their own)"
        run.add_argument(f"--{name}", type=int, help=text)
    run.add_argument("--data", help="folder of public data sets (default: $INTARSIA_DATA)")

    gather = _add(sub, "gather", "take rows made on another machine into the results", _gather)
    gather.add_argument("experiment", help="sim1, sim2, harder, brain or real")
    gather.add_argument("files", nargs="+", help="CSV files that `intarsia lab run` wrote there")
    gather.add_argument("--replace", metavar="METHODS", help="comma-separated: these methods' kept rows go first")

    tables = _add(sub, "tables", "print the tables, the paper's numbers beside ours", _tables)
    tables.add_argument("experiments", nargs="*", help="which (default: all that have results)")
    tables.add_argument("--markdown", action="store_true", help="as Markdown")

    figures = _add(sub, "figures", "draw Figures 2 to 6", _figures)
    figures.add_argument("--out", default="figures", help="folder for the pictures, and the page of Figure 6 (default: figures)")
    figures.add_argument("--data", help="folder of public data sets (default: $INTARSIA_DATA)")

    _add(sub, "list", "the experiments, their cells and methods", _list)


def _add(
    sub: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    text: str,
    function: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = sub.add_parser(name, help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    reads = name in ("tables", "figures")
    parser.add_argument(
        "--size", default=None if reads else "quick", choices=("smoke", "quick", "full"),
        help="default: the largest that has results" if reads else "default: quick",
    )  # fmt: skip
    parser.add_argument("--results", default="experiments/results", help="results folder (default: experiments/results)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=function)
    return parser


def _names(text: str | None) -> list[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None


def _run(args: argparse.Namespace) -> int:
    from experiments.paper import runner
    from experiments.paper.designs import find
    from experiments.paper.realdata import PUBLIC, available

    experiment = find(args.experiment)
    if args.experiment in ("brain", "real"):
        absent = [name for name in PUBLIC if name not in available(args.data)]
        if absent:
            print(f"not found, left out: {', '.join(absent)} (give --data or set INTARSIA_DATA)", file=sys.stderr)
    chain = {name: getattr(args, name) for name in ("chains", "warmup", "draws", "thin") if getattr(args, name) is not None}
    with _Bar(experiment.title) as bar:
        part = runner.Part(
            args.replicates, _names(args.methods), _names(args.cells), {"data": args.data, "chain": chain}, args.minutes
        )
        path = runner.run(args.experiment, args.size, args.results, part, workers=args.workers, progress=bar.tell)
    rows = runner.read_rows(path)
    if args.json:
        print(json.dumps({"experiment": args.experiment, "size": args.size, "file": str(path), "rows": len(rows)}))
    else:
        print(f"{len(rows)} fits in {path}")
    return 0


def _gather(args: argparse.Namespace) -> int:
    from experiments.paper import runner

    new = runner.gather(args.experiment, args.size, args.results, args.files, renewed=_names(args.replace) or ())
    path = runner.result_file(args.results, args.experiment, args.size)
    total = len(runner.read_rows(path))
    if args.json:
        told = {"experiment": args.experiment, "size": args.size, "file": str(path), "new": new, "rows": total}
        print(json.dumps(told))
    else:
        print(f"{new} new fits, {total} in {path}")
    return 0


class _Bar:
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.progress.add_task(title, total=None)
        self.title = title

    def __enter__(self) -> "_Bar":
        self.progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()

    def tell(self, done: int, total: int, text: str) -> None:
        if self.console.is_terminal:
            self.progress.update(self.task, completed=done, total=total)
        elif done and (done == total or done % max(1, total // 20) == 0):
            print(f"{done}/{total} data sets; last: {text}", file=sys.stderr, flush=True)


def _tables(args: argparse.Namespace) -> int:
    from experiments.paper.designs import EXPERIMENTS
    from experiments.paper.runner import kept_size, result_file
    from experiments.paper.tables import Table, tables

    def size_of(name: str) -> str:
        return args.size or kept_size(args.results, name) or "quick"

    names = args.experiments or [n for n in EXPERIMENTS if result_file(args.results, n, size_of(n)).exists()]
    if not names:
        print(f"no results in {args.results}; run `intarsia lab run sim1` first", file=sys.stderr)
        return 2
    found: list[Table] = [table for name in names for table in tables(args.results, name, size_of(name))]
    if args.json:
        print(json.dumps([table.as_dict() for table in found], ensure_ascii=False))
    else:
        print("\n\n".join(table.markdown() if args.markdown else table.plain() for table in found))
    return 0


def _figures(args: argparse.Namespace) -> int:
    from experiments.paper.figures import draw_all

    made, missing = draw_all(args.results, args.size, args.out, args.data)
    if args.json:
        print(json.dumps({"figures": [str(path) for path in made], "missing": missing}))
    else:
        for path in made:
            print(path)
        for text in missing:
            print(text, file=sys.stderr)
    return 0 if made else 2


def _list(args: argparse.Namespace) -> int:
    from experiments.paper.designs import EXPERIMENTS

    if args.json:
        found = [
            {
                "name": e.name,
                "title": e.title,
                "cells": [cell.label for cell in e.cells[args.size]],
                "methods": list(e.methods),
                "replicates": e.replicates[args.size],
            }
            for e in EXPERIMENTS.values()
        ]
        print(json.dumps(found, ensure_ascii=False))
        return 0
    for e in EXPERIMENTS.values():
        cells = [cell.label for cell in e.cells[args.size]]
        print(f"{e.name}: {e.title}\n  {e.replicates[args.size]} replicates of {len(cells)} cells: {'; '.join(cells)}")
        print(f"  methods: {', '.join(e.methods)}\n")
    return 0
