"""A site's word that it leaves a run after it has sent: nobody else can say it, and it is not taken back.

The notice carries a MAC under the study key, which the server does not have, and the signature of the site's pinned key.
Whoever holds only one of the two cannot make a site leave.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from intarsia.errors import FederationError, MessageError
from intarsia.wire.alignment import is_digest, same
from intarsia.wire.signed import Signed, _canonical, verify
from intarsia.wire.study import Study

ENTRY = "left-"  # what a payload calls the notice of a site, followed by the site's name


@dataclass(frozen=True)
class Leave(Signed):
    """Signed with the site's pinned key; a site whose keys study.toml does not pin leaves the signature empty."""

    kind, what, own = "leave", "a site's notice that it leaves a study, as `intarsia site leave` writes it", ("mac",)
    may_be_unsigned = True
    mac: str = ""

    def proved(self, key: bytes) -> "Leave":
        """With a MAC under a key that the sites share."""
        told = _canonical({"kind": self.kind, "site": self.site, "study_hash": self.study_hash})
        return replace(self, mac=hmac.digest(key, told, "sha256").hex())

    def entries(self) -> dict[str, Any]:
        return {"mac": self.mac}

    @classmethod
    def values(cls, body: dict[str, Any]) -> dict[str, Any]:
        if not is_digest(body["mac"]):
            raise MessageError(f"This is not {cls.what}.")
        return {"mac": body["mac"]}


def check_leave(study: Study, raw: bytes, key: bytes | None) -> Leave:
    """A genuine notice of a site of this run; `key` is what the MAC was made with, None at the server, which has none."""
    notice = Leave.from_bytes(raw)
    if notice.study_hash != study.hash:
        raise FederationError(
            f"The notice of site {notice.site!r} is about another study, run or text of study.toml (hash "
            f"{notice.study_hash[:12]}…; this one has {study.hash[:12]}…). Refused."
        )
    pinned = study.site(notice.site).signing_key
    if pinned is not None and not verify(pinned, notice.signature, notice.body()):
        raise FederationError(
            f"The notice that site {notice.site!r} leaves is not signed with its key in study.toml. Nobody else can make a "
            "site leave. Refused."
        )
    if key is not None and not same(notice.mac, notice.proved(key).mac):
        raise FederationError(f"The notice that site {notice.site!r} leaves was not made by a site of this run. Refused.")
    return notice


def notices_in(payload: Mapping[str, bytes]) -> dict[str, bytes]:
    """The notices of a payload, by the site each is said to be of."""
    return {name.removeprefix(ENTRY): raw for name, raw in payload.items() if name.startswith(ENTRY)}
