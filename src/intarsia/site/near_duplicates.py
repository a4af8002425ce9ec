"""Pairs of columns that are the same, up to scale and offset, but for a few people.

The difference of two such columns' sketches is those people's columns of Φ, so a pair that differs in fewer people than
the smallest allowed level is as dangerous as such a level.

Comparing all pairs in full is too slow for thousands of columns. The cohort is cut into as many groups as the level
allows people (twice, in two ways): columns that differ in fewer people are equal in at least one group of each cut.
In every group each column is standardised and projected onto three random directions; equal columns fall into the same
cell of that three-dimensional grid. Only pairs that met in two groups or more are compared value by value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CELL_SD = 0.1  # side of a cell, in standard deviations of a projection
NEGLIGIBLE_SD = 1e-3  # a difference below this many standard deviations is none
DOMINATED_SHARE = 0.9  # a difference of which few people carry this share is theirs
ONE_PERSONS_SHARE = 0.7  # the same for one person: its sketch has a cosine of .84 with that person's column of Φ
AGREEING_SHARE = 0.1  # of the other people's variance that may be left off the line
_PROJECTIONS = 3
_ALL_PAIRS = 40  # columns in one cell; beyond, each is compared with the next few only
_SMALLEST_GROUP_ROWS = 6
_REFITS = 3


@dataclass(frozen=True)
class NearDuplicate:
    """Columns `a` and `b` (by position) differ in `people` subjects, or in so few that carry nearly all of it."""

    a: int
    b: int
    people: int


class Fingerprints:
    """Sums over groups of subjects, fed the cohort's rows in blocks; then `pairs` lists what is worth comparing."""

    def __init__(self, n: int, columns: int, level: int):
        self.n, self.columns = n, columns
        self.groups = int(min(max(level, 2), max(n // _SMALLEST_GROUP_ROWS, 1)))
        rng = np.random.default_rng(77)
        self.weights = rng.standard_normal((n, _PROJECTIONS))
        self.offset = rng.random(_PROJECTIONS)
        shape = (2, self.groups, columns)
        self.rows, self.weight = np.zeros((2, self.groups)), np.zeros((2, self.groups, _PROJECTIONS))
        self.total, self.square = np.zeros(shape), np.zeros(shape)
        self.projected = np.zeros((_PROJECTIONS, *shape))
        self._at = 0

    def members(self, cut: int, group: int) -> NDArray[np.int64]:
        """The subjects of a group: runs of neighbours in the first cut, every so-many-th subject in the second."""
        place = np.arange(self.n)
        return np.flatnonzero((place * self.groups // self.n if cut == 0 else place % self.groups) == group)

    def add(self, D: Array, square: Array) -> None:
        """The next block of rows, columns near their mean, and its squares."""
        place = np.arange(self._at, self._at + len(D))
        self._at += len(D)
        one = np.ones(len(D))
        w = np.column_stack([one, self.weights[place]])
        for cut, group, rows in self._slices(place):
            self.rows[cut, group] += len(one[rows])
            self.weight[cut, group] += w[rows, 1:].sum(axis=0)
            sums = w[rows].T @ D[rows]
            self.total[cut, group] += sums[0]
            self.projected[:, cut, group] += sums[1:]
            self.square[cut, group] += one[rows] @ square[rows]

    def _slices(self, place: NDArray[np.int64]) -> Iterator[tuple[int, int, slice]]:
        label = place * self.groups // self.n
        edges = [0, *(np.flatnonzero(np.diff(label)) + 1).tolist(), len(place)]
        for a, b in pairwise(edges):
            yield 0, int(label[a]), slice(a, b)
        for offset in range(min(self.groups, len(place))):
            yield 1, int(place[offset] % self.groups), slice(offset, None, self.groups)

    def pairs(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Pairs of columns that fell together in two groups or more, with one (cut, group) in which they did."""
        codes, where = [], []
        variance = self.square.sum(axis=(0, 1)) / max(self.rows.sum(), 1)
        for cut in range(2):
            for group in range(self.groups):
                count = self.rows[cut, group]
                if count < 3:
                    continue
                mean = self.total[cut, group] / count
                spread = self.square[cut, group] / count - mean**2
                varies = np.flatnonzero(spread > 1e-9 * variance)
                f = self.projected[:, cut, group] - self.weight[cut, group][:, None] * mean
                f = f[:, varies] / np.sqrt(spread[varies] * count)
                f = f * np.where(f[0] < 0, -1.0, 1.0)  # a mirrored column is the same column
                cells = np.floor(f / CELL_SD + self.offset[:, None]).astype(np.int64)
                for first, second in _together(cells, varies):
                    codes.append(np.minimum(first, second) * self.columns + np.maximum(first, second))
                    where.append(np.full(len(first), cut * self.groups + group))
        if not codes:
            return {}
        code, place = np.concatenate(codes), np.concatenate(where)
        found, at, times = np.unique(code, return_index=True, return_counts=True)
        needed = 2 if self.groups > 1 else 1
        return {
            (int(c) // self.columns, int(c) % self.columns): (int(place[i]) // self.groups, int(place[i]) % self.groups)
            for c, i, t in zip(found, at, times)
            if t >= needed
        }

    def compare(
        self, pairs: Mapping[tuple[int, int], tuple[int, int]], values: Mapping[int, Array], level: int
    ) -> list[NearDuplicate]:
        """Look at the pairs value by value: one is a straight line of the other but for fewer than `level` people."""
        groups = {where: self.members(*where) for where in set(pairs.values())}
        out = []
        for (a, b), where in pairs.items():
            people = differing(values[a], values[b], groups[where], level)
            if people is not None:
                out.append(NearDuplicate(a, b, people))
        return out


def differing(x: Array, y: Array, same: NDArray[np.int64], level: int) -> int | None:
    """In how many subjects y leaves the straight line of x that fits the subjects `same`; None if not in 1 to level − 1.

    Subjects whose differences together make less than a tenth of all of it do not count: a little noise on the whole
    column hides nobody who stands out.
    """
    e = np.zeros(len(x))
    for _ in range(_REFITS):
        x_same, y_same = x[same], y[same]
        x_mean, y_mean = x_same.sum() / len(same), y_same.sum() / len(same)
        dx = x_same - x_mean
        power = float(dx @ dx)
        if power <= 0:
            return None
        slope = float(dx @ y_same) / power
        e = np.square(y - y_mean - slope * (x - x_mean))
        # The group the line was fitted to may hold a person who differs: fit again without the largest differences.
        same = np.argpartition(e, len(e) - level)[: len(e) - level] if len(e) > 2 * level else same
    variance = float(y.var())
    if float(e.max(initial=0.0)) <= NEGLIGIBLE_SD**2 * variance:
        return None
    # Two columns that agree in nobody but have a few large values each are no pair: the rest must lie on the line.
    rest = same if len(e) > 2 * level else np.argpartition(e, len(e) - level)[: len(e) - level]
    if float(e[rest].mean()) > AGREEING_SHARE * float(y[rest].var()):
        return None
    shares = np.cumsum(np.sort(e)[::-1]) / e.sum()
    people = 1 if shares[0] >= ONE_PERSONS_SHARE else int(np.searchsorted(shares, DOMINATED_SHARE)) + 1
    exact = int((e > NEGLIGIBLE_SD**2 * variance).sum())
    return max(people, exact) if exact < level else people if people < level - 1 else None


def _together(cells: NDArray[np.int64], names: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of columns in the same cell."""
    mixed = (cells * np.array([[1], [100_003], [10_000_600_009]])).sum(axis=0)
    order = np.argsort(mixed, kind="stable")
    ordered, names = mixed[order], names[order]
    runs = np.diff(np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1], True]))
    reach = int(runs.max(initial=1)) - 1
    for shift in range(1, (reach if reach < _ALL_PAIRS else 4) + 1):
        same = ordered[shift:] == ordered[:-shift]
        yield names[:-shift][same], names[shift:][same]
