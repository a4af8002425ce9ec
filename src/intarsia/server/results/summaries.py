"""What is known of every coefficient of a run too large for all its draws: see docs/performance.md, "Draws that would not fit".

Such a run keeps the draws of some features, some whole draws of C, and of every coefficient the moments over all draws, how many
draws are above zero, and R̂ and effective sample sizes, all summed up while the chains ran.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from intarsia.server.results.mapped import rows_of

Array = NDArray[np.float64]

CLEAR = 2.0  # sd between mean and zero from which a coefficient's posterior is taken to be shaped like a normal
SHAPES = 2_000  # features whose whole draws say how the posteriors near zero are shaped
SHAPE_WEIGHT = 200.0  # whole draws that this shape is worth
PER_FEATURE = ("mean", "sd", "positive", "rhat", "rhat_folded", "ess_bulk", "ess_tail")  # each (P, Q)


@dataclass(frozen=True)
class Summaries:
    """`features` (K,) are the places of those whose draws are kept, in order. `mean`, `sd`, `positive` (draws above zero),
    `rhat`, `rhat_folded`, `ess_bulk` and `ess_tail` are (P, Q), over all draws. `whole` (chain, t, P, Q) are the draws number
    `at` (t,) of each chain, in single precision, shifted together so that their mean is that of all draws; `total` counts the
    draws of all chains.
    """

    features: NDArray[np.int64]
    mean: Array
    sd: Array
    positive: NDArray[Any]
    rhat: Array
    rhat_folded: Array
    ess_bulk: Array
    ess_tail: Array
    whole: NDArray[Any]
    at: NDArray[np.int64]
    total: int

    def others(self) -> NDArray[np.int64]:
        """Places of the features without draws of their own."""
        return np.setdiff1d(np.arange(len(self.mean)), self.features)

    def whole_of(self, places: NDArray[Any]) -> NDArray[Any]:
        """The whole draws (chain, t, place, Q) of these features."""
        chains, draws, _P, Q = self.whole.shape
        return rows_of(self.whole, list(np.ndindex(chains, draws)), places).reshape(chains, draws, len(places), Q)

    def quantiles(self, places: NDArray[Any], q: list[float]) -> Array:
        """Quantiles (q, place, Q) of coefficients without draws of their own.

        Those of the whole draws, and mean + sd · z, weighed: z is the quantile of all such coefficients' whole draws together
        once each has been brought to mean 0 and sd 1, or the normal one where zero lies more than CLEAR sd off. The more whole
        draws, the more weight they have.
        """
        mean, sd = self.mean[places], self.sd[places]
        x = self.whole_of(places).reshape(-1, mean.size)
        own = ordered_quantiles(np.sort(x.T, axis=1), q).reshape(len(q), *mean.shape)
        normal = stats.norm.ppf(q)[:, None, None]
        z = np.where(np.abs(mean) > CLEAR * sd, normal, ordered_quantiles(self._standardised[None], q)[:, :, None])
        weight = len(x) / (len(x) + SHAPE_WEIGHT * (1 - len(x) / self.total))
        return np.asarray(weight * own + (1 - weight) * (mean + sd * z))

    @cached_property
    def _standardised(self) -> Array:
        """Whole draws of coefficients near zero, each with mean 0 and sd 1, all together in order."""
        others = self.others()
        some = others[np.unique(np.linspace(0, len(others) - 1, min(len(others), SHAPES)).astype(int))]
        mean, sd = self.mean[some], self.sd[some]
        near = (sd > 0) & (np.abs(mean) <= CLEAR * sd)
        z = (self.whole_of(some)[:, :, near].astype(np.float64) - mean[near]) / sd[near]
        return np.sort(z, axis=None) if z.size else stats.norm.ppf((np.arange(999) + 0.5) / 999)

    def scaled(self, factor: Array) -> "Summaries":
        """Of coefficients multiplied by `factor` (P, Q) > 0."""
        whole = np.asarray(self.whole * factor.astype(self.whole.dtype))
        return replace(self, mean=self.mean * factor, sd=self.sd * factor, whole=whole)

    def spread_out(self, features: NDArray[Any], responses: NDArray[Any]) -> "Summaries":
        """Among more columns, of which those with True are these; the coefficients of the others are zero in every draw."""
        p, q = np.flatnonzero(features), np.flatnonzero(responses)
        still = {
            "positive": self.total // 2,
            "rhat": np.nan,
            "rhat_folded": np.nan,
            "ess_bulk": self.total,
            "ess_tail": self.total,
        }
        out: dict[str, Any] = {}
        for name in PER_FEATURE:
            old = getattr(self, name)
            out[name] = np.full((len(features), len(responses)), still.get(name, 0), dtype=old.dtype)
            out[name][np.ix_(p, q)] = old
        whole = np.zeros((*self.whole.shape[:2], len(features), len(responses)), dtype=self.whole.dtype)
        whole[:, :, p[:, None], q] = self.whole
        return replace(self, features=p[self.features], whole=whole, **out)


def ordered_quantiles(x: NDArray[Any], q: list[float]) -> Array:
    """Quantiles (q, entry) of x (entry, draw), each entry in order: as `np.quantile` has them, but quick for many entries."""
    place = np.asarray(q) * (x.shape[1] - 1)
    below = np.clip(place.astype(int), 0, max(0, x.shape[1] - 2))
    low, high = (x[:, at].T.astype(np.float64) for at in (below, np.minimum(below + 1, x.shape[1] - 1)))
    return np.asarray(low + (place - below)[:, None] * (high - low))


ARRAYS = tuple(field.name for field in fields(Summaries))
