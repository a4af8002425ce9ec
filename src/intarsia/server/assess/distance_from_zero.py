"""How far zero lies outside a posterior: the evidence that selection and groups rest on.

Horseshoe draws are never exactly zero. These shares are near one for a coefficient shrunk to nothing and near zero for one
that is surely there.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]

_EDGE = 1e-8  # floor of a correlation matrix' eigenvalues


def calibrate(share: Array) -> Array:
    """The smallest local fdr that even odds and a tail share allow: b/(1+b), b = −e·p·log p (Sellke et al. 2001).

    A coefficient in the row of a feature that is certainly there is not shrunk: its share is then like a p-value, and
    taken as a local fdr it would let in one null in twenty.
    """
    p = np.clip(share, np.finfo(float).tiny, 1.0)
    bound = np.where(p < np.exp(-1), -np.e * p * np.log(p), 1.0)
    return np.maximum(share, bound / (1 + bound))


def sign_share(x: Array) -> Array:
    """Twice the share of draws on the wrong side of zero, for x (…, draw): all of them when the posterior straddles it.

    With no draw on the wrong side the normal tail takes over, but never says more than half a draw.
    """
    wrong, N = np.minimum((x <= 0).sum(axis=-1), (x >= 0).sum(axis=-1)), x.shape[-1]
    mean, sd = x.mean(axis=-1), x.std(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = 2 * stats.norm.sf(np.where(sd > 0, np.abs(mean) / sd, 0.0))
    return np.where(wrong == 0, np.minimum(0.5 / N, tail), np.minimum(1.0, 2 * wrong / N))


def row_share(x: Array, entry: Array) -> Array:
    """How far zero lies outside the posterior of each feature's row; x (feature, response, draw), `entry` its shares.

    The smaller of the joint share (draws with a larger Mahalanobis distance from the mean than zero has; sees effects
    spread over the responses) and the sharpest response's, times the number of responses; twice, because it is the
    smaller of two.
    """
    Q, N = x.shape[1:]
    if Q == 1:
        return entry[:, 0].copy()
    sharpest = Q * entry.min(axis=1)
    if N <= 5 * Q:  # too few draws to know the shape of the posterior
        return np.minimum(1.0, sharpest)
    return np.minimum(1.0, 2 * np.minimum(contour_share(x), sharpest))


def contour_share(x: Array) -> Array:
    """The share of draws further from their mean than zero, in the metric of their own covariance."""
    Q, N = x.shape[1:]
    mean = x.mean(axis=2, keepdims=True)
    sd = x.std(axis=2, keepdims=True)
    scale = np.where(sd > 0, sd, 1.0)
    z = (x - mean) / scale
    size, U = np.linalg.eigh(z @ z.transpose(0, 2, 1) / N)
    whiten = U.transpose(0, 2, 1) / np.sqrt(np.maximum(size, _EDGE))[:, :, None]
    zero = ((whiten @ (mean / scale)) ** 2).sum(axis=(1, 2))
    further = (((whiten @ z) ** 2).sum(axis=1) >= zero[:, None]).sum(axis=1)
    return np.where(further == 0, np.minimum(0.5 / N, stats.chi2.sf(zero, Q)), further / N)
