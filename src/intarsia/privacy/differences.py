"""Two columns that differ in few people give columns of Φ away: the difference of their sketches is those people's φ.

Whoever holds the sketch looks for pairs of columns that point nearly the same way, takes one off the other (the best
multiple of it), and has a direction. If the columns differ in one person, it is that person's column of Φ.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NEIGHBOURS = 2  # nearest columns that are taken off each
LARGEST_COLUMNS = 6000


def difference_search(Z: Array, neighbours: int = NEIGHBOURS) -> Array:
    """Unit directions (m × found): each sketched column less its projection on each of its nearest columns."""
    Z = np.asarray(Z, float)[:, :LARGEST_COLUMNS]
    norms = np.linalg.norm(Z, axis=0)
    unit = Z[:, norms > 0] / norms[norms > 0]
    count = unit.shape[1]
    if count < 2:
        return unit[:, :0]
    out = []
    for start in range(0, count, 1024):
        here = np.arange(start, min(start + 1024, count))
        inner = unit[:, here].T @ unit
        inner[np.arange(len(here)), here] = 0.0
        nearest = np.argpartition(-np.abs(inner), min(neighbours, count - 1) - 1, axis=1)[:, :neighbours]
        for k in range(nearest.shape[1]):
            at = nearest[:, k]
            r = inner[np.arange(len(here)), at]
            rest = unit[:, here] - unit[:, at] * r
            length = np.linalg.norm(rest, axis=0)
            good = length > 1e-6  # shorter is rounding: the same column twice
            out.append(rest[:, good] / length[good])
    return np.hstack(out)
