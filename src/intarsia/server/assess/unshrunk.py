"""Effects without the sparse prior's pull: a flat prior for each feature's own coefficient, all others as the posterior has them.

A sparse prior draws what the rows can hardly tell from zero towards zero, its interval too. That is right for selection and for
prediction; for the size of one named effect it is not: of true effects near the limit of what can be seen, the interval of the
sparse posterior holds far fewer than it says. Given all other coefficients and the noise of one draw, the flat prior's law of a
feature's coefficients is normal,

    N(c + Rᵀx / xᵀx, Σ / xᵀx),    R = Y − X C  the draw's residuals, c the feature's row of C,

and over the draws these mix. Coefficients that the prior shrank stay in R and so in Σ: intervals are as wide as that makes them.
"""

import numpy as np
from numpy.typing import NDArray

from intarsia.server.posterior.draws import Draws

Array = NDArray[np.float64]

MOST_DRAWS, LEAST_DRAWS = 200, 32
MOST_OPERATIONS = 1e12  # beyond, fewer draws are used
NUMBERS = 2**24  # of X, and of what its features correlate with, at once


def unshrunk(X: Array, Y: Array, draws: Draws) -> tuple[Array, Array]:
    """Mean and standard deviation (P×Q) in the units of X and Y, the rows as the sampler saw them; NaN is a missing response."""
    seen, (m, Q), P = ~np.isnan(Y), Y.shape, X.shape[1]
    at = draws.thinned(np.clip(MOST_OPERATIONS / (4.0 * m * max(P, 1) * Q), LEAST_DRAWS, MOST_DRAWS))
    residual = (np.where(seen, Y, 0.0) - draws.fitted(X, at)) * seen  # (draw, m, Q)
    noise = np.diagonal(draws.flat_Sigma[at], axis1=1, axis2=2).mean(axis=0)
    mean, sd = np.empty((P, Q)), np.empty((P, Q))
    side_by_side = residual.swapaxes(0, 1).reshape(m, -1)
    step = max(1, NUMBERS // max(1, m + len(at) * Q))
    for start in range(0, P, step):
        features = np.arange(start, min(P, start + step))
        own = np.asarray(X[:, start : start + step], dtype=np.float64)
        # Of each feature, its squares over the rows that have the response; of a column of noughts nothing can be said.
        squares = np.square(own).T @ seen
        squares = np.where(squares > 0, squares, np.nan)
        c = draws.effects.some(features, at).swapaxes(0, 1)
        if draws.background is not None:
            c = c + draws.background[features][:, None]
        each = c + (own.T @ side_by_side).reshape(c.shape) / squares[:, None]
        mean[features], sd[features] = each.mean(axis=1), np.sqrt(each.var(axis=1) + noise / squares)
    return mean, sd
