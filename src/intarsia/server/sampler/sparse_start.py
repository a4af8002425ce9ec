"""A fast sparse solution to start chains from: a multi-task lasso on the columns that correlate best with the responses.

At many features a chain that starts from the prior needs thousands of sweeps to find what a lasso finds in a second. The solution
only says where to begin: each chain leaves some of its features out, adds some that are not in it and rescales the rest
(`disperse`), so that chains which agree in the end have not agreed from the start.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler.exchange import Alike

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

SCREENED = 10_000  # columns, those that correlate best with the responses, that the lasso looks at
PATH = 25  # penalties tried, from the one that leaves nothing down to a fiftieth of it
LEFT_OUT = 0.1  # share of the solution that a chain starts without
ADDED = 0.1  # features that a chain starts with beside the solution, as a share of it
SPREAD = 0.3  # standard deviation of the log factor on each feature's coefficients


@dataclass(frozen=True)
class SparseStart:
    """Features and their coefficients (s×Q), the covariance of what they leave (Q×Q), and sets of features that look alike."""

    features: Indices
    C: Array
    residual: Array
    alike: Alike | None = None

    def save(self, file: Path) -> None:
        """Write the file whole or not at all."""
        part = file.with_suffix(".part")
        with open(part, "wb") as out:
            alike = {} if self.alike is None else {f"alike.{name}": value for name, value in self.alike._asdict().items()}
            np.savez(out, features=self.features, C=self.C, residual=self.residual, **alike)
        os.replace(part, file)

    @classmethod
    def load(cls, file: Path) -> "SparseStart":
        with np.load(file, allow_pickle=False) as stored:
            alike = Alike(*(stored[f"alike.{name}"] for name in Alike._fields)) if "alike.size" in stored else None
            return cls(stored["features"], stored["C"], stored["residual"], alike)


def sparse_start(X: Array, Y: Array, degrees: int | None = None) -> SparseStart:
    """The solution on the lasso's path that the Bayesian information criterion likes best, fitted again by least squares.

    `degrees` is the number of rows where X and Y are a root of those rows' Gram matrix.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import MultiTaskLasso

    m, Q = Y.shape
    rows = m if degrees is None else degrees
    length = np.sqrt(np.einsum("mp,mp->p", X, X))
    scale = np.sqrt(np.square(Y).mean(axis=0))
    Ys = Y / np.where(scale > 0, scale, 1.0)
    score = np.sqrt(np.square(X.T @ Ys).sum(axis=1)) / np.where(length > 0, length, 1.0)
    seen = np.sort(np.argsort(-score, kind="stable")[:SCREENED])
    Xs = np.asfortranarray(X[:, seen] / np.where(length[seen] > 0, length[seen], 1.0)) * np.sqrt(m)
    top = float(np.sqrt(np.square(Xs.T @ Ys).sum(axis=1)).max()) / m
    best, chosen, before = _criterion(Xs[:, :0], Ys, X.shape[1], rows), np.zeros(0, dtype=np.int64), 0
    lasso = MultiTaskLasso(fit_intercept=False, warm_start=True, max_iter=200, tol=1e-3)
    for penalty in top * np.geomspace(1.0, 0.02, PATH)[1:]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a start need not be exact
            lasso.set_params(alpha=penalty).fit(Xs, Ys)
        active = np.flatnonzero(np.abs(lasso.coef_).sum(axis=0) > 0)
        if active.size > rows / 3:
            break
        if active.size == before:
            continue
        before = active.size
        value = _criterion(Xs[:, active], Ys, X.shape[1], rows)
        if value < best:
            best, chosen = value, active
    features = seen[chosen].astype(np.int64)
    C: Array = np.asarray(np.linalg.lstsq(X[:, features], Y, rcond=None)[0], dtype=float) if features.size else np.zeros((0, Q))
    left = Y - X[:, features] @ C
    return SparseStart(features, C, left.T @ left / max(1, rows - features.size))


def _criterion(X: Array, Y: Array, P: int, m: int) -> float:
    """The extended criterion over m rows: each feature costs its Q coefficients and the choice among P."""
    Q = Y.shape[1]
    left = Y - X @ np.linalg.lstsq(X, Y, rcond=None)[0] if X.shape[1] else Y
    S = left.T @ left / m
    fit = m * float(np.linalg.slogdet(S + 1e-9 * np.trace(S) / Q * np.eye(Q))[1])
    return fit + X.shape[1] * (Q * np.log(m) + 2 * np.log(P))


def disperse(start: SparseStart, P: int, rng: np.random.Generator) -> SparseStart:
    """A start for one chain: some features left out, some others added, all rescaled."""
    s, Q = start.C.shape
    if not s:
        return start
    kept = rng.random(s) >= LEFT_OUT
    others = np.setdiff1d(rng.integers(0, P, size=round(ADDED * s) + 1), start.features)
    size = np.sqrt(np.square(start.C).mean(axis=1)).mean()
    C = np.concatenate([start.C[kept], rng.normal(0.0, size / 2, (others.size, Q))])
    C = C * np.exp(rng.normal(0.0, SPREAD, len(C)))[:, None]
    lost = np.diag(np.square(start.C[~kept]).sum(axis=0))  # what is left out is noise until it is found
    return SparseStart(np.concatenate([start.features[kept], others]), C, start.residual + lost)
