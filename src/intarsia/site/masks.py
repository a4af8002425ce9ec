"""Pairwise masks over fixed-point numbers modulo 2⁶⁴: what a site adds, its peer subtracts, exactly."""

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from intarsia.errors import InputError

Fixed = NDArray[np.uint64]
_LIMIT = 2.0**61  # of a value in fixed-point steps: sums of a few stay within 64 bits


def to_fixed(values: NDArray[np.float64], bits: int) -> Fixed:
    """values · 2^bits, rounded, modulo 2⁶⁴ (two's complement)."""
    scaled = np.ldexp(np.asarray(values, dtype=np.float64), bits)
    if not (np.abs(scaled) < _LIMIT).all():
        raise InputError(
            "A value is too large for the exact masked sum (or not finite). "
            "Check the new subjects' columns for values in other units than in the study."
        )
    return np.rint(scaled).astype(np.int64).view(np.uint64)


def from_fixed(fixed: Fixed, bits: int) -> NDArray[np.float64]:
    return np.ldexp(fixed.view(np.int64).astype(np.float64), -bits)


def mask(secret: bytes, shape: tuple[int, ...]) -> Fixed:
    """A uniform mask from a 32-byte secret that is used for this one message only."""
    size = int(np.prod(shape))
    stream = Cipher(ChaCha20(secret, bytes(16)), None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64).reshape(shape)


def total_mask(name: str, secrets: Mapping[str, bytes], shape: tuple[int, ...]) -> Fixed:
    """What `name` adds to its message: masks shared with each peer, with opposite signs at the two ends."""
    total = np.zeros(shape, dtype=np.uint64)
    for peer, secret in secrets.items():
        shared = mask(secret, shape)
        if name < peer:
            total += shared
        else:
            total -= shared
    return total
