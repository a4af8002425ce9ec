"""Run a page of the documents as its reader would: blocks of Python and of bash, in the order of the page, in one folder.

`intarsia` in the shell is a function that hands its words to this process: the same command, without a start of Python each time.
"""

import contextlib
import io
import os
import re
import subprocess
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intarsia.cli import main

# Numbered words to the one pipe, the exit code from the other; what the command printed lies in two files.
SHELL = """set -euo pipefail
intarsia() {
  printf '%s\\0' "$#" "$@" >&"$ASK"
  read -r code <&"$ANSWER"
  cat "$PRINTED.out"; cat "$PRINTED.err" >&2
  return "$code"
}
"""


@dataclass(frozen=True)
class Command:
    """One call of `intarsia` by a page: its words, its exit code, and what it printed."""

    words: tuple[str, ...]
    code: int
    printed: str


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of every block of Python or bash, in order."""
    yield from re.findall(r"^```(python|bash)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def run(page: Path, names: dict[str, Any], scratch: Path) -> list[Command]:
    """Run the page in the current folder; `names` is the namespace of its Python."""
    commands: list[Command] = []
    for number, (language, text) in enumerate(blocks(page)):
        if language == "python":
            exec(compile(text, f"{page.name}, block {number}", "exec"), names)
        else:
            commands += _shell(text, scratch, f"{page.name}, block {number}")
    return commands


def _shell(text: str, scratch: Path, what: str) -> list[Command]:
    ask, words_to = os.pipe()
    code_from, answer = os.pipe()
    environment = os.environ | {"ASK": str(words_to), "ANSWER": str(code_from), "PRINTED": str(scratch / "printed")}
    with (scratch / "shell.log").open("w+") as log:
        shell = subprocess.Popen(
            ["bash", "-c", SHELL + text], pass_fds=(words_to, code_from), env=environment, stdout=log, stderr=log
        )
        os.close(words_to)
        os.close(code_from)
        with open(ask, "rb") as questions, open(answer, "w", buffering=1) as answers:
            done = []
            while (count := _word(questions)) is not None:
                words = [str(_word(questions)) for _ in range(int(count))]
                done.append(_call(words, scratch))
                answers.write(f"{done[-1].code}\n")
        failed = shell.wait()
        log.seek(0)
        assert failed == 0, f"{what} ended with {failed}:\n{log.read()[-3000:]}"
    return done


def _word(questions: io.BufferedReader) -> str | None:
    """The next word, None at the end of the shell."""
    found = bytearray()
    while (byte := questions.read(1)) not in (b"", b"\0"):
        found += byte
    return found.decode() if byte else None


def _call(words: list[str], scratch: Path) -> Command:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["--debug", *words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        except Exception as error:
            traceback.print_exc()
            code = getattr(error, "exit_code", 1)
    (scratch / "printed.out").write_text(out.getvalue(), encoding="utf-8")
    (scratch / "printed.err").write_text(err.getvalue(), encoding="utf-8")
    return Command(tuple(words), code, out.getvalue())
