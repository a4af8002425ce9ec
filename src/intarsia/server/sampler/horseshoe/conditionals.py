"""The full conditionals of B, A and the scales (paper, appendix A), one function each, and two moves given B.

All are for independent noise: `noise` has the rotation that makes it so, and the draw of Sigma. Randomness is passed in. The
paper's slips are put right here: det(Λ)^(-1/2) where it prints det(Λ)⁻¹, gamma laws for tau and for row scales where it prints
the exponential that only an element's lam has, mu/2 as a rate. docs/errata.md has the list with the tests.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.special import ndtr, ndtri

from intarsia.server.sampler import compiled
from intarsia.server.sampler.horseshoe.model import HALF_CAUCHY, Law, draw_precision, log_density
from intarsia.server.sampler.horseshoe.systems import Changed, Factor, System, solve, solve_changed

Array = NDArray[Any]
Numbers = tuple[Array, Array, Array]  # for each draw of a scale: a gamma variate and two uniform ones

# Size of FᵀF/s² above which rounding in it comes near the identity that is the prior of A.
STIFF_A = 1e8


class Given(NamedTuple):
    """What B is drawn given: A (rotated as the responses are), the scales, and s = sigma/√power (Q)."""

    A: Array
    lam: Array
    tau: Array
    s: Array


# --- B (paper, Algorithm 2) -------------------------------------------------------------------------------------------


@compiled
def whiten(A: Array, tau: Array, s: Array) -> tuple[Array, Array, Array]:
    """SVD of diag(1/s) A diag(tau) = U diag(d) Vᵀ: in the rotated responses the coefficient rows are independent.

    The first column of Vᵀ is not negative: libraries differ in the signs they give, and noise is drawn in these coordinates.
    """
    M = np.empty(A.shape)
    for q in range(A.shape[0]):
        M[q] = A[q] / s[q] * tau
    U, d, Vt = np.linalg.svd(M, False)
    for j in range(d.size):
        if Vt[j, 0] < 0:
            Vt[j] = -Vt[j]
            U[:, j] = -U[:, j]
    return U, d, Vt


def draw_B_row(X: Array, Y: Array, given: Given, Z: Array, E: Array, known: Factor | Changed | None = None) -> Array:
    """Draw B given row scales, without a Kronecker product.

    With U d Vᵀ as in `whiten` and G = X diag(lam²) Xᵀ, the mQ×mQ system falls apart into R systems I + d_j² G of size m.
    Z (P×R) and E (m×R) are standard normal. G's factor may be `known`.
    """
    A, lam, tau, s = given
    U, d, Vt = whiten(A, tau, s)
    factor = known.factor if isinstance(known, Changed) else known or System(X, lam).factor(d[0] ** 2)
    rhs = factor.rotate((Y / s) @ U - d * (X @ (lam[:, None] * Z)) - E)
    if isinstance(known, Changed):
        solved = solve_changed(factor.diag, factor.off, d, np.ascontiguousarray(rhs), known.columns, known.change)
    else:
        solved = solve(factor.diag, factor.off, d, rhs)
    W = factor.unrotate(d * solved)
    return np.asarray((Z + lam[:, None] * (X.T @ W)) @ Vt * lam[:, None] * tau)


def draw_B_element(X: Array, Y: Array, given: Given, Z: Array, E: Array) -> Array:
    """Draw B given element scales (P×R): one system M = I + Σ_r ã_r ã_rᵀ ⊗ X diag(lam_r² tau_r²) Xᵀ of size mQ.

    Z (P×R) and E (m×Q) are standard normal (Bhattacharya, Chakraborty & Mallick 2016).
    """
    A, lam, tau, s = given
    (m, Q), At, scale = Y.shape, A / s[:, None], lam * tau
    U = Z * scale
    rhs = Y / s - (X @ U) @ At.T - E
    W = _solve_stiff(lambda: _element_system(X, At, scale), rhs.T.reshape(-1)).reshape(Q, m).T
    return np.asarray(U + scale**2 * (X.T @ (W @ At)))


def _element_system(X: Array, At: Array, scale: Array) -> Array:
    (Q, R), m = At.shape, len(X)
    grams = np.empty((R, m, m))
    for r in range(R):
        scaled = X * scale[:, r]
        np.matmul(scaled, scaled.T, out=grams[r])
    outer = (At[:, None, :] * At[None, :, :]).reshape(Q * Q, R)
    M = (outer @ grams.reshape(R, m * m)).reshape(Q, Q, m, m).transpose(0, 2, 1, 3).reshape(Q * m, Q * m)
    M[np.diag_indices(Q * m)] += 1.0
    return np.asarray(M)


def _solve_stiff(make: Callable[[], Array], b: Array) -> Array:
    """M⁻¹ b for a symmetric M = make() ≥ I; by eigenvalues where rounding has eaten the identity."""
    _, x, info = lapack.dposv(make().T, b, lower=1, overwrite_a=1)
    if info != 0:
        w, V = np.linalg.eigh(make())
        return np.asarray(V @ ((V.T @ b) / np.maximum(w, 1.0)))
    return np.asarray(x)


def relaxed(draw: Callable[[Array, Array, Array], Array], back: float, B: Array, Y: Array, Z: Array, E: Array) -> Array:
    """Over-relaxation (Adler 1981) of a Gaussian conditional whose draw is linear in the data Y and the noise Z, E.

    With mean μ and a centred draw ξ of the same law, B → μ - back (B - μ) + √(1 - back²) ξ keeps it invariant; successive
    draws lie on opposite sides of the mean, so averages over the chain settle faster.
    """
    keep = (1 - back**2) ** 0.5
    return draw((1 + back) * Y, keep * Z, keep * E) - back * B


# --- A (paper, appendix A.2) ------------------------------------------------------------------------------------------


@compiled
def draw_A(F: Array, Y: Array, s: Array, Z: Array) -> Array:
    """Draw A given F = XB: row q ~ N(Ω_q⁻¹ h_q, Ω_q⁻¹), Ω_q = FᵀF/s_q² + I, h_q = Fᵀy_q/s_q²: Q systems of size R."""
    FF, FY = np.dot(F.T, F), np.dot(F.T, Y)
    (R, Q), size = FY.shape, np.trace(FF)
    half, out = np.empty(R), np.empty((Q, R))
    for q in range(Q):
        s2 = s[q] ** 2
        if size > STIFF_A * s2:
            out[q] = _stiff_row(F, np.ascontiguousarray(Y[:, q]), s[q], Z[q])
            continue
        L = np.linalg.cholesky(FF / s2 + np.eye(R))
        for i in range(R):
            x = FY[i, q] / s2
            for k in range(i):
                x -= L[i, k] * half[k]
            half[i] = x / L[i, i]
        for i in range(R - 1, -1, -1):
            x = half[i] + Z[q, i]
            for k in range(i + 1, R):
                x -= L[k, i] * out[q, k]
            out[q, i] = x / L[i, i]
    return out


@compiled
def _stiff_row(F: Array, y: Array, s: float, z: Array) -> Array:
    """The row from the triangle of [F/s, y/s; I, 0] (QR): Cholesky's factor and right-hand side, but no squares to round."""
    m, R = F.shape
    stacked = np.zeros((m + R, R + 1))
    stacked[:m, :R] = F / s
    stacked[:m, R] = y / s
    for r in range(R):
        stacked[m + r, r] = 1.0
    _, T = np.linalg.qr(stacked)
    out = np.empty(R)
    for i in range(R - 1, -1, -1):
        x = T[i, R] + math.copysign(z[i], z[i] * T[i, i])
        for k in range(i + 1, R):
            x -= T[i, k] * out[k]
        out[i] = x / T[i, i]
    return out


# --- scales (paper, appendices A.4 and A.5) ---------------------------------------------------------------------------


@compiled
def draw_lam(lam: Array, B: Array, tau: Array, law: Law, numbers: Numbers) -> Array:
    """Draw the local scales given B and tau: lam is (P, 1) for row scales, (P, R) for element scales."""
    (P, R), columns = B.shape, lam.shape[1]
    g, u, v = numbers
    out, k = np.empty(lam.shape), R // columns
    for p in range(P):
        for c in range(columns):
            mu = 0.0
            for r in range(c * k, (c + 1) * k):
                mu += (B[p, r] / tau[r]) ** 2
            eta = draw_precision(law, 1 / lam[p, c] ** 2, float(k), mu, g[p, c], u[p, c], v[p, c])
            out[p, c] = 1 / math.sqrt(eta)
    return out


@compiled
def draw_tau(tau: Array, B: Array, lam: Array, law: Law, numbers: Numbers) -> Array:
    """Draw the global scales given B and lam, (P, 1) or (P, R): a gamma law of shape (P+1)/2, not an exponential."""
    (P, R), columns = B.shape, lam.shape[1]
    g, u, v = numbers
    out = np.empty(R)
    for r in range(R):
        mu = 0.0
        for p in range(P):
            mu += (B[p, r] / lam[p, min(r, columns - 1)]) ** 2
        eta = draw_precision(law, 1 / tau[r] ** 2, float(P), mu, g[r], u[r], v[r])
        out[r] = min(max(1 / math.sqrt(eta), 1e-15), 1e15)
    return out


# --- two moves that help them along -----------------------------------------------------------------------------------


@compiled
def rescale_columns(A: Array, B: Array, tau: Array, law: Law, g: Array, u: Array) -> tuple[Array, Array, Array]:
    """(A_r, B_r, tau_r) → (A_r/c, c B_r, c tau_r), C unchanged: a = 1/c² is nearly Gamma((Q-1)/2, ‖A_r‖²/2).

    `g` are standard gamma variates of shape `rescale_shape(Q)`.
    """
    Q, R = A.shape
    shape, c = (Q - 1) / 2 if Q > 1 else 0.5, np.ones(R)
    for r in range(R):
        a = min(max(2 * g[r] / max((A[:, r] ** 2).sum(), 1e-30), 1e-20), 1e20)
        t, log_a = math.log(tau[r]), math.log(a)
        ratio = log_density(law, t - log_a / 2) - log_density(law, t) + (Q / 2 - shape) * log_a
        if math.log(u[r]) < ratio:
            c[r] = 1 / math.sqrt(a)
    return A / c, B * c, tau * c


def rescale_shape(Q: int) -> float:
    return (Q - 1) / 2 if Q > 1 else 0.5


def propose_lam(lam: Array, theta: Array, normal: Array, law: Law) -> tuple[Array, Array]:
    """A proposal of each local scale that is reversible for C⁺(0, 1): a rotation by theta of its normal score.

    Returns the new scales and the log density ratio that other laws than the half-Cauchy owe.
    """
    half = ndtri(np.arctan(np.minimum(lam, 1 / lam)) * (2 / np.pi))
    w = np.cos(theta) * np.where(lam < 1, half, -half) + np.sin(theta) * normal
    tail = np.tan(np.pi / 2 * ndtr(-np.abs(w)))
    new = np.clip(np.where(w < 0, tail, 1 / tail), 1e-15, 1e15)
    return new, np.zeros(lam.size) if law.kind == HALF_CAUCHY else _owed(law, np.log(new)) - _owed(law, np.log(lam))


@compiled
def _owed(law: Law, t: Array) -> Array:
    """Log density of each log scale, over that of the half-Cauchy."""
    out = np.empty(t.size)
    for p in range(t.size):
        out[p] = log_density(law, t[p]) - log_density(Law(HALF_CAUCHY, 1.0), t[p])
    return out


@compiled
def single_site(blocks: Array, grams: Array, W: Array, delta: Array, slack: Array) -> tuple[Array, Array]:
    """Accept or reject a change delta_p (Q) of every feature's coefficients, one feature after the other.

    W is the whitened residual, `slack` the log prior ratio less log u (P). The features stand in blocks of columns Xᵀ
    (blocks, k, m) with their Gram matrices (blocks, k, k), so that most of the work is two products per block.
    """
    number, k = blocks.shape[:2]
    P, Q = delta.shape
    W = W.copy()
    accepted = np.zeros(number * k, dtype=np.bool_)
    change = np.empty((k, Q))
    for b in range(number):
        n = min(k, P - b * k)
        XW, H = np.dot(blocks[b], W), grams[b]
        moved = False
        change[:] = 0.0
        for i in range(n):
            p = b * k + i
            g, size = slack[p], 0.0
            for q in range(Q):
                g += XW[i, q] * delta[p, q]
                size += delta[p, q] ** 2
            g -= 0.5 * H[i, i] * size
            if moved:
                for j in range(i):
                    if accepted[b * k + j]:
                        inner = 0.0
                        for q in range(Q):
                            inner += delta[p, q] * change[j, q]
                        g -= H[i, j] * inner
            if g > 0:
                accepted[p] = moved = True
                change[i] = delta[p]
        if moved:
            W -= np.dot(blocks[b].T, change)
    return accepted[:P], W
