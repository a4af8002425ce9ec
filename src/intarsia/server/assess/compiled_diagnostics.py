"""The loops of `diagnostics` compiled (Numba): all diagnostics of an entry while its draws lie in the cache.

Autocovariances are summed lag by lag instead of by a Fourier transform: Geyer's sequence mostly ends after a few.
"""

import math
from typing import Any

import numpy as np

from intarsia.compilation import compiled

Array = Any

SUM = {"reassoc", "contract", "nsz"}  # what a sum needs to be vectorised; NaN and infinity keep their meaning


@compiled(nogil=True, error_model="numpy")
def _scores(ordered: Array, order: Array, table: Array, out: Array) -> None:
    """Normal scores of values in order, ties sharing their average rank, written where the values came from."""
    N, k = ordered.size, 0
    while k < N:
        last = k
        while last + 1 < N and ordered[last + 1] == ordered[k]:
            last += 1
        for i in range(k, last + 1):
            out[order[i]] = table[k + last + 2]
        k = last + 1


@compiled(nogil=True, error_model="numpy")
def _fold(ordered: Array, order: Array, distance: Array, merged: Array) -> None:
    """Distances from the median in order, and where they came from: the values to its left and right are merged."""
    N = ordered.size
    median = (ordered[(N - 1) // 2] + ordered[N // 2]) / 2
    left, right = (N - 1) // 2, (N - 1) // 2 + 1
    for k in range(N):
        down = abs(ordered[left] - median) if left >= 0 else np.inf
        up = abs(ordered[right] - median) if right < N else np.inf
        if right >= N or (left >= 0 and down <= up):
            distance[k], merged[k] = down, order[left]
            left -= 1
        else:
            distance[k], merged[k] = up, order[right]
            right += 1


@compiled(nogil=True, error_model="numpy", fastmath=SUM)
def _means(x: Array, means: Array) -> float:
    """The chains' means of x (chain, draw), and the variance between them."""
    chains, n = x.shape
    for c in range(chains):
        total = 0.0
        for i in range(n):
            total += x[c, i]
        means[c] = total / n
    centre, spread = means.sum() / chains, 0.0
    for c in range(chains):
        spread += (means[c] - centre) ** 2
    return spread / (chains - 1) if chains > 1 else 0.0


@compiled(nogil=True, error_model="numpy", fastmath=SUM)
def _rhat(x: Array, means: Array) -> float:
    """R̂ of x (chain, draw), √((B/W + n − 1)/n); `means` is room for its chains' means."""
    chains, n = x.shape
    between, within = n * _means(x, means), 0.0
    for c in range(chains):
        square = 0.0
        for i in range(n):
            square += (x[c, i] - means[c]) ** 2
        within += square / (n - 1) / chains
    return math.sqrt((between / within + n - 1) / n)


@compiled(nogil=True, error_model="numpy", fastmath=SUM)
def _covariance(x: Array, lag: int) -> float:
    """Σ x_i x_{i+lag} within the chains, over the number of all draws; x has chain means of zero."""
    chains, n = x.shape
    total = 0.0
    for c in range(chains):
        part = 0.0
        for i in range(n - lag):
            part += x[c, i] * x[c, i + lag]
        total += part
    return total / (chains * n)


@compiled(nogil=True, error_model="numpy", fastmath=SUM)
def _ess(x: Array, means: Array, work: Array, flat: float) -> float:
    """Effective sample size of x (chain, draw): Geyer's initial monotone sequence, autocorrelation pooled over chains.

    The first lag of the pair that ends the sequence counts once: when it, or its pair, is not negative. `means` and `work` are
    room to work in.
    """
    chains, n = x.shape
    total = chains * n
    low, high, spread = np.inf, -np.inf, _means(x, means)
    for c in range(chains):
        for i in range(n):
            low, high = min(low, x[c, i]), max(high, x[c, i])
            work[c, i] = x[c, i] - means[c]
    if high - low < flat:
        return float(total)
    first = _covariance(work, 0)
    within, plus = first * n / (n - 1.0), first + spread
    last = max(0, -(-(n - 2) // 2) - 1)
    monotone, smallest = 0.0, np.inf
    for k in range(last + 1):
        even = 1.0 if k == 0 else 1.0 - (within - _covariance(work, 2 * k)) / plus
        pair = even + 1.0 - (within - _covariance(work, 2 * k + 1)) / plus
        if k == 0 and np.isnan(pair):
            return np.nan
        if k == last or not pair > 0:
            tip = even if even > 0 or pair >= 0 else 0.0
            return total / max(-1.0 + 2.0 * monotone + tip, 1.0 / math.log10(total))
        smallest = min(smallest, pair)
        monotone += smallest
    return np.nan


@compiled(nogil=True, error_model="numpy")
def effective(x: Array, flat: float, out: Array) -> None:
    """Effective sample size of each entry of x (entry, chain, draw)."""
    means, work = np.empty(x.shape[1]), np.empty(x.shape[1:])
    for e in range(len(x)):
        out[e] = _ess(x[e], means, work, flat)


@compiled(nogil=True, error_model="numpy")
def _quantile(ordered: Array, probability: float) -> float:
    N = ordered.size
    aleph = N * probability + (1 - probability)
    k = math.floor(min(max(aleph, 1), N - 1))
    gamma = min(max(aleph - k, 0.0), 1.0)
    return (1 - gamma) * ordered[k - 1] + gamma * ordered[k]


@compiled(nogil=True, error_model="numpy")
def chunk(halves: Array, order: Array, x: Array, table: Array, flat: float, out: Array) -> None:
    """Diagnostics of x (entry, chain, draw) into the rows of `out`.

    `halves` (entry, 2 chains, half) are its split chains, `order` (entry, places) the argsort of each entry's split chains.
    Columns: R̂, folded R̂, ESS of the scores, of the lower and upper tail, of the values, of the squares; variance, fourth cumulant
    plus twice the variance squared.
    """
    E, split, half = halves.shape
    N, chains, n = split * half, x.shape[1], x.shape[2]
    ordered, distance, merged = np.empty(N), np.empty(N), np.empty(N, dtype=np.int64)
    z, work, means = np.empty((split, half)), np.empty((split, half)), np.empty(split)
    flat_z = z.reshape(-1)
    for e in range(E):
        values = halves[e].reshape(-1)
        for k in range(N):
            ordered[k] = values[order[e, k]]
        _fold(ordered, order[e], distance, merged)
        _scores(distance, merged, table, flat_z)
        out[e, 1] = _rhat(z, means)
        _scores(ordered, order[e], table, flat_z)
        out[e, 0] = _rhat(z, means)
        out[e, 2] = _ess(z, means, work, flat)
        every = ordered if n % 2 == 0 else np.sort(x[e].reshape(-1))  # the split leaves the middle draw out
        for side in range(2):
            edge = _quantile(every, 0.05 if side == 0 else 0.95)
            for k in range(N):
                flat_z[k] = 1.0 if values[k] <= edge else 0.0
            out[e, 3 + side] = _ess(z, means, work, flat)
        out[e, 5] = _ess(halves[e], means, work, flat)
        mean, second, fourth = x[e].sum() / (chains * n), 0.0, 0.0
        for c in range(chains):
            for i in range(n):
                square = (x[e, c, i] - mean) ** 2
                second += square
                fourth += square * square
        for k in range(N):
            flat_z[k] = (values[k] - mean) ** 2
        out[e, 6] = _ess(z, means, work, flat)
        out[e, 7] = second / (chains * n)
        out[e, 8] = fourth / (chains * n) - out[e, 7] ** 2
