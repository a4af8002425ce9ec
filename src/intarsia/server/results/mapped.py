"""Arrays that lie in a file: read into memory, changed where they are, and let go of again."""

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


def recentred(file: Path, draws: int, mean: NDArray[np.float64]) -> NDArray[Any]:
    """The first draws of each chain, shifted together in the file itself so that their mean is `mean`. They stay there: pages of
    the map that nobody looks at take no memory.
    """
    there = np.load(file, mmap_mode="r+", allow_pickle=False)[:, :draws]
    each = [(k, i) for k in range(there.shape[0]) for i in range(draws)]
    total = np.zeros_like(mean)
    for place in each:
        total += there[place]
        let_go(there)
    shift = (mean - total / len(each)).astype(there.dtype)
    for place in each:
        there[place] += shift
        let_go(there)
    return there


def let_go(array: Any) -> None:
    """Where an array lies in a file, its pages count as memory once they were touched, until they are let go; what was written
    goes to the file. Elsewhere nothing happens.
    """
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    # Changes of a private copy ("c") are nowhere else.
    if array is not None and array.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
