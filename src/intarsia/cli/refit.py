"""`intarsia refit`: fit the same sketches again under another model, beside the study's own fit."""

import argparse
from pathlib import Path

from intarsia.cli.show import add_json, emit

EPILOG = """examples:
  intarsia refit liver -o independent.nc --noise independent      # is the finding there without shared noise?
  intarsia refit liver -o seed-2.nc --seed 2                      # other random numbers
  intarsia report independent.nc -o independent.html              # a page about the new fit
The sketches are here already: a refit tells nobody anything new and costs no allowance. What the sites hold stays as it is."""
# Entries of [fit] in study.toml that a refit may change.
WHOLE = {
    "rank": "columns of B",
    "seed": "of the random numbers",
    "draws": "draws kept per chain, at most",
    "chains": "number of chains",
    "warmup": "sweeps per chain before any is kept",
    "thin": "sweeps per kept draw",
}


def register(parser: argparse.ArgumentParser) -> None:
    from intarsia.wire.study_parts import LOCALS, NOISES, PRIORS

    parser.epilog = EPILOG
    parser.add_argument("folder", type=Path, help="the study folder at the server, fitted")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the posterior to write (.nc)")
    parser.add_argument("--prior", choices=PRIORS, help="another prior")
    parser.add_argument("--noise", choices=NOISES, help="noise of the responses")
    parser.add_argument("--law", help="law of the local scales: horseshoe, laplace or student")
    parser.add_argument("--local", choices=LOCALS, help="a local scale per feature or per coefficient")
    for name, what in WHOLE.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=what)
    parser.add_argument("--fdr", type=float, help="false discovery rate of the selection")
    parser.add_argument("--workers", type=int, help="processes for the sampler")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from intarsia.cli.fit import found
    from intarsia.errors import InputError
    from intarsia.progress import Bar
    from intarsia.server.study.folder import StudyFolder
    from intarsia.server.study.refitted import refit

    if args.out.suffix != ".nc":
        raise InputError(f"{args.out}: a posterior is written as .nc (netCDF).")
    names = ("prior", "noise", "law", "local", *WHOLE, "fdr")
    changes = {name: value for name in names if (value := getattr(args, name)) is not None}
    if not changes:
        raise InputError(
            "Say what is to be different: --prior, --noise, --law, --local, --rank, --seed, --fdr or the run's length."
        )
    folder = StudyFolder.open(args.folder)
    with Bar() as bar:
        made = refit(folder, changes, workers=args.workers, progress=bar)
    made.posterior.save(args.out)
    summary = made.assessment.summary(list(made.posterior.features), list(made.posterior.responses))
    told = {"posterior": str(args.out), "changed": changes, **summary, "comparison": made.words()}
    emit(args, told, [*found(summary), *made.words(), f"posterior  {args.out}; a page: intarsia report {args.out}"])
