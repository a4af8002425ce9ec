"""What the tests of `benchmarks.child` run in another process."""

import time
from collections.abc import Iterator


def sleepy(seconds: float) -> Iterator[dict[str, int]]:
    yield {"step": 1}
    time.sleep(seconds)
    yield {"step": 2}


def hungry(megabytes: int) -> dict[str, int]:
    return {"length": len(bytearray(megabytes * 2**20))}
