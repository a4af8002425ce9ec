"""What is fitted: the user's choices, and the laws of local and global scales (paper, §2.2).

Any global-local normal scale mixture fits in. A law speaks of a scale (lam_p, tau_r or sigma_q) through two functions: the log
density of its logarithm, and a draw of the precision eta = 1/scale² given k normal values with scaled sum of squares mu, that is
from eta^(k/2) exp(-eta mu/2) p(eta). A draw uses up one standard gamma variate of shape `gamma_shape` and two uniform ones.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from intarsia.errors import InputError
from intarsia.server.sampler import compiled
from intarsia.server.sampler.settings import Length
from intarsia.wire.study_parts import LOCALS, NOISES

HALF_CAUCHY, STUDENT, LAPLACE, JEFFREYS = 0, 1, 2, 3
LAWS = ("horseshoe", "laplace", "student")
DEGREES = 4.0  # of freedom of the Student law

# The half-Cauchy has mass 1e-15 outside; beyond, squares and their inverses would leave double precision.
LOW, HIGH = 1e-30, 1e30


@dataclass(frozen=True)
class Model:
    """The choices of a fit.

    local   `row`: one local scale per feature; `element`: one per entry of B (the paper's).
    rank    R; None means R = Q.
    law     of the local scales.
    noise   `correlated`: a full covariance Sigma of the responses' noise (one response: as `independent`); `independent`: a
            half-Cauchy noise level per response; `jeffreys`: the paper's improper prior per response.
    power   of the likelihood: below 1 it is a fractional posterior (paper, §5).
    expected_features   how many features you expect to matter: it sets the scale of the global scales' half-Cauchy law
            (`global_scale`); None: C⁺(0, 1), which expects nothing.
    """

    local: str = "row"
    rank: int | None = None
    law: str = "horseshoe"
    noise: str = "correlated"
    power: float = 1.0
    expected_features: float | None = None

    REFIT: ClassVar[Length] = Length(draws=100, warmup=250, thin=4, usual=100)  # of a fit that only weighs predictions

    def __post_init__(self) -> None:
        for what, value, known in (
            ("Local scales", self.local, LOCALS),
            ("Local law", self.law, LAWS),
            ("Noise prior", self.noise, NOISES),
        ):
            if value not in known:
                raise InputError(f"{what} {value!r} not known; expected one of {', '.join(known)}.")
        if not 0 < self.power <= 1:
            raise InputError(f"The likelihood's power is {self.power!r}; expected 0 < power <= 1 (1: the ordinary posterior).")
        if self.expected_features is not None and not 0 < self.expected_features < float("inf"):
            raise InputError(f"expected_features is {self.expected_features!r}; expected a positive number, or None.")

    def for_refit(self) -> "Model":
        """The same for a fit of which only the predictions count."""
        return self

    def rank_of(self, responses: int) -> int:
        """R for so many responses."""
        R = responses if self.rank is None else self.rank
        if not 1 <= R <= responses:
            raise InputError(f"Rank {R} does not fit {responses} response(s); expected 1 ≤ rank ≤ {responses}.")
        return R


class Law(NamedTuple):
    """A law of a scale.

    HALF_CAUCHY  scale ~ C⁺(0, size): the horseshoe's law.
    STUDENT      scale² ~ IG(size/2, size/2): normal values become Student t with `size` degrees of freedom.
    LAPLACE      scale² ~ Gamma((size + 1)/2, rate 1/2): the Bayesian group lasso on `size` values (1: the lasso).
    JEFFREYS     p(scale²) ∝ 1/scale², the paper's noise prior.
    """

    kind: int = HALF_CAUCHY
    size: float = 1.0


def local_law(name: str, k: int) -> Law:
    """The law of local scales; k values of B share one scale (R for row scales, 1 for element scales)."""
    return {"horseshoe": Law(), "student": Law(STUDENT, DEGREES), "laplace": Law(LAPLACE, float(k))}[name]


def global_scale(expected: float | None, P: int, rank: int, level: float, length: float) -> float:
    """The scale of tau's half-Cauchy law at which so many of P features matter (Piironen & Vehtari, 2017).

    A feature with local scale lam keeps the share 1 − kappa = t/(1 + t), t = lam² tau² R ‖x‖²/sigma², of its effect. Under
    lam ~ C⁺(0, 1) that share is a/(1 + a) on average, a = tau √R ‖x‖/sigma: P a/(1 + a) features in all. sigma is taken to be
    `level`, ‖x‖ the columns' `length`.
    """
    if expected is None or not level > 0 or not length > 0:
        return 1.0
    share = min(expected / P, 0.5)
    return share / (1 - share) * level / (length * math.sqrt(rank))


def gamma_shape(law: Law, k: float) -> float:
    """Shape of the gamma variate that a draw given k values needs; 0: it needs none."""
    if law.kind == HALF_CAUCHY:
        return (k - 1) / 2 if k > 1 else 0.0
    if law.kind == STUDENT:
        return (k + law.size) / 2
    return 0.5 if law.kind == LAPLACE else k / 2


@compiled
def log_density(law: Law, t: float) -> float:
    """Log density of t = log scale, up to a constant."""
    if law.kind == HALF_CAUCHY:
        v = abs(t - math.log(law.size))
        return -v - math.log1p(math.exp(-2 * v))
    if law.kind == STUDENT:
        return -law.size * (t + 0.5 * math.exp(-2 * t))
    if law.kind == LAPLACE:
        return (law.size + 1) * t - 0.5 * math.exp(2 * t)
    return 0.0


@compiled
def draw_precision(law: Law, eta: float, k: float, mu: float, g: float, u: float, v: float) -> float:
    """A draw from eta^(k/2) exp(-eta mu/2) p(eta) given the present eta: exact, or a step that keeps that law."""
    rate = max(mu, 2 * LOW) / 2
    if law.kind == HALF_CAUCHY:
        return _half_cauchy_precision(law.size**2, eta, k, rate, g, u, v)
    if law.kind == STUDENT:
        new = g / (rate + law.size / 2)
    elif law.kind == LAPLACE:
        # Inverse Gaussian with mean 1/√mu and shape 1 (Michael, Schucany & Haas 1976); the smaller root without cancellation.
        mean = 1 / math.sqrt(max(mu, 1e-24))
        y = 2 * mean * g
        new = mean / (1 + y / 2 + math.sqrt(y + y * y / 4))
        if u * (mean + new) > mean:
            new = mean * (mean / new)
    else:
        new = g / rate
    return min(max(new, LOW), HIGH)


@compiled
def _half_cauchy_precision(s2: float, eta: float, k: float, rate: float, g: float, u: float, v: float) -> float:
    """From eta^((k-1)/2) exp(-eta rate) / (1 + s² eta).

    k = 1: the slice of the paper's appendix B, with mu/2 as a *rate* and det^(-1/2). k > 1: an independence proposal that is the
    gamma law with either limit of 1/(1 + s² eta) absorbed; its weight is bounded by one, so it never sticks. The shapes of the
    two limits differ by one, so that one gamma variate serves both: an exponential one makes it the larger.
    """
    if k <= 1:
        u = u / (1 + s2 * eta)
        bound = min((1 - u) / max(u, LOW) / s2, HIGH)
        return min(max(-math.log1p(v * math.expm1(-rate * bound)) / rate, LOW), HIGH)
    large = s2 * (k / 2) > rate  # is s² eta typically above one?
    new = min(max((g if large else g - math.log(v)) / rate, LOW), HIGH)
    ratio = (1 + s2 * eta) / (1 + s2 * new)
    if large:
        ratio *= new / eta
    return new if u < ratio else eta
