"""The interface that every competitor has."""

from abc import ABC, abstractmethod
from typing import Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Baseline(ABC):
    """A multivariate regression: `coef_` is Q×P as in scikit-learn; the paper's Ĉ is its transpose.

    `interval(p)` gives (lower, upper), each Q×P, where the method has an interval, else None. `selected_` is the
    method's own choice of features where it makes one, else None.
    """

    name = "baseline"
    coef_: Array
    intercept_: Array
    selected_: Mask | None = None

    def fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None = None) -> Self:
        """Fit to n×P features and n×Q responses; `sites` gives each feature's site, for methods that care."""
        X, Y = np.asarray(X, dtype=float), np.asarray(Y, dtype=float)
        x_mean, y_mean = X.mean(axis=0), Y.mean(axis=0)
        self._fit(X - x_mean, Y - y_mean, sites)
        self.intercept_ = y_mean - self.coef_ @ x_mean
        return self

    @abstractmethod
    def _fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> None:
        """Set coef_ (and what else the method knows) from centred data."""

    def interval(self, p: float) -> tuple[Array, Array] | None:
        """Interval of probability p for each coefficient, or None."""
        return None

    def predict(self, X: Array) -> Array:
        return np.asarray(X @ self.coef_.T + self.intercept_)
