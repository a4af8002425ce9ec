"""Joint prediction: each site's masked part, and the sum the server hands to a response's owner.

Parts are fixed-point numbers modulo 2⁶⁴ under pairwise masks; addition is exact, so masks cancel without a trace. The
owner of a response keeps its own part and its own masks back: the server's sum is still masked, and only the owner can
lift that mask. Neither sees another site's part (with two sites, the owner's sum is of course the other's part).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError, MessageError
from intarsia.wire.alignment import checked, is_digest
from intarsia.wire.container import pack, unpack
from intarsia.wire.schema import check_name

Fixed = NDArray[np.uint64]
_TO = "to."


@dataclass(frozen=True)
class PartialPrediction:
    """One site's masked part for each response owner: (1 + draws, subjects, responses of that owner) modulo 2⁶⁴.

    Slice 0 belongs to the posterior mean, the others to the joint draws. From the server to an owner, the same message
    with `site` = the owner and one entry is the sum.
    """

    site: str
    study_hash: str
    request: str
    n: int
    order_mac: str
    parts: Mapping[str, Fixed] = field(repr=False)

    def to_bytes(self) -> bytes:
        header = {
            "site": self.site,
            "study_hash": self.study_hash,
            "request": self.request,
            "n": self.n,
            "order_mac": self.order_mac,
        }
        # The container has no unsigned 64-bit type: the same bits as signed.
        return pack("prediction", header, {_TO + name: p.view(np.int64) for name, p in self.parts.items()})

    @classmethod
    def from_bytes(cls, raw: Any) -> "PartialPrediction":
        header, arrays = unpack(raw, "prediction")
        site, study_hash = checked(header, "prediction", ("request", "n", "order_mac"))
        request, n, mac = header["request"], header["n"], header["order_mac"]
        if not check_name(request) or type(n) is not int or n < 1 or not is_digest(mac):
            raise MessageError(f"The prediction of site {site!r} has entries of the wrong kind.")
        for name, part in arrays.items():
            named = name.startswith(_TO) and check_name(name.removeprefix(_TO))
            if part.dtype != np.int64 or part.ndim != 3 or part.shape[1] != n or not named:
                raise MessageError(f"A part of the prediction of site {site!r} has the wrong shape or type.")
        parts = {name.removeprefix(_TO): part.view(np.uint64) for name, part in arrays.items()}
        return cls(site, study_hash, request, n, mac, parts)


def add_parts(messages: Mapping[str, PartialPrediction], owner: str) -> PartialPrediction:
    """The server's step: the sum of what all other sites sent for this owner's responses."""
    others = {name: message for name, message in messages.items() if name != owner}
    first = next(iter(others.values()))
    total: Fixed | None = None
    for name, message in others.items():
        if owner not in message.parts:
            raise FederationError(f"Site {name!r} sent no part for the responses of {owner!r}.")
        if (message.request, message.order_mac) != (first.request, first.order_mac):
            raise FederationError(
                f"Sites {first.site!r} and {name!r} predict for different subjects or requests; nothing is added."
            )
        part = message.parts[owner]
        if total is not None and part.shape != total.shape:
            raise FederationError(f"The part of site {name!r} has shape {part.shape}, expected {total.shape}.")
        total = part.copy() if total is None else total + part
    assert total is not None
    return PartialPrediction(owner, first.study_hash, first.request, first.n, first.order_mac, {owner: total})
