"""Columns of which one is nearly a sum of others: the difference is one person's, or a few people's.

A total of three scores in which one was mistyped, or one filled in because it was missing: total less scores is nought but for
those people. Whoever holds the sketch takes the combination of columns that is smallest, and has their columns of Φ; from a Gram
matrix it has their values. Pairs of such columns are found elsewhere (`near_duplicates`); here all columns are taken together.

Two looks. How much of some combination of columns can be one subject's alone is that subject's leverage zᵀ(ZᵀZ)⁻¹z, whatever the
combination. And the smallest combinations themselves (the last principal components) may be a few subjects'.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.site.data.table import Table
from intarsia.site.near_duplicates import AGREEING_SHARE, DOMINATED_SHARE, NEGLIGIBLE_SD

Array = NDArray[np.float64]
LARGEST_VALUES = 20_000_000  # subjects times columns that are held
LARGEST_WORK = 4_000_000_000  # subjects times columns squared: a few seconds
_SUBJECTS_PER_COLUMN = 2  # with fewer every subject has a combination of its own
_NAMED = 0.2  # of the largest weight: columns with a smaller one are not named
_FEW = 20  # of so many subjects at most one counts as few
_FEW_COLUMNS = 8  # in a combination that somebody would look for; one of many columns is found only if it is the smallest of all
_TRIED = 100  # subjects with the largest leverage


@dataclass(frozen=True)
class Combination:
    """Columns a combination of which is nearly all of `people` subjects' making."""

    columns: tuple[str, ...]
    people: int


def of_few_people(
    table: Table, order: NDArray[np.int64] | None, names: Collection[str], level: int
) -> Combination | None:  # fmt: skip
    """A combination of these columns that fewer than `level` subjects make up; None where there is none, or too much to see."""
    labels = table.labels
    at = [j for j, label in enumerate(labels) if label in names]
    n, c = table.n if order is None else len(order), len(at)
    if c < 3 or n < _SUBJECTS_PER_COLUMN * c or n * c > LARGEST_VALUES or n * c * c > LARGEST_WORK:
        return None
    Z = np.concatenate([block[:, at] for block in table.whole_blocks(order=order)])
    Z = Z - Z.mean(axis=0)
    Z /= Z.std(axis=0)
    size, directions = np.linalg.eigh(Z.T @ Z)
    size = np.maximum(size, 0.0) + NEGLIGIBLE_SD**2  # what is smaller tells nobody apart
    parts = Z @ directions
    leverage = (parts**2 / size).sum(axis=1)
    for i in np.argsort(-leverage)[:_TRIED]:
        found = _named(directions @ (parts[i] / size), [labels[j] for j in at], 1)
        if leverage[i] > DOMINATED_SHARE and len(found.columns) <= _FEW_COLUMNS:
            return found
    few = min(level - 1, n // _FEW)
    for k in np.flatnonzero(size < AGREEING_SHARE * n):
        squares = np.sort(parts[:, k] ** 2)[::-1]
        people = int(np.searchsorted(np.cumsum(squares), DOMINATED_SHARE * squares.sum())) + 1
        if people <= few and squares[0] > NEGLIGIBLE_SD**2:
            return _named(directions[:, k], [labels[j] for j in at], people)
    return None


def _named(weights: Array, labels: list[str], people: int) -> Combination:
    """The columns with the largest weights, largest first."""
    size = np.abs(weights)
    chosen = [j for j in np.argsort(-size, kind="stable") if size[j] >= _NAMED * size.max()]
    return Combination(tuple(labels[j] for j in chosen), people)
