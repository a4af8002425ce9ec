"""The command line. One module per command group; each is imported only when its command is called.

A group module has `register(parser)`, which adds its arguments (or sub-commands) to that parser and sets `run=function`
as a default; the function takes the parsed arguments and returns an exit code (0 or None: fine).
"""

import argparse
import logging
import os
import re
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import intarsia
from intarsia.cli.show import fitted
from intarsia.errors import IntarsiaError, of_the_system
from intarsia.wire.plain import meant, printable

# command -> (module, one-line help); the order is the order of `intarsia --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("intarsia.cli.demo", "a study of three simulated hospitals, from tables to report"),
    "key": ("intarsia.cli.key", "make a sketch key, show its fingerprint"),
    "study": ("intarsia.cli.study", "write, check, run and follow a study"),
    "site": ("intarsia.cli.site", "an institution's own end of a study"),
    "server": ("intarsia.cli.server", "the party that sees sketches only"),
    "fit": ("intarsia.cli.fit", "fit the sketches of all sites"),
    "check": ("intarsia.cli.check", "k-fold and split-half replication of a fitted study"),
    "refit": ("intarsia.cli.refit", "the same sketches under another model, beside the study's own fit"),
    "deliver": ("intarsia.cli.deliver", "each site's own coefficients"),
    "predict": ("intarsia.cli.predict", "joint predictions for new subjects"),
    "report": ("intarsia.cli.report", "one self-contained page about a fitted study"),
    "privacy": ("intarsia.cli.privacy", "plan a sketch size, attack your own sketch, check cards and the ledger"),
    "precompile": ("intarsia.cli.precompile", "compile the sampler's loops now, not in the first fit"),
    "completion": ("intarsia.cli.completion", "a script with which the shell completes these commands"),
    "lab": ("intarsia.cli.lab", "the paper's experiments, tables and figures"),
}

_ANYWHERE = ("--debug", "-q", "--quiet", "-v", "--verbose")  # before or after the command, as people write them

EPILOG = """examples:
  intarsia demo --out demo-study        # a whole study on this machine, in about a minute
  intarsia site --help                  # each command's help ends with examples

exit codes: 0 done; 1 other error; 2 bad input or arguments; 3 bad message file; 4 bad study file;
5 subjects do not align; 6 refused by a privacy rule; 7 key problem; 8 sampler; 9 federation;
10 a damaged file; 130 interrupted"""


class Parser(argparse.ArgumentParser):
    """Says which word was probably meant."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)$", message)
        if unknown:
            known = [word.strip(" '") for word in unknown[3].split(",")]
            message = f"{unknown[2]!r} is no {unknown[1]}{meant(unknown[2], known)} There are: {', '.join(known)}"
        loose = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        if loose:
            message = f"there is no option {loose[1]}{meant(loose[1], self._options())} The command's --help lists them."
        super().error(message)

    def _options(self) -> list[str]:
        """Of this command and of those below it."""
        found = [word for action in self._actions for word in action.option_strings]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found += [word for sub in action.choices.values() for word in sub._options()]
        return found


def build_parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """The parser; only the wanted command's own arguments are loaded."""
    parser = Parser(
        prog="intarsia",
        description="Bayesian regression across institutions that may not show each other their data.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"intarsia {intarsia.__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress; results and errors stay")
    parser.add_argument("-v", "--verbose", action="store_true", help="say on stderr what is being done, with the time")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == wanted:
            import_module(module).register(sub)
            _add_examples(sub)
    return parser


def _add_examples(group: argparse.ArgumentParser) -> None:
    """Under the help of each action: those of the group's examples that call it."""
    for action in (action for action in group._actions if isinstance(action, argparse._SubParsersAction)):
        for parser in action.choices.values():
            lines = [line for line in (group.epilog or "").splitlines() if f"{line.strip()} ".startswith(f"{parser.prog} ")]
            if lines and parser.epilog is None:
                parser.epilog = "\n".join(["example:" if len(lines) == 1 else "examples:", *lines])
                parser.formatter_class = argparse.RawDescriptionHelpFormatter


def main(argv: Sequence[str] | None = None) -> int:
    args_in = list(sys.argv[1:] if argv is None else argv)
    # Whoever reads "run again with --debug" puts it at the end of a command, or of a command's command.
    said = {a for a in args_in if a in _ANYWHERE}
    args_in = [a for a in args_in if a not in _ANYWHERE]
    wanted = next((a for a in args_in if not a.startswith("-")), None)
    args = build_parser(wanted).parse_args(args_in)
    args.debug = "--debug" in said
    _log(quiet=bool(said & {"-q", "--quiet"}), verbose=bool(said & {"-v", "--verbose"}))
    try:
        return int(args.run(args) or 0)
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept", file=sys.stderr)
        return 130
    except IntarsiaError as error:
        if args.debug:
            raise
        print(fitted(f"intarsia: {printable(str(error))}", sys.stderr), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return 0
        if args.debug:
            raise
        print(fitted(f"intarsia: {printable(of_the_system(error))}", sys.stderr), file=sys.stderr)
        return 1
    except Exception as error:
        if args.debug:
            raise
        print(f"intarsia: unexpected {type(error).__name__} (run again with --debug to see where)", file=sys.stderr)
        return 1


def _log(quiet: bool, verbose: bool) -> None:
    """What the package says of its work goes to stderr: progress; with -v the steps too; with -q nothing below a warning."""
    log = logging.getLogger("intarsia")
    for old in [handler for handler in log.handlers if isinstance(handler, _Stderr)]:
        log.removeHandler(old)
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s" if verbose else "  %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)


class _Stderr(logging.StreamHandler[Any]):
    """Standard error as it is when something is said; a test or a program may have put another in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _reader_is_gone() -> bool:
    """Did whoever read our output close it (`intarsia … | head`)? Any other broken pipe is a failure of what we did."""
    try:
        looked = select.poll()
        looked.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError):  # a system without it; an output that is no file
        return True
    if not any(event & select.POLLERR for _, event in looked.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python still holds of it goes nowhere
    return True
