"""Columns of which one is nearly a sum of others: the difference is one person's, or a few people's.

A total of three scores in which one was mistyped, or one filled in because it was missing: total less scores is nought but for
those people. Whoever holds the sketch takes the combination of columns that is smallest, and has their columns of Φ; from a Gram
matrix it has their values. Pairs of such columns are found elsewhere (`near_duplicates`); here all columns are taken together.

Two looks. How much of some combination of columns can be one subject's alone is that subject's leverage zᵀ(ZᵀZ)⁻¹z, whatever the
combination; it counts where the columns cancel for everybody else. And the smallest combinations themselves (the last principal
components) may be a few subjects'.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.site.data.table import Table
from intarsia.site.near_duplicates import AGREEING_SHARE, DOMINATED_SHARE, NEGLIGIBLE_SD

Array = NDArray[np.float64]
LARGEST_WORK = 4_000_000_000  # subjects times columns squared: a few seconds
_SUBJECTS_PER_COLUMN = 3  # with fewer every subject has a combination of its own
_NAMED = 0.2  # of the largest weight: columns with a smaller one are not named
_CANCELLED = 0.01  # of the largest column's variance among the others may be left of a sum
_FEW = 20  # of so many subjects at most one counts as few
_FEW_COLUMNS = 8  # in a combination that somebody would look for; one of many columns is found only if it is the smallest of all


@dataclass(frozen=True)
class Combination:
    """Columns a combination of which is nearly all of `people` subjects' making."""

    columns: tuple[str, ...]
    people: int


def of_few_people(
    table: Table, order: NDArray[np.int64] | None, names: Collection[str], level: int
) -> Combination | None:  # fmt: skip
    """A combination of these columns that fewer than `level` subjects make up; None where there is none, or too much to see.

    Two passes over the cohort, one block in memory at a time.
    """
    every = table.labels  # made anew each time it is asked for
    at = [j for j, label in enumerate(every) if label in names]
    labels = [every[j] for j in at]
    n, c = table.n if order is None else len(order), len(at)
    if c < 3 or n < _SUBJECTS_PER_COLUMN * c or n * c * c > LARGEST_WORK:
        return None

    def blocks() -> Iterator[Array]:
        return (block[:, at] for block in table.whole_blocks(order=order))

    mean, sd, products = _moments(blocks(), n)
    size, directions = np.linalg.eigh(products)
    size = np.maximum(size, 0.0) + NEGLIGIBLE_SD**2  # what is smaller tells nobody apart
    small, few = np.flatnonzero(size < AGREEING_SHARE * n), min(level - 1, n // _FEW)
    largest, total = np.zeros((few, len(small))), np.zeros(len(small))  # squares of the smallest combinations
    for block in blocks():
        Z = (block - mean) / sd
        parts = Z @ directions
        leverage = (parts**2 / size).sum(axis=1)
        for i in np.flatnonzero(leverage > DOMINATED_SHARE):
            weights = directions @ (parts[i] / size)
            found = _named(weights, labels, 1)
            # Columns that agree in nobody but have a few large values each are no sum: for the others the columns must cancel.
            left, own = leverage[i] * (1 - leverage[i]), weights**2 * (n - Z[i] ** 2)
            if len(found.columns) <= _FEW_COLUMNS and left < _CANCELLED * own.max():
                return found
        squares = parts[:, small] ** 2
        total += squares.sum(axis=0)
        largest = -np.sort(-np.concatenate([largest, squares]), axis=0)[:few]
    for k, squares, whole in zip(small, largest.T, total, strict=True):
        enough = np.flatnonzero(np.cumsum(squares) >= DOMINATED_SHARE * whole)
        if len(enough) and squares[0] > NEGLIGIBLE_SD**2:
            return _named(directions[:, k], labels, int(enough[0]) + 1)
    return None


def _moments(blocks: Iterator[Array], n: int) -> tuple[Array, Array, Array]:
    """Means, standard deviations and the products of the standardised columns."""
    shift: Array | None = None
    total = products = np.zeros(0)
    for block in blocks:
        if shift is None:
            shift = block[0].copy()  # a large offset must not cost digits
            total, products = np.zeros(len(shift)), np.zeros((len(shift), len(shift)))
        D = block - shift
        total, products = total + D.sum(axis=0), products + D.T @ D
    assert shift is not None
    products = products - np.outer(total, total) / n
    sd = np.sqrt(np.diag(products) / n)
    return shift + total / n, sd, products / np.outer(sd, sd)


def _named(weights: Array, labels: list[str], people: int) -> Combination:
    """The columns with the largest weights, largest first."""
    size = np.abs(weights)
    chosen = [j for j in np.argsort(-size, kind="stable") if size[j] >= _NAMED * size.max()]
    return Combination(tuple(labels[j] for j in chosen), people)
