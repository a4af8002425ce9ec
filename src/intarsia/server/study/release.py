"""What of the results a site is told, and how exactly.

*Rounded.* Effects under a flat prior and the coefficients of a ridge or a background are sums over a response's rows to the last
of 16 digits, and a site that knows the weights of so exact sums finds whole numbers behind them by lattice reduction: any yes/no
response of a small cohort, however common. An eighth to a quarter of the standard deviation is as much as the sum is worth:
rounding adds at most a two hundredth to the variance, and leaves five bits of room in each.

*Coarser.* Posterior means, ends of intervals, effects under a flat prior and what is added to predict are all functions of the
same sums over the residuals, one for each column of the site. A feature elsewhere that few people have can be worked out from
enough of them. So a site gets its strongest effects in full, as many as each other site lets it; of the others it gets what a
coarse step leaves, and one width for all: enough to see that nothing is there, too little to add up.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from intarsia.wire.coefficients import Coefficients

if TYPE_CHECKING:
    from intarsia.server.assess.stacking import Weighed

Array = NDArray[np.float64]

PER_SD = 4  # steps per standard deviation, at least; at most twice as many, for steps are powers of two
STEPS_SD = 4.0  # a coarse step is so many standard deviations of an effect under a flat prior, or a little more
TENTHS = 10.0  # probabilities of the others are told in tenths, towards "nothing there"


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


def in_full(message: Coefficients, most: int) -> NDArray[np.bool_]:
    """Which features are told in full: the selected ones first, then by evidence. Covariates are told in full and count."""
    room = max(most - len(message.covariates), 0)
    order = np.lexsort((-np.abs(message.mean).max(axis=1, initial=0.0), -message.pip, ~message.selected))
    full = np.zeros(len(message.features), dtype=bool)
    full[order[:room]] = True
    return full


def coarser(message: Coefficients, most: int) -> Coefficients:
    """The same results with at most so many columns' effects in full."""
    if len(message.features) + len(message.covariates) <= most:
        return message
    rest = ~in_full(message, most)
    flat_sd = message.sd if message.unshrunk_sd is None else message.unshrunk_sd
    widest = np.nanmax(np.where(rest[:, None], np.maximum(flat_sd, message.sd), np.nan), axis=0)  # by response
    step = STEPS_SD * np.exp2(np.ceil(np.log2(np.maximum(widest, 1e-12))))
    mean = np.where(rest[:, None], np.round(message.mean / step) * step + 0.0, message.mean)
    reach = np.where(rest[:, None], np.maximum(message.upper - mean, mean - message.lower), 0.0).max(axis=0)
    reach = np.exp2(np.ceil(np.log2(np.maximum(reach, 1e-12)) * 4) / 4)

    def one(values: Array, for_the_rest: Array | float) -> Array:
        return np.where(rest if values.ndim == 1 else rest[:, None], for_the_rest, values)

    changed: dict[str, Any] = {
        "mean": mean, "sd": one(message.sd, widest), "lower": one(message.lower, mean - reach),
        "upper": one(message.upper, mean + reach), "to_predict": one(message.to_predict, 0.0),
        "pip": one(message.pip, np.floor(message.pip * TENTHS) / TENTHS),
        "lfsr": one(message.lfsr, np.minimum(np.ceil(message.lfsr * TENTHS) / TENTHS, 1.0)),
        "local_fdr": one(message.local_fdr, np.minimum(np.ceil(message.local_fdr * TENTHS) / TENTHS, 1.0)),
    }  # fmt: skip
    if message.unshrunk is not None and message.unshrunk_sd is not None:
        rounded = np.round(message.unshrunk / step) * step + 0.0
        changed |= {"unshrunk": one(message.unshrunk, rounded), "unshrunk_sd": one(message.unshrunk_sd, widest + step / 4)}
    if message.draws is not None:
        changed["draws"] = np.where(rest[:, None], mean.astype(message.draws.dtype), message.draws)
    return replace(message, **changed)
