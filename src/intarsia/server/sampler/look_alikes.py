"""Sets of features that look alike to the data, whose scales chains exchange (`exchange`).

They are made once, before the first sweep, around the features of the sparse solution that chains start from and a few that say
most of what it leaves. A lasso often takes several neighbours for one; those that the others could do without are left out
first. In a set are features that correlate with the one in the middle and could stand in its place at little cost, and those at
which chains start: there one would stay although its neighbour is far better. A feature that gains no more than the best of all
would by chance needs no set: a chain lets go of it by itself and takes up another.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler.exchange import Alike
from intarsia.server.sampler.sparse_start import SparseStart

Array = NDArray[np.float64]

CORRELATED = 0.5  # from which on features look alike,
BY_CHANCE, AT_MOST = 5.5, 0.9  # or, where rows are few, from so many over their root; from this on they always do
COSTS = 7.0  # of a set's best feature, in logarithms of the likelihood, from which on another is not worth a try,
AT_START = 40.0  # or one at which chains start
BESIDE, SCORED = 12, 60  # sets at most around features that are not in the solution, of so many that say most of what it leaves
MEMBERS = 12  # of a set at most, those that cost least
_COLUMNS = 2**14  # of X at once,
_NEAR = 5 * MEMBERS  # and so many at most of each that are remembered around a centre


def look_alikes(X: Array, Y: Array, found: SparseStart, rows: int | None = None) -> Alike:
    """The sets; `rows` is how many rows the noise is counted over, where X and Y are a root of those rows' Gram matrix."""
    (m, P), none = X.shape, Alike(np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64))
    rows = rows or m
    values, sides = np.linalg.eigh(found.residual)
    if not values[-1] > 0:
        return none
    white = sides / np.sqrt(np.maximum(values, 1e-9 * values[-1]))
    length = np.sqrt(np.einsum("mp,mp->p", X, X))
    scale = 1 / np.where(length > 0, length, np.inf)
    Yw = Y @ white
    unit = X[:, found.features] * scale[found.features]
    needed, carried = _needed(unit, Yw, math.log(P) + 0.5 * Y.shape[1] * math.log(rows))
    features, unit = found.features[needed], unit[:, needed]
    # Of each feature alone, the change in the responses' likelihood is half the square of these.
    left = (X.T @ (Yw - unit @ carried)) * scale[:, None]
    least = min(max(CORRELATED, BY_CHANCE / math.sqrt(rows)), AT_MOST)
    centres = features.tolist()
    for p in np.argsort(-np.square(left).sum(axis=1), kind="stable")[:SCORED].tolist():
        own = X[:, [p]] * scale[p]
        if len(centres) < features.size + BESIDE and np.abs(own.T @ unit).max(initial=0.0) < least:
            centres, unit = [*centres, p], np.concatenate([unit, own], axis=1)
    carried = np.concatenate([carried, np.zeros((len(centres) - len(carried), Y.shape[1]))])
    sets: list[list[int]] = []
    placed: set[int] = set()
    for at, gain in _near(X, scale, unit, left, carried, least):
        if not gain.max(initial=0.0) > math.log(P):
            continue
        costs = np.where(np.isin(at, found.features), AT_START, COSTS)
        members = [p for p in at[gain > gain.max() - costs].tolist() if p not in placed][:MEMBERS]
        if len(members) > 1:
            sets.append(members)
            placed.update(members)
    if not sets:
        return none
    size = np.array([len(members) for members in sets], dtype=np.int64)
    filled = [members + members[:1] * (size.max() - len(members)) for members in sets]
    return Alike(np.array(filled, dtype=np.int64), size)


def _needed(unit: Array, Y: Array, least: float) -> tuple[NDArray[np.int64], Array]:
    """The columns without those, one after the other, by which the fit to Y loses less than `least`; and their coefficients."""
    kept = np.arange(unit.shape[1])
    while True:
        inverse = np.linalg.pinv(unit[:, kept].T @ unit[:, kept], hermitian=True)
        C = inverse @ (unit[:, kept].T @ Y)
        loss = 0.5 * np.square(C).sum(axis=1) / np.maximum(np.diag(inverse), 1e-300)
        if not loss.min(initial=np.inf) < least:
            return kept, C
        kept = np.delete(kept, loss.argmin())


def _near(
    X: Array, scale: Array, unit: Array, left: Array, carried: Array, least: float
) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """For each centre, a column of `unit`: the features that correlate with it by `least` or more, and what each would gain in
    its place, the best first.
    """
    parts: list[list[tuple[NDArray[Any], Array]]] = [[] for _ in unit.T]
    for first in range(0, X.shape[1], _COLUMNS):
        some = slice(first, first + _COLUMNS)
        cosines = (unit.T @ X[:, some]) * scale[some]
        for part, cosine, effect in zip(parts, cosines, carried, strict=True):
            at = np.flatnonzero(np.abs(cosine) >= least)
            gain = 0.5 * np.square(left[some][at] + cosine[at, None] * effect).sum(axis=1)
            best = np.argsort(-gain, kind="stable")[:_NEAR]
            part.append((first + at[best], gain[best]))
    for part in parts:
        at, gain = (np.concatenate(each) for each in zip(*part, strict=True))
        best = np.argsort(-gain, kind="stable")
        yield at[best], gain[best]
