"""The sampler for a differentially private study: features that carry noise of known variance (errors in variables).

A private sketch gives Z = X_Φ + W with W_ij ~ N(0, d_j), d_j = w²/n known. Fitting Z as if it were X_Φ shrinks every
coefficient and is sure of it. Here X_Φ is a latent variable. Given the data, the rows of a gaussian sketch are
exactly iid N(0, S) with S = XᵀX/n, so the model is complete once S has a prior:

    x_i ~ N(0, S),   z_i = x_i + N(0, D),   y_i = Cᵀx_i + N(0, diag(σ²)),   S ~ IW(ν, (ν−P−1)·T).

T is a few factors plus a diagonal, read off Z's spectrum; ν, how far S may stray from T, is learned. (A vague prior
on S, ν = P+2, spreads its eigenvalues, calls too much of Z noise and overshoots: coefficients 10 % too large at P/m =
.3.) Noise on the responses only adds to σ²; it is known and taken off at the end.

One sweep: S⁻¹ and ν given X; X given S, Z, Y, C; then B, A, σ², λ, τ by the same conditionals as without noise, on
the P×P Cholesky factor of XᵀX, which holds all they need.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, eigvalsh, solve_triangular
from scipy.special import multigammaln
from threadpoolctl import threadpool_limits

from intarsia.errors import ConvergenceError, InputError
from intarsia.server import backend, conditionals
from intarsia.server.draws import Draws
from intarsia.server.priors import HalfCauchy, Law, local_law, noise_law

Array = NDArray[np.float64]
DROWNED = 0.5  # noise variance over signal variance beyond which intervals are no longer worth having


# --- is there signal left? --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signal:
    """Variance of the noise and of what it hides, averaged over columns; `ratio` is the first over the second."""

    noise: float
    signal: float
    ratio: float
    needed_n: int | None


def signal(Z: Array, d: Array, n: int) -> Signal:
    """How loud the noise is. `needed_n` is the n at which the same study would reach the limit."""
    m = len(Z)
    total = float(np.square(Z).mean())
    noise = float(d.mean())
    found = total - noise
    # Less than three standard errors of the total is no signal at all.
    if found <= 3 * total * np.sqrt(2 / (m * Z.shape[1])):
        return Signal(noise, max(found, 0.0), np.inf, None)
    ratio = noise / found
    return Signal(noise, found, ratio, int(np.ceil(n * ratio / DROWNED)))


def check_signal(Z: Array, d: Array, n: int) -> Signal:
    """Refuse to fit when the noise drowns the features."""
    found = signal(Z, d, n)
    if found.ratio > DROWNED:
        if found.needed_n is None:
            remedy = (
                "No signal can be told from it: use a larger epsilon, fewer columns, a smaller m or many more subjects."
            )
        else:
            remedy = (
                f"With the same bounds about n = {found.needed_n} subjects would do (now {n}); a larger epsilon, fewer "
                "columns or a smaller m help too."
            )
        raise InputError(
            f"The privacy noise drowns the features: its variance is {found.noise:.3g} per column against "
            f"{found.signal:.3g} of signal (ratio {found.ratio:.2f}, limit {DROWNED}). {remedy}"
        )
    return found


# --- the law of the latent rows ---------------------------------------------------------------------------------------


def target(Z: Array, d: Array) -> Array:
    """T: the factors of Z's rows that stand out from noise, debiased, plus a diagonal; its diagonal is Z's less D.

    Eigenvalues of a spiked covariance are inflated in the sample; ℓ + 1 − γ ± … (Baik–Silverstein) takes that back.
    """
    m, P = Z.shape
    total = np.square(Z).mean(axis=0)
    scaled = Z / np.sqrt(total)
    gamma = P / m
    values, vectors = np.linalg.eigh(scaled.T @ scaled / m)
    k, bulk = 0, 1.0
    for _ in range(20):
        bulk = float(values[: P - k].mean()) if k < P else 1.0
        found = int((values > 1.02 * bulk * (1 + np.sqrt(gamma)) ** 2).sum())
        if found == k or found >= P // 2:
            break
        k = found
    top = values[P - k :] / bulk
    spikes = (top + 1 - gamma + np.sqrt(np.maximum((top + 1 - gamma) ** 2 - 4 * top, 0.0))) / 2
    F = vectors[:, P - k :] * np.sqrt(np.maximum(spikes - 1, 0.0) * bulk) * np.sqrt(total)[:, None]
    wanted = np.maximum(total - d, 0.02 * total)
    shared = np.square(F).sum(axis=1)
    F *= np.sqrt(np.minimum(1.0, 0.95 * wanted / np.maximum(shared, 1e-300)))[:, None]
    return F @ F.T + np.diag(wanted - np.square(F).sum(axis=1))


def strength_grid(P: int, m: int) -> Array:
    """Values of ν − P − 1 that are tried: from vague to "S is T, give or take a twentieth of the data"."""
    return np.geomspace(1.0, 20.0 * m, 40)


def strength_weights(roots: Array, m: int, grid: Array) -> Array:
    """Log probability of each ν given X with S integrated out; `roots` are the eigenvalues of T⁻¹XᵀX, prior flat in
    log.
    """
    P = roots.size
    nu = grid + P + 1
    logs = np.log(grid[:, None] + roots).sum(axis=1)
    return (
        P * nu / 2 * np.log(grid)
        - (nu + m) / 2 * logs
        + np.array([multigammaln((v + m) / 2, P) - multigammaln(v / 2, P) for v in nu])
    )


def draw_precision(degrees: float, scatter: Array, normal: Array, chi: Array) -> Array:
    """S⁻¹ ~ Wishart(degrees, scatter⁻¹) by Bartlett's factor; `chi` are √χ² of degrees, degrees − 1, …"""
    factor = np.tril(normal, -1) + np.diag(chi)
    half = solve_triangular(cholesky(scatter, lower=True), factor, lower=True, trans="T")
    return half @ half.T


def draw_latent(Z: Array, Y: Array, C: Array, sigma2: Array, d: Array, precision: Array, normal: Array) -> Array:
    """X_Φ given everything: rows independent with precision S⁻¹ + D⁻¹ + C diag(1/σ²) Cᵀ, the same for all rows."""
    whole = precision + (C / sigma2) @ C.T
    whole[np.diag_indices_from(whole)] += 1 / d
    L = cholesky(whole, lower=True)
    pull = (Z / d + (Y / sigma2) @ C.T).T
    return solve_triangular(L, solve_triangular(L, pull, lower=True) + normal, lower=True, trans="T").T


# --- chains -----------------------------------------------------------------------------------------------------------


@dataclass
class State:
    """One chain's position."""

    X: Array
    A: Array
    B: Array
    lam: Array
    tau: Array
    sigma2: Array
    strength: float

    @property
    def C(self) -> Array:
        return self.B @ self.A.T


@dataclass(frozen=True)
class Setting:
    """What does not change along a chain."""

    Z: Array
    Y: Array
    d: Array
    T: Array
    local: Law
    global_: Law
    noise: Law
    row: bool
    rank: int


def sweep(s: Setting, state: State, rng: np.random.Generator, learn: bool = True) -> State:
    """One sweep; `learn` also draws ν (an eigenvalue problem, so not every time)."""
    m, P = s.Z.shape
    G = state.X.T @ state.X
    strength = state.strength
    if learn:
        half = cholesky(s.T, lower=True)
        inner = solve_triangular(half, solve_triangular(half, G, lower=True).T, lower=True)
        grid = strength_grid(P, m)
        weight = strength_weights(np.maximum(eigvalsh((inner + inner.T) / 2), 0.0), m, grid)
        p = np.exp(weight - weight.max())
        strength = float(rng.choice(grid, p=p / p.sum()))
    degrees = strength + P + 1 + m
    chi = np.sqrt(rng.chisquare(degrees - np.arange(P)))
    precision = draw_precision(degrees, strength * s.T + G, rng.standard_normal((P, P)), chi)
    X = draw_latent(s.Z, s.Y, state.C, state.sigma2, s.d, precision, rng.standard_normal((P, m)))
    return _regression(s, state, X, strength, rng)


def _regression(s: Setting, state: State, X: Array, strength: float, rng: np.random.Generator) -> State:
    """B, A, σ², λ, τ given the latent features, from XᵀX, XᵀY and YᵀY alone when P < m."""
    be = backend.get("numpy")
    m, P = X.shape
    if m > P:
        R = cholesky(X.T @ X)
        Xs = R
        Ys = solve_triangular(R, X.T @ s.Y, trans="T")
        beyond = np.maximum(np.square(s.Y).sum(axis=0) - np.square(Ys).sum(axis=0), 0.0)
    else:
        Xs, Ys, beyond = X, s.Y, np.zeros(s.Y.shape[1])
    rows, Q = Ys.shape
    deviation = np.sqrt(state.sigma2)
    Zn = rng.standard_normal((P, s.rank))
    if s.row:
        E = rng.standard_normal((rows, s.rank))
        B = conditionals.draw_B_row(be, Xs, Ys, state.A, state.lam, state.tau, deviation, Zn, E)
    else:
        E = rng.standard_normal((rows, Q))
        B = conditionals.draw_B_element(be, Xs, Ys, state.A, state.lam, state.tau, deviation, Zn, E)
    F = Xs @ B
    A = conditionals.draw_A(be, F, Ys, deviation, rng.standard_normal((Q, s.rank)))
    rss = np.square(Ys - F @ A.T).sum(axis=0) + beyond
    sigma2 = conditionals.draw_sigma2(be, state.sigma2, rss, float(m), 1.0, s.noise, variates(s.noise.noise(m), Q, rng))
    k = s.rank if s.row else 1
    lam = conditionals.draw_lam(be, state.lam, B, state.tau, s.local, variates(s.local.noise(k), state.lam.shape, rng))
    tau = conditionals.draw_tau(be, state.tau, B, lam, s.global_, variates(s.global_.noise(P), s.rank, rng))
    if not (np.isfinite(B).all() and np.isfinite(A).all() and np.isfinite(sigma2).all()):
        raise ConvergenceError(
            "The sampler left the range of double precision. Check the public scales of the columns."
        )
    return State(X, A, B, lam, tau, sigma2, strength)


def variates(spec: dict[str, tuple[str, float]], size: Any, rng: np.random.Generator) -> dict[str, Array]:
    """The random numbers a law asks for."""
    make: dict[str, Callable[[float], Array]] = {
        "uniform": lambda _: rng.random(size),
        "normal": lambda _: rng.standard_normal(size),
        "gamma": lambda shape: rng.gamma(shape, size=size),
    }
    return {name: make[kind](shape) for name, (kind, shape) in spec.items()}


def setting(Z: Array, Y: Array, d: Array, model: Any) -> Setting:
    """Check the input and fix what does not change."""
    Z, Y, d = np.asarray(Z, float), np.asarray(Y, float), np.asarray(d, float)
    if Z.ndim != 2 or Y.ndim != 2 or len(Z) != len(Y) or d.shape != (Z.shape[1],):
        raise InputError(f"Shapes do not fit: features {Z.shape}, responses {Y.shape}, noise variances {d.shape}.")
    if not (np.isfinite(Z).all() and np.isfinite(Y).all() and np.isfinite(d).all()):
        raise InputError("The sketches hold values that are not finite.")
    if not (d > 0).all():
        bare = int((d <= 0).sum())
        raise InputError(f"{bare} of {d.size} features carry no noise. In a private study every site adds its own.")
    if model.alpha != 1:
        raise InputError(f"A private study is fitted with alpha = 1; {model.alpha} came.")
    Q = Y.shape[1]
    R = Q if model.rank is None else int(model.rank)
    if not 1 <= R <= Q:
        raise InputError(f"The rank must lie between 1 and the {Q} responses; {R} came.")
    row = model.local == "row"
    scale = np.sqrt(np.square(Y).mean(axis=0))
    if (scale == 0).any():
        raise InputError("A response of the sketch is zero throughout. Leave it out.")
    return Setting(
        Z,
        Y,
        d,
        target(Z, d),
        local_law(model.law, R if row else 1),
        HalfCauchy(),
        noise_law(model.noise, scale),
        row,
        R,
    )


def start(s: Setting, rng: np.random.Generator) -> State:
    """An over-dispersed start: the features as their best linear guess, coefficients near zero."""
    (m, P), Q = s.Z.shape, s.Y.shape[1]
    X = cho_solve((cholesky(s.T + np.diag(s.d), lower=True), True), s.Z.T).T @ s.T
    A = rng.standard_normal((Q, s.rank))
    lam = np.exp(rng.standard_normal(P if s.row else (P, s.rank)))
    tau = np.exp(rng.standard_normal(s.rank) - 2)
    sigma2 = np.square(s.Y).mean(axis=0) * rng.uniform(0.2, 0.8, Q)
    return State(X, A, np.zeros((P, s.rank)), lam, tau, sigma2, float(m))


def sample(
    Z: Array,
    Y: Array,
    *,
    feature_noise: Array,
    n: int,
    response_noise: Array | None = None,
    model: Any = None,
    draws: int = 1000,
    warmup: int = 500,
    chains: int = 4,
    thin: int = 1,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[..., Any] | None = None,
) -> Draws:
    """Draws of C, σ² and τ from noisy sketches. `feature_noise` and `response_noise` hold each column's w (not variances).

    σ² is that of the responses without the privacy noise. The same seed gives the same draws, whatever the workers.
    """
    if model is None:
        from intarsia.server.gibbs import Model

        model = Model()
    d = np.square(np.asarray(feature_noise, float)) / n
    s = setting(Z, Y, d, model)
    loud = check_signal(s.Z, s.d, n)
    dy = np.zeros(s.Y.shape[1]) if response_noise is None else np.square(np.asarray(response_noise, float)) / n
    if draws < 1 or warmup < 0 or chains < 1 or thin < 1:
        raise InputError("draws, chains and thin must be at least 1 and warmup not negative.")
    begun = time.monotonic()
    seeds = np.random.SeedSequence(seed).spawn(chains)
    P, Q = s.Z.shape[1], s.Y.shape[1]
    C = np.empty((chains, draws, P, Q))
    sigma2, tau, strength = np.empty((chains, draws, Q)), np.empty((chains, draws, s.rank)), np.empty((chains, draws))

    def chain(i: int) -> None:
        rng = np.random.Generator(np.random.PCG64DXSM(seeds[i]))
        state = start(s, rng)
        for step in range(warmup + draws * thin):
            state = sweep(s, state, rng, learn=step % 5 == 0)
            kept = step - warmup
            if kept >= 0 and (kept + 1) % thin == 0:
                at = kept // thin
                C[i, at], sigma2[i, at], tau[i, at], strength[i, at] = state.C, state.sigma2, state.tau, state.strength
            if progress is not None:
                progress(i, step + 1, warmup + draws * thin)

    # Threads suffice: nearly all the time is spent inside the linear algebra, which releases the lock.
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(workers or min(chains, _cores())) as pool:
        list(pool.map(chain, range(chains)))
    info = {
        "seconds": time.monotonic() - begun, "warmup": warmup, "thin": thin, "seed": seed, "errors_in_variables": True,
        "noise_ratio": loud.ratio, "noise_variance": loud.noise, "log_strength": float(np.log(strength).mean()),
        "model": {"local": model.local, "rank": s.rank, "law": model.law, "noise": model.noise, "alpha": 1.0},
    }  # fmt: skip
    floor = 1e-3 * sigma2.mean(axis=(0, 1))
    return Draws(C, np.maximum(sigma2 - dy, floor), tau, None, info)


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def log_strength_range(P: int, m: int) -> tuple[float, float]:
    """The ends of the grid, for a look at where ν ended."""
    grid = strength_grid(P, m)
    return log(grid[0]), log(grid[-1])
