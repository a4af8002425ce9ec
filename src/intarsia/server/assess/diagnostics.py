"""R̂, effective sample sizes and Monte Carlo errors of many entries at once.

The definitions are those of Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), as ArviZ computes them one array at a time:
chains split in halves, ranks turned into normal scores, Geyer's initial monotone sequence. Here many entries are worked on
together, and the loops over draws are compiled (Numba). Autocovariances are summed lag by lag instead of by a Fourier
transform: Geyer's sequence mostly ends after a few.
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from intarsia.compilation import compiled
from intarsia.errors import InputError

Array = NDArray[np.float64]

NAMES = ("rhat", "rhat_folded", "ess_bulk", "ess_tail", "mcse", "mcse_sd")
TAILS = (0.05, 0.95)
_CHUNK = 500_000  # numbers worked on at once: a few MB, so that the passes stay in cache
_FLAT = 1e-15  # a spread below this counts as constant
_SUM = {"reassoc", "contract", "nsz"}  # what a sum needs to be vectorised; NaN and infinity keep their meaning


def entries(draws: NDArray[Any], *, workers: int | None = None) -> dict[str, Any]:
    """Every diagnostic of draws (chain, draw, …), each an array of the trailing shape. `workers` are threads."""
    chains, n = draws.shape[:2]
    flat = draws.reshape(chains, n, -1)
    if n < 4:
        raise InputError(f"{n} draws per chain; at least 4 are needed to diagnose anything.")
    out = {name: np.empty(flat.shape[2]) for name in NAMES}
    step = max(1, _CHUNK // (chains * n))

    def work(start: int) -> None:
        part = np.ascontiguousarray(flat[:, :, start : start + step].transpose(2, 0, 1), dtype=np.float64)
        for name, result in _of_entries(part).items():
            out[name][start : start + len(part)] = result

    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(work, range(0, flat.shape[2], step)))
    return {name: values.reshape(draws.shape[2:]) for name, values in out.items()}


def _of_entries(x: Array) -> dict[str, Array]:
    """The diagnostics of x (entry, chain, draw)."""
    bad = np.asarray(~np.isfinite(x).all(axis=(1, 2)))
    x = np.where(bad[:, None, None], 0.0, x) if bad.any() else x
    n, total = x.shape[2], x[0].size
    halves = np.concatenate([x[:, :, : n // 2], x[:, :, n - n // 2 :]], axis=1)
    scores, median = _normal_scores(halves), np.median(halves, axis=(1, 2), keepdims=True)
    low, high = np.quantile(x.reshape(len(x), -1), TAILS, axis=1)[..., None, None]
    mean = x.mean(axis=(1, 2), keepdims=True)
    square = np.square(x - mean)
    variance, fourth = square.mean(axis=(1, 2)), np.square(square).mean(axis=(1, 2))
    found = {
        "rhat": rhat(scores),
        "rhat_folded": rhat(_normal_scores(np.abs(halves - median))),
        "ess_bulk": ess(scores),
        "ess_tail": np.minimum(ess(halves <= low), ess(halves <= high)),
    }
    with np.errstate(invalid="ignore", divide="ignore"):
        found["mcse"] = np.sqrt(variance * total / (total - 1) / ess(halves))
        found["mcse_sd"] = np.sqrt((fourth - variance**2) / ess(np.square(halves - mean)) / variance / 4)
    return {name: np.where(bad, np.nan, values) for name, values in found.items()}


def ess(x: NDArray[Any]) -> Array:
    """Effective sample size of each entry of x (entry, chain, draw), neither split nor turned into ranks."""
    out = np.empty(len(x))
    _ess(np.ascontiguousarray(x, dtype=np.float64), out)
    return out


def rhat(x: Array) -> Array:
    """R̂ of each entry of x (entry, chain, draw), neither split nor turned into ranks."""
    mean = x.mean(axis=2)
    return rhat_from_moments(np.full(x.shape[1], x.shape[2]), mean.T, np.square(x - mean[..., None]).sum(axis=2).T)


def rhat_from_moments(count: Array, mean: Array, square: Array) -> Array:
    """R̂ of every entry from each chain's count, mean and sum of squared deviations; NaN before two draws in two chains.

    Not split and not rank-normalised: cheap enough for a progress bar, not for the verdict.
    """
    if len(count) < 2 or count.min() < 2:
        return np.full(mean.shape[1:], np.nan)
    n = count.min()
    within = (square / (count - 1).reshape(-1, *(1,) * (mean.ndim - 1))).mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt((n * mean.var(axis=0, ddof=1) / within + n - 1) / n)


def _normal_scores(x: Array) -> Array:
    """Ranks within each entry as normal scores (Blom's offset 3/8); ties share their average rank, which is whole or half."""
    flat, out = x.reshape(len(x), -1), np.empty(x.shape)
    N = flat.shape[1]
    of_rank = special.ndtri(np.maximum(np.arange(2 * N + 1) / 2 - 0.375, 0.0) / (N + 0.25))  # of the ranks 0, ½, 1, …, N
    _scores(flat, np.argsort(flat, axis=1), of_rank, out.reshape(len(x), -1))
    return out


@compiled(nogil=True, error_model="numpy")
def _scores(x: Any, order: Any, of_rank: Any, out: Any) -> None:
    """Scores of each entry of x (entry, value), given its argsort and the score of each rank."""
    entries, N = x.shape
    for e in range(entries):
        start = 0
        while start < N:
            last = start
            while last + 1 < N and x[e, order[e, last + 1]] == x[e, order[e, start]]:
                last += 1
            for i in range(start, last + 1):
                out[e, order[e, i]] = of_rank[start + last + 2]
            start = last + 1


@compiled(nogil=True, error_model="numpy", fastmath=_SUM)
def _covariance(x: Any, lag: int) -> float:
    """Σ x_i x_{i+lag} within the chains, over the number of all draws; x has chain means of zero."""
    chains, n = x.shape
    total = 0.0
    for c in range(chains):
        part = 0.0
        for i in range(n - lag):
            part += x[c, i] * x[c, i + lag]
        total += part
    return total / (chains * n)


@compiled(nogil=True, error_model="numpy", fastmath=_SUM)
def _ess(x: Any, out: Any) -> None:
    """Geyer's initial monotone sequence for each entry of x (entry, chain, draw), autocorrelation pooled over its chains."""
    entries, chains, n = x.shape
    means, centred = np.empty(chains), np.empty((chains, n))
    for e in range(entries):
        low, high, between = np.inf, -np.inf, 0.0
        for c in range(chains):
            total = 0.0
            for i in range(n):
                total += x[e, c, i]
                low, high = min(low, x[e, c, i]), max(high, x[e, c, i])
            means[c] = total / n
            for i in range(n):
                centred[c, i] = x[e, c, i] - means[c]
        centre = means.sum() / chains
        for c in range(chains):
            between += (means[c] - centre) ** 2 / max(1, chains - 1)
        out[e] = chains * n if high - low < _FLAT else chains * n / _autocorrelation(centred, between)


@compiled(nogil=True, error_model="numpy", fastmath=_SUM)
def _autocorrelation(centred: Any, between: float) -> float:
    """The sum of the autocorrelations at all lags, before and after, that Geyer's sequence lets in.

    The first lag of the pair that ends the sequence counts once: when it, or its pair, is not negative.
    """
    chains, n = centred.shape
    first = _covariance(centred, 0)
    within, plus = first * n / (n - 1.0), first + between
    last = max(0, -(-(n - 2) // 2) - 1)
    monotone, smallest = 0.0, np.inf
    for k in range(last + 1):
        even = 1.0 if k == 0 else 1.0 - (within - _covariance(centred, 2 * k)) / plus
        pair = even + 1.0 - (within - _covariance(centred, 2 * k + 1)) / plus
        if k == 0 and np.isnan(pair):
            return np.nan
        if k == last or not pair > 0:
            tip = even if even > 0 or pair >= 0 else 0.0
            return max(-1.0 + 2.0 * monotone + tip, 1.0 / math.log10(chains * n))
        smallest = min(smallest, pair)
        monotone += smallest
    return np.nan
