"""R̂, effective sample sizes and Monte Carlo errors of many entries at once.

The definitions are those of Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), as ArviZ computes them one array at a time:
chains split in halves, ranks turned into normal scores, Geyer's initial monotone sequence. Here all entries go through one
compiled pass, in chunks.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from intarsia.errors import InputError
from intarsia.server.assess import compiled_diagnostics

Array = NDArray[np.float64]

NAMES = ("rhat", "rhat_folded", "ess_bulk", "ess_tail", "mcse", "mcse_sd")
_CHUNK = 500_000  # numbers worked on at once: a few MB, so that the passes stay in cache
_FLAT = 1e-15  # a spread below this counts as constant


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
        for name, result in _chunk(part).items():
            out[name][start : start + len(part)] = result

    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(work, range(0, flat.shape[2], step)))
    return {name: values.reshape(draws.shape[2:]) for name, values in out.items()}


def _chunk(x: Array) -> dict[str, Array]:
    """The diagnostics of x (entry, chain, draw)."""
    E, chains, n = x.shape
    bad = np.asarray(~np.isfinite(x).all(axis=(1, 2)))
    x = np.where(bad[:, None, None], 0.0, x) if bad.any() else x
    half, total = n // 2, chains * n
    halves = np.concatenate([x[:, :, :half], x[:, :, n - half :]], axis=1)
    order = np.argsort(halves.reshape(E, -1), axis=1)
    out = np.empty((E, 9))
    compiled_diagnostics.chunk(halves, order, x, _blom(order.shape[1]), _FLAT, out)
    out[bad] = np.nan
    scores, folded, bulk, low, high, plain, squares, variance, kurtosis = out.T.copy()
    with np.errstate(invalid="ignore", divide="ignore"):
        mcse, mcse_sd = np.sqrt(variance * total / (total - 1) / plain), np.sqrt(kurtosis / squares / variance / 4)
    return dict(zip(NAMES, (scores, folded, bulk, np.minimum(low, high), mcse, mcse_sd), strict=True))


def ess(x: Array) -> Array:
    """Effective sample size of each entry of x (entry, chain, draw), neither split nor turned into ranks."""
    out = np.empty(len(x))
    compiled_diagnostics.effective(np.ascontiguousarray(x, dtype=np.float64), _FLAT, out)
    return out


@lru_cache(maxsize=8)
def _blom(N: int) -> Array:
    """Normal scores of the ranks 0, ½, 1, …, N (Blom's offset 3/8); average ranks of ties are whole or half."""
    with np.errstate(invalid="ignore"):
        return np.asarray(special.ndtri((np.arange(2 * N + 1) / 2 - 0.375) / (N + 0.25)))


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
