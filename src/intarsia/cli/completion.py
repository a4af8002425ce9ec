"""`intarsia completion`: a script with which bash and zsh complete commands, actions, options and their choices; files else.

The script is made from the parser and holds plain words, so that a key press starts no Python.
"""

import argparse
import shlex
from collections.abc import Iterable, Iterator

EPILOG = """examples:
  intarsia completion > ~/.local/share/bash-completion/completions/intarsia     # bash finds it there by itself
  intarsia completion >> ~/.zshrc                                               # zsh; for bash too: >> ~/.bashrc"""

SCRIPT = """# Completion of intarsia's commands, made by `intarsia completion`: make it anew after an update.
if [ -n "${{ZSH_VERSION-}}" ]; then autoload -U +X bashcompinit && bashcompinit; fi
_intarsia() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="" action="" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "${{COMP_WORDS[i]}}" in
      -*) ;;
      *) if [ -z "$command" ]; then command="${{COMP_WORDS[i]}}"; elif [ -z "$action" ]; then action="${{COMP_WORDS[i]}}"; fi ;;
    esac
  done
  case "$command $action $before" in
{choices}
    *) case "$cur" in
      -*) case "$command $action" in
{options}
      esac ;;
      *) case "$command $action" in
{actions}
      esac ;;
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o bashdefault -o default -F _intarsia intarsia
"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.set_defaults(run=run)


def run(_args: argparse.Namespace) -> None:
    print(script(), end="")


def script() -> str:
    """For all commands as they are now."""
    from intarsia.cli import COMMANDS, build_parser

    choices, options, actions = [], [], [_case("' '", COMMANDS)]
    for name in COMMANDS:
        command = below(build_parser(name))[name]
        known = below(command)
        for action, parser in known.items():
            at = f"{shlex.quote(f'{name} {action}')}"
            choices += [_case(f"{at}' '{shlex.quote(option)}", words) for option, words in _choices(parser)]
            options.append(_case(at, _options(parser)))
        at = f"{shlex.quote(f'{name} ')}*"
        choices += [_case(f"{at}' '{shlex.quote(option)}", words) for option, words in _choices(command)]
        options.append(_case(at, _options(command)))
        if known:
            actions.append(_case(shlex.quote(f"{name} "), known))
    options.append(_case("' '", ["--help", "--version"]))
    parts = {"choices": choices, "options": options, "actions": actions}
    return SCRIPT.format(**{part: "\n".join(f"    {line}" for line in lines) for part, lines in parts.items()})


def below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands or actions of a parser."""
    return {
        name: sub for one in parser._actions if isinstance(one, argparse._SubParsersAction) for name, sub in one.choices.items()
    }


def _options(parser: argparse.ArgumentParser) -> list[str]:
    shown = [one for one in parser._actions if one.help != argparse.SUPPRESS]
    return [word for one in shown for word in one.option_strings if word.startswith("--")]


def _choices(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Options that take one of a few words, and the words."""
    for one in parser._actions:
        if one.choices and one.option_strings:
            for option in one.option_strings:
                yield option, [str(word) for word in one.choices]


def _case(pattern: str, words: Iterable[str]) -> str:
    return f"{pattern}) words={shlex.quote(' '.join(words))} ;;"
