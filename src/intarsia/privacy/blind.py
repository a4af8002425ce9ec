"""Φ found blind: independent component analysis of a sketch, by someone who has the sketch and nothing else.

Each sketched column is Φx: a mixture of n people (the columns φ_i of Φ) with the column's values as weights. To this
attack the columns are samples of the mixture. Where values are skewed or heavy-tailed, the third and fourth moments of
the samples point along the φ_i, and power iteration on the whitened sketch finds them: u ← mean of (uᵀz)²z, or
u ← mean of (uᵀz)³z − 3u, from many starts at once. With φ_i the attacker has an estimate of that person's value in
every column of the sketch (φ_iᵀ y_Φ).

Gaussian columns have no such moments, and neither have columns turned into normal scores: that is the remedy.

How much is too much (`danger`): the signal of order k is Σ_j κ_j² · (m/n)^k over the columns j, with κ the skewness
(k = 3) or the excess kurtosis (k = 4), and the noise of the estimated moments grows with m. Measured over n = 100 to 500,
m/n = .1 and .25, and eight kinds of columns, the first column of Φ is found where Σκ₃²(m/n)³/m passes about 3 or
Σκ₄²(m/n)⁴/m passes about 10; where all columns have the same kurtosis, so that none is outweighed, (Σκ₄)²/P·(m/n)⁴/m
passes about 2. `danger` is the largest of the three in these units: 1 is where the attack begins to work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError

Array = NDArray[np.float64]
FOUND_COSINE = 0.9  # a direction this close to a true column of Φ counts as found
# Signal at which the first columns of Φ are found: squared moments of a column times (m/n)^order / m.
FIRST_FOUND_ORDER_3 = 3.0
FIRST_FOUND_ORDER_4 = 10.0
FIRST_FOUND_ALIKE = 2.0
STARTS = 200  # directions the search starts from, at most
STEPS = 25  # per start
OPERATIONS_PER_SECOND = 1e9  # of one slow core; only used to keep the self-attack within its time


@dataclass(frozen=True)
class Shape:
    """What of the columns' shape helps the attack: Σ skewness² and Σ excess kurtosis² beyond those of normal columns, and
    Σ excess kurtosis.
    """

    columns: int
    skewness2: float
    kurtosis2: float
    kurtosis: float = 0.0

    @classmethod
    def of(cls, skewness: Sequence[float] | Array, kurtosis: Sequence[float] | Array, n: int) -> "Shape":
        """From the columns' sample moments; what n normal values show by chance (6/n and 24/n) is taken off."""
        s, k = np.asarray(skewness, float), np.asarray(kurtosis, float)
        third = max(0.0, float(np.square(s).sum()) - 6 * s.size / n)
        fourth = max(0.0, float(np.square(k).sum()) - 24 * k.size / n)
        return cls(s.size, third, fourth, float(k.sum()))

    def scaled(self, columns: int) -> "Shape":
        """The same shape for another number of columns (those of the other sites are taken to be like one's own)."""
        factor = columns / max(self.columns, 1)
        return Shape(columns, self.skewness2 * factor, self.kurtosis2 * factor, self.kurtosis * factor)


def danger(shape: Shape, n: int, m: int) -> float:
    """The attack's signal in units of where it begins to find columns of Φ."""
    if not 0 < m <= n:
        raise InputError(f"A sketch has 1 to n = {n} rows; m = {m} came.")
    third, fourth = (m / n) ** 3 / m, (m / n) ** 4 / m
    alike = shape.kurtosis**2 / max(shape.columns, 1)
    return max(
        shape.skewness2 * third / FIRST_FOUND_ORDER_3,
        shape.kurtosis2 * fourth / FIRST_FOUND_ORDER_4,
        alike * fourth / FIRST_FOUND_ALIKE,
    )


def blind_phi(Z: Array, rng: np.random.Generator, starts: int = STARTS, steps: int = STEPS) -> Array:
    """Candidate columns of Φ (unit vectors, m × found, strongest first) from a sketch (m × columns) alone.

    Both orders, twice each: from random starts and the longest columns, then from starts orthogonal to what the first
    round found (deflation).
    """
    white, back = _whiten(np.asarray(Z, float))
    found: list[tuple[float, Array]] = []
    for order in (3, 4):
        before = white[:, :0]
        for _ in range(2):
            U = _climb(white, _starts(white, before, starts, rng), order, steps)
            strength = _strength(white, U, order)
            kept = _distinct(U, strength)
            found += [(float(strength[k]) / 6 ** (order - 3), U[:, k]) for k in kept]
            before = U[:, kept[: white.shape[0] // 2]]
    found.sort(key=lambda item: -item[0])
    directions = back @ np.array([u for _, u in found]).T
    return directions / np.linalg.norm(directions, axis=0)


def affordable_starts(m: int, columns: int, seconds: float) -> int:
    """How many starts fit into the time: two orders, two rounds, two products each step."""
    each = 2 * 2 * 2 * 2.0 * m * columns * STEPS
    return int(np.clip(seconds * OPERATIONS_PER_SECOND / each, 8, STARTS))


def matched(directions: Array, Phi: Array, cosine: float = FOUND_COSINE) -> NDArray[np.int64]:
    """Which people's columns of Φ are among the directions, either sign."""
    if directions.shape[1] == 0:
        return np.zeros(0, np.int64)
    inner = np.abs(directions.T @ (Phi / np.linalg.norm(Phi, axis=0)))
    return np.unique(inner.argmax(axis=1)[inner.max(axis=1) > cosine])


def _whiten(Z: Array) -> tuple[Array, Array]:
    """The sketch with the mean column taken off and uncorrelated rows, and the matrix back to the sketch's space."""
    Z = Z - Z.mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(Z @ Z.T / Z.shape[1])
    keep = values > 1e-10 * values[-1]
    values, vectors = values[keep], vectors[:, keep]
    return (vectors / np.sqrt(values)).T @ Z, vectors * np.sqrt(values)


def _starts(white: Array, before: Array, count: int, rng: np.random.Generator) -> Array:
    """Half at random, half at the longest columns, which one person may dominate; orthogonal to `before`."""
    longest = np.argsort(-np.square(white).sum(axis=0), kind="stable")[: count // 2]
    U = np.hstack([rng.standard_normal((white.shape[0], count - longest.size)), white[:, longest]])
    if before.shape[1]:
        Q = np.linalg.qr(before)[0]
        U = U - Q @ (Q.T @ U)
        U = U + 1e-9 * rng.standard_normal(U.shape)  # a start within the span of what was found still goes somewhere
    return U / np.linalg.norm(U, axis=0)


def _climb(white: Array, U: Array, order: int, steps: int) -> Array:
    count = white.shape[1]
    for _ in range(steps):
        S = U.T @ white
        U = white @ (S * S).T / count if order == 3 else white @ (S * S * S).T / count - 3 * U
        U = U / np.maximum(np.linalg.norm(U, axis=0), 1e-300)
    return U


def _strength(white: Array, U: Array, order: int) -> Array:
    S = U.T @ white
    return np.abs((S * S * S).mean(axis=1)) if order == 3 else np.abs((S**4).mean(axis=1) - 3)


def _distinct(U: Array, strength: Array) -> list[int]:
    """One of each group of starts that arrived at the same place, strongest first."""
    near = np.abs(U.T @ U) > 0.95
    kept: list[int] = []
    for k in np.argsort(-strength, kind="stable"):
        if not near[k, kept].any():
            kept.append(int(k))
    return kept
