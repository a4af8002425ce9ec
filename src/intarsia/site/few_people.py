"""Do few people carry a direction that somebody without the key finds in what this site is about to send?

The attacks of `intarsia.privacy.leverage` run on the very sketch, or on the exact products of a Gram study, and what they find is
held against the site's own rows and the real Φ: a direction counts where one person carries most of its length, or fewer people
than the smallest allowed level nearly all. Nothing is taken for granted of what the columns look like. Columns that are measured
in few people only, as many columns as people, hold a direction for each of these people whoever looks (`panels`).

What is too large to be looked at is said, in words for the card.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from intarsia.privacy.blind import Shape, affordable_starts, blind_phi, danger, matched
from intarsia.privacy.facts import Carried, Facts, Looked
from intarsia.privacy.leverage import Directions, attacks
from intarsia.privacy.policy import Policy
from intarsia.site.data.columns import Profile
from intarsia.site.data.row_blocks import block_rows
from intarsia.site.data.table import Table
from intarsia.site.near_duplicates import DOMINATED_SHARE, ONE_PERSONS_SHARE
from intarsia.site.panels import LARGEST_VALUES, Narrow
from intarsia.site.self_attack import BLIND_SECONDS, LARGEST_PHI, real_phi
from intarsia.site.sketch.partial import Design

Array = NDArray[np.float64]
ONE, WARN_ONE = ONE_PERSONS_SHARE, 0.5  # of a direction's squared length: cosines .84 and .71 with the person's column of Φ
ONE_OF_PRODUCTS = 0.75  # the same where products leave: every direction is there, and of so many one may be ordinary
FEW = DOMINATED_SHARE  # by fewer people than the smallest allowed level
LARGEST_SEARCH = 4_000_000_000  # multiplications that one look may cost: a few seconds
STEPS = 12  # columns that are taken off another, at most
AT_ONCE = 1000  # directions that are held against the rows together
LARGEST_CHECK = 20_000_000_000  # multiplications for all of that
_MORE = 0.1  # of the length may be a person's in the sketch beyond the share in the rows: of so many some are near a φ by chance
LARGEST_PRODUCTS = 40_000_000_000  # multiplications for the products of a Gram study's columns: it makes them anyway
LOUD_SD, LOUD_COLUMNS, LOUD_PEOPLE = 3.0, 8, 20  # so far out, in so many columns; so many people are looked at
ALIKE, FEWEST_ALIKE = 0.7, 20  # columns that correlate so in the sketch have a difference worth a look, where so many do
WORTH_TRYING = 0.1  # of the danger at which the blind attack begins to work: below, it finds nothing
_NAMED = 0.1  # of the largest weight: columns with a smaller one are not named
ROWS_PER_PERSON = 10  # of the sketch: of more people than one per so many rows a direction says little of each
_FEW = 20  # of so many subjects at most one counts as few


@dataclass
class Rows:
    """The cohort's rows in some columns, block by block, standardised; constant columns are nought."""

    table: Table
    order: NDArray[np.int64] | None
    at: NDArray[np.int64]
    mean: Array
    sd: Array

    @classmethod
    def of(cls, table: Table, order: NDArray[np.int64] | None, found: Profile, names: Collection[str]) -> "Rows":
        at = np.array([j for j, label in enumerate(table.labels) if label in names], dtype=np.int64)
        return cls(table, order, at, found.mean[at], found.sd[at])

    @property
    def labels(self) -> list[str]:
        every = self.table.labels  # made anew each time it is asked for
        return [every[j] for j in self.at]

    @property
    def n(self) -> int:
        return self.table.n if self.order is None else len(self.order)

    def blocks(self) -> Iterator[Array]:
        scale = np.where(self.sd > 0, 1 / np.where(self.sd > 0, self.sd, 1.0), 0.0)
        every = len(self.at) == len(self.table.labels)
        # A look holds several arrays of a block's size at once.
        for block in self.table.whole_blocks(block_rows(4 * len(self.table.labels)), self.order):
            yield ((block if every else block[:, self.at]) - self.mean) * scale

    def columns(self, some: NDArray[np.int64]) -> Array:
        """A few whole columns."""
        return np.concatenate([Z[:, some] for Z in self.blocks()])


def look(
    table: Table, order: NDArray[np.int64] | None, found: Profile, facts: Facts, phi: Design | None, policy: Policy
) -> Looked:  # fmt: skip
    """All of it for one table: `phi` is the Φ that will be used, None where the products themselves leave. Columns that have a
    fault of their own are left to the rules for these."""
    level = policy.min_level
    rows = Rows.of(table, order, found, _faultless(facts, policy))
    if len(rows.at) < 2:
        return Looked()
    unseen = [f"{found.not_compared:,} pairs of columns that look alike"] if found.not_compared else []
    panels, missed = _panels(rows, found, level, None if phi is None else phi.m)
    unseen += missed
    norm2, loud = _loud(rows)
    S, Phi, missed = _what_leaves(rows, phi, facts.precision)
    if S is None:
        return Looked(tuple(panels), (*unseen, *missed))
    farthest = _farthest(rows, norm2)
    shape, blind = (None, None) if Phi is None else _of_differences(rows, S, Phi, facts)
    found_in = search(rows, S, Phi, level, loud)
    loudest = loudness(float(norm2.max()), S, rows.n, facts.m if phi is not None else rows.n, max(facts.columns, len(rows.at)))
    return Looked((*panels, *summed_up(found_in.carried)), (*unseen, *missed, *found_in.unseen), loudest, shape, blind, farthest)


def _faultless(facts: Facts, policy: Policy) -> set[str]:
    level = policy.min_level
    fine = {
        c.name for c in facts.own_columns
        if c.distinct > 1 and c.rarest >= level and c.dominance <= policy.max_dominance
        and c.carried_by is None and c.duplicate_of is None
        and (c.near_duplicate_of is None or (c.near_people or 0) >= level)
    }  # fmt: skip
    return fine - set(facts.combined[:1])


def _what_leaves(rows: Rows, phi: Design | None, precision: str) -> tuple[Array | None, Array | None, list[str]]:
    """The sketch and Φ; or what stands for the products, where these leave or Φ is too large to be held here."""
    n, c = rows.n, len(rows.at)
    if phi is not None and phi.m * n <= LARGEST_PHI:
        Phi = real_phi(phi)
        return sketched(rows, Phi, precision), Phi, []
    if n * c * c <= LARGEST_PRODUCTS and c < n:
        return factor_of_products(rows), None, []
    return None, None, [f"the {c:,} columns of {n:,} subjects (too large to be attacked here)"]


def _panels(rows: Rows, found: Profile, level: int, m: int | None) -> tuple[list[Carried], list[str]]:
    narrow = np.flatnonzero(np.isin(rows.at, found.narrow))
    most = max(LARGEST_VALUES // rows.n, 2)
    if len(narrow) < 2:
        return [], []
    names = rows.labels
    chosen = narrow[:most]
    some = Narrow(rows.columns(chosen), tuple(names[j] for j in chosen))
    missed = [f"{len(narrow) - most:,} columns that few subjects may carry together"] if len(narrow) > most else []
    return list(some.exposed(level, m)), missed


def _loud(rows: Rows) -> tuple[Array, list[NDArray[np.int64]]]:
    """Everybody's mean square over the columns, and the columns in which the loudest people are far out."""
    norm2, counts, at = [], [], 0
    kept: list[tuple[int, int, NDArray[np.int64]]] = []
    for Z in rows.blocks():
        norm2.append(np.square(Z).mean(axis=1))
        far = np.abs(Z) > LOUD_SD
        counts = far.sum(axis=1)
        for i in np.argsort(-counts, kind="stable")[:LOUD_PEOPLE]:
            if counts[i] >= LOUD_COLUMNS:
                kept.append((int(counts[i]), at + int(i), np.flatnonzero(far[i])))
        at += len(Z)
    kept.sort(key=lambda one: -one[0])
    return np.concatenate(norm2), [columns for _, _, columns in kept[:LOUD_PEOPLE]]


def _of_differences(rows: Rows, S: Array, Phi: Array, facts: Facts) -> tuple[Shape | None, int | None]:
    """The shape of what is left of each column when the one most like it is taken off, and what the blind attack finds there."""
    m, c = S.shape
    if m * c * c > LARGEST_SEARCH:
        return None, None
    length = np.linalg.norm(S, axis=0)
    unit = (S / np.where(length > 0, length, 1.0)).astype(np.float32)
    other, times = np.zeros(c, dtype=np.int64), np.zeros(c)
    for some in np.array_split(np.arange(c), -(-c // 512)):
        inner = unit.T @ unit[:, some]
        inner[some, np.arange(len(some))] = 0.0
        other[some] = np.abs(inner).argmax(axis=0)
        times[some] = inner[other[some], np.arange(len(some))]
    alike = np.flatnonzero(np.abs(times) > ALIKE)
    if len(alike) < FEWEST_ALIKE:
        return None, None
    other, times = other[alike], times[alike] * length[alike] / length[other[alike]]
    sums = np.zeros((4, len(alike)))
    for Z in rows.blocks():
        left = Z[:, alike] - Z[:, other] * times
        square = left * left
        sums += [left.sum(axis=0), square.sum(axis=0), (square * left).sum(axis=0), (square * square).sum(axis=0)]
    variance = np.maximum(sums[1] / rows.n, 1e-300)
    shape = Shape.of(sums[2] / rows.n / variance**1.5, sums[3] / rows.n / variance**2 - 3, rows.n)
    # The site's own: those of other sites count in the figure, the attack is tried on what is here.
    if danger(shape.scaled(max(facts.columns, c)), rows.n, m) <= WORTH_TRYING:
        return shape, None
    differences = S[:, alike] - S[:, other] * times
    starts = affordable_starts(m, len(alike), BLIND_SECONDS / 4)
    return shape, int(matched(blind_phi(differences, np.random.default_rng(0), starts), Phi).size)


def _farthest(rows: Rows, norm2: Array) -> float:
    """The largest squared distance of a person's row from the mean, per column: in units of the others' covariance where there
    are people enough to know it, else of the columns' variances."""
    n, c = rows.n, len(rows.at)
    if n < 3 * c or n * c * c > LARGEST_SEARCH:
        return float(norm2.max())
    factor = np.linalg.cholesky(_products(rows) + 1e-9 * n * np.eye(c))
    most = max(float(np.square(np.linalg.solve(factor, Z.T)).sum(axis=0).max()) for Z in rows.blocks())
    return float((n - 1) * most / max(1 - most, 1 / n) / c)


def loudness(loudest: float, S: Array, n: int, m: int, columns: int) -> float:
    """The squared cosine of the loudest person's column of Φ with the longest direction of all columns, if these are like the own
    ones: the spiked model's, with the spike (L² − 1)·m/n of a person whose columns have the mean square L², and as many
    independent columns as the correlations leave."""
    rows, c = S.shape
    length = np.linalg.norm(S, axis=0)
    unit = S / np.where(length > 0, length, 1.0)
    together = float(np.square(unit @ unit.T if rows < c else unit.T @ unit).sum())
    own = min(c * c / max(together - (c * c / rows if rows < n and rows == m else 0.0), c), c)
    ratio, spike = m / (own * columns / c), (loudest - 1) * m / n
    return max(0.0, (1 - ratio / spike**2) / (1 + ratio / spike)) if spike > 0 else 0.0


@dataclass
class Search:
    """What was found, and what was not looked at."""

    carried: list[Carried] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


def sketched(rows: Rows, Phi: Array, precision: str) -> Array:
    """What would leave."""
    S, at = np.zeros((len(Phi), len(rows.at))), 0
    for Z in rows.blocks():
        S += Phi[:, at : at + len(Z)] @ Z
        at += len(Z)
    return S.astype(precision).astype(float)


def _products(rows: Rows) -> Array:
    products = np.zeros((len(rows.at), len(rows.at)))
    for Z in rows.blocks():
        products += Z.T @ Z
    return products


def factor_of_products(rows: Rows) -> Array:
    """S with SᵀS the products of the standardised columns: to somebody who has the products it is what a sketch would be."""
    size2, vectors = np.linalg.eigh(_products(rows))
    return np.asarray(np.sqrt(np.maximum(size2, 0.0))[:, None] * vectors.T)


def search(rows: Rows, S: Array, Phi: Array | None, level: int, loud: Sequence[NDArray[np.int64]] = ()) -> Search:
    """Try every attack on S; Φ is None where the products themselves leave, and every direction then tells what it holds."""
    m, c = S.shape
    out, labels = Search(), rows.labels
    steps = min(STEPS, LARGEST_SEARCH // max(m * c * c, 1))
    if steps < STEPS:
        out.unseen.append(
            f"sums of more than {steps} of the {c:,} columns whose names have nothing in common" if steps
            else f"pairs and sums among the {c:,} columns but for those with common names"
        )  # fmt: skip
    tried = _Tried(rows, Phi, min(level - 1, rows.n // _FEW, m if Phi is None else m // ROWS_PER_PERSON))
    for some in attacks(S, labels, steps, loud):
        tried.add(some)
    out.carried = tried.carried()
    if tried.left_out:
        out.unseen.append(f"{tried.left_out:,} of the directions that were found, for want of time")
    return out


class _Tried:
    """Directions that may be few people's, held against the rows, many together."""

    def __init__(self, rows: Rows, Phi: Array | None, few: int):
        self.rows, self.few, self.left_out = rows, max(few, 1), 0
        self.one = ONE_OF_PRODUCTS if Phi is None else ONE
        self.phi = None if Phi is None else np.asarray(Phi / np.linalg.norm(Phi, axis=0))
        self.most = LARGEST_CHECK // max(rows.n * len(rows.at), 1)
        self.kept: list[tuple[str, Array, Array | None]] = []
        self.found: list[Carried] = []

    def add(self, some: Directions) -> None:
        good, count = np.arange(some.found.shape[1]), some.found.shape[1]
        if self.phi is not None and count:
            near = np.square(some.found.T @ self.phi)
            likely = near.max(axis=1) >= WARN_ONE
            if near.shape[1] > self.few > 1:
                together = np.partition(near, -self.few, axis=1)[:, -self.few :].sum(axis=1) > FEW - 0.05
                likely |= together if some.short is None else together & some.short
            good = np.flatnonzero(likely)
        fit = good[: max(self.most, 0)]
        self.most, self.left_out = self.most - len(fit), self.left_out + len(good) - len(fit)
        self.kept += [(some.how, some.weights(k), None if self.phi is None else some.found[:, k]) for k in fit]
        if len(self.kept) >= AT_ONCE:
            self._check()

    def carried(self) -> list[Carried]:
        self._check()
        return self.found

    def _check(self) -> None:
        if not self.kept:
            return
        W = np.column_stack([weights for _, weights, _ in self.kept])
        total, largest, who, at = np.zeros(W.shape[1]), np.zeros((0, W.shape[1])), np.zeros((0, W.shape[1]), dtype=int), 0
        for Z in self.rows.blocks():
            squares = np.square(Z @ W)
            total += squares.sum(axis=0)
            some = min(self.few, len(squares))
            top = np.argpartition(squares, len(squares) - some, axis=0)[len(squares) - some :]
            largest = np.concatenate([largest, np.take_along_axis(squares, top, axis=0)])
            who, at = np.concatenate([who, top + at]), at + len(Z)
            best = np.argsort(-largest, axis=0, kind="stable")[: self.few]
            largest, who = np.take_along_axis(largest, best, axis=0), np.take_along_axis(who, best, axis=0)
        shares = largest / np.where(total > 0, total, 1.0)
        judged = (self._judged(k, W[:, k], shares[:, k], who[:, k]) for k in range(W.shape[1]))
        self.found += [one for one in judged if one is not None]
        self.kept.clear()

    def _judged(self, k: int, weights: Array, shares: Array, who: NDArray[np.int64]) -> Carried | None:
        how, _, direction = self.kept[k]
        one, person = float(shares[0]), int(who[0])
        if self.phi is not None:
            assert direction is not None
            near = float(np.square(direction @ self.phi[:, person]))
            one = min(near, one + _MORE)
        people, share = 1, one
        if one < self.one:
            together = np.cumsum(shares)
            enough = np.flatnonzero(together >= FEW)
            if len(enough) and self._near_all(direction, who[: enough[0] + 1]):
                people, share = int(enough[0]) + 1, float(together[enough[0]])
            elif one < WARN_ONE:
                return None
        size = np.abs(weights)
        named = [int(j) for j in np.argsort(-size, kind="stable") if size[j] >= _NAMED * size.max()]
        labels = self.rows.labels
        return Carried(how, tuple(labels[j] for j in named), people, share, people > 1 or share >= self.one, person)

    def _near_all(self, direction: Array | None, who: NDArray[np.int64]) -> bool:
        if self.phi is None or direction is None:
            return True
        basis = np.linalg.qr(self.phi[:, who])[0]
        return float(np.square(basis.T @ direction).sum()) >= ONE


def summed_up(carried: Sequence[Carried]) -> tuple[Carried, ...]:
    """Of each person (or group) the gravest direction, of as few columns as possible."""
    best: dict[tuple[int, int], Carried] = {}
    for one in sorted(carried, key=lambda one: (not one.refuse, len(one.columns), -one.share)):
        best.setdefault((one.person, min(one.people, 2)), one)
    alone = {one.person for one in best.values() if one.people == 1 and one.refuse}
    return tuple(one for one in best.values() if one.people == 1 or one.person not in alone)
