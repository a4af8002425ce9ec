"""The secret stream: ChaCha20 under a sub-key, turned into the iid N(0,1) entries of G, column by column.

Column i of G (m entries) starts at a cipher block of its own: nonce i // 4096, counter (i mod 4096) × blocks per column.
So any column can be made without the others, on any machine, in any order. Each entry takes one 64-bit word w of the
cipher, u = ((w >> 12) + ½)·2⁻⁵², and is Φ⁻¹(u): never infinite, at most 8.2 from zero.

Same bits everywhere: the inverse normal is Wichura's AS 241 (1988), evaluated with separate IEEE additions, products,
quotients and square roots only, each correctly rounded on every platform, and its logarithm is summed here by the same
means. No mathematical library takes part, so none can change Φ by being upgraded.
"""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from intarsia.inverse_normal import CENTRE, FAR, TAIL

CHUNK = 4096  # columns under one nonce; the block counter (32 bits) stays below 2³² for every m allowed
MAX_M = 2**22
_WORDS_PER_BLOCK = 8
_PIECE = 1 << 16  # entries turned at a time: the scratch stays in the cache, and threads seldom wait for the interpreter
_ZEROS = memoryview(bytes(1 << 18))  # encrypting zeros gives the key stream itself

_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # the high part has 32 bits: its multiples are exact
_SQRT_HALF = 0.7071067811865476  # to the last digit
_ARTANH = tuple(2.0 / (2 * k + 1) for k in range(11, -1, -1))  # of 2 artanh(s)/s in s²


def _horner(coefficients: tuple[float, ...], r: np.ndarray, out: np.ndarray) -> np.ndarray:
    """A polynomial in r, one rounded operation at a time (no fused multiply-add, which would differ by platform)."""
    np.multiply(r, coefficients[0], out=out)
    for c in coefficients[1:-1]:
        np.add(out, c, out=out)
        np.multiply(out, r, out=out)
    return np.add(out, coefficients[-1], out=out)


def _minus_log(p: np.ndarray) -> np.ndarray:
    """−ln p for 0 < p < 1 by p = f·2^e and the series of 2 artanh((f−1)/(f+1)): IEEE operations only, error 2 ulp."""
    f, e = np.frexp(p)
    low = f < _SQRT_HALF
    f = np.where(low, f + f, f)
    e = e - low
    s = (f - 1.0) / (f + 1.0)
    s2 = s * s
    series = _horner(_ARTANH, s2, np.empty_like(s2))
    return -(e * _LN2_HIGH + (series * s + e * _LN2_LOW))


def _tail(p: np.ndarray) -> np.ndarray:
    """|Φ⁻¹(p)| for p ≤ 0.075."""
    r = np.sqrt(_minus_log(p))
    near = r - 1.6
    z = _horner(TAIL[0], near, np.empty_like(r)) / _horner(TAIL[1], near, np.empty_like(r))
    far = np.flatnonzero(r > 5.0)
    if far.size:
        beyond = r[far] - 5.0
        z[far] = _horner(FAR[0], beyond, np.empty_like(beyond)) / _horner(FAR[1], beyond, np.empty_like(beyond))
    return z


def gaussianise(words: np.ndarray, out: np.ndarray) -> None:
    """Turn 64-bit words into N(0,1); both 1-D and of one length; `out` (float64) may be the same memory as `words`."""
    size = min(_PIECE, words.size)
    r, denominator, scratch = np.empty(size), np.empty(size), np.empty(size, dtype=np.uint64)
    for start in range(0, words.size, _PIECE):
        z = out[start : start + _PIECE]
        r, denominator, scratch = r[: z.size], denominator[: z.size], scratch[: z.size]
        np.right_shift(words[start : start + _PIECE], np.uint64(12), out=scratch)
        q = scratch.view(np.float64)
        # q = u − ½ without rounding: k < 2⁵² and k + ½ − 2⁵¹ are both exact in float64.
        np.add(scratch, 0.5 - 2.0**51, out=q, casting="unsafe")
        np.multiply(q, 2.0**-52, out=q)
        np.multiply(q, q, out=r)
        np.subtract(0.180625, r, out=r)
        tails = np.flatnonzero(r < 0.0)
        _horner(CENTRE[0], r, z)
        np.multiply(z, q, out=z)
        np.divide(z, _horner(CENTRE[1], r, denominator), out=z)
        signed = q[tails]
        z[tails] = np.copysign(_tail(0.5 - np.abs(signed)), signed)


def stride(m: int) -> int:
    """Words from one column to the next: m, rounded up to whole cipher blocks."""
    return -(-m // _WORDS_PER_BLOCK) * _WORDS_PER_BLOCK


def _keystream(subkey: bytes, chunk: int, block: int, out: np.ndarray) -> None:
    """Write the cipher's bytes from `block` of nonce `chunk` on into `out` (contiguous float64, used as bytes)."""
    nonce = block.to_bytes(4, "little") + chunk.to_bytes(12, "little")
    cipher = Cipher(algorithms.ChaCha20(subkey, nonce), mode=None).encryptor()
    view = out.reshape(-1).data.cast("B")
    for a in range(0, view.nbytes, _ZEROS.nbytes):
        piece = view[a : a + _ZEROS.nbytes]
        cipher.update_into(_ZEROS[: piece.nbytes], piece)


def fill(subkey: bytes, m: int, positions: Any, out: np.ndarray) -> None:
    """Write columns `positions` of G into the rows of `out`, shape (len(positions), stride(m)), float64, C order.

    `positions` is a range (the fast way) or an integer array in any order; entries beyond m are filler.
    """
    columns = np.asarray(positions, dtype=np.int64)
    blocks = stride(m) // _WORDS_PER_BLOCK
    # A run is a maximal piece of consecutive columns under one nonce: one call of the cipher.
    breaks = np.flatnonzero((np.diff(columns) != 1) | (columns[1:] % CHUNK == 0)) + 1
    edges = [0, *breaks.tolist(), len(columns)]
    for a, b in pairwise(edges):
        if b > a:
            chunk, first = divmod(int(columns[a]), CHUNK)
            _keystream(subkey, chunk, first * blocks, out[a:b])
    flat = out.reshape(-1)
    words = flat.view("<u8")
    turn = _compiled() if flat.size >= _PIECE else gaussianise
    turn(words if words.dtype.isnative else words.astype(np.uint64), flat)


@cache
def _compiled() -> Callable[[np.ndarray, np.ndarray], None]:
    """`gaussianise`, compiled: the same bits in a third of the time. Loaded when first needed: Numba takes a while."""
    from intarsia.site.sketch import stream_compiled

    return cast(Callable[[np.ndarray, np.ndarray], None], stream_compiled.gaussianise)


def gaussian_columns(subkey: bytes, m: int, start: int, stop: int) -> np.ndarray:
    """Columns start … stop−1 of G, shape (m, stop − start); the same bits whatever block they are asked in."""
    return gaussian_at(subkey, m, range(start, stop))


def gaussian_at(subkey: bytes, m: int, positions: Any) -> np.ndarray:
    """The columns of G at these positions (any order), shape (m, len(positions))."""
    if not 1 <= m <= MAX_M:
        raise ValueError(f"m must be 1 to {MAX_M}, not {m}")
    if len(positions) and min(positions[0], positions[-1], int(np.min(positions))) < 0:
        raise ValueError("a column of G has a position of 0 or more")
    out = np.empty((len(positions), stride(m)))
    fill(subkey, m, positions, out)
    return out[:, :m].T
