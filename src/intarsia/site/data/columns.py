"""What a site finds out about its own columns before they are sketched: levels, rare values, dominant subjects, shape,
duplicates and near-duplicates.

Two passes over the table in row blocks (a third over columns that look alike); memory is a few hundred numbers per column.
Nothing of it leaves the site except, by name, on the site's own card.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from intarsia.privacy.decode import Levels
from intarsia.privacy.facts import ColumnFacts
from intarsia.privacy.policy import Policy
from intarsia.site.data.table import Table
from intarsia.site.near_duplicates import Fingerprints, columns_of

Array = NDArray[np.float64]
MOST_LEVELS = 12
LARGEST_COMPARED_VALUES = 20_000_000  # held while columns that look alike are compared
_PROBES = 3


@dataclass
class Profile:
    """Column facts and, for columns of few values or one very common value, their law."""

    names: tuple[str, ...]
    facts: list[ColumnFacts]
    laws: dict[str, Levels] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)


def profile(
    table: Table,
    order: NDArray[np.int64] | None = None,
    feed: Callable[[bytes], None] | None = None,
    level: int = Policy.min_level,
) -> Profile:
    """Look at every column of the cohort. `feed` is given the cohort's bytes in order (for a digest of the content).

    `level` is the smallest allowed level: columns that differ in fewer subjects are near-duplicates.
    """
    names = tuple(table.labels)
    counts: list[dict[float, int] | None] = [{} for _ in names]
    medians: list[Array] = []
    total = square = np.zeros(len(names))
    shift: Array | None = None
    n = 0
    for Z in _rows(table, order):
        if feed is not None:
            feed(np.ascontiguousarray(Z).tobytes())
        shift = Z[0].copy() if shift is None else shift
        D = Z - shift
        n, total, square = n + len(Z), total + D.sum(axis=0), square + np.square(D).sum(axis=0)
        ordered = np.sort(Z, axis=0)
        medians.append(ordered[len(Z) // 2])
        _count(ordered, counts)
    assert shift is not None
    mean = shift + total / n
    variance = np.maximum(square - total**2 / n, 0.0)  # times n
    # A value that most subjects share is the median of most blocks; it is counted exactly in the second pass.
    common = np.array([_most_common(column) for column in np.array(medians).T])
    rng = np.random.default_rng(20240229)
    farthest, at_common, probes = np.zeros(len(names)), np.zeros(len(names), np.int64), np.zeros((_PROBES, len(names)))
    rest_sum = rest_square = cubes = fourths = np.zeros(len(names))
    prints = Fingerprints(n, len(names), level)
    for Z in _rows(table, order):
        D = Z - mean
        prints.add(D)
        E = D * D
        cubes, fourths = cubes + (E * D).sum(axis=0), fourths + (E * E).sum(axis=0)
        farthest = np.maximum(farthest, np.abs(D).max(axis=0))
        same = common == Z
        at_common += same.sum(axis=0)
        off = np.where(same, 0.0, Z - common)
        rest_sum, rest_square = rest_sum + off.sum(axis=0), rest_square + np.square(off).sum(axis=0)
        probes += rng.standard_normal((_PROBES, len(Z))) @ D
    sd = np.sqrt(variance / n)
    twins = _twins(probes / np.where(sd > 0, sd, 1.0), sd > 0, n)
    safe = np.where(sd > 0, sd, 1.0)
    skewness, kurtosis = cubes / n / safe**3, np.where(sd > 0, fourths / n / safe**4 - 3, 0.0)
    near = _near(table, order, prints, level, twins) if level > 1 else {}
    out = Profile(names, [])
    for j, name in enumerate(names):
        levels = counts[j]
        off_mode = n - int(at_common[j]) if levels is None else n - max(levels.values())
        distinct = MOST_LEVELS + 1 if levels is None else len(levels)
        if distinct < 2 and table.constant == "drop":
            continue  # it will not leave, so there is nothing to judge
        smallest = None if levels is None else min(levels.values())
        share = float(farthest[j] ** 2 / variance[j]) if variance[j] > 0 else 0.0
        fact = ColumnFacts(name, distinct, smallest, off_mode, min(share, 1.0), names[twins[j]] if j in twins else None)
        other, people = near.get(j, (None, None))
        twin = None if other is None else names[other]
        fact = replace(fact, near_people=people, near_duplicate_of=twin)
        out.facts.append(replace(fact, skewness=float(skewness[j]), kurtosis=float(kurtosis[j])))
        out.scale[name] = float(sd[j])
        if levels is not None and len(levels) > 1:
            values = np.array(sorted(levels))
            out.laws[name] = Levels(values, np.array([levels[v] for v in values]) / n)
        elif levels is None and 0 < off_mode <= n // 2:
            centre = rest_sum[j] / off_mode
            spread = max(rest_square[j] / off_mode - centre**2, 1e-12 * centre**2)
            out.laws[name] = Levels(
                common[[j]], np.array([1 - off_mode / n]), off_mode / n, float(common[j] + centre), float(spread)
            )
    return out


def _rows(table: Table, order: NDArray[np.int64] | None) -> Iterator[Array]:
    for parts in table.blocks(order=order):
        yield np.hstack(parts)


def _near(
    table: Table, order: NDArray[np.int64] | None, prints: Fingerprints, level: int, twins: dict[int, int]
) -> dict[int, tuple[int, int]]:
    """Columns that are another one but for fewer than `level` subjects: the other one, and how many subjects."""
    pairs = {pair: where for pair, where in prints.pairs().items() if twins.get(pair[1]) != pair[0]}
    most = max(LARGEST_COMPARED_VALUES // prints.n, 2)
    chosen = set(columns_of(list(pairs))[:most])
    pairs = {pair: where for pair, where in pairs.items() if chosen.issuperset(pair)}
    if not pairs:
        return {}
    at = columns_of(list(pairs))
    values = dict(zip(at, np.concatenate([Z[:, at] for Z in _rows(table, order)]).T))
    return {found.b: (found.a, found.people) for found in prints.compare(pairs, values, level)}


def _count(ordered: Array, counts: list[dict[float, int] | None]) -> None:
    """Add a block's levels to the columns that still have few. `ordered` is the block with every column sorted."""
    changes = (ordered[1:] != ordered[:-1]).sum(axis=0) + 1
    for j, known in enumerate(counts):
        if known is None:
            continue
        if changes[j] > MOST_LEVELS:
            counts[j] = None
            continue
        values, times = np.unique(ordered[:, j], return_counts=True)
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
