"""`stream.gaussianise` compiled (Numba): the same operations in the same order, so the same bits, without a pass for each.

No fast-math flag is set: a compiler that fused or reordered them would change Φ, and a test compares every bit.
"""

import math
from typing import Any

import numpy as np

from intarsia.compilation import compiled
from intarsia.inverse_normal import CENTRE, FAR, TAIL
from intarsia.site.sketch.stream import _ARTANH, _LN2_HIGH, _LN2_LOW, _SQRT_HALF

Array = Any

_NUMERATOR, _DENOMINATOR = CENTRE
_TAIL_OVER, _TAIL_UNDER = TAIL
_FAR_OVER, _FAR_UNDER = FAR
_PIECE = 4096  # entries turned at a time
_HALF = np.int64(1022 << 52)  # the exponent bits of [½, 1)
_FRACTION = np.int64((1 << 52) - 1)


@compiled(inline="always")
def _horner(c: tuple[float, ...], r: float) -> float:
    x = r * c[0]
    for k in range(1, len(c) - 1):
        x = (x + c[k]) * r
    return x + c[-1]


@compiled(signature="void(uint64[::1], float64[::1])", nogil=True, error_model="numpy")
def gaussianise(words: Array, out: Array) -> None:
    """`words` (uint64) and `out` (float64) may be the same memory: a piece is read before it is written."""
    q, r = np.empty(_PIECE), np.empty(_PIECE)
    place, p = np.empty(_PIECE, dtype=np.int64), np.empty(_PIECE)
    bits = p.view(np.int64)
    for start in range(0, words.size, _PIECE):
        n = min(_PIECE, words.size - start)
        for i in range(n):
            q[i] = (np.float64(np.int64(words[start + i] >> np.uint64(12))) + (0.5 - 2.0**51)) * 2.0**-52
        for i in range(n):
            r[i] = 0.180625 - q[i] * q[i]
        for i in range(n):
            out[start + i] = _horner(_NUMERATOR, r[i]) * q[i] / _horner(_DENOMINATOR, r[i])
        tails = 0
        for i in range(n):
            place[tails] = i
            p[tails] = 0.5 - abs(q[i])
            tails += 1 if r[i] < 0.0 else 0
        for k in range(tails):  # √(−ln p), p = f·2^e
            e = (bits[k] >> np.int64(52)) - np.int64(1022)
            bits[k] = (bits[k] & _FRACTION) | _HALF
            low = p[k] < _SQRT_HALF
            f = p[k] + p[k] if low else p[k]
            power = np.float64(e - 1) if low else np.float64(e)
            s = (f - 1.0) / (f + 1.0)
            series = _horner(_ARTANH, s * s)
            p[k] = math.sqrt(-(power * _LN2_HIGH + (series * s + power * _LN2_LOW)))
        for k in range(tails):
            near = p[k] - 1.6
            r[k] = _horner(_TAIL_OVER, near) / _horner(_TAIL_UNDER, near)
        for k in range(tails):
            z = r[k]
            if p[k] > 5.0:
                beyond = p[k] - 5.0
                z = _horner(_FAR_OVER, beyond) / _horner(_FAR_UNDER, beyond)
            i = place[k]
            out[start + i] = math.copysign(z, q[i])
