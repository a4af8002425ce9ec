"""Missing values put at their conditional mean given the subject's other columns at the same site (missing = "regression").

Means, standard deviations and pairwise correlations R of the site's features and covariates come from one pass over the
table; a subject's missing entries u are then put at E[x_u | x_o] under the normal law with these moments, o being what the
subject has. With Ω = R⁻¹ that is −Ω_uu⁻¹ Ω_uo x_o in standardised columns: a small system per pattern of missing entries.

What it is not: multiple imputation. The filled values carry no uncertainty of their own, so that intervals are a little too
narrow where much is missing; and it rests on the columns of this site alone, so that whether a value is missing may depend on
those columns but on nothing else. Responses are never used to fill a feature: the effect would feed itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from intarsia.errors import InputError

MOST_COLUMNS = 2000  # three square matrices of this size are held: about 100 MB
_SMALLEST_EIGENVALUE = 0.01


@dataclass
class PairSums:
    """Sums over rows for pairs of columns, each pair over the rows in which both are there; counted from `pilot`."""

    pilot: np.ndarray
    rows: int = 0
    both: np.ndarray = field(init=False)
    first: np.ndarray = field(init=False)  # [j, k]: sum of column j over rows in which k is there too
    product: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        c = len(self.pilot)
        self.both, self.first, self.product = np.zeros((c, c)), np.zeros((c, c)), np.zeros((c, c))

    def add(self, Z: np.ndarray) -> None:
        here = np.isfinite(Z)
        D = np.where(here, Z - self.pilot, 0.0)
        seen = here.astype(np.float64)
        self.rows += len(Z)
        self.both += seen.T @ seen
        self.first += D.T @ seen
        self.product += D.T @ D


@dataclass(frozen=True)
class Filler:
    """Fills the columns `filled` of a block; `known` are the columns that others are predicted from."""

    filled: np.ndarray  # which columns are filled (mask over all columns of a block)
    known: np.ndarray  # which columns predict: features and covariates
    mean: np.ndarray
    sd: np.ndarray
    precision: np.ndarray  # Ω of the columns in `known`
    slopes: dict[int, np.ndarray]  # for a response that is filled: R_kk⁻¹ R_kq

    @classmethod
    def fit(cls, blocks: Iterable[np.ndarray], pilot: np.ndarray, filled: np.ndarray, known: np.ndarray) -> "Filler":
        """One pass over the table's blocks, missing values as NaN."""
        used = np.flatnonzero(known | filled)
        if len(used) > MOST_COLUMNS:
            raise InputError(
                f"missing = 'regression' with {len(used)} columns at this site: it works with up to {MOST_COLUMNS}. "
                "Use missing = 'mean', or fill the values beforehand."
            )
        sums = PairSums(pilot[used])
        for Z in blocks:
            sums.add(Z[:, used])
        both = np.maximum(sums.both, 1.0)
        mean_first = sums.first / both  # [j, k]: mean of j where k is there too
        cov = sums.product / both - mean_first * mean_first.T
        variance = np.diag(cov)
        sd = np.sqrt(np.where(variance > 0, variance, 1.0))
        R = np.clip(cov / np.outer(sd, sd), -1.0, 1.0)
        R[variance <= 0, :] = R[:, variance <= 0] = 0.0
        np.fill_diagonal(R, 1.0)
        at = {int(j): i for i, j in enumerate(used)}
        k = [at[int(j)] for j in np.flatnonzero(known)]
        # Pairwise correlations need not be positive definite, and many columns on few rows fit noise: both ask for shrinkage.
        weight = len(k) / (len(k) + max(sums.rows, 1))
        lowest = float(np.linalg.eigvalsh(R[np.ix_(k, k)])[0]) if k else 1.0
        if lowest < _SMALLEST_EIGENVALUE:
            weight = max(weight, (_SMALLEST_EIGENVALUE - lowest) / (1.0 - lowest))
        inner = (1 - weight) * R[np.ix_(k, k)] + weight * np.eye(len(k))
        precision = np.linalg.inv(inner) if k else np.empty((0, 0))
        slopes = {int(j): (1 - weight) * precision @ R[k, at[int(j)]] for j in np.flatnonzero(filled & ~known)}
        means, sds = np.zeros(len(known)), np.ones(len(known))
        means[used], sds[used] = pilot[used] + np.diag(mean_first), sd
        return cls(filled, known, means, sds, precision, slopes)

    def fill(self, Z: np.ndarray) -> np.ndarray:
        """The block with its fillable columns filled; columns with another rule keep their NaN."""
        absent = np.isnan(Z)
        if not absent[:, self.filled].any():
            return Z
        out = np.array(Z, dtype=np.float64)
        k = np.flatnonzero(self.known)
        gaps = absent[:, k]
        T = np.where(gaps, 0.0, (out[:, k] - self.mean[k]) / self.sd[k])
        rows = np.flatnonzero(gaps.any(axis=1))
        if len(rows):
            patterns, which = np.unique(gaps[rows], axis=0, return_inverse=True)
            for number, u in enumerate(patterns):
                at = rows[which.ravel() == number]
                o = ~u
                T[np.ix_(at, u)] = -np.linalg.solve(
                    self.precision[np.ix_(u, u)], self.precision[np.ix_(u, o)] @ T[np.ix_(at, o)].T
                ).T
        for i, j in enumerate(k.tolist()):
            if self.filled[j] and gaps[:, i].any():
                out[gaps[:, i], j] = self.mean[j] + self.sd[j] * T[gaps[:, i], i]
        for j, slope in self.slopes.items():
            out[absent[:, j], j] = self.mean[j] + self.sd[j] * (T[absent[:, j]] @ slope)
        return out
