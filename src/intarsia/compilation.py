"""Functions compiled by Numba, and where what was compiled is kept.

Numba keeps it beside the package, else in the user's cache. Two more cases are met here, since software is installed by one
account and run by another: a user without a home, whose compiled functions go into a folder of that user's own under the
system's temporary one; and a package whose installer compiled them already, beside files that the user can only read.

What is kept is unpickled when it is loaded. So a folder under the temporary one must be the user's own and closed to others.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def compiled(
    function: Callable[..., Any] | None = None,
    *,
    signature: str | None = None,
    stamp: Callable[[], str] | None = None,
    **options: Any,
) -> Any:
    """The function compiled, kept on disk where that can be. A decorator, with or without options of `numba.njit`.

    `signature` compiles at once and for these types alone. What is kept is made anew when the function's file changes; where it
    rests on others too, `stamp` gives a text that changes with any of them.
    """
    if function is None:
        return lambda one: compiled(one, signature=signature, stamp=stamp, **options)
    from numba import njit

    made: Any = njit(**options)(function)
    if hasattr(made, "enable_caching"):  # not where Numba is switched off
        _keep(made, stamp)
        if signature is not None:
            made.compile(signature)
            made.disable_compile()
    return made


def _keep(made: Any, stamp: Callable[[], str] | None) -> None:
    try:
        made.enable_caching()
    except RuntimeError:  # neither beside the package nor in a home
        with suppress(RuntimeError, OSError), _folder_for_all(own_folder()):
            made.enable_caching()
    kept = getattr(made._cache, "_cache_file", None)
    if kept is None or not hasattr(kept, "_source_stamp"):
        return
    if stamp is not None:
        kept._source_stamp = stamp()
    shipped = Path(made.py_func.__code__.co_filename).parent / "__pycache__"
    if Path(kept._cache_path) != shipped and (shipped / kept._index_name).exists():
        made._cache._cache_file = _WithShipped(kept, shipped)


class _WithShipped:
    """Numba's file of compiled functions, and behind it that of whoever installed the package, which is only read."""

    def __init__(self, own: Any, shipped: Path) -> None:
        base = own._index_name.removesuffix(".nbi")
        self.own, self.shipped = own, type(own)(str(shipped), base, own._source_stamp)
        self._source_stamp = own._source_stamp
        self.save, self.flush = own.save, own.flush

    def load(self, key: Any) -> Any:
        found = self.own.load(key)
        return self.shipped.load(key) if found is None else found


def own_folder() -> Path:
    """A folder of this user's under the temporary one, closed to all others; OSError where there is none to be had."""
    path = Path(tempfile.gettempdir()) / f"intarsia-{os.geteuid() if hasattr(os, 'geteuid') else 'user'}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if hasattr(os, "geteuid") and (
        not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ):
        raise PermissionError(f"{path} is not this user's own folder")
    return path


@contextmanager
def _folder_for_all(folder: Path) -> Iterator[None]:
    import numba.core.config

    config: Any = numba.core.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before
