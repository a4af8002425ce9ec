"""What a screened study tells the server, and the gate's rules for one.

*Membership.* The server gets S = Σ_i x_i y_iᵀ over the cohort for all P features and Q responses: N = P·Q numbers (as many again
with every look). Somebody who holds a person's rows x and y, and knows the covariances, whitens them and takes t = xᵀS y. For
somebody outside t/n has mean 0 (beside what x and y have in common anyway) and variance ‖x‖²‖y‖²/n; for a member it is
larger by ‖x‖²‖y‖²/n. So a person is d = ‖x‖‖y‖/√n standard deviations away from not being there, and the attack tells this person
with AUC = Φ(d/√2). Somebody who weighs all people's evidence alike, by its likelihood ratio, tells members from others with
AUC = E Φ(√(d₁² + d₂²)/2) over two people. With many features ‖x‖² is P or nearly so; ‖y‖² is χ² of Q, or one and the same for
everybody where responses have two values. The person whose rows lie farthest out is told best, and stands on the card by that:
lengths are in units of the columns' covariances, so a person whose values contradict each other is far out.
(`tests/statistical/test_screened_membership.py`).

The exact Gram matrix of what is kept tells more, as `gram_leakage` says. Both are taken as independent: their d² add.

*Where a sketch screens*, it takes the place of the sums, and tells what any sketch of so many rows tells, under the rules of one.
The part of the kept Gram matrix that it has not seen is independent of it, so here, too, the d² add. What is kept is limited as
if there were no sketch: the exact products by themselves stay at or below the limit.

*Differencing.* The difference of two such tables is the table of the people in whom two cohorts differ. Each such group is judged
as what it is: a screened study of so few people.

*Sums over responses.* A site that works with the server has, for each of its p columns, an exact sum over another site's
response: p equations for n values. They tell p/n of its variance, and all of it from p = n on.
"""

from functools import lru_cache
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from intarsia.errors import InputError
from intarsia.privacy import gram_leakage
from intarsia.privacy.facts import NOTE, OK, REFUSE, WARN, Facts, Finding, Screen
from intarsia.privacy.membership import auc_of_person
from intarsia.privacy.membership import membership_auc as sketch_auc
from intarsia.privacy.policy import Policy

ABOVE = 0.05  # so much above `max_auc`, where the gate warns, it refuses
NODES = 64  # lengths of a person's responses over which an average is taken
MOST_PER_SUBJECT = 1 / 3  # columns of one site: beyond, it works out too much of a response with the server's help
NOBODY_SAID = (
    "A screened study counts all sites' columns before anything is shared: every site announces how many it brings, over the "
    "network by itself, by files with --announcements."
)


def distance(auc: float) -> float:
    """How many standard deviations apart two normal laws are that an attack tells apart with this AUC."""
    return float(sqrt(2) * stats.norm.ppf(min(max(auc, 0.5), 1 - 1e-12)))


def auc_of(squared: float) -> float:
    """The AUC of an attack that is so far from a guess; `squared` may be a sum over independent releases."""
    return float(stats.norm.cdf(sqrt(squared / 2)))


@lru_cache
def membership_auc(n: int, sums: int, responses: int, columns: int = 0, binary: int = 0) -> float:
    """AUC of the membership attack on so many exact sums of products with so many responses over n people, `binary` of which have
    two values, and on the exact Gram matrix of so many columns: of members against others, all told by one scale."""
    if n < 2 or sums < 0 or responses < 1 or not 0 <= binary <= responses:
        raise InputError(
            f"{sums} sums with {responses} responses ({binary} binary) over {n} people: expected 0 or more, 1 or more, 2 or more."
        )
    gram = _gram(n, columns) if columns else 0.0
    squared = _lengths(responses, binary) * sums / n + gram
    return float(np.mean(stats.norm.cdf(np.sqrt(np.add.outer(squared, squared)) / 2)))


@lru_cache
def auc_beside_sketch(n: int, m: int, sketched: int, columns: int) -> float:
    """The same of a sketch of m rows of so many columns, and the exact Gram matrix of some of them: the average person."""
    return auc_of(distance(sketch_auc(n, m, sketched)) ** 2 + _gram(n, columns))


def person_auc(n: int, screen: Screen, kept: int, far: tuple[float, float]) -> float:
    """The same for one person, whose squared distances from the mean in features and in responses are so many times the average
    person's; in the kept features as in all."""
    x, y = far
    columns = kept + screen.responses + screen.covariates
    gram = gram_leakage.auc_of_person(n, columns, x * kept + y * screen.responses + screen.covariates) if kept else 0.5
    return auc_of(x * y * screen.sums / n + distance(gram) ** 2)


def worst_auc(n: int, screen: Screen, kept: int) -> float | None:
    """The same for the person of a site's table who is easiest to tell; None where nobody looked."""
    return None if screen.farthest is None else max(person_auc(n, screen, kept, far) for far in screen.farthest)


@lru_cache
def most_sums(n: int, responses: int, auc: float, binary: int = 0) -> int:
    """How many sums may leave of n people so that membership stays at or below `auc`: in proportion to n."""
    low, high = 0.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        few_enough = membership_auc(10**6, int(middle * 10**6), responses, 0, binary) <= auc
        low, high = (middle, high) if few_enough else (low, middle)
    return int(low * n)


@lru_cache
def most_kept(n: int, sums: int, responses: int, covariates: int, auc: float, binary: int = 0) -> int:
    """How many features may be kept beside responses and covariates so that membership stays at or below `auc`, and no more
    columns than a Gram matrix may have; 0 where the sums alone are too many."""
    others = responses + covariates
    low, high = 0, max(0, int(n * gram_leakage.MOST_COLUMNS) - others)
    while low < high:
        middle = (low + high + 1) // 2
        few_enough = membership_auc(n, sums, responses, middle + others, binary) <= auc
        low, high = (middle, high) if few_enough else (low, middle - 1)
    return low


def usual_kept(n: int) -> int:
    """Half the square root of the subjects: what the exact Gram matrix alone may have at a membership AUC of about .6."""
    return max(1, round(sqrt(n) / 2))


def worth_looking_again(n: int, features: int, responses: int, covariates: int, max_auc: float, binary: int = 0) -> bool:
    """Whether a second look, which tells as many sums once more, leaves at least half of the features that one look lets be
    kept (`max_auc`: where the gate warns)."""

    def kept(looks: int) -> int:
        sums = features * responses * looks
        return min(most_kept(n, sums, responses, covariates, max_auc + ABOVE, binary), usual_kept(n), features)

    return features > 0 and responses > 0 and kept(2) * 2 >= kept(1) > 0


def least_people(sums: int, responses: int, auc: float, binary: int = 0) -> int:
    """How many people a table of so many sums must be over."""
    return ceil(sums * 10**6 / most_sums(10**6, responses, auc, binary))


def most(facts: Facts, policy: Policy) -> int:
    """How many features of all sites this site's gate lets the server keep: at most those the study asks for."""
    screen = counted(facts)
    limit = most_kept(facts.n, screen.sums, screen.responses, screen.covariates, policy.max_auc + ABOVE, screen.binary)
    if policy.overridden("membership") is not None:
        room = int(facts.n * gram_leakage.MOST_COLUMNS) - screen.responses - screen.covariates
        limit = max(limit, min(max(0, room), screen.keep or usual_kept(facts.n)))
    return min(limit, screen.keep or usual_kept(facts.n), screen.features)


def counted(facts: Facts) -> Screen:
    if facts.screen is None:
        raise InputError(NOBODY_SAID)
    return facts.screen


def judge(facts: Facts, policy: Policy) -> tuple[list[Finding], float | None]:
    """The rules of a screened study beside those that look at single columns, and the average membership AUC."""
    if facts.screen is None:
        return [Finding("sums", NOTE, f"sums: unknown for all sites together. {NOBODY_SAID}")], None
    auc = _expected_auc(facts, policy)
    return [*membership(facts, auc, policy), *sums_of_one_site(facts), *differencing(facts, policy)], auc


def _expected_auc(facts: Facts, policy: Policy) -> float:
    screen = counted(facts)
    if facts.m:
        return auc_beside_sketch(facts.n, facts.m, facts.columns, most(facts, policy) + screen.responses + screen.covariates)
    columns = most(facts, policy) + screen.responses + screen.covariates
    return membership_auc(facts.n, screen.sums, screen.responses, columns, screen.binary)


def most_exposed(facts: Facts, policy: Policy) -> float | None:
    """The AUC for the person of this table who is easiest to tell; None where nobody looked, or the sums alone are too many."""
    if facts.screen is None or most(facts, policy) < 1:
        return None
    if facts.m:
        return _most_exposed_in_sketch(facts, policy)
    worst = worst_auc(facts.n, facts.screen, most(facts, policy))
    return None if worst is None else max(_expected_auc(facts, policy), worst)


def _most_exposed_in_sketch(facts: Facts, policy: Policy) -> float | None:
    """The same where a sketch screens: by how far the person is out, in all columns and in as many as are kept."""
    if facts.looked is None or facts.looked.farthest is None:
        return None
    screen, far = counted(facts), facts.looked.farthest
    columns = most(facts, policy) + screen.responses + screen.covariates
    told = distance(auc_of_person(facts.n, facts.m, far * facts.columns)) ** 2
    gram = distance(gram_leakage.auc_of_person(facts.n, columns, far * columns)) ** 2
    return max(_expected_auc(facts, policy), auc_of(told + gram))


def beside_sketch(facts: Facts, auc: float, policy: Policy) -> list[Finding]:
    """Membership where a sketch screens: what both together tell is warned of, as of any sketch; the exact products by themselves
    are refused above the limit."""
    screen, limit, kept = counted(facts), policy.max_auc + ABOVE, most(facts, policy)
    sketch = sketch_auc(facts.n, facts.m, facts.columns)
    if kept < 1:
        text = (
            f"membership: no feature may be kept: the exact products of {screen.responses + screen.covariates} responses and "
            f"covariates over {facts.n:,} people reach the limit of {limit:g} by themselves. What would pass: fewer responses or "
            "covariates, or more people; or a sketch alone."
        )
        return [Finding("membership", REFUSE, text, None, limit)]
    alone = membership_auc(facts.n, 0, screen.responses, kept + screen.responses + screen.covariates, screen.binary)
    worst = most_exposed(facts, policy)
    text = (
        f"membership: AUC {auc:.3f} by the sketch of {facts.columns:,} columns ({sketch:.3f} alone) and the exact products of "
        f"{kept} features kept at most ({alone:.3f} alone)"
    )
    text += "" if worst is None else f", {worst:.3f} for the person of this table who is easiest to tell"
    if screen.keep is not None and kept < min(screen.keep, screen.features):
        text += f". The study asks for {screen.keep}, whose exact products would tell more than AUC {limit:g} by themselves"
    level = WARN if max(auc, worst or 0.0) > policy.max_auc else OK
    out = [Finding("membership", level, text + ".", auc, policy.max_auc)]
    if screen.earlier_sums or facts.history_m:
        out.append(_with_what_left_before(facts, auc, policy))
    return out


def _with_what_left_before(facts: Facts, auc: float, policy: Policy) -> Finding:
    before = counted(facts).earlier_sums / facts.n + (_sketch(facts) if facts.history_m else 0.0)
    total = auc_of(distance(auc) ** 2 + before)
    text = f"membership: {total:.3f} with what left before of these people, which cannot be called back."
    return Finding("membership", WARN if total > policy.max_auc else OK, text, total, policy.max_auc)


def membership(facts: Facts, auc: float, policy: Policy) -> list[Finding]:
    """On average, for the most exposed person, and with what left before."""
    if facts.m:
        return beside_sketch(facts, auc, policy)
    screen, limit = counted(facts), policy.max_auc + ABOVE
    alone = membership_auc(facts.n, screen.sums, screen.responses, 0, screen.binary)
    fits = most_sums(facts.n, screen.responses, limit, screen.binary) // screen.looks
    what = f"{screen.features:,} features × {screen.responses} responses" + (f" × {screen.looks}" if screen.looks > 1 else "")
    if alone > limit or most(facts, policy) < 1:
        people = least_people(screen.sums, screen.responses, limit, screen.binary)
        text = (
            f"membership: exact sums of {what} over {facts.n:,} people let whoever holds a person's values tell with AUC "
            f"{alone:.3f} whether the person is in the cohort (limit {limit:g}). What would pass: at most {fits:,} products of "
            f"features and responses, or {people:,} people, or fewer looks; or a sketch."
        )
        return [Finding("membership", REFUSE, text, alone, limit)]
    worst = most_exposed(facts, policy) or auc
    text = (
        f"membership: AUC {auc:.3f} with {most(facts, policy)} features kept, {worst:.3f} for the person of this table who is "
        "easiest to tell"
    )
    level = WARN if max(auc, worst) > policy.max_auc else OK
    out = [Finding("membership", level, text + ".", auc, policy.max_auc)]
    if screen.earlier_sums or facts.history_m:
        out.append(_with_what_left_before(facts, auc, policy))
    return out


def sums_of_one_site(facts: Facts) -> list[Finding]:
    """What a site that works with the server can solve of another site's responses."""
    screen = counted(facts)
    if not facts.responses or not screen.largest or facts.m:  # where a sketch screens, such a site knows Φ anyway
        return []
    told, limit = screen.largest / facts.n, MOST_PER_SUBJECT
    if told > limit:
        text = (
            f"sums: another site brings {screen.largest:,} columns for {facts.n:,} people. With the server's help it has as many "
            f"exact sums over each of this site's responses, which tell {min(told, 1.0):.0%} of their variance (limit "
            f"{limit:.0%}). What would pass: at most {int(limit * facts.n):,} columns of one site, or more subjects; or a sketch."
        )
        return [Finding("sums", REFUSE, text, told, limit)]
    text = f"sums: a site that works with the server has {told:.1%} of the variance of each of this site's responses."
    return [Finding("sums", OK, text, told, limit)]


def differencing(facts: Facts, policy: Policy) -> list[Finding]:
    """Earlier exact sums over nearly the same people."""
    d, screen = facts.singled_out, counted(facts)
    least = smallest_group(facts, policy)
    if d is None:
        return [Finding("differencing", OK, "differencing: no earlier exact sums over these people.")]
    if d == 0:
        text = (
            "differencing: exact sums over these people, with other values or other columns, have left before. The difference of "
            "two would show who was changed. What would pass: the same table again, a cohort in which at least "
            f"{least:,} people differ, or a sketch."
        )
        return [Finding("differencing", REFUSE, text, 0, least)]
    if d < least:
        text = (
            f"differencing: with what left before, the sums of this study would single out {d:,} people: differences are sums "
            f"over these alone, and tell of them what {screen.sums:,} sums tell of so few. At least {least:,} are needed. What "
            "would pass: the same cohort and table as before, a cohort that differs in so many, or a sketch."
        )
        return [Finding("differencing", REFUSE, text, d, least)]
    text = f"differencing: the smallest group that exact sums single out together has {d:,} people."
    return [Finding("differencing", OK, text, d, least)]


def smallest_group(facts: Facts, policy: Policy) -> int:
    """So many people the difference of two studies must be over: as of a screened study and of a Gram matrix of these alone."""
    screen = counted(facts)
    columns = most(facts, policy) + screen.responses + screen.covariates
    apart = gram_leakage.least_apart(columns, policy.min_level)
    return max(apart, least_people(screen.sums, screen.responses, policy.max_auc + ABOVE, screen.binary))


@lru_cache
def _lengths(responses: int, binary: int) -> NDArray[np.float64]:
    """How long rows of so many responses are beside the average, at equal probabilities. Those of two values have one length if
    both are as common, which is when they tell most."""
    normal = responses - binary
    drawn = stats.chi2.ppf((np.arange(NODES) + 0.5) / NODES, normal) if normal else np.zeros(1)
    return np.asarray((drawn + binary) / responses)


@lru_cache
def _gram(n: int, columns: int) -> float:
    return distance(gram_leakage.membership_auc(n, columns)) ** 2 if columns < n - 1 else float("inf")


def _sketch(facts: Facts) -> float:
    m = min(facts.history_m, facts.n - 2)
    return distance(sketch_auc(facts.n, m, facts.columns, "orthonormal")) ** 2 if m >= 2 else 0.0
