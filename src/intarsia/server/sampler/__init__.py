"""Chains that draw from the posterior given sketches; `horseshoe` has the paper's prior."""

import hashlib
import inspect
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache
def _stamp() -> str:
    """Changes with any file of this folder."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def compiled(function: Callable[..., Any]) -> Any:
    """The function compiled by Numba, kept on disk, and run without the interpreter's lock.

    A compiled function holds those it calls, wherever they stand. So what is kept on disk is made anew when any file of this
    folder changes. Where nothing can be kept (no folder may be written to) every process compiles for itself.

    No fast-math flag is set: a function is compiled once for itself and again inside each that calls it, and which copy runs
    depends on what a process loaded first. Only arithmetic in the order it is written gives the same bits in all of them.
    """
    from numba import njit

    made: Any = njit(error_model="numpy", nogil=True)(function)
    try:
        made.enable_caching()
    except RuntimeError:
        return made
    kept = getattr(made._cache, "_cache_file", None)
    if kept is not None and "source_stamp" in inspect.signature(type(kept)).parameters:
        kept._source_stamp = _stamp()
    return made
