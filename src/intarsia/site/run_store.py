"""Where a site keeps what belongs to one study: its share, the study key, its sketch, scales, coefficients.

On disk the folder and its files are the owner's alone. Each item is written once and whole; a repeated step finds the
item and sends the same bytes again, so a site never makes a second sketch under the same Φ. What is kept has its digest with
it and is checked against it each time. `sent.jsonl` lists every
message that left, for the site's data officer, and `sent.counts.json` how often each was sent.
"""

import hashlib
import re
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from intarsia import files
from intarsia.errors import FederationError
from intarsia.site.counted_log import CountedLog
from intarsia.wire.container import MAGIC, undamaged

_FIRST = "study.hash"  # the item that a run folder begins with
_FOR_PEOPLE = ("card", "preflight")  # how their names begin
_JSON_DIGEST = b'\n "sha256": "'
_REMEDY = (
    "It is not made again, and nothing of it leaves: under one Φ everything is made once. Restore the site's folder from a "
    "backup; without one, ask for a new run of the study (`intarsia study again`)."
)


class RunStore:
    """One study at one site, in a folder or (for studies within one process) in memory."""

    def __init__(self, folder: str | Path | None = None):
        self.folder = None if folder is None else Path(folder)
        self._memory: dict[str, bytes] = {}
        self.checked: set[str] = set()  # large files whose digests were compared in this process
        self.log: list[dict[str, object]] = []
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.sweep(self.folder)

    def get(self, name: str) -> bytes | None:
        """The item as it was kept: one that the disk changed is refused, and not sent, signed or used as if it were right."""
        if self.folder is None:
            return self._memory.get(name)
        try:
            return read_item(self.folder / name)
        except FileNotFoundError:
            return None

    def path(self, name: str) -> Path | None:
        """The file of an item, when the store is a folder."""
        return None if self.folder is None else self.folder / name

    def put(self, name: str, content: bytes) -> bytes:
        """Keep an item; what is there already stays and is returned, also when two steps bring an item at the same moment."""
        existing = self.get(name)
        if existing is not None:
            return existing
        if self.folder is None:
            return self._memory.setdefault(name, content)
        try:
            files.create(self.folder / name, _with_digest(self.folder / name, content), mode=files.OWNER_ONLY)
        except FileExistsError:  # another step was first
            return read_item(self.folder / name)
        return content

    def replace(self, name: str, content: bytes) -> None:
        if self.folder is None:
            self._memory[name] = content
        else:
            files.replace(self.folder / name, _with_digest(self.folder / name, content), mode=files.OWNER_ONLY)

    def rename(self, old: str, new: str) -> None:
        if self.folder is None:
            self._memory[new] = self._memory.pop(old)
        else:
            files.move(self.folder / old, self.folder / new)

    def forget(self, name: str) -> None:
        """Delete an item that has done its work, such as a key of the run; one that is not there is no mistake."""
        if self.folder is None:
            self._memory.pop(name, None)
        else:
            (self.folder / name).unlink(missing_ok=True)

    def sent(self, step: str, content: bytes) -> None:
        """Note a message that leaves the site; the same again is counted."""
        entry: dict[str, object] = {"step": step, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if entry not in self.log:
            self.log.append(entry)
        if self.folder is not None:
            CountedLog(self.folder, "sent", limited=False).note(step, entry)

    def problem(self, code: str, text: str, place: str) -> None:
        """Note a refusal, in full, for the site's own operator."""
        if self.folder is not None:
            note_problem(self.folder, code, text, place)

    def need(self, name: str, remedy: str) -> bytes:
        content = self.get(name)
        if content is None:
            raise FederationError(f"This site has no {name} for the study yet. {remedy}")
        return content


def one_at_a_time(folder: Path | None) -> AbstractContextManager[None]:
    """Nobody else at this site, in this process or another, is inside at the same time; without a folder there is nobody else."""
    return nullcontext() if folder is None else files.locked(folder / "one-at-a-time.lock")


def read_item(path: Path) -> bytes:
    """An item of a run folder, found to be what was kept; FileNotFoundError where it is not there."""
    raw = path.read_bytes()
    if _plain(path):
        return raw
    if raw.startswith(MAGIC):
        if undamaged(raw):
            return raw
    elif path.suffix == ".json":
        head, _, tail = raw.rpartition(_JSON_DIGEST)
        content = head.removesuffix(b",") + b"}"
        if tail == hashlib.sha256(content).hexdigest().encode() + b'"}':
            return content
    else:
        return files.unseal(raw, path, _REMEDY)
    raise files.damaged(path, _REMEDY)


def _with_digest(path: Path, content: bytes) -> bytes:
    """The bytes of an item's file: with a digest where it has none of its own."""
    if content.startswith(MAGIC) or _plain(path):
        return content
    if path.suffix == ".json":
        comma = b"" if content == b"{}" else b","
        return content[:-1] + comma + _JSON_DIGEST + hashlib.sha256(content).hexdigest().encode() + b'"}'
    return files.seal(content)


def _plain(path: Path) -> bool:
    """Pages for people have no digest; nor has anything in a folder that an earlier version began."""
    if path.name.startswith(_FOR_PEOPLE):
        return True
    try:
        return re.fullmatch(rb"[0-9a-f]{64}", (path.parent / _FIRST).read_bytes()) is not None
    except FileNotFoundError:
        return False


def note_problem(folder: Path, code: str, text: str, place: str) -> None:
    """A line in `problems.jsonl` of a run folder or, where no study is known, of the site's folder.

    Refusals from one place in our code are of one kind: nobody can push another kind out by sending many of one.
    """
    CountedLog(folder, "problems", limited=True).note(place, {"code": code, "text": text})
