"""Files written whole or not at all, and read back only as they were written.

    replace, create     content in one step: over what is there, or never over what is there
    writing             the same for content that comes piece by piece
    append, json_lines  a log of lines; a last line that a crash cut is dropped
    seal, unseal        content with its own digest at the end; open_sealed, replace_arrays and read_arrays for large ones
    replace_json, read_json  a value with its digest among its entries; seal_json, unseal_json the same as bytes
    locked              one at a time
    sweep               what a killed process left half written

What is written is on the disk, with its name, before the function returns. A new file is made beside its place under the name
`.NAME.XXXXXXXX.part` and locked while it is written. `sweep` deletes those that nobody holds, and whoever writes a file again
those of its name.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from intarsia.errors import FederationError, IntarsiaError

OPEN, OWNER_ONLY = 0o644, 0o600  # modes of files, less what the user's umask takes away
_PART = re.compile(r"\..+\.[0-9a-f]{8}\.part")
_SEAL = b"\nsha256 "
_SEAL_BYTES = len(_SEAL) + 64 + 1
_BLOCK_BYTES = 2**22
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_DIGEST = "sha256"  # the entry of a JSON file that holds its digest


class DamagedFileError(IntarsiaError):
    """A file of ours is not as it was written: cut short, changed or from another program."""

    exit_code = 10


def replace(path: Path, content: bytes, *, mode: int = OPEN) -> None:
    """Write a file over what is there: readers find the old content or the new one, whole, also after a power cut."""
    with writing(path, mode=mode) as file:
        file.write(content)


def create(path: Path, content: bytes, *, mode: int = OPEN) -> None:
    """The same, but FileExistsError where the name is taken: of two at the same moment one comes first."""
    with _named(path):
        part, file = _begin(path, mode)
        with file, _removed(part):
            file.write(content)
            _finish(file)
            os.link(part, path)  # unlike a rename, this fails when the name is taken
        sync_folder(path.parent)


@contextlib.contextmanager
def writing(path: Path, *, mode: int = OPEN, sealed: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to, in order; it takes its place when the block ends, and leaves no trace when the block fails.

    `sealed`: its digest is put at its end. A pipe or a device that is there already is written to as it is.
    """
    with _named(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as pipe:
                yield pipe
            return
        part, file = _begin(path, mode)
        with file, _removed(part):
            if sealed:
                hashed = _Hashed(file)
                yield hashed  # type: ignore[misc]  # writing in order is all it can do
                file.write(_SEAL + hashed.digest.hexdigest().encode() + b"\n")
            else:
                yield file
            _finish(file)
            os.replace(part, path)
        sync_folder(path.parent)


def reserve(file: IO[bytes], size: int) -> None:
    """Take room on the disk for so many bytes, or fail as a full disk does; they can then be written through a memory map."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:  # pragma: no cover
        file.truncate(size)


def move(part: Path, path: Path) -> None:
    """A finished file beside or below takes its place, once it is on the disk."""
    with _named(path):
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)


def append(path: Path, line: bytes, *, mode: int = OPEN) -> None:
    """One more line of a log, whole or not at all; a last line without its end, which a crash left, is dropped."""
    with _named(path), open(os.open(path, os.O_RDWR | os.O_CREAT, mode), "r+b", buffering=0) as file:
        _lock(file.fileno())
        end = _whole_lines(file)
        file.truncate(end)
        file.seek(end)
        try:
            left = line + b"\n"
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a log, none where there is no file; a line that is no entry, cut or overwritten, is left out."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                found += [entry] if isinstance(entry, dict) else []
    return found


def digest_of(source: bytes | Path) -> str:
    """SHA-256 of a content, or of a file's."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(content: bytes) -> bytes:
    """The content and its digest, one behind the other."""
    return content + _SEAL + hashlib.sha256(content).hexdigest().encode() + b"\n"


def unseal(raw: bytes, what: object, remedy: str) -> bytes:
    """The content of `seal`. DamagedFileError says `what` is damaged, and the remedy, where the digest does not fit."""
    content = raw[:-_SEAL_BYTES]
    if len(raw) < _SEAL_BYTES or raw != seal(content):
        raise damaged(what, remedy)
    return content


def damaged(what: object, remedy: str) -> DamagedFileError:
    return DamagedFileError(f"{what} is damaged: its content is not what was written there. {remedy}")


def open_sealed(path: Path, remedy: str) -> BinaryIO:
    """A file of `writing(..., sealed=True)`, read through once and found whole, at its beginning; its digest is at its end."""
    file = path.open("rb")
    try:
        left, digest = os.fstat(file.fileno()).st_size - _SEAL_BYTES, hashlib.sha256()
        while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
            digest.update(block)
            left -= len(block)
        if left or file.read() != _SEAL + digest.hexdigest().encode() + b"\n":
            raise damaged(path, remedy)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def replace_arrays(path: Path, arrays: Mapping[str, Any], *, mode: int = OPEN) -> None:
    """Arrays by name, sealed. None of them is copied in memory."""
    with writing(path, mode=mode, sealed=True) as file:
        np.savez(file, **arrays)


def read_arrays(path: Path, remedy: str) -> dict[str, np.ndarray]:
    """What `replace_arrays` wrote, to the bit."""
    with open_sealed(path, remedy) as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (ValueError, KeyError, OSError, EOFError) as error:
            raise damaged(path, remedy) from error


def replace_json(path: Path, value: Mapping[str, Any], *, mode: int = OPEN, indent: int | None = 1) -> None:
    """A value with its digest as one more entry, in the order given; without `indent` on one line, several times as fast."""
    replace(path, seal_json(value, indent), mode=mode)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """What `replace_json` wrote; one written without a digest, by hand or by an earlier version, need only be whole."""
    return unseal_json(path.read_bytes(), path, remedy)


def seal_json(value: Mapping[str, Any], indent: int | None = 1) -> bytes:
    plain = json.loads(json.dumps(value))
    return json.dumps(plain | {_DIGEST: _json_digest(plain)}, indent=indent).encode() + b"\n"


def unseal_json(raw: bytes, what: object, remedy: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise damaged(what, remedy) from None
    if not isinstance(value, dict):
        raise damaged(what, remedy)
    digest = value.pop(_DIGEST, None)
    if digest is not None and digest != _json_digest(value):
        raise damaged(what, remedy)
    return value


def _json_digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextlib.contextmanager
def locked(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Nobody else, in this process or another, is inside at the same time. Where somebody is, wait, or say `busy` if it is given.

    The lock ends with the block and with the process, however that ends. The file stays, empty.
    """
    with _named(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY)
    try:
        if not _lock(descriptor, wait=busy is None):
            raise FederationError(busy or "")
        yield
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> int:
    """Delete what killed processes left half written below a folder, and count it; what somebody is writing now stays."""
    return sum(_unlinked(Path(where, name)) for where, _, names in os.walk(folder) for name in names if _PART.fullmatch(name))


def _unlinked(part: Path) -> bool:
    """Delete what a killed process left half written; False where somebody is writing it."""
    with contextlib.suppress(OSError), part.open("rb") as file:
        if _lock(file.fileno(), wait=False):
            part.unlink()
            return True
    return False


def sync_folder(folder: Path) -> None:
    """The names in a folder are on the disk too, where the system can be asked for it."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:  # a network folder that cannot be asked
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)


class _Hashed(io.RawIOBase):
    """A file to write to in order, and the digest of what was written."""

    def __init__(self, file: IO[bytes]):
        self._file, self.digest = file, hashlib.sha256()

    def write(self, block: Any) -> int:
        self.digest.update(block)
        return self._file.write(block)


def _begin(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new file beside `path`, held by us until it is closed. What a killed process left of an earlier one is deleted."""
    begins = f".{path.name[:50]}."
    with contextlib.suppress(OSError):  # a folder that cannot be listed can be written to
        for name in os.listdir(path.parent):
            if name.startswith(begins) and re.fullmatch(r"[0-9a-f]{8}\.part", name[len(begins) :]):
                _unlinked(path.with_name(name))
    while True:
        part = path.with_name(f"{begins}{secrets.token_hex(4)}.part")
        try:
            file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "wb")
        except FileExistsError:  # it says nothing of `path`
            continue
        _lock(file.fileno())
        if os.name != "posix" or os.fstat(file.fileno()).st_nlink:
            return part, file
        file.close()  # swept before it was locked


@contextlib.contextmanager
def _removed(part: Path) -> Iterator[None]:
    """The file made beside its place is gone afterwards, whatever happens."""
    try:
        yield
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """An error of the system names the file that was asked for, not one of ours beside it; a full disk names no file at all."""
    try:
        yield
    except OSError as error:
        nameless = error.filename is None and error.errno in _OF_THE_DISK
        if nameless or _PART.fullmatch(Path(str(error.filename)).name):
            raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
        raise


def _finish(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    if os.name != "posix":  # pragma: no cover
        file.close()  # such systems rename no open file


def _whole_lines(file: IO[bytes]) -> int:
    """Where the last line that has its end ends."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 4096)
        file.seek(start)
        if (at := file.read(end - start).rfind(b"\n")) >= 0:
            return start + at + 1
        end = start
    return 0


def _lock(descriptor: int, *, wait: bool = True) -> bool:
    """Take the lock of an open file, which ends with it; False where another has it and we do not wait."""
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        else:  # pragma: no cover
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except (BlockingIOError, PermissionError):
        return False
    return True
