"""The full conditionals (paper, appendix A), one function each, randomness passed in.

The paper's slips are put right here: det(Λ)^(-1/2) where it prints det(Λ)⁻¹, gamma laws for tau and for row scales where it
prints the exponential that only an element's lam has, mu/2 as a rate. docs/errata.md has the list with the tests.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from intarsia.server.sampler.priors import HalfCauchy, Law

Array = Any

STIFF_A = 1e8  # size of FᵀF/s² above which rounding in it comes near the identity that is the prior of A


def whiten(be: Any, A: Array, tau: Array, s: Array) -> tuple[Array, Array, Array]:
    """SVD of diag(1/s) A diag(tau) = U diag(d) Vᵀ: in the rotated responses the coefficient rows are independent.

    The first column of Vᵀ is not negative: libraries differ in the signs they give, and noise is drawn in these coordinates.
    """
    if be.kernels is not None:
        return be.kernels.whiten(A, tau, s)
    U, d, Vt = be.xp.linalg.svd(A / s[:, None] * tau, full_matrices=False)
    sign = be.xp.where(Vt[:, 0] < 0, -1.0, 1.0)
    return U * sign, d, Vt * sign[:, None]


def draw_B_row(
    be: Any,
    X: Array,
    Y: Array,
    A: Array,
    lam: Array,
    tau: Array,
    s: Array,
    Z: Array,
    E: Array,
    factor: Any = None,
) -> Array:
    """Draw B given row scales (paper, Algorithm 2, without its Kronecker product).

    With U d Vᵀ as in `whiten` and G = X diag(lam²) Xᵀ, the mQ×mQ system falls apart into R systems I + d_j² G of size m.
    Z (P×R) and E (m×R) are standard normal. `factor` is that of G where it is known already.
    """
    U, d, Vt = whiten(be, A, tau, s)
    if factor is None:
        factor = be.factor(be.gram(X * lam), X, lam, (d**2).max())
    rhs = factor.rotate((Y / s) @ U - d * be.times(X, lam[:, None] * Z) - E)
    W = factor.unrotate(factor.solve(d, rhs.T[:, :, None])[:, :, 0].T)
    return (Z + lam[:, None] * be.cross(X, W * d)) @ Vt * lam[:, None] * tau


def relaxed(draw: Callable[[Array, Array, Array], Array], back: float, B: Array, Y: Array, Z: Array, E: Array) -> Array:
    """Over-relaxation (Adler 1981) of a Gaussian conditional whose draw is linear in the data Y and the noise Z, E.

    With mean μ and a centred draw ξ of the same law, B → μ - back (B - μ) + √(1 - back²) ξ keeps it invariant; successive
    draws lie on opposite sides of the mean, so averages over the chain settle faster.
    """
    keep = (1 - back**2) ** 0.5
    return draw((1 + back) * Y, keep * Z, keep * E) - back * B


def element_system(be: Any, At: Array, grams: Array) -> Array:
    """I + Σ_r ã_r ã_rᵀ ⊗ G_r for G_r (R, m, m); compiled, its upper triangle."""
    xp = be.xp
    if be.kernels is not None:
        return be.kernels.element_system(At, grams)
    (Q, R), m = At.shape, grams.shape[1]
    outer = (At[:, None, :] * At[None, :, :]).reshape(Q * Q, R)
    M = (outer @ grams.reshape(R, m * m)).reshape(Q, Q, m, m).transpose(0, 2, 1, 3).reshape(Q * m, Q * m)
    return M + xp.eye(Q * m)


def draw_B_element(be: Any, X: Array, Y: Array, A: Array, lam: Array, tau: Array, s: Array, Z: Array, E: Array) -> Array:
    """Draw B given element scales (P×R): one system M = I + Σ_r ã_r ã_rᵀ ⊗ X diag(lam_r² tau_r²) Xᵀ of size mQ.

    Z (P×R) and E (m×Q) are standard normal (Bhattacharya, Chakraborty & Mallick 2016).
    """
    m, Q = Y.shape
    At = A / s[:, None]
    scale = lam * tau
    grams = be.grams(X, scale)  # (R, m, m)
    U = Z * scale
    rhs = Y / s - (X @ U) @ At.T - E
    W = be.spd_solve(lambda: element_system(be, At, grams), rhs.T.reshape(-1)).reshape(Q, m).T
    return U + scale**2 * (X.T @ (W @ At))


def draw_A(be: Any, F: Array, Y: Array, s: Array, Z: Array) -> Array:
    """Draw A given F = XB: row q ~ N(Ω_q⁻¹ h_q, Ω_q⁻¹), Ω_q = FᵀF/s_q² + I (paper, appendix A.2: Q systems of size R)."""
    xp = be.xp
    s2 = s**2
    if be.kernels is not None:
        return be.kernels.draw_A(xp.ascontiguousarray(F), xp.ascontiguousarray(Y), s2, Z)
    if be.name == "numpy" and ((F**2).sum() > STIFF_A * s2).any():
        return xp.stack([stiff_row(F, Y[:, q], s[q], Z[q]) for q in range(s.size)])
    Omega = (F.T @ F)[None] / s2[:, None, None] + xp.eye(F.shape[1])
    h = (F.T @ Y).T / s2[:, None]
    L = xp.linalg.cholesky(Omega)
    half = be.triangular_solve(L, h[:, :, None])
    return be.triangular_solve_t(L, half + Z[:, :, None])[:, :, 0]


def stiff_row(F: Any, y: Any, s: float, z: Any) -> Any:
    """A row of A from the triangle of [F/s, y/s; I, 0] (QR): Cholesky's factor and right-hand side, but no squares to round."""
    R = F.shape[1]
    T: Any = np.linalg.qr(np.block([[F / s, y[:, None] / s], [np.eye(R), np.zeros((R, 1))]]), mode="r")
    return solve_triangular(T[:R, :R], T[:R, R] + np.sign(np.diag(T)[:R]) * z)


def draw_sigma2(be: Any, sigma2: Array, rss: Array, m: float, alpha: float, law: Law, noise: dict[str, Array]) -> Array:
    """Draw each noise variance given its residual sum of squares (paper, appendix A.3); alpha is the likelihood's power."""
    if be.kernels is not None and isinstance(law, HalfCauchy) and alpha * m > 1:
        eta = be.kernels.half_cauchy(1 / sigma2, alpha * m, alpha * rss, law.s, noise["low"], noise["u"], noise["v"])
        return 1 / eta
    return 1 / law.draw(be.xp, 1 / sigma2, alpha * m, alpha * rss, noise)


def draw_lam(be: Any, lam: Array, B: Array, tau: Array, law: Law, noise: dict[str, Array]) -> Array:
    """Draw the local scales given B and tau (paper, appendix A.4): lam is (P,) for row scales, (P, R) for element scales."""
    if be.kernels is not None and lam.ndim == 1 and isinstance(law, HalfCauchy) and B.shape[1] > 1:
        return be.kernels.draw_lam(lam, B, tau, noise["low"], noise["u"], noise["v"])
    b2 = (B / tau) ** 2
    k, mu = (1.0, b2) if lam.ndim == 2 else (float(B.shape[1]), b2.sum(axis=1))
    return 1 / be.xp.sqrt(law.draw(be.xp, 1 / lam**2, k, mu, noise))


def draw_tau(be: Any, tau: Array, B: Array, lam: Array, law: Law, noise: dict[str, Array]) -> Array:
    """Draw the global scales given B and lam (paper, appendix A.5): a gamma law of shape (P+1)/2, not an exponential."""
    if be.kernels is not None and lam.ndim == 1 and isinstance(law, HalfCauchy) and B.shape[0] > 1:
        return be.kernels.draw_tau(tau, B, lam, noise["low"], noise["u"], noise["v"])
    rows = lam if lam.ndim == 2 else lam[:, None]
    mu = ((B / rows) ** 2).sum(axis=0)
    return 1 / be.xp.sqrt(law.draw(be.xp, 1 / tau**2, float(B.shape[0]), mu, noise))
