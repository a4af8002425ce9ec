"""Joint prediction: each site's masked part, and the sum the server hands to a response's owner.

Parts are fixed-point numbers modulo 2⁶⁴ under pairwise masks, and their tags modulo a prime; addition is exact, so masks cancel
without a trace. The owner of a response keeps its own part and its own masks back: the server's sum is still masked, and only the
owner can lift that mask. Neither sees another site's part (with two sites, the owner's sum is of course the other's part).

Masks come from the digest of the whole request. Parts made for another fit, other subjects or other owners never cancel.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError, MessageError
from intarsia.wire.alignment import checked, is_digest
from intarsia.wire.container import pack, unpack
from intarsia.wire.schema import check_name

Fixed = NDArray[np.uint64]
TAG_PRIME = 2**61 - 1  # tags are counted modulo it
_TO = "to."
_BOUND = ("request", "fit_digest", "order_mac", "n", "digest")


@dataclass(frozen=True)
class Request:
    """All that a prediction is about; its digest decides the masks and is answered once."""

    study_hash: str
    request: str
    owners: Mapping[str, str]  # response -> the site study.toml gives it to
    fit_digest: str
    order_mac: str
    n: int

    def digest(self) -> str:
        content = [
            "intarsia prediction 2",
            self.study_hash,
            self.request,
            dict(self.owners),
            self.fit_digest,
            self.order_mac,
            self.n,
        ]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Bound:
    """What every message of a prediction is bound to: a site, the study, and the request by its parts and its digest."""

    site: str
    study_hash: str
    request: str
    fit_digest: str
    order_mac: str
    n: int
    digest: str

    def header(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(_Bound)}


@dataclass(frozen=True)
class PredictionPart(_Bound):
    """One site's masked part for each other owner: (slices, subjects, responses of that owner) modulo 2⁶⁴.

    The first half of the slices are values: the mean and, where the fit delivers draws, the spread of this site's part. The
    second half are their tags, the values times secret factors all sites know modulo `TAG_PRIME`, which show the owner a sum that
    was altered on its way.
    """

    parts: Mapping[str, Fixed] = field(repr=False)

    def to_bytes(self) -> bytes:
        # The container has no unsigned 64-bit type: the same bits as signed.
        return pack("part", self.header(), {_TO + name: part.view(np.int64) for name, part in self.parts.items()})

    @classmethod
    def from_bytes(cls, raw: Any) -> "PredictionPart":
        header, arrays = _read(raw, "part")
        for name, part in arrays.items():
            if not name.startswith(_TO) or not check_name(name.removeprefix(_TO)):
                raise MessageError("A part of a prediction is addressed to no site.")
            _check_shape(part, header["n"])
        parts = {name.removeprefix(_TO): part.view(np.uint64) for name, part in arrays.items()}
        return cls(**header, parts=parts)


@dataclass(frozen=True)
class PredictionSum(_Bound):
    """From the server to the owner of responses: the sum of all other sites' parts, still under the owner's masks."""

    total: Fixed | None = field(repr=False)  # None in a study of one site

    def to_bytes(self) -> bytes:
        return pack("sum", self.header(), {} if self.total is None else {"total": self.total.view(np.int64)})

    @classmethod
    def from_bytes(cls, raw: Any) -> "PredictionSum":
        header, arrays = _read(raw, "sum")
        if set(arrays) - {"total"}:
            raise MessageError("The sum of a prediction does not hold the arrays it should.")
        total = arrays.get("total")
        if total is not None:
            _check_shape(total, header["n"])
        return cls(**header, total=None if total is None else total.view(np.uint64))


def add_parts(messages: Mapping[str, PredictionPart], owner: str) -> PredictionSum:
    """The server's step: the sum of what all other sites sent for this owner's responses."""
    first = next(iter(messages.values()))
    total: Fixed | None = None
    for name, message in messages.items():
        for what, words in (
            ("order_mac", "for different subjects"),
            ("fit_digest", "from different fits"),
            ("digest", "other things"),
        ):
            if getattr(message, what) != getattr(first, what):
                raise FederationError(f"Sites {first.site!r} and {name!r} predict {words}; nothing is added.")
        if name == owner:
            continue
        if owner not in message.parts:
            raise FederationError(f"Site {name!r} sent no part for the responses of {owner!r}.")
        part = message.parts[owner]
        if total is not None and part.shape != total.shape:
            raise FederationError(f"The part of site {name!r} has shape {part.shape}, expected {total.shape}.")
        total = _added(np.zeros_like(part) if total is None else total, part)
    return PredictionSum(**first.header() | {"site": owner}, total=total)


def _added(total: Fixed, part: Fixed) -> Fixed:
    half, prime = len(part) // 2, np.uint64(TAG_PRIME)
    return np.concatenate([total[:half] + part[:half], (total[half:] + part[half:] % prime) % prime])


def _read(raw: Any, kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    header, arrays = unpack(raw, kind)
    site, _ = checked(header, kind, _BOUND)
    digests = all(is_digest(header[name]) for name in ("fit_digest", "order_mac", "digest"))
    if not check_name(header["request"]) or type(header["n"]) is not int or header["n"] < 1 or not digests:
        raise MessageError(f"The prediction of site {site!r} has entries of the wrong kind.")
    return header, arrays


def _check_shape(part: NDArray[Any], n: int) -> None:
    if part.dtype != np.int64 or part.ndim != 3 or part.shape[1] != n or part.shape[0] % 2:
        raise MessageError("A part of a prediction has the wrong shape or type.")
