"""Local false discovery rates: the probability that choosing a feature, or a coefficient, is wrong.

*Counted*, of a sparse posterior: a feature's inclusion probability is the share of sweeps in which it is in, averaged over what
each sweep knew. Of a coefficient it is the probability that it is exactly zero, at prior odds of at most one that it is not: a
response is not claimed because the feature's others are sure.

*Judged*, of horseshoe draws, which are never exactly zero: by how far zero lies outside the posterior. These shares are near one
for a coefficient shrunk to nothing and near zero for one that is surely there.

*A mixture* is the paper's Algorithm 3 on a point estimate: two Gaussian components on the rows of |Ĉ|, with the covariance named.
The paper does not say which covariance the two components have, and the answer hangs on it. The models are named by mclust's
letters (volume, shape, orientation; Equal, Variable, Identity); `mclust` fits all six and keeps the best BIC, as that package
does by default.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from intarsia.errors import InputError
from intarsia.server.posterior.draws import DenseEffects, Draws
from intarsia.server.posterior.sparse import SparseEffects, parts

Array = NDArray[np.float64]

MODELS = ("EII", "VII", "EEI", "VVI", "EEE", "VVV")
_CHUNK = 8_000_000  # numbers in memory at once
_EDGE = 1e-8  # floor of a correlation matrix' eigenvalues


def counted(draws: Draws, C: SparseEffects) -> tuple[Array, Array]:
    """Of each feature (P,) and of each coefficient (P, Q) of a sparse posterior. No count of draws is said to be none or all."""
    known = None if draws.inclusion is None else draws.inclusion.acting_on()
    if known is None:
        above, below = C.signs()
        known = (above + below) / C.number
    entry = ((1 - known) * C.number + 0.5) / (C.number + 1)
    row = (C.number - C.counts + 0.5) / (C.number + 1) if draws.inclusion is None else 1 - draws.inclusion.mean()
    return row, np.maximum(entry, row[:, None])  # a coefficient is no surer than its feature


def judged(effects: DenseEffects) -> tuple[Array, Array]:
    """The same of draws that are never zero."""
    chains, n, P, Q = effects.C.shape
    row, entry = np.empty(P), np.empty((P, Q))
    for part in parts(P, chains * n * Q, _CHUNK):
        x = np.ascontiguousarray(effects.C[:, :, part].transpose(2, 3, 0, 1), dtype=np.float64).reshape(-1, Q, chains * n)
        entry[part] = sign_share(x)
        row[part] = row_share(x, entry[part])
    return row, row[:, None] + (1 - row[:, None]) * calibrate(entry)


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
    mean, sd = x.mean(axis=2, keepdims=True), x.std(axis=2, keepdims=True)
    scale = np.where(sd > 0, sd, 1.0)
    z = (x - mean) / scale
    size, U = np.linalg.eigh(z @ z.transpose(0, 2, 1) / N)
    whiten = U.transpose(0, 2, 1) / np.sqrt(np.maximum(size, _EDGE))[:, :, None]
    zero = ((whiten @ (mean / scale)) ** 2).sum(axis=(1, 2))
    further = (((whiten @ z) ** 2).sum(axis=1) >= zero[:, None]).sum(axis=1)
    return np.where(further == 0, np.minimum(0.5 / N, stats.chi2.sf(zero, Q)), further / N)


@dataclass(frozen=True)
class Mixture:
    """A fitted two-component mixture; `low` is each row's probability of the component with the lower mean."""

    model: str
    low: Array
    bic: float


def algorithm3(estimate: Array, model: str = "mclust", alpha: float = 0.05) -> NDArray[np.bool_]:
    """Features whose probability of the low component is below alpha (paper, Algorithm 3)."""
    return np.asarray(fit_mixture(estimate, model).low < alpha)


def fit_mixture(estimate: Array, model: str = "mclust") -> Mixture:
    """Fit the two components to the rows of |Ĉ| (P×Q)."""
    if model != "mclust" and model not in MODELS:
        raise InputError(f"Covariance model {model!r} is not known; use mclust or one of {', '.join(MODELS)}.")
    rows = np.abs(estimate)
    best, spread, Q = Mixture(model, np.ones(len(rows)), float("nan")), rows.std(), rows.shape[1]
    if not spread > 0:
        return best
    rows = rows / spread
    for name in MODELS if model == "mclust" else (model,):
        loglik, resp, means = max((_em(rows, name, high) for high in _first_splits(rows)), key=lambda run: run[0])
        if not np.isfinite(loglik):
            continue
        each = 1 if name[1:] == "II" else Q if name[2] == "I" else Q * (Q + 1) // 2
        parameters = 2 * Q + 1 + (each if name[0] == "E" else 2 * each)
        bic = float(2 * loglik - parameters * np.log(len(rows)))
        if not bic <= best.bic:
            best = Mixture(name, resp[:, int(np.argmin(means.sum(axis=1)))], bic)
    return best


def _first_splits(rows: Array) -> list[Array]:
    """Starting splits by size of the row: at its largest gap in log, and at some fixed shares."""
    size = np.linalg.norm(rows, axis=1)
    P = len(rows)
    order = np.sort(size)[::-1]
    cuts = {max(2, int(share * P)) for share in (0.01, 0.05, 0.2, 0.5)}
    head = np.log(np.maximum(order[1 : max(3, P // 2)], 1e-300))
    if len(head) > 2:
        cuts.add(max(2, int(np.argmax(head[:-1] - head[1:])) + 2))
    return [(size >= order[min(cut, P - 1) - 1]).astype(float) for cut in sorted(cuts)]


def _em(rows: Array, model: str, high: Array, steps: int = 300, tol: float = 1e-6) -> tuple[float, Array, Array]:
    """EM from a first split: log-likelihood, responsibilities (P, 2), means. −inf when a component collapses."""
    resp, previous, means = np.stack([1.0 - high, high], axis=1), -np.inf, np.zeros((2, rows.shape[1]))
    for _ in range(steps):
        weight = resp.sum(axis=0)
        if weight.min() < 1.5:
            return -np.inf, resp, means
        means = (resp.T @ rows) / weight[:, None]
        centred = rows[None] - means[:, None]
        scatter = np.einsum("kpi,pk,kpj->kij", centred, resp, centred, optimize=True)
        try:
            joint = _log_density(centred, _covariances(model, scatter, weight)) + np.log(weight / len(rows))
        except np.linalg.LinAlgError:
            return -np.inf, resp, means
        top = joint.max(axis=1, keepdims=True)
        each = top[:, 0] + np.log(np.exp(joint - top).sum(axis=1))
        resp, loglik = np.exp(joint - each[:, None]), float(each.sum())
        if not np.isfinite(loglik):
            return -np.inf, resp, means
        if abs(loglik - previous) < tol * (1 + abs(loglik)):
            break
        previous = loglik
    return loglik, resp, means


def _covariances(model: str, scatter: Array, weight: Array) -> Array:
    """Maximum likelihood covariances (2, Q, Q) from the components' scatter matrices and weights."""
    eye: Any = np.eye(scatter.shape[-1])
    own = scatter / weight[:, None, None]
    if model[0] == "E":
        own = np.broadcast_to(scatter.sum(axis=0) / weight.sum(), scatter.shape)
    if model[1:] == "II":
        return np.asarray(np.trace(own, axis1=1, axis2=2)[:, None, None] / len(eye) * eye)
    return np.asarray(own * eye if model[2] == "I" else own)


def _log_density(centred: Array, cov: Array) -> Array:
    """log N(row | mean_k, cov_k), shape (P, 2), of rows less each mean (component, P, Q)."""
    out = np.empty(centred.shape[1::-1])
    for k in range(2):
        L = np.linalg.cholesky(cov[k])
        # A component shrunk onto a point (rows that are exactly zero) has unbounded likelihood: as good as singular.
        if np.diag(L).min() < 1e-12:
            raise np.linalg.LinAlgError
        z = np.linalg.solve(L, centred[k].T)
        out[:, k] = -0.5 * (z**2).sum(axis=0) - np.log(np.diag(L)).sum() - centred.shape[2] / 2 * np.log(2 * np.pi)
    return out
