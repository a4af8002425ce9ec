"""R̂, effective sample sizes and Monte Carlo errors for every coefficient in batch, and a verdict in words.

The definitions are those of Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), as ArviZ computes them one array at a
time: chains split in halves, ranks turned into normal scores, Geyer's initial monotone sequence. Here all entries go
through one pass in chunks, compiled (`compiled_diagnostics`) or vectorised, so that 50,000 coefficients take seconds and
the memory stays bounded, also when the draws lie on disk.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from intarsia.errors import InputError
from intarsia.server.results import compiled_diagnostics
from intarsia.server.results.summaries import Summaries
from intarsia.server.results.verdict import Diagnosis

Array = NDArray[np.float64]

_SLAB = 32_000_000  # numbers read at once (256 MB)
_CHUNK = 500_000  # numbers worked on at once: a few MB, so that the passes stay in cache
_FLAT = 1e-15  # a spread below this counts as constant


def diagnose(draws: Any, *, workers: int | None = None) -> Diagnosis:
    """Diagnose draws of C: an array (chain, draw, P, Q), a `Draws` or a `Posterior`.

    With a `Draws` or a `Posterior`, the noise variances are diagnosed too, as `.noise`. `workers` are threads. Where the
    draws of some features alone were kept, the others have the diagnostics that were summed up on the way, and no error of
    their sd (NaN).
    """
    workers = workers or min(8, os.cpu_count() or 1)
    noise = None
    sigma2, known = getattr(draws, "sigma2", None), getattr(draws, "summaries", None)
    C = np.asanyarray(getattr(draws, "C", draws))
    if C.ndim != 4:
        raise InputError(f"The draws have {C.ndim} dimensions; expected 4: (chain, draw, feature, response).")
    if sigma2 is not None:
        noise = Diagnosis(**entries(np.asarray(sigma2), workers=1), chains=C.shape[0], draws=C.shape[1])
    found = entries(C, workers=workers)
    return Diagnosis(
        **(found if known is None else _filled(found, known)),
        chains=C.shape[0],
        draws=C.shape[1],
        features=getattr(draws, "features", None),
        responses=getattr(draws, "responses", None),
        noise=noise,
    )


def _filled(found: dict[str, Any], known: Summaries) -> dict[str, Any]:
    """Diagnostics of all features from those whose draws are kept and from the summaries of the others."""
    with np.errstate(invalid="ignore", divide="ignore"):
        rough = {"mcse": known.sd / np.sqrt(known.ess_bulk), "mcse_sd": np.full(known.sd.shape, np.nan)}
    out = {}
    for name, exact in found.items():
        out[name] = np.array(rough[name] if name in rough else getattr(known, name))
        out[name][known.features] = exact
    return out


def entries(draws: NDArray[Any], *, workers: int = 1) -> dict[str, Any]:
    """Every diagnostic of draws (chain, draw, …), each an array of the trailing shape."""
    chains, n = draws.shape[:2]
    shape = draws.shape[2:]
    flat = draws.reshape(chains, n, -1)
    E = flat.shape[2]
    if n < 4:
        raise InputError(f"{n} draws per chain; at least 4 are needed to diagnose anything.")
    names = ("rhat", "rhat_folded", "ess_bulk", "ess_tail", "mcse", "mcse_sd")
    out = {name: np.empty(E) for name in names}
    step = max(1, _CHUNK // (chains * n))
    slab = max(step, _SLAB // (chains * n) // step * step)

    def work(values: Array, start: int) -> None:
        for name, result in _chunk(values).items():
            out[name][start : start + len(values)] = result

    with ThreadPoolExecutor(max(1, workers)) as pool:
        for begin in range(0, E, slab):
            block = flat[:, :, begin : begin + slab]
            jobs = []
            for start in range(0, block.shape[2], step):
                part = np.ascontiguousarray(block[:, :, start : start + step].transpose(2, 0, 1), dtype=np.float64)
                jobs.append(pool.submit(work, part, begin + start))
                if len(jobs) > 2 * workers:  # bounded: do not transpose far ahead of the work
                    jobs.pop(0).result()
            for job in jobs:
                job.result()
    return {name: values.reshape(shape) for name, values in out.items()}


def _chunk(x: Array) -> dict[str, Array]:
    """The diagnostics of x (entry, chain, draw)."""
    n = x.shape[2]
    bad = np.asarray(~np.isfinite(x).all(axis=(1, 2)))
    if bad.any():
        x = np.where(bad[:, None, None], 0.0, x)
    half = n // 2
    halves = np.concatenate([x[:, :, :half], x[:, :, n - half :]], axis=1)
    result = _compiled(x, halves)
    for values in result.values():
        values[bad] = np.nan
    return result


def _compiled(x: Array, halves: Array) -> dict[str, Array]:
    """`_vectorised` by the compiled loops, entry by entry."""
    E, chains, n = x.shape
    order = np.argsort(halves.reshape(E, -1), axis=1)
    out = np.empty((E, 9))
    compiled_diagnostics.chunk(halves, order, x, _blom(order.shape[1]), _FLAT, out)
    scores, folded, bulk, low, high, plain, squares, variance, kurtosis = out.T.copy()
    total = chains * n
    with np.errstate(invalid="ignore", divide="ignore"):
        result = {
            "rhat": scores, "rhat_folded": folded, "ess_bulk": bulk, "ess_tail": np.minimum(low, high),
            "mcse": np.sqrt(variance * total / (total - 1) / plain), "mcse_sd": np.sqrt(kurtosis / squares / variance / 4),
        }  # fmt: skip
    long = (out[:, 2:7] < 0).any(axis=1)  # sequences that the loops leave to the transform
    if long.any():
        for name, values in _vectorised(x[long], halves[long]).items():
            result[name][long] = values
    return result


def _vectorised(x: Array, halves: Array) -> dict[str, Array]:
    E, chains, n = x.shape
    half = n // 2
    z, folded, ordered = _scores(halves)
    if n % 2:  # the split leaves the middle draw out, the quantiles do not
        ordered = np.sort(x.reshape(E, -1), axis=1)
    tails = []
    for probability in (0.05, 0.95):
        below = halves <= _quantile(ordered, probability)[:, None, None]
        tails.append(ess(below.astype(np.float64)))
    centred = x - x.mean(axis=(1, 2), keepdims=True)
    square = centred**2
    variance = square.mean(axis=(1, 2))
    total = chains * n
    result = {
        "rhat": rhat(z),
        "rhat_folded": rhat(folded),
        "ess_bulk": ess(z),
        "ess_tail": np.minimum(*tails),
        "mcse": np.sqrt(variance * total / (total - 1) / ess(halves)),
    }
    square_halves = np.concatenate([square[:, :, :half], square[:, :, n - half :]], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        kurtosis = (square**2).mean(axis=(1, 2)) - variance**2
        result["mcse_sd"] = np.sqrt(kurtosis / ess(square_halves) / variance / 4)
    return result


def rhat(x: Array) -> Array:
    """R̂ of x (entry, chain, draw): √((B/W + n − 1)/n)."""
    n = x.shape[2]
    within = x.var(axis=2, ddof=1).mean(axis=1)
    between = n * x.mean(axis=2).var(axis=1, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt((between / within + n - 1) / n)


def ess(x: Array) -> Array:
    """Effective sample size of x (entry, chain, draw): Geyer's initial monotone sequence, autocorrelation pooled.

    Most sequences end after a few lags, so the transform is first padded for a quarter of the lags only; the entries
    whose sequence is longer are done again with all of them.
    """
    n = x.shape[2]
    short = n // 4
    if n < 64:
        return _ess(x, n)[0]
    result, cut = _ess(x, short)
    if cut.any():
        result[cut] = _ess(x[cut], n)[0]
    return result


def _ess(x: Array, lags: int) -> tuple[Array, NDArray[np.bool_]]:
    """The effective sample sizes from the first lags, and for which entries these do not suffice."""
    E, chains, n = x.shape
    total = chains * n
    flat = x.max(axis=(1, 2)) - x.min(axis=(1, 2)) < _FLAT
    means = x.mean(axis=2, keepdims=True)
    size = fft.next_fast_len(n + lags, real=True)
    spectrum = fft.rfft(x - means, n=size, axis=2)
    # The mean over chains commutes with the inverse transform: one inverse per entry instead of one per chain.
    parts = spectrum.view(np.float64).reshape(E, chains, -1, 2)
    power = np.einsum("ecfk,ecfk->ef", parts, parts)
    acov = fft.irfft(power, n=size, axis=1)[:, :lags] / total
    within = acov[:, 0] * n / (n - 1.0)
    plus = acov[:, 0].copy()
    if chains > 1:
        plus += means[:, :, 0].var(axis=1, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = 1.0 - (within[:, None] - acov) / plus[:, None]
    rho[:, 0] = 1.0
    last = max(0, -(-(min(lags, n) - 2) // 2) - 1)  # the last pair of lags that is looked at
    even = rho[:, 0 : 2 * last + 1 : 2]
    pairs = even + rho[:, 1 : 2 * last + 2 : 2]
    ended = ~(pairs > 0)
    done = ended.any(axis=1)
    stop = np.where(done, ended.argmax(axis=1), last)
    rows = np.arange(E)
    used = np.arange(last + 1) < stop[:, None]
    monotone = np.where(used, np.minimum.accumulate(pairs, axis=1), 0.0).sum(axis=1)
    # The first lag of the pair that ends the sequence counts once: when it, or its pair, is not negative.
    tip = even[rows, stop]
    tip = np.where((tip > 0) | (pairs[rows, stop] >= 0), tip, 0.0)
    tau = np.maximum(-1.0 + 2.0 * monotone + tip, 1.0 / np.log10(total))
    result = np.where(flat, float(total), np.where(np.isnan(rho[:, 1]), np.nan, total / tau))
    return result, ~(done | flat)


def _scores(x: Array) -> tuple[Array, Array, Array]:
    """Normal scores of the ranks of x (entry, chain, draw) and of the distances from the median; and x in order."""
    E = len(x)
    flat = x.reshape(E, -1)
    N = flat.shape[1]
    row = np.arange(E)[:, None] * N
    order = np.argsort(flat, axis=1)
    order += row  # places in the whole chunk: one-dimensional gathers are several times faster
    ordered = flat.ravel()[order]
    median = (ordered[:, (N - 1) // 2] + ordered[:, N // 2]) / 2
    # Along the ordered values the distance from the median falls, then rises: two runs, merged in one stable pass.
    distance = np.abs(ordered - median[:, None])
    merge = np.argsort(distance, axis=1, kind="stable")
    merge += row
    z = np.empty(E * N)
    z[order] = _rank_scores(ordered)
    folded = np.empty(E * N)
    folded[order.ravel()[merge]] = _rank_scores(distance.ravel()[merge])
    return z.reshape(x.shape), folded.reshape(x.shape), ordered


def _rank_scores(ordered: Array) -> Array:
    """Normal scores of rows in order, ties sharing their average rank."""
    N = ordered.shape[1]
    table = _blom(N)
    scores = np.broadcast_to(table[2 : 2 * N + 1 : 2], ordered.shape)
    same = ordered[:, 1:] == ordered[:, :-1]
    if same.any():
        scores = scores.copy()
        # Of an even number of values the two nearest the median are equally far from it: the one common tie.
        scores[same[:, 0], :2] = table[3]
        tied = same[:, 1:].any(axis=1)
        if tied.any():
            scores[tied] = table[_twice_average_rank(same[tied])]
    return scores


def _twice_average_rank(same: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Twice the average rank of each place in ordered rows, where `same` says that a place equals the one before."""
    rows, N = same.shape[0], same.shape[1] + 1
    place = np.arange(N)
    edge = np.ones((rows, 1), dtype=bool)
    first = np.maximum.accumulate(np.where(np.hstack([edge, ~same]), place, 0), axis=1)
    final = np.where(np.hstack([~same, edge]), place, N - 1)
    final = np.minimum.accumulate(final[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(first + final + 2)


@lru_cache(maxsize=8)
def _blom(N: int) -> Array:
    """Normal scores of the ranks 0, ½, 1, …, N (Blom's offset 3/8); average ranks of ties are whole or half."""
    with np.errstate(invalid="ignore"):
        return np.asarray(special.ndtri((np.arange(2 * N + 1) / 2 - 0.375) / (N + 0.25)))


def _quantile(ordered: Array, probability: float) -> Array:
    """Type-7 quantile of rows in order."""
    N = ordered.shape[1]
    aleph = N * probability + (1 - probability)
    k = int(np.floor(np.clip(aleph, 1, N - 1)))
    gamma = float(np.clip(aleph - k, 0, 1))
    return (1 - gamma) * ordered[:, k - 1] + gamma * ordered[:, k]


@dataclass
class RunningMoments:
    """Count, mean and sum of squares so far of each chain's entries (Welford), for an R̂ while the chains still run."""

    count: Array
    mean: Array
    square: Array

    @classmethod
    def start(cls, chains: int, shape: tuple[int, ...]) -> "RunningMoments":
        return cls(np.zeros(chains), np.zeros((chains, *shape)), np.zeros((chains, *shape)))

    def add(self, chain: int, value: NDArray[Any]) -> None:
        """Take in one draw of one chain."""
        self.count[chain] += 1
        step = value - self.mean[chain]
        self.mean[chain] += step / self.count[chain]
        self.square[chain] += step * (value - self.mean[chain])

    def rhat(self) -> Array:
        """Plain R̂ of every entry so far."""
        return rhat_from_moments(self.count, self.mean, self.square)


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


__all__ = ["Diagnosis", "RunningMoments", "diagnose", "entries", "ess", "rhat", "rhat_from_moments"]
