"""A dense companion to the sparse fit: ridge regression per response, its penalty chosen by the evidence (closed form).

For one response y ~ N(0, σ² (I + k XXᵀ)): the coefficients are N(0, k σ²), σ² is profiled out and k is where the marginal
likelihood is largest. One eigendecomposition serves all responses, so that the fit takes milliseconds.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

Array = NDArray[np.float64]

_NOUGHT = 1e-12  # of the largest
# log k is searched in overlapping brackets: the evidence may have a local maximum at either end.
_BRACKETS = [(low, low + 6.0) for low in np.arange(-22.0, 6.0, 4.0)]


def ridge(X: Array, Y: Array) -> Array:
    """Coefficients (P×Q) of Y on X, both of whose rows are centred or sketched."""
    size = np.sqrt(np.square(X).sum() / X.shape[1])  # root mean square length of a column: k has no unit then
    X = X / size if size > 0 else X
    values, vectors = np.linalg.eigh(X @ X.T)
    values = np.maximum(values, 0.0)
    projected = vectors.T @ Y
    # Centred rows have a direction in which X and Y are nought: no observation, and counted as one it would favour overfitting.
    told = (values > _NOUGHT * values.max()) | (np.square(projected) > _NOUGHT * np.square(Y).sum(axis=0)).any(axis=1)
    values, vectors, projected = values[told], vectors[:, told], projected[told]
    out = np.empty((X.shape[1], Y.shape[1]))
    for q in range(Y.shape[1]):
        k = np.exp(_best_log_k(values, np.square(projected[:, q])))
        out[:, q] = k * (X.T @ (vectors @ (projected[:, q] / (1 + k * values))))
    return out / size if size > 0 else out


def _best_log_k(values: Array, square: Array) -> float:
    """Where the evidence of one response is largest; `square` are its squared coordinates along the eigenvectors."""
    if not square.any():
        return _BRACKETS[0][0]

    def minus_evidence(log_k: float) -> float:
        d = 1 + np.exp(log_k) * values
        return float(0.5 * values.size * np.log((square / d).mean()) + 0.5 * np.log(d).sum())

    found = [minimize_scalar(minus_evidence, bounds=bounds, method="bounded") for bounds in _BRACKETS]
    return float(min(found, key=lambda result: result.fun).x)
