"""A site's receipt for its coefficients: which fit it holds and where its ledger stands, so that it cannot restart unseen."""

from dataclasses import dataclass

from intarsia.errors import MessageError
from intarsia.wire.alignment import is_digest
from intarsia.wire.schema import check_name
from intarsia.wire.signed import _canonical, _object, decode, encode

_BODY = ("kind", "site", "study_hash", "fit_digest", "ledger_entries", "ledger_head")


@dataclass(frozen=True)
class Receipt:
    """Signed with the site's pinned key; a site without an identity leaves the signature empty."""

    site: str
    study_hash: str
    fit_digest: str
    ledger_entries: int = 0
    ledger_head: str = ""
    signature: bytes = b""

    def body(self) -> bytes:
        """The bytes the signature covers."""
        return _canonical({"kind": "receipt"} | {name: getattr(self, name) for name in _BODY[1:]})

    def to_bytes(self) -> bytes:
        return _canonical({"body": self.body().decode(), "signature": encode(self.signature)})

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Receipt":
        outer = _object(raw, ("body", "signature"))
        body = _object(str(outer["body"]).encode(), _BODY)
        entries, head = body["ledger_entries"], body["ledger_head"]
        digests = is_digest(body["study_hash"]) and is_digest(body["fit_digest"])
        counted = type(entries) is int and entries >= 0 and isinstance(head, str) and len(head) <= 128
        if body["kind"] != "receipt" or not check_name(body["site"]) or not digests or not counted:
            raise MessageError("This is not a receipt for coefficients.")
        signature = b"" if outer["signature"] == "" else decode(outer["signature"], 64, "signature")
        receipt = cls(body["site"], body["study_hash"], body["fit_digest"], entries, head, signature)
        if receipt.body() != str(outer["body"]).encode():
            raise MessageError("The receipt is not in its canonical form.")
        return receipt
