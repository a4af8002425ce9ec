"""Effects without the sparse prior's pull: a flat prior for each feature's own coefficient, all others as the posterior has them.

A sparse prior draws what the rows can hardly tell from zero towards zero, its interval too. That is right for selection and for
prediction; for the size of one named effect it is not: of true effects near the limit of what can be seen, the interval of the
sparse posterior holds far fewer than it says. Given all other coefficients and the noise of one draw, the flat prior's law of a
feature's coefficients is normal,

    N(c + Rᵀx / xᵀx, Σ / xᵀx),    R = Y − X C  the draw's residuals, c the feature's row of C,

and over the draws these mix. Coefficients that the prior shrank stay in R and so in Σ: intervals are as wide as that makes them.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from intarsia.server.results.fitted import blocks, every, fitted

if TYPE_CHECKING:
    from intarsia.server.results.posterior import Posterior

Array = NDArray[np.float64]

MOST_DRAWS, LEAST_DRAWS = 200, 32
MOST_OPERATIONS = 1e12  # beyond, fewer draws are used


def unshrunk_of(posterior: "Posterior", X: Array, Y: Array) -> tuple[Array, Array]:
    """The same of a posterior in the units of X and Y: the rows as the sampler saw them."""
    C, Sigma = posterior.whole, posterior.whole_Sigma
    return unshrunk(X, Y, C, Sigma)


def unshrunk(X: Array, Y: Array, C: NDArray[np.floating], Sigma: Array) -> tuple[Array, Array]:
    """Mean and standard deviation (P×Q), from draws of C (…, P, Q) and Sigma (…, Q, Q); NaN in Y is a missing response."""
    seen, (m, Q), P = ~np.isnan(Y), Y.shape, X.shape[1]
    most = int(np.clip(MOST_OPERATIONS / (4.0 * m * max(P, 1) * Q), LEAST_DRAWS, MOST_DRAWS))
    number = len(every(C))
    at = np.unique(np.linspace(0, number - 1, min(number, most)).round().astype(int))
    residual = (np.where(seen, Y, 0.0) - fitted(X, C, at)) * seen  # (draw, m, Q)
    noise = np.diagonal(Sigma.reshape(-1, Q, Q)[at], axis1=1, axis2=2).mean(axis=0)
    mean, sd = np.empty((P, Q)), np.empty((P, Q))
    side_by_side = residual.swapaxes(0, 1).reshape(m, -1)
    for features, c in blocks(C, at, m):
        own = X[:, features]
        # Of each feature, its squares over the rows that have the response; of a column of noughts nothing can be said.
        squares = np.square(own).T @ seen
        squares = np.where(squares > 0, squares, np.nan)
        each = c + (own.T @ side_by_side).reshape(c.shape) / squares[:, None]
        mean[features], sd[features] = each.mean(axis=1), np.sqrt(each.var(axis=1) + noise / squares)
    return mean, sd
