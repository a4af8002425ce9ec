"""Columns that were measured in few people only, nearly as many columns as people.

A hundred markers of a substudy of 35 people: outside of it everybody has the same value (none, or the mean). The span of these
columns is the span of the 35 people's columns of Φ, whoever they are, and holds each of them by itself: another such set that
shares one person meets it there. With r columns one can take r − 1 of the people away by a combination; k − r + 1 are left, and
they must not be fewer than the smallest allowed level. Whether the set has a name in common does not matter here: it is looked
for by who carries the columns.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.privacy.facts import Carried

Array = NDArray[np.float64]
CARRIED = 0.95  # of a column's variance
NARROW = 6  # a column is narrow if a sixth of the subjects carry so much of it
LARGEST_VALUES = 20_000_000  # held at once while narrow columns are compared
FEWEST_COLUMNS = 5  # that make a set; of fewer the people are no fewer than those of a level
_HASHES = 8  # of each column's carriers: columns that agree in one are joined
_RANKS = 40  # numbers of directions that are tried, at most
_INSIDE = 0.9  # of what a set of columns spans, by its people


def possible(fourths: Array, variance: Array, n: int) -> NDArray[np.int64]:
    """Columns that may be narrow: if k subjects carry the share s of ΣD², then ΣD⁴ ≥ (s·ΣD²)²/k."""
    return np.flatnonzero((fourths * max(n // NARROW, 1) >= (CARRIED * variance) ** 2) & (variance > 0))


@dataclass
class Narrow:
    """Columns whose variance a sixth of the subjects carry, and sets of them that the same people carry."""

    values: Array  # (subject, column), centred and of variance one
    names: tuple[str, ...]

    def sets(self) -> Iterator[NDArray[np.int64]]:
        """Columns that share the carrier with the least hash, joined: of those with half of their carriers in common, most."""
        n, c = self.values.shape
        squares = np.square(self.values)
        order = np.argsort(-squares, axis=0)
        reached = np.cumsum(np.take_along_axis(squares, order, axis=0), axis=0) / np.maximum(squares.sum(axis=0), 1e-300)
        count = (reached < CARRIED).sum(axis=0) + 1
        narrow = np.flatnonzero(count <= n // NARROW)
        parent = np.arange(c)

        def root(j: int) -> int:
            while parent[j] != j:
                parent[j] = parent[parent[j]]
                j = parent[j]
            return j

        for k in range(_HASHES):
            seed = int.from_bytes(hashlib.sha256(b"carriers %d" % k).digest()[:4], "little")
            rank = np.random.default_rng(seed).permutation(n)
            met: dict[int, int] = {}
            for j in narrow:
                least = int(rank[order[: count[j], j]].min())
                parent[root(int(j))] = root(met.setdefault(least, int(j)))
        roots = np.array([root(int(j)) for j in narrow])
        yield from (narrow[roots == one] for one in np.unique(roots))

    def exposed(self, level: int, rows: int | None) -> Iterator[Carried]:
        """Sets in whose span fewer than `level` people can be singled out. `rows` of a sketch: of people no fewer than these
        nothing stands out; None where products leave."""
        n = len(self.values)
        for at in self.sets():
            if len(at) < FEWEST_COLUMNS:
                continue
            left, size, _ = np.linalg.svd(self.values[:, at], full_matrices=False)
            whole = int((size > 1e-6 * size[0]).sum())
            # Others' small differences add directions of their own, the shortest: how many they are nobody says.
            for rank in np.unique(np.linspace(whole, min(FEWEST_COLUMNS, whole), _RANKS).astype(int))[::-1]:
                leverage = np.sort(np.square(left[:, :rank]).sum(axis=1))[::-1]
                people = int(np.searchsorted(np.cumsum(leverage), _INSIDE * rank)) + 1
                seen = rows is None or people < rows + level
                if seen and people <= n // NARROW and people - rank + 1 < level:
                    yield Carried("panel", tuple(self.names[j] for j in at), people, _INSIDE, True, -2 - int(at[0]))
                    break
