"""`intarsia site answer`: a screened study by files. The server's letter in, this site's answers out."""

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.cli import site_check
from intarsia.cli.message_files import write_signed
from intarsia.errors import FederationError, InputError, IntarsiaError, PrivacyError

if TYPE_CHECKING:
    from intarsia.wire.study import Study

IN_WORDS = {
    "offer": "key agreement", "share": "key agreement", "combine": "key agreement", "announce": "counts for the other sites",
    "align": "alignment", "sketch": "this site's columns by name, after its gate", "deal": "shares for the holders",
    "hold": "shares kept here", "keep": "the features to keep, after its gate", "multiply": "shares of products",
    "look": "shares of sums over all features", "receive": "coefficients received",
}  # fmt: skip


def register(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`add(name, help, run)` makes a subcommand of `intarsia site` that writes a file."""
    parser = add("answer", "a screened study by files: answer the server's letter", run_answer)
    parser.add_argument("letter", type=Path, help="the letter from the server, SITE.letter")
    site_check.add_yes(parser)


def run_answer(args: argparse.Namespace) -> None:
    from intarsia.site.site_folder import SiteFolder

    answer_letter(SiteFolder.load(args.dir), args.letter, args.out, args.yes)
    print(f"next: send {args.out} and {args.out.name}.sig to the server")


def answer_letter(site_folder: Any, path: Path, out: Path, yes: bool) -> "Study":
    """Answer a letter into a file with its signature. A refusal is answered too, and then raised for the site's own operator."""
    from intarsia.site.answer import answer, scrub
    from intarsia.wire.bounded import read_file
    from intarsia.wire.letters import Answers, Letter

    letter = Letter.from_bytes(read_file(path))
    site = site_folder.site()
    if letter.site != site.name:
        raise InputError(f"{path} is a letter to site {letter.site!r}; this is {site.name!r}.")
    study: Study = site_folder.accepted(letter.study_hash)
    if any(request.step == "sketch" for request in letter.requests):
        site_check.ask(site_folder.folder, [study], yes)
    messages: dict[str, bytes] = {}
    refusals: dict[str, str] = {}
    kind: type[IntarsiaError] = FederationError
    for request in letter.requests:
        try:
            messages[request.key] = answer(site, study, request.step, request.entries, site_folder.new_subjects)
        except Exception as error:  # what crosses the wall is scrubbed, here as on any line
            refusals[request.key] = scrub(site, study, error)
            kind = PrivacyError if isinstance(error, PrivacyError) else FederationError
            print(f"refused: {error}")
            break
    for step, count in Counter(request.step for request in letter.requests if request.key in messages).items():
        print(f"answered: {IN_WORDS.get(step, step)}{f' ({count} parts)' if count > 1 else ''}")
    write_signed(out, site, study, Answers(site.name, study.hash, messages, refusals).to_bytes())
    if refusals:
        raise kind("The site refused a request; the server is told that and nothing else. The study waits.")
    return study
