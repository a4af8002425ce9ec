"""A server that asks for two sketches at the same moment: of one run, and of two runs that share people and a budget."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.adversary.kit import RogueServer, Told
from tests.adversary.test_server import steps_until
from tests.federation import NAMES

from intarsia.site.run_store import RunStore
from intarsia.site.site import Site


def private(epsilon: float) -> dict[str, Any]:
    public, scales = ({name: {"*": value} for name in NAMES} for value in (0.0, 10.0))
    bounds = dict.fromkeys(NAMES, 4.0)
    rules = {"epsilon": epsilon, "delta": 1e-6, "row_bound": bounds, "centres": public, "scales": scales}
    return {"sketch": {"m": 20, "kind": "gaussian", "precision": "float32"}, "privacy": rules}


def at_the_same_moment(servers: list[RogueServer], monkeypatch: pytest.MonkeyPatch) -> list[Told]:
    """Each sketch is made, and then waits until the other is made too (or, where that cannot be, for a moment)."""
    made = [Event() for _ in servers]
    order = iter(range(len(servers)))
    make = Site.make

    def slow(self: Site, *args: Any) -> Any:
        number = next(order)
        result = make(self, *args)
        made[number].set()
        for other in made:
            other.wait(0.5)
        return result

    monkeypatch.setattr(Site, "make", slow)
    with ThreadPoolExecutor(len(servers)) as pool:
        return list(pool.map(lambda server: server.ask("mri", "sketch"), servers))


def test_one_run_draws_its_noise_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two noises under one Φ: their mean has half the variance, and no ε covers it."""
    rogue = RogueServer.before(tmp_path, **private(8.0))
    steps_until(rogue, "align")
    both, gone = Event(), Event()
    written: list[str] = []
    replace, rename = RunStore.replace, RunStore.rename

    def late(self: RunStore, name: str, content: bytes) -> None:
        """The second sketch is written over the first before the first is released and sent."""
        replace(self, name, content)
        if name.startswith("sketch.pending"):
            written.append(name)
            if len(written) > 1:
                both.set()
            (both if len(written) == 1 else gone).wait(0.5)

    def sent(self: RunStore, old: str, new: str) -> None:
        rename(self, old, new)
        gone.set()

    monkeypatch.setattr(RunStore, "replace", late)
    monkeypatch.setattr(RunStore, "rename", sent)
    told = at_the_same_moment([rogue, rogue], monkeypatch)
    told.append(rogue.ask("mri", "sketch"))
    assert len({one.message for one in told if not one.refused}) == 1
    assert not told[-1].refused


def test_two_runs_do_not_both_take_what_is_left_of_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ε = 8 twice is above the cap of 10, one after the other and at once."""
    first = RogueServer.before(tmp_path, **private(8.0))
    second = first.another_run(tmp_path / "second")
    for server in (first, second):
        steps_until(server, "align")
    told = at_the_same_moment([first, second], monkeypatch)
    assert sorted(one.refused for one in told) == [False, True]
    refused = (first, second)[[one.refused for one in told].index(True)]
    assert "budget: Σε = 16" in refused.log("mri")[-1]["text"]
