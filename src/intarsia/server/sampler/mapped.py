"""Arrays that lie in a file: read into memory, brought to another mean, and let go of again."""

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def first_draws(file: Path, draws: int) -> NDArray[Any]:
    """The first draws of each chain of an array (chain, draw, …) that lies in a file, in memory. They are read, not copied from
    a map of the file, of which every page that was touched would count as memory too.
    """
    there = np.load(file, mmap_mode="r", allow_pickle=False)
    out = np.empty((there.shape[0], draws, *there.shape[2:]), dtype=there.dtype)
    with open(file, "rb") as source:
        for k, chain in enumerate(out):
            source.seek(there.offset + k * there.strides[0])
            source.readinto(chain)
    return out


def create(folder: Path, chains: int, draws: int, P: int, Q: int) -> "np.memmap[Any, np.dtype[np.float64]]":
    """A memory-mapped C to be filled by the sampler."""
    return np.lib.format.open_memmap(folder / "C.npy", mode="w+", dtype="<f8", shape=(chains, draws, P, Q))


def recentred(file: Path, draws: int, mean: NDArray[np.float64], *, keep: bool) -> NDArray[Any]:
    """The first draws of each chain, shifted together so that their mean is `mean`: in the file itself, or where it is to be
    kept as it is, in a copy. They stay there: pages of the map that nobody looks at take no memory.
    """
    there = np.load(file, mmap_mode="r" if keep else "r+", allow_pickle=False)[:, :draws]
    total = np.zeros_like(mean)
    for draw in _each(there):
        total += draw
    shift = (mean - total / (len(there) * draws)).astype(there.dtype)
    if keep:
        return _copied(there, shift, file.parent)
    for draw in _each(there):
        draw += shift
    return there


def rows_of(there: NDArray[Any], which: Any, places: NDArray[Any]) -> NDArray[Any]:
    """The features at `places` in the draws `which` (chain, draw) of an array (chain, draw, P, Q), one draw after the other: a
    few features bring all pages of a draw into memory.
    """
    out = np.empty((len(which), len(places), there.shape[3]), dtype=there.dtype)
    for row, (chain, draw) in zip(out, which, strict=True):
        row[:] = there[chain, draw][places]
        let_go(there)
    return out


def _each(there: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """One draw (P, Q) of a file after the other, none of which stays in memory."""
    for chain in there:
        for draw in chain:
            yield draw
            let_go(there)


def _copied(there: NDArray[Any], shift: NDArray[Any], folder: Path) -> NDArray[Any]:
    """The same plus `shift`, in a file without a name: its room on the disk is free again when nobody uses it any more."""
    header = {"descr": np.lib.format.dtype_to_descr(there.dtype), "fortran_order": False, "shape": there.shape}
    handle, name = tempfile.mkstemp(dir=folder, prefix=".whole.", suffix=".npy")
    try:
        with os.fdopen(handle, "wb") as out:  # not through a map: a full disk would end the process
            np.lib.format.write_array_header_1_0(out, header)
            for draw in _each(there):
                out.write((draw + shift).data)
        return np.load(name, mmap_mode="r", allow_pickle=False)
    finally:
        with contextlib.suppress(OSError):  # where a file in use keeps its name
            os.unlink(name)


def let_go(array: Any) -> None:
    """Where an array lies in a file, its pages count as memory once they were touched, until they are let go; what was written
    goes to the file. Elsewhere nothing happens.
    """
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    # Changes of a private copy ("c") are nowhere else.
    if array is not None and array.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
