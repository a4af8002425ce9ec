"""A hook of mkdocs: the page `reference/commands.md`, made from the command line's own parser."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

HEAD = """# Command reference

Made from the parser: the same words as `intarsia COMMAND --help`.

"""


Parsers = dict[str, tuple[argparse.ArgumentParser, str]]


def parts(parser: argparse.ArgumentParser) -> tuple[list[argparse.Action], Parsers]:
    """A parser's own arguments, and its sub-commands, each with its one-line help."""
    plain: list[argparse.Action] = []
    commands: Parsers = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help or "" for choice in action._choices_actions}
            commands |= {name: (sub, told.get(name, "")) for name, sub in action.choices.items()}
        elif not isinstance(action, argparse._HelpAction) and action.dest != "debug" and action.help != argparse.SUPPRESS:
            plain.append(action)
    return plain, commands


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def name_of(action: argparse.Action) -> str:
    """`-o, --out OUT`, or the name of an argument without dashes."""
    value = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return str(action.metavar or action.dest)
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


def described(parser: argparse.ArgumentParser, told: str, level: int) -> Iterator[str]:
    """One command: what it does, how it is called, its arguments, its examples; then its sub-commands."""
    arguments, commands = parts(parser)
    yield f"{'#' * level} {parser.prog}\n\n"
    if told:
        yield f"{cell(told[:1].upper() + told[1:]).rstrip('.')}.\n\n"
    named = [name_of(action) for action in arguments if not action.option_strings]
    options = ["[options]"] if len(named) < len(arguments) else []
    yield f"```text\n{' '.join([parser.prog, *(['COMMAND'] if commands else []), *named, *options])}\n```\n\n"
    if arguments:
        yield "| argument | |\n|---|---|\n"
        for action in arguments:
            text = parser._get_formatter()._expand_help(action) if action.help else ""
            yield f"| `{name_of(action)}` | {cell(text)}{' **Needed.**' if action.required and action.option_strings else ''} |\n"
        yield "\n"
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```\n\n"
    for sub, words in commands.values():
        yield from described(sub, words, level + 1)


def page() -> str:
    from intarsia.cli import COMMANDS, EPILOG, build_parser

    text = [HEAD]
    for name in COMMANDS:
        parser, told = parts(build_parser(name))[1][name]
        text.extend(described(parser, told, 2))
    return "".join(text) + f"## Exit codes\n\n{cell(EPILOG.split('exit codes: ')[1])}\n"


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, "reference/commands.md", content=page()))
    return files
