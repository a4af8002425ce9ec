"""`intarsia site answer`: a screened study by files. The server's letter in, this site's answers out."""

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from intarsia.cli import site_check
from intarsia.cli.message_files import write_signed
from intarsia.errors import FederationError, InputError

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
    from intarsia.site.answer import answer, scrub
    from intarsia.site.site_folder import SiteFolder
    from intarsia.wire.bounded import read_file
    from intarsia.wire.letters import Answers, Letter

    letter = Letter.from_bytes(read_file(args.letter))
    site_folder = SiteFolder.load(args.dir)
    site = site_folder.site()
    if letter.site != site.name:
        raise InputError(f"{args.letter} is a letter to site {letter.site!r}; this is {site.name!r}.")
    study = site_folder.accepted(letter.study_hash)
    if any(request.step == "sketch" for request in letter.requests):
        site_check.ask(args.dir, [study], args.yes)
    messages: dict[str, bytes] = {}
    refusals: dict[str, str] = {}
    for request in letter.requests:
        try:
            messages[request.key] = answer(site, study, request.step, request.entries, site_folder.new_subjects)
        except Exception as error:  # what crosses the wall is scrubbed, here as on any line
            refusals[request.key] = scrub(site, study, error)
            print(f"refused: {error}")
            break
    for step, count in Counter(request.step for request in letter.requests if request.key in messages).items():
        print(f"answered: {IN_WORDS.get(step, step)}{f' ({count} parts)' if count > 1 else ''}")
    write_signed(args.out, site, study, Answers(site.name, study.hash, messages, refusals).to_bytes())
    print(f"send {args.out} and {args.out.name}.sig to the server")
    if refusals:
        raise FederationError("The site refused a request; the server is told that and nothing else. The study waits.")
