"""Which features a screened study keeps: by the evidence of their exact products with what is left of the responses.

A feature with an effect on every response shows in the length of its row of sums, one with an effect on a single response in
its largest entry; the score of a feature is the stronger of the two, as −log₁₀ of a p value. Neighbours need no list: a feature
correlated at r with one that matters has r times its sums and is kept with it, so that the fit sees both. Where neighbours of
strong effects crowd out weak ones, a look again helps: it shows what the kept columns leave, and places are left for it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special, stats

from intarsia.wire.screening import LARGEST

Array = NDArray[np.float64]
CUTOFF = 1e-8  # of the largest eigenvalue: directions of the kept columns that are no directions at all


def taken_off(G: Array, others: Sequence[int], responses: Sequence[int]) -> Array:
    """The least-squares coefficients (others × responses) of the responses on the other columns of a Gram matrix."""
    if not len(others):
        return np.zeros((0, len(responses)))
    values, vectors = linalg.eigh(G[np.ix_(others, others)])
    good = values > CUTOFF * values[-1]
    half = vectors[:, good] / np.sqrt(values[good])
    return np.asarray(half @ (half.T @ G[np.ix_(others, responses)]))


def weights_of(G: Array, others: Sequence[int], responses: Sequence[int], spare: int) -> NDArray[np.int64]:
    """A look's whole-number weights (columns × responses): each response for itself, less what the other columns explain."""
    out = np.zeros((len(G), len(responses)), dtype=np.int64)
    out[list(responses), np.arange(len(responses))] = 1 << spare
    if spare:
        B = np.clip(taken_off(G, others, responses), -LARGEST, LARGEST)
        out[list(others)] = -np.round(np.ldexp(B, spare)).astype(np.int64)
    return out


def left_products(G: Array, weights: NDArray[np.int64], spare: int) -> Array:
    """The products of what a look multiplies with (responses × responses)."""
    W = np.ldexp(weights.astype(np.float64), -spare)
    return np.asarray(W.T @ G @ W)


def scores(sums: Array, left: Array, n: int) -> Array:
    """−log₁₀ p of each feature: of its row of sums, and of its largest one, whichever is stronger."""
    Q = sums.shape[1]
    length = np.sqrt(np.maximum(np.diagonal(left), np.finfo(float).tiny))
    z = sums / length  # √(n − 1) times a correlation: a feature's own length is √(n − 1)
    values, vectors = linalg.eigh(left / np.outer(length, length))
    good = values > CUTOFF * values[-1]
    together = np.square(z @ (vectors[:, good] / np.sqrt(values[good]))).sum(axis=1)
    largest = np.square(z).max(axis=1)
    of_all = log_tail(together, int(good.sum()))
    of_one = np.minimum(np.log(Q) + log_tail(largest, 1), 0.0)
    return np.asarray(-np.minimum(of_all, of_one) / np.log(10.0))


def log_tail(x: Array, degrees: int) -> Array:
    """ln P(χ² > x), finite however large x is: by the leading term of the tail where the library's number is zero."""
    x = np.asarray(x, dtype=np.float64)
    half = degrees / 2
    with np.errstate(divide="ignore"):
        found = stats.chi2.logsf(x, degrees)
    far = -x / 2 + (half - 1) * np.log(np.maximum(x, 1.0) / 2) - special.gammaln(half)
    return np.asarray(np.where(np.isfinite(found), found, far))


def places(most: int, looks: int, look: int) -> int:
    """How many features may be kept in all after this look (1, 2, …): the last one fills the rest."""
    return most if look >= looks else max(1, round(most * look / looks))


def chosen(score: Array, already: NDArray[np.bool_], number: int) -> NDArray[np.bool_]:
    """Those kept already and the best of the others, `number` in all; ties go to the first."""
    out = already.copy()
    room = number - int(already.sum())
    if room > 0:
        order = np.lexsort((np.arange(len(score)), -np.where(already, -np.inf, score)))
        out[order[:room]] = True
    return out
