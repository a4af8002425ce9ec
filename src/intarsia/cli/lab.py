"""`intarsia lab`: the paper's experiments, tables and figures, which a checkout of the source has beside the package."""

import argparse
import sys
from pathlib import Path

import intarsia
from intarsia.errors import InputError

NOT_HERE = (
    "The lab is not part of the installed package: it runs from a checkout of intarsia's source. Neither the current folder nor "
    "the one this package was installed from has experiments/paper. Change into a checkout (`pip install -e '.[lab]'` there), "
    "and give the command again."
)


def register(parser: argparse.ArgumentParser) -> None:
    where = checkout()
    if where is None:
        parser.epilog = NOT_HERE
        words = "run, tables, figures, gather or list, in a checkout"
        parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="WHAT", help=words)
        parser.set_defaults(run=_not_here)
        return
    if str(where) not in sys.path:
        sys.path.append(str(where))
    from experiments.paper import command

    command.register(parser)


def checkout() -> Path | None:
    """The checkout that the package is installed from, else that of the current folder."""
    places = (Path(intarsia.__file__).parents[2], Path.cwd())
    return next((place for place in places if (place / "experiments" / "paper" / "command.py").is_file()), None)


def _not_here(_args: argparse.Namespace) -> int:
    raise InputError(NOT_HERE)
