"""The covariance Sigma of the responses' noise: its rotation to independent responses, its prior, its draw.

With Sigma = U D Uᵀ the rotated responses YU have independent noise with variances D, and UᵀA has the same iid N(0, 1) prior as
A. So every step given Sigma is the step for independent noise on (YU, UᵀA, D); only the draw of Sigma itself knows more.
"""

from dataclasses import dataclass
from typing import NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.priors import HalfCauchy, Jeffreys, Noise

NU = 2.0  # degrees of freedom of the half-t law of each noise level; 2: every correlation is uniform
LEAST = 1e-24  # smallest noise variance, in units of a response's mean square
ROUNDING = 1e-15  # smallest eigenvalue that can be told from zero, in units of the largest


class Rotation(NamedTuple):
    """Sigma = U diag(variances) Uᵀ."""

    U: Array
    variances: Array

    def precision(self) -> Array:
        """(Q) diagonal of Sigma⁻¹."""
        return (self.U**2 / self.variances).sum(axis=1)

    def root(self) -> "Root":
        return Root((self.U / self.variances**0.5).T, self.variances)

    def whiten(self, E: Array) -> Array:
        """Rows of E in coordinates in which the noise is standard."""
        return E @ self.U / self.variances**0.5


class Root(NamedTuple):
    """Sigma⁻¹ = KᵀK; and numbers whose product is det Sigma."""

    K: Array
    volume: Array

    def stretched(self, be: Backend, v: Array, x: Array) -> "Root":
        """Sigma = RRᵀ, R = K⁻¹, stretched along the unit vector v: R (I + (eˣ-1) v vᵀ) Rᵀ."""
        K = self.K + be.xp.outer(be.xp.expm1(-x / 2) * v, v @ self.K)
        return Root(K, self.volume * be.xp.exp(x / v.shape[0]))


@dataclass(frozen=True)
class Independent:
    """Each noise level on its own; Sigma is diagonal."""

    law: HalfCauchy | Jeffreys
    scale: Array

    def rotation(self, be: Backend, Sigma: Array) -> Rotation:
        return Rotation(be.xp.eye(Sigma.shape[0]), be.xp.diagonal(Sigma))

    def directions(self, be: Backend, normal: Array) -> Array:
        """Unit vectors along which Sigma may be stretched: one response each, in turn."""
        number, Q = normal.shape
        return be.xp.eye(Q)[be.xp.arange(number) % Q]

    def log_density(self, be: Backend, at: Root) -> Array:
        """Of Sigma, with respect to steps of equal size along `directions` anywhere: of the noise levels' logarithms."""
        return self.law.log_density(be.xp, -be.xp.log(be.xp.diagonal(at.K))).sum()

    def log_lebesgue(self, be: Backend, at: Root) -> Array:
        """Of Sigma with respect to the noise variances themselves."""
        return self.log_density(be, at) - be.xp.log(at.volume).sum()

    def nearest(self, be: Backend, S: Array) -> Array:
        """What of a covariance S can be added to Sigma: its diagonal."""
        return be.xp.diag(be.xp.diagonal(S))

    def from_root(self, be: Backend, at: Root) -> Rotation:
        return Rotation(be.xp.eye(at.K.shape[0]), 1 / be.xp.diagonal(at.K) ** 2)

    def needs(self, rows: float, Q: int) -> dict[str, Noise]:
        return {name: (kind, (Q,), value) for name, (kind, value) in self.law.noise(rows).items()}

    def draw(self, be: Backend, at: Rotation, scatter: Array, rows: float, noise: dict[str, Array]) -> Array:
        """Sigma given the residuals' scatter (paper, appendix A.3), each over as many rows."""
        xp = be.xp
        eta = self.law.draw(xp, 1 / at.variances, rows, xp.diagonal(scatter), noise)
        return xp.diag(xp.maximum(1 / eta, LEAST * self.scale**2))


@dataclass(frozen=True)
class Correlated:
    """Sigma | a ~ IW(nu + Q - 1, 2 nu diag(1/a)), a_q ~ IG(1/2, 1/scale_q²) (Huang & Wand 2013).

    With nu = 2 every correlation is uniform on (-1, 1), and each noise level is half-t with 2 degrees of freedom.
    """

    scale: Array

    def rotation(self, be: Backend, Sigma: Array) -> Rotation:
        """The eigenvectors' signs differ between libraries and noise is drawn in these coordinates: each column's sum is ≥ 0."""
        xp = be.xp
        variances, U = xp.linalg.eigh(Sigma)
        return Rotation(*self._signed(be, U, xp.maximum(variances, ROUNDING * variances[-1])))

    @staticmethod
    def _signed(be: Backend, U: Array, variances: Array) -> tuple[Array, Array]:
        return U * be.xp.where(U.sum(axis=0) < 0, -1.0, 1.0), variances

    def directions(self, be: Backend, normal: Array) -> Array:
        """Unit vectors along which Sigma may be stretched: uniform, from normal numbers."""
        return normal / be.xp.sqrt((normal**2).sum(axis=1))[:, None]

    def log_density(self, be: Backend, at: Root) -> Array:
        """Of Sigma, a integrated out, with respect to the measure |Sigma|^(-(Q+1)/2) dSigma that no stretching changes."""
        Q = at.K.shape[0]
        value = ((Q + 1) - (NU + 2 * Q)) / 2 * be.xp.log(at.volume).sum()
        return value - (NU + Q) / 2 * be.xp.log(NU * (at.K**2).sum(axis=0) + 1 / self.scale**2).sum()

    def log_lebesgue(self, be: Backend, at: Root) -> Array:
        """Of Sigma with respect to dSigma."""
        return self.log_density(be, at) - (at.K.shape[0] + 1) / 2 * be.xp.log(at.volume).sum()

    def nearest(self, be: Backend, S: Array) -> Array:
        """What of a covariance S can be added to Sigma: all of it."""
        return S

    def from_root(self, be: Backend, at: Root) -> Rotation:
        precisions, U = be.xp.linalg.eigh(at.K.T @ at.K)
        precisions = be.xp.maximum(precisions, ROUNDING * precisions[-1])
        return Rotation(*self._signed(be, U[:, ::-1], 1 / precisions[::-1]))

    def needs(self, rows: float, Q: int) -> dict[str, Noise]:
        degrees = NU + Q - 1 + rows
        return {
            "a": ("gamma", (Q,), (NU + Q) / 2),
            "normal": ("normal", (Q * Q,), 0.0),
            "chi": ("gamma", (Q,), tuple((degrees - i) / 2 for i in range(Q))),
        }

    def draw(self, be: Backend, at: Rotation, scatter: Array, rows: float, noise: dict[str, Array]) -> Array:
        """a given Sigma, then Sigma given a and the residuals' scatter: IW(nu + Q - 1 + rows, scatter + 2 nu diag(1/a)).

        By Bartlett's factor T of a standard Wishart matrix. The scatter is factored in units of its own diagonal, so that a
        response without noise, or a copy of another, does not stop the chain.
        """
        del rows  # in the degrees of freedom of `chi`
        xp = be.xp
        Q = scatter.shape[0]
        inverse_a = noise["a"] / (NU * at.precision() + 1 / self.scale**2)
        whole = scatter + xp.diag(2 * NU * inverse_a)
        size = xp.sqrt(xp.maximum(xp.diagonal(whole), LEAST * self.scale**2))
        L = xp.linalg.cholesky(whole / size[:, None] / size + 10 * ROUNDING * xp.eye(Q))
        T = xp.tril(noise["normal"].reshape(Q, Q), -1) + xp.diag(xp.sqrt(2 * noise["chi"]))
        K = be.triangular_solve(T, L.T) * size
        return K.T @ K


Covariance = Independent | Correlated


def covariance_law(noise: str, scale: Array, Q: int) -> Covariance:
    """The prior of Sigma; `scale` (Q) are the root mean squares of the responses."""
    if noise == "correlated" and Q > 1:
        return Correlated(scale)
    return Independent(Jeffreys() if noise == "jeffreys" else HalfCauchy(scale), scale)
