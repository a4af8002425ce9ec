"""Numbers that look like codes for "missing" (999, −99 and their like, far from all else in the column), or like counts."""

from dataclasses import dataclass

import numpy as np

from intarsia.site.data.table import Table

TYPICAL_CODES = (-9.0, -99.0, -999.0, -9999.0, 99.0, 999.0, 9999.0, 99999.0)


@dataclass(frozen=True)
class Suspect:
    code: int
    count: int


def suspected_codes(table: Table) -> dict[str, Suspect]:
    """Columns of numbers in which such a code stands outside all other values by more than their whole range; one pass."""
    numbers = [name for name in table.layout.roles.all if name not in table.levels]
    at = [table.labels.index(name) for name in numbers]
    counts = np.zeros((len(TYPICAL_CODES), len(at)), dtype=np.int64)
    low, high = np.full(len(at), np.inf), np.full(len(at), -np.inf)
    for Z in table.encoded():
        block = Z[:, at]
        typical = np.isin(block, TYPICAL_CODES) | ~np.isfinite(block)
        low = np.minimum(low, np.where(typical, np.inf, block).min(axis=0, initial=np.inf))
        high = np.maximum(high, np.where(typical, -np.inf, block).max(axis=0, initial=-np.inf))
        counts += np.array([(block == code).sum(axis=0) for code in TYPICAL_CODES])
    out = {}
    for j, name in enumerate(numbers):
        width = high[j] - low[j]
        for code, count in zip(TYPICAL_CODES, counts[:, j]):
            if count and np.isfinite(width) and (code > high[j] + width or code < low[j] - width):
                out[name] = Suspect(int(code), int(count))
    return out


def suspected_counts(table: Table) -> set[str]:
    """Responses of whole numbers from 0 on: visits, admissions, days; one pass."""
    names = [name for name in table.layout.roles.responses if name not in table.levels]
    at = [table.labels.index(name) for name in names]
    whole, least = np.ones(len(at), dtype=bool), np.full(len(at), np.inf)
    most = np.full(len(at), -np.inf)
    if not at:
        return set()
    for Z in table.encoded():
        block = Z[:, at]
        there = np.isfinite(block)
        whole &= ((np.where(there, block, 0.0) % 1) == 0).all(axis=0)
        least = np.minimum(least, np.where(there, block, np.inf).min(axis=0, initial=np.inf))
        most = np.maximum(most, np.where(there, block, -np.inf).max(axis=0, initial=-np.inf))
    return {name for j, name in enumerate(names) if whole[j] and least[j] == 0 and most[j] > 2}
