"""`intarsia site next`: the one next step of a study by files, done where it can be, else said.

A study needs a folder that files come to and go from: a shared one, or one whose files somebody carries. The server writes
SITE.letter there, the site SITE.answers; both stand for what would have gone over a network, message for message.
"""

import argparse
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intarsia.cli import site_check
from intarsia.cli.accepted import accepted
from intarsia.cli.confirm import add_fingerprints
from intarsia.cli.site_accept import run_accept
from intarsia.cli.site_letters import answer_letter
from intarsia.errors import InputError
from intarsia.files import read_json, replace, replace_json
from intarsia.wire.study import Study, read_study_text

STATE = "next.json"  # which letter was answered last, and whether all of it
EVERY_SECONDS = 1.0
MAIL = "mail"
MAIL_HELP = "the folder that files come to and go from (default: mail, in the folder)"


def register(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`add(name, help, run)` makes a subcommand of `intarsia site`."""
    parser = add("next", "the next step of a study by files: done where it can be, else said", run_next)
    parser.add_argument("mail", type=Path, nargs="?", help=MAIL_HELP)
    add_wait(parser)
    add_fingerprints(parser)
    site_check.add_yes(parser)


def add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait", type=float, nargs="?", const=float("inf"), default=0.0, metavar="SECONDS",
        help="go on as files come, until the study is done (or so many seconds have passed)",
    )  # fmt: skip


def run_next(args: argparse.Namespace) -> None:
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(args.dir)
    mail: Path = args.mail or args.dir / MAIL
    mail.mkdir(parents=True, exist_ok=True)
    if _state(args.dir).get("refused"):  # what was refused may have been mended
        replace_json(args.dir / STATE, {})
    in_turn(Steps(args, site_folder, mail).one, args.wait)


def in_turn(step: Callable[[], tuple[bool, str]], wait: float) -> None:
    """Take steps until there is none to take; with `wait` go on when files have come. A step says whether all is done, and what
    is waited for (nothing: another step can be taken at once)."""
    until, said = time.monotonic() + wait, ""
    while True:
        done, waiting = step()
        if waiting and waiting != said:
            print(waiting, flush=True)
            said = waiting
        if done or (waiting and time.monotonic() >= until):
            return
        if waiting:
            time.sleep(EVERY_SECONDS)


class Steps:
    """What a site may have to do next, in order."""

    def __init__(self, args: argparse.Namespace, site_folder: Any, mail: Path):
        self.args, self.site_folder, self.mail = args, site_folder, mail
        self.name = site_folder.name

    def one(self) -> tuple[bool, str]:
        """One step: whether the study is done here, and what is waited for."""
        public = self.mail / f"{self.name}.toml"
        if not public.exists() and (self.args.dir / "identity.key").is_file():
            replace(public, self.site_folder.identity().toml().encode())
            print(f"wrote {public} (the public keys, for whoever writes study.toml)")
        new = self._not_accepted()
        if new is not None:
            told = argparse.Namespace(dir=self.args.dir, study=new, fingerprints=self.args.fingerprints, json=False)
            if run_accept(told):
                raise InputError("Accepted, but this site would send nothing as it is: see above. Mend that, then go on.")
            return False, ""
        studies = accepted(self.args.dir, self.args.study)
        if not studies:
            return False, (
                f"waiting for {self.mail / 'study.toml'}: whoever plans the study writes it with `intarsia study new`, from the "
                "sites' public files"
            )
        return self._answer(studies)

    def _not_accepted(self) -> Path | None:
        """A study file that came and of which this site is a part."""
        path = self.mail / "study.toml"
        if not path.is_file():
            return None
        study = Study.parse(read_study_text(path)[1], str(path))
        known = {one.hash for one in accepted(self.args.dir)}
        return None if study.hash in known or self.name not in study.names else path

    def _answer(self, studies: list[Study]) -> tuple[bool, str]:
        letter = self.mail / f"{self.name}.letter"
        waiting = f"waiting for {letter}: the server writes it (`intarsia study next FOLDER {self.mail}`)"
        try:
            raw = letter.read_bytes()
        except FileNotFoundError:
            return any(self._has_results(study) for study in studies), waiting
        digest = hashlib.sha256(raw).hexdigest()
        if _state(self.args.dir).get("letter") == digest:
            return any(self._has_results(study) for study in studies), waiting
        out = self.mail / f"{self.name}.answers"
        replace_json(self.args.dir / STATE, {"letter": digest, "refused": True})
        study = answer_letter(self.site_folder, letter, out, self.args.yes)
        replace_json(self.args.dir / STATE, {"letter": digest, "refused": False})
        if self._has_results(study):
            self._results(study)
            return True, ""
        return False, ""

    def _has_results(self, study: Study) -> bool:
        return self.site_folder.site().run_store(study).get("receipt") is not None

    def _results(self, study: Study) -> None:
        from intarsia.cli.site import write_results

        out = self.args.dir / "coefficients.csv"
        for line in write_results(out, self.site_folder.site().model(study))[1]:
            print(line)
        print(f"done here. next: look at {out}; other forms of it: intarsia site table {self.args.dir} -o coefficients.xlsx")


def _state(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / STATE, "Remove it: it only says which letter was answered last.")
    except FileNotFoundError:
        return {}
