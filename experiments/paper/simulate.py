"""Simulated data: the paper's designs (§3) and harder ones, as a `Scenario` turned into a `Dataset`.

Every draw comes from the generator that is passed in; the same scenario and seed give the same data on every machine.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from intarsia.errors import InputError

Array = NDArray[np.float64]

DESIGNS = ("stated", "as-run", "ar1", "block")
SPARSITY = ("row", "entry")
NOISES = ("normal", "t3", "correlated")
NOISE_CORRELATION = 0.6
LAYOUTS = ("random", "spread", "responses-only")


@dataclass(frozen=True)
class Scenario:
    """What to simulate. The defaults are Simulation 2 of the paper, scenario 2, s = 10.

    design     `stated`: equicorrelated features, Σ = (1−ρ)I + ρJ, as the paper says. `as-run`: x = U z with U the upper
               Cholesky factor of that Σ, so Cov(x) = UUᵀ, as the authors' example computes. `ar1`: ρ^|i−j|.
               `block`: blocks of `block` features, equicorrelated inside, independent outside.
    rank       true rank of C (None: Q, the paper's).
    sparsity   `row`: s rows of B are non-zero (the paper's). `entry`: a row of C keeps each entry with probability 1/2
               (at least one), so that a feature acts on some responses only.
    signal     factor on C: 1 is the paper's; .1 makes weak signals.
    noise      `normal`, `t3` (heavy tails, scaled to variance 1), or `correlated` (.6 between any two responses).
    layout     who holds what: `random` vertical partition of the features over K sites, responses at the last (the
               paper's); `spread`: responses spread over the sites too; `responses-only`: the last site has no features.
    """

    n: int = 1000
    P: int = 1000
    Q: int = 5
    s: int = 10
    rho: float = 0.5
    design: str = "stated"
    rank: int | None = None
    sparsity: str = "row"
    signal: float = 1.0
    noise: str = "normal"
    K: int = 3
    layout: str = "random"
    block: int = 20

    def __post_init__(self) -> None:
        for name, allowed in (("design", DESIGNS), ("sparsity", SPARSITY), ("noise", NOISES), ("layout", LAYOUTS)):
            if getattr(self, name) not in allowed:
                raise InputError(f"Scenario {name}={getattr(self, name)!r} is not known; use one of {', '.join(allowed)}.")
        if not 0 <= self.s <= self.P:
            raise InputError(f"Scenario asks for s={self.s} non-zero features of P={self.P}; s must lie in 0..P.")
        if not 0 <= self.rho < 1:
            raise InputError(f"Scenario rho={self.rho} must lie in [0, 1).")
        fewest = 2 if self.layout == "responses-only" else 1
        if fewest > self.K:
            raise InputError(f"Scenario K={self.K} is too few sites for layout {self.layout!r}.")

    def with_(self, **changes: Any) -> "Scenario":
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Dataset:
    """Simulated X, Y with the truth C, and the site (0..K−1) that holds each column."""

    X: Array
    Y: Array
    C: Array
    feature_sites: NDArray[np.int64]
    response_sites: NDArray[np.int64]

    @property
    def support(self) -> NDArray[np.bool_]:
        """Features with any non-zero coefficient."""
        return np.asarray((self.C != 0).any(axis=1))

    def parts(self) -> list[Array]:
        """The features as each site holds them."""
        return [self.X[:, self.feature_sites == k] for k in range(int(self.feature_sites.max()) + 1)]


def features(n: int, scenario: Scenario, rng: np.random.Generator) -> Array:
    """Draw n rows of the P features with the scenario's covariance."""
    P, rho = scenario.P, scenario.rho
    Z = rng.standard_normal((n, P))
    if rho == 0:
        return Z
    match scenario.design:
        case "stated":
            return np.sqrt(1 - rho) * Z + np.sqrt(rho) * rng.standard_normal((n, 1))
        case "as-run":
            Sigma = (1 - rho) * np.eye(P) + rho
            U = np.linalg.cholesky(Sigma).T
            return Z @ U.T
        case "ar1":
            # x_j = ρ x_{j−1} + √(1−ρ²) z_j, started in its stationary law: a bidiagonal solve, no P×P factor.
            Z[:, 1:] *= np.sqrt(1 - rho**2)
            L = np.eye(P) - rho * np.eye(P, k=-1)
            return np.asarray(solve_triangular(L, Z.T, lower=True, unit_diagonal=True).T)
        case _:
            groups = np.arange(P) // scenario.block
            shared = rng.standard_normal((n, int(groups[-1]) + 1))
            return np.sqrt(1 - rho) * Z + np.sqrt(rho) * shared[:, groups]


def coefficients(scenario: Scenario, rng: np.random.Generator) -> Array:
    """Draw C = B Aᵀ with exactly s non-zero rows (paper §3.1)."""
    P, Q, s = scenario.P, scenario.Q, scenario.s
    R = scenario.rank or Q
    A = rng.standard_normal((Q, R))
    B = np.zeros((P, R))
    rows = rng.choice(P, size=s, replace=False)
    B[rows] = rng.standard_normal((s, R))
    C = scenario.signal * B @ A.T
    if scenario.sparsity == "entry":
        keep = rng.random((s, Q)) < 0.5
        keep[np.arange(s), rng.integers(Q, size=s)] = True
        C[rows] *= keep
    return C


def noise(n: int, scenario: Scenario, rng: np.random.Generator) -> Array:
    """Unit-variance errors; the t law has three degrees of freedom, variance 3 before scaling."""
    if scenario.noise == "correlated":
        shared, own = rng.standard_normal((n, 1)), rng.standard_normal((n, scenario.Q))
        return np.sqrt(NOISE_CORRELATION) * shared + np.sqrt(1 - NOISE_CORRELATION) * own
    if scenario.noise == "t3":
        return rng.standard_t(3, size=(n, scenario.Q)) / np.sqrt(3.0)
    return rng.standard_normal((n, scenario.Q))


def partition(scenario: Scenario, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give each feature and each response a site; no site with features is left empty while P allows it."""
    holders = scenario.K - 1 if scenario.layout == "responses-only" else scenario.K
    feature_sites = rng.permutation(np.arange(scenario.P) % holders)
    if scenario.layout == "spread":
        response_sites = np.arange(scenario.Q) % scenario.K
    else:
        response_sites = np.full(scenario.Q, scenario.K - 1)
    return feature_sites.astype(np.int64), response_sites.astype(np.int64)


def simulate(scenario: Scenario, rng: np.random.Generator) -> Dataset:
    """One simulated data set."""
    C = coefficients(scenario, rng)
    X = features(scenario.n, scenario, rng)
    Y = X @ C + noise(scenario.n, scenario, rng)
    return Dataset(X, Y, C, *partition(scenario, rng))
