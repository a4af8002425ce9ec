"""Memory that a pass over a table took goes back to the system, so that the next pass does not come on top of it."""

import ctypes
import functools
from collections.abc import Callable

import pyarrow as pa


def give_back() -> None:
    """What was let go of and is still held for us, by Arrow and by the C library, is the system's again."""
    pa.default_memory_pool().release_unused()
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    """The C library's own, where it has one (glibc: Linux)."""
    try:
        return ctypes.CDLL(None).malloc_trim  # type: ignore[no-any-return]
    except (AttributeError, OSError, TypeError):
        return lambda _: None
