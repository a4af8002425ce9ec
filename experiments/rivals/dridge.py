"""dRidge: ridge regression with the features partitioned over sites, by consensus (Gratton et al. 2018).

Ridge, min ½‖y − Σ_k X_k β_k‖² + λ/2 Σ_k ‖β_k‖², has the dual min_v Σ_k ‖X_kᵀv‖²/(2λ) + ½‖v‖² − yᵀv, in which each
site's part needs its own features only and β_k = X_kᵀv/λ. The sites agree on v (one number for each subject) by ADMM
over a graph; here every site speaks with every other. One response at a time, as the method is univariate; the
arithmetic runs over all at once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh

from experiments.rivals.baseline import Array, Baseline
from intarsia.errors import ConvergenceError


def consensus_ridge(parts: Sequence[Array], Y: Array, lam: Array, rounds: int = 3000, tol: float = 1e-8) -> tuple[Array, int]:
    """Ridge coefficients (P×Q, sites stacked) by ADMM on the dual; also the number of rounds.

    lam has one penalty for each response. A site sends its n×Q iterate v_k to the others each round, nothing else.
    The step of each response is balanced between disagreement and movement (Boyd et al. 2011, §3.4.1), which every
    site can compute.
    """
    K, (n, Q) = len(parts), Y.shape
    bases = [np.linalg.svd(X, full_matrices=False)[:2] for X in parts]
    degree = K - 1
    step = np.ones(Q)
    v, dual = np.zeros((K, n, Q)), np.zeros((K, n, Q))
    size = np.maximum(np.linalg.norm(Y, axis=0), 1e-300)
    for done in range(1, rounds + 1):
        total = v.sum(axis=0)
        new = np.empty_like(v)
        for k, (U, d) in enumerate(bases):
            # v_k minimises its own part of the dual and stays near the midpoints with its neighbours.
            right = Y / K - dual[k] + step * (degree * v[k] + (total - v[k]))
            flat = 1 / K + 2 * step * degree
            new[k] = (right - U @ ((U.T @ right) * (d[:, None] ** 2 / (d[:, None] ** 2 + lam * flat)))) / flat
        total = new.sum(axis=0)
        dual += step * (K * new - total)
        change = step * np.linalg.norm(new - v, axis=(0, 1)) / size
        apart = np.linalg.norm(new - total / K, axis=(0, 1)) / size
        v = new
        if max(change.max(), apart.max()) < tol:
            return np.concatenate([X.T @ v[k] / lam for k, X in enumerate(parts)]), done
        if done % 5 == 0 and done < rounds // 2:
            step = step * np.where(apart > 3 * change, 2.0, np.where(change > 3 * apart, 0.5, 1.0))
    raise ConvergenceError(
        f"dRidge: the sites did not agree after {rounds} rounds (last change {change.max():.1e}; "
        f"expected < {tol:.0e}). Raise `rounds` or the penalty."
    )


def gcv_penalty(gram: Array, Y: Array, grid: Array) -> Array:
    """The penalty of each response by generalised cross-validation on the Gram matrix XXᵀ of centred data."""
    d, U = eigh(gram)
    d = np.maximum(d, 0.0)
    rotated = (U.T @ Y) ** 2
    n = len(d)
    scores = np.empty((len(grid), Y.shape[1]))
    for i, lam in enumerate(grid):
        shrunk = lam / (d + lam)
        # The direction of the ones has d = 0 and holds no data after centring: it is not a degree of freedom.
        scores[i] = n * (shrunk[:, None] ** 2 * rotated).sum(axis=0) / (shrunk.sum() - 1) ** 2
    return np.asarray(grid[np.argmin(scores, axis=0)])


class DRidge(Baseline):
    """Distributed ridge with percentile bootstrap intervals.

    The penalty is chosen on pooled data by GCV, a favour to the competitor: the paper names no rule.
    `consensus=False` solves the same system directly; the two agree to the ADMM tolerance. Bootstrap fits always use
    the direct solution, since a hundred consensus runs would change the time and not the numbers.
    """

    name = "dRidge"

    def __init__(
        self, lam: float | None = None, bootstrap: int = 100, consensus: bool = True, seed: int = 0, tol: float = 1e-6
    ) -> None:
        self.lam, self.bootstrap, self.consensus, self.seed, self.tol = lam, bootstrap, consensus, seed, tol

    def _fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> None:
        gram = X @ X.T
        Q = Y.shape[1]
        if self.lam is None:
            scale = np.trace(gram) / len(gram)
            lam = gcv_penalty(gram, Y, scale * np.logspace(-5, 3, 41))
        else:
            lam = np.full(Q, float(self.lam))
        self.lam_ = lam
        self.rounds_ = 0
        if self.consensus and sites is not None and len(np.unique(sites)) > 1:
            labels = np.unique(sites)
            stacked, self.rounds_ = consensus_ridge([X[:, sites == k] for k in labels], Y, lam, tol=self.tol)
            order = np.concatenate([np.flatnonzero(sites == k) for k in labels])
            coef = np.empty((X.shape[1], Q))
            coef[order] = stacked
        else:
            coef = X.T @ self._dual(gram, Y, lam)
        self.coef_ = coef.T
        self._draws = self._bootstrap(X, Y, gram, lam) if self.bootstrap else None

    @staticmethod
    def _dual(gram: Array, Y: Array, lam: Array) -> Array:
        out = np.empty_like(Y)
        for value in np.unique(lam):
            same = lam == value
            factor = cho_factor(gram + value * np.eye(len(gram)), lower=True, overwrite_a=True, check_finite=False)
            out[:, same] = cho_solve(factor, Y[:, same], check_finite=False)
        return out

    def _bootstrap(self, X: Array, Y: Array, gram: Array, lam: Array) -> NDArray[np.float32]:
        """Resampled fits (bootstrap, P, Q). A subject drawn w times enters as one row of weight √w."""
        rng = np.random.default_rng(self.seed)
        n = len(X)
        draws = np.empty((self.bootstrap, X.shape[1], Y.shape[1]), dtype=np.float32)
        for b in range(self.bootstrap):
            count = np.bincount(rng.integers(n, size=n), minlength=n)
            rows = np.flatnonzero(count)
            root = np.sqrt(count[rows])
            small = gram[np.ix_(rows, rows)] * root * root[:, None]
            dual = self._dual(small, Y[rows] * root[:, None], lam)
            draws[b] = X[rows].T @ (dual * root[:, None])
        return draws

    def interval(self, p: float) -> tuple[Array, Array] | None:
        if self._draws is None:
            return None
        low, high = np.quantile(self._draws, [(1 - p) / 2, (1 + p) / 2], axis=0)
        return low.T.astype(float), high.T.astype(float)
