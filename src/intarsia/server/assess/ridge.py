"""A dense companion to the sparse fit: ridge regression per response, its penalty chosen in closed form.

For one response y ~ N(0, σ² (I + k XXᵀ)): the coefficients are N(0, k σ²), σ² is profiled out and k is where the marginal
likelihood, the evidence, is largest. That is best where all directions of the features matter alike. Where they do not (a few
leading components carry the signal, as in gene expression, or the small ones do) the evidence answers another question than how
well new rows are predicted, and the k that predicts each row best from the others is taken: for all responses, if their
predictions together are clearly better with it. One eigendecomposition serves all of that, so that the fit takes milliseconds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from intarsia.server.assess.rows import CLEARLY, standard_errors_better

Array = NDArray[np.float64]

_NOUGHT = 1e-12  # of the largest
# log k is searched in overlapping brackets: the evidence may have a local maximum at either end.
_BRACKETS = [(low, low + 6.0) for low in np.arange(-22.0, 6.0, 4.0)]
_GRID = np.arange(-22.0, 8.5, 0.5)  # of log k, where rows are left out


class _System(NamedTuple):
    """XXᵀ by its eigenvalues and eigenvectors, and Y's coordinates along these."""

    values: Array
    vectors: Array
    projected: Array
    intercept: Array  # (m) what each row has of the directions that centring has taken away

    @classmethod
    def of(cls, X: Array, Y: Array) -> "_System":
        values, vectors = np.linalg.eigh(X @ X.T)
        values = np.maximum(values, 0.0)
        projected = vectors.T @ Y
        # Centred rows have a direction in which X and Y are nought: no observation. Counted as one it would favour overfitting.
        told = (values > _NOUGHT * values.max()) | (np.square(projected) > _NOUGHT * np.square(Y).sum(axis=0)).any(axis=1)
        return cls(values[told], vectors[:, told], projected[told], np.square(vectors[:, ~told]).sum(axis=1))

    def solved(self, log_k: Array) -> Array:
        """(m×Q) k (I + k XXᵀ)⁻¹ y of each response with its own k."""
        k = np.exp(log_k)
        return self.vectors @ (k * self.projected / (1 + np.outer(self.values, k)))

    def left_out(self, log_k: Array) -> Array:
        """(m×Q) error of each row's prediction from the others, each response with its own k."""
        rest = 1 / (1 + np.outer(self.values, np.exp(log_k)))
        weight = 1 - self.intercept[:, None] - np.square(self.vectors) @ (1 - rest)
        return self.vectors @ (rest * self.projected) / np.maximum(weight, _NOUGHT)


def ridge(X: Array, Y: Array) -> Array:
    """Coefficients (P×Q) of Y on X, both of whose rows are centred or sketched."""
    size = np.sqrt(np.square(X).sum() / X.shape[1])  # root mean square length of a column: k has no unit then
    X = X / size if size > 0 else X
    system = _System.of(X, Y)
    log_k = np.array([_most_evident(system.values, square) for square in np.square(system.projected).T])
    other = _best_left_out(system)
    if standard_errors_better(Y, Y - system.left_out(other), Y - system.left_out(log_k)) > CLEARLY:
        log_k = other
    found = X.T @ system.solved(log_k)
    return found / size if size > 0 else found


def _most_evident(values: Array, square: Array) -> float:
    """log k where the evidence of one response is largest; `square` are its squared coordinates along the eigenvectors."""
    if not square.any():
        return _BRACKETS[0][0]

    def minus_evidence(log_k: float) -> float:
        d = 1 + np.exp(log_k) * values
        return float(0.5 * values.size * np.log((square / d).mean()) + 0.5 * np.log(d).sum())

    found = [minimize_scalar(minus_evidence, bounds=bounds, method="bounded") for bounds in _BRACKETS]
    return float(min(found, key=lambda result: result.fun).x)


def _best_left_out(system: _System) -> Array:
    """(Q) log k with which each response's rows are predicted best from the others."""
    responses = np.ones(system.projected.shape[1])
    errors = [np.square(system.left_out(at * responses)).sum(axis=0) for at in _GRID]
    return np.asarray(_GRID[np.argmin(errors, axis=0)])
