"""`intarsia fit`: the server's step by files, from sketches to a posterior and one coefficients file per site."""

import argparse
from pathlib import Path

from intarsia.cli.show import add_json, emit
from intarsia.errors import StudyError

EPILOG = """examples:
  intarsia fit clinic.sketch mri.sketch --study study.toml -o liver
  intarsia fit lab.sketch -o liver                      # a site that came later; the folder knows its study
An interrupted fit goes on where it was when the same command is given again."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("sketches", nargs="*", type=Path, help="one sketch of each site (those already in -o are known)")
    parser.add_argument("--study", type=Path, help="study.toml; needed once, the study folder keeps it")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the study folder")
    parser.add_argument("--workers", type=int, help="processes for the sampler")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from intarsia.carriers.files import fit_files
    from intarsia.progress import Bar

    if args.study is None and not (args.out / "study.toml").is_file():
        raise StudyError(f"{args.out} is not a study folder yet: say which study the sketches are of with --study study.toml.")
    with Bar() as bar:
        summary = fit_files(args.sketches, args.study, args.out, workers=args.workers, progress=bar)
    lines = [
        str(summary["verdict"]),
        f"{len(summary['selected'])} of {summary['features']} features selected: {', '.join(summary['selected'][:12])}",
        f"posterior  {args.out / 'posterior.nc'}",
        f"send each site its own file of {args.out / 'coefficients'}",
        f"when their receipts come back: intarsia deliver receipts {args.out} *.receipt",
        f"look at it: intarsia report {args.out} -o report.html",
    ]
    emit(args, summary, lines)
