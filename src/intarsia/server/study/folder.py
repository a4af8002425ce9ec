"""The server's study folder: what has arrived, on disk, each step atomic and repeatable.

The folder is the truth about a study, not the engine: after a crash anywhere the same command looks here and goes on.
Nothing in it but study.toml and what the sites chose to send.

    study.toml offer/ share/ confirmation/ announcement/ alignment/ sketch/   the study; one file per site, as it came
    deal-N/ progress-N/ product/                a Gram study: shares of columns on their way, products between sites
    held-N/ look-N/ rounds/N/ screened.json     a screened study: shares that are held, looks, each round's messages, what is kept
    opened/ holder/                             what was opened of them for checks; the server's own sums where it is a holder
    checkpoint/ own_settings.json               the sampler's own; what was asked of the fit in place of study.toml's
    posterior.nc  fit.json                      the fit
    coefficients/ receipt/                      one file per site: only its own rows; that it has them
    predictions/<request>/                      masked parts, one file per site
    leave/                                      notices of sites that left after they had sent; nothing else of theirs is kept
    superseded/<fit>/                           an earlier fit: fit.json and the results of the sites that stayed
    changes.json                                this fit beside an earlier one
    digests.json events.jsonl                   what messages and posterior were when written; what came, was refused, and why
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.errors import FederationError, IntarsiaError, MessageError, StudyError, UnknownNameError
from intarsia.files import DamagedFileError, append, damaged, digest_of, locked, move, read_json, replace, seal_json, sweep
from intarsia.server.study import gram, kept, screened
from intarsia.server.study.sent_columns import check_columns
from intarsia.server.study.toml_text import dump
from intarsia.wire.alignment import AlignmentReport, Cohort, intersect, other_subjects, same
from intarsia.wire.announcement import Announcement
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.cohort_groups import Group, GroupedSketch, UnionCohort, join_groups, unite
from intarsia.wire.container import undamaged
from intarsia.wire.messages import Joined, Sketch, join
from intarsia.wire.signed import Confirmation, KeyOffer, Receipt, ShareBundle, Signed, verify
from intarsia.wire.study import Study, read_study_text

CHECKS = "checks.json"  # what `server.study.check` found
KINDS = ("offer", "share", "confirmation", "announcement", "alignment", "sketch", "product", "receipt")


class StudyFolder:
    """A study's folder at the server."""

    round: int | None = None  # of a screened study, where the folder is that of one round of the study in `above`
    above: "StudyFolder | None" = None

    def __init__(self, path: Path, study: Study):
        self.path = path
        self.study = study
        self._cohorts: tuple[Any, Mapping[str, Cohort | UnionCohort]] | None = None

    @classmethod
    def open(cls, path: str | Path) -> "StudyFolder":
        path = Path(path)
        if not (path / "study.toml").is_file():
            why = "it is a site's folder" if (path / "site.toml").is_file() else "it has no study.toml"
            why = f"{why if path.exists() else 'there is nothing'}. Give the folder at the server that `intarsia fit -o` made."
            raise (StudyError if path.exists() else UnknownNameError)(f"{path} is not a study folder: {why}")
        return cls(path, Study.load(path / "study.toml"))

    @classmethod
    def create(cls, path: str | Path, source: str | Path | Study) -> "StudyFolder":
        """The folder for this study file; an existing one must hold the same study."""
        path = Path(path)
        study = source if isinstance(source, Study) else Study.load(source)
        if (path / "study.toml").exists():
            folder = cls.open(path)
            if folder.study.hash != study.hash:
                raise StudyError(
                    f"{path} holds another study or run (hash {folder.study.hash[:12]}…, not {study.hash[:12]}…). "
                    "Use another folder: what was collected for one text is never used for another."
                )
            return folder
        if path.is_file():
            raise StudyError(f"{path} is a file; what the server keeps of a study goes into a folder. Give another name.")
        path.mkdir(parents=True, exist_ok=True)
        text = dump(study).encode() if isinstance(source, Study) else read_study_text(source)[0]
        write_atomic(path / "study.toml", text)
        return cls.open(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One command at a time: two that fit into one checkpoint would each find the other's pieces."""
        with locked(self.path / ".lock", busy=f"Another command is working on {self.path}. Wait for it, or stop it."):
            sweep(self.path)
            yield

    def file(self, kind: str, name: str) -> Path:
        return self.path / kind / f"{name}.{kind}"

    @property
    def left(self) -> tuple[str, ...]:
        """Sites that have left this run (`server.study.departure`), in the order of the roster."""
        there = self._there("leave")
        return tuple(name for name in self.study.names if f"{name}.leave" in there)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites of the roster that take part: all that have not left."""
        left = self.left
        return tuple(name for name in self.study.names if name not in left)

    def present(self, kind: str) -> tuple[str, ...]:
        there = self._there(kind)
        return tuple(name for name in self.names if f"{name}.{kind}" in there)

    def missing(self, kind: str) -> tuple[str, ...]:
        there = self._there(kind)
        return tuple(name for name in self.names if f"{name}.{kind}" not in there)

    def _there(self, kind: str) -> set[str]:
        """What lies in the folder of a kind: looked at once, however many sites there are."""
        try:
            return set(os.listdir(self.path / kind))
        except FileNotFoundError:
            return set()

    def damaged(self, kind: str) -> tuple[str, ...]:
        """The sites whose message lies here otherwise than it arrived: the disk changed it, not they."""
        return tuple(name for name in self.present(kind) if not kept.intact(self.path, kept.item(kind, name)))

    def require(self, kind: str, of: tuple[str, ...] | None = None) -> None:
        """Fail closed, by name, unless every site of the roster (or `of` these) has delivered."""
        missing = [name for name in self.missing(kind) if of is None or name in of]
        if missing:
            have = ", ".join(self.present(kind)) or "none"
            raise FederationError(
                f"Study {self.study.id!r} lacks the {kind} of {', '.join(missing)} (present: {have}). A study is not "
                "run without all its sites; what has arrived is kept. Run the same command again when they are there."
            )

    def read(self, kind: str, name: str) -> bytes:
        return self.whole(kind, name).read_bytes()

    def whole(self, kind: str, name: str) -> Path:
        """The file of a message, found to be as it arrived."""
        if not kept.intact(self.path, kept.item(kind, name)):
            raise damaged(self.file(kind, name), kept.sent_again(kind, name))
        return self.file(kind, name)

    def accept(self, kind: str, sender: str, raw: bytes | Path) -> bool:
        """Check what a site sent and keep it; True if it is new, False if the same had come already.

        A path is taken over (moved) once it has passed. A refusal names the site, is noted, and changes nothing.
        """
        try:
            return self._accept(kind, sender, raw)
        except DamagedFileError:
            raise  # something else that lies here
        except IntarsiaError as error:
            self.note("refused", site=sender, kind=kind, why=str(error))
            raise

    def _accept(self, kind: str, sender: str, raw: bytes | Path) -> bool:
        self.study.check_sender(sender)
        if sender in self.left:
            raise FederationError(f"Site {sender!r} has left this run; nothing of it is taken in any more. Refused.")
        target, item, digest = self.file(kind, sender), kept.item(kind, sender), digest_of(raw)
        here = digest_of(target) if target.is_file() else None
        before = kept.remembered(self.path, item)
        if here is not None and before is None and undamaged(target.read_bytes()):
            before = here
        if here is not None and here == digest == before:
            return False
        if before is not None and digest != before:
            raise FederationError(
                f"Site {sender!r} has sent its {kind} already, and this one is different. A second {kind} in the same "
                "run is refused: it would tell more than the site agreed to. Start a new run (`intarsia study again`)."
            )
        try:
            _check(kind)(self, sender, raw)
        except MessageError as error:
            raise FederationError(f"The {kind} of site {sender!r} is refused: {error}") from None
        target.parent.mkdir(exist_ok=True)
        kept.remember(self.path, item, digest)
        if isinstance(raw, Path):
            move(raw, target)
        else:
            replace(target, raw)
        self.note("accepted" if here is None else "restored", site=sender, kind=kind, bytes=target.stat().st_size)
        return True

    def announced(self, name: str) -> Announcement | None:
        """What a site announced; None where nothing was (a study by files)."""
        there = self.file("announcement", name).is_file()
        return Announcement.from_bytes(self.whole("announcement", name)) if there else None

    def cohorts(self) -> Mapping[str, Cohort | UnionCohort]:
        """The server's answer to the alignment, for every site."""
        self.require("alignment")
        stats = [self.file("alignment", name).stat() for name in self.names]
        as_of = tuple((found.st_mtime_ns, found.st_ino) for found in stats)
        if self._cohorts is None or self._cohorts[0] != as_of:  # asked for with every sketch
            self._cohorts = as_of, self._agreed()
        return self._cohorts[1]

    def _agreed(self) -> Mapping[str, Cohort | UnionCohort]:
        reports = {name: AlignmentReport.from_bytes(self.read("alignment", name)) for name in self.names}
        return unite(reports, self.study) if self.study.alignment.mode == "union" else intersect(reports)

    def listed(self) -> dict[str, int]:
        """How many subjects each site listed; empty where not all lists are here."""
        if self.left or self.missing("alignment"):
            return {}
        return {name: AlignmentReport.from_bytes(self.read("alignment", name)).n for name in self.names}

    def left_out(self) -> dict[str, int]:
        """How many subjects of each site's list are not at all sites, where any are; empty where the lists did not come here.

        Nor is it known any more when a site has left: its list is deleted.
        """
        counts = self.listed()
        if not counts:
            return {}
        return {name: counts[name] - cohort.n for name, cohort in self.cohorts().items() if counts[name] > cohort.n}

    def sketches(self) -> list[Sketch]:
        """All sketches in the order of the roster."""
        self.require("sketch")
        return [Sketch.load(self.whole("sketch", name)) for name in self.names]

    def joined(self) -> Joined:
        """All sites' sketches as one: columns side by side and, in a union, the groups' rows below each other.

        Of a Gram study, a root of the joint Gram matrix.
        """
        if self.study.sketch.gram:
            return gram.joined(self)
        if self.study.sketch.screened:
            return screened.joined(self)
        self.require("sketch")
        if self.study.alignment.mode != "union":
            return join(self.sketches())
        return self._joined_groups()[0]

    def _joined_groups(self) -> tuple[Joined, tuple[Group, ...]]:
        return join_groups([GroupedSketch.load(self.whole("sketch", name)) for name in self.names])

    def groups(self) -> tuple[tuple[Group, ...], int]:
        """The groups of subjects by the responses they have, and how many subjects are in none; no groups outside of a union."""
        if self.study.alignment.mode != "union":
            return (), 0
        if self.left:
            return self._joined_groups()[1], 0
        first = next(iter(self.cohorts().values()))
        return (first.groups, first.dropped) if isinstance(first, UnionCohort) else ((), 0)

    @property
    def collected(self) -> bool:
        """Whether everything the fit needs is here."""
        if self.study.sketch.screened and self.round is None:
            return screened.collected(self)
        return gram.collected(self) if self.study.sketch.shares else not self.missing("sketch")

    def write(self, path: Path, content: bytes) -> None:
        """A file of the server's own in this folder, whole or not at all."""
        write_atomic(path, content)

    def drop(self, kind: str) -> None:
        """Delete messages that have been handed on and are of no use any more."""
        for name in self.names:
            self.file(kind, name).unlink(missing_ok=True)
        kept.forget(self.path, lambda item: item.startswith(f"{kind}/"))

    def sketch_facts(self, name: str) -> dict[str, Any]:
        """What an accepted sketch must have in common with the others, without reading all of its numbers again."""
        try:
            return read_json(self.path / "sketch" / f"{name}.facts", "")
        except (OSError, DamagedFileError):
            return _facts(_parts(self, self.whole("sketch", name)))

    def note(self, event: str, **what: Any) -> None:
        """Append to the event log; one line per event."""
        line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **what})
        append(self.path / "events.jsonl", line.encode())

    def same_hash(self, what: str, sender: str, found: str, site: str) -> None:
        if site != sender:
            raise FederationError(f"Site {sender!r} sent a {what} in the name of {site!r}. Refused.")
        if found != self.study.hash:
            raise FederationError(
                f"The {what} of site {sender!r} was made for another study, run or text of study.toml "
                f"(hash {found[:12]}…, expected {self.study.hash[:12]}…). Refused; compare the study files."
            )


def _check_offer(folder: StudyFolder, sender: str, raw: bytes | Path) -> None:
    offer = KeyOffer.from_bytes(_bytes(raw))
    folder.same_hash("offer", sender, offer.study_hash, offer.site)
    _check_signed(folder, "offer", sender, offer)


def _check_share(folder: StudyFolder, sender: str, raw: bytes | Path) -> None:
    bundle = ShareBundle.from_bytes(_bytes(raw))
    folder.same_hash("share", sender, bundle.study_hash, bundle.site)
    _check_signed(folder, "share", sender, bundle)


def _check_confirmation(folder: StudyFolder, sender: str, raw: bytes | Path) -> None:
    confirmation = Confirmation.from_bytes(_bytes(raw))
    folder.same_hash("confirmation", sender, confirmation.study_hash, confirmation.site)


def _check_announcement(folder: StudyFolder, sender: str, raw: bytes | Path) -> None:
    told = Announcement.from_bytes(raw)
    folder.same_hash("announcement", sender, told.study_hash, told.site)
    most = folder.study.alignment.max_subjects
    if most is not None and told.n > most:
        raise FederationError(f"Site {sender!r} announces more subjects than [alignment] max_subjects of study.toml allows.")


def _check_receipt(folder: StudyFolder, sender: str, raw: bytes | Path) -> None:
    receipt = Receipt.from_bytes(_bytes(raw))
    folder.same_hash("receipt", sender, receipt.study_hash, receipt.site)
    sent = folder.file("coefficients", sender)
    if not sent.is_file() or Coefficients.from_bytes(sent).fit_digest != receipt.fit_digest:
        raise FederationError(f"Site {sender!r} acknowledges the coefficients of another fit. Refused.")
    _check_signed(folder, "receipt", sender, receipt)


def _check_signed(folder: StudyFolder, kind: str, sender: str, message: Signed) -> None:
    key = folder.study.site(sender).signing_key
    if key is not None and not verify(key, message.signature, message.body()):
        raise FederationError(f"The {kind} of site {sender!r} is not signed with its key in study.toml. Refused.")


def _check_alignment(folder: StudyFolder, sender: str, raw: bytes | Path) -> None:
    report = AlignmentReport.from_bytes(raw)
    folder.same_hash("alignment", sender, report.study_hash, report.site)
    if report.mode != folder.study.alignment.mode:
        raise FederationError(f"Site {sender!r} aligns in mode {report.mode!r}, the study in {folder.study.alignment.mode!r}.")
    announced = folder.announced(sender)
    if announced is not None and announced.n != report.n:
        raise FederationError(f"Site {sender!r} aligns another number of subjects than it announced. Refused.")


def _parts(folder: StudyFolder, raw: bytes | Path) -> dict[int, Sketch]:
    """What a site sent, by group; a study whose subjects have all responses has one."""
    if folder.study.alignment.mode != "union":
        return {0: Sketch.load(raw)}
    return dict(GroupedSketch.load(raw).parts)


def _check_sketch(folder: StudyFolder, sender: str, raw: bytes | Path) -> None:
    if folder.study.sketch.screened and folder.round is None:
        screened.check_columns_stated(folder, sender, raw)
        return
    if folder.study.sketch.shares:
        gram.check_block(folder, sender, raw)
        return
    study, parts = folder.study, _parts(folder, raw)
    cohorts = None if folder.missing("alignment") else folder.cohorts()
    if study.alignment.mode == "union":
        if cohorts is None:
            raise FederationError(f"The sketches of site {sender!r} came before the alignment. Refused.")
        _check_groups(sender, parts, cohorts[sender])
    for number, sketch in parts.items():
        folder.same_hash("sketch", sender, sketch.study_hash, sketch.site)
        agreed = None if cohorts is None else cohorts[sender]
        m = agreed.groups[number].m if isinstance(agreed, UnionCohort) else study.sketch.m
        for what, found, expected in (
            ("m", sketch.m, m),
            ("kind", sketch.kind, study.sketch.kind),
            ("precision", sketch.precision, study.sketch.precision),
        ):
            if found != expected:
                raise FederationError(f"The sketch of site {sender!r} has {what} {found}, the study says {expected}.")
        check_columns(study, sender, sketch, folder.announced(sender))
        if not sketch.order_mac and len(study.names) > 1:
            raise FederationError(f"The sketch of site {sender!r} carries no proof of the subjects' order.")
        if agreed is not None:
            n = agreed.groups[number].n if isinstance(agreed, UnionCohort) else agreed.n
            if sketch.n != n:
                raise FederationError(f"The sketch of site {sender!r} is over {sketch.n} subjects, {n} were agreed.")
            announced = AlignmentReport.from_bytes(folder.whole("alignment", sender)).mac
            if study.alignment.mode == "strict" and not same(announced, sketch.order_mac):
                raise FederationError(f"The sketch of site {sender!r} is over other subjects than it announced. Refused.")
    facts = _facts(parts)
    # In a study without groups all have been compared with the first of them.
    for name in folder.present("sketch")[: None if study.alignment.mode == "union" else 1]:
        other = folder.sketch_facts(name)
        if other["key_fingerprint"] != facts["key_fingerprint"]:
            raise FederationError(f"Sites {name!r} and {sender!r} used different study keys. Agree on the key again.")
        for number in set(other["groups"]) & set(facts["groups"]):
            theirs, ours = other["groups"][number], facts["groups"][number]
            if theirs != ours:
                raise FederationError(other_subjects(name, theirs["n"], sender, ours["n"]))
    write_atomic(folder.path / "sketch" / f"{sender}.facts", seal_json(facts, None))


def _check_groups(sender: str, parts: Mapping[int, Sketch], agreed: Cohort | UnionCohort) -> None:
    """A sketch for every group in which the site has members, with just the responses it reported there."""
    assert isinstance(agreed, UnionCohort)
    expected = {int(g) for g in np.unique(agreed.member) if g >= 0}
    if set(parts) != expected:
        raise FederationError(f"Site {sender!r} sketched other groups of subjects than were agreed. Refused.")
    for number, sketch in parts.items():
        if set(sketch.responses) - set(agreed.groups[number].responses):
            raise FederationError(f"Site {sender!r} sent a response for a group that does not have it. Refused.")


def _facts(parts: Mapping[int, Sketch]) -> dict[str, Any]:
    first = next(iter(parts.values()))
    groups = {str(number): {"n": part.n, "order_mac": part.order_mac} for number, part in parts.items()}
    return {"key_fingerprint": first.key_fingerprint, "groups": groups}


_CHECKS: dict[str, Callable[[StudyFolder, str, bytes | Path], None]] = {
    "offer": _check_offer,
    "share": _check_share,
    "confirmation": _check_confirmation,
    "announcement": _check_announcement,
    "alignment": _check_alignment,
    "sketch": _check_sketch,
    "product": gram.check_product,
    "receipt": _check_receipt,
}


_OF_BLOCK: dict[str, Callable[[StudyFolder, str, bytes | Path, int], None]] = {
    "deal": gram.check_deal,
    "progress": gram.check_product,
    "held": screened.check_held,
    "look": screened.check_look,
}


def _check(kind: str) -> Callable[[StudyFolder, str, bytes | Path], None]:
    """The check of a kind of message; those of a Gram study that go block by block have the block's number in their kind."""
    name, _, number = kind.partition("-")
    if not number:
        return _CHECKS[kind]
    return lambda folder, sender, raw: _OF_BLOCK[name](folder, sender, raw, int(number))


def write_atomic(path: Path, content: bytes) -> None:
    """`files.replace` in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, content)


def _bytes(raw: bytes | Path) -> bytes:
    return raw.read_bytes() if isinstance(raw, Path) else raw
