"""The systems I + d_j² G of B's draw, G = X diag(lam²) Xᵀ.

G is reduced to tridiagonal form once (LAPACK's sytrd), G = H T Hᵀ with H orthogonal, after which every system costs O(m). Those
two routines of LAPACK are called by their addresses, so that chains in other threads go on meanwhile.
"""

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import get_cython_function_address
from numpy.typing import NDArray
from scipy.linalg import svd

from intarsia.server.sampler import compiled

Array = NDArray[Any]

# Above this d²·trace(G), rounding in G could swallow the identity in I + d²G; singular values are used instead.
STIFF = 1e10
# Reflectors that LAPACK applies together, if it has room for them; it does half of its work faster then.
REFLECTORS = 32

_NUMBER, _ARRAY, _LETTER = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p, ctypes.c_char_p


def _lapack(name: str, *types: Any) -> Any:
    return ctypes.CFUNCTYPE(None, *types)(get_cython_function_address("scipy.linalg.cython_lapack", name))


_sytrd = _lapack("dsytrd", _LETTER, _NUMBER, _ARRAY, _NUMBER, *[_ARRAY] * 4, _NUMBER, _NUMBER)
_ormqr = _lapack("dormqr", _LETTER, _LETTER, *[_NUMBER] * 3, _ARRAY, _NUMBER, _ARRAY, _ARRAY, _NUMBER, _ARRAY, _NUMBER, _NUMBER)


def _number(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


class Tridiagonal:
    """G = H T Hᵀ with H a product of Householder reflectors."""

    def __init__(self, G: Array) -> None:
        m = len(G)
        self.diag, self.off, self._tau = np.empty(m), np.empty(m - 1), np.empty(m - 1)
        self._G = np.array(G, order="F", dtype=np.float64)
        room = np.empty(REFLECTORS * m)
        _sytrd(
            b"L", _number(m), self._G.ctypes.data, _number(m), self.diag.ctypes.data, self.off.ctypes.data,
            self._tau.ctypes.data, room.ctypes.data, _number(room.size), _number(0),
        )  # fmt: skip

    def _apply(self, V: Array, side: bytes) -> Array:
        out = np.array(V, order="F", dtype=np.float64)
        (m, columns), step = out.shape, out.itemsize  # the first row stays as it is
        room = np.empty(64 * max(1, columns))
        _ormqr(
            b"L", side, _number(m - 1), _number(columns), _number(m - 1), self._G.ctypes.data + step, _number(m),
            self._tau.ctypes.data, out.ctypes.data + step, _number(m), room.ctypes.data, _number(room.size), _number(0),
        )  # fmt: skip
        return out

    def rotate(self, V: Array) -> Array:
        return self._apply(V, b"T")

    def unrotate(self, V: Array) -> Array:
        return self._apply(V, b"N")


class Singular:
    """G by the singular values of X diag(lam), which never turn negative: where rounding has eaten the identity in I + d²G."""

    def __init__(self, X: Array, lam: Array) -> None:
        self._U, s, _ = svd(X * lam.ravel(), full_matrices=True)
        m = len(self._U)
        self.diag, self.off = np.zeros(m), np.zeros(m - 1)
        self.diag[: s.size] = s**2

    def rotate(self, V: Array) -> Array:
        return np.asarray(self._U.T @ V)

    def unrotate(self, V: Array) -> Array:
        return np.asarray(self._U @ V)


Factor = Tridiagonal | Singular  # coordinates in which G is tridiagonal, with the diagonals `diag` and `off`


class System:
    """G at some scales, (P) or (P, 1), and its factor: tridiagonal where that is exact enough for all d_j² up to `top`."""

    def __init__(self, X: Array, lam: Array) -> None:
        scaled = X * lam.ravel()
        self.X, self.lam, self.G = X, lam, scaled @ scaled.T
        self._tridiagonal: Tridiagonal | None = None

    def factor(self, top: float) -> Factor:
        if len(self.G) < 3 or not top * np.trace(self.G) < STIFF:
            return Singular(self.X, self.lam)
        if self._tridiagonal is None:
            self._tridiagonal = Tridiagonal(self.G)
        return self._tridiagonal


@compiled
def solve(diag: Array, off: Array, d: Array, rhs: Array) -> Array:
    """(I + d_j² T)⁻¹ rhs_j for each column j of rhs (m, R), by LDLᵀ; NaN where rounding has made a system indefinite."""
    m, R = rhs.shape
    out, pivot, ratio = rhs.copy(), np.empty(m), np.empty(m)
    for j in range(R):
        d2 = d[j] ** 2
        pivot[0] = 1.0 + d2 * diag[0]
        for i in range(m - 1):
            e = d2 * off[i]
            ratio[i] = e / pivot[i]
            pivot[i + 1] = 1.0 + d2 * diag[i + 1] - ratio[i] * e
            out[i + 1, j] -= ratio[i] * out[i, j]
        if not pivot.min() > 0:
            out[:, j] = np.nan
            continue
        out[m - 1, j] /= pivot[m - 1]
        for i in range(m - 2, -1, -1):
            out[i, j] = out[i, j] / pivot[i] - ratio[i] * out[i + 1, j]
    return out


class Changed(NamedTuple):
    """G + X diag(change) Xᵀ in the coordinates of G's factor: X (m, K) are a few columns, rotated."""

    factor: Factor
    columns: Array
    change: Array


@compiled
def solve_changed(diag: Array, off: Array, d: Array, rhs: Array, X: Array, change: Array) -> Array:
    """`solve` for T + X diag(change) Xᵀ in the place of T (Woodbury's identity)."""
    (m, R), K = rhs.shape, X.shape[1]
    out, both = np.empty((m, R)), np.empty((m, K + 1))
    for j in range(R):
        d2 = d[j] ** 2
        both[:, :K] = X
        both[:, K] = rhs[:, j]
        solved = solve(diag, off, np.full(K + 1, d[j]), both)
        products = np.dot(X.T, solved)
        for k in range(K):
            products[k] *= d2 * change[k]
        weights = np.linalg.solve(products[:, :K] + np.eye(K), np.ascontiguousarray(products[:, K]))
        out[:, j] = solved[:, K] - np.dot(np.ascontiguousarray(solved[:, :K]), weights)
    return out


@compiled
def log_marginal(diag: Array, off: Array, d: Array, Yr: Array) -> float:
    """Σ_j [log det(I + d_j² T) + y_jᵀ(I + d_j² T)⁻¹ y_j], y_j the columns of Yr; NaN where a system is indefinite."""
    m, R = Yr.shape
    pivot, z, logs = np.empty(R), np.empty(R), np.ones(R)
    quad, total = 0.0, 0.0
    for j in range(R):
        pivot[j] = 1.0 + d[j] ** 2 * diag[0]
        z[j] = Yr[0, j]
    for i in range(m):
        for j in range(R):
            if not pivot[j] > 0:
                return np.nan
            quad += z[j] * z[j] / pivot[j]
            logs[j] *= pivot[j]
            if logs[j] > 1e150:  # its logarithm is taken before it overflows
                total += math.log(logs[j])
                logs[j] = 1.0
            if i + 1 < m:
                e = d[j] ** 2 * off[i]
                ratio = e / pivot[j]
                z[j] = Yr[i + 1, j] - ratio * z[j]
                pivot[j] = 1.0 + d[j] ** 2 * diag[i + 1] - ratio * e
    for j in range(R):
        total += math.log(logs[j])
    return total + quad


@compiled
def columns_products(systems: tuple[Array, Array, Array], Y: Array, X: Array, out: Array) -> bool:
    """Xᵀ (I + d_j² T)⁻¹ [X, y_j] into `out` (R, K, K + 1), on and above the diagonal; False where one is indefinite.

    `systems` are (diag, off, d). With I + d_j² T = L D Lᵀ these are products of the columns of D^(-½) L⁻¹ [X, y_j], and half of
    them is enough.
    """
    diag, off, d = systems
    m, K = X.shape
    half = np.zeros((m, K + 1))
    for j in range(d.size):
        d2, last = d[j] ** 2, 1.0
        for i in range(m):
            pivot, ratio = 1.0 + d2 * diag[i], 0.0
            if i > 0:
                ratio = d2 * off[i - 1] / last
                pivot -= ratio * d2 * off[i - 1]
                ratio *= math.sqrt(last)  # the row before is scaled
            if not pivot > 0:
                return False
            last, scale = pivot, 1 / math.sqrt(pivot)
            here, before = half[i], half[max(0, i - 1)]
            for k in range(K):
                here[k] = (X[i, k] - ratio * before[k]) * scale
            here[K] = (Y[i, j] - ratio * before[K]) * scale
        columns = np.ascontiguousarray(half.T)
        for i in range(0, K, 32):
            end = min(K, i + 32)
            out[j, i:end, i:] = np.dot(columns[i:end], columns[i:].T)
    return True
