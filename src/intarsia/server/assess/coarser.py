"""A site's results with no more sums in full than the other sites' features allow.

Posterior means, ends of intervals, effects under a flat prior and what is added to predict are all functions of the same sums
over the residuals, one for each column of the site. A feature elsewhere that few people have can be worked out from enough of
them. So a site gets its strongest effects in full, as many as each other site lets it; of the others it gets what a coarse step
leaves, and one width for all: enough to see that nothing is there, too little to add up.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.wire.coefficients import Coefficients

Array = NDArray[np.float64]
STEPS_SD = 4.0  # a step is so many standard deviations of an effect under a flat prior, or a little more
TENTHS = 10.0  # probabilities of the others are told in tenths, towards "nothing there"


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
