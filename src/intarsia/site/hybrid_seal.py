"""Seals that hold against whoever breaks X25519 later: HPKE with X25519 and ML-KEM-768 together (X-Wing).

What is sealed today can be recorded and opened in twenty years. So every seal of the key agreement needs both halves of a key
of the run broken: the elliptic curve's and the lattice's. There is one suite and no choice of suites, so nobody on the way can
talk two sites into a weaker one.

    private key of a run   96 bytes: seed of ML-KEM-768 (64), X25519 (32)
    public key of a run  1216 bytes: encapsulation key of ML-KEM-768 (1184), X25519 (32)
    seal of k bytes      k + 1136 bytes
"""

import secrets

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from intarsia.errors import FederationError, KeyFileError
from intarsia.wire.signed import PUBLIC_BYTES

PRIVATE_BYTES = 96
_LATTICE_SEED, _LATTICE_PUBLIC = 64, 1184
_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def new_run_key() -> bytes:
    """The private halves of a site's key for one run; deleted when the study key is confirmed."""
    return secrets.token_bytes(PRIVATE_BYTES)


def public_half(run_key: bytes) -> bytes:
    """What the other sites seal to."""
    lattice, curve = _private(run_key)
    return bytes(lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw())


def seal(content: bytes, public: bytes, context: bytes) -> bytes:
    """`content` for the holder of this public key and nobody else, bound to the context; ValueError for an unusable key."""
    if len(public) != PUBLIC_BYTES:
        raise ValueError("not a public key of a run")
    lattice = MLKEM768PublicKey.from_public_bytes(public[:_LATTICE_PUBLIC])
    curve = X25519PublicKey.from_public_bytes(public[_LATTICE_PUBLIC:])
    try:
        return bytes(_SUITE.encrypt(content, MLKEM768X25519PublicKey(lattice, curve), context))
    except InvalidTag:
        raise ValueError("not a usable public key") from None


def opened(sealed: bytes, run_key: bytes, context: bytes) -> bytes | None:
    """What was sealed to this key in this context; None where it was not."""
    try:
        return bytes(_SUITE.decrypt(sealed, MLKEM768X25519PrivateKey(*_private(run_key)), context))
    except (InvalidTag, ValueError):
        return None


def curve_secret(run_key: bytes, public: bytes) -> bytes:
    """What X25519 alone makes of two keys of the run; ValueError for an unusable key."""
    return _private(run_key)[1].exchange(X25519PublicKey.from_public_bytes(public[_LATTICE_PUBLIC:]))


def _private(run_key: bytes) -> tuple[MLKEM768PrivateKey, X25519PrivateKey]:
    if len(run_key) != PRIVATE_BYTES:
        raise FederationError(
            "This site's key for this run was made by an earlier version of intarsia, which sealed with X25519 alone. "
            "Start a new run of the study."
        )
    try:
        lattice = MLKEM768PrivateKey.from_seed_bytes(run_key[:_LATTICE_SEED])
    except UnsupportedAlgorithm:
        raise KeyFileError(
            "The library `cryptography` on this machine was built without ML-KEM-768, which every seal of a study key needs. "
            "Install its wheel: pip install --force-reinstall --only-binary :all: cryptography"
        ) from None
    return lattice, X25519PrivateKey.from_private_bytes(run_key[_LATTICE_SEED:])
