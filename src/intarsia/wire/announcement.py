"""Before any token leaves: each site says how long its list of subjects is and how many columns it brings.

The server relays the announcements. Each carries a MAC under a key the sites share, so that the server cannot alter one. A site
refuses to align with a list that is longer than the study allows: in an intersection, whoever lists a population learns who of
it is at the other sites. The counts of columns let every site's privacy check count all that the server will hold.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from intarsia.errors import AlignmentError, FederationError, MessageError
from intarsia.wire.alignment import checked, is_digest, same
from intarsia.wire.container import pack, unpack
from intarsia.wire.defaults import MOST_SHARE_OF_ROWS
from intarsia.wire.study import Study
from intarsia.wire.study_parts import MAX_LIST_RATIO

_FIELDS = ("site", "study_hash", "n", "columns", "mac", "covariates", "ledger")


@dataclass(frozen=True)
class Announcement:
    """A site's count of subjects, of columns, of covariates among them and of its ledger's lines, with a MAC under a key the
    server does not have."""

    site: str
    study_hash: str
    n: int
    columns: int
    mac: str = ""
    covariates: int = 0  # of the columns
    ledger: int | None = None  # lines; None where the site keeps none

    def signed(self, key: bytes) -> "Announcement":
        counts = [self.n, self.columns, self.covariates, self.ledger]
        body = json.dumps(["announcement", self.site, self.study_hash, *counts]).encode()
        return replace(self, mac=hmac.digest(key, body, "sha256").hex())

    def to_bytes(self) -> bytes:
        header = {name: getattr(self, name) for name in _FIELDS}
        return pack("announcement", header, {})

    @classmethod
    def from_bytes(cls, raw: Any) -> "Announcement":
        return _read(raw) if isinstance(raw, bytes) else cls._of(raw)

    @classmethod
    def _of(cls, raw: Any) -> "Announcement":
        header, arrays = unpack(raw, "announcement")
        site, study_hash = checked(header, "announcement", _FIELDS[2:])
        n, columns, mac, covariates = header["n"], header["columns"], header["mac"], header["covariates"]
        counts = all(type(value) is int and 0 < value < 2**40 for value in (n, columns))
        counts = counts and type(covariates) is int and 0 <= covariates <= columns
        lines = header["ledger"]
        counts = counts and (lines is None or (type(lines) is int and 0 <= lines < 2**40))
        if arrays or not counts or not is_digest(mac):
            raise MessageError(f"The announcement of site {site!r} has entries of the wrong kind.")
        return cls(site, study_hash, n, columns, mac, covariates, lines)


@lru_cache(maxsize=1024)
def _read(raw: bytes) -> Announcement:
    """Where many sites run in one process, each is shown every announcement."""
    return Announcement._of(raw)


def check_adjustable(covariates: int, rows: int, among: str = "") -> None:
    """Refuse more covariates than so many sketch rows can be adjusted for, while nothing about a subject has left."""
    most = int(MOST_SHARE_OF_ROWS * rows)
    if covariates > most:
        raise AlignmentError(
            f"All sites together bring {covariates} covariate columns, and {rows} sketch rows{among} can be adjusted for at most "
            f"{most} (a third), because each uses up a row. Take more sketch rows, or fewer covariates."
        )


def check_announcements(study: Study, site: str, key: bytes, raw: Mapping[str, bytes]) -> dict[str, Announcement]:
    """All sites' announcements as `site` was shown them, genuine and within the study's cap; refused by name otherwise."""
    missing = [name for name in study.names if name not in raw]
    if missing:
        raise FederationError(f"The counts of {', '.join(missing)} are not announced yet; no site aligns before all are.")
    found = {name: Announcement.from_bytes(raw[name]) for name in study.names}
    for name, told in found.items():
        if (told.site, told.study_hash) != (name, study.hash) or not same(told.mac, told.signed(key).mac):
            raise FederationError(f"The announcement of site {name!r} was not made by a site of this run. Refused.")
    if not study.sketch.shares:
        check_adjustable(sum(told.covariates for told in found.values()), study.sketch.m)
    if study.alignment.mode != "strict":
        ratio = study.alignment.max_subjects is None
        most = MAX_LIST_RATIO * found[site].n if study.alignment.max_subjects is None else study.alignment.max_subjects
        long = [name for name, told in found.items() if told.n > most]
        if long:
            limit = f"{MAX_LIST_RATIO} times this site's own" if ratio else "[alignment] max_subjects of study.toml"
            raise AlignmentError(
                f"The list of subjects of {', '.join(long)} is longer than {limit}: an intersection would show who is here. "
                "Shorten the list to the study's population, or agree on another max_subjects in study.toml."
            )
    return found
