"""Draws of C of which most rows are exactly zero: kept as lists of the features that are in, with their effects.

A draw of a million features takes kilobytes. Nothing here is as large as draws times features: sums run over the lists, and
draws of single features are made dense when somebody asks for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError

Array = NDArray[np.float64]
Index = NDArray[np.int64]

MOST_BYTES = 2**32  # of draws made dense
CHUNK = 8_000_000  # numbers in memory at once
LEAST_PIP = 0.01  # of a feature, to have a trace


def parts(length: int, numbers: int, most: int) -> Iterator[slice]:
    """The places up to `length` in blocks, so that at most so many numbers are worked on at once; each place has `numbers`."""
    step = max(1, most // max(1, numbers))
    return (slice(start, min(length, start + step)) for start in range(0, length, step))


def among(values: NDArray[Any], *where: NDArray[np.bool_], other: float = 0.0) -> Array:
    """The values among more places along the last axes, of which those with True are theirs; `other` at the rest."""
    out = np.full((*values.shape[: values.ndim - len(where)], *map(len, where)), other)
    at: Any = (..., *np.ix_(*where))
    out[at] = values
    return out


def sums(features: Index, values: NDArray[Any], P: int) -> Array:
    """The sums (P, Q) of the values (N, Q) of entries over each of P features."""
    columns = [np.bincount(features, weights=each, minlength=P) for each in values.T]
    return np.stack(columns, axis=1) if columns else np.zeros((P, 0))


@dataclass(frozen=True)
class SparseEffects:
    """Draws of C, `shape` (chain, draw, P, Q). The entries of draw number chain · draws + draw are those from `offsets` of that
    number to the next: `features` (N,) their places, ascending within a draw, and `effects` (N, Q), exactly zero where a
    feature that is in does not act on a response.
    """

    shape: tuple[int, int, int, int]
    offsets: Index
    features: Index
    effects: Array

    def __post_init__(self) -> None:
        chains, draws, P, Q = self.shape
        N = len(self.features)
        if self.offsets.shape != (chains * draws + 1,) or self.offsets[0] != 0 or self.offsets[-1] != N:
            raise InputError(
                f"The offsets have shape {self.offsets.shape}; expected {(chains * draws + 1,)}, from 0 to the {N} entries."
            )
        if (np.diff(self.offsets) < 0).any() or self.effects.shape != (N, Q):
            raise InputError(f"The effects have shape {self.effects.shape}; expected {(N, Q)}, with offsets that never fall.")
        step = np.diff(self.features)
        starts = self.offsets[1:-1]
        starts = starts[(starts > 0) & (starts < N)]
        step[starts - 1] = 1  # from one draw to the next
        if N and (self.features.min() < 0 or self.features.max() >= P or (step <= 0).any()):
            raise InputError(f"The features of a draw must ascend and lie between 0 and {P - 1}.")

    @property
    def number(self) -> int:
        """Draws of all chains."""
        return len(self.offsets) - 1

    @cached_property
    def counts(self) -> Index:
        """In how many draws each feature is in (P,)."""
        return np.bincount(self.features, minlength=self.shape[2])

    @cached_property
    def _by_feature(self) -> tuple[Index, Index]:
        """The entries in the order of their features, and where each feature's begin (P + 1,)."""
        return np.argsort(self.features, kind="stable"), np.concatenate([[0], np.cumsum(self.counts)])

    def finite(self) -> bool:
        return bool(np.isfinite(self.effects).all())

    def dense(self, places: Any = None) -> Array:
        """Draws (chain, draw, place, Q) of the features at some places, or of all."""
        chains, draws, P, Q = self.shape
        places = np.arange(P) if places is None else np.asarray(places, dtype=np.int64)
        each = 8 * self.number * Q  # bytes of one feature
        if each * len(places) > MOST_BYTES:
            raise InputError(
                f"The draws of {len(places):,} features take {each * len(places) / 1e9:,.0f} GB dense, more than "
                f"{MOST_BYTES / 1e9:,.0f} GB. Ask for at most {MOST_BYTES // each:,} features, by their places or names."
            )
        order, starts = self._by_feature
        here = np.flatnonzero(self.counts[places])
        own = [order[starts[p] : starts[p + 1]] for p in places[here]]
        entries = np.concatenate(own) if own else np.empty(0, dtype=np.int64)
        out = np.zeros((self.number, len(places), Q))
        out[np.searchsorted(self.offsets, entries, side="right") - 1, np.repeat(here, self.counts[places[here]])] = self.effects[
            entries
        ]
        return out.reshape(chains, draws, len(places), Q)

    def some(self, places: Index, at: Index) -> Array:
        """The coefficients (draw, place, Q) of features at some places, which ascend, in the draws number `at`."""
        out = np.zeros((len(at), len(places), self.shape[3]))
        for row, number in enumerate(at if len(places) else ()):
            part = slice(self.offsets[number], self.offsets[number + 1])
            column = np.minimum(np.searchsorted(places, self.features[part]), len(places) - 1)
            here = places[column] == self.features[part]
            out[row, column[here]] = self.effects[part][here]
        return out

    def included(self, places: Any) -> NDArray[np.bool_]:
        """Whether each of these features is in (draw, place)."""
        return np.asarray(self.dense(places).any(axis=3).reshape(self.number, -1))

    def times(self, X: NDArray[Any], at: Index | None = None) -> Array:
        """X C (draw, m, Q) of all draws, or of those number `at`."""
        at = np.arange(self.number) if at is None else at
        out = np.zeros((len(at), len(X), self.shape[3]))
        used = np.flatnonzero(self.counts)
        columns = np.asarray(X[:, used].T, dtype=np.float64, order="C")
        place = np.searchsorted(used, self.features)
        for row, number in enumerate(at):
            part = slice(self.offsets[number], self.offsets[number + 1])
            out[row] = columns[place[part]].T @ self.effects[part]
        return out

    def mean(self) -> Array:
        return sums(self.features, self.effects, self.shape[2]) / self.number

    def sd(self) -> Array:
        mean, n = self.mean(), self.number
        square = sums(self.features, np.square(self.effects), self.shape[2]) - n * np.square(mean)
        return np.asarray(np.sqrt(np.maximum(square, 0.0) / max(1, n - 1)))

    def signs(self) -> tuple[Array, Array]:
        """In how many draws each coefficient (P, Q) is above zero, and below."""
        above, below = (sums(self.features, side, self.shape[2]) for side in (self.effects > 0, self.effects < 0))
        return above, below

    def quantile(self, q: Sequence[float], places: Any = None) -> Array:
        """Quantiles (q, place, Q). Where a feature is in too seldom for one to be other than zero, nothing is sorted."""
        places = np.arange(self.shape[2]) if places is None else np.asarray(places, dtype=np.int64)
        out, last = np.zeros((len(q), len(places), self.shape[3])), self.number - 1
        needed = min((min(int(a * last) + 1, self.number - int(np.ceil(a * last))) for a in q), default=0)
        often = np.flatnonzero(self.counts[places] >= needed)
        for part in (often[one] for one in parts(len(often), self.number * self.shape[3], CHUNK)):
            x = self.dense(places[part]).reshape(self.number, len(part), -1)
            out[:, part] = np.quantile(x, list(q), axis=0)
        return out

    def scaled(self, factor: Array) -> "SparseEffects":
        """Of coefficients multiplied by `factor` (P, Q)."""
        return replace(self, effects=self.effects * factor[self.features])

    def spread_out(self, features: NDArray[np.bool_], responses: NDArray[np.bool_]) -> "SparseEffects":
        """Among more columns, of which those with True are these; the coefficients of the others are zero."""
        shape = (*self.shape[:2], len(features), len(responses))
        return SparseEffects(shape, self.offsets, np.flatnonzero(features)[self.features], among(self.effects, responses))

    def singular_values(self) -> Array:
        """Of every draw (chain, draw, min(P, Q)), largest first."""
        chains, draws, P, Q = self.shape
        out = np.zeros((self.number, min(P, Q)))
        for number in range(self.number):
            part = self.effects[self.offsets[number] : self.offsets[number + 1]]
            if len(part):
                found = np.linalg.svd(part, compute_uv=False) if np.isfinite(part).all() else np.full(min(part.shape), np.nan)
                out[number, : len(found)] = found
        return out.reshape(chains, draws, -1)


@dataclass(frozen=True)
class Inclusion:
    """What is known of features that are in or out beyond the draws: probabilities averaged over sweeps in place of counts.

    `pip` (chain, P) is the mean of P(feature in | rest). In the form of `SparseEffects`, `features` lists those with more than a
    thousandth of it in a draw, `probability` (N,) has it and `expected` (N, Q) the mean of the effect given the rest.
    `pip_without` (P,) comes from a fit without background; None where none was needed. `acting` (N, Q) is the probability that a
    feature acts on each response, at prior odds of at most one (0 where it is out): what is said of single responses rests on it.
    """

    pip: Array
    offsets: Index
    features: Index
    probability: Array
    expected: Array
    pip_without: Array | None = None
    acting: Array | None = None

    @cached_property
    def effects(self) -> SparseEffects:
        """The expected effects as draws of their own: what chains are compared by."""
        chains, P = self.pip.shape
        shape = (chains, (len(self.offsets) - 1) // max(1, chains), P, self.expected.shape[1])
        return SparseEffects(shape, self.offsets, self.features, self.expected)

    def mean(self) -> Array:
        """The posterior inclusion probability of each feature (P,)."""
        return np.asarray(self.pip.mean(axis=0))

    def traced(self) -> Index:
        """Features with more than LEAST_PIP of it on average: the others have nothing to diagnose."""
        return np.flatnonzero(self.pip.mean(axis=0) > LEAST_PIP)

    def gap(self) -> float:
        """The largest difference of a probability between two chains."""
        return float(np.ptp(self.pip, axis=0).max(initial=0.0))

    def scaled(self, factor: Array) -> "Inclusion":
        return replace(self, expected=self.expected * factor[self.features])

    def spread_out(self, features: NDArray[np.bool_], responses: NDArray[np.bool_]) -> "Inclusion":
        return replace(
            self,
            pip=among(self.pip, features),
            features=np.flatnonzero(features)[self.features],
            expected=among(self.expected, responses),
            pip_without=None if self.pip_without is None else among(self.pip_without, features),
            acting=None if self.acting is None else among(self.acting, responses),
        )

    def acting_on(self) -> Array | None:
        """The probability (P, Q) that each feature acts on each response; None where only counts are known."""
        if self.acting is None:
            return None
        return sums(self.features, self.acting, self.pip.shape[1]) / (len(self.offsets) - 1)
