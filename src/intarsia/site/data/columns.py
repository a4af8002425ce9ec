"""What a site finds out about its own columns before they are sketched: levels, rare values, dominant subjects, shape,
duplicates and near-duplicates.

Two looks at the cohort in row blocks (a third at columns that look alike or rest on few subjects); memory is a few hundred
numbers per column, and the cohort itself where the caller lets the table be read once (`Table.reading_once`) and it fits.
Nothing of it leaves the site except, by name, on the site's own card.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.privacy.decode import Levels
from intarsia.privacy.facts import ColumnFacts
from intarsia.privacy.policy import Policy
from intarsia.site import panels
from intarsia.site.data.row_blocks import block_rows
from intarsia.site.data.table import Table
from intarsia.site.near_duplicates import DOMINATED_SHARE, Fingerprints, NearDuplicate

Array = NDArray[np.float64]
MOST_LEVELS = 12
LARGEST_COMPARED_VALUES = 20_000_000  # held at once while columns that look alike are compared
MOST_COMPARISONS = 12  # looks at the cohort for that, each at as many columns as fit
_PROBES = 3


@dataclass
class Profile:
    """Column facts and, for columns of few values or one very common value, their law."""

    names: tuple[str, ...]
    facts: list[ColumnFacts]
    laws: dict[str, Levels] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)
    mean: Array = field(default_factory=lambda: np.zeros(0))  # of every column of the table
    sd: Array = field(default_factory=lambda: np.zeros(0))
    narrow: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # columns that few subjects may carry
    not_compared: int = 0  # pairs of columns that look alike and were not compared, for want of room


def profile(
    table: Table,
    order: NDArray[np.int64] | None = None,
    feed: Callable[[Any], None] | None = None,
    level: int = Policy.min_level,
) -> Profile:
    """Look at every column of the cohort. `feed` is given its blocks (for a digest of the content).

    `level` is the smallest allowed level: columns that differ in fewer subjects are near-duplicates.
    """
    first = _first_pass(table, order, feed)
    second = _second_pass(table, order, first, level)
    names, n = tuple(table.labels), first.n
    sd = np.sqrt(first.variance / n)
    safe = np.where(sd > 0, sd, 1.0)
    twins = _twins(second.probes / safe, sd > 0, n)
    skewness, kurtosis = second.cubes / n / safe**3, np.where(sd > 0, second.fourths / n / safe**4 - 3, 0.0)
    near, missed = _near(table, order, second.prints, level, twins) if level > 1 else ({}, 0)
    carried = _carried(table, order, first, second, level) if level > 1 else {}
    out = Profile(names, [], mean=first.mean, sd=np.sqrt(first.variance / max(n - 1, 1)), not_compared=missed)
    out.narrow = panels.possible(second.fourths, first.variance, n)
    for j, name in enumerate(names):
        levels = first.counts[j]
        off_mode = n - int(second.at_common[j]) if levels is None else n - max(levels.values())
        distinct = MOST_LEVELS + 1 if levels is None else len(levels)
        if distinct < 2 and table.constant == "drop":
            continue  # it will not leave, so there is nothing to judge
        smallest = None if levels is None else min(levels.values())
        share = float(second.farthest[j] / first.variance[j]) if first.variance[j] > 0 else 0.0
        fact = ColumnFacts(name, distinct, smallest, off_mode, min(share, 1.0), names[twins[j]] if j in twins else None)
        other, people = near.get(j, (None, None))
        twin = None if other is None else names[other]
        fact = replace(fact, near_people=people, near_duplicate_of=twin, carried_by=carried.get(j))
        out.facts.append(replace(fact, skewness=float(skewness[j]), kurtosis=float(kurtosis[j])))
        out.scale[name] = float(sd[j])
        if levels is not None and len(levels) > 1:
            values = np.array(sorted(levels))
            out.laws[name] = Levels(values, np.array([levels[v] for v in values]) / n)
        elif levels is None and 0 < off_mode <= n // 2:
            # Sums over all subjects: those who have the common value add nothing to them.
            common, away = first.common[j], first.mean[j] - first.common[j]
            centre = n * away / off_mode
            spread = max((first.variance[j] + n * away**2) / off_mode - centre**2, 1e-12 * centre**2)
            out.laws[name] = Levels(
                np.array([common]), np.array([1 - off_mode / n]), off_mode / n, float(common + centre), float(spread)
            )
    return out


class _First(NamedTuple):
    """What one pass over the cohort tells of every column; `counts` has its values while they are few, else None."""

    n: int
    mean: Array
    variance: Array  # times n
    counts: list[dict[float, int] | None]
    common: Array  # a value that most subjects share, if there is one; it is counted exactly in the second pass


def _first_pass(table: Table, order: NDArray[np.int64] | None, feed: Callable[[Any], None] | None) -> _First:
    columns = len(table.labels)
    counts: list[dict[float, int] | None] = [{} for _ in range(columns)]
    medians: list[Array] = []
    total = square = np.zeros(columns)
    shift: Array | None = None
    n = 0
    for Z in _rows(table, order):
        if feed is not None:
            feed(Z)
        shift = Z[0].copy() if shift is None else shift
        D = Z - shift
        n, total, square = n + len(Z), total + D.sum(axis=0), square + np.einsum("ij,ij->j", D, D)
        ordered = np.sort(Z, axis=0)
        medians.append(ordered[len(Z) // 2].copy())  # a view would keep the whole block
        _count(ordered, counts)
    assert shift is not None
    variance = np.maximum(square - total**2 / n, 0.0)
    # A value that most subjects share is the median of most blocks.
    common = medians[0] if len(medians) == 1 else np.array([_most_common(column) for column in np.array(medians).T])
    return _First(n, shift + total / n, variance, counts, common)


class _Second(NamedTuple):
    """Sums over the subjects' distances D from the mean, of every column."""

    farthest: Array  # the largest D²
    cubes: Array
    fourths: Array
    at_common: NDArray[np.int64]  # subjects that have the common value
    probes: Array  # random combinations of the subjects: the same for columns that are the same
    prints: Fingerprints


def _second_pass(table: Table, order: NDArray[np.int64] | None, first: _First, level: int) -> _Second:
    columns = len(table.labels)
    rng = np.random.default_rng(20240229)
    farthest, at_common, probes = np.zeros(columns), np.zeros(columns, np.int64), np.zeros((_PROBES, columns))
    cubes = fourths = np.zeros(columns)
    prints = Fingerprints(first.n, columns, level)
    for Z in _rows(table, order):
        D = Z - first.mean
        E = D * D
        prints.add(D, E)
        cubes, fourths = cubes + np.einsum("ij,ij->j", E, D), fourths + np.einsum("ij,ij->j", E, E)
        farthest = np.maximum(farthest, E.max(axis=0))
        at_common += (first.common == Z).sum(axis=0)
        probes += rng.standard_normal((_PROBES, len(Z))) @ D
    return _Second(farthest, cubes, fourths, at_common, probes, prints)


def _rows(table: Table, order: NDArray[np.int64] | None) -> Iterator[Array]:
    # A look holds several arrays of a block's size at once.
    yield from table.whole_blocks(block_rows(4 * len(table.labels)), order)


def _carried(
    table: Table, order: NDArray[np.int64] | None, first: _First, second: _Second, level: int
) -> dict[int, int]:  # fmt: skip
    """Columns of which fewer than `level` subjects carry nearly all of the variance, and how many do."""
    # If k subjects carry the share s of ΣD², then ΣD⁴ ≥ (s·ΣD²)²/k: nearly all columns need no second look.
    possible = second.fourths * (level - 1) >= (DOMINATED_SHARE * first.variance) ** 2
    at = np.flatnonzero(possible & (first.variance > 0)).tolist()
    out: dict[int, int] = {}
    each = max(LARGEST_COMPARED_VALUES // first.n, 1)
    for some in (at[i : i + each] for i in range(0, len(at), each)):
        values = np.concatenate([Z[:, some] for Z in _rows(table, order)])
        for j, column in zip(some, np.square(values - first.mean[some]).T):
            largest = np.cumsum(np.sort(column)[::-1][: level - 1])
            enough = np.flatnonzero(largest >= DOMINATED_SHARE * first.variance[j])
            if len(enough):
                out[j] = int(enough[0]) + 1
    return out


def _near(
    table: Table, order: NDArray[np.int64] | None, prints: Fingerprints, level: int, twins: dict[int, int]
) -> tuple[dict[int, tuple[int, int]], int]:
    """Columns that are another one but for fewer than `level` subjects: the other one, and how many subjects. Then how many pairs
    were left out."""
    left = [(pair, where) for pair, where in sorted(prints.pairs().items()) if twins.get(pair[1]) != pair[0]]
    most = max(LARGEST_COMPARED_VALUES // prints.n, 2)
    found: list[NearDuplicate] = []
    for _ in range(MOST_COMPARISONS):
        chosen: set[int] = set()
        for (a, b), _ in left:
            if len(chosen) + (a not in chosen) + (b not in chosen) <= most:
                chosen.update((a, b))
        if not chosen:
            break
        at = sorted(chosen)
        values = dict(zip(at, np.concatenate([Z[:, at] for Z in _rows(table, order)]).T))
        found += prints.compare({pair: where for pair, where in left if chosen.issuperset(pair)}, values, level)
        left = [(pair, where) for pair, where in left if not chosen.issuperset(pair)]
    return {one.b: (one.a, one.people) for one in found}, len(left)


def _count(ordered: Array, counts: list[dict[float, int] | None]) -> None:
    """Add a block's levels to the columns that still have few. `ordered` is the block with every column sorted."""
    changes = (ordered[1:] != ordered[:-1]).sum(axis=0) + 1
    for j, known in enumerate(counts):
        if known is None:
            continue
        if changes[j] > MOST_LEVELS:
            counts[j] = None
            continue
        column = ordered[:, j]
        begins = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
        values, times = column[begins], np.diff(begins, append=len(column))
        for value, count in zip(values.tolist(), times.tolist()):
            known[value] = known.get(value, 0) + count
        if len(known) > MOST_LEVELS:
            counts[j] = None


def _most_common(values: Array) -> float:
    found, times = np.unique(values, return_counts=True)
    return float(found[times.argmax()])


def _twins(probes: Array, varies: NDArray[np.bool_], n: int) -> dict[int, int]:
    """Columns that are another one up to scale, sign and offset: their random projections agree."""
    signed = probes * np.where(probes[0] < 0, -1.0, 1.0)
    order = [int(j) for j in np.argsort(signed[0], kind="stable") if varies[j]]
    found: dict[int, int] = {}
    tolerance = 1e-7 * np.sqrt(n)
    for a, b in pairwise(order):
        if np.abs(signed[:, a] - signed[:, b]).max() < tolerance:
            found[max(a, b)] = found.get(min(a, b), min(a, b))
    return found
