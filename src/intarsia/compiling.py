"""The compiled twins of slow loops: loaded where Numba is installed and not switched off (INTARSIA_COMPILED=0)."""

import importlib
import importlib.util
import os
from typing import Any


def compiled(module: str) -> Any:
    """The module, or None where its twin must serve."""
    if os.environ.get("INTARSIA_COMPILED", "1") == "0" or importlib.util.find_spec("numba") is None:
        return None
    try:
        return importlib.import_module(module)
    except RuntimeError:  # Numba finds no folder it may keep the compiled loops in
        return None
