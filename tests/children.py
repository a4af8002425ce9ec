"""What the tests of `experiments.child` and `experiments.resumed` run in another process."""

import time
from collections.abc import Iterator


def busy(seconds: float) -> Iterator[dict[str, int]]:
    yield {"step": 1}
    while time.process_time() < seconds:
        pass
    yield {"step": 2}


def hungry(megabytes: int) -> dict[str, int]:
    return {"length": len(bytearray(megabytes * 2**20))}


def numbered(task: tuple[str, int]) -> dict[str, int]:
    """A row of a benchmark; the task called `stop` fails."""
    if task[0] == "stop":
        raise RuntimeError("stopped")
    return {"square": task[1] ** 2}
