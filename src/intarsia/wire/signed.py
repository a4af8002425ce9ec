"""Signed messages: the key agreement, in the form in which the server relays it, and files sent by other channels.

The bodies are canonical JSON with byte strings in base64, so a signature covers exactly one reading of them.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from intarsia.errors import MessageError
from intarsia.wire.schema import check_name

LIMIT = 2**20


def encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def decode(text: object, size: int | None, what: str) -> bytes:
    """Base64 text of exactly `size` bytes (any size if None)."""
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        raw = None
    if raw is None or (size is not None and len(raw) != size):
        raise MessageError(f"The {what} of a key agreement message is not valid base64 of the expected length.")
    return raw


@dataclass(frozen=True)
class ShareBundle:
    """A site's share of the study key, sealed to each peer, with a commitment to it, signed by the site."""

    site: str
    study_hash: str
    commitment: bytes
    sealed: dict[str, bytes]
    signature: bytes = b""

    def body(self) -> bytes:
        """The bytes the signature covers."""
        return _canonical(
            {
                "kind": "share",
                "site": self.site,
                "study_hash": self.study_hash,
                "commitment": encode(self.commitment),
                "sealed": {peer: encode(raw) for peer, raw in sorted(self.sealed.items())},
            }
        )

    def to_bytes(self) -> bytes:
        return _canonical({"body": self.body().decode(), "signature": encode(self.signature)})

    @classmethod
    def from_bytes(cls, raw: bytes) -> "ShareBundle":
        outer = _object(raw, ("body", "signature"))
        body = _object(str(outer["body"]).encode(), ("kind", "site", "study_hash", "commitment", "sealed"))
        if body["kind"] != "share" or not isinstance(body["sealed"], dict) or not check_name(body["site"]):
            raise MessageError("This is not a share of a study key.")
        bundle = cls(
            site=body["site"],
            study_hash=_hash(body["study_hash"]),
            commitment=decode(body["commitment"], 32, "commitment"),
            sealed={str(peer): decode(text, None, "sealed share") for peer, text in body["sealed"].items()},
            signature=decode(outer["signature"], 64, "signature"),
        )
        if bundle.body() != str(outer["body"]).encode():
            raise MessageError(f"The share of site {bundle.site!r} is not in its canonical form.")
        return bundle


@dataclass(frozen=True)
class Confirmation:
    """A site's proof that it holds the agreed key and saw the same transcript."""

    site: str
    study_hash: str
    mac: bytes
    fingerprint: str = ""

    def to_bytes(self) -> bytes:
        return _canonical(
            {
                "kind": "confirmation",
                "site": self.site,
                "study_hash": self.study_hash,
                "mac": encode(self.mac),
                "fingerprint": self.fingerprint,
            }
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Confirmation":
        body = _object(raw, ("kind", "site", "study_hash", "mac", "fingerprint"))
        if body["kind"] != "confirmation" or not check_name(body["site"]):
            raise MessageError("This is not a confirmation of a study key.")
        mac = decode(body["mac"], 32, "confirmation")
        return cls(body["site"], _hash(body["study_hash"]), mac, str(body["fingerprint"])[:128])


@dataclass(frozen=True)
class FileSignature:
    """A site's signature over a file it sends by a channel that does not prove where a file comes from."""

    site: str
    study_hash: str
    digest: str
    signature: bytes = b""

    def body(self) -> bytes:
        entries = {"kind": "file", "site": self.site, "study_hash": self.study_hash, "digest": self.digest}
        return _canonical(entries)

    def to_bytes(self) -> bytes:
        return _canonical({"body": self.body().decode(), "signature": encode(self.signature)})

    @classmethod
    def from_bytes(cls, raw: bytes) -> "FileSignature":
        outer = _object(raw, ("body", "signature"))
        body = _object(str(outer["body"]).encode(), ("kind", "site", "study_hash", "digest"))
        if body["kind"] != "file" or not check_name(body["site"]):
            raise MessageError("This is not a signature of a file.")
        found = cls(body["site"], _hash(body["study_hash"]), _hash(body["digest"]), decode(outer["signature"], 64, "signature"))
        if found.body() != str(outer["body"]).encode():
            raise MessageError("The signature is not in its canonical form.")
        return found


def verify(signing_key: str, signature: bytes, body: bytes) -> bool:
    """Whether the signature over the body was made with the private half of this Ed25519 key (base64)."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(base64.b64decode(signing_key)).verify(signature, body)
    except (InvalidSignature, ValueError):
        return False
    return True


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _object(raw: bytes, keys: tuple[str, ...]) -> dict[str, Any]:
    if len(raw) > LIMIT:
        raise MessageError(f"A key agreement message has {len(raw)} bytes; at most {LIMIT} are expected.")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise MessageError("A key agreement message is not readable: it is damaged or of another kind.") from None
    if not isinstance(value, dict) or set(value) != set(keys):
        raise MessageError("A key agreement message does not have the expected entries.")
    return value


def _hash(value: object) -> str:
    if not isinstance(value, str) or len(value) != 64 or any(c not in "0123456789abcdef" for c in value):
        raise MessageError("A key agreement message carries no valid study hash.")
    return value
