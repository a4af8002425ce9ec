"""What is known of every coefficient of a run too large for all its draws: see `docs/mixing.md`, "Memory".

Such a run keeps the draws of some features, some whole draws of C, and of every coefficient the moments over all draws, how many
draws are above zero, and R̂ and effective sample sizes, all summed up while the chains ran.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PER_FEATURE = ("mean", "sd", "positive", "rhat", "rhat_folded", "ess_bulk", "ess_tail")  # each (P, Q)


@dataclass(frozen=True)
class Summaries:
    """`features` (K,) are the places of those whose draws are kept, in order. `mean`, `sd`, `positive` (draws above zero),
    `rhat`, `rhat_folded`, `ess_bulk` and `ess_tail` are (P, Q), over all draws. `whole` (chain, t, P, Q) are the draws number
    `at` (t,) of each chain, in single precision, shifted together so that their mean is that of all draws.
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

    def others(self) -> NDArray[np.int64]:
        """Places of the features without draws of their own."""
        return np.setdiff1d(np.arange(len(self.mean)), self.features)

    def quantiles(self, places: NDArray[Any], q: list[float]) -> Array:
        """Quantiles (q, place, Q) of coefficients from the whole draws, brought to the mean and sd of all draws.

        The whole draws say how the posterior is shaped, all draws where it lies and how wide it is.
        """
        x = np.asarray(self.whole[:, :, places], dtype=np.float64).reshape(-1, len(places), self.mean.shape[1])
        centre, spread = x.mean(axis=0), x.std(axis=0)
        shape = (np.quantile(x, q, axis=0) - centre) / np.where(spread > 0, spread, 1.0)
        return np.asarray(self.mean[places] + self.sd[places] * shape)

    def scaled(self, factor: Array) -> "Summaries":
        """Of coefficients multiplied by `factor` (P, Q) > 0."""
        whole = np.asarray(self.whole * factor.astype(self.whole.dtype))
        return replace(self, mean=self.mean * factor, sd=self.sd * factor, whole=whole)

    def spread_out(self, features: NDArray[Any], responses: NDArray[Any], draws: int) -> "Summaries":
        """Among more columns, of which those with True are these; the coefficients of the others are zero in every draw.

        `draws` is how many there are in all chains together.
        """
        p, q = np.flatnonzero(features), np.flatnonzero(responses)
        constant = {"positive": draws // 2, "rhat": np.nan, "rhat_folded": np.nan, "ess_bulk": draws, "ess_tail": draws}
        out: dict[str, Any] = {}
        for name in PER_FEATURE:
            old = getattr(self, name)
            out[name] = np.full((len(features), len(responses)), constant.get(name, 0), dtype=old.dtype)
            out[name][np.ix_(p, q)] = old
        whole = np.zeros((*self.whole.shape[:2], len(features), len(responses)), dtype=self.whole.dtype)
        whole[:, :, p[:, None], q] = self.whole
        return Summaries(features=p[self.features], whole=whole, at=self.at, **out)


ARRAYS = tuple(field.name for field in fields(Summaries))
