"""Messages that a line spoils: each is recorded once, with its receiver as it was, and then arrives otherwise.

The receiver refuses it in words, or nothing comes of the difference; then the message as it was sent is taken as if nothing had
been. A trial takes a few milliseconds: the receiver is called here, from a copy of its folder.
"""

import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.faults.studies import NAMES
from tests.faults.world import no_sync, spoilt

from intarsia.carriers.in_process import carrier
from intarsia.errors import IntarsiaError
from intarsia.server.study import protocol
from intarsia.server.study.fit import fit
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.round_folder import RoundFolder
from intarsia.site.answer import answer
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.gram_messages import BLOCK
from intarsia.wire.screening import ROUND
from intarsia.wire.study import Study

PLAIN = (BLOCK, ROUND)  # entries that are a number


@dataclass(frozen=True)
class ToSite:
    """What the server asked of a site, and what it answered."""

    before: Path
    name: str
    step: str
    payload: Mapping[str, bytes]
    told: bytes
    repeats: bool  # the same request on another copy has the same answer; else chance has a part in it

    @property
    def called(self) -> str:
        return f"{self.step} to {self.name}"

    def pieces(self) -> list[str]:
        return [key for key in self.payload if key not in PLAIN]

    def arrives(self, where: Path, piece: str, raw: bytes) -> bytes:
        site = SiteFolder.load(where / self.name)
        return answer(site.site(), Study.load(where / "study.toml"), self.step, {**self.payload, piece: raw})

    def sent(self, piece: str) -> bytes:
        return self.payload[piece]


@dataclass(frozen=True)
class ToServer:
    """What a site sent, and the server took."""

    before: Path
    name: str
    kind: str
    told: bytes
    round: int | None
    repeats: bool = True

    @property
    def called(self) -> str:
        return f"{self.kind} from {self.name}"

    def pieces(self) -> list[str]:
        return ["message"]

    def arrives(self, where: Path, piece: str, raw: bytes) -> bytes:
        folder = StudyFolder.open(where / "server")
        folder = folder if self.round is None else RoundFolder(folder, self.round)
        folder.accept(self.kind, self.name, raw)
        return folder.read(self.kind, self.name)

    def sent(self, piece: str) -> bytes:
        return self.told


Message = ToSite | ToServer


def recorded(prepare: Callable[[Path], None], root: Path) -> list[Message]:
    """Every message of a study in one process."""
    found: list[Message] = []
    where = root / "study"
    where.mkdir(parents=True)
    prepare(where)
    sites = {name: SiteFolder.load(where / name).site() for name in NAMES}
    folder = StudyFolder.create(where / "server", where / "study.toml")
    honest = carrier(list(sites.values()), folder.study)

    def copy(*parts: str) -> Path:
        to = root / str(len(found))
        shutil.rmtree(to, ignore_errors=True)
        for part in parts:
            if (where / part).is_dir():
                shutil.copytree(where / part, to / part)
            elif (where / part).is_file():
                shutil.copy(where / part, to / part)
        return to

    def ask(step: str, payloads: Mapping[str, protocol.Payload]) -> Mapping[str, protocol.Reply]:
        replies = {}
        for name, payload in payloads.items():
            raw = {key: v.read_bytes() if isinstance(v, Path) else v for key, v in payload.items()}
            before = copy(name, f"{name}.csv", "study.toml", "study.key")
            reply = honest(step, {name: raw})[name]
            assert isinstance(reply.message, bytes)
            message = ToSite(before, name, step, raw, reply.message, True)
            if message.pieces():
                again, first = shutil.copytree(before, root / "again"), message.pieces()[0]
                repeats = message.arrives(again, first, raw[first]) == reply.message
                found.append(replace(message, repeats=repeats))
                shutil.rmtree(again)
            replies[name] = reply
        return replies

    accept = StudyFolder.accept

    def taken(self: StudyFolder, kind: str, sender: str, raw: Any) -> bool:
        before = copy("server", "study.toml")
        told = raw.read_bytes() if isinstance(raw, Path) else raw
        found.append(ToServer(before, sender, kind, told, self.round))
        return accept(self, kind, sender, raw)

    StudyFolder.accept = taken  # type: ignore[method-assign]
    try:
        with no_sync():
            protocol.collect(folder, ask)
            fit(folder, workers=1)
            protocol.deliver(folder, ask)
    finally:
        StudyFolder.accept = accept  # type: ignore[method-assign]
    return found


def spoil(message: Message, where: Path, chance: random.Random) -> tuple[str, str, str] | None:
    """One piece of it arrives spoilt, then all of it as it was sent. A fault is its kind, what was tried, and what was said."""
    shutil.copytree(message.before, where)
    piece = chance.choice(message.pieces())
    right = message.sent(piece)
    wrong = spoilt(right, chance)
    tried = f"{message.called}, {piece}"
    with no_sync():
        try:
            told = message.arrives(where, piece, wrong)
        except IntarsiaError as error:
            if " " not in str(error):
                return "silent", tried, repr(error)
        except Exception as error:
            return "silent", tried, repr(error)
        else:
            if wrong != right and (told != message.told if message.repeats else True):
                return "lied", tried, "a spoilt message is taken as if it were right"
        try:
            told = message.arrives(where, piece, right)
        except Exception as error:
            return "lost", tried, f"the message as it was sent is refused afterwards: {error!r}"
    if message.repeats and told != message.told:
        return "lost", tried, "the message as it was sent has another answer afterwards"
    return None
