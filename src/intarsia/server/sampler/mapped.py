"""Arrays that lie in a file: read into memory, brought to another mean, and let go of again."""

import mmap
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


def let_go(array: Any) -> None:
    """Where an array lies in a file, its pages count as memory once they were touched, until they are let go; what was written
    goes to the file. Elsewhere nothing happens.
    """
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    # Changes of a private copy ("c") are nowhere else.
    if array is not None and array.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
