"""intarsia: Bayesian regression across institutions that may not show each other their data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Public name -> module. Loaded on first use, so that `import intarsia` stays light.
_PUBLIC = {
    "IntarsiaError": "intarsia.errors",
}

__all__ = sorted([*_PUBLIC, "__version__"])
__version__ = "0.1.0"

if TYPE_CHECKING:
    from intarsia.errors import IntarsiaError


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'intarsia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
