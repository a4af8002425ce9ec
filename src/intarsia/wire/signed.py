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
class KeyOffer:
    """The public half of a site's X25519 key for one run, signed by the site's pinned key."""

    site: str
    study_hash: str
    public: bytes
    signature: bytes = b""

    def body(self) -> bytes:
        """The bytes the signature covers."""
        return _canonical({"kind": "offer", "site": self.site, "study_hash": self.study_hash, "public": encode(self.public)})

    def to_bytes(self) -> bytes:
        return _canonical({"body": self.body().decode(), "signature": encode(self.signature)})

    @classmethod
    def from_bytes(cls, raw: bytes) -> "KeyOffer":
        outer = _object(raw, ("body", "signature"))
        body = _object(_text(outer["body"]), ("kind", "site", "study_hash", "public"))
        if body["kind"] != "offer" or not check_name(body["site"]):
            raise MessageError("This is not an offer of a key for one run.")
        public, signature = decode(body["public"], 32, "public key"), decode(outer["signature"], 64, "signature")
        found = cls(body["site"], _hash(body["study_hash"]), public, signature)
        if found.body() != _text(outer["body"]):
            raise MessageError(f"The offer of site {found.site!r} is not in its canonical form.")
        return found


@dataclass(frozen=True)
class ShareBundle:
    """A site's share of the study key, sealed to each peer's key of the run, with a commitment to it, signed by the site.

    `offers` is the digest of all the offers it rests on: sites that were shown different keys find out here.
    """

    site: str
    study_hash: str
    commitment: bytes
    offers: bytes
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
                "offers": encode(self.offers),
                "sealed": {peer: encode(raw) for peer, raw in sorted(self.sealed.items())},
            }
        )

    def to_bytes(self) -> bytes:
        return _canonical({"body": self.body().decode(), "signature": encode(self.signature)})

    @classmethod
    def from_bytes(cls, raw: bytes) -> "ShareBundle":
        outer = _object(raw, ("body", "signature"))
        body = _object(_text(outer["body"]), ("kind", "site", "study_hash", "commitment", "offers", "sealed"))
        if body["kind"] != "share" or not isinstance(body["sealed"], dict) or not check_name(body["site"]):
            raise MessageError("This is not a share of a study key.")
        bundle = cls(
            site=body["site"],
            study_hash=_hash(body["study_hash"]),
            commitment=decode(body["commitment"], 32, "commitment"),
            offers=decode(body["offers"], 32, "digest of the offers"),
            sealed={str(peer): decode(text, None, "sealed share") for peer, text in body["sealed"].items()},
            signature=decode(outer["signature"], 64, "signature"),
        )
        if bundle.body() != _text(outer["body"]):
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
        fingerprint = body["fingerprint"]
        if not isinstance(fingerprint, str) or len(fingerprint) not in (0, 32) or set(fingerprint) - set("0123456789abcdef"):
            raise MessageError("The key fingerprint of a confirmation is not 32 hexadecimal digits.")
        return cls(body["site"], _hash(body["study_hash"]), mac, fingerprint)


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
        body = _object(_text(outer["body"]), ("kind", "site", "study_hash", "digest"))
        if body["kind"] != "file" or not check_name(body["site"]):
            raise MessageError("This is not a signature of a file.")
        found = cls(body["site"], _hash(body["study_hash"]), _hash(body["digest"]), decode(outer["signature"], 64, "signature"))
        if found.body() != _text(outer["body"]):
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


def _text(value: object) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else b""
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can write and UTF-8 cannot
        return b""


def _hash(value: object) -> str:
    if not isinstance(value, str) or len(value) != 64 or any(c not in "0123456789abcdef" for c in value):
        raise MessageError("A key agreement message carries no valid study hash.")
    return value
