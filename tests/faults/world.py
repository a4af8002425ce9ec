"""What happens to a command, a real process that is forked here: a kill, a stop, a full disk, a clock that jumps."""

import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from intarsia.cli import main
from intarsia.errors import IntarsiaError, of_the_system

TIMEOUT_SECONDS = 480.0  # of a step of the small studies, also on a busy machine: what is not over then hangs


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that ended it; None: it hung and was killed), and what it said."""

    code: int | None
    said: str
    seconds: float

    @property
    def in_words(self) -> bool:
        """An error of ours, for people: no traceback, no bare name of an error, no signal."""
        last = [line for line in self.said.splitlines() if line.startswith("intarsia: ")]
        bare = [line for line in last if " " not in line.removeprefix("intarsia: ") or "unexpected" in line]
        return self.code is not None and self.code > 0 and bool(last) and not bare and "Traceback" not in self.said


class Command:
    """`intarsia ARGV` or a call, in a folder, in a process group of its own; forked from this process, it starts at once."""

    def __init__(self, does: Sequence[str] | Callable[[], int | None], where: Path, *, before: Callable[[], None] = lambda: None):
        self.began = time.monotonic()
        self._said = b""
        self._out, end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.setsid()
                os.dup2(end, 1)
                os.dup2(end, 2)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
                os.chdir(where)
                before()
                with no_sync():
                    code = _called(does) if callable(does) else main(list(does))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(end)

    def wait(self, seconds: float = TIMEOUT_SECONDS, *, until: float | None = None) -> Ended | None:
        """How it ended; None if it still runs `until` seconds after its start. What hangs is killed."""
        limit = self.began + (seconds if until is None else until)
        while (left := limit - time.monotonic()) > 0:
            if select.select([self._out], [], [], left)[0]:
                block = os.read(self._out, 1 << 16)
                self._said += block
                if not block:
                    break
        else:
            if until is not None:
                return None
            self.kill("group")
            self._close()
            return Ended(None, self._words(), time.monotonic() - self.began)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._out)
        return Ended(os.waitstatus_to_exitcode(status), self._words(), time.monotonic() - self.began)

    def _words(self) -> str:
        return self._said.decode(errors="replace")

    def kill(self, whom: str, which: int = 0) -> None:
        """kill -9 of the command ("parent"), of it and all it started ("group"), or of one process that it started ("child")."""
        if whom == "child":
            children = psutil.Process(self.pid).children(recursive=True) if psutil.pid_exists(self.pid) else []
            os.kill(children[which % len(children)].pid if children else self.pid, signal.SIGKILL)
        elif whom == "parent":
            os.kill(self.pid, signal.SIGKILL)
        else:
            self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """To the command and all it started; to itself where it is not yet a group."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            os.kill(self.pid, number)

    def _close(self) -> None:
        os.waitpid(self.pid, 0)
        os.close(self._out)

    def orphans(self) -> list[int]:
        """Processes of the group that outlive the command."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return []
        return [p.pid for p in psutil.process_iter() if p.pid != self.pid and _group(p.pid) == self.pid and _alive(p)]


def _called(call: Callable[[], int | None]) -> int:
    """A call's errors of ours, and the system's, said as a command says them; others are told as Python does."""
    try:
        return call() or 0
    except IntarsiaError as error:
        print(f"intarsia: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"intarsia: {of_the_system(error)}", file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def spoilt(raw: bytes, chance: random.Random) -> bytes:
    """What a disk or a line makes of a file."""
    at = chance.randrange(len(raw)) if raw else 0
    way = chance.randrange(6)
    if way == 0 or not raw:
        return raw[:at]
    if way == 1:
        return raw + chance.randbytes(chance.randrange(1, 100))
    if way == 2:
        return raw[:at] + bytes(min(4096, len(raw) - at)) + raw[at + 4096 :]
    if way == 3:
        return raw[:at] + raw[at + 1 + chance.randrange(64) :]
    return raw[:at] + bytes([raw[at] ^ 1 << chance.randrange(8)]) + raw[at + 1 :]


@contextmanager
def no_sync() -> Iterator[None]:
    """A killed process loses nothing that it wrote, so nothing waits for the disk. What a power cut does is not tried here."""
    sync, os.fsync = os.fsync, _nothing
    try:
        yield
    finally:
        os.fsync = sync


def _nothing(_descriptor: int) -> None:
    pass


def small_disk(most: int) -> Callable[[], None]:
    """Files of the command may have so many bytes: without a mount, a write fails in its middle as on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    return limit


def jumping_clock(seconds: float) -> Callable[[], None]:
    """The time of day jumps to and fro between two looks at it."""

    def patch() -> None:
        now, looks = time.time, iter(range(10**9))
        time.time = lambda: now() + (seconds if next(looks) % 2 else -seconds)

    return patch


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None and _mounts()


def _mounts() -> bool:
    import tempfile

    with tempfile.TemporaryDirectory() as where:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", where], check=True)
    return True


@contextmanager
def disk(where: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A file system of so many bytes at `where`; the function given makes it another size."""
    where.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where], check=True)
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", where], check=True) and None
    finally:
        subprocess.run(["umount", "-l", where], check=True)
