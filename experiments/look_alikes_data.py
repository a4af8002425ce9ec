"""Simulated sets that look like three kinds of public data: proteins from expression, an exposome, a connectome.

Each is made with as many subjects as such a study has, and with new ones to predict. `share` is the part of each response's
variance that the features explain.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.demo.connectome import connectivity, effects, regions

Array = NDArray[np.float64]
NEW = 1_000  # subjects to predict


class LookAlike(NamedTuple):
    """Subjects to fit and how they are made."""

    n: int
    share: float
    noise: float  # correlation of any two responses' noise
    make: Callable[[int, np.random.Generator], tuple[Array, Array]]  # so many subjects' features and signals


def standard(values: Array) -> Array:
    """Columns with mean 0 and variance 1."""
    return np.asarray((values - values.mean(axis=0)) / values.std(axis=0))


def proteins(P: int, Q: int, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Genes that move together, in a dozen programmes and in blocks of ten.

    Every gene acts a little, through four directions, and each protein's own gene acts on it.
    """
    programmes = rng.standard_normal((n, 12)) @ rng.standard_normal((12, P)) / np.sqrt(12)
    blocks = np.repeat(rng.standard_normal((n, P // 10)), 10, axis=1)
    X = np.sqrt(0.4) * programmes + np.sqrt(0.3) * blocks + np.sqrt(0.3) * rng.standard_normal((n, P))
    together = standard(X @ rng.standard_normal((P, 4))) @ rng.standard_normal((4, Q))
    own = X[:, rng.choice(P, Q, replace=False)]
    return X, np.sqrt(0.75) * standard(together) + np.sqrt(0.25) * standard(own)


def exposome(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Twenty families of fourteen exposures, some nearly copies of each other, half of them skewed.

    Eight act on all four outcomes, and all of them a little.
    """
    families, members, Q = 20, 14, 4
    alike = np.repeat(rng.uniform(0.2, 0.9, families), members)
    common = np.repeat(rng.standard_normal((n, families)), members, axis=1)
    X = np.sqrt(alike) * common + np.sqrt(1 - alike) * rng.standard_normal((n, families * members))
    X[:, ::2] = np.exp(0.7 * X[:, ::2])
    few = rng.choice(X.shape[1], 8, replace=False)
    S = standard(X)
    sparse = standard(S[:, few] @ rng.standard_normal((8, Q)))
    dense = standard(S @ rng.standard_normal((X.shape[1], Q)))
    return X, (sparse + dense) / np.sqrt(2)


def connectome(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """The lab's: thirty of 2,346 edges act on six responses through two abilities."""
    places = regions()
    X = connectivity(n, places, rng)
    return X, X @ effects(places, 30, rng)


SETS = {
    "proteins, 200 genes": LookAlike(300, 0.4, 0.3, partial(proteins, 200, 10)),
    "proteins, 1,000 genes": LookAlike(300, 0.4, 0.3, partial(proteins, 1_000, 20)),
    "exposome": LookAlike(1_300, 0.25, 0.3, exposome),
    "connectome": LookAlike(126, 0.6, 0.0, connectome),
    "connectome, noise correlated": LookAlike(126, 0.6, 0.6, connectome),
}


def simulate(name: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """X and Y of the study's subjects, and of new ones."""
    kind = SETS[name]
    rng = np.random.default_rng([seed, 23])
    X, signal = kind.make(kind.n + NEW, rng)
    own, common = rng.standard_normal(signal.shape), rng.standard_normal((len(X), 1))
    E = np.sqrt(kind.noise) * common + np.sqrt(1 - kind.noise) * own
    Y = np.sqrt(kind.share) * standard(signal) + np.sqrt(1 - kind.share) * E
    return X[: kind.n], Y[: kind.n], X[kind.n :], Y[kind.n :]
