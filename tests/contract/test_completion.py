"""What a shell completes is what the parser knows."""

import os
import subprocess
from pathlib import Path

import pytest

from intarsia.cli import COMMANDS, build_parser
from intarsia.cli.completion import below, script

ASK = """source "$0"
while IFS= read -r line; do
  IFS=' ' read -ra COMP_WORDS <<< "$line"
  [[ "$line" == *' ' ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _intarsia
  echo "${COMPREPLY[*]}"
done
"""


def completed(path: Path, lines: list[str]) -> list[list[str]]:
    """What bash offers at the end of each line."""
    path.write_text(script(), encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-u", "-c", ASK, str(path)], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True,
        env=environment,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_offers_every_command_action_and_option(tmp_path: Path) -> None:
    lines, expected = ["intarsia "], [set(COMMANDS)]
    for name in COMMANDS:
        command = below(build_parser(name))[name]
        if below(command):
            lines.append(f"intarsia {name} ")
            expected.append(set(below(command)))
        for words, parser in [(name, command), *((f"{name} {action}", one) for action, one in below(command).items())]:
            lines.append(f"intarsia {words} --")
            expected.append({word for one in parser._actions for word in one.option_strings if word.startswith("--")})
    found = completed(tmp_path / "script", lines)
    assert len(found) == len(lines) > 60
    for line, offered, known in zip(lines, found, expected):
        assert set(offered) == known, line


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("intarsia si", ["site"]),
        ("intarsia --debug site ne", ["next"]),
        ("intarsia study run study.toml --until ", ["collect", "fit", "deliver"]),
        ("intarsia refit liver -o out.nc --noise ind", ["independent"]),
        ("intarsia site next clinic ", []),  # a folder: the shell's own completion of files
        ("intarsia fit ", []),
        ("intarsia --v", ["--version"]),
    ],
)
def test_what_is_offered_at_a_place(tmp_path: Path, line: str, offered: list[str]) -> None:
    assert completed(tmp_path / "script", [line]) == ([offered] if offered else [[]])
