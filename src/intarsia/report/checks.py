"""Does the model fit what the server has? Posterior predictive and residual checks on the sketch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.server.assess.leave_one_out import Rows
from intarsia.server.posterior.draws import square_root

Array = NDArray[np.float64]

POINTS = 60  # order statistics drawn


@dataclass(frozen=True)
class Checks:
    """Per response: `r2` (Q, 3) share of variance explained with its interval; tail shares of the spread and of the
    largest value among replicates; `coverage` of predictive intervals; observed order statistics with their
    predictive band (Q, POINTS).
    """

    r2: Array
    p_spread: Array
    p_largest: Array
    coverage: Array
    observed: Array
    low: Array
    middle: Array
    high: Array
    replicates: int
    m: int

    def worst(self, most: int) -> list[int]:
        """Responses in the order of their most extreme tail share."""
        tails = np.minimum(np.minimum(self.p_spread, 1 - self.p_spread), np.minimum(self.p_largest, 1 - self.p_largest))
        return [int(q) for q in np.argsort(tails, kind="stable")[:most]]


def check(posterior: Any, rows: Rows, probability: float, rng: np.random.Generator) -> Checks:
    """Replicate the sketched responses from thinned draws, jointly, and compare."""
    d, Y = posterior.draws, rows.Y
    m = len(Y)
    keep = d.thinned(np.clip(2e10 / (m * d.P * d.Q), 20, 240))
    ends = [(1 - probability) / 2, 0.5, (1 + probability) / 2]
    values = posterior.fitted(rows.X, rows.Z, keep)
    kept_Sigma = d.flat_Sigma[keep]
    var = np.einsum("sqq->sq", kept_Sigma)
    signal = (values**2).mean(axis=1)
    r2 = np.quantile(signal / (signal + var), ends, axis=0).T
    copies = values + rng.standard_normal(values.shape) @ square_root(kept_Sigma)
    ordered = np.quantile(np.sort(copies, axis=1), ends, axis=0)  # (3, m, Q)
    at = np.unique(np.linspace(0, m - 1, min(m, POINTS)).astype(int))
    inside = np.quantile(copies, [ends[0], ends[2]], axis=0)
    return Checks(
        r2=r2[:, [1, 0, 2]],
        p_spread=(copies.std(axis=1) >= Y.std(axis=0)).mean(axis=0),
        p_largest=(np.abs(copies).max(axis=1) >= np.abs(Y).max(axis=0)).mean(axis=0),
        coverage=((inside[0] <= Y) & (inside[1] >= Y)).mean(axis=0),
        observed=np.sort(Y, axis=0)[at].T, low=ordered[0][at].T, middle=ordered[1][at].T, high=ordered[2][at].T,
        replicates=len(keep), m=m,
    )  # fmt: skip
