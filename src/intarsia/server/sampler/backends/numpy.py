"""NumPy and SciPy behind the sampler.

G = X diag(lam²) Xᵀ is reduced to tridiagonal form once, after which every system I + d²G costs O(m).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack, solve_triangular, svd
from scipy.special import ndtr, ndtri

from intarsia.server.sampler.backends.protocol import Array

CACHED = 2**16  # numbers of a part of X that stay in a core's cache
STRONG = 256  # features, those with the largest scales, that are weighed in double precision where X is in single
SUMMED = 4096  # features whose products are added up in single precision

# Above this d²·trace(G), rounding in G could swallow the identity in I + d²G; singular values are used instead.
STIFF = 1e10

# Size of FᵀF/s² above which rounding in it comes near the identity that is the prior of A.
STIFF_A = 1e8


# Reflectors that LAPACK applies together, if it has room for them; it does half of its work faster then.
REFLECTORS = 32


class Tridiagonal:
    """G = H T Hᵀ with T tridiagonal and H a product of Householder reflectors (LAPACK sytrd)."""

    def __init__(self, G: Array, X: Array, lam: Array, top: float) -> None:
        self.G, self.X, self.lam, self.top = G, X, lam, top
        self.dense: Array | None = None
        m = G.shape[0]
        if m < 3 or not top * np.trace(G) < STIFF:
            self._use_svd()
            return
        c, self.diag, self.off, self.tau, _ = lapack.dsytrd(G, lower=1, lwork=REFLECTORS * m)
        self.reflectors = np.asfortranarray(c[1:, : m - 1])

    def _use_svd(self) -> None:
        """The safe road when rounding has eaten the identity in I + d²G: singular values never turn negative."""
        U, s, _ = svd(self.X * self.lam, full_matrices=True)
        self.diag = np.zeros(U.shape[0])
        self.diag[: s.size] = s**2
        self.off = np.zeros(U.shape[0] - 1)
        self.dense = U

    def _apply(self, V: Array, trans: str) -> Array:
        if self.dense is not None:
            return np.asfortranarray((self.dense.T if trans == "T" else self.dense) @ V)
        out = np.array(V, order="F", copy=True)
        lower = np.asfortranarray(out[1:])
        c, _, _ = lapack.dormqr("L", trans, self.reflectors, self.tau, lower, 64 * max(1, lower.shape[1]))
        out[1:] = c
        return out

    def rotate(self, V: Array) -> Array:
        return self._apply(V, "T")

    def unrotate(self, V: Array) -> Array:
        return self._apply(V, "N")

    def apply(self, V: Array) -> Array:
        """G V, nothing rotated."""
        return blas.dsymm(1.0, self.G, V, lower=1)

    def root(self, z: Array) -> Array:
        """R z with R Rᵀ = G, rotated: R is the bidiagonal factor of T."""
        if self.dense is not None:
            return np.asarray(np.sqrt(self.diag)[:, None] * z)
        return bidiagonal_root(self.diag, self.off, z)

    def apply_rotated(self, V: Array) -> Array:
        """G V for V rotated, and so rotated."""
        out = self.diag[:, None] * V
        out[1:] += self.off[:, None] * V[:-1]
        out[:-1] += self.off[:, None] * V[1:]
        return np.asarray(out)

    def trace(self) -> float:
        return float(np.trace(self.G))

    def _pttrf(self, d2: float) -> tuple[Array, Array]:
        """The factor of I + d²T; NaN where rounding has made it indefinite: proposals there are refused."""
        if not self.off.any():
            return 1.0 + d2 * self.diag, self.off[:0]
        df, ef, info = lapack.dpttrf(1.0 + d2 * self.diag, d2 * self.off)
        return (df, ef) if info == 0 else (np.full_like(df, np.nan), ef)

    def log_marginal(self, d: Array, Yr: Array) -> float:
        """Σ_j [log det(I + d_j² G) + y_jᵀ(I + d_j² G)⁻¹ y_j], y_j the rotated columns of Yr."""
        total = 0.0
        for j in range(d.size):
            df, ef = self._pttrf(float(d[j]) ** 2)
            total += float(np.log(df).sum() + Yr[:, j] @ self._pttrs(df, ef, Yr[:, j]))
        return total

    def evidence(self, M: Array, Yw: Array) -> float:
        """log det K + vec(Yw)ᵀ K⁻¹ vec(Yw) for K = I + M Mᵀ ⊗ G, M (Q×R) and Yw (m×Q) rotated."""
        U, d, _ = np.linalg.svd(M, full_matrices=False)
        Yr = Yw @ U
        return self.log_marginal(d, Yr) + float((Yw**2).sum() - (Yr**2).sum())

    def solve(self, d: Array, rhs: Array) -> Array:
        """Solve for each j: rhs is (R, m, columns), rotated."""
        out = np.empty_like(rhs)
        for j in range(d.size):
            df, ef = self._pttrf(float(d[j]) ** 2)
            out[j] = self._pttrs(df, ef, rhs[j])
        return out

    @staticmethod
    def _pttrs(df: Array, ef: Array, b: Array) -> Array:
        if ef.size == 0:
            return b / (df if b.ndim == 1 else df[:, None])
        return lapack.dpttrs(df, ef, b)[0]


def bidiagonal_root(diag: Array, off: Array, z: Array) -> Array:
    """R z with R Rᵀ = T, the tridiagonal matrix of these two diagonals, positive semidefinite but for rounding.

    The pivots of elimination from above are held to what elimination from below leaves room for: in a singular T (centred
    columns, few features) rounding would carry one below that, and the next ones away from it.
    """
    over, below = diag.tolist(), off.tolist()
    m = len(over)
    least = [0.0] * m  # each pivot's smallest value for which the rest of T stays semidefinite
    for i in range(m - 2, -1, -1):
        rest = over[i + 1] - least[i + 1]
        least[i] = below[i] ** 2 / rest if rest > 0 else 0.0
    roots, ratios, taken = [0.0] * m, [0.0] * m, 0.0
    for i in range(m):
        pivot = max(over[i] - taken, least[i], 0.0)
        roots[i] = pivot**0.5
        if i + 1 < m and pivot > 0:
            ratios[i + 1] = below[i] / pivot
            taken = below[i] * ratios[i + 1]
        else:
            taken = 0.0
    out = np.array(roots)[:, None] * z
    out[1:] += np.array(ratios)[1:, None] * out[:-1]
    return np.asarray(out)


def _weighed(X: Array, lam: Array, Z: Array, syrk: Callable[..., Array]) -> tuple[Array, Array]:
    """`NumpyBackend.weigh` in the precision of the arrays."""
    (m, P), R = X.shape, Z.shape[1]
    both = np.zeros((m + R, m + R), order="F", dtype=X.dtype)
    step = max(64, CACHED // m)
    buffer = np.empty((min(step, P), m + R), dtype=X.dtype)
    for i in range(0, P, step):
        part = buffer[: min(step, P - i)]
        np.multiply(X.T[i : i + step], lam[i : i + step, None], out=part[:, :m])
        part[:, m:] = Z[i : i + step]
        both = syrk(1.0, part.T, beta=1.0, c=both, lower=1, overwrite_c=1)
    return np.asfortranarray(both[:m, :m]), both[m:, :m].T


class NumpyBackend:
    """NumPy and SciPy on the CPU."""

    xp: Any = np
    ndtr = staticmethod(ndtr)
    ndtri = staticmethod(ndtri)

    @staticmethod
    def gram(Xl: Array) -> Array:
        """Xl Xlᵀ, its lower triangle."""
        if not Xl.shape[1]:
            return np.zeros((Xl.shape[0], Xl.shape[0]), order="F")
        return blas.dsyrk(1.0, Xl.T, trans=1, lower=1)

    @staticmethod
    def weigh(X: Array, lam: Array, Z: Array) -> tuple[Array, Array]:
        """X diag(lam²) Xᵀ (its lower triangle) and X diag(lam) Z in one pass over X, without a scaled copy of it.

        Where X is in single precision so are the products; of the few features with large scales they are made in double, for
        what is left is small beside the identity it is added to.
        """
        if X.dtype == np.float64:
            return _weighed(X, lam, Z, blas.dsyrk)
        few = np.argpartition(lam, -STRONG)[-STRONG:]
        rest = lam.copy()
        rest[few] = 0.0
        m, R = X.shape[0], Z.shape[1]
        G, XZ = np.zeros((m, m), order="F"), np.zeros((m, R))
        for i in range(0, lam.size, SUMMED):
            part = slice(i, i + SUMMED)
            more = _weighed(X[:, part], rest[part].astype(np.float32), Z[part].astype(np.float32), blas.ssyrk)
            G += more[0]
            XZ += more[1]
        strong = X[:, few] * lam[few]
        return blas.dsyrk(1.0, strong, beta=1.0, c=G, lower=1, overwrite_c=1), XZ + strong @ Z[few]

    @staticmethod
    def times(X: Array, V: Array) -> Array:
        """X V for a few columns V: the library is twice as fast over the long sum with the small matrix first."""
        return (V.T.astype(X.dtype, copy=False) @ X.T).T.astype(np.float64, copy=False)

    @staticmethod
    def cross(X: Array, W: Array) -> Array:
        """Xᵀ W for a few columns W: in parts that the library's kernels for small matrices take."""
        Xt, W, step = X.T, np.ascontiguousarray(W, dtype=X.dtype), max(16, 2 * CACHED // X.shape[0])
        out = np.empty((Xt.shape[0], W.shape[1]), dtype=X.dtype)
        for i in range(0, len(out), step):
            np.matmul(Xt[i : i + step], W, out=out[i : i + step])
        return out.astype(np.float64, copy=False)

    @staticmethod
    def columns(X: Array, chosen: Array) -> Array:
        return X[:, chosen]

    @staticmethod
    def factor(G: Array, X: Array, lam: Array, top: float, *, many: bool = False) -> Tridiagonal:
        """Factor G = X diag(lam²) Xᵀ (its lower triangle); `top` bounds the d_j² to come, `many` or few."""
        return Tridiagonal(G, X, lam, top)

    @staticmethod
    def branch(condition: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], x: Any) -> Any:
        return yes(x) if condition else no(x)

    @staticmethod
    def scan(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: tuple[Array, ...]) -> tuple[Any, Any]:
        """Fold `step` over the leading axis of xs; the outputs, arrays or tuples of them, are stacked."""
        outputs = []
        for i in range(len(xs[0])):
            carry, out = step(carry, tuple(x[i] for x in xs))
            outputs.append(out)
        if not outputs or outputs[0] is None:
            return carry, None
        if isinstance(outputs[0], tuple):
            return carry, tuple(np.stack(parts) for parts in zip(*outputs, strict=True))
        return carry, np.stack(outputs)

    @staticmethod
    def settle(f: Callable[[Array], Array], x: Array) -> Array:
        """Iterate f from x until nothing changes (f is triangular, so it settles exactly)."""
        while True:
            new = f(x)
            if np.array_equal(new, x):
                return x
            x = new

    @staticmethod
    def put(x: Array, index: Array, value: Array) -> Array:
        out = x.copy()
        out[index] = value
        return out

    @staticmethod
    def largest(x: Array, k: int) -> Array:
        """Indices of the k largest entries, in ascending order of index."""
        if k >= x.size:
            return np.arange(x.size)
        return np.sort(np.argpartition(-x, k - 1)[:k])

    @staticmethod
    def members(mask: Array, k: int) -> Array:
        return np.flatnonzero(mask)[:k] if mask.any() else np.zeros(1, dtype=np.int64)

    def over_blocks(
        self, step: Callable[..., tuple[Any, Any]], carry: Any, same: tuple[Array, ...], cut: tuple[Array, ...]
    ) -> tuple[Any, Any]:
        return self.scan(lambda carry, x: step(carry, x[: len(same)], x[len(same) :]), carry, same + cut)

    @staticmethod
    def together(x: Array) -> Array:
        return x

    @staticmethod
    def over_chains(x: Array) -> Array:
        return x

    @staticmethod
    def asarray(x: Array) -> Array:
        return np.asarray(x, dtype=np.float64)

    @staticmethod
    def grams(X: Array, scale: Array) -> Array:
        """X diag(scale_r²) Xᵀ for each column r of `scale`."""
        out = np.empty((scale.shape[1], X.shape[0], X.shape[0]))
        for r in range(scale.shape[1]):
            G, _ = NumpyBackend.weigh(X, scale[:, r], scale[:, :0])
            np.add(G, np.tril(G, -1).T, out=out[r])
        return out

    @staticmethod
    def spd_solve(make: Callable[[], Array], b: Array) -> Array:
        """M⁻¹ b for a symmetric M = make() ≥ I, its upper triangle; by eigenvalues where rounding has eaten the identity."""
        _, x, info = lapack.dposv(make().T, b, lower=1, overwrite_a=1)
        if info != 0:
            w, V = np.linalg.eigh(make(), UPLO="U")
            return V @ ((V.T @ b) / np.maximum(w, 1.0))
        return x.reshape(b.shape)

    @staticmethod
    def triangular_solve(L: Array, b: Array) -> Array:
        """L⁻¹ b for lower factors, stacked or not."""
        return np.linalg.solve(L, b)

    @staticmethod
    def normal_rows(F: Array, Y: Array, s: Array, Z: Array) -> Array:
        """Row q ~ N(Ω_q⁻¹ h_q, Ω_q⁻¹), Ω_q = FᵀF/s_q² + I, h_q = Fᵀy_q/s_q²; Z (Q×R) is standard normal."""
        stiff = (F**2).sum() > STIFF_A * s**2
        if stiff.any():
            return np.stack(
                [_stiff_row(F, Y[:, q], s[q], Z[q]) if stiff[q] else _row(F, Y[:, q], s[q], Z[q]) for q in range(s.size)]
            )
        Omega = (F.T @ F)[None] / s[:, None, None] ** 2 + np.eye(F.shape[1])
        h = (F.T @ Y).T / s[:, None] ** 2
        L = np.linalg.cholesky(Omega)
        half = np.linalg.solve(L, h[:, :, None])
        return np.linalg.solve(np.swapaxes(L, -1, -2), half + Z[:, :, None])[:, :, 0]


def _row(F: Array, y: Array, s: float, z: Array) -> Array:
    return NumpyBackend.normal_rows(F, y[:, None], np.array([s]), z[None])[0]


def _stiff_row(F: Array, y: Array, s: float, z: Array) -> Array:
    """The row from the triangle of [F/s, y/s; I, 0] (QR): Cholesky's factor and right-hand side, but no squares to round."""
    R = F.shape[1]
    T: Any = np.linalg.qr(np.block([[F / s, y[:, None] / s], [np.eye(R), np.zeros((R, 1))]]), mode="r")
    return solve_triangular(T[:R, :R], T[:R, R] + np.sign(np.diag(T)[:R]) * z)
