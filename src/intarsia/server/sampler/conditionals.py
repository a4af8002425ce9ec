"""The full conditionals of B, A and the scales (paper, appendix A), one function each, randomness passed in.

All are for independent noise: `covariance` has the rotation that makes it so, and the draw of Sigma. The paper's slips are put
right here: det(Λ)^(-1/2) where it prints det(Λ)⁻¹, gamma laws for tau and for row scales where it prints the exponential that
only an element's lam has, mu/2 as a rate. docs/errata.md has the list with the tests.
"""

from collections.abc import Callable
from typing import NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend, Factor
from intarsia.server.sampler.priors import Law


class Given(NamedTuple):
    """What B is drawn given: A (rotated as the responses are), the scales, and s = sigma/√power (Q)."""

    A: Array
    lam: Array
    tau: Array
    s: Array


def whiten(be: Backend, A: Array, tau: Array, s: Array) -> tuple[Array, Array, Array]:
    """SVD of diag(1/s) A diag(tau) = U diag(d) Vᵀ: in the rotated responses the coefficient rows are independent.

    The first column of Vᵀ is not negative: libraries differ in the signs they give, and noise is drawn in these coordinates.
    """
    U, d, Vt = be.xp.linalg.svd(A / s[:, None] * tau, full_matrices=False)
    sign = be.xp.where(Vt[:, 0] < 0, -1.0, 1.0)
    return U * sign, d, Vt * sign[:, None]


def draw_B_row(be: Backend, X: Array, Y: Array, given: Given, Z: Array, E: Array, factor: Factor | None = None) -> Array:
    """Draw B given row scales (paper, Algorithm 2, without its Kronecker product).

    With U d Vᵀ as in `whiten` and G = X diag(lam²) Xᵀ, the mQ×mQ system falls apart into R systems I + d_j² G of size m.
    Z (P×R) and E (m×R) are standard normal. `factor` is that of G where it is known already.
    """
    A, lam, tau, s = given
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


def element_system(be: Backend, At: Array, grams: Array) -> Array:
    """I + Σ_r ã_r ã_rᵀ ⊗ G_r for G_r (R, m, m)."""
    (Q, R), m = At.shape, grams.shape[1]
    outer = (At[:, None, :] * At[None, :, :]).reshape(Q * Q, R)
    M = (outer @ grams.reshape(R, m * m)).reshape(Q, Q, m, m).transpose(0, 2, 1, 3).reshape(Q * m, Q * m)
    return M + be.xp.eye(Q * m)


def draw_B_element(be: Backend, X: Array, Y: Array, given: Given, Z: Array, E: Array) -> Array:
    """Draw B given element scales (P×R): one system M = I + Σ_r ã_r ã_rᵀ ⊗ X diag(lam_r² tau_r²) Xᵀ of size mQ.

    Z (P×R) and E (m×Q) are standard normal (Bhattacharya, Chakraborty & Mallick 2016).
    """
    A, lam, tau, s = given
    m, Q = Y.shape
    At = A / s[:, None]
    scale = lam * tau
    grams = be.grams(X, scale)  # (R, m, m)
    U = Z * scale
    rhs = Y / s - (X @ U) @ At.T - E
    W = be.spd_solve(lambda: element_system(be, At, grams), rhs.T.reshape(-1)).reshape(Q, m).T
    return U + scale**2 * (X.T @ (W @ At))


def draw_A(be: Backend, F: Array, Y: Array, s: Array, Z: Array) -> Array:
    """Draw A given F = XB: row q ~ N(Ω_q⁻¹ h_q, Ω_q⁻¹), Ω_q = FᵀF/s_q² + I (paper, appendix A.2: Q systems of size R)."""
    return be.normal_rows(F, Y, s, Z)


def draw_lam(be: Backend, lam: Array, B: Array, tau: Array, law: Law, noise: dict[str, Array]) -> Array:
    """Draw the local scales given B and tau (paper, appendix A.4): lam is (P,) for row scales, (P, R) for element scales."""
    b2 = (B / tau) ** 2
    k, mu = (1.0, b2) if lam.ndim == 2 else (float(B.shape[1]), b2.sum(axis=1))
    return 1 / be.xp.sqrt(law.draw(be.xp, 1 / lam**2, k, mu, noise))


def draw_tau(be: Backend, tau: Array, B: Array, lam: Array, law: Law, noise: dict[str, Array]) -> Array:
    """Draw the global scales given B and lam (paper, appendix A.5): a gamma law of shape (P+1)/2, not an exponential."""
    rows = lam if lam.ndim == 2 else lam[:, None]
    mu = ((B / rows) ** 2).sum(axis=0)
    return 1 / be.xp.sqrt(law.draw(be.xp, 1 / tau**2, float(B.shape[0]), mu, noise))
