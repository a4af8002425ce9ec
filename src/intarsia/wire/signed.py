"""Signed messages: the key agreement, in the form in which the server relays it, files sent by other channels, and receipts.

The bodies are canonical JSON with byte strings in base64, so a signature covers exactly one reading of them.
"""

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from intarsia.errors import MessageError
from intarsia.wire.schema import check_name

LIMIT_BYTES = 2**20
PUBLIC_BYTES = 1216  # of a key of the run: ML-KEM-768 (1184) and X25519 (32)
SUITE = "X25519+ML-KEM-768"  # the one there is: an offer of anything else is refused, whoever asks for it


def encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def decode(text: object, size: int | None, what: str) -> bytes:
    """Base64 text of exactly `size` bytes (any size if None)."""
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        raw = None
    if raw is None or (size is not None and len(raw) != size):
        raise MessageError(f"The {what} of a signed message is not valid base64 of the expected length.")
    return raw


@dataclass(frozen=True)
class Signed:
    """A message that a site signs. What it says stands in its body, `entries` beside the kind, the site and the study hash.

    A message has one form only: whoever reads it writes it again and refuses one that was written otherwise.
    """

    kind: ClassVar[str]
    what: ClassVar[str]  # the same for people
    own: ClassVar[tuple[str, ...]]  # the names of `entries`
    may_be_unsigned: ClassVar[bool] = False
    site: str
    study_hash: str
    signature: bytes = field(default=b"", kw_only=True)

    def entries(self) -> dict[str, Any]:
        """What this kind of message says, as JSON has it."""
        raise NotImplementedError

    @classmethod
    def values(cls, body: dict[str, Any]) -> dict[str, Any]:
        """The fields that `entries` were made from, each checked."""
        raise NotImplementedError

    def body(self) -> bytes:
        """The bytes the signature covers."""
        return _canonical({"kind": self.kind, "site": self.site, "study_hash": self.study_hash} | self.entries())

    def to_bytes(self) -> bytes:
        return _canonical({"body": self.body().decode(), "signature": encode(self.signature)})

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        outer = _object(raw, ("body", "signature"))
        text = _text(outer["body"])
        body = _object(text, ("kind", "site", "study_hash", *cls.own))
        if body["kind"] != cls.kind or not check_name(body["site"]):
            raise MessageError(f"This is not {cls.what}.")
        unsigned = cls.may_be_unsigned and outer["signature"] == ""
        signature = decode(outer["signature"], 0 if unsigned else 64, "signature")
        fields = {"site": body["site"], "study_hash": _hash(body["study_hash"]), "signature": signature}
        found = cls(**fields, **cls.values(body))
        if found.to_bytes() != raw:
            raise MessageError(f"What came from site {found.site!r} is {cls.what}, but not in its canonical form.")
        return found


@dataclass(frozen=True)
class KeyOffer(Signed):
    """The public half of a site's key for one run (X25519 and ML-KEM-768 together), signed by the site's pinned key."""

    kind, what, own = "offer", "an offer of a key for one run", ("public", "suite")
    public: bytes
    suite: str = SUITE

    def entries(self) -> dict[str, Any]:
        return {"public": encode(self.public), "suite": self.suite}

    @classmethod
    def values(cls, body: dict[str, Any]) -> dict[str, Any]:
        if body["suite"] != SUITE:
            raise MessageError(f"An offer of a key for one run is not of the kind {SUITE}, the only one that is taken.")
        return {"public": decode(body["public"], PUBLIC_BYTES, "public key"), "suite": SUITE}

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        entries = _object(_text(_object(raw, None).get("body")), None) if len(raw) <= LIMIT_BYTES else {}
        if entries.get("kind") == cls.kind and "suite" not in entries:
            raise MessageError(
                f"An offer of a key for one run comes from a version of intarsia that seals with X25519 alone: what it seals can "
                f"be recorded and opened later. This version takes {SUITE} and nothing less. Update intarsia at that site."
            )
        return super().from_bytes(raw)


@dataclass(frozen=True)
class ShareBundle(Signed):
    """A site's share of the study key, sealed to each peer's key of the run, with a commitment to it, signed by the site.

    `offers` is the digest of all the offers it rests on: sites that were shown different keys find out here.
    """

    kind, what, own = "share", "a share of a study key", ("commitment", "offers", "sealed")
    commitment: bytes
    offers: bytes
    sealed: dict[str, bytes]

    def entries(self) -> dict[str, Any]:
        sealed = {peer: encode(raw) for peer, raw in sorted(self.sealed.items())}
        return {"commitment": encode(self.commitment), "offers": encode(self.offers), "sealed": sealed}

    @classmethod
    def values(cls, body: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(body["sealed"], dict):
            raise MessageError(f"This is not {cls.what}.")
        return {
            "commitment": decode(body["commitment"], 32, "commitment"),
            "offers": decode(body["offers"], 32, "digest of the offers"),
            "sealed": {str(peer): decode(text, None, "sealed share") for peer, text in body["sealed"].items()},
        }


@dataclass(frozen=True)
class FileSignature(Signed):
    """A site's signature over a file it sends by a channel that does not prove where a file comes from."""

    kind, what, own = "file", "a signature of a file", ("digest",)
    digest: str

    def entries(self) -> dict[str, Any]:
        return {"digest": self.digest}

    @classmethod
    def values(cls, body: dict[str, Any]) -> dict[str, Any]:
        return {"digest": _hash(body["digest"])}


@dataclass(frozen=True)
class Receipt(Signed):
    """A site's receipt for its coefficients: which fit it holds and where its ledger stands, so that it cannot restart unseen.

    A site without an identity leaves the signature empty.
    """

    kind, what, own = "receipt", "a receipt for coefficients", ("fit_digest", "ledger_entries", "ledger_head")
    may_be_unsigned = True
    fit_digest: str
    ledger_entries: int = 0
    ledger_head: str = ""

    def entries(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.own}

    @classmethod
    def values(cls, body: dict[str, Any]) -> dict[str, Any]:
        entries, head = body["ledger_entries"], body["ledger_head"]
        if type(entries) is not int or entries < 0 or not isinstance(head, str) or len(head) > 128:
            raise MessageError(f"This is not {cls.what}.")
        return {"fit_digest": _hash(body["fit_digest"]), "ledger_entries": entries, "ledger_head": head}


@dataclass(frozen=True)
class Confirmation:
    """A site's proof that it holds the agreed key and saw the same transcript.

    The server, which has no key, could not tell one that a line spoilt: its digest goes with it.
    """

    site: str
    study_hash: str
    mac: bytes
    fingerprint: str = ""

    def to_bytes(self) -> bytes:
        body = {
            "kind": "confirmation",
            "site": self.site,
            "study_hash": self.study_hash,
            "mac": encode(self.mac),
            "fingerprint": self.fingerprint,
        }
        return _canonical(body | {"sha256": hashlib.sha256(_canonical(body)).hexdigest()})

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Confirmation":
        body = _object(raw, ("kind", "site", "study_hash", "mac", "fingerprint", "sha256"))
        if body["kind"] != "confirmation" or not check_name(body["site"]):
            raise MessageError("This is not a confirmation of a study key.")
        mac = decode(body["mac"], 32, "confirmation")
        fingerprint = body["fingerprint"]
        if not isinstance(fingerprint, str) or len(fingerprint) not in (0, 32) or set(fingerprint) - set("0123456789abcdef"):
            raise MessageError("The key fingerprint of a confirmation is not 32 hexadecimal digits.")
        found = cls(body["site"], _hash(body["study_hash"]), mac, fingerprint)
        if found.to_bytes() != raw:
            raise MessageError("A confirmation of a study key was changed on its way: its digest does not fit. Send it again.")
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


def what_it_is(raw: bytes) -> str:
    """Which signed message was taken for another file, in words; empty where it is none of ours. Nothing of it is believed."""
    try:
        kind = _object(_text(_object(raw, ("body", "signature"))["body"]), None)["kind"]
    except (MessageError, KeyError):
        return ""
    known = {one.kind: one.what for one in (KeyOffer, ShareBundle, FileSignature, Receipt)}
    if kind == FileSignature.kind:
        return f"{FileSignature.what}. Give the file itself; its signature lies beside it."
    return f"{known[kind]}." if isinstance(kind, str) and kind in known else ""


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _object(raw: bytes, keys: tuple[str, ...] | None) -> dict[str, Any]:
    if len(raw) > LIMIT_BYTES:
        raise MessageError(f"A signed message has {len(raw)} bytes; at most {LIMIT_BYTES} are expected.")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise MessageError("A signed message is not readable: it is damaged or of another kind.") from None
    if not isinstance(value, dict) or (keys is not None and set(value) != set(keys)):
        raise MessageError("A signed message does not have the expected entries.")
    return value


def _text(value: object) -> bytes:
    try:
        return value.encode() if isinstance(value, str) else b""
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can write and UTF-8 cannot
        return b""


def _hash(value: object) -> str:
    if not isinstance(value, str) or len(value) != 64 or any(c not in "0123456789abcdef" for c in value):
        raise MessageError("A signed message carries no valid hash.")
    return value
