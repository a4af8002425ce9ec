"""Algorithm 3 of the paper on a point estimate: two Gaussian components on the rows of |Ĉ|, with the covariance named.

The paper does not say which covariance the two components have, and the answer hangs on it. The models are named by
mclust's letters (volume, shape, orientation; Equal, Variable, Identity); `mclust` fits all six and keeps the best
BIC, as that package does by default.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError

Array = NDArray[np.float64]

MODELS = ("EII", "VII", "EEI", "VVI", "EEE", "VVV")


@dataclass(frozen=True)
class Mixture:
    """A fitted two-component mixture; `low` is each row's probability of the component with the lower mean."""

    model: str
    low: Array
    bic: float


def _covariances(model: str, scatter: Array, weight: Array) -> Array:
    """Maximum likelihood covariances (2, Q, Q) from the components' scatter matrices and weights."""
    Q = scatter.shape[-1]
    total = scatter.sum(axis=0) / weight.sum()
    own = scatter / weight[:, None, None]
    eye = np.eye(Q)
    match model:
        case "EII":
            cov = np.broadcast_to(np.trace(total) / Q * eye, (2, Q, Q))
        case "VII":
            cov = np.trace(own, axis1=1, axis2=2)[:, None, None] / Q * eye
        case "EEI":
            cov = np.broadcast_to(np.diag(np.diag(total)), (2, Q, Q))
        case "VVI":
            cov = own * eye
        case "EEE":
            cov = np.broadcast_to(total, (2, Q, Q))
        case _:
            cov = own
    return cov


def _log_density(rows: Array, means: Array, cov: Array) -> Array:
    """log N(row | mean_k, cov_k), shape (P, 2)."""
    out = np.empty((len(rows), 2))
    for k in range(2):
        L = np.linalg.cholesky(cov[k])
        # A component shrunk onto a point (rows that are exactly zero) has unbounded likelihood: as good as singular.
        if np.diag(L).min() < 1e-12:
            raise np.linalg.LinAlgError
        z = np.linalg.solve(L, (rows - means[k]).T)
        out[:, k] = -0.5 * (z**2).sum(axis=0) - np.log(np.diag(L)).sum() - rows.shape[1] / 2 * np.log(2 * np.pi)
    return out


def _em(rows: Array, model: str, high: Array, steps: int = 300, tol: float = 1e-6) -> tuple[float, Array, Array]:
    """EM from a first split; log-likelihood, responsibilities (P, 2), means. −inf when a component collapses."""
    Q = rows.shape[1]
    resp = np.stack([1.0 - high, high], axis=1)
    previous, loglik = -np.inf, -np.inf
    means = np.zeros((2, Q))
    for _ in range(steps):
        weight = resp.sum(axis=0)
        if weight.min() < 1.5:
            return -np.inf, resp, means
        means = (resp.T @ rows) / weight[:, None]
        centred = rows[None] - means[:, None]
        scatter = np.einsum("kpi,pk,kpj->kij", centred, resp, centred, optimize=True)
        cov = _covariances(model, scatter, weight)
        try:
            joint = _log_density(rows, means, cov) + np.log(weight / len(rows))
        except np.linalg.LinAlgError:
            return -np.inf, resp, means
        top = joint.max(axis=1, keepdims=True)
        each = top[:, 0] + np.log(np.exp(joint - top).sum(axis=1))
        resp = np.exp(joint - each[:, None])
        loglik = float(each.sum())
        if not np.isfinite(loglik):
            return -np.inf, resp, means
        if abs(loglik - previous) < tol * (1 + abs(loglik)):
            break
        previous = loglik
    return loglik, resp, means


def _parameters(model: str, Q: int) -> int:
    covariance = {"EII": 1, "VII": 2, "EEI": Q, "VVI": 2 * Q, "EEE": Q * (Q + 1) // 2, "VVV": Q * (Q + 1)}[model]
    return 2 * Q + 1 + covariance


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


def fit_mixture(estimate: Array, model: str = "mclust", absolute: bool = True) -> Mixture:
    """Fit the two components to the rows of |Ĉ| (P×Q); `absolute=False`: the signed rows, as the authors' code."""
    if model != "mclust" and model not in MODELS:
        raise InputError(f"Covariance model {model!r} is not known; use mclust or one of {', '.join(MODELS)}.")
    rows = np.abs(estimate) if absolute else np.asarray(estimate, dtype=float)
    spread = rows.std()
    if not spread > 0:
        return Mixture(model, np.ones(len(rows)), float("nan"))
    rows = rows / spread
    best: Mixture | None = None
    for name in MODELS if model == "mclust" else (model,):
        runs = [_em(rows, name, high) for high in _first_splits(rows)]
        loglik, resp, means = max(runs, key=lambda run: run[0])
        if not np.isfinite(loglik):
            continue
        bic = 2 * loglik - _parameters(name, rows.shape[1]) * np.log(len(rows))
        if best is None or bic > best.bic:
            lower = int(np.argmin(means.sum(axis=1) if absolute else np.abs(means).sum(axis=1)))
            best = Mixture(name, resp[:, lower], float(bic))
    return best or Mixture(model, np.ones(len(rows)), float("nan"))


def low_component(rows: Array, model: str = "mclust") -> Array:
    """Each row's probability of the component with the lower mean (paper, Algorithm 3, steps 3 and 4)."""
    return fit_mixture(rows, model).low


def algorithm3(estimate: Array, model: str = "mclust", alpha: float = 0.05, absolute: bool = True) -> NDArray[np.bool_]:
    """Features whose probability of the low component is below alpha."""
    return np.asarray(fit_mixture(estimate, model, absolute).low < alpha)
