"""Decoding a column of few values from its sketch, by a party that knows Φ: linear programming and Bayes-AMP.

The decoder is given what a determined attacker would have: the real Φ, the column's levels and their frequencies. It
is the worst case on purpose, since a site runs it on its own columns to learn what a leaked key would cost.

Any Φ reduces to orthonormal rows: Φ = L Q gives L⁻¹Φx = Qx. So one message-passing decoder (its orthogonal form, also
known as VAMP) serves gaussian and orthonormal sketches, and its state evolution says from (m/n, level frequencies)
alone whether a long column would be decoded, without touching data.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from intarsia.errors import InputError

Array = NDArray[np.float64]
_FLOOR = 1e-12  # of a variance


@dataclass(frozen=True)
class Levels:
    """The law of one column: values with frequencies, and a share of subjects with any other (Gaussian) value."""

    values: Array
    weights: Array
    slab: float = 0.0
    slab_mean: float = 0.0
    slab_variance: float = 0.0

    @classmethod
    def of(cls, column: Array, most: int = 12) -> "Levels":
        """Levels of a column. One with more than `most` values is its commonest value and a Gaussian for the rest."""
        values, counts = np.unique(np.asarray(column, float), return_counts=True)
        if values.size == 1:
            raise InputError("A column of one value carries nothing and cannot be attacked. Drop it.")
        n = counts.sum()
        if values.size <= most:
            return cls(values, counts / n)
        top = counts.argmax()
        rest = np.delete(values, top)
        weights = np.delete(counts, top) / (n - counts[top])
        mean = float(rest @ weights)
        return cls(values[[top]], counts[[top]] / n, float(1 - counts[top] / n), mean, float((rest - mean) ** 2 @ weights))

    @property
    def mean(self) -> float:
        return float(self.values @ self.weights) + self.slab * self.slab_mean

    @property
    def variance(self) -> float:
        second = float(self.values**2 @ self.weights) + self.slab * (self.slab_variance + self.slab_mean**2)
        return second - self.mean**2

    def denoise(self, r: Array, v: float) -> tuple[Array, Array]:
        """Posterior mean and variance of x given r = x + N(0, v)."""
        means = np.append(self.values, self.slab_mean)
        variances = np.append(np.zeros(self.values.size), self.slab_variance)
        weights = np.append(self.weights, self.slab)
        keep = weights > 0
        means, variances, weights = means[keep], variances[keep], weights[keep]
        total = variances + v
        log_p = np.log(weights) - 0.5 * np.log(total) - (r[:, None] - means) ** 2 / (2 * total)
        p = np.exp(log_p - log_p.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        each = means + variances / total * (r[:, None] - means)
        x = (p * each).sum(axis=1)
        spread = (p * (variances * v / total + each**2)).sum(axis=1) - x**2
        return x, np.maximum(spread, 0.0)

    def nearest(self, x: Array) -> Array:
        """Each entry moved to its closest level; a column with a slab keeps its estimates."""
        if self.slab:
            return x
        return self.values[np.abs(x[:, None] - self.values).argmin(axis=1)]


def orthonormal_rows(Phi: Array, b: Array) -> tuple[Array, Array]:
    """Q with orthonormal rows and b' such that Φx = b is the same as Qx = b'."""
    gram = Phi @ Phi.T
    if np.abs(gram - np.eye(len(Phi))).max() < 1e-9:
        return Phi, b
    L = np.linalg.cholesky(gram)
    return solve_triangular(L, Phi, lower=True), solve_triangular(L, b, lower=True)


def decode_amp(Phi: Array, b: Array, levels: Levels, iterations: int = 200, damping: float = 0.7) -> Array:
    """Bayes-optimal message passing for Φx = b with the column's law as the prior; returns estimates, not yet
    rounded.
    """
    m, n = Phi.shape
    Q, b = orthonormal_rows(Phi, b)
    alpha = m / n
    x = np.full(n, levels.mean)
    r2, v2 = x, levels.variance
    r1, v1 = np.zeros(0), 0.0
    for _ in range(iterations):
        x2 = r2 + Q.T @ (b - Q @ r2)
        # Taking out what r2 already said leaves a message whose error is independent of the prior's.
        new_r1 = r2 + (x2 - r2) / alpha
        new_v1 = max(v2 * (1 - alpha) / alpha, _FLOOR)
        r1 = damping * new_r1 + (1 - damping) * r1 if r1.size else new_r1
        v1 = damping * new_v1 + (1 - damping) * v1 if v1 else new_v1
        before, (x, spread) = x, levels.denoise(r1, v1)
        e1 = min(max(float(spread.mean()), _FLOOR), v1 * (1 - 1e-9))
        if e1 <= 1e-10 * levels.variance or np.abs(x - before).max() < 1e-10:
            break
        v2 = 1 / (1 / e1 - 1 / v1)
        r2 = v2 * (x / e1 - r1 / v1)
    return x


def decode_lp(
    Phi: Array, b: Array, low: float, high: float, tolerance: float = 1e-6, seconds: float = 60.0, mostly_high: bool = False
) -> Array | None:
    """The x in [low, high]ⁿ with Φx = b and the least sum of distances from `low`; None when time ran out.

    `mostly_high` measures the distances from `high` instead: a column and its mirror are then decoded alike.
    `tolerance` is the rounding of the sketch: without it a column rounded to float32 has no feasible x at all.
    """
    from scipy.optimize import linprog

    m, n = Phi.shape
    scale = max(float(np.abs(Phi).max()), 1e-300)
    A = np.hstack([Phi / scale, np.eye(m)])
    bounds = np.vstack([np.tile([low, high], (n, 1)), np.tile([-tolerance / scale, tolerance / scale], (m, 1))])
    cost = np.concatenate([np.full(n, -1.0 if mostly_high else 1.0), np.zeros(m)])
    found = linprog(cost, A_eq=A, b_eq=b / scale, bounds=bounds, method="highs", options={"time_limit": max(0.1, seconds)})
    return found.x[:n] if found.x is not None else None


def state_evolution(levels: Levels, ratio: float, iterations: int = 300) -> float:
    """The share of a column's variance that Bayes-AMP leaves unknown at m/n = ratio, for long columns; 0 is decoded."""
    if not 0 < ratio <= 1:
        raise InputError(f"m/n must lie in (0, 1]; {ratio} came.")
    if ratio == 1:
        return 0.0
    variance = levels.variance
    if variance <= 0:
        raise InputError("A column of one value carries nothing and cannot be attacked. Drop it.")
    v2, e1 = variance, variance
    for _ in range(iterations):
        v1 = max(v2 * (1 - ratio) / ratio, _FLOOR * variance)
        before, e1 = e1, _mmse(levels, v1)
        if e1 < 1e-9 * variance:
            return 0.0
        e1 = min(e1, v1 * (1 - 1e-9))
        v2 = 1 / (1 / e1 - 1 / v1)
        if abs(before - e1) < 1e-9 * variance:
            break
    return float(min(1.0, e1 / variance))


def _mmse(levels: Levels, v: float) -> float:
    """E Var(x | x + N(0, v)): by normal quantile nodes around each component, weighted by its share."""
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(41)
    node_weights = node_weights / node_weights.sum()
    total = 0.0
    for value, weight in zip(levels.values, levels.weights):
        total += weight * float(node_weights @ levels.denoise(value + np.sqrt(v) * nodes, v)[1])
    if levels.slab:
        r = levels.slab_mean + np.sqrt(v + levels.slab_variance) * nodes
        total += levels.slab * float(node_weights @ levels.denoise(r, v)[1])
    return total


@dataclass(frozen=True)
class Decoded:
    """What the decoders got out of one column."""

    method: str
    exact: bool
    right: float  # share of subjects whose value was found
    right_rare: float  # how well subjects off the commonest value were found: F score, so that calling all rare earns nothing
    seconds: float


def score(truth: Array, found: Array, method: str, seconds: float) -> Decoded:
    """Compare a decoded column with the truth. A value counts as found within 1e-3 of the column's spread."""
    right = np.abs(found - truth) < 1e-3 * max(float(np.ptp(truth)), 1e-300)
    values, counts = np.unique(truth, return_counts=True)
    rare = truth != values[counts.argmax()]
    hits, alarms = int(right[rare].sum()), int((~right[~rare]).sum())
    found_rare = 2 * hits / max(hits + alarms + int(rare.sum()), 1)
    return Decoded(method, bool(right.all()), float(right.mean()), found_rare, seconds)


def attack_column(Phi: Array, b: Array, truth: Array, seconds: float = 30.0, tolerance: float = 1e-6) -> list[Decoded]:
    """Run both decoders on one column's sketch `b` = Φ·truth (in the units of `truth`) and score them."""
    from time import monotonic

    levels = Levels.of(truth)
    out: list[Decoded] = []
    start = monotonic()
    out.append(score(truth, levels.nearest(decode_amp(Phi, b, levels)), "amp", monotonic() - start))
    left = seconds - (monotonic() - start)
    if not levels.slab and left > 0:
        start = monotonic()
        low, high = float(levels.values.min()), float(levels.values.max())
        common = float(levels.values[levels.weights.argmax()])
        x = decode_lp(Phi, b, low, high, tolerance, left, mostly_high=high - common < common - low)
        if x is not None:
            out.append(score(truth, levels.nearest(x), "lp", monotonic() - start))
    return out
