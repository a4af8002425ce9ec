"""Results rounded to what their standard deviation allows before they are told to sites.

Effects under a flat prior and the coefficients of a ridge or a background are sums over a response's rows to the last of 16
digits, and a site that knows the weights of so exact sums finds whole numbers behind them by lattice reduction: any yes/no
response of a small cohort, however common. An eighth to a quarter of the standard deviation is as much as the sum is worth:
rounding adds at most a two hundredth to the variance, and leaves five bits of room in each.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from intarsia.server.assess.stacking import Weighed

Array = NDArray[np.float64]
PER_SD = 4  # steps per standard deviation, at least; at most twice as many, for steps are powers of two


def rounded(values: ArrayLike, sd: ArrayLike) -> Array:
    """Values rounded to the largest power of two that is at most a quarter of their standard deviation; where that is nothing,
    or not a number, they stay as they are."""
    value, spread = np.broadcast_arrays(np.asarray(values, dtype=np.float64), np.asarray(sd, dtype=np.float64))
    good = np.isfinite(spread) & (spread > 0)
    step = np.exp2(np.floor(np.log2(np.where(good, spread, 1.0) / PER_SD)))
    return np.where(good, np.round(value / step) * step + 0.0, value)  # not −0


def rounded_weighed(weighed: "Weighed | None") -> "Weighed | None":
    """The same of what is added to predict: for each response by the coefficients' own root mean square."""
    if weighed is None:
        return None
    return replace(weighed, coefficients=_by_size(weighed.coefficients), effects=_by_size(weighed.effects))


def _by_size(values: Array) -> Array:
    return rounded(values, np.sqrt(np.mean(np.square(values), axis=0))) if len(values) else values
