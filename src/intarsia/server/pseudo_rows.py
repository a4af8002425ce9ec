"""From a Gram matrix to rows: a root of it for the sampler, and exchangeable rows for the checks of a fit.

The likelihood of Y = XC + E with normal noise depends on the rows only through their products. Any matrix W with WᵀW = G
therefore stands for the n − 1 rows that have this Gram matrix (n subjects, centred), as long as the noise is counted over n
− 1 rows.

The rows of a root are not exchangeable: one of them may hold most of a response. Checks that leave rows out work on rows of
a random rotation of the data: the n − 1 rows of O W with O uniform among matrices with orthonormal columns. These are what an
orthonormal sketch of n − 1 rows would have been. Some of them suffice, and can be drawn without the others.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from intarsia.errors import FederationError
from intarsia.server.assess.leave_one_out import Rows
from intarsia.server.covariates import Covariates, Fitted
from intarsia.wire.study_parts import GRAM

Array = NDArray[np.float64]

MOST_ROWS = 2000  # rows of the rotation that checks look at


def root(G: Any, below_zero: float = 1e-9) -> Array:
    """W (c × c) with WᵀW = G; a matrix that is not positive semidefinite is refused.

    Fixed-point numbers of an honest one may leave so much of its largest eigenvalue `below_zero`.
    """
    G = np.asarray(G, dtype=np.float64)
    values, vectors = linalg.eigh((G + G.T) / 2)
    top = float(values[-1])
    if not top > 0 or values[0] < -below_zero * top:
        raise FederationError(
            "The joint Gram matrix is not positive semidefinite: it is not that of any data. A site's own block does "
            "not belong to "
            "the columns it multiplied, or the sites' tables changed between two steps. Start a new run of the study."
        )
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T)


def rotated_rows(W: Array, rows: int, rng: np.random.Generator, most: int = MOST_ROWS) -> Array:
    """At most `most` of the `rows` rows of a random rotation of W (c × c), without making the others.

    With normal N (rows × c), N(NᵀN)^(-1/2) is uniform; so is N L⁻ᵀ, LLᵀ = NᵀN. The rows that nobody asks for enter NᵀN only, as a
    Wishart matrix, which Bartlett's factor T gives.
    """
    c, few = len(W), min(rows, most)
    N = rng.standard_normal((few, c))
    cross = N.T @ N
    if rows > few:
        left = rows - few
        if left >= c:
            T = np.tril(rng.standard_normal((c, c)), -1) + np.diag(np.sqrt(rng.chisquare(left - np.arange(c))))
        else:
            T = rng.standard_normal((left, c)).T
        cross = cross + T @ T.T
    L = linalg.cholesky(cross, lower=True)
    return np.asarray(linalg.solve_triangular(L, N.T, lower=True).T @ W)


def check_rows(joined: Any, most: int = MOST_ROWS) -> Rows | None:
    """Exchangeable rows of what the sites sent: a sketch's own that have every response, or None where those are too few; of a
    Gram study those of a random rotation, the same every time.
    """
    rows = Rows.of(joined.X, joined.Y, Covariates.of(joined).Z)
    if joined.kind != GRAM:
        return rows.complete()
    X, Y, Z = _rotated(joined, (rows.X, rows.Y, rows.Z), joined.m, most)
    return Rows.of(X, Y, Z)


def whole_rows(joined: Any, fitted: Fitted) -> Fitted | None:
    """A fit with exchangeable rows in place of a root's, as many as there are; None where they are too many to make."""
    rows = joined.m - len(joined.covariates)
    if joined.kind != GRAM:
        return fitted
    if rows > MOST_ROWS:
        return None
    X, Y = _rotated(joined, (fitted.X, fitted.Y), rows, rows)
    return replace(fitted, X=X, Y=Y)


def _rotated(joined: Any, parts: tuple[Array, ...], rows: int, most: int) -> list[Array]:
    W = np.asarray(linalg.qr(np.concatenate(parts, axis=1), mode="r")[0])
    W = W[: W.shape[1]]
    R = rotated_rows(W, rows, np.random.default_rng(list(bytes.fromhex(joined.study_hash))), most)
    return np.split(R, np.cumsum([part.shape[1] for part in parts])[:-1], axis=1)
