"""Every step of every kind of study is disturbed at random, and must end as if nothing had been.

A trial takes a copy of a study before one of its steps, disturbs that step, and gives the same command again. A fault is:

- lost: the command given again does not end well, or what the step leaves is not the same to the byte;
- lied: a disturbed command ends well and leaves something else;
- silent: it fails without words of ours (a traceback, the bare name of an error, a signal that we did not send);
- hung: it does not end;
- left: a process outlives its command, or a half-written file the command after it.
"""

import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import h5py
import numpy as np
from tests.faults.studies import PLANS, WIRES, Plan, Step, is_input, run
from tests.faults.wire import Message, recorded, spoil
from tests.faults.world import Command, Ended, can_mount, disk, jumping_clock, small_disk, spoilt

import intarsia

WHOM = ("parent", "group", "child")
SPARE_BYTES = 256 * 2**20


@dataclass
class State:
    """A study before a step, how long the step takes undisturbed, and what it leaves."""

    step: Step
    folder: Path
    seconds: float = 0.0
    leaves: dict[str, bytes] = field(default_factory=dict)
    grows: int = 0  # bytes that the step adds


@dataclass
class Report:
    """Counts of trials by what was done, and every fault with the number that repeats it."""

    trials: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, str]] = field(default_factory=list)


def content(path: Path) -> bytes:
    """A file's bytes; of a posterior the arrays alone, because HDF5 writes times and places of its own."""
    if path.suffix != ".nc":
        return path.read_bytes()
    parts: list[bytes] = []

    def read(name: str, found: h5py.HLObject) -> None:
        if isinstance(found, h5py.Dataset):
            values = np.asarray(found[()])
            parts.append(name.encode() + (repr(values.tolist()).encode() if values.dtype == object else values.tobytes()))

    with h5py.File(path) as file:
        file.visititems(read)
    return b"".join(parts)


def left_by(step: Step, where: Path) -> dict[str, bytes]:
    return {str(path.relative_to(where)): content(path) for pattern in step.leaves for path in sorted(where.glob(pattern))}


def size_of(where: Path) -> int:
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in where.rglob("*") if path.is_file())


class Suite:
    """The undisturbed studies, and trials on copies of them."""

    def __init__(
        self, root: Path, kinds: tuple[str, ...] = tuple(PLANS), *, workers: int = 2, wires: tuple[str, ...] = tuple(WIRES)
    ):
        # Commands, and chains that are processes of their own, start in the study's folder.
        sys.path[:] = [str(Path(place).resolve()) for place in sys.path]
        places = [Path(intarsia.__file__).parents[1], Path(__file__).parents[2]]
        os.environ["PYTHONPATH"] = os.pathsep.join(str(place.resolve()) for place in places)
        self.root, self.report, self.wires = root, Report(), wires
        self._warm: set[str] = set()
        plans = [PLANS[kind](workers) for kind in kinds]
        self.weights = {plan.kind: plan.weight for plan in plans}
        self.states = {plan.kind: self._undisturbed(plan) for plan in plans}
        self.messages: dict[str, list[Message]] = {}
        self.mounts = can_mount()
        gc.collect()
        gc.freeze()  # a forked command does not copy what it never changes

    def _undisturbed(self, plan: Plan) -> list[State]:
        where, states = self.root / plan.kind / "study", []
        where.mkdir(parents=True)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            plan.prepare(where)
        for number, step in enumerate(plan.steps):
            state = State(step, self.root / plan.kind / str(number))
            shutil.copytree(where, state.folder)
            before = size_of(where)
            self._loaded(step, where)
            ended = Command(step.does, where).wait()
            assert ended is not None
            assert ended.code == 0, f"{plan.kind}, {step.name}: {ended.said}"
            state.seconds, state.leaves, state.grows = ended.seconds, left_by(step, where), max(size_of(where) - before, 4096)
            states.append(state)
        return states

    def _loaded(self, step: Step, where: Path) -> None:
        """What is imported or compiled here is there in all commands that are forked from here."""
        command = step.name.rpartition(" ")[0] or step.name
        if command in self._warm:
            return
        self._warm.add(command)
        scratch = shutil.copytree(where, where.with_name("scratch"))
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), chdir(scratch):
            step.does() if callable(step.does) else run(*step.does)
        shutil.rmtree(scratch)

    def trial(self, what: str, seed: int) -> None:
        """One trial; the seed says everything but the moment at which the machine gets to it."""
        chance = random.Random(f"{what} {seed}")
        if what == "wire":
            self._on_the_wire(seed, chance)
            return
        # Long steps are disturbed more often, as they are in life; how often does not hang on how busy the machine is.
        kinds = sorted(self.states)
        kind = chance.choices(kinds, [self.weights[kind] for kind in kinds])[0]
        state = chance.choices(self.states[kind], [state.step.weight for state in self.states[kind]])[0]
        name = f"{what} {seed}: {kind}, {state.step.name}"
        self.report.trials[f"{what}, {kind}"] += 1
        with tempfile.TemporaryDirectory(dir=self.root, prefix="trial-") as temporary:
            TRIALS[what](self, state, Path(temporary) / "study", chance, name)

    def _on_the_wire(self, seed: int, chance: random.Random) -> None:
        kind = chance.choice(self.wires)
        if kind not in self.messages:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                self.messages[kind] = recorded(WIRES[kind], self.root / f"{kind} on the wire")
        message = chance.choice(self.messages[kind])
        self.report.trials[f"wire, {kind}"] += 1
        with tempfile.TemporaryDirectory(dir=self.root, prefix="trial-") as temporary:
            found = spoil(message, Path(temporary) / "study", chance)
        if found is not None:
            what, tried, said = found
            self.report.faults.append({"fault": what, "trial": f"wire {seed}: {kind}, {tried}", "said": said})

    def fault(self, what: str, name: str, ended: Ended | None = None, more: str = "") -> None:
        said = "" if ended is None else f"exit {ended.code}: {ended.said[-300:]}"
        self.report.faults.append({"fault": what, "trial": name, "said": f"{more} {said}".strip()})

    def ends_well(self, state: State, where: Path, name: str) -> None:
        """The same command again, and nothing tells that it was disturbed."""
        ended = Command(state.step.does, where).wait()
        assert ended is not None
        if ended.code is None:
            self.fault("hung", name, ended)
        elif ended.code:
            self.fault("lost", name, ended)
        elif left_by(state.step, where) != state.leaves:
            self.fault("lost", name, more="what the step leaves is another")
        elif halves := [path for path in where.rglob(".*.part*") if path.is_file()]:
            self.fault("left", name, more=", ".join(path.name for path in halves))

    def judge(self, state: State, where: Path, ended: Ended, name: str) -> None:
        """A command that was not killed: it ends well and leaves what it should, or it fails in words."""
        if ended.code is None:
            self.fault("hung", name, ended)
        elif ended.code == 0:
            if left_by(state.step, where) != state.leaves:
                self.fault("lied", name, ended, "ended well and left another result.")
        elif not ended.in_words:
            self.fault("silent", name, ended)


def _killed(suite: Suite, state: State, where: Path, chance: random.Random, name: str) -> None:
    """kill -9 up to three times, each at a moment of its own."""
    shutil.copytree(state.folder, where)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        command = Command(state.step.does, where)
        ended = command.wait(until=chance.uniform(0.0, 1.1 * state.seconds))
        if ended is None:
            whom = chance.choice(WHOM)
            command.kill(whom, chance.randrange(8))
            ended = command.wait()
            assert ended is not None
            if whom == "child" and ended.code != -signal.SIGKILL:
                suite.judge(state, where, ended, name)
        elif ended.code:
            suite.judge(state, where, ended, name)
        time.sleep(0.05)
        if command.orphans():
            time.sleep(3.0)  # to see that they are alone, and to end
            if left := command.orphans():
                suite.fault("left", name, more=f"{len(left)} processes")
                command.kill("group")
    suite.ends_well(state, where, name)


def _full(suite: Suite, state: State, where: Path, chance: random.Random, name: str) -> None:
    """The disk is full somewhere in the step; then there is room again."""
    room = int(chance.random() * 1.2 * state.grows)
    if suite.mounts:
        with disk(where.parent / "disk", SPARE_BYTES) as resize:
            there = where.parent / "disk" / "study"
            shutil.copytree(state.folder, there)
            resize(shutil.disk_usage(there).used + room // 4096 * 4096)
            ended = Command(state.step.does, there).wait()
            assert ended is not None
            suite.judge(state, there, ended, name)
            resize(SPARE_BYTES)
            suite.ends_well(state, there, name)
        return
    shutil.copytree(state.folder, where)
    largest = max((path.stat().st_size for path in where.rglob("*") if path.is_file()), default=0)
    ended = Command(state.step.does, where, before=small_disk(chance.randrange(1, largest + room))).wait()
    assert ended is not None
    suite.judge(state, where, ended, name)
    suite.ends_well(state, where, name)


def _stopped(suite: Suite, state: State, where: Path, chance: random.Random, name: str) -> None:
    shutil.copytree(state.folder, where)
    command = Command(state.step.does, where)
    for _ in range(2):
        if (ended := command.wait(until=time.monotonic() - command.began + chance.uniform(0.0, 0.5 * state.seconds))) is not None:
            break
        command.signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.05, 0.5))
        command.signal(signal.SIGCONT)
    ended = ended or command.wait()
    assert ended is not None
    suite.judge(state, where, ended, name)
    if ended.code:
        suite.fault("lost", name, ended, "failed for having been stopped.")


def _clock(suite: Suite, state: State, where: Path, chance: random.Random, name: str) -> None:
    shutil.copytree(state.folder, where)
    ended = Command(state.step.does, where, before=jumping_clock(chance.choice((3600.0, 86400.0 * 400)))).wait()
    assert ended is not None
    suite.judge(state, where, ended, name)
    if ended.code:
        suite.fault("lost", name, ended, "failed for the clock.")


def _mutated(suite: Suite, state: State, where: Path, chance: random.Random, name: str) -> None:
    """One file of the study is another: on a disk, or as it was sent. Mended, the study goes on as if nothing had been."""
    shutil.copytree(state.folder, where)
    if callable(state.step.does) or chance.random() < 0.5:  # what a step leaves in its middle is spoilt too
        command = Command(state.step.does, where)
        if command.wait(until=chance.uniform(0.0, 1.1 * state.seconds)) is None:
            command.kill("group")
            command.wait()
    choice = sorted(str(path.relative_to(where)) for path in where.rglob("*") if path.is_file())
    file = chance.choice([path for path in choice if not is_input(path)])
    raw = (where / file).read_bytes()
    mode = (where / file).stat().st_mode
    (where / file).write_bytes(spoilt(raw, chance))
    name = f"{name}, {file}"
    ended = Command(state.step.does, where).wait()
    assert ended is not None
    suite.judge(state, where, ended, name)
    if ended.code:
        (where / file).write_bytes(raw)
        (where / file).chmod(mode)
        suite.ends_well(state, where, name)


TRIALS: dict[str, Callable[[Suite, State, Path, random.Random, str], None]] = {
    "kill": _killed, "full": _full, "stop": _stopped, "clock": _clock, "mutation": _mutated,
}  # fmt: skip
