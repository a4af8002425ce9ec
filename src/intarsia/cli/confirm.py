"""A person's yes where trust begins: fingerprints shown as words, compared by telephone, and typed.

Two words are not shown, others each time: whoever types them has heard them from the other side. Words that stand on the screen
can be typed by somebody who has compared nothing, and a word that is known beforehand can be had: a key whose last word is the
right one is found in seconds.

Those who automate give `--fingerprints FILE`, lines of a name and its words, gathered by another way than the file they check.
"""

import argparse
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from intarsia.errors import InputError
from intarsia.wire.plain import one_line
from intarsia.wire.words import in_lines, same_words, split_words

LIMIT_BYTES = 2**20
HIDDEN = 2  # words of a fingerprint
OF_THE_FILE = "study.toml"  # the name of the study file's own words


def add_fingerprints(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fingerprints",
        type=Path,
        metavar="FILE",
        help="instead of typing: lines 'NAME WORDS', as you got them by telephone or on paper, not with the file you check",
    )


def confirm(named: Mapping[str, str], file: Path | None) -> None:
    """Every name's words agree with the file's line, or a person hears them from the other side and types two of them."""
    if file is not None:
        _compare(named, read_fingerprints(file), file)
        return
    for name, words in named.items():
        parts = split_words(words)
        hidden = hidden_words(len(parts))
        print(f"\n{name}:", file=sys.stderr)
        for line in in_lines(" ".join("?????" if k in hidden else part for k, part in enumerate(parts))):
            print(f"    {line}", file=sys.stderr)
        who = "another site (`intarsia study check` shows them there)" if name == OF_THE_FILE else f"those who answer for {name}"
        typed = _ask(f"Let {who} read all words to you by telephone, and compare. Type the two that are not shown here: ")
        if split_words(typed) != [parts[k] for k in hidden]:
            raise InputError(f"The words of {name} are not confirmed. Nothing was accepted; ask before you go on.")


def hidden_words(count: int) -> list[int]:
    """Which of so many words are not shown."""
    return sorted(secrets.SystemRandom().sample(range(count), HIDDEN))


def _ask(question: str) -> str:
    print(question, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise InputError(
            "Nobody is there to compare fingerprints (the standard input is closed). Give --fingerprints FILE with lines "
            "'NAME WORDS', gathered by telephone or on paper."
        )
    return line


def _compare(named: Mapping[str, str], known: Mapping[str, str], file: Path) -> None:
    lacking = [name for name in named if name not in known]
    if lacking:
        raise InputError(f"{file} has no line for {', '.join(lacking)}. Ask them for their words and add a line each.")
    wrong = [name for name, words in named.items() if not same_words(words, known[name])]
    if wrong == [OF_THE_FILE]:
        raise InputError(
            f"The words of {OF_THE_FILE} are not those in {file}: the list is of another run or an earlier text of it, or the "
            "file was changed on the way. Nothing was accepted; compare the words by telephone."
        )
    if wrong:
        raise InputError(
            f"The fingerprint of {', '.join(wrong)} is not the one in {file}: somebody on the way may have put another key in "
            "its place. Nothing was accepted; compare the words by telephone."
        )


def read_fingerprints(file: Path) -> dict[str, str]:
    """Lines of a name and its words; empty lines and those beginning with # are passed over."""
    try:
        with file.open("rb") as opened:
            text = opened.read(LIMIT_BYTES + 1)
        lines = text.decode("utf-8").splitlines()
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not UTF-8 text. Write lines 'NAME WORDS'.") from None
    if len(text) > LIMIT_BYTES:
        raise InputError(f"{file} is larger than {LIMIT_BYTES:,} bytes; a list of fingerprints is short.")
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, _, words = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if not split_words(words):
            raise InputError(f"{file}, line {number}: expected a name and its words.")
        if name in found:
            raise InputError(f"{file}, line {number}: {one_line(name)} has a line already.")
        found[name] = words
    return found
