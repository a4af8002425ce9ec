"""Which draws a run keeps when all of them would be too large: those of some features, and some whole draws of C.

Both are fixed before the first sweep, from the data, the sparse start and the length of the run alone: the same for every chain.
Nothing hangs on a feature's being among them: moments, convergence and selection are known of all (`running`), only the draws of
the others are missing.
"""

import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler.sparse_start import SparseStart

Array = NDArray[np.float64]
Index = NDArray[np.int64]

FILE = "keeping.npz"
FEATURES = 2_000  # whose draws are kept, where memory allows: the start's and their look-alikes, then those that score best
AT_RANDOM = 200  # other features whose draws are kept, chosen at random
FIRST = 100  # draws in the first stretch of whole draws; with every further one there are four times as many


@dataclass(frozen=True)
class Keeping:
    """Places of the features whose draws are kept, and numbers (from 0) of the draws that are kept whole, both ascending."""

    features: Index
    whole: Index

    def save(self, folder: Path) -> None:
        part = folder / f"{FILE}.part"
        with open(part, "wb") as out:
            np.savez(out, features=self.features, whole=self.whole)
        os.replace(part, folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> "Keeping | None":
        """What a run's folder says; None where every draw is kept."""
        if not (folder / FILE).exists():
            return None
        with np.load(folder / FILE, allow_pickle=False) as stored:
            return cls(stored["features"], stored["whole"])

    def longer(self, draws: int) -> "Keeping":
        """Of a longer run: what was kept stays, and the whole draws of the further stretches come to it."""
        more = whole_draws(draws, len(self.whole))
        return Keeping(self.features, np.concatenate([self.whole, more[more > self.whole[-1]]]))

    def most_within(self, draws: int) -> int:
        """The largest number of whole draws among so many consecutive ones."""
        return int((np.searchsorted(self.whole, self.whole + draws) - np.arange(len(self.whole))).max())

    def until(self, draws: int) -> Index:
        """The whole draws among the first."""
        return self.whole[self.whole < draws]


@dataclass(frozen=True)
class Size:
    """Of a run's draws of C."""

    chains: int
    draws: int
    P: int
    Q: int

    @property
    def bytes(self) -> int:
        return 8 * self.chains * self.draws * self.P * self.Q

    def features_within(self, memory: int) -> int:
        """How many features' draws are kept in so many bytes: the best 2,000 and some at random, or a tenth of them at least."""
        most = FEATURES + AT_RANDOM
        return int(min(self.P, max(most // 10, min(most, memory // (8 * self.chains * self.draws * self.Q)))))

    def whole_within(self, memory: int) -> int:
        """How many whole draws per chain fit, in single precision, into what the kept features' draws leave of twice as many
        bytes, and into as many at least; at least two.
        """
        kept = 8 * self.chains * self.draws * self.Q * self.features_within(memory)
        return int(min(self.draws, max(2, max(memory, 2 * memory - kept) // (4 * self.chains * self.P * self.Q))))


def choose(X: Array, Y: Array, found: SparseStart | None, size: Size, memory: int) -> Keeping:
    """What to keep of a run of this size: in all about twice `memory` bytes."""
    features = choose_features(X, np.nan_to_num(Y), found, size.features_within(memory))
    return Keeping(features, whole_draws(size.draws, size.whole_within(memory)))


def choose_features(X: Array, Y: Array, found: SparseStart | None, number: int) -> Index:
    """The sparse start's features and those that look like them, those that score best against Y and against what the start
    leaves, and some at random.
    """
    P = X.shape[1]
    if number >= P:
        return np.arange(P)
    at_random = min(AT_RANDOM, number // 5)
    support = np.zeros(0, dtype=np.int64) if found is None else found.features
    left = Y if found is None else Y - X[:, support] @ found.C
    length = np.maximum(np.einsum("mp,mp->p", X, X), 1e-300)
    ranks = []
    for rows in (Y, left):
        scale = np.sqrt(np.square(rows).mean(axis=0))
        score = np.square(X.T @ (rows / np.where(scale > 0, scale, 1.0))).sum(axis=1) / length
        ranks.append(np.argsort(-score, kind="stable"))
    # By turns from both lists, after the start's own and its look-alikes: each feature counts where it comes first.
    alike = support[:0] if found is None or found.alike is None else found.alike.features.ravel()
    order = np.concatenate([support, alike, np.column_stack(ranks).ravel()])
    first = np.sort(np.unique(order, return_index=True)[1])
    chosen = order[first[: max(number - at_random, support.size)]]
    rest = np.setdiff1d(np.arange(P), chosen)
    some = np.random.default_rng(0).choice(rest, size=min(at_random, rest.size), replace=False)
    return np.sort(np.concatenate([chosen, some])).astype(np.int64)


def whole_draws(draws: int, number: int) -> Index:
    """Numbers of up to `number` draws, equally many of each stretch (0 – 100, – 400, – 1,600, …) or all of it.

    A run may stop long before its budget of draws is spent; it then has whole draws all the same.
    """
    ends = [0, *(FIRST * 4**k for k in range(30) if FIRST * 4**k < draws), draws]
    stretches = list(pairwise(ends))

    def taken(each: int) -> int:
        return sum(min(each, last - first) for first, last in stretches)

    each = max(1, bisect_right(range(1, draws + 1), number, key=taken))
    parts = [(first, last - first, min(each, last - first)) for first, last in stretches]
    return np.concatenate([first + (np.arange(n) + 1) * length // n - 1 for first, length, n in parts]).astype(np.int64)
