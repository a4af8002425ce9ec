"""`intarsia study next`: the server's next step of a study by files, done where it can be, else said.

The server's end of `intarsia site next`: sites' answers in, letters to the sites out, until the fit is made and delivered.
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

from intarsia.cli.fit import add_length, found, how_to_go_on, length_of
from intarsia.cli.show import emit
from intarsia.cli.site_next import MAIL, MAIL_HELP, add_wait, in_turn
from intarsia.errors import FederationError, MessageError, StudyError
from intarsia.files import replace
from intarsia.wire.plain import some
from intarsia.wire.study import Study


def register(sub: Any) -> None:
    text = "the next step of a study by files, at the server: done where it can be, else said"
    parser = sub.add_parser("next", help=text, description=text)
    parser.add_argument("folder", type=Path, help="the study folder at the server; made where it is not there yet")
    parser.add_argument("mail", type=Path, nargs="?", help=MAIL_HELP)
    parser.add_argument("--study", type=Path, help="study.toml (default: the one in the folder, else in the mail)")
    add_wait(parser)
    add_length(parser)
    parser.add_argument("--workers", type=int, help="processes for the sampler")
    parser.set_defaults(run=run_next, json=False)


def run_next(args: argparse.Namespace) -> None:
    mail: Path = args.mail or args.folder / MAIL
    mail.mkdir(parents=True, exist_ok=True)
    if not (args.folder / "study.toml").is_file():
        planned = args.study or mail / "study.toml"
        if not planned.is_file():
            print(_plan(mail))
            return
        study = Study.load(planned)
        study.check_pins()
        if planned != mail / "study.toml":
            replace(mail / "study.toml", planned.read_bytes())
            print(f"wrote {mail / 'study.toml'} (every site reads and accepts it)")
    in_turn(Steps(args, mail).one, args.wait)


def _plan(mail: Path) -> str:
    public = [path for path in sorted(mail.glob("*.toml")) if path.name != "study.toml"]
    sites = " ".join(f"--site {path}" for path in public) or f"--site {mail / 'SITE.toml'} (each site's own file) …"
    return f"next: intarsia study new {mail / 'study.toml'} --id NAME --m ROWS {sites} --responses SITE=A,B"


class Steps:
    """What came, and what is asked next."""

    def __init__(self, args: argparse.Namespace, mail: Path):
        self.args, self.mail = args, mail
        self._taken: set[str] = set()

    def one(self) -> tuple[bool, str]:
        """Take in the answers that came and go as far as they allow: whether the study is done, and who is waited for."""
        from intarsia.carriers.by_letters import fit_by_letters
        from intarsia.progress import Bar

        args, begun = self.args, (self.args.folder / "study.toml").is_file()
        answers = self._new()
        if begun and self._taken and not answers:
            return False, self._waiting()
        planned = None if begun else args.study or self.mail / "study.toml"
        try:
            with Bar() as bar:
                how = {"workers": args.workers, "progress": bar, "length": length_of(args)}
                summary = fit_by_letters(list(answers), planned, args.folder, **how)
        except FederationError as error:
            if not args.wait:
                raise
            print(str(error), flush=True)
            summary = {"letters": []}
        self._taken |= set(answers.values()) | {""}
        self._post()
        if "verdict" not in summary:
            return False, self._waiting()
        return self._fitted(summary)

    def _new(self) -> dict[Path, str]:
        """Files of answers that were not taken in yet, whole and with their signatures, and their digests."""
        out = {}
        for path in sorted(self.mail.glob("*.answers")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest not in self._taken and (self._signed(path) or not self.args.wait):
                out[path] = digest
        return out

    def _signed(self, path: Path) -> bool:
        """While files come, a message may be there before the signature that belongs to it."""
        from intarsia.carriers.files import check_signature
        from intarsia.wire.letters import Answers

        try:
            study = Study.load(self.args.folder / "study.toml")
            check_signature(study, Answers.from_bytes(path.read_bytes()).site, path.read_bytes(), path)
        except (FederationError, MessageError, StudyError, OSError):
            return False
        return True

    def _post(self) -> None:
        """The letters into the mail, and out of it those that are answered."""
        folder = self.args.folder
        for name in Study.load(folder / "study.toml").names:
            letter, there = folder / "letters" / f"{name}.letter", self.mail / f"{name}.letter"
            if not letter.is_file():
                there.unlink(missing_ok=True)
            elif not there.is_file() or there.read_bytes() != letter.read_bytes():
                replace(there, letter.read_bytes())

    def _waiting(self) -> str:
        asked = [path.stem for path in sorted(self.mail.glob("*.letter"))]
        each = f"each: intarsia site next DIR {self.mail}"
        return f"waiting for the answers of {some(asked)} to the letters in {self.mail} ({each})"

    def _fitted(self, summary: dict[str, Any]) -> tuple[bool, str]:
        folder = self.args.folder
        later = f"intarsia study next {folder} {self.mail}"
        if summary.get("letters"):
            return False, "\n".join([*found(summary), self._waiting()])
        lines = [*found(summary), *how_to_go_on(summary, later)]
        if summary.get("letters") == []:
            lines.append("every site has its coefficients and has acknowledged them")
        lines.append(f"next: intarsia report {folder} -o report.html")
        emit(self.args, summary, lines)
        return True, ""
