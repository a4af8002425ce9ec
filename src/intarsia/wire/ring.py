"""Whole numbers modulo 2⁶⁴ in place of real ones: how wide, exact products of matrices of them, and the way back.

A standardised column has Σx² = n − 1, so by Cauchy and Schwarz no product of two columns exceeds n in size. With f
fractional bits and n·2^2f < 2⁶³ no product leaves the ring, whatever the columns hold: f depends on n alone and is the same
at all sites. A value is rounded up or down at random, so that it is right on average. A product is then off by about
2^-f·√(n/2) ≤ 2⁻³¹·n/√2, or 4e-10 of the diagonal n at every n (`tests/exact/test_gram_ring.py`).
"""

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError

Ring = NDArray[np.uint64]
Array = NDArray[np.float64]

TOP_BITS = 63  # products stay below 2⁶³ in size: signed numbers of the ring
SLACK = 1.02  # rounding and a divisor of n − 1 make the sum of squares a little larger than n at most
LIMB_BITS = 22  # bits of a limb; two limbs' products, balanced around 0, have 42
CHUNK = 1024  # rows summed in float64 at a time: 2 · 1024 · 2⁴² = 2⁵³ is still exact
MOST_SUBJECTS = 2**40


def fraction_bits(n: int, spare: int = 0) -> int:
    """How many fractional bits the columns of n subjects have; `spare` are bits of a factor that products are multiplied by."""
    if not 2 <= n < MOST_SUBJECTS:
        raise InputError(f"A Gram matrix over {n} subjects cannot be computed in the ring: expected 2 to 2⁴⁰.")
    return int((TOP_BITS - spare - np.log2(SLACK * n)) // 2)


def encode(values: Array, bits: int, uniform: Array) -> Ring:
    """values·2^bits, each rounded up with the probability of its fraction (`uniform` in [0, 1) decides), modulo 2⁶⁴."""
    return np.floor(np.ldexp(values, bits) + uniform).astype(np.int64).view(np.uint64)


def decode(products: Ring, bits: int) -> Array:
    """Products of two encoded columns as real numbers."""
    return np.ldexp(products.view(np.int64).astype(np.float64), -2 * bits)


def fits(products: Ring, first: Ring, second: Ring) -> bool:
    """Whether products lie where those of columns with these squared lengths must (Cauchy and Schwarz)."""
    a, b = (np.sqrt(np.maximum(squares.view(np.int64), 0).astype(np.float64)) for squares in (first, second))
    return bool((np.abs(products.view(np.int64).astype(np.float64)) <= np.outer(a, b) * (1 + 1e-9)).all())


def _limbs(a: Ring) -> tuple[Array, Array, Array]:
    """a = a₀ + a₁·2²² + a₂·2⁴⁴ modulo 2⁶⁴, each limb balanced around zero."""
    signed, half = a.view(np.int64), np.int64(1 << (LIMB_BITS - 1))
    rest = signed + half  # wraps at the top, which is the ring's own rule
    low = (rest & np.int64((1 << LIMB_BITS) - 1)) - half
    rest >>= LIMB_BITS
    rest += half
    middle = (rest & np.int64((1 << LIMB_BITS) - 1)) - half
    rest >>= LIMB_BITS
    return low.astype(np.float64), middle.astype(np.float64), rest.astype(np.float64)


def product(A: Ring, B: Ring) -> Ring:
    """AᵀB modulo 2⁶⁴, exactly, for A (rows × p) and B (rows × q): six products of limbs by the floating-point library."""
    out = np.zeros((A.shape[1], B.shape[1]), dtype=np.uint64)
    for start in range(0, len(A), CHUNK):
        a0, a1, a2 = _limbs(np.ascontiguousarray(A[start : start + CHUNK]))
        b0, b1, b2 = _limbs(np.ascontiguousarray(B[start : start + CHUNK]))
        low = a0.T @ b0
        middle = a0.T @ b1 + a1.T @ b0
        # Of the top only the lowest 20 bits stay in the ring; as real numbers the sums are exact all the same.
        high = a0.T @ b2 + a1.T @ b1 + a2.T @ b0
        for sums, shift in ((low, 0), (middle, LIMB_BITS), (high, 2 * LIMB_BITS)):
            out += sums.astype(np.int64).view(np.uint64) << np.uint64(shift)
    return out


def square(A: Ring) -> Ring:
    """AᵀA modulo 2⁶⁴, at half the price of `product(A, A)`: what stands above the diagonal of a sum of limbs' products is
    what stands below it in another."""
    out = np.zeros((A.shape[1], A.shape[1]), dtype=np.uint64)
    for start in range(0, len(A), CHUNK):
        a0, a1, a2 = _limbs(np.ascontiguousarray(A[start : start + CHUNK]))
        for left, right, shift in ((a0, a1, LIMB_BITS), (a0, a2, 2 * LIMB_BITS)):
            half = (left.T @ right).astype(np.int64).view(np.uint64) << np.uint64(shift)
            out += half + half.T
        for limb, shift in ((a0, 0), (a1, 2 * LIMB_BITS)):
            out += (limb.T @ limb).astype(np.int64).view(np.uint64) << np.uint64(shift)
    return out
