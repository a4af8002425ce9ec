"""A planned study four ways: by a sketch, by the exact Gram matrix of all columns, screened by exact sums, screened by a sketch.
What each would find, what it tells whom, what it costs, and whether any of them is worth running.

Power is for independent features of unit variance whose effects leave the response's variance near one. A screened study finds an
effect if it is kept and then selected; both look at the same people, so the stronger of the two conditions counts. The gate is
that of a site without overrides.
"""

from dataclasses import asdict, dataclass
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from intarsia.privacy import gram_leakage, screened_leakage
from intarsia.privacy.policy import Policy
from intarsia.privacy.precision import power

if TYPE_CHECKING:
    from intarsia.privacy.plan import Plan, Problem

EFFECTS = (0.05, 0.1, 0.2, 0.3)  # sd of the response for one sd of the feature
WORTH_IT = 0.5  # chance of finding the largest of these effects, below which a study is not worth running
SITES = 3  # by whom the columns are taken to be brought, in equal parts, for what it costs each
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Way:
    """One kind of study for the planned sizes; `power` is by effect, `megabytes` are sent by each of three sites."""

    name: str
    allowed: bool
    why_not: str
    power: tuple[float, ...]
    membership_auc: float | None
    tells: str
    megabytes: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(problem: "Problem", plan: "Plan", policy: Policy | None = None) -> tuple[Way, ...]:
    """The sketch that is recommended, the Gram matrix, the screen by sums and the screen by that sketch."""
    policy = policy or Policy()
    return _sketch(problem, plan), _gram(problem), _screened(problem, policy), _screened_by_sketch(problem, plan, policy)


def verdict(ways: tuple[Way, ...]) -> str:
    """Which way finds most of those that the gate lets pass; or that none is worth its price."""
    open_ = [way for way in ways if way.allowed]
    best = max(open_, key=lambda way: sum(way.power), default=None)
    if best is None or best.power[-1] < WORTH_IT:
        chance = 0.0 if best is None else best.power[-1]
        return (
            f"not worth running with these people: no way that the gate lets pass finds an effect of {EFFECTS[-1]:g} sd with a "
            f"chance above {chance:.0%}. More subjects, or fewer columns."
        )
    rivals = [way for way in open_ if sum(way.power) > sum(best.power) - 0.1]
    cheapest = min(rivals, key=lambda way: way.membership_auc or 1.0)
    if cheapest is best:
        return f"{best.name} finds most of the ways that the gate lets pass"
    return f"{best.name} finds most; {cheapest.name} finds nearly as much and tells less"


def _sketch(problem: "Problem", plan: "Plan") -> Way:
    chosen = plan.chosen
    P, s, columns = problem.features, problem.nonzero, problem.columns
    return Way(
        f"sketch, m = {chosen.m}", True, "", tuple(power(chosen.m, e, P, s) for e in EFFECTS), chosen.membership_auc,
        "the server: how all columns go together, roughly; a site that works with it: Φ", 8e-6 * chosen.m * columns / SITES,
    )  # fmt: skip


def _gram(problem: "Problem") -> Way:
    n, P, c = problem.n, problem.features, problem.columns
    found = gram_leakage.beside_sketch(n, c, max(2, n // 10))
    why = "" if found.allowed else f"{found.columns_per_subject:.2f} columns per subject, at most 1/3"
    each = tuple(power(n - 1, e, P, problem.nonzero) if found.allowed else 0.0 for e in EFFECTS)
    tells = "the server: how all columns go together, exactly; two holders that work together: everything"
    return Way("exact Gram matrix", found.allowed, why, each, found.membership_auc, tells, 8e-6 * n * c / SITES)


def _screened(problem: "Problem", policy: Policy) -> Way:
    n, P, Q = problem.n, problem.features, problem.responses
    limit, sums = policy.max_auc + screened_leakage.ABOVE, P * Q
    kept = min(screened_leakage.most_kept(n, sums, Q, 0, limit), screened_leakage.usual_kept(n), P)
    largest = -(-P // SITES)
    tells = (
        f"the server: how each feature goes with each response, and how the {kept} kept go together, exactly; two holders that "
        "work together: everything"
    )
    why = ""
    if kept < 1:
        people = screened_leakage.least_people(sums, Q, limit)
        most = screened_leakage.most_sums(n, Q, limit) // Q
        why = f"{sums:,} sums tell too well who took part: at most {most:,} features, or {people:,} people"
    elif largest > screened_leakage.MOST_PER_SUBJECT * n:
        why = f"{largest:,} columns of one site for {n:,} people: at most n/3"
    if why:
        return Way("screened", False, why, (0.0,) * len(EFFECTS), None, tells, 0.0)
    auc = screened_leakage.membership_auc(n, sums, Q, kept + Q)
    each = tuple(min(_kept(n, e, P, kept, problem.nonzero), power(n - 1, e, P, problem.nonzero)) for e in EFFECTS)
    return Way(f"screened, {kept} kept", True, "", each, auc, tells, 8e-6 * n * (P + Q) / SITES)


def _screened_by_sketch(problem: "Problem", plan: "Plan", policy: Policy) -> Way:
    n, m, P, Q = problem.n, plan.recommended, problem.features, problem.responses
    limit = policy.max_auc + screened_leakage.ABOVE
    kept = min(screened_leakage.most_kept(n, 0, Q, 0, limit), screened_leakage.usual_kept(n), P)
    tells = (
        f"the server: how all columns go together, roughly, and the {kept} kept, exactly; a site that works with it: Φ; two "
        "holders that work together: the kept columns"
    )
    if kept < 1:
        why = f"the exact products of {Q} responses over {n:,} people tell too well who took part"
        return Way("screened by a sketch", False, why, (0.0,) * len(EFFECTS), None, tells, 0.0)
    each = tuple(min(_kept(m, e, P, kept, problem.nonzero), power(n - 1, e, P, problem.nonzero)) for e in EFFECTS)
    auc = screened_leakage.auc_beside_sketch(n, m, problem.columns, kept + Q)
    megabytes = 8e-6 * (m * problem.columns + n * (kept + Q)) / SITES
    return Way(f"screened by a sketch, m = {m}, {kept} kept", True, "", each, auc, tells, megabytes)


def _kept(n: int, effect: float, features: int, kept: int, nonzero: int) -> float:
    """Probability that an effect is among so many largest correlations."""
    if kept >= features:
        return 1.0
    places = max(kept - nonzero / 2, 0.5)  # some are taken by other effects
    limit = _NORMAL.inv_cdf(1 - min(places / features, 0.99) / 2)
    z = effect * sqrt(n - 1)
    return 1 - _NORMAL.cdf(limit - z) + _NORMAL.cdf(-limit - z)
