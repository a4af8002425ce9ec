"""`intarsia check`: hold a fitted study against parts of its own rows, by fitting again."""

import argparse
from pathlib import Path

from intarsia.cli.show import add_json, emit

EPILOG = """examples:
  intarsia check liver --folds 5          # out-of-sample R² by 5-fold: five fits
  intarsia check liver --halves           # which findings replicate in two halves of the rows: two fits
The result is kept in the study folder; `intarsia report` shows it."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("folder", type=Path, help="the study folder at the server, fitted")
    parser.add_argument("--folds", type=int, help="k-fold over the rows of the sketch, with this many folds")
    parser.add_argument("--halves", action="store_true", help="split-half replication of the findings")
    parser.add_argument("--workers", type=int, help="processes for the sampler")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from intarsia.errors import InputError
    from intarsia.progress import Bar
    from intarsia.server.posterior.posterior import Posterior
    from intarsia.server.study.check import check, sentences
    from intarsia.server.study.folder import StudyFolder
    from intarsia.server.study.kept import posterior_file

    if args.folds is None and not args.halves:
        raise InputError("Say what to check: --folds 5, --halves, or both.")
    folder = StudyFolder.open(args.folder)
    with folder.locked(), Bar() as bar:
        found = check(folder, folds=args.folds, halves=args.halves, workers=args.workers, progress=bar)
    responses = Posterior.load(posterior_file(folder.path)).responses
    emit(args, found, sentences(found, responses))
