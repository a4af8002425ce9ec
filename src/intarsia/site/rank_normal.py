"""Normal scores in place of values: what takes a column's shape away, and with it the blind attack on Φ.

A value becomes the normal quantile of its rank among the cohort, ties at their middle: Φ⁻¹((rank − 3/8)/(n + 1/4)). Order is
kept, shape is not: a coefficient then is per standard deviation of the normal score, the same step from the median to the 84th
percentile for every column, and a difference of one unit of the original has no fixed meaning any more. Columns of few values
(indicators, genotypes, scales of up to a dozen steps) stay as they are, and so do responses and covariates.

The knots (values and their scores) stay at the site; new subjects are scored by them, between knots by a straight line and
beyond the ends by the last score.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError, MessageError
from intarsia.site.data.table import Table
from intarsia.wire.container import pack, unpack

Array = NDArray[np.float64]
FILE = "scores.secret"  # in the run folder
FEW_VALUES = 12
MOST_KNOTS = 1001  # values whose scores are kept; between them lie straight lines
_PASS_VALUES = 1 << 25  # values held at once while columns are ranked


@dataclass(frozen=True)
class Scores:
    """Per column (by label): the knots' values and their normal scores."""

    knots: dict[str, tuple[Array, Array]]

    def apply(self, Z: Array, labels: list[str] | tuple[str, ...]) -> Array:
        """The columns `labels` of Z with scores in place of values; a missing value stays missing."""
        out = np.array(Z, dtype=float)
        for j, label in enumerate(labels):
            if label in self.knots:
                out[:, j] = np.interp(Z[:, j], *self.knots[label])
        return out

    def to_bytes(self) -> bytes:
        names = list(self.knots)
        sizes = np.array([len(self.knots[name][0]) for name in names], np.int64)
        values = [self.knots[name][0] for name in names]
        scores = [self.knots[name][1] for name in names]
        empty = [np.empty(0)]
        arrays = {"sizes": sizes, "values": np.concatenate(values or empty), "scores": np.concatenate(scores or empty)}
        return pack("scores", {"names": names}, arrays)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Scores":
        header, arrays = unpack(raw, "scores")
        try:
            ends = np.cumsum(arrays["sizes"])[:-1]
            pairs = zip(np.split(arrays["values"], ends), np.split(arrays["scores"], ends), strict=True)
            return cls(dict(zip(header["names"], pairs, strict=bool(header["names"]))))
        except (KeyError, ValueError, TypeError):
            raise MessageError("The file of this site's normal scores is damaged. Sketch again to make it.") from None


def scores_of(table: Table, order: Any = None) -> Scores:
    """The scores of the cohort's continuous features; columns are ranked some at a time."""
    features = list(table.features)
    each = max(_PASS_VALUES // max(table.n, 1), 1)
    found: dict[str, tuple[Array, Array]] = {}
    for start in range(0, len(features), each):
        some = features[start : start + each]
        values = np.concatenate([parts[0][:, start : start + each] for parts in table.blocks(order=order)])
        for j, label in enumerate(some):
            knots = _knots(values[:, j])
            if knots is not None:
                found[label] = knots
    return Scores(found)


def _knots(column: Array) -> tuple[Array, Array] | None:
    from scipy.special import ndtri

    values, counts = np.unique(column, return_counts=True)
    if len(values) <= FEW_VALUES:
        return None
    n = int(counts.sum())
    rank = np.cumsum(counts) - (counts - 1) / 2
    scores = ndtri((rank - 0.375) / (n + 0.25))
    if len(values) > MOST_KNOTS:
        # Even steps of the score, not of the rank: the tails, where scores are far apart, keep every value.
        at = np.unique(np.searchsorted(scores, np.linspace(scores[0], scores[-1], MOST_KNOTS)).clip(0, len(values) - 1))
        values, scores = values[at], scores[at]
    return values, scores


def as_the_study_asks(table: Table, transform: str | None, order: Any = None) -> Table:
    """The table as it is sketched: with normal scores where the site's entry in study.toml asks for them."""
    return ScoredTable.of(table, order) if transform == "rank-normal" else table


class ScoredTable(Table):
    """A table whose continuous features come as normal scores of the cohort."""

    scores: Scores

    @classmethod
    def of(cls, table: Table, order: Any = None) -> "ScoredTable":
        from intarsia.site.sketch.sketch import ManyPieces

        if isinstance(table.source, ManyPieces):
            raise InputError(
                'transform = "rank-normal" needs the whole column in one place; this table lies in pieces elsewhere. '
                "Transform it there, or gather it first."
            )
        scored = cls.__new__(cls)
        scored.__dict__.update(table.__dict__)
        scored._moments = None
        scored.scores = scores_of(table, order)
        return scored

    def raw_blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        for Z in super().raw_blocks(rows):
            yield self.scores.apply(Z, self.labels)
