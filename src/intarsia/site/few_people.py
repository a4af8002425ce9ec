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
SOME, WARN_SOME = 3, 0.7  # so many people together: their columns of Φ come mixed, and a second such direction unmixes them
FEW = DOMINATED_SHARE  # by fewer people than the smallest allowed level
LARGEST_SEARCH = 4_000_000_000  # multiplications that one look may cost: a few seconds
STEPS = 12  # columns that are taken off another, at most
AT_ONCE = 1000  # directions that are held against the rows together
LARGEST_INNER = 20_000_000  # inner products of directions with columns of Φ that are held at once
LARGEST_CHECK = 20_000_000_000  # multiplications for all of that
_MORE = 0.1  # of the length may be a person's in the sketch beyond the share in the rows: of so many some are near a φ by chance
LARGEST_PRODUCTS = 40_000_000_000  # multiplications for the products of a Gram study's columns: it makes them anyway
LOUD_SD, LOUD_COLUMNS, LOUD_PEOPLE = 3.0, 8, 20  # so far out, in so many columns; so many people are looked at
ALIKE, FEWEST_ALIKE = 0.7, 20  # columns that correlate so in the sketch have a difference worth a look, where so many do
WORTH_TRYING = 0.1  # of the danger at which the blind attack begins to work: below, it finds nothing
_NAMED = 0.1  # of the largest weight: columns with a smaller one are not named
ROWS_PER_PERSON = 10  # of the sketch: of more people than one per so many rows a direction says little of each
ROWS_TO_WARN = 20  # the same where a smaller share counts
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
    """Directions that may be few people's, held against Φ and then against the rows, many together."""

    def __init__(self, rows: Rows, Phi: Array | None, few: int):
        self.rows, self.few, self.left_out = rows, max(few, 1), 0
        self.some = min(SOME, self.few, SOME if Phi is None else len(Phi) // ROWS_TO_WARN)
        self.labels = rows.labels
        self.one = ONE_OF_PRODUCTS if Phi is None else ONE
        self.phi = None if Phi is None else np.asarray(Phi / np.linalg.norm(Phi, axis=0))
        self.most = LARGEST_CHECK // max(rows.n * len(rows.at), 1)
        self.together = max(min(AT_ONCE, LARGEST_INNER // rows.n), 1)
        self.waiting: list[Directions] = []
        self.kept: list[tuple[str, Array, Array]] = []
        self.found: list[Carried] = []

    def add(self, some: Directions) -> None:
        for begin in range(0, some.found.shape[1], self.together):
            self.waiting.append(_part(some, begin, begin + self.together))
            if sum(one.found.shape[1] for one in self.waiting) >= self.together:
                self._sift()

    def carried(self) -> list[Carried]:
        self._sift()
        self._check()
        return self.found

    def _sift(self) -> None:
        """Keep those near to some people's columns of Φ; without one, all."""
        if not self.waiting:
            return
        found = np.hstack([some.found for some in self.waiting])
        likely = np.ones(found.shape[1], dtype=bool)
        if self.phi is not None:
            near = np.square(found.T @ self.phi)
            nearest = near.max(axis=1)
            likely = nearest >= WARN_ONE
            short = np.concatenate([_short(some) for some in self.waiting])
            for few, least in ((self.some, WARN_SOME - 0.05), (self.few, FEW - 0.05)):
                if not 1 < few < near.shape[1]:
                    continue
                # So few people cannot carry that much where none carries a share of it.
                rest = np.flatnonzero(~likely & short & (few * nearest > least))
                likely[rest] = np.partition(near[rest], -few, axis=1)[:, -few:].sum(axis=1) > least
        at = 0
        for some in self.waiting:
            good = np.flatnonzero(likely[at : at + some.found.shape[1]])
            at += some.found.shape[1]
            fit = good[: max(self.most, 0)]
            self.most, self.left_out = self.most - len(fit), self.left_out + len(good) - len(fit)
            if len(fit):
                self.kept.append((some.how, some.weights(fit), some.found[:, fit]))
        self.waiting.clear()
        if sum(weights.shape[1] for _, weights, _ in self.kept) >= AT_ONCE:
            self._check()

    def _check(self) -> None:
        if not self.kept:
            return
        W = np.hstack([weights for _, weights, _ in self.kept])
        total, largest, who, at = np.zeros(W.shape[1]), np.zeros((W.shape[1], 0)), np.zeros((W.shape[1], 0), dtype=int), 0
        for Z in self.rows.blocks():
            squares = np.square(W.T @ Z.T)
            total += squares.sum(axis=1)
            some = min(self.few, squares.shape[1])
            top = np.argpartition(squares, squares.shape[1] - some, axis=1)[:, squares.shape[1] - some :]
            largest = np.hstack([largest, np.take_along_axis(squares, top, axis=1)])
            who, at = np.hstack([who, top + at]), at + len(Z)
            best = np.argsort(-largest, axis=1, kind="stable")[:, : self.few]
            largest, who = np.take_along_axis(largest, best, axis=1), np.take_along_axis(who, best, axis=1)
        shares = largest / np.where(total > 0, total, 1.0)[:, None]
        ways = [how for how, weights, _ in self.kept for _ in range(weights.shape[1])]
        found = np.hstack([directions for _, _, directions in self.kept])
        one = shares[:, 0]
        if self.phi is not None:
            near = np.square(np.einsum("mk,mk->k", found, self.phi[:, who[:, 0]]))
            one = np.minimum(near, one + _MORE)
        some = shares[:, : self.some].sum(axis=1) >= (WARN_SOME if self.some > 1 else np.inf)
        for k in np.flatnonzero((one >= WARN_ONE) | (shares.sum(axis=1) >= FEW) | some):
            judged = self._judged(ways[k], W[:, k], found[:, k], float(one[k]), shares[k], who[k])
            self.found += [] if judged is None else [judged]
        self.kept.clear()

    def _judged(
        self, how: str, weights: Array, direction: Array, one: float, shares: Array, who: NDArray[np.int64]
    ) -> Carried | None:
        people, share, person = 1, one, int(who[0])
        if one < self.one:
            together = np.cumsum(shares)
            enough = np.flatnonzero(together >= FEW)
            if len(enough) and self._near_all(direction, who[: enough[0] + 1]):
                people, share = int(enough[0]) + 1, float(together[enough[0]])
            elif one < WARN_ONE:
                few = int(np.searchsorted(together, WARN_SOME)) + 1
                if not 1 < few <= self.some or not self._near_all(direction, who[:few], WARN_SOME - _MORE):
                    return None
                return self._carried(how, weights, few, float(together[few - 1]), False, person)
        return self._carried(how, weights, people, share, people > 1 or share >= self.one, person)

    def _carried(self, how: str, weights: Array, people: int, share: float, refuse: bool, person: int) -> Carried:
        size = np.abs(weights)
        named = np.argsort(-size, kind="stable")[: (size >= _NAMED * size.max()).sum()]
        return Carried(how, tuple(self.labels[j] for j in named), people, share, refuse, person)

    def _near_all(self, direction: Array, who: NDArray[np.int64], least: float = ONE) -> bool:
        if self.phi is None:
            return True
        basis = np.linalg.qr(self.phi[:, who])[0]
        return float(np.square(basis.T @ direction).sum()) >= least


def _part(some: Directions, begin: int, end: int) -> Directions:
    if end - begin >= some.found.shape[1]:
        return some
    return Directions(
        some.how, some.found[:, begin:end], lambda at: some.weights(at + begin),
        None if some.short is None else some.short[begin:end],
    )  # fmt: skip


def _short(some: Directions) -> NDArray[np.bool_]:
    return np.ones(some.found.shape[1], dtype=bool) if some.short is None else some.short


def summed_up(carried: Sequence[Carried]) -> tuple[Carried, ...]:
    """Of each person (or group) the gravest direction, of as few columns as possible."""
    best: dict[tuple[int, int], Carried] = {}
    for one in sorted(carried, key=lambda one: (not one.refuse, len(one.columns), -one.share)):
        best.setdefault((one.person, min(one.people, 2)), one)
    alone = {one.person for one in best.values() if one.people == 1 and one.refuse}
    return tuple(one for one in best.values() if one.people == 1 or one.person not in alone)
