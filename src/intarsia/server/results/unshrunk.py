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

if TYPE_CHECKING:
    from intarsia.server.results.posterior import Posterior

Array = NDArray[np.float64]

MOST_DRAWS = 200


def unshrunk_of(posterior: "Posterior", X: Array, Y: Array) -> tuple[Array, Array]:
    """The same of a posterior in the units of X and Y: the rows as the sampler saw them."""
    C, Sigma = posterior.whole, posterior.whole_Sigma
    return unshrunk(X, Y, C.reshape(-1, *C.shape[2:]), Sigma.reshape(-1, *Sigma.shape[2:]))


def unshrunk(X: Array, Y: Array, C: NDArray[np.floating], Sigma: Array) -> tuple[Array, Array]:
    """Mean and standard deviation (P×Q), from draws of C (draw, P, Q) and Sigma (draw, Q, Q); NaN in Y is a missing response."""
    seen = ~np.isnan(Y)
    # Of each feature, its squares over the rows that have the response.
    squares = np.square(X).T @ seen
    squares = np.where(squares > 0, squares, np.nan)  # of a column of noughts nothing can be said
    filled = np.where(seen, Y, 0.0)
    at = np.unique(np.linspace(0, len(C) - 1, min(len(C), MOST_DRAWS)).round().astype(int))
    total, square, noise = np.zeros(squares.shape), np.zeros(squares.shape), np.zeros(Y.shape[1])
    for draw in at:
        c = np.asarray(C[draw], dtype=np.float64)
        one = c + X.T @ ((filled - X @ c) * seen) / squares
        total, square, noise = total + one, square + one**2, noise + np.diagonal(Sigma[draw])
    mean = total / len(at)
    between = np.maximum(square / len(at) - mean**2, 0.0)
    return mean, np.sqrt(between + noise / len(at) / squares)
