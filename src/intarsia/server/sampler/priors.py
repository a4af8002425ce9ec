"""Laws of local and global scales and of single noise levels (paper, §2.2; any global-local normal scale mixture fits in).

A law speaks of a scale (lam_p, tau_r or sigma_q) through two functions: the log density of its logarithm, and a draw of the
precision eta = 1/scale² given k normal values with scaled sum of squares mu, that is from
eta^(k/2) exp(-eta mu/2) p(eta). Randomness is passed in; `noise(k)` says what is needed.
"""

import math
from dataclasses import dataclass
from typing import Any

from intarsia.errors import InputError
from intarsia.server.sampler.backends.protocol import Array

Spec = dict[str, tuple[str, float]]  # name -> (kind of variate, its parameter)
Noise = tuple[str, tuple[int, ...], float | tuple[float, ...]]  # (kind of variate, shape, parameter or one per entry)

# The half-Cauchy has mass 1e-15 outside; beyond, squares and their inverses would leave double precision.
LOW, HIGH = 1e-30, 1e30


def _clip(xp: Any, eta: Array) -> Array:
    return xp.clip(eta, LOW, HIGH)


@dataclass(frozen=True)
class HalfCauchy:
    """scale ~ C⁺(0, s): the horseshoe's law, for local and global scales and for noise.

    With a `reach` its tail ends like a normal one, at that many times s: the density is multiplied by exp(-(scale/(s reach))²/2).
    """

    s: float | Array = 1.0
    reach: float = math.inf

    def log_density(self, xp: Any, t: Array) -> Array:
        """Log density of t = log scale, up to a constant: -log(2 cosh(t - log s))."""
        v = xp.abs(t - xp.log(xp.asarray(self.s)))
        body = -v - xp.log1p(xp.exp(-2 * v))
        return body if self.reach == math.inf else body - 0.5 * (xp.exp(t) / (self.s * self.reach)) ** 2

    def noise(self, k: float) -> Spec:
        needs: Spec = {"u": ("uniform", 0.0), "v": ("uniform", 0.0)}
        return needs if k <= 1 else {"low": ("gamma", (k - 1) / 2), **needs}

    def draw(self, xp: Any, eta: Array, k: float, mu: Array, noise: dict[str, Array]) -> Array:
        """From eta^((k+1)/2 - 1) exp(-eta mu/2) / (1 + s² eta).

        k = 1: the slice of the paper's appendix B, with mu/2 as a *rate* and det^(-1/2). k > 1: an independence proposal that is
        the gamma law with either limit of 1/(1 + s² eta) absorbed; its weight is bounded by one, so it never sticks. The shapes
        of the two limits differ by one, so that one gamma variate serves both: an exponential one makes it the larger.
        """
        s2 = self.s**2
        rate = xp.maximum(mu, 2 * LOW) / 2
        if k <= 1:
            if self.reach < math.inf:
                raise InputError("A half-Cauchy law with a reach is for a scale of two values or more.")
            u = noise["u"] / (1 + s2 * eta)
            bound = xp.minimum((1 - u) / xp.maximum(u, LOW) / s2, HIGH)
            return _clip(xp, -xp.log1p(noise["v"] * xp.expm1(-rate * bound)) / rate)
        large = s2 * (k / 2) > rate  # is s² eta typically above one?
        new = _clip(xp, (noise["low"] - xp.where(large, 0.0, xp.log(noise["v"]))) / rate)
        ratio = (1 + s2 * eta) / (1 + s2 * new)
        ratio = xp.where(large, ratio * (new / eta), ratio)
        if self.reach < math.inf:
            ratio = ratio * xp.exp(xp.minimum(0.5 * (1 / eta - 1 / new) / (s2 * self.reach**2), 600.0))
        return xp.where(noise["u"] < ratio, new, eta)


@dataclass(frozen=True)
class Student:
    """scale² ~ IG(nu/2, nu s²/2): normal values become Student t with nu degrees of freedom; heavier-bodied, for dense truths."""

    nu: float = 4.0
    s: float = 1.0

    def log_density(self, xp: Any, t: Array) -> Array:
        return -self.nu * t - self.nu * self.s**2 / 2 * xp.exp(-2 * t)

    def noise(self, k: float) -> Spec:
        return {"g": ("gamma", (k + self.nu) / 2)}

    def draw(self, xp: Any, eta: Array, k: float, mu: Array, noise: dict[str, Array]) -> Array:
        return _clip(xp, noise["g"] / ((mu + self.nu * self.s**2) / 2))


@dataclass(frozen=True)
class GroupLaplace:
    """scale² ~ Gamma((k+1)/2, rate 1/2): the Bayesian group lasso on k values that share the scale (k = 1: the lasso)."""

    k: float = 1.0

    def log_density(self, xp: Any, t: Array) -> Array:
        return (self.k + 1) * t - xp.exp(2 * t) / 2

    def noise(self, k: float) -> Spec:
        if k != self.k:
            raise InputError(f"The group lasso law was made for groups of {self.k:g}; asked for {k:g}.")
        return {"z": ("normal", 0.0), "u": ("uniform", 0.0)}

    def draw(self, xp: Any, eta: Array, k: float, mu: Array, noise: dict[str, Array]) -> Array:
        """eta is inverse Gaussian with mean 1/√mu and shape 1 (Michael, Schucany & Haas 1976)."""
        mean = 1 / xp.sqrt(xp.maximum(mu, 1e-24))
        y = mean * noise["z"] ** 2
        # The smaller root, written without cancellation.
        small = mean / (1 + y / 2 + xp.sqrt(y + y**2 / 4))
        return _clip(xp, xp.where(noise["u"] * (mean + small) <= mean, small, mean * (mean / small)))


@dataclass(frozen=True)
class Jeffreys:
    """p(sigma²) ∝ 1/sigma², the paper's noise prior: the posterior is improper whenever P ≥ m."""

    def log_density(self, xp: Any, t: Array) -> Array:
        return 0.0 * t

    def noise(self, k: float) -> Spec:
        return {"g": ("gamma", k / 2)}

    def draw(self, xp: Any, eta: Array, k: float, mu: Array, noise: dict[str, Array]) -> Array:
        return _clip(xp, noise["g"] / (xp.maximum(mu, 2 * LOW) / 2))


Law = HalfCauchy | Student | GroupLaplace | Jeffreys

LAWS = ("horseshoe", "laplace", "student")


def local_law(name: str, k: int) -> Law:
    """The law of local scales; k values of B share one scale (R for row scales, 1 for element scales)."""
    if name == "horseshoe":
        return HalfCauchy()
    if name == "laplace":
        return GroupLaplace(float(k))
    if name == "student":
        return Student()
    raise InputError(f"Local law {name!r} is not known; expected one of {', '.join(LAWS)}.")
