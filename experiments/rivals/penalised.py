"""Plain references that a user would try first: scikit-learn's ridge and multi-task elastic net, tuned."""

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import MultiTaskElasticNetCV, RidgeCV

from experiments.paper.sketching import Owners, federated_sketch
from experiments.rivals.baseline import Array, Baseline


class Ridge(Baseline):
    """RidgeCV, one penalty for all responses, chosen by generalised cross-validation."""

    name = "ridge"

    def _fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> None:
        # fit_intercept stays on for centred data: without it the leave-one-out shortcut under-penalises when P > n.
        model = RidgeCV(alphas=np.logspace(-1, 6, 29)).fit(X, Y)
        self.coef_ = np.atleast_2d(model.coef_)


class SketchedRidge(Baseline):
    """Ridge on the paper's gaussian sketch with the penalty tuned on the pooled data: the obvious thing to try."""

    name = "sketched-ridge"

    def __init__(self, m: int, kind: str = "gaussian", seed: int = 0) -> None:
        self.m, self.kind, self.seed = m, kind, seed

    def _fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> None:
        alpha = RidgeCV(alphas=np.logspace(-1, 6, 29)).fit(X, Y).alpha_
        data = federated_sketch(X, Y, self.m, kind=self.kind, scale=False, owners=Owners(sites), seed=self.seed)
        dual = np.linalg.solve(data.X @ data.X.T + alpha * np.eye(self.m), data.Y)
        self.coef_ = dual.T @ data.X


class ElasticNet(Baseline):
    """MultiTaskElasticNetCV: whole rows enter or leave; its support is its selection."""

    name = "elasticnet"

    def __init__(self, l1_ratio: float = 0.9, folds: int = 3, alphas: int = 20) -> None:
        self.l1_ratio, self.folds, self.alphas = l1_ratio, folds, alphas

    def _fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> None:
        scale = X.std(axis=0)
        scale[scale == 0] = 1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = MultiTaskElasticNetCV(
                l1_ratio=self.l1_ratio, cv=self.folds, alphas=self.alphas, eps=3e-3, max_iter=500, tol=1e-3
            ).fit(X / scale, Y)
        self.coef_ = model.coef_ / scale
        self.selected_ = np.asarray((self.coef_ != 0).any(axis=0))
