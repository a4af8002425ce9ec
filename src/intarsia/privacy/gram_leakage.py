"""What an exact Gram matrix tells the server, and the gate's rules for one.

*Membership.* The attacker has a candidate's whole row x (c columns, scaled as the columns were) and G, the products over n
subjects, centred with their own means: a Wishart matrix of n − 1 degrees of freedom if rows are normal. Its statistic is the
leverage h = xᵀG⁻¹x. With s = xᵀΣ⁻¹x, for somebody outside s/h ~ χ²_{n−c}. A member's own row is in G: with
G = G₋ + xxᵀ and t = xᵀG₋⁻¹x we have h = t/(1 + t), hence s/h = s/t + s, where s/t ~ χ²_{n−1−c} and s ~ χ²_c. An attacker
who knows Σ compares s/h: χ²_{n−1} for members, χ²_{n−c} for others, so

    AUC = P(χ²_{n−1} > χ²_{n−c}) = F_{n−c, n−1}.cdf((n − 1)/(n − c)).

One who has h only (G, not Σ), members t/(1 + t) with t ~ (c/(n−1−c)) F_{c, n−1−c}, others (c/(n−c)) F_{c, n−c}, and does worse:
the gate judges the first.

*Differencing.* The difference of two Gram matrices is made of the subjects in whom the cohorts differ; sums and differences
of more single out smaller groups. Each such group is judged as what it is: a Gram matrix of so few people.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from intarsia.errors import InputError
from intarsia.privacy.facts import NOTE, OK, REFUSE, WARN, Facts, Finding
from intarsia.privacy.policy import Policy
from intarsia.wire.plain import plural

MOST_COLUMNS = 1 / 3  # of all sites together, per subject
UNKNOWN = ", as nobody said how many columns the other sites bring (--announcements, or columns = … in study.toml)"


def check_sizes(n: int, columns: int) -> None:
    if not 1 <= columns < n - 1:
        raise InputError(f"A Gram matrix of {columns} columns over {n} subjects: expected 1 ≤ columns < n − 1.")


def membership_auc(n: int, columns: int) -> float:
    """AUC of the membership attack for an attacker who knows Σ and the candidate's whole row."""
    check_sizes(n, columns)
    return float(stats.f.cdf((n - 1) / (n - columns), n - columns, n - 1))


def auc_of_person(n: int, columns: int, distance2: float) -> float:
    """The same for one person whose row has the squared distance s = xᵀΣ⁻¹x: s/h ~ χ²_{n−c} if the row is not in, s + χ²_{n−1−c}
    if it is."""
    check_sizes(n, columns)
    outside = stats.chi2.ppf((np.arange(2000) + 0.5) / 2000, n - columns)
    return float(np.mean(stats.chi2.sf(outside - distance2, max(n - 1 - columns, 1))))


def most_columns(n: int, auc: float) -> int:
    """The largest number of columns that keeps the membership AUC at or below `auc`."""
    low, high = 0, n - 2
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if membership_auc(n, middle) <= auc else (low, middle - 1)
    return low


@dataclass(frozen=True)
class Choice:
    """An exact Gram matrix beside a sketch of m rows: whether the gate lets it pass, what it tells, how much sharper it is."""

    allowed: bool
    columns_per_subject: float
    membership_auc: float | None
    narrower: float  # intervals of the sketch are so many times as wide, where enough rows carry the structure

    @property
    def sentence(self) -> str:
        if not self.allowed:
            return (
                f'an exact Gram matrix (kind = "gram") is refused here: {self.columns_per_subject:.2f} columns per '
                "subject, at most "
                "1/3. Sketch."
            )
        return (
            f'an exact Gram matrix (kind = "gram") would give the pooled fit, intervals {self.narrower:.1f} times as '
            "narrow, with "
            f"membership AUC {self.membership_auc:.3f}. No two of the three holders of shares may work together (three sites, or "
            "two and the server); with a sketch no site may work with the server."
        )


def beside_sketch(n: int, columns: int, m: int) -> Choice:
    """What the other kind of study would mean for these sizes."""
    allowed = columns <= MOST_COLUMNS * n and columns < n - 1
    auc = membership_auc(n, columns) if allowed else None
    return Choice(allowed, columns / n, auc, float(np.sqrt((n - 1) / m)))


def size(facts: Facts, policy: Policy) -> list[Finding]:
    """All sites' columns per subject."""
    of = "subjects" if facts.folds == 1 else "subjects of a fold"
    ratio, rule = facts.columns / facts.people, "columns"
    if not facts.columns_known:
        text = (
            f"columns: {len(facts.own_columns)} at this site; unknown for all sites together. Before anything is "
            "shared the sites "
            f"show each other their columns, and refuse more than n/3 = {int(facts.people * MOST_COLUMNS)}."
        )
        if ratio <= MOST_COLUMNS:
            return [Finding(rule, NOTE, text, ratio, MOST_COLUMNS)]
    if ratio > MOST_COLUMNS:
        fewer = "or fewer columns" if facts.folds == 1 else "fewer columns, fewer folds or none"
        text = (
            f"columns: {facts.columns} columns for {facts.people} {of} is more than a third; the exact second moments of so many "
            f'tell too much of each subject. Use a sketch (kind = "orthonormal"), {fewer}.'
        )
        return [Finding(rule, REFUSE, text, ratio, MOST_COLUMNS)]
    level = WARN if ratio > policy.warn_ratio else OK
    return [Finding(rule, level, f"columns: {facts.columns} for {facts.people} {of} ({ratio:.3f}).", ratio, policy.warn_ratio)]


def membership(facts: Facts, auc: float | None, policy: Policy, most: float | None = None) -> list[Finding]:
    if auc is None:
        text = (
            "membership: unknown, because the study does not say how many columns the other sites bring; all of them count. "
            "State the number of columns of every site in study.toml (columns = …) to have it computed."
        )
        return [Finding("membership", WARN, text, None, policy.max_auc)]
    if auc > policy.max_auc:
        fits = most_columns(facts.people, policy.max_auc)
        text = (
            f"membership: whoever holds a person's {facts.columns} values can tell with AUC {auc:.3f} whether the "
            f"person is in {'the cohort' if facts.folds == 1 else 'a fold of the cohort'} (limit {policy.max_auc:g}). "
            f"At most {fits} columns of all sites, or more subjects, keep it below.{of_the_most_exposed(most)}"
        )
        return [Finding("membership", WARN, text, auc, policy.max_auc)]
    return [Finding("membership", OK, f"membership: AUC {auc:.3f}.{of_the_most_exposed(most)}", auc, policy.max_auc)]


def of_the_most_exposed(most: float | None) -> str:
    return "" if most is None else f" That is of the average person; of the one who is most exposed it is {most:.3f}."


def least_apart(columns: int, min_level: int) -> int:
    """In how many subjects two Gram matrices of so many columns must differ: their difference is a Gram matrix of these."""
    return max(int(np.ceil(columns / MOST_COLUMNS)), min_level)


def differencing(facts: Facts, policy: Policy) -> list[Finding]:
    """Earlier Gram matrices of nearly the same people."""
    d = facts.singled_out
    if d is None:
        return [Finding("differencing", OK, "differencing: no earlier Gram matrix of these people.")]
    # Where nobody says how many columns the other sites bring, as many as a Gram matrix may have.
    columns = facts.columns if facts.columns_known else int(facts.people * MOST_COLUMNS)
    least = least_apart(columns, policy.min_level)
    if d == 0:
        text = (
            "differencing: a Gram matrix of these people, with other values or other columns, has left before. All second "
            "moments of a cohort leave once: the difference of two would show who was changed. Use a sketch for a further study."
        )
        return [Finding("differencing", REFUSE, text, 0, least)]
    if d < least:
        text = (
            f"differencing: with the Gram matrices that left before, this one would single out {plural(d, 'subject')}: sums "
            "and differences "
            f"of them are made of these people alone. At least {least} are needed{'' if facts.columns_known else UNKNOWN}. "
            "Use the same cohort, or a sketch."
        )
        return [Finding("differencing", REFUSE, text, d, least)]
    text = f"differencing: the smallest group that Gram matrices single out together has {plural(d, 'subject')}."
    return [Finding("differencing", OK, text, d, least)]
