"""The short form of the fault suite (`make faults` is the long one), and its own eyes: faults that are planted are found."""

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.record import Record
from tests.faults.suite import Suite
from tests.faults.world import Command, jumping_clock, spoilt

from intarsia.server.study import kept

SHORT = {"kill": 5, "mutation": 10, "wire": 60, "full": 4, "stop": 1, "clock": 1}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return Suite(tmp_path_factory.mktemp("faults"), ("sketch", "sketch, pipes"), workers=1, wires=("agreed",))


@pytest.fixture
def fresh(suite: Suite) -> Iterator[Suite]:
    before = suite.report
    suite.report = type(before)()
    yield suite
    suite.report = before


@pytest.mark.parametrize("what", SHORT)
def test_nothing_is_lost_hung_or_told_falsely(fresh: Suite, what: str) -> None:
    for seed in range(SHORT[what]):
        fresh.trial(what, seed)
    assert fresh.report.faults == []
    assert sum(fresh.report.trials.values()) == SHORT[what]


def test_a_study_that_takes_a_spoilt_file_for_good_is_found(fresh: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nobody looks at digests, and a sketch's numbers are used as they lie there."""
    monkeypatch.setattr(kept, "intact", lambda folder, name: True)
    monkeypatch.setattr("intarsia.wire.container._DIGEST_BYTES", 0)
    states = [state for state in fresh.states["sketch"] if state.step.name == "fit"]
    monkeypatch.setattr(fresh, "states", {"sketch": states})
    for seed in range(3):
        fresh.trial("mutation", seed)
    assert fresh.report.faults


def test_a_receiver_that_takes_what_a_line_spoilt_is_found(fresh: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nobody compares a message with its digest."""

    class Agrees(bytes):
        def __ne__(self, other: object) -> bool:
            return False

    class Careless:
        def sha256(self, content: bytes = b"") -> "Careless":
            self.real = hashlib.sha256(content)
            self.update = self.real.update
            return self

        def digest(self) -> bytes:
            return Agrees(self.real.digest())

    monkeypatch.setattr("intarsia.wire.container.hashlib", Careless())
    for seed in range(60):
        fresh.trial("wire", seed)
    assert "lied" in {fault["fault"] for fault in fresh.report.faults}


def test_a_command_that_hangs_or_says_nothing_is_found(tmp_path: Path) -> None:
    hangs = Command(["study", "check", "x"], tmp_path, before=lambda: time.sleep(60)).wait(0.5)
    assert hangs is not None
    assert hangs.code is None
    assert hangs.seconds < 30
    fails = Command(["study", "check", "nothing.toml"], tmp_path).wait()
    assert fails is not None
    assert fails.in_words

    def breaks() -> None:
        raise RuntimeError

    silent = Command(["study", "check", "nothing.toml"], tmp_path, before=breaks).wait()
    assert silent is not None
    assert not silent.in_words


def test_a_trial_can_be_repeated() -> None:
    """What is spoilt, and the clock, follow from the seed."""
    raw = bytes(range(256))
    assert [spoilt(raw, random.Random(k)) for k in range(40)] == [spoilt(raw, random.Random(k)) for k in range(40)]
    assert all(spoilt(raw, random.Random(k)) != raw for k in range(40))
    now = time.time
    try:
        jumping_clock(1000.0)()
        assert abs(time.time() - time.time()) > 1900
    finally:
        time.time = now


def test_a_run_that_stopped_goes_on_and_what_it_found_stays(tmp_path: Path) -> None:
    """Its counts add up over the parts, each with its commit; a fault is open until its seed ends well."""
    path = tmp_path / "last_run.json"
    fault = {"fault": "lost", "trial": "kill 3: sketch, fit", "said": ""}
    for more, ends in ((False, (0, 4)), (True, (5, 6))):
        record = Record(path, more=more)
        assert record.next_seed("kill") == ends[0]
        record.begin()
        record.keep({"kill": ends}, Counter({"kill, sketch": 1 + ends[1] - ends[0]}), [] if more else [dict(fault)])
    told = json.loads(path.read_text())
    assert told["totals"] == {"kill": 7, "faults": 1, "open": 1}
    assert [part["seeds"]["kill"] for part in told["parts"]] == [[0, 4], [5, 6]]
    Record(path, more=True).tried_again("kill 3", [dict(fault)])
    assert json.loads(path.read_text())["totals"]["open"] == 1
    Record(path, more=True).tried_again("kill 3", [])
    told = json.loads(path.read_text())
    assert told["totals"] == {"kill": 7, "faults": 1, "open": 0}
    assert told["parts"][0]["faults"][0]["again"]["faults"] == []
    Record(path, more=True).tried_again("kill 4", [])
    assert json.loads(path.read_text()) == told
