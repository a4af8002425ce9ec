"""Where a site keeps what belongs to one study: its share, the study key, its sketch, scales, coefficients.

On disk the folder and its files are the owner's alone. Each item is written once and whole; a repeated step finds the
item and sends the same bytes again, so a site never makes a second sketch under the same Φ. `sent.jsonl` lists every
message that left, for the site's data officer, and `sent.counts.json` how often each was sent.
"""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from intarsia.errors import FederationError
from intarsia.privacy.ledger import lock
from intarsia.site.counted_log import CountedLog


class RunStore:
    """One study at one site, in a folder or (for studies within one process) in memory."""

    def __init__(self, folder: str | Path | None = None):
        self.folder = None if folder is None else Path(folder)
        self._memory: dict[str, bytes] = {}
        self.log: list[dict[str, object]] = []
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get(self, name: str) -> bytes | None:
        if self.folder is None:
            return self._memory.get(name)
        try:
            return (self.folder / name).read_bytes()
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
        written = self._write(name, content)
        try:
            os.link(written, self.folder / name)  # fails when another step was first
        except FileExistsError:
            return (self.folder / name).read_bytes()
        finally:
            written.unlink()
        return content

    def replace(self, name: str, content: bytes) -> None:
        if self.folder is None:
            self._memory[name] = content
        else:
            os.replace(self._write(name, content), self.folder / name)

    def _write(self, name: str, content: bytes) -> Path:
        """A file beside the item, whole and on the disk, for this step alone."""
        assert self.folder is not None
        temporary = self.folder / f".{name}.{os.getpid()}.{secrets.token_hex(4)}.part"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def rename(self, old: str, new: str) -> None:
        if self.folder is None:
            self._memory[new] = self._memory.pop(old)
        else:
            os.replace(self.folder / old, self.folder / new)

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


@contextlib.contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Nobody else at this site, in this process or another, is inside at the same time; without a folder there is nobody else."""
    if folder is None:
        yield
        return
    descriptor = os.open(folder / "one-at-a-time.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def note_problem(folder: Path, code: str, text: str, place: str) -> None:
    """A line in `problems.jsonl` of a run folder or, where no study is known, of the site's folder.

    Refusals from one place in our code are of one kind: nobody can push another kind out by sending many of one.
    """
    CountedLog(folder, "problems", limited=True).note(place, {"code": code, "text": text})
