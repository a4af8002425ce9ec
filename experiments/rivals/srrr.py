"""srrr: sparse reduced-rank regression with a group penalty (Chen & Huang 2012).

min over B (P×R) and A (Q×R), AᵀA = I:  ½‖Y − X B Aᵀ‖² + λ Σ_p w_p ‖B_p·‖.
Alternating: A is the Procrustes rotation of YᵀXB; B a group lasso of YA on X, by proximal gradient over an active
set. The weights w_p = ‖B̃_p‖^(−γ) come from a first fit with unit weights. Rank and penalty by BIC or by
cross-validation.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.rivals.baseline import Array, Baseline


@dataclass(frozen=True)
class Moments:
    """What a fit needs of the data: XᵀX, XᵀY, YᵀY, n."""

    xx: Array
    xy: Array
    yy: Array
    n: int

    @classmethod
    def of(cls, X: Array, Y: Array) -> "Moments":
        return cls(X.T @ X, X.T @ Y, Y.T @ Y, len(X))

    def rss(self, C: Array) -> float:
        """‖Y − XC‖²; only the rows that are non-zero are touched."""
        rows = np.flatnonzero(C.any(axis=1))
        c = C[rows]
        return float(np.trace(self.yy) - 2 * (c * self.xy[rows]).sum() + (c * (self.xx[np.ix_(rows, rows)] @ c)).sum())


def _shrink(Z: Array, threshold: Array) -> Array:
    """Shrink each row's length by its threshold, to zero if it is shorter."""
    size = np.sqrt(np.einsum("pr,pr->p", Z, Z))
    return Z * np.maximum(1 - threshold / np.maximum(size, 1e-300), 0.0)[:, None]


def _proximal(gram: Array, target: Array, penalty: Array, b: Array, tol: float, steps: int = 5000) -> Array:
    """Accelerated proximal gradient with restart (O'Donoghue & Candès 2015) on a small dense group lasso."""
    if len(b) == 0:
        return b
    length = 1.0 / np.linalg.eigvalsh(gram)[-1]
    ahead, t = b, 1.0
    for _ in range(steps):
        new = _shrink(ahead - length * (gram @ ahead - target), length * penalty)
        move = new - b
        if ((ahead - new) * move).sum() > 0:
            t = 1.0
        t_next = (1 + np.sqrt(1 + 4 * t * t)) / 2
        ahead, t, b = new + (t - 1) / t_next * move, t_next, new
        if np.abs(move).max() < tol * length:
            break
    return b


def group_lasso(xx: Array, target: Array, penalty: Array, B: Array, tol: float = 1e-5, rounds: int = 100) -> Array:
    """min ½ tr(BᵀXᵀXB) − tr(Bᵀ target) + Σ_p penalty_p ‖B_p‖, warm-started at B; solved on a growing active set."""
    B = B.copy()
    active = np.flatnonzero(B.any(axis=1))
    scale = max(float(np.abs(target).max()), 1e-300)
    for _ in range(rounds):
        b = _proximal(xx[np.ix_(active, active)], target[active], penalty[active], B[active], tol * scale)
        B[active] = b
        gradient = target - xx[:, active] @ b
        outside = np.sqrt(np.einsum("pr,pr->p", gradient, gradient)) - penalty
        outside[active] = -np.inf
        wrong = outside > 10 * tol * scale
        if not wrong.any():
            break
        # The worst offenders first: adding all at once would fill the set with features that leave again.
        worst = np.argsort(outside)[::-1][: max(10, len(active) // 2)]
        active = np.union1d(active[b.any(axis=1)], worst[wrong[worst]])
    return B


def procrustes(M: Array) -> Array:
    """The A with orthonormal columns that maximises tr(AᵀM)."""
    U, _, Vt = np.linalg.svd(M, full_matrices=False)
    return np.asarray(U @ Vt)


def objective(data: Moments, B: Array, A: Array, penalty: Array) -> float:
    return data.rss(B @ A.T) / 2 + float((penalty * np.linalg.norm(B, axis=1)).sum())


def alternate(
    data: Moments, penalty: Array, A: Array, B: Array, rounds: int = 50, tol: float = 1e-5
) -> tuple[Array, Array, list[float]]:
    """Alternate the two steps until the objective stands still; returns B, A and the objective's path."""
    path: list[float] = []
    for _ in range(rounds):
        B = group_lasso(data.xx, data.xy @ A, penalty, B)
        if A.shape[0] > A.shape[1] and B.any():
            A = procrustes(data.xy.T @ B)
        path.append(objective(data, B, A, penalty))
        # With R = Q the rotation does not matter: one pass is the solution.
        if A.shape[0] == A.shape[1] or (len(path) > 1 and path[-2] - path[-1] <= tol * abs(path[-2])):
            break
    return B, A, path


def first_rotation(data: Moments, rank: int) -> Array:
    """Leading directions of the responses explained by a ridge fit: where the alternation starts."""
    ridge = np.linalg.solve(data.xx + np.trace(data.xx) / len(data.xx) * np.eye(len(data.xx)), data.xy)
    fitted = ridge.T @ data.xx @ ridge
    return np.asarray(np.linalg.eigh(fitted)[1][:, ::-1][:, :rank])


@dataclass(frozen=True)
class PathPoint:
    rank: int
    lam: float
    C: Array
    B: Array


def bic(data: Moments, point: PathPoint) -> float:
    """nQ log(RSS/nQ) + log(nQ)·df with the parameters of a rank-R matrix on the rows kept."""
    Q = point.C.shape[1]
    rows = int(point.C.any(axis=1).sum())
    df = point.rank * (Q + rows - point.rank) if rows else 0
    size = data.n * Q
    return float(size * np.log(max(data.rss(point.C), 1e-300) / size) + np.log(size) * df)


def solution_path(
    data: Moments, rank: int, weights: Array, grid: Array, start: Array, patience: int | None = 4
) -> list[PathPoint]:
    """Solutions from the largest penalty down, warm-started.

    Stops when half the subjects' number of features is in, or when BIC has risen `patience` times on end.
    """
    A = start
    B = np.zeros((len(data.xx), rank))
    points: list[PathPoint] = []
    best, risen = np.inf, 0
    for lam in grid:
        B, A, _ = alternate(data, lam * weights, A, B)
        points.append(PathPoint(rank, float(lam), B @ A.T, B))
        if patience is None:
            continue
        value = bic(data, points[-1])
        best, risen = (value, 0) if value < best else (best, risen + 1)
        if risen >= patience or int(B.any(axis=1).sum()) > data.n // 2:
            break
    return points


SMALLEST = 1e-3  # penalty on the path, of the one at which the last row leaves


class SRRR(Baseline):
    """Sparse reduced-rank regression; `adaptive` re-weights rows by a first fit, `criterion` is `bic` or `cv`."""

    name = "srrr"

    def __init__(
        self,
        ranks: tuple[int, ...] | None = None,
        adaptive: bool = True,
        gamma: float = 1.0,
        criterion: str = "bic",
        grid: int = 30,
        folds: int = 5,
        seed: int = 0,
    ) -> None:
        self.ranks, self.adaptive, self.gamma, self.criterion = ranks, adaptive, gamma, criterion
        self.grid, self.folds, self.seed = grid, folds, seed

    def _paths(self, data: Moments, rank: int, weights: Array, start: Array, grid: Array | None = None) -> list[PathPoint]:
        if grid is None:
            # The penalty at which the last row leaves, over rotations: the norm of a row of XᵀYA is at most that of
            # XᵀY.
            top = float((np.linalg.norm(data.xy @ start, axis=1) / weights).max())
            grid = top * np.logspace(0, np.log10(SMALLEST), self.grid)
        patience = 4 if self.criterion == "bic" else self.grid
        return solution_path(data, rank, weights, grid, start, patience)

    def _choose(self, X: Array, Y: Array, data: Moments, weights: Array, ranks: tuple[int, ...]) -> PathPoint:
        paths = {rank: self._paths(data, rank, weights, first_rotation(data, rank)) for rank in ranks}
        if self.criterion == "bic":
            return min((point for path in paths.values() for point in path), key=lambda point: bic(data, point))
        fold = np.random.default_rng(self.seed).permutation(len(X)) % self.folds
        error = {rank: np.zeros(len(path)) for rank, path in paths.items()}
        for k in range(self.folds):
            train, test = fold != k, fold == k
            part = Moments.of(X[train], Y[train])
            share = train.mean()
            for rank, path in paths.items():
                grid = np.array([point.lam for point in path]) * share
                points = solution_path(part, rank, weights, grid, first_rotation(part, rank), patience=None)
                error[rank] += [((Y[test] - X[test] @ point.C) ** 2).sum() for point in points]
        rank = min(error, key=lambda r: error[r].min())
        return paths[rank][int(np.argmin(error[rank]))]

    def _fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> None:
        P, Q = X.shape[1], Y.shape[1]
        scale = X.std(axis=0)
        scale[scale == 0] = 1.0
        Xs = X / scale
        data = Moments.of(Xs, Y)
        ranks = self.ranks or tuple(range(1, min(P, Q) + 1))
        first = self._choose(Xs, Y, data, np.ones(P), ranks)
        chosen = first
        if self.adaptive and first.B.any():
            size = np.linalg.norm(first.B, axis=1)
            # Rows that the first fit dropped stay out: their weight is as good as infinite.
            weights = np.where(size > 0, np.maximum(size, 1e-300) ** -self.gamma, 1e12)
            chosen = self._choose(Xs, Y, data, weights, (first.rank,))
        self.rank_, self.lam_ = chosen.rank, chosen.lam
        self.coef_ = (chosen.C / scale[:, None]).T
        self.selected_ = np.asarray(chosen.C.any(axis=1))
