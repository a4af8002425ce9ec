"""A second opinion on a selection: fixed-design knockoffs, made of the sums of squares and products alone.

A knockoff of a feature is a column that stands to all others as the feature does, but was made without the responses. A feature
that matters beats its knockoffs; one that does not is as likely to lose to any of them. So the number of knockoffs that win says
how many features won by chance: a frequentist false discovery rate (Barber & Candès 2015; several knockoffs: He et al. 2021).

Knockoffs of a fixed design need the rows only through G = XᵀX and XᵀY. With M knockoffs X̃ₖ and a diagonal D,
X̃ₖᵀX̃ₖ = G, XᵀX̃ₖ = X̃ⱼᵀX̃ₖ = G − D, and X̃ₖᵀY is drawn: X̃ₖ = X (I − G⁻¹D) + Wₖ with Wₖ orthogonal to X, and what Wₖ sees of Y is
a random rotation of the residual. The rate holds for a linear model with Gaussian noise, whatever the
features are, and knows no prior.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]

COPIES = 5  # knockoffs of each feature, where there are rows enough: findings begin at 1/(rate × copies)
STEPS = 300  # of the fit that compares a feature with its knockoffs
SHARE = 0.5  # of the penalty that hardly a column of mere noise would get past
RIDGE = 1e-9  # share of the largest eigenvalue below which features say the same
MOST_RATE = 0.2  # of false discoveries: what is found only at more is not named
ROUNDS = 2  # fits: the first finds the level of the noise for the second


@dataclass(frozen=True)
class Knockoffs:
    """`q_value` (P,): the least rate at which a feature is found; 1 where it lost to a knockoff. `copies` of each feature."""

    q_value: Annotated[Array, "feature"]
    copies: int

    @property
    def named(self) -> NDArray[np.intp]:
        """The features that are found at some rate up to MOST_RATE, the surest first."""
        order = np.argsort(self.q_value, kind="stable")
        return order[self.q_value[order] <= MOST_RATE]

    def selected(self, rate: float) -> Bool:
        """The features found at a stated false discovery rate."""
        return self.q_value <= rate


def knockoffs(X: Array, Y: Array, rng: np.random.Generator, rows: float | None = None) -> Knockoffs | None:
    """From centred rows X and Y, or from a root of their Gram matrix, which stands for `rows` of them.

    None where there are fewer than two rows for each feature, or where features say the same: no such knockoffs exist.
    """
    n, P, Q = int(len(X) if rows is None else rows), X.shape[1], Y.shape[1]
    scale = np.sqrt(np.square(X).sum(axis=0))
    copies = min(COPIES, (n - Q) // max(1, P) - 1)
    if copies < 1 or not (scale > 0).all():
        return None
    G, C, S = (X / scale).T @ (X / scale), (X / scale).T @ Y, Y.T @ Y
    values, noise = np.linalg.eigvalsh(G), np.linalg.eigvalsh(S)
    if values[0] < RIDGE * values[-1] or noise[0] < RIDGE * noise[-1]:
        return None
    D = distances(G, copies)
    products = drawn(G, C, S, D, copies, n, rng)
    return Knockoffs(q_values(importance(G, D, products, S, n)), copies)


def distances(G: Array, copies: int) -> Array:
    """D: how far each knockoff lies from its feature, as far as (M+1)/M G − D stays positive definite."""
    inverse = np.linalg.inv(G)
    alone = 1 / np.diagonal(inverse)  # of each feature, what no other explains
    root = np.sqrt(alone)
    most = np.linalg.eigvalsh(root[:, None] * inverse * root)[-1]
    return np.asarray(alone * (0.999 * (copies + 1) / copies / most))


def drawn(G: Array, C: Array, S: Array, D: Array, copies: int, n: int, rng: np.random.Generator) -> Array:
    """Products (M+1, P, Q) of the features and of their knockoffs with the responses; those of the knockoffs are drawn.

    The columns of all Wₖ have the covariance D within a knockoff and D − DG⁻¹D between any two, so that their mean and what lies
    apart from it are independent. They see a random frame of the residual.
    """
    P, Q = C.shape
    B, inverse = np.linalg.solve(G, C), np.linalg.inv(G)
    together = np.linalg.cholesky((copies + 1) * np.diag(D) - copies * D[:, None] * inverse * D)
    frame, R = np.linalg.qr(rng.standard_normal((n - P, Q)))
    seen = (frame * np.sign(np.diagonal(R)))[: copies * P].reshape(copies, P, Q)
    mean = seen.mean(axis=0)
    own = np.sqrt(D)[:, None] * (seen - mean) + together @ mean
    return np.asarray(np.concatenate([C[None], C - D[:, None] * B + own @ root_of(S - C.T @ B)]))


def root_of(S: Array) -> Array:
    """R (Q×Q) with RᵀR = S."""
    values, vectors = np.linalg.eigh(S)
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T)


def importance(G: Array, D: Array, products: Array, S: Array, n: int) -> Array:
    """Size (M+1, P) of the effects of a regression on features and knockoffs alike, whole rows penalised."""
    _, P, Q = products.shape
    between = G - np.diag(D)
    step = 1 / (len(products) * np.linalg.eigvalsh(between)[-1] + D.max())
    penalty = SHARE * (np.sqrt(Q) + np.sqrt(2 * np.log(len(products) * P)))
    noise = S / n
    for _ in range(ROUNDS):
        values, vectors = np.linalg.eigh(noise)
        white = vectors / np.sqrt(values)
        target = products @ white
        B = ahead = np.zeros_like(target)
        momentum = 1.0
        for _ in range(STEPS):
            moved = ahead - step * (between @ ahead.sum(axis=0) + D[:, None] * ahead - target)
            size = np.sqrt(np.square(moved).sum(axis=2, keepdims=True))
            new = moved * np.maximum(0.0, 1 - step * penalty / np.maximum(size, 1e-300))
            following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead, B, momentum = new + (momentum - 1) / following * (new - B), new, following
        effects = B @ np.linalg.inv(white)
        fitted = between @ effects.sum(axis=0) + D[:, None] * effects
        noise = (S + np.einsum("kpq,kpr->qr", effects, fitted - 2 * products)) / n
        noise = (noise + noise.T) / 2
    return np.asarray(np.sqrt(np.square(B).sum(axis=2)))


def q_values(size: Array) -> Array:
    """Of each feature: the least estimated rate of false discoveries among those that lead their knockoffs by as much."""
    copies = len(size) - 1
    order = np.sort(size, axis=0)
    lead = order[-1] - np.median(order[:-1], axis=0)
    wins = (size[0] >= order[-1]) & (lead > 0)
    lost = ~wins & (lead > 0)
    ordered = np.argsort(-lead, kind="stable")
    rate = (1 + np.cumsum(lost[ordered])) / copies / np.maximum(1, np.cumsum(wins[ordered]))
    out = np.ones(len(lead))
    out[ordered] = np.minimum(1.0, np.minimum.accumulate(rate[::-1])[::-1])
    return np.where(wins, out, 1.0)
