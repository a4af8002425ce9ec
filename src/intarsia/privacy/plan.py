"""How large a sketch? The trade of m against what it tells (bits, membership, decoding) and what it is good for.

What it is good for is said in two figures (`intarsia.privacy.precision`): the width of an interval beside that of pooled data,
and the probability of finding an effect of a stated size. The paper's §5 adds that m must exceed s·ln P for the sparse structure
to survive; its contraction rate ε_m² = (QR + R·s·ln P)/m has unknown constants and no unit, so it only compares values of m.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf, log
from typing import Any

import numpy as np

from intarsia.errors import InputError
from intarsia.privacy import dp
from intarsia.privacy.blind import Shape, danger
from intarsia.privacy.known_rows import known_rows_r2
from intarsia.privacy.leakage import Kind, check_sizes, known_phi_r2, leakage
from intarsia.privacy.membership import membership_auc
from intarsia.privacy.policy import Policy
from intarsia.privacy.precision import EFFECT, expected_nonzero, interval_ratio, power, smallest_effect

SKEWNESS, KURTOSIS = 1.0, 1.5  # of a typical column, unless said otherwise: a concentration, a count, a waiting time
ENOUGH = 20  # times s·ln P: beyond it a larger sketch costs more privacy and time than it brings


@dataclass(frozen=True)
class Row:
    """One m."""

    m: int
    ratio: float
    lower_bits_per_subject: float
    upper_bits_per_subject: float
    bits_per_entry: float
    membership_auc: float
    known_phi_r2: float
    known_rows_r2: float
    decodable_prevalence: float
    rate: float
    times_needed: float
    interval_ratio: float
    power: float
    smallest_effect: float
    blind: float
    noise_variance: float | None = None


@dataclass(frozen=True)
class Plan:
    """The table over m and the recommendation."""

    n: int
    features: int
    responses: int
    kind: str
    nonzero: int
    rank: int
    needed: int
    rows: tuple[Row, ...]
    recommended: int
    reasons: tuple[str, ...]
    effect: float = EFFECT
    epsilon: float | None = None
    delta: float | None = None

    @property
    def chosen(self) -> Row:
        return next(r for r in self.rows if r.m == self.recommended)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# m/n and the largest prevalence of a 0/1 column that Bayes-AMP decodes there (state evolution, long columns).
_DECODABLE = (
    (0.002, 0.000225), (0.005, 0.000657), (0.01, 0.0015), (0.02, 0.0035), (0.03, 0.0058), (0.05, 0.0111),
    (0.075, 0.019), (0.1, 0.028), (0.15, 0.0496), (0.2, 0.076), (0.25, 0.108), (0.3, 0.1465), (0.35, 0.194),
    (0.4, 0.256), (0.45, 0.349), (0.48, 0.5),
)  # fmt: skip


def decodable_prevalence(ratio: float) -> float:
    """Up to which prevalence a 0/1 column is decoded by someone who knows Φ, at m/n = ratio (long columns)."""
    x, y = np.log(np.array(_DECODABLE)).T
    inside = float(np.exp(np.interp(np.log(ratio), x, y)))
    # Below the table prevalence falls a little faster than the ratio; proportionality errs on the side of caution.
    return inside if ratio >= _DECODABLE[0][0] else inside * ratio / _DECODABLE[0][0]


@dataclass(frozen=True)
class Problem:
    """The regression one expects: `nonzero` is s, the features with an effect, and `rank` is R; `effect` is one that must not be
    missed, in sd of the response for one sd of the feature; `skewness` and excess `kurtosis` are those of a typical column.
    """

    n: int
    features: int
    responses: int
    nonzero: int
    rank: int
    effect: float = EFFECT
    skewness: float = SKEWNESS
    kurtosis: float = KURTOSIS

    def __post_init__(self) -> None:
        P, Q = self.features, self.responses
        if P < 1 or Q < 1:
            raise InputError(f"At least one feature and one response are needed; {P} and {Q} came.")
        check_sizes(self.n, 2, P + Q)
        if not 1 <= self.nonzero <= P:
            raise InputError(f"The number of non-zero features must lie between 1 and {P}; {self.nonzero} came.")
        if not 1 <= self.rank <= Q:
            raise InputError(f"The rank must lie between 1 and the {Q} responses; {self.rank} came.")

    @classmethod
    def expected(cls, n: int, features: int, responses: int, nonzero: int | None = None, rank: int | None = None) -> "Problem":
        """Unless said otherwise: a thirtieth of the features matters, at least 5, and the rank is Q."""
        s = nonzero if nonzero is not None else expected_nonzero(features)
        return cls(n, features, responses, s, rank if rank is not None else responses)

    @property
    def columns(self) -> int:
        return self.features + self.responses

    @property
    def shape(self) -> Shape:
        """All columns' shape, for finding Φ without the key."""
        c, s, k = self.columns, self.skewness, self.kurtosis
        return Shape(c, c * s**2, c * k**2, c * k)

    @property
    def needed(self) -> int:
        """s·ln P, below which the sparse structure does not survive."""
        return max(2, ceil(self.nonzero * log(max(self.features, 2))))


@dataclass(frozen=True)
class Budget:
    """The wished ε and δ; `row_bound` is the public bound of the joint row in units of the public scales (None: √(P+Q))."""

    epsilon: float
    delta: float
    row_bound: float | None = None

    def noise_variance(self, problem: Problem, m: int) -> float:
        bound = self.row_bound if self.row_bound is not None else problem.columns**0.5
        if not bound > 0:
            raise InputError(f"The row bound must be a positive number; {bound} came.")
        return bound**2 / dp.calibrate(self.epsilon, self.delta, m) / problem.n


def plan(
    problem: Problem,
    *,
    kind: Kind = "orthonormal",
    grid: Sequence[int] | None = None,
    policy: Policy | None = None,
    history_m: int = 0,
    budget: Budget | None = None,
) -> Plan:
    """Tabulate the trade-off and recommend an m; `grid` are the m to show."""
    if budget is not None and kind != "gaussian":
        raise InputError("Differential privacy needs a gaussian sketch: add --kind gaussian.")
    m, reasons = _recommend(problem, kind, policy or Policy(), history_m, budget is not None)
    chosen = sorted({m, *(grid or _grid(problem.n))})
    for value in chosen:
        check_sizes(problem.n, value)
    rows = tuple(_row(problem, value, kind, history_m) for value in chosen)
    if budget is not None:
        rows = tuple(replace(r, noise_variance=budget.noise_variance(problem, r.m)) for r in rows)
        reasons += _noise_reason(next(r for r in rows if r.m == m), problem.n, budget.epsilon)
    stated = (None, None) if budget is None else (budget.epsilon, budget.delta)
    p = problem
    return Plan(p.n, p.features, p.responses, kind, p.nonzero, p.rank, p.needed, rows, m, reasons, p.effect, *stated)


def contraction_rate(problem: Problem, m: int) -> float:
    """ε_m² = (QR + R·s·ln P)/m (paper, eq. 4)."""
    Q, R, s, P = problem.responses, problem.rank, problem.nonzero, problem.features
    return (Q * R + R * s * log(max(P, 2))) / m


def _grid(n: int) -> list[int]:
    """From a hundredth of the subjects to all: n − 1 rows are a secret rotation of the centred data."""
    ratios = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75)
    return sorted({max(2, round(r * n)) for r in ratios if round(r * n) < n} | {n - 1})


def _row(problem: Problem, m: int, kind: Kind, history: int) -> Row:
    n, columns = problem.n, problem.columns
    bits = leakage(n, m, columns, kind)
    return Row(
        m=m,
        ratio=(m + history) / n,
        lower_bits_per_subject=bits.per_subject[0],
        upper_bits_per_subject=bits.per_subject[1],
        bits_per_entry=bits.per_entry[1],
        membership_auc=membership_auc(n, m, columns, kind),
        known_phi_r2=known_phi_r2(n, m, kind),
        known_rows_r2=known_rows_r2(n, m, columns),
        decodable_prevalence=decodable_prevalence(m / n),
        rate=contraction_rate(problem, m),
        times_needed=m / problem.needed,
        interval_ratio=interval_ratio(n, m, problem.features, problem.nonzero),
        power=power(m, problem.effect, problem.features, problem.nonzero),
        smallest_effect=smallest_effect(m, problem.features, problem.nonzero),
        blind=danger(problem.shape, n, m),
    )


def _recommend(problem: Problem, kind: Kind, policy: Policy, history: int, private: bool) -> tuple[int, tuple[str, ...]]:
    """The largest m within the warning limits; if that is too little for the regression, up to the hard limit."""
    n, columns, needed = problem.n, problem.columns, problem.needed
    quiet = int(policy.warn_ratio * n) - history
    hard = int(policy.max_ratio * n) - history
    if hard < 2:
        raise InputError(f"This cohort's allowance is spent: Σm = {history} of n = {n} is already used. Find other subjects.")
    reasons = []
    safe = _largest(lambda m: membership_auc(n, m, columns, kind) <= policy.max_auc, 2, hard)
    m = max(2, min(quiet, hard, ENOUGH * needed))
    if private:
        reasons.append("differential privacy bounds membership, so only Σm/n limits m")
    elif safe >= needed:
        m = min(m, safe) if min(m, safe) >= needed else m
        reasons.append(f"membership AUC stays at or below {policy.max_auc:g} up to m = {safe}")
    else:
        reasons.append(
            f"membership AUC is above {policy.max_auc:g} at any m that serves the regression (it holds up to m = "
            f"{max(safe, 0)}): "
            "more subjects, fewer columns or differential privacy would change that"
        )
    if m < needed:
        m = min(needed, hard)
        reasons.append(f"s·ln P = {needed} asks for more than Σm/n = {policy.warn_ratio:g} allows without a warning")
    if m < needed:
        reasons.append(f"even the limit Σm/n = {policy.max_ratio:g} (m = {hard}) is below s·ln P = {needed}: expect weak results")
    else:
        reasons.append(f"m is {m / needed:.1f} times s·ln P = {needed}")
    return m, tuple(reasons)


def _largest(good: Any, low: int, high: int) -> int:
    """The largest m in [low, high] with good(m), good falling in m; low − 1 if there is none."""
    if not good(low):
        return low - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if good(middle) else (low, middle - 1)
    return low


def _noise_reason(row: Row, n: int, epsilon: float) -> tuple[str, ...]:
    variance = row.noise_variance if row.noise_variance is not None else inf
    if variance > 0.5:
        text = (
            f"at epsilon = {epsilon:g} the noise variance is {variance:.2f} of a unit-variance column: too much "
            "to fit; "
            f"n of about {ceil(n * variance / 0.5)} would do"
        )
    else:
        text = f"at epsilon = {epsilon:g} the noise variance is {variance:.2f} of a unit-variance column"
    return (text,)
