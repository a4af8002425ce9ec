"""Draws of C as one array (chain, draw, P, Q): sums, quantiles and products, a block of features at a time.

Among many features X is the largest thing in memory. A product for each draw would read all of it each time; here it is read
once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]

CHUNK = 8_000_000  # numbers in memory at once
NUMBERS = 2**24  # of X, and of the draws' coefficients, that are worked on at once


@dataclass(frozen=True)
class DenseEffects:
    """Draws `C` (chain, draw, P, Q). It has the methods of `SparseEffects`."""

    C: NDArray[Any]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        chains, draws, P, Q = self.C.shape
        return chains, draws, P, Q

    @property
    def number(self) -> int:
        return self.C.shape[0] * self.C.shape[1]

    def finite(self) -> bool:
        return all(np.isfinite(x).all() for _part, x in self._chunks())

    def dense(self, places: Any = None) -> NDArray[Any]:
        return self.C if places is None else np.asarray(self.C[:, :, places])

    def times(self, X: NDArray[Any], at: Index | None = None) -> Array:
        """X C (draw, m, Q) of all draws, or of those number `at`."""
        at = np.arange(self.number) if at is None else at
        m, Q = len(X), self.C.shape[3]
        out = np.zeros((m, len(at) * Q))
        P, step = self.C.shape[2], max(1, NUMBERS // max(1, m + len(at) * Q))
        for start in range(0, P, step):
            features = np.arange(start, min(P, start + step))
            c = np.ascontiguousarray(self.some(features, at).swapaxes(0, 1))
            out += X[:, start : start + step] @ c.reshape(len(features), -1)
        return out.reshape(m, len(at), Q).swapaxes(0, 1)

    def some(self, places: Index, at: Index) -> Array:
        """The coefficients (draw, place, Q) of features at some places in the draws number `at`."""
        chain, draw = np.unravel_index(at, self.C.shape[:2])
        return np.asarray(self.C[chain[:, None], draw[:, None], places], dtype=np.float64)

    def mean(self) -> Array:
        return self._each(lambda x: x.mean(axis=0))

    def sd(self) -> Array:
        return self._each(lambda x: x.std(axis=0, ddof=1 if len(x) > 1 else 0))

    def signs(self) -> tuple[Array, Array]:
        """In how many draws each coefficient (P, Q) is above zero, and below."""
        return self._each(lambda x: (x > 0).sum(axis=0)), self._each(lambda x: (x < 0).sum(axis=0))

    def quantile(self, q: Sequence[float], places: Any = None) -> Array:
        """Quantiles (q, place, Q)."""
        places = np.arange(self.C.shape[2]) if places is None else np.asarray(places)
        out = np.empty((len(q), len(places), self.C.shape[3]))
        for part in self._parts(len(places)):
            out[:, part] = np.quantile(self.C[:, :, places[part]].reshape(self.number, -1, out.shape[2]), list(q), axis=0)
        return out

    def scaled(self, factor: Array) -> NDArray[Any]:
        """Of coefficients multiplied by `factor` (P, Q): in place where that is possible, for draws may be large."""
        C = self.C if self.C.flags.writeable else np.array(self.C)
        C *= factor
        return C

    def spread_out(self, features: NDArray[np.bool_], responses: NDArray[np.bool_]) -> Array:
        """Among more columns, of which those with True are these; the coefficients of the others are zero."""
        out = np.zeros((*self.C.shape[:2], len(features), len(responses)))
        out[:, :, np.flatnonzero(features)[:, None], np.flatnonzero(responses)] = self.C
        return out

    def singular_values(self) -> Array:
        """Of every draw (chain, draw, min(P, Q)), largest first; NaN for a draw that is not finite."""
        chains, draws, P, Q = self.C.shape
        values = np.empty((chains, draws, min(P, Q)))
        step = max(1, CHUNK // max(1, P * Q))
        for chain in range(chains):
            for start in range(0, draws, step):
                x = np.asarray(self.C[chain, start : start + step], dtype=np.float64)
                bad = np.asarray(~np.isfinite(x).all(axis=(1, 2)))
                x = np.where(bad[:, None, None], 0.0, x) if bad.any() else x
                found = np.linalg.svd(np.linalg.qr(x, mode="r"), compute_uv=False)
                found[bad] = np.nan
                values[chain, start : start + step] = found
        return values

    def _parts(self, features: int) -> Iterator[slice]:
        step = max(1, CHUNK // max(1, self.number * self.C.shape[3]))
        return (slice(start, min(features, start + step)) for start in range(0, features, step))

    def _chunks(self) -> Iterator[tuple[slice, Array]]:
        """Features in chunks, as (draw, feature, response)."""
        for part in self._parts(self.C.shape[2]):
            yield part, np.asarray(self.C[:, :, part]).reshape(self.number, -1, self.C.shape[3])

    def _each(self, function: Any) -> Array:
        found = [function(x) for _part, x in self._chunks()]
        return np.concatenate(found).astype(np.float64) if found else np.zeros(self.C.shape[2:])
