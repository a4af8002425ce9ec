"""A hospital in a process of its own: it answers a study's steps on its standard input and output, and nothing else.

A frame is four bytes of length, a JSON header with the parts' names and sizes, then the parts. The parent never sees
the hospital's folder through this; errors come back as the short text a site would let cross its wall.

While a hospital works it says so every half second. One that is silent for longer than the patience of the parent has ended, was
stopped or hangs: the reply to its step is then an error that names it.
"""

import json
import os
import selectors
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from intarsia.server.study.protocol import Payload, Reply

PATIENCE_SECONDS = 120.0
BEAT_SECONDS = 0.5
TOLD_SECONDS = 10.0  # between two words about a hospital that works
_BLOCK_BYTES = 2**20
_WORKING = "working"  # the entry of a frame that only says so


class SilentError(Exception):
    """Why nothing more comes from a hospital, in words."""


def send(stream: BinaryIO, header: dict[str, Any], parts: Mapping[str, bytes]) -> None:
    for piece in _frame(header, parts):
        stream.write(piece)
    stream.flush()


def _frame(header: dict[str, Any], parts: Mapping[str, bytes]) -> list[bytes]:
    head = json.dumps({**header, "parts": [[name, len(raw)] for name, raw in parts.items()]}).encode()
    return [struct.pack("<I", len(head)) + head, *parts.values()]


def receive(read: Callable[[int], bytes]) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """A frame, or None where there is no whole one any more. `read(n)` gives n bytes, fewer only at the end."""
    size = read(4)
    if len(size) < 4:
        return None
    length = struct.unpack("<I", size)[0]
    head = read(length)
    if len(head) < length:
        return None
    header = json.loads(head)
    parts = {name: (read(size), size) for name, size in header.pop("parts")}
    if any(len(raw) < size for raw, size in parts.values()):
        return None
    return header, {name: raw for name, (raw, _size) in parts.items()}


class Hospital:
    """The demo's end of the line to one hospital. `patience_s`: how long it may be silent; `waiting(name, seconds)` hears of long
    work."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        patience_s: float = PATIENCE_SECONDS,
        waiting: Callable[[str, float], None] | None = None,
    ):
        self.name, self.patience_s, self.waiting = name, patience_s, waiting
        command = [sys.executable, "-m", "intarsia.carriers.pipes", str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        for end in (self._in, self._out):
            os.set_blocking(end, False)
        self._failed: str | None = None

    def post(self, step: str, study_hash: str, payload: Payload) -> None:
        """Ask for a step. A hospital that cannot be reached is told of by `reply`."""
        raw = {key: v.read_bytes() if isinstance(v, Path) else v for key, v in payload.items()}
        try:
            for piece in _frame({"step": step, "study": study_hash}, raw):
                self._write(piece)
        except SilentError as why:
            self._failed = str(why)

    def reply(self) -> Reply:
        began = told = time.monotonic()
        while self._failed is None:
            try:
                frame = receive(self._read)
            except SilentError as why:
                self._failed = str(why)
                break
            if frame is None:
                self._failed = self._ended()
                break
            header, parts = frame
            if _WORKING not in header:
                return Reply(parts.get("message"), header.get("error"))
            now = time.monotonic()
            if self.waiting is not None and now - told >= TOLD_SECONDS:
                told = now
                self.waiting(self.name, now - began)
        return Reply(error=self._failed)

    def close(self) -> None:
        """End the process: by the end of its input, or, where it does not heed that, at once."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _ended(self) -> str:
        return f"its process ({self.process.pid}) ended before it had answered"

    def _write(self, raw: bytes) -> None:
        left = memoryview(raw)
        while len(left):
            self._ready(self._in, selectors.EVENT_WRITE)
            try:
                left = left[os.write(self._in, left[:_BLOCK_BYTES]) :]
            except BrokenPipeError:
                raise SilentError(self._ended()) from None

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            self._ready(self._out, selectors.EVENT_READ)
            block = os.read(self._out, min(count - len(found), _BLOCK_BYTES))
            if not block:
                break
            found += block
        return bytes(found)

    def _ready(self, end: int, event: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(end, event)
            if not selector.select(self.patience_s):
                raise SilentError(
                    f"its process ({self.process.pid}) has given no sign for {self.patience_s:g} s: it was stopped, or it hangs"
                )


@contextmanager
def _saying_so(line: BinaryIO, lock: threading.Lock) -> Iterator[None]:
    """While the block runs, a frame every half second says that somebody is at work."""
    done, began = threading.Event(), time.monotonic()

    def beat() -> None:
        while not done.wait(BEAT_SECONDS):
            with lock:
                if not done.is_set():
                    send(line, {_WORKING: round(time.monotonic() - began, 1)}, {})

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def main(folder: str) -> int:
    from intarsia.site.answer import answer, scrub
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(folder)
    site, line_in, line_out, lock = site_folder.site(), sys.stdin.buffer, sys.stdout.buffer, threading.Lock()
    while (frame := receive(line_in.read)) is not None:
        header, payload = frame
        study = None
        with _saying_so(line_out, lock):
            try:
                study = site_folder.accepted(header["study"])
                told: tuple[dict[str, Any], dict[str, bytes]]
                told = {}, {"message": answer(site, study, header["step"], payload, site_folder.new_subjects)}
            except Exception as error:  # everything that crosses is scrubbed
                told = {"error": scrub(site, study, error)}, {}
        with lock:
            send(line_out, *told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
