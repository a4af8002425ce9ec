"""Noise for a private sketch: a discrete Gaussian in whole steps of a grid, drawn by comparing integers.

P(k) ∝ exp(−k²/2S²) over all integers k, S = STEPS_PER_SD. After Karney (2016): |k| = S·a + b with a = 0, 1, … drawn with
probability ∝ exp(−a²/2) and b uniform over the S steps, kept with probability exp(−b(2aS + b)/2S²); k = −0 is dropped. Each
decision compares a random integer of 128 bits with a probability known to more than 128 bits where it is close, so nothing
depends on how doubles are spaced. The random bytes are the operating system's.
"""

import secrets
from collections.abc import Callable
from decimal import Context, Decimal
from functools import cache

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import PrivacyError
from intarsia.privacy.grid import STEPS_PER_SD

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]
RandomBytes = Callable[[int], bytes]

_CONTEXT = Context(prec=60)
_TOP = 1 << 128  # whole numbers below it stand for probabilities
_CLOSE = 2.0**-46  # nearer than this the double is not trusted and the exact comparison decides
_LARGEST_STEPS = 2.0**62


def snap(values: NDArray[np.float64], sd: float, random_bytes: RandomBytes = secrets.token_bytes) -> NDArray[np.float64]:
    """Values rounded to the grid of `sd`, with discrete Gaussian noise of that standard deviation added in whole steps."""
    step = sd / STEPS_PER_SD
    if not (np.isfinite(values).all() and step > 0 and float(np.abs(values).max(initial=0.0)) / step < _LARGEST_STEPS):
        raise PrivacyError("The sketch cannot be put on the grid of its noise: the row bound and the noise are too far apart.")
    steps = np.rint(values / step).astype(np.int64)
    noisy = steps + discrete_gaussian(values.size, random_bytes).reshape(values.shape)
    return noisy.astype(np.float64) * step


def discrete_gaussian(count: int, random_bytes: RandomBytes = secrets.token_bytes) -> Integers:
    """So many draws with standard deviation STEPS_PER_SD."""
    out, have = np.empty(count, np.int64), 0
    while have < count:
        size = int((count - have) * 1.6) + 64
        whole = _whole(size, random_bytes)
        b = (_words(size, random_bytes) % np.uint64(STEPS_PER_SD)).astype(np.int64)  # a power of two: no remainder is favoured
        negative = (_words(size, random_bytes) & np.uint64(1)).astype(bool)
        keep = _kept(whole, b, random_bytes) & ~(negative & (whole == 0) & (b == 0))
        drawn = np.where(negative, -1, 1)[keep] * (whole * STEPS_PER_SD + b)[keep]
        taken = min(len(drawn), count - have)
        out[have : have + taken] = drawn[:taken]
        have += taken
    return out


def _words(size: int, random_bytes: RandomBytes) -> Words:
    return np.frombuffer(random_bytes(8 * size), "<u8")


@cache
def _thresholds() -> tuple[int, ...]:
    """2¹²⁸ times P(a ≤ 0), P(a ≤ 1), …, for P(a) ∝ exp(−a²/2); what lies beyond the last is below 2⁻¹²⁸."""
    weights = [_CONTEXT.exp(_CONTEXT.divide(Decimal(-a * a), Decimal(2))) for a in range(15)]
    sums = [weights[0]]
    for weight in weights[1:]:
        sums.append(_CONTEXT.add(sums[-1], weight))
    return tuple(int(_CONTEXT.divide(_CONTEXT.multiply(part, Decimal(_TOP)), sums[-1])) for part in sums[:-1])


def _whole(size: int, random_bytes: RandomBytes) -> Integers:
    """The whole standard deviations of |k|, by inverting their distribution function over 128 random bits."""
    high, low = _words(size, random_bytes), _words(size, random_bytes)
    edges = np.array([t >> 64 for t in _thresholds()], np.uint64)
    a = np.searchsorted(edges, high, side="right").astype(np.int64)
    for i in np.flatnonzero(np.isin(high, edges)):  # as good as never: the first 64 bits do not decide
        value = (int(high[i]) << 64) | int(low[i])
        a[i] = sum(value >= t for t in _thresholds())
    return a


def _kept(a: Integers, b: Integers, random_bytes: RandomBytes) -> NDArray[np.bool_]:
    """True with probability exp(−b(2aS + b)/2S²)."""
    high, low = _words(len(a), random_bytes), _words(len(a), random_bytes)
    part = b / STEPS_PER_SD
    p = np.exp(-part * (2 * a + part) / 2)
    u = high.astype(np.float64) * 2.0**-64
    keep = u < p
    for i in np.flatnonzero(np.abs(u - p) < _CLOSE):
        top = -int(b[i]) * (2 * int(a[i]) * STEPS_PER_SD + int(b[i]))
        exact = _CONTEXT.exp(_CONTEXT.divide(Decimal(top), Decimal(2 * STEPS_PER_SD**2)))
        value = (int(high[i]) << 64) | int(low[i])
        keep[i] = Decimal(value) < _CONTEXT.multiply(exact, Decimal(_TOP))
    return keep
