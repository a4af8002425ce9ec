"""X C of many draws, and Xᵀ of their residuals: a block of features at a time, each for all draws.

Among many features X is the largest thing in memory. A product for each draw would read all of it each time, and draws that lie
in a file would be read into memory; here both are read once, and the pages of a file let go again.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.server.results.mapped import let_go

Array = NDArray[np.float64]
Index = NDArray[np.intp]

_NUMBERS = 2**24  # of X, and of the draws' coefficients, that are worked on at once


def fitted(X: Array, C: NDArray[Any], at: Index | None = None) -> Array:
    """X C (draw, m, Q) of draws C (…, P, Q): of all, or of those number `at`."""
    m, Q = len(X), C.shape[-1]
    at = every(C) if at is None else at
    out = np.zeros((m, len(at) * Q))
    for features, some in blocks(C, at, m):
        out += X[:, features] @ some.reshape(len(some), -1)
    return out.reshape(m, len(at), Q).swapaxes(0, 1)


def every(C: NDArray[Any]) -> Index:
    """The numbers of all draws C (…, P, Q)."""
    return np.arange(int(np.prod(C.shape[:-2])))


def blocks(C: NDArray[Any], at: Index, m: int) -> Iterator[tuple[slice, Array]]:
    """Some features at a time, and their coefficients (feature, draw, Q) in the draws number `at` of C (…, P, Q)."""
    which: tuple[Any, ...] = np.unravel_index(at, C.shape[:-2])
    P, Q = C.shape[-2:]
    step = max(1, _NUMBERS // max(1, m + len(at) * Q))
    for start in range(0, P, step):
        features = slice(start, min(P, start + step))
        yield features, np.ascontiguousarray(C[(*which, features)].swapaxes(0, 1), dtype=np.float64)
        let_go(C)
