"""What a sweep reads (`Problem`), what it changes (`State`), and what it leaves behind (`Trace`).

Rows i = 1 … m of X and Y are rotated so that the background's covariance is diagonal: row i has noise (1 + w d_i) Σ.

    Y = X B + E,   E_i ~ N(0, (1 + w d_i) Σ)
    feature p is in with probability π; a feature that is in acts on response q with probability ρ_q, on one response at least;
    where it acts its effects are N(0, V), restricted to those responses.

The features that are in lie in slots, in no order; `State.slot` says where.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Problem(NamedTuple):
    """The data, and the constants of the prior."""

    X: NDArray[np.float32]  # (P, m): one feature per row, rotated, of unit mean square before the rotation
    Y: Array  # (m, Q), rotated
    d: Array  # (m,) eigenvalues of X Xᵀ / P: how much of the background a row has
    squares: NDArray[np.float32]  # (G, P): x_p' diag(1 / (1 + w d)) x_p for every w of the grid
    ratios: Array  # (G,): the grid of background ratios w, 0 first
    ratio_prior: Array  # (G,): their log prior probabilities
    rest: Array  # (Q, Q): scatter of rows that no feature reaches
    rows: float  # how many rows the noise is counted over (times the likelihood's power)
    power: float  # of the likelihood
    looked_at: float  # P*: features that the prior counts
    expected: float  # κ: features that the prior expects
    independent: bool  # noise: no covariance between the responses


class State(NamedTuple):
    """One chain's position. Arrays are changed in place."""

    slot: NDArray[np.int32]  # (P,): where a feature lies among those that are in, or -1
    feature: NDArray[np.int32]  # (K,): which feature lies in a slot
    acts: NDArray[np.bool_]  # (K, Q): on which responses
    effect: Array  # (K, Q): zero where it does not act
    count: NDArray[np.int64]  # type: ignore[assignment]  # (1,): slots in use; hides the tuple's method
    Sigma: Array  # (Q, Q)
    V: Array  # (Q, Q): covariance of effects
    loadings: Array  # (Q, R): Λ of V = ΛΛᵀ + ψI where its rank is limited; R = 0: it is not
    rho: Array  # (Q,)
    scalars: Array  # (SCALARS,)
    near: NDArray[np.int64]  # the NEAR features that came nearest to being in during the warm-up; none before its end


NEAR = 512  # all features where there are no more
PI, SPREAD, RATIO, SCALARS = 0, 1, 2, 3  # places in State.scalars: π, the scale of V, and which ratio of the grid


class Trace(NamedTuple):
    """What one sweep tells of the features."""

    pip: NDArray[np.float32]  # (P,): P(in | rest)
    listed: NDArray[np.int32]  # (L,): features that are in, or have P(in | rest) above WORTH_LISTING
    expected: NDArray[np.float32]  # (L, Q): E[effect | rest] of those
    acting: NDArray[np.float32]  # (L, Q): probability that each acts on a response, given the rest; 0 where it is out
    number: NDArray[np.int64]  # (1,): how many are listed


WORTH_LISTING = 1e-3  # P(in | rest)


def dense_effects(state: State) -> Array:
    """B (P, Q)."""
    B = np.zeros((state.slot.size, state.effect.shape[1]))
    k = int(state.count[0])
    B[state.feature[:k]] = state.effect[:k]
    return B
