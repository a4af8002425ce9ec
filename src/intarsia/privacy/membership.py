"""Was this person in the cohort? What a server that holds a candidate's full row, but not Φ, can tell.

Statistic: T(x) = ‖Z M x‖²/(xᵀMx) with Z = ΦX and M a whitening (Σ⁻¹ if the attacker knows Σ, else from the sketch).
For someone outside the cohort T ~ χ²_m; for a member the person's own row adds xᵀMx ≈ c to the n of all the others,
so T ~ (1 + c/n)·χ²_m for a gaussian sketch, hence AUC = F_{m,m}.cdf(1 + c/n): of the average person. One whose row is
farther out adds more (`auc_of_person`). An orthonormal sketch spreads a vector
of given length less: T ~ χ²_{n+c−1}·Beta(m/2, (n−m)/2). The two AUCs differ by less than .01 unless m is near n.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

from intarsia.errors import InputError
from intarsia.privacy.leakage import Kind, check_sizes

Array = NDArray[np.floating[Any]]
Whitening = Literal["known", "sketch"]


def membership_auc(n: int, m: int, columns: int, kind: Kind = "orthonormal") -> float:
    """AUC of the membership attack by theory, for an attacker who knows Σ and the candidate's whole row."""
    check_sizes(n, m, columns)
    if kind == "gaussian":
        return float(stats.f.cdf(1 + columns / n, m, m))
    if kind != "orthonormal":
        raise InputError(f"Unknown sketch kind {kind!r}. Use 'orthonormal' or 'gaussian'.")
    if m == n:
        # Nothing is projected away: T is the whole length, χ²_{n+c−1} against χ²_n.
        return float(stats.f.cdf((n + columns - 1) / n, n, n + columns - 1))
    # E over the member's T of P(χ²_m < T): equal-probability nodes for the length and for the share that is kept.
    u = (np.arange(64) + 0.5) / 64
    length = stats.chi2.ppf(u, n + columns - 1)
    share = stats.beta.ppf((np.arange(256) + 0.5) / 256, m / 2, (n - m) / 2)
    return float(np.mean(stats.chi2.cdf(np.outer(length, share), m)))


def auc_of_person(n: int, m: int, distance2: float) -> float:
    """The same for one person whose row has the squared distance xᵀΣ⁻¹x: T ~ (1 + that/n)·χ²_m if the row is in, χ²_m if not.

    The average person has the distance² of as many columns as there are; an outlier many times as much.
    """
    return float(stats.f.cdf(1 + distance2 / n, m, m))


def largest_ratio(m: int, auc: float = 0.6) -> float:
    """The largest c/n that keeps the membership AUC at or below `auc` (gaussian sketch)."""
    if not 0.5 < auc < 1:
        raise InputError(f"An AUC limit lies between 0.5 and 1; {auc} came.")
    return float(brentq(lambda r: stats.f.cdf(1 + r, m, m) - auc, 0.0, 1e6))


RIDGES = (0.1, 1.0, 10.0)


def whitening_from_sketch(Z: Array, ridge: float = 1.0) -> Array:
    """A c×c whitening from the sketch alone: (ZᵀZ/m + ridge·mean variance·I)⁻¹.

    Inverting ZᵀZ itself is useless (Z then explains any x equally well); one mean variance of ridge keeps the strong
    shared directions out of T and leaves the rest alone. The rows of Z have mean zero, so no mean is taken off.
    """
    Z = np.asarray(Z, float)
    return inverse_of_gram(Z, ridge * float(np.square(Z).sum()) / Z.size)


def inverse_of_gram(Z: Array, ridge: float) -> Array:
    """(ZᵀZ/rows + ridge·I)⁻¹; with fewer rows than columns by way of the small matrix ZZᵀ."""
    rows, columns = Z.shape
    if rows >= columns:
        return np.linalg.inv(Z.T @ Z / rows + ridge * np.eye(columns))
    small = np.linalg.solve(Z @ Z.T + rows * ridge * np.eye(rows), Z)
    out = -(Z.T @ small) / ridge
    out[np.diag_indices_from(out)] += 1 / ridge
    return out


def statistic(Z: Array, rows: Array, M: Array) -> Array:
    """T(x) for each candidate row."""
    white = rows @ M
    return np.square(white @ Z.T).sum(axis=1) / np.einsum("ij,ij->i", white, rows)


def auc(members: Array, others: Array) -> float:
    """Area under the ROC curve: how often a member scores above someone who is not, ties as one half."""
    members, others = np.asarray(members, float), np.asarray(others, float)
    if members.size == 0 or others.size == 0:
        raise InputError(
            f"An AUC needs members and non-members; {members.size} and {others.size} came. "
            "Hold back some subjects as non-members, or give more rows."
        )
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        raise InputError("An AUC cannot be computed: some scores are not finite. Look for constant columns.")
    ranks = stats.rankdata(np.concatenate([members, others]))
    u = ranks[: members.size].sum() - members.size * (members.size + 1) / 2
    return float(u / (members.size * others.size))


@dataclass(frozen=True)
class MembershipResult:
    theory: float
    measured_known: float
    measured_sketch: float
    candidates: int


def attack_membership(Z: Array, members: Array, others: Array, known: Array, kind: Kind, n: int) -> MembershipResult:
    """Run the attack with both whitenings. Rows are centred and scaled as the sketched columns were; `known` is the inverse of
    the columns' covariance.
    """
    m, c = Z.shape

    def measured(M: Array) -> float:
        return auc(statistic(Z, members, M), statistic(Z, others, M))

    return MembershipResult(
        membership_auc(n, m, c, kind),
        measured(known),
        # The worst of three: an attacker may guess the ridge well.
        max(measured(whitening_from_sketch(Z, ridge)) for ridge in RIDGES),
        min(len(members), len(others)),
    )
