"""Hospitals that are killed or stopped while a study goes on: they are named, with an exit code, and nothing waits for them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from intarsia.carriers.pipes import Hospital

DEMO = ["--people", "300", "--m", "40", "--draws", "30", "--workers", "1"]


class Demo:
    """`intarsia demo` in a process group of its own; its output line by line."""

    def __init__(self, out: Path, *more: str):
        command = [sys.executable, "-u", "-m", "intarsia", "demo", "--out", str(out), *DEMO, *more]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.said = ""

    def until(self, words: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return line
        raise AssertionError(self.said)

    def hospital(self, name: str) -> int:
        found = re.search(rf"\b{name} (\d+)", self.until("in a process of its own"))
        assert found is not None
        return int(found[1])

    def end(self) -> int:
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()
        return self.process.wait(timeout=60)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[Demo]]:
    found: list[Demo] = []
    yield found
    for demo in found:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(demo.process.pid, signal.SIGKILL)


def test_a_hospital_killed_while_the_server_samples_is_named(tmp_path: Path, running: list[Demo]) -> None:
    """Its end is found when the coefficients are to go out; a closed line to a hospital is no closed terminal."""
    demo = Demo(tmp_path / "demo")
    running.append(demo)
    clinic = demo.hospital("clinic")
    demo.until("Sampling:")
    os.kill(clinic, signal.SIGKILL)
    assert demo.end() == 9
    assert f"intarsia: No receipt from clinic. clinic: its process ({clinic}) ended before it had answered" in demo.said
    assert "Traceback" not in demo.said


def test_a_hospital_killed_during_a_step_is_named(tmp_path: Path, running: list[Demo]) -> None:
    demo = Demo(tmp_path / "demo")
    running.append(demo)
    imaging = demo.hospital("imaging")
    os.kill(imaging, signal.SIGKILL)
    assert demo.end() == 9
    assert "from imaging. imaging: its process" in demo.said


def test_a_stopped_hospital_is_named_and_ended(tmp_path: Path, running: list[Demo]) -> None:
    demo = Demo(tmp_path / "demo", "--patience", "20")  # longer than a hospital takes to start on a busy machine
    running.append(demo)
    laboratory = demo.hospital("laboratory")
    demo.until("Alignment:")
    os.kill(laboratory, signal.SIGSTOP)
    assert demo.end() == 9
    assert f"laboratory: its process ({laboratory}) has given no sign for 20 s: it was stopped, or it hangs" in demo.said
    with pytest.raises(ProcessLookupError):
        os.kill(laboratory, 0)


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    """`intarsia … | head`."""
    command = f"{sys.executable} -m intarsia demo --out {tmp_path / 'demo'} {' '.join(DEMO)}; echo code $? >&2"
    done = subprocess.run(["bash", "-c", f"({command}) | head -1"], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("Three hospitals")
    assert done.stderr.splitlines()[-1] == "code 0"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of a hospital: a program that answers as one that works for a while, or not at all."""
    program = tmp_path / "slow.py"
    program.write_text(
        "import sys, threading, time\n"
        "from intarsia.carriers.pipes import _saying_so, receive, send\n"
        "lock = threading.Lock()\n"
        "while (frame := receive(sys.stdin.buffer.read)) is not None:\n"
        "    with _saying_so(sys.stdout.buffer, lock):\n"
        "        time.sleep(float(frame[0]['step']))\n"
        "    with lock:\n"
        "        send(sys.stdout.buffer, {}, {'message': frame[1]['given']})\n"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: popen([sys.executable, str(program)], **how))
    return tmp_path


def test_long_work_is_waited_for_and_told(slow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience counts from the last sign; large messages go both ways."""
    monkeypatch.setattr("intarsia.carriers.pipes.TOLD_SECONDS", 1.0)
    told: list[str] = []
    hospital = Hospital("clinic", slow, patience_s=60.0, waiting=lambda name, seconds: told.append(name))
    hospital.post("0", "", {"given": b"x"})
    assert hospital.reply().message == b"x"
    told.clear()
    hospital.patience_s = 4.0  # from now on: a process may take long to start
    large = os.urandom(3 * 10**6)
    hospital.post("9", "", {"given": large})
    assert hospital.reply().message == large
    assert 2 <= len(told) <= 10
    assert set(told) == {"clinic"}
    hospital.close()


def test_a_stopped_hospital_takes_no_message(slow: Path) -> None:
    """A message larger than a pipe holds would be written without end."""
    hospital = Hospital("clinic", slow, patience_s=60.0)
    hospital.post("0", "", {"given": b"x"})
    assert hospital.reply().message == b"x"
    hospital.patience_s = 1.0
    os.kill(hospital.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    hospital.post("0", "", {"given": bytes(10**6)})
    assert "has given no sign for 1 s" in str(hospital.reply().error)
    hospital.close()
    assert time.monotonic() - began < 60
