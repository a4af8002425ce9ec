"""What the tests of `benchmarks.child` run in another process."""

import time
from collections.abc import Iterator


def busy(seconds: float) -> Iterator[dict[str, int]]:
    yield {"step": 1}
    while time.process_time() < seconds:
        pass
    yield {"step": 2}


def hungry(megabytes: int) -> dict[str, int]:
    return {"length": len(bytearray(megabytes * 2**20))}
