"""Pairwise masks over fixed-point numbers: what a site adds, its peer subtracts, exactly.

Values count modulo 2⁶⁴. Beside them stand their tags, each value times a secret factor modulo a prime: sums keep that relation,
and whoever changes a sum without the factors is found out but once in 2⁶¹ times. Modulo 2⁶⁴ it would not do: 2⁶³ more in a value
is 2⁶³ more in its product with any odd factor, and each refusal would tell the factor's next bit.
"""

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.wire.prediction import TAG_PRIME

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


def with_tags(values: Fixed, secret: bytes) -> Fixed:
    """The values, and after them their tags."""
    factors = mask(secret, values.shape) % np.uint64(TAG_PRIME)
    products = values.view(np.int64).astype(object) * factors.astype(object) % TAG_PRIME
    return np.concatenate([values, products.astype(np.uint64)])


def masked(name: str, secrets: Mapping[str, bytes], tagged: Fixed) -> Fixed:
    """Values and tags with the masks that `name` shares with each peer, with opposite signs at the two ends."""
    half, prime = len(tagged) // 2, np.uint64(TAG_PRIME)
    values, tags = tagged[:half].copy(), tagged[half:] % prime
    for peer, secret in secrets.items():
        shared = mask(secret, tagged.shape)
        on_tags = shared[half:] % prime
        if name < peer:
            values, tags = values + shared[:half], (tags + on_tags) % prime
        else:
            values, tags = values - shared[:half], (tags + prime - on_tags) % prime
    return np.concatenate([values, tags])
