"""Whole studies as one step, of the carriers that ask the sites themselves: in one process, through pipes, by letters.

The same call, given again after whatever happened, must go on and end with the same bytes.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from intarsia.carriers import in_process, pipes
from intarsia.cli import main
from intarsia.server.study import protocol
from intarsia.server.study.fit import fit
from intarsia.server.study.folder import StudyFolder
from intarsia.site.site_folder import SiteFolder

NAMES = ("clinic", "mri", "lab")
PATIENCE_S = 20.0  # of a hospital that gives no sign
MOST_LETTERS = 40


def here(workers: int) -> None:
    """`intarsia.fit` between sites with folders."""
    sites = [SiteFolder.load(name).site() for name in NAMES]
    in_process.fit(sites, "study.toml", folder="server", workers=workers, progress=False)


def through_pipes(workers: int) -> None:
    """Hospitals in processes of their own, as in the demonstration."""
    folder = StudyFolder.create("server", Path("study.toml"))
    with folder.locked(), _forked():
        hospitals = {name: pipes.Hospital(name, Path(name), patience_s=PATIENCE_S) for name in NAMES}

        def ask(step: str, payloads: Any) -> dict[str, protocol.Reply]:
            for name, payload in payloads.items():
                hospitals[name].post(step, folder.study.hash, payload)
            return {name: hospitals[name].reply() for name in payloads}

        try:
            protocol.collect(folder, ask)
            fit(folder, workers=workers)
            protocol.deliver(folder, ask)
        finally:
            for hospital in hospitals.values():
                hospital.close()


def by_letters(workers: int) -> int:
    """The commands of a screened study by files, round by round, until no letter is left."""
    given: list[str] = []
    for _ in range(MOST_LETTERS):
        if code := main(["fit", *given, "--study", "study.toml", "-o", "server", "--workers", str(workers)]):
            return code
        letters = sorted(Path("server", "letters").glob("*.letter"))
        if not letters:
            return 0
        given = []
        for letter in letters:
            given.append(f"{letter.stem}.answers")
            if code := main(["site", "answer", letter.stem, str(letter), "-o", given[-1], "--yes"]):
                return code
    raise AssertionError("the study does not end")


@contextlib.contextmanager
def _forked() -> Iterator[None]:
    """Hospitals are forked from here: their start takes no time, all else is as it is."""
    popen, pipes.subprocess.Popen = pipes.subprocess.Popen, _Forked  # type: ignore[attr-defined]
    try:
        yield
    finally:
        pipes.subprocess.Popen = popen  # type: ignore[attr-defined]


class _Forked:
    """What `subprocess.Popen` is to a `Hospital`."""

    def __init__(self, command: list[str], **_how: Any):
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.dup2(read_in, 0)
                os.dup2(write_out, 1)
                os.closerange(3, 256)  # the ends of the other hospitals' lines among them
                sys.stdin, sys.stdout = os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", closefd=False)
                code = pipes.main(command[-1])
            finally:
                os._exit(code)
        os.close(read_in)
        os.close(write_out)
        self.stdin, self.stdout = os.fdopen(write_in, "wb", buffering=0), os.fdopen(read_out, "rb", buffering=0)

    def wait(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("hospital", timeout or 0.0)
            time.sleep(0.002)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
