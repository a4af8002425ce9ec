"""Messages of a screened study: what a site states of its columns, the list of those kept, what a look multiplies, its shares.

A screened study goes in rounds. In round 0 every site shares its features, once. In each round after it the server names the
features to keep (in round 1: none), and the sites make the exact Gram matrix of these, the responses and the covariates as in a
Gram study. Between two rounds comes a look: the products of all features with what the kept ones leave of the responses.
Where a sketch screens, it comes with what a site states of its columns, nothing is shared in round 0, and round 1 is the last.

Every message of a round carries the round's own digest in place of the cohort's: it rests on the cohort, the round and the
list, so that nothing of one round, or made for another list, fits into another.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError, MessageError
from intarsia.wire.alignment import checked, is_digest
from intarsia.wire.container import MAX_BYTES, pack, unpack
from intarsia.wire.gram_messages import GramBlock, are_digests, read_stated
from intarsia.wire.gram_sharing import CHECKS, Cut, cuts
from intarsia.wire.messages import check_labels
from intarsia.wire.ring import Ring, product
from intarsia.wire.signed import decode, encode

ROUND = "round.number"  # entry of a request that says which round; no site can be called so
PARTS = 8  # the features of a block of subjects go in so many pieces: there are many more of them than of other columns
LEAST_ROWS = 64
LARGEST = 4  # of a coefficient of a standardised column: what a look takes off is an effect, not a way to pick people
_ROLES = ("features", "responses", "covariates")


@dataclass(frozen=True)
class ScreenBlock:
    """A site's columns by name and what it commits to: it will share its features, and no product of them is stated.

    `commitments` (pieces, each 32 bytes) are the digests of the numbers that it will hand to holders, `seeds` those of the seeds
    of its other shares, `check` that of the seed of its check weights, `coin` that of a coin. Where a sketch screens there are no
    commitments, as the features are not shared; `mixed` is the digest of the `sketch`, which goes to the server alone.
    `most` is how many features of all sites together its gate lets the server keep, `most_told` how many effects others may be
    told in full for its features (None: all). Signed with the site's pinned key.
    """

    site: str
    study_hash: str
    features: tuple[str, ...]
    responses: tuple[str, ...]
    covariates: tuple[str, ...]
    n: int
    bits: int
    order_mac: str
    key_fingerprint: str
    check: str
    coin: str
    seeds: tuple[str, ...]
    most: int
    commitments: NDArray[np.uint8] = field(repr=False)
    response_scales: tuple[float, ...] = ()
    most_told: int | None = None
    mixed: str = ""
    signature: bytes = b""
    sketch: bytes = field(default=b"", repr=False)

    @property
    def columns(self) -> int:
        """The columns that are screened."""
        return len(self.features)

    @property
    def folds(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def opens(self) -> bool:
        return False

    def relayed(self) -> "ScreenBlock":
        """What the other sites see: they know Φ, so no sketch."""
        return replace(self, sketch=b"")

    def body(self) -> bytes:
        """The bytes the signature covers: of the sketch its digest."""
        return replace(self, signature=b"", sketch=b"").to_bytes()

    def to_bytes(self) -> bytes:
        names = ("site", "study_hash", "n", "bits", "order_mac", "key_fingerprint", "check", "coin", "most", "most_told", "mixed")
        header: dict[str, Any] = {name: getattr(self, name) for name in names}
        header |= {name: list(getattr(self, name)) for name in (*_ROLES, "seeds", "response_scales")}
        arrays = {"commitments": self.commitments}
        if self.sketch:
            arrays["sketch"] = np.frombuffer(self.sketch, dtype=np.uint8)
        return pack("screen", header | {"signature": encode(self.signature)}, arrays)

    @classmethod
    def from_bytes(cls, raw: Any, *, limit: int = MAX_BYTES) -> "ScreenBlock":
        header, arrays = unpack(raw, "screen", limit_bytes=limit)
        stated = read_stated(header, "screen", ("most", "mixed"), "columns")
        site, most, mixed = stated["site"], header["most"], header["mixed"]
        if type(most) is not int or most < 0 or not (mixed == "" or is_digest(mixed)):
            raise MessageError(f"The columns of site {site!r} have entries of the wrong kind.")
        every = [label for role in _ROLES for label in stated[role]]
        if not every or len(set(every)) != len(every):
            raise MessageError(f"Site {site!r} brings no columns, or one with two roles.")
        sketch = _sketch_in(site, arrays, mixed)
        commitments: Any = arrays.get("commitments")
        if set(arrays) != {"commitments"} or not are_digests(commitments) or bool(len(commitments)) == bool(mixed):
            raise MessageError(f"The columns of site {site!r} have no commitments, or such to columns that are not shared.")
        return cls(**stated, most=most, mixed=mixed, commitments=commitments, sketch=sketch)


def _sketch_in(site: str, arrays: dict[str, Any], mixed: str) -> bytes:
    """The sketch among a message's arrays, taken out of them; empty where there is none for whoever reads this."""
    raw = arrays.pop("sketch", None)
    if raw is None:
        return b""
    if raw.dtype != np.uint8 or raw.ndim != 1 or hashlib.sha256(raw.tobytes()).hexdigest() != mixed:
        raise MessageError(f"The sketch of site {site!r} is not the one it states.")
    return bytes(raw.tobytes())


@dataclass(frozen=True)
class KeptList:
    """The features to keep in a round, in the order of the roster and of each site's own columns; the server's word alone."""

    study_hash: str
    round: int
    features: tuple[str, ...]
    site: str = "server"

    def to_bytes(self) -> bytes:
        header = {"site": self.site, "study_hash": self.study_hash, "round": self.round, "features": list(self.features)}
        return pack("kept", header, {})

    @classmethod
    def from_bytes(cls, raw: Any) -> "KeptList":
        header, arrays = unpack(raw, "kept")
        site, study_hash = checked(header, "kept", ("round", "features"))
        if arrays or type(header["round"]) is not int or not 1 <= header["round"] <= 100:
            raise MessageError("The list of features to keep has entries of the wrong kind.")
        return cls(study_hash, header["round"], check_labels(header["features"], "feature"), site)

    def mac(self, order_mac: str) -> str:
        """What stands for the cohort in every message of this round."""
        text = json.dumps(["intarsia round 1", order_mac, self.study_hash, self.round, list(self.features)])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Look:
    """What a look multiplies all features with: whole-number weights (columns of the round × responses), the server's word.

    A response weighs 2^spare for itself; what is taken off it has the coefficients as weights.
    """

    study_hash: str
    round: int
    weights: NDArray[np.int64] = field(repr=False)
    site: str = "server"

    def to_bytes(self) -> bytes:
        header = {"site": self.site, "study_hash": self.study_hash, "round": self.round}
        return pack("look", header, {"weights": self.weights})

    @classmethod
    def from_bytes(cls, raw: Any) -> "Look":
        header, arrays = unpack(raw, "look")
        site, study_hash = checked(header, "look", ("round",))
        weights = arrays.get("weights")
        if set(arrays) != {"weights"} or weights is None or weights.dtype != np.int64 or weights.ndim != 2:
            raise MessageError("The weights of a look are not whole numbers of columns and responses.")
        if type(header["round"]) is not int or not 1 <= header["round"] <= 100:
            raise MessageError("A look has entries of the wrong kind.")
        return cls(study_hash, header["round"], np.ascontiguousarray(weights), site)

    def mac(self, round_mac: str) -> str:
        """Binds masks to these weights: holders that were shown different ones give numbers that mean nothing together."""
        return hashlib.sha256(b"intarsia look 1|" + round_mac.encode() + b"|" + self.to_bytes()).hexdigest()

    def check(self, blocks: Mapping[str, GramBlock], spare: int) -> None:
        """Each response whole in its own column and in no other, and coefficients of the size of effects."""
        responses = [role == "responses" for block in blocks.values() for role in _roles_of(block)]
        expected = np.zeros((sum(responses), sum(responses)), dtype=np.int64)
        np.fill_diagonal(expected, 1 << spare)
        if self.weights.shape != (len(responses), sum(responses)):
            raise FederationError("The weights of this look are not of the columns of its round. Refused.")
        at = np.array(responses, dtype=bool)
        if not np.array_equal(self.weights[at], expected):
            raise FederationError("A look changes the responses themselves. Refused.")
        most = (LARGEST << spare) if spare else 0
        if (self.weights[~at] > most).any() or (self.weights[~at] < -most).any():
            raise FederationError("A look takes off more than an effect can be. Refused.")


@dataclass(frozen=True)
class LookShares:
    """A site's answer to a look, signed: the seed of its check weights and, of a holder, its shares of all features' products.

    `sums` are by the sites' places on the roster ((features + CHECKS) × responses), under masks that cancel in the sum of the
    holders.
    """

    site: str
    study_hash: str
    order_mac: str
    round: int
    seed: bytes
    sums: Mapping[str, Ring] = field(default_factory=dict, repr=False)
    signature: bytes = b""

    def body(self) -> bytes:
        """The bytes the signature covers."""
        return replace(self, signature=b"").to_bytes()

    def to_bytes(self) -> bytes:
        header: dict[str, Any] = {name: getattr(self, name) for name in ("site", "study_hash", "order_mac", "round")}
        header |= {"seed": encode(self.seed), "signature": encode(self.signature)}
        return pack("sums", header, {f"sums.{name}": a.view(np.int64) for name, a in self.sums.items()})

    @classmethod
    def from_bytes(cls, raw: Any, *, limit: int = MAX_BYTES) -> "LookShares":
        header, arrays = unpack(raw, "sums", limit_bytes=limit)
        site, study_hash = checked(header, "sums", ("order_mac", "round", "seed", "signature"))
        if type(header["round"]) is not int or not is_digest(header["order_mac"]):
            raise MessageError(f"The sums of site {site!r} have entries of the wrong kind.")
        found = {}
        for label, a in arrays.items():
            kind, _, name = label.partition(".")
            if kind != "sums" or a.dtype != np.int64 or a.ndim != 2:
                raise MessageError(f"The sums of site {site!r} have arrays of the wrong kind.")
            found[name] = np.ascontiguousarray(a).view(np.uint64)
        signature = b"" if header["signature"] == "" else decode(header["signature"], 64, "signature")
        seed = decode(header["seed"], 32, "seed")
        return cls(site, study_hash, header["order_mac"], header["round"], seed, found, signature)


def pieces(n: int, rows: int | None) -> tuple[tuple[Cut, tuple[Cut, ...]], ...]:
    """The subjects of each block of a round, and the pieces in which the features of these subjects go."""
    out = []
    for cut in cuts((n,), rows):
        step = max(LEAST_ROWS, -(-(rows or n) // PARTS))
        edges = [*range(cut.start, cut.stop, step), cut.stop]
        out.append((cut, tuple(Cut(0, a, b) for a, b in pairwise(edges))))
    return tuple(out)


def feature_cuts(n: int, rows: int | None) -> tuple[Cut, ...]:
    """The pieces of all subjects, one after the other."""
    return tuple(piece for _, some in pieces(n, rows) for piece in some)


def left_of(shares: Mapping[str, Mapping[int, Ring]], weights: Mapping[str, Ring], places: Sequence[int]) -> dict[int, Ring]:
    """A holder's shares of what a look multiplies with: the weighted sum of all sites' columns (check columns left out)."""
    out: dict[int, Ring] = {}
    for site, found in shares.items():
        for place, share in found.items():
            if place in places and len(weights[site]):
                part = product(np.ascontiguousarray(share[:, : len(weights[site])].T), weights[site])
                out[place] = part if place not in out else out[place] + part
    return out


def look_term(held: tuple[int, int], features: Mapping[int, Ring], left: Mapping[int, Ring]) -> Ring | None:
    """A holder's term of one site's features times what is left of the responses; None: it has no part of it."""
    h, after = held
    total: Ring | None = None
    right = [left[place] for place in (h, after) if place in left]
    if h in features and right:
        total = product(features[h], np.asarray(sum(right[1:], right[0])))
    if after in features and h in left:
        more = product(features[after], left[h])
        total = more if total is None else total + more
    return total


def of_sites(weights: NDArray[np.int64], blocks: Mapping[str, GramBlock]) -> dict[str, Ring]:
    """The rows of a look's weights that belong to each site's columns."""
    ends = np.cumsum([0, *(block.columns for block in blocks.values())])
    return {name: np.ascontiguousarray(weights[a:b]).view(np.uint64) for name, (a, b) in zip(blocks, pairwise(ends), strict=True)}


def sums_shape(block: ScreenBlock, responses: int) -> tuple[int, int]:
    return block.columns + CHECKS, responses


def _roles_of(block: GramBlock) -> list[str]:
    return [role for role in _ROLES for _ in getattr(block, role)]
