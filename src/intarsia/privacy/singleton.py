"""Rare binary columns give columns of Φ away, without the key.

The sketch of a centred 0/1 column is the sum of its carriers' columns of Φ; scaling by the column's standard
deviation multiplies it by √(n(n−1)/(k(n−k))), where the number of carriers k is a small integer. So guess k, undo the
scaling, and subtract: a column whose carriers are another's and one person more differs from it by exactly that
person's φ. A difference that comes out the same from two different pairs of columns is no accident. Each hit is a
column of Φ, and with it an estimate of that person's value in *every* column of that sketch (φ_iᵀ y_Φ).

The remedy is the gate's: no level with fewer than ten subjects.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
LARGEST = 50_000_000  # numbers held at once while differences are compared


@dataclass(frozen=True)
class Singletons:
    """Columns of Φ found (m × found), and how many relations support each."""

    phi: Array
    support: Indices


def singleton_search(
    Z: Array, n: int, most: int = 5, tolerance: float = 1e-5, columns: int = 4000, ddof: int = 1
) -> Singletons:  # fmt: skip
    """Columns of Φ exposed by the standardised rare binary columns among Z's columns; `ddof` as in their standard deviation.

    `most` is the largest carrier count guessed; `tolerance` allows for the rounding of the sketch. Work is quadratic
    in the columns, so at most `columns` of them are used.
    """
    Z = _distinct(np.asarray(Z, float)[:, :columns], tolerance)
    m = Z.shape[0]
    counts = np.arange(1, most + 1)
    factor = np.sqrt(counts * (n - counts) / (n * (n - ddof)))
    gram = Z.T @ Z
    squared = np.diag(gram).copy()
    # One carrier's φ has squared length around m/n (spread √(2/m)); the next kind of difference, three carriers,
    # around 3m/n.
    low, high = (m / n) * np.array([max(0.1, 1 - 5 * np.sqrt(2 / m)), min(1.7, 1 + 5 * np.sqrt(2 / m))])
    candidates = [Z.T * factor[0]]
    for k in range(1, most):
        big, small = factor[k], factor[k - 1]
        length = squared[:, None] * big**2 + squared[None, :] * small**2 - 2 * big * small * gram
        a, b = np.nonzero((length > low) & (length < high))
        if a.size * m > LARGEST:  # columns so correlated that most differences are short: no rare columns, no relations
            continue
        candidates.append((Z[:, a] * big - Z[:, b] * small).T)
    points, support = _agreeing(np.concatenate(candidates), tolerance * np.sqrt(m / n))
    return Singletons(points.T.copy(), support)


def _groups(points: Array, tolerance: float) -> Indices:
    """Group label of each row, rows that coincide sharing one. Sorting along one direction avoids comparing all
    pairs.
    """
    direction = np.cos(1.7 * np.arange(1, points.shape[1] + 1)) / np.sqrt(points.shape[1])
    order = np.argsort(points @ direction, kind="stable")
    same = np.abs(np.diff(points[order], axis=0)).max(axis=1) < tolerance
    label = np.empty(len(points), np.int64)
    label[order] = np.concatenate([[0], np.cumsum(~same)])
    return label


def _distinct(Z: Array, tolerance: float) -> Array:
    """Drop columns parallel to another: the same carriers again would make every relation look confirmed."""
    norms = np.linalg.norm(Z, axis=0)
    Z = Z[:, norms > 0]
    unit = Z / norms[norms > 0]
    unit = unit * np.where(unit[np.abs(unit).argmax(axis=0), np.arange(unit.shape[1])] < 0, -1.0, 1.0)
    if Z.shape[1] < 2:
        return Z
    _, first = np.unique(_groups(unit.T, tolerance), return_index=True)
    return Z[:, np.sort(first)]


def _agreeing(points: Array, tolerance: float) -> tuple[Array, Indices]:
    """One row for each group of two or more candidates that coincide, and the size of the group."""
    if len(points) < 2:
        return points[:0], np.zeros(0, np.int64)
    _, first, size = np.unique(_groups(points, tolerance), return_index=True, return_counts=True)
    return points[first[size >= 2]], size[size >= 2]


def match_phi(found: Array, Phi: Array, tolerance: float = 1e-3) -> tuple[int, float]:
    """How many different true columns of Φ were found (either sign), and which share of the hits is one (precision)."""
    if found.shape[1] == 0:
        return 0, 1.0
    inner = np.abs(found.T @ Phi)
    distance = np.square(found).sum(0)[:, None] + np.square(Phi).sum(0)[None, :] - 2 * inner
    nearest = distance.argmin(axis=1)
    hit = distance.min(axis=1) < tolerance**2 * np.square(Phi).sum(0)[nearest]
    return int(np.unique(nearest[hit]).size), float(hit.mean())
