"""Differential privacy of a noisy gaussian sketch: exact accounting, its inverse, and what a party that knows Φ sees.

Site k clips its rows to norm B_k (a public constant) and adds W ~ N(0, w_k²/n) to ΦX_k. To the server, which does not
know Φ, the rows of the joined sketch are N(0, (XᵀX + diag(w²))/n). Blanking one person's row changes that covariance
by xxᵀ, and xᵀ(XᵀX + diag(w²))⁻¹x ≤ t = Σ_k B_k²/w_k²: the pair of laws is χ²_m against (1+t)·χ²_m, whose hockey-stick
divergences are known exactly. Neighbours: one person's row set to zero at all sites at once ("zero-out").

A party that knows Φ (any site, or anyone a site talks to) sees additive Gaussian noise only: μ-GDP with
μ = √(n·t)·max_i ‖φ_i‖ ≈ √(m·t).

None of this holds unless bounds, centres and scales are public constants, every site adds its noise, and Φ is used
once. `intarsia.privacy.grid` says how it survives floating point.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import exp, inf, log1p, sqrt
from typing import Any

from scipy.optimize import brentq
from scipy.stats import chi2, norm

from intarsia.errors import InputError
from intarsia.privacy.grid import RESERVED, reserve

LEAST_BOUND, MOST_BOUND = 1e-9, 1e9  # of a row's length, in standard deviations: beyond, squares leave the range of numbers


def _check_epsilon(epsilon: float) -> None:
    if not (epsilon > 0 and epsilon < inf):
        raise InputError(f"epsilon must be a positive number; {epsilon} came. Usual values lie between 0.1 and 10.")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError(f"delta must lie strictly between 0 and 1; {delta} came. Usual: 1e-6, well below 1/n.")


def delta_of(epsilon: float, t: float, m: int) -> float:
    """δ(ε) for a sketch of m rows at signal-to-noise t, the larger of the two directions."""
    if not epsilon >= 0:
        raise InputError(f"epsilon must not be negative; {epsilon} came.")
    if not t >= 0:
        raise InputError(f"The signal-to-noise ratio t = sum of B²/w² must not be negative; {t} came.")
    if m < 1:
        raise InputError(f"A sketch needs at least one row; m = {m} came.")
    if t == 0:
        return 0.0
    shift = m * log1p(t)
    a = (2 * epsilon + shift) / t
    grown = chi2.sf(a, m) - _scaled(epsilon, chi2.logsf((1 + t) * a, m))
    shrunk = 0.0
    if shift > 2 * epsilon:
        b = (shift - 2 * epsilon) / t
        shrunk = chi2.cdf((1 + t) * b, m) - _scaled(epsilon, chi2.logcdf(b, m))
    return float(min(1.0, max(grown, shrunk, 0.0)))


def _scaled(epsilon: float, log_p: float) -> float:
    """e^ε·p without overflow."""
    return exp(min(epsilon + log_p, 700.0))


def calibrate(epsilon: float, delta: float, m: int) -> float:
    """The largest t with δ(ε) ≤ delta. Noise of one site alone with row bound B is then w = B/√t."""
    _check_epsilon(epsilon)
    _check_delta(delta)
    # On a log scale: t runs over many decades.
    return exp(_root(lambda u: delta - delta_of(epsilon, exp(u), m), -40.0, -39.0))


def _root(falling: Any, low: float, high: float) -> float:
    """Root of a function that falls through zero somewhere above `low`."""
    step = high - low
    while falling(high) > 0:
        low, high, step = high, high + step, step * 2
        if step > 1e9:
            raise InputError("The privacy accounting found no solution. Check epsilon, delta and m.")
    return float(brentq(falling, low, high, xtol=1e-12, rtol=1e-12))


@dataclass(frozen=True)
class SiteNoise:
    """What one site must add: `w` is the noise scale; each sketch entry gets N(0, w²/n)."""

    row_bound: float
    w: float

    def noise_variance(self, n: int) -> float:
        return self.w**2 / n


@dataclass(frozen=True)
class Guarantee:
    """What the noise buys, against the server and against a party that knows Φ."""

    epsilon: float
    delta: float
    m: int
    t: float
    sites: Mapping[str, SiteNoise]

    @property
    def mu(self) -> float:
        """μ against a party that knows Φ, for a Φ whose columns all have their expected length √(m/n)."""
        return sqrt(self.m * self.t)

    @property
    def epsilon_known_phi(self) -> float:
        return gdp_epsilon(self.mu, self.delta)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"mu": self.mu, "epsilon_known_phi": self.epsilon_known_phi}


def guarantee(
    epsilon: float, delta: float, m: int, row_bounds: Mapping[str, float], columns: Mapping[str, int] | None = None
) -> Guarantee:
    """Noise for every site so that the joined sketch is (ε, δ)-private against the server.

    t = Σ B_k²/w_k² is split so that the total noise variance Σ P_k·w_k² is smallest: w_k² = (B_k/√P_k)·Σ_j B_j√P_j / t.
    Bounds of the same size per column (B_k ∝ √P_k) give every site the same w, and so does leaving `columns` out.
    """
    if not row_bounds:
        raise InputError("Differential privacy needs a public row bound for every site; none came.")
    for site, bound in row_bounds.items():
        if not LEAST_BOUND <= bound <= MOST_BOUND:
            between = f"between {LEAST_BOUND:g} and {MOST_BOUND:g} standard deviations"
            raise InputError(f"The row bound of site {site!r} must be a positive number {between}; {bound} came.")
    if columns is not None and set(columns) != set(row_bounds):
        missing = sorted(set(columns) ^ set(row_bounds))
        raise InputError(f"Row bounds and column counts speak of different sites: {', '.join(missing)}.")
    for site, count in (columns or {}).items():
        if count < 1:
            raise InputError(f"Site {site!r} has {count} columns; it needs at least one.")
    t = calibrate(*reserve(epsilon, delta), m)  # the rest is for the grid on which the noise lies
    # Without counts, bounds are taken to grow as the root of the columns.
    root = {site: sqrt(columns[site]) if columns is not None else bound for site, bound in row_bounds.items()}
    total = sum(bound * root[site] for site, bound in row_bounds.items())
    sites = {site: SiteNoise(bound, sqrt(bound / root[site] * total / t)) for site, bound in row_bounds.items()}
    return Guarantee(epsilon, delta, m, t, sites)


def mu_of_phi(t: float, n: int, longest: float) -> float:
    """μ of Gaussian differential privacy against a party that knows Φ; `longest` is max_i ‖φ_i‖ of the real Φ."""
    return sqrt(n * t) * longest


def mu_on_the_grid(mu: float, epsilon: float) -> float:
    """μ with what the grid may add to it (`intarsia.privacy.grid.check` keeps it below)."""
    return mu + epsilon * RESERVED / 6


def gdp_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of μ-GDP."""
    if mu <= 0:
        return 0.0
    first = norm.cdf(-epsilon / mu + mu / 2)
    return float(max(0.0, first - _scaled(epsilon, norm.logcdf(-epsilon / mu - mu / 2))))


def gdp_epsilon(mu: float, delta: float) -> float:
    """The ε at which μ-GDP has this δ."""
    _check_delta(delta)
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    return _root(lambda e: gdp_delta(mu, e) - delta, 0.0, 1.0)


def composed(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """(ε, δ) of several releases about one cohort by basic composition: both add up."""
    return sum(e for e, _ in pairs), min(1.0, sum(d for _, d in pairs))
