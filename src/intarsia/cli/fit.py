"""`intarsia fit`: the server's step by files, from sketches to a posterior and one coefficients file a site."""

import argparse
from pathlib import Path
from typing import Any

from intarsia.cli.show import add_json, emit

EPILOG = """examples:
  intarsia fit clinic.sketch mri.sketch lab.sketch --study study.toml -o liver
  intarsia fit *.sketch -o result --draws 2000          # sketches made without a study file
An interrupted fit goes on where it was when the same command is given again."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("sketches", nargs="*", type=Path, help="one sketch of each site (those already in -o are known)")
    parser.add_argument("--study", type=Path, help="study.toml; without it the options below say what to fit")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the study folder")
    parser.add_argument("--workers", type=int, help="processes for the sampler")
    free = parser.add_argument_group("without a study file")
    free.add_argument("--draws", type=int, default=1000)
    free.add_argument("--warmup", type=int, default=500)
    free.add_argument("--chains", type=int, default=4)
    free.add_argument("--seed", type=int, default=0)
    free.add_argument("--rank", type=int)
    free.add_argument("--fdr", type=float, default=0.05)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from intarsia.carriers.files import fit_files, study_of_sketches
    from intarsia.progress import Bar

    study: Any = args.study
    if study is None and not (args.out / "study.toml").is_file():
        names = ("draws", "warmup", "chains", "seed", "rank", "fdr")
        options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        study = study_of_sketches(args.sketches, options)
    with Bar() as bar:
        summary = fit_files(args.sketches, study, args.out, workers=args.workers, progress=bar)
    lines = [
        str(summary["verdict"]),
        f"{len(summary['selected'])} of {summary['features']} features selected: {', '.join(summary['selected'][:12])}",
        f"posterior  {args.out / 'posterior.nc'}",
        f"send each site its own file of {args.out / 'coefficients'}",
        f"look at it: intarsia report {args.out} -o report.html",
    ]
    emit(args, summary, lines)
