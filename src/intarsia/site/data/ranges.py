"""The smallest, the middle and the largest value of each column of numbers: a weight in grams among kilograms shows there.

For eyes at the site: the figures are values of single people and never part of a message.
"""

from typing import NamedTuple

import numpy as np

from intarsia.site.data.table import Table

SAMPLED_VALUES = 4_000_000  # held at once for the medians; of a larger table evenly spaced rows are taken


class Range(NamedTuple):
    """Of the values that are there."""

    least: float
    median: float  # of all rows, or of evenly spaced ones where the table is large
    most: float


def ranges(table: Table) -> dict[str, Range]:
    """By column; those of categories, and those without any value, have none. One pass."""
    names = [name for name in table.layout.roles.all if name not in table.levels]
    at = [table.labels.index(name) for name in names]
    if not at:
        return {}
    step = max(1, -(-table.n * len(at) // SAMPLED_VALUES))
    least, most = np.full(len(at), np.inf), np.full(len(at), -np.inf)
    sampled, done = [], 0
    for Z in table.encoded():
        block = Z[:, at]
        least = np.fmin(least, np.fmin.reduce(block, axis=0))
        most = np.fmax(most, np.fmax.reduce(block, axis=0))
        sampled.append(block[-done % step :: step].copy())
        done += len(block)
    rows = np.concatenate(sampled)
    there = np.isfinite(rows).any(axis=0) & np.isfinite(least) & np.isfinite(most)
    return {
        name: Range(float(least[j]), float(np.nanmedian(rows[:, j])), float(most[j]))
        for j, name in enumerate(names) if there[j]
    }  # fmt: skip
