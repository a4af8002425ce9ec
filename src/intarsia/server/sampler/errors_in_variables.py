"""Features that carry noise of known variance: the sketches of a differentially private study.

A private sketch gives Z = X_Φ + W with W_ij ~ N(0, d_j), d_j = w²/n known. Fitting Z as if it were X_Φ shrinks every
coefficient and is sure of it. Here X_Φ is a latent variable. Given the data, the rows of a gaussian sketch are
exactly iid N(0, S) with S = XᵀX/n, so the model is complete once S has a prior:

    x_i ~ N(0, S),   z_i = x_i + N(0, D),   y_i = Cᵀx_i + N(0, Sigma),   S ~ IW(ν, (ν−P−1)·T).

T is a few strong factors plus a diagonal; ν, how far S may stray from it, is learned. (With a vague prior, ν = P+2,
the eigenvalues of S spread, too much of Z is called noise and the correction overshoots: coefficients 10 % too large
and 83 % coverage at P/m = .3 and a noise of a third of the signal.) Noise on the responses only adds to Sigma's diagonal;
it is known and taken off at the end.

`draw_features` is the first half of a sweep: S⁻¹ and ν given X, then X given S, Z, Y and C. The other half is any sampler's
sweep given X; the P×P Cholesky factor of XᵀX holds all it needs (`small_side`).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigvalsh, solve_triangular
from scipy.special import multigammaln

from intarsia.errors import InputError

Array = NDArray[np.float64]
MOST_FACTORS = 10
MAX_NOISE_RATIO = 0.5  # noise variance over signal variance beyond which intervals are no longer worth having
LEARN = 5  # one sweep in so many draws how far S may stray: an eigenvalue problem


@dataclass(frozen=True)
class PrivacyNoise:
    """What the sites added before they sent: the columns' w (no variances), of the sketch of n subjects."""

    n: int
    features: Any
    responses: Any = None  # None: no noise on them


# --- is there signal left? --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signal:
    """Variance of the noise and of what it hides, averaged over columns; `ratio` is the first over the second."""

    noise: float
    signal: float
    ratio: float
    needed_n: int | None


def signal(Z: Array, d: Array, n: int) -> Signal:
    """How large the noise is. `needed_n` is the n at which the same study would reach the limit."""
    m = len(Z)
    total = float(np.square(Z).mean())
    noise = float(d.mean())
    found = total - noise
    # Less than three standard errors of the total is no signal at all.
    if found <= 3 * total * np.sqrt(2 / (m * Z.shape[1])):
        return Signal(noise, max(found, 0.0), np.inf, None)
    ratio = noise / found
    return Signal(noise, found, ratio, int(np.ceil(n * ratio / MAX_NOISE_RATIO)))


def check_signal(Z: Array, d: Array, n: int) -> Signal:
    """Refuse to fit when the noise drowns the features."""
    found = signal(Z, d, n)
    if found.ratio > MAX_NOISE_RATIO:
        if found.needed_n is None:
            remedy = "No signal can be told from it: use a larger epsilon, fewer columns, a smaller m or many more subjects."
        else:
            remedy = (
                f"With the same bounds about n = {found.needed_n} subjects would do (now {n}); a larger epsilon, fewer "
                "columns or a smaller m help too."
            )
        raise InputError(
            f"The privacy noise drowns the features: its variance is {found.noise:.3g} per column against "
            f"{found.signal:.3g} of signal (ratio {found.ratio:.2f}, limit {MAX_NOISE_RATIO}). {remedy}"
        )
    return found


# --- the law of the latent rows ---------------------------------------------------------------------------------------


def target(Z: Array, d: Array) -> Array:
    """T: the few strong factors of Z's rows, plus a diagonal that makes up each column's variance less its noise.

    Only eigenvalues well clear of what noise alone would give count as factors, and at most ten: the rest is left to
    the data. A sample eigenvalue overstates its factor; the debiasing is that of a spiked covariance (Baik &
    Silverstein).
    """
    m, P = Z.shape
    total = np.square(Z).mean(axis=0)
    scaled = Z / np.sqrt(total)
    gamma = P / m
    values, vectors = np.linalg.eigh(scaled.T @ scaled / m)
    k = 0
    for _ in range(MOST_FACTORS):  # the bulk's level is what is left without the factors
        bulk = float(values[: P - k].mean())
        if k + 1 >= P or values[P - 1 - k] < 2 * bulk * (1 + np.sqrt(gamma)) ** 2:
            break
        k += 1
    bulk = float(values[: P - k].mean())
    top = values[P - k :] / bulk
    spikes = (top + 1 - gamma + np.sqrt(np.maximum((top + 1 - gamma) ** 2 - 4 * top, 0.0))) / 2
    F = vectors[:, P - k :] * np.sqrt((spikes - 1) * bulk) * np.sqrt(total)[:, None]
    wanted = np.maximum(total - d, 0.02 * total)
    F *= np.sqrt(np.minimum(1.0, 0.95 * wanted / np.maximum(np.square(F).sum(axis=1), 1e-300)))[:, None]
    return F @ F.T + np.diag(wanted - np.square(F).sum(axis=1))


def strength_grid(P: int, m: int) -> Array:
    """Values of ν − P − 1 that are tried. The upper end leaves a third of the weight to the data: T is an estimate."""
    return np.geomspace(1.0, 2.0 * m, 40)


def strength_weights(roots: Array, m: int, grid: Array) -> Array:
    """Log probability of each ν given X, S integrated out, prior flat in log; `roots`: the eigenvalues of T⁻¹XᵀX."""
    P = roots.size
    logs = np.log(grid[:, None] + roots).sum(axis=1)
    return _normaliser(P, m, tuple(grid)) - (grid + P + 1 + m) / 2 * logs


@lru_cache(8)
def _normaliser(P: int, m: int, grid: tuple[float, ...]) -> Array:
    k = np.array(grid)
    nu = k + P + 1
    return P * nu / 2 * np.log(k) + np.array([multigammaln((v + m) / 2, P) - multigammaln(v / 2, P) for v in nu])


def draw_precision(degrees: float, scatter: Array, normal: Array, chi: Array) -> Array:
    """S⁻¹ ~ Wishart(degrees, scatter⁻¹) by Bartlett's factor; `chi` are √χ² of degrees, degrees − 1, …"""
    factor = np.tril(normal, -1) + np.diag(chi)
    half = solve_triangular(cholesky(scatter, lower=True), factor, lower=True, trans="T")
    return half @ half.T


def draw_latent(Z: Array, Y: Array, C: Array, root: Array, d: Array, precision: Array, normal: Array) -> Array:
    """X_Φ given everything: rows independent with precision S⁻¹ + D⁻¹ + C Sigma⁻¹ Cᵀ, the same for all rows.

    `root` is K with Sigma⁻¹ = KᵀK.
    """
    white = C @ root.T
    whole = precision + white @ white.T
    whole[np.diag_indices_from(whole)] += 1 / d
    L = cholesky(whole, lower=True)
    pull = (Z / d + (Y @ root.T) @ white.T).T
    return solve_triangular(L, solve_triangular(L, pull, lower=True) + normal, lower=True, trans="T").T


class NoisyFeatures(NamedTuple):
    """Sketched features Z (m, P), the variances d (P,) of their noise, and T."""

    Z: Array
    d: Array
    T: Array

    @classmethod
    def of(cls, Z: Any, d: Any, Y: Array, power: float) -> "NoisyFeatures":
        """Checked, with T worked out."""
        Z, d = np.asarray(Z, float), np.asarray(d, float)
        if Z.ndim != 2 or Y.ndim != 2 or len(Z) != len(Y) or d.shape != (Z.shape[1],):
            raise InputError(f"Shapes do not fit: features {Z.shape}, responses {Y.shape}, noise variances {d.shape}.")
        if not (np.isfinite(Z).all() and np.isfinite(Y).all() and np.isfinite(d).all()):
            raise InputError("The sketches hold values that are not finite.")
        if not (d > 0).all():
            bare = int((d <= 0).sum())
            raise InputError(f"{bare} of {d.size} features carry no noise. In a private study every site adds its own.")
        if power != 1:
            raise InputError(f"A private study is fitted with the likelihood's power 1; {power} came.")
        if (np.square(Y).sum(axis=0) == 0).any():
            raise InputError("A response of the sketch is zero throughout. Leave it out.")
        return cls(Z, d, target(Z, d))

    def best_guess(self) -> Array:
        """The features as their best linear guess from Z."""
        return np.asarray(np.linalg.solve(self.T + np.diag(self.d), self.Z.T).T @ self.T)


class Latent(NamedTuple):
    """The features X without their noise, and ν − P − 1."""

    X: Array
    strength: float


def draw_features(
    noisy: NoisyFeatures, now: Latent, Y: Array, C: Array, root: Array, rng: np.random.Generator, learn: bool = True
) -> Latent:
    """ν, S and the latent features given C and the noise; `root` is K with Sigma⁻¹ = KᵀK. `learn` also draws ν (an
    eigenvalue problem, so not every time). S is not kept: the next sweep draws it from X.
    """
    (m, P), strength = noisy.Z.shape, now.strength
    G = now.X.T @ now.X
    if learn:
        half = cholesky(noisy.T, lower=True)
        inner = solve_triangular(half, solve_triangular(half, G, lower=True).T, lower=True)
        grid = strength_grid(P, m)
        weight = strength_weights(np.maximum(eigvalsh((inner + inner.T) / 2), 0.0), m, grid)
        p = np.exp(weight - weight.max())
        strength = float(rng.choice(grid, p=p / p.sum()))
    degrees = strength + P + 1 + m
    chi = np.sqrt(rng.chisquare(degrees - np.arange(P)))
    precision = draw_precision(degrees, strength * noisy.T + G, rng.standard_normal((P, P)), chi)
    return Latent(draw_latent(noisy.Z, Y, C, root, noisy.d, precision, rng.standard_normal((P, m))), strength)


def small_side(X: Array, Y: Array) -> tuple[Array, Array, Array]:
    """The design's P×P Cholesky factor and the responses on it when P < m; and the scatter of what no feature reaches."""
    m, P = X.shape
    if m <= P:
        return X, Y, np.zeros((Y.shape[1], Y.shape[1]))
    R = cholesky(X.T @ X)
    Ys = solve_triangular(R, X.T @ Y, trans="T")
    return R, Ys, Y.T @ Y - Ys.T @ Ys


def without(Sigma: Array, variances: Array) -> Array:
    """Covariances less noise of these variances: no eigenvalue below a thousandth of the mean covariance's least."""
    if not variances.any():
        return Sigma
    w, V = np.linalg.eigh(Sigma - np.diag(variances))
    least = 1e-3 * np.linalg.eigvalsh(Sigma.mean(axis=(0, 1)))[0]
    return np.asarray((V * np.maximum(w, least)[..., None, :]) @ np.swapaxes(V, -1, -2))
