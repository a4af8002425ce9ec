"""Chains that draw from the posterior given sketches; `horseshoe` has the paper's prior."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from intarsia.compilation import compiled as kept_compiled


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
    folder changes (where it is kept: intarsia/compilation.py).

    No fast-math flag is set: a function is compiled once for itself and again inside each that calls it, and which copy runs
    depends on what a process loaded first. Only arithmetic in the order it is written gives the same bits in all of them.
    """
    return kept_compiled(function, stamp=_stamp, error_model="numpy", nogil=True)
