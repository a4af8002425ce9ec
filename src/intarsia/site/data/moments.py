"""Column means, standard deviations and what must be refused (missing, infinite, constant), in one pass and additive.

Everything is counted from a pilot value a column (one of its own first values), so that a large offset costs no digits
and a constant column has deviations of exactly zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.errors import InputError

_PILOT_ROWS = 256
MISSING_BYTE = 255  # in a block of bytes (genotypes), what means "missing"


def as_numbers(block: np.ndarray) -> np.ndarray:
    """A block as float64; in one of bytes the byte for "missing" becomes NaN."""
    out = np.array(block, dtype=np.float64)
    if block.dtype == np.uint8:
        out[block == MISSING_BYTE] = np.nan
    return out


def pilot_of(Z: np.ndarray) -> np.ndarray:
    """A typical value of each column: the upper median of its first rows, one of its elements (0 if it has none)."""
    head = as_numbers(Z[:_PILOT_ROWS])
    head[~np.isfinite(head)] = np.nan
    head.sort(axis=0)  # NaN goes last
    seen = (~np.isnan(head)).sum(axis=0)
    pilot = head[np.minimum(seen // 2, max(len(head) - 1, 0)), np.arange(head.shape[1])] if len(head) else None
    return np.zeros(Z.shape[1]) if pilot is None else np.where(seen > 0, pilot, 0.0)


@dataclass
class Moments:
    """Sums of a set of columns over some rows, counted from `pilot`; merges in any order."""

    pilot: np.ndarray
    rows: int
    missing: np.ndarray
    infinite: np.ndarray
    total: np.ndarray
    square: np.ndarray

    @classmethod
    def empty(cls, pilot: np.ndarray) -> "Moments":
        c = len(pilot)
        return cls(pilot, 0, np.zeros(c, np.int64), np.zeros(c, np.int64), np.zeros(c), np.zeros(c))

    def add(self, Z: np.ndarray, columns: slice, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Count a block's `columns`; return deviations from the pilot (missing: 0) and where they are missing.

        `rows` is for the caller to count, once per block: panels of columns come in separately, from several threads.
        `out` takes the deviations, if given.
        """
        D = np.subtract(Z[:, columns], self.pilot[columns], out=out)
        if Z.dtype == np.uint8:
            D[Z[:, columns] == MISSING_BYTE] = np.nan
        total = D.sum(axis=0)
        absent = None
        if not np.isfinite(total).all():
            absent, infinite = np.isnan(D), np.isinf(D)
            self.missing[columns] += absent.sum(axis=0)
            self.infinite[columns] += infinite.sum(axis=0)
            D[absent | infinite] = 0.0
            total = D.sum(axis=0)
            absent = absent if absent.any() else None
        self.total[columns] += total
        self.square[columns] += np.einsum("ij,ij->j", D, D)
        return D, absent

    def moved(self, pilot: np.ndarray) -> "Moments":
        """The same sums counted from another pilot."""
        by, seen = self.pilot - pilot, self.rows - self.missing
        square = self.square + 2 * by * self.total + seen * by**2
        return Moments(pilot, self.rows, self.missing, self.infinite, self.total + seen * by, square)

    def merge(self, other: "Moments") -> "Moments":
        o = other.moved(self.pilot)
        return Moments(
            self.pilot, self.rows + o.rows, self.missing + o.missing, self.infinite + o.infinite,
            self.total + o.total, self.square + o.square,
        )  # fmt: skip

    @property
    def shift(self) -> np.ndarray:
        """Mean of the observed values, counted from the pilot."""
        return self.total / np.maximum(self.rows - self.missing, 1)

    @property
    def mean(self) -> np.ndarray:
        return self.pilot + self.shift

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation (divisor rows − 1) of the column with missing values at the mean."""
        spread = self.square - (self.rows - self.missing) * self.shift**2
        return np.sqrt(np.maximum(spread, 0.0) / max(self.rows - 1, 1))

    def constant(self) -> np.ndarray:
        """Which columns do not vary, up to rounding."""
        return self.sd <= 1e-13 * np.maximum(np.abs(self.mean), np.abs(self.shift))

    def check(self, names: Sequence[str], *, missing: str | Mapping[str, str] = "error", constant: str = "error") -> None:
        """Refuse infinite, missing and constant columns, each by name and count; no value is ever named.

        `missing` is the rule for all columns, or the rule of each.
        """
        rules = [missing if isinstance(missing, str) else missing.get(name, "error") for name in names]
        if self.infinite.any():
            raise InputError(f"Infinite values in {_list(names, self.infinite)}. Remove them or mark them as missing.")
        refused = np.where(np.array(rules, dtype=object) == "error", self.missing, 0)
        if refused.any():
            raise InputError(
                f"Missing values in {_list(names, refused)} of {self.rows:,} rows. Fill them, leave the column or the subjects "
                'out, or ask for missing = "mean" (for a response: under its own name).'
            )
        if (empty := self.missing >= self.rows).any():
            raise InputError(f"No value at all in {_list(names, empty)}. Leave the column out.")
        if not (np.isfinite(self.square).all() and np.isfinite(self.total).all()):
            bad = ~(np.isfinite(self.square) & np.isfinite(self.total))
            raise InputError(f"Numbers too large to square in {_list(names, bad)}. Use another unit.")
        if constant == "error" and (flat := self.constant()).any():
            raise InputError(
                f"No variation in {_list(names, flat)}: such a column says nothing and cannot be scaled. "
                "Leave it out, or ask for constant='drop'."
            )


def _list(names: Sequence[str], counts: np.ndarray) -> str:
    at = np.flatnonzero(counts)
    said = [names[j] if counts.dtype == bool else f"{names[j]} ({counts[j]})" for j in at[:10]]
    return ("column " if len(at) == 1 else f"{len(at)} columns: ") + ", ".join(said) + (", …" if len(at) > 10 else "")
