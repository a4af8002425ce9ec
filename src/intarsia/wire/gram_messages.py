"""Messages of a Gram study: a site's own block, shares of its columns for the holders, shares of the products for the server.

The columns of a site stand in the order features, responses, covariates; after them `CHECKS` columns that the site makes of
its own by secret weights, so that the server can tell whether the products were computed rightly. All numbers are modulo 2⁶⁴
(`wire/ring.py`); who holds what is said in `wire/gram_sharing.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError, MessageError
from intarsia.wire.alignment import checked, is_digest
from intarsia.wire.container import MAX_BYTES, pack, unpack
from intarsia.wire.gram_sharing import CHECKS, Cut, Sharing
from intarsia.wire.messages import check_labels, check_most_told, check_scales
from intarsia.wire.ring import Ring, fraction_bits
from intarsia.wire.signed import decode, encode, verify
from intarsia.wire.study import Study
from intarsia.wire.study_parts import LOOK_BITS

BLOCK = "block.number"  # entry of a request that says which block; no site can be called so
ROUNDING = 1e-6  # of n: a sum of squares is off by less than a hundredth of it
_ROLES = ("features", "responses", "covariates")


def widths(n: int) -> tuple[int, int]:
    """The fractional bits that columns of n subjects may have: with and without room for coefficients (`Study.spare_bits`)."""
    return fraction_bits(n), fraction_bits(n, LOOK_BITS)


@dataclass(frozen=True)
class GramBlock:
    """A site's own columns: their labels, their products among each other by fold (fold × column × column), what it commits to.

    `commitments` (messages + 1, each 32 bytes) are the digests of the numbers that it will hand to holders, the last that of the
    products with its masks; `seeds` those of the seeds of its other shares, `check` that of the seed of its check weights, `coin`
    that of its part in the weights by which own blocks are checked. Signed with the site's pinned key.
    """

    site: str
    study_hash: str
    features: tuple[str, ...]
    responses: tuple[str, ...]
    covariates: tuple[str, ...]
    n: int
    folds: tuple[int, ...]
    bits: int
    order_mac: str
    key_fingerprint: str
    check: str
    coin: str
    seeds: tuple[str, ...]
    G: Ring = field(repr=False)
    commitments: NDArray[np.uint8] = field(repr=False)
    response_scales: tuple[float, ...] = ()
    most_told: int | None = None
    signature: bytes = b""

    @property
    def opens(self) -> bool:
        """Its products with itself are checked by opening weighted sums of its columns."""
        return True

    @property
    def columns(self) -> int:
        return len(self.features) + len(self.responses) + len(self.covariates)

    def body(self) -> bytes:
        """The bytes the signature covers."""
        return replace(self, signature=b"").to_bytes()

    def to_bytes(self) -> bytes:
        names = ("site", "study_hash", "n", "bits", "order_mac", "key_fingerprint", "check", "coin")
        header = {name: getattr(self, name) for name in names}
        header |= {name: list(getattr(self, name)) for name in (*_ROLES, "folds", "seeds")}
        header |= {"response_scales": list(self.response_scales), "most_told": self.most_told}
        header |= {"signature": encode(self.signature)}
        return pack("gram", header, {"G": self.G.view(np.int64), "commitments": self.commitments})

    @classmethod
    def from_bytes(cls, raw: Any, *, limit: int = MAX_BYTES) -> "GramBlock":
        header, arrays = unpack(raw, "gram", limit_bytes=limit)
        stated = read_stated(header, "gram", ("folds",), "Gram block")
        site, n, folds = stated["site"], stated["n"], header["folds"]
        parts = isinstance(folds, list) and 0 < len(folds) <= 20 and all(type(k) is int and k > 0 for k in folds)
        if not parts or sum(folds) != n:
            raise MessageError(f"The Gram block of site {site!r} has entries of the wrong kind.")
        labels = [label for role in _ROLES for label in stated[role]]
        if len(set(labels)) != len(labels):
            raise MessageError(f"The Gram block of site {site!r} has a column with two roles.")
        if set(arrays) != {"G", "commitments"}:
            raise MessageError(f"The Gram block of site {site!r} lacks its matrix or its commitments.")
        G, commitments, c = arrays["G"], arrays["commitments"], len(labels)
        if G.dtype != np.int64 or G.shape != (len(folds), c, c) or not np.array_equal(G, G.transpose(0, 2, 1)):
            raise MessageError(f"The Gram block of site {site!r} is not a symmetric matrix of its {c} columns.")
        if not are_digests(commitments) or len(commitments) < 2:
            raise MessageError(f"The Gram block of site {site!r} has no commitments.")
        return cls(**stated, folds=tuple(folds), G=np.ascontiguousarray(G).view(np.uint64), commitments=commitments)


def read_stated(header: Mapping[str, Any], kind: str, more: tuple[str, ...], what: str) -> dict[str, Any]:
    """What every statement of shared columns says in its header, checked; `more` are the fields that this kind has beside."""
    plain = ("order_mac", "key_fingerprint", "check", "coin")
    fields = (*plain, "n", "bits", "seeds", "response_scales", "most_told", "signature", *more, *_ROLES)
    site, study_hash = checked(header, kind, fields)
    n, bits, seeds = header["n"], header["bits"], header["seeds"]
    labels: dict[str, Any] = {role: check_labels(header[role], role[:-1]) for role in _ROLES}
    listed = isinstance(seeds, list) and 0 < len(seeds) <= 2
    digests = listed and all(is_digest(text) for text in (header["order_mac"], header["check"], header["coin"], *seeds))
    whole = type(n) is int and type(bits) is int and 2 <= n < 2**40 and bits in widths(n)
    if not whole or not digests or not _hex(header["key_fingerprint"], 32):
        raise MessageError(f"The {what} of site {site!r} {'have' if what.endswith('s') else 'has'} entries of the wrong kind.")
    check_most_told(header["most_told"], site)
    return {
        "site": site, "study_hash": study_hash, **labels, "n": n, "bits": bits, "seeds": tuple(seeds),
        **{name: header[name] for name in (*plain, "most_told")},
        "response_scales": check_scales(header["response_scales"], len(labels["responses"])),
        "signature": b"" if header["signature"] == "" else decode(header["signature"], 64, "signature"),
    }  # fmt: skip


def are_digests(found: Any) -> bool:
    """Rows of 32 bytes each."""
    return found is not None and found.dtype == np.uint8 and found.ndim == 2 and found.shape[1] == 32


@dataclass(frozen=True)
class GramDeal:
    """Shares of a site's columns for some subjects, sealed to each holder (by its place); nobody else can read or make them.

    What goes to the server, where it is a holder, is not sealed. `coin` opens the site's part in the weights by which own blocks
    are checked.
    """

    site: str
    study_hash: str
    block: int
    order_mac: str
    coin: bytes
    sealed: Mapping[int, bytes] = field(repr=False)

    def only(self, holder: int) -> "GramDeal":
        """What one holder needs of it."""
        return replace(self, sealed={holder: self.sealed[holder]} if holder in self.sealed else {})

    def to_bytes(self) -> bytes:
        header: dict[str, Any] = {name: getattr(self, name) for name in ("site", "study_hash", "block", "order_mac")}
        header["coin"] = encode(self.coin)
        return pack("deal", header, {f"holder.{h}": np.frombuffer(raw, dtype=np.uint8) for h, raw in self.sealed.items()})

    @classmethod
    def from_bytes(cls, raw: Any, *, limit: int = MAX_BYTES) -> "GramDeal":
        header, arrays = unpack(raw, "deal", limit_bytes=limit)
        site, study_hash = checked(header, "deal", ("block", "order_mac", "coin"))
        block = header["block"]
        places = {f"holder.{h}": h for h in range(3)}
        if set(arrays) - set(places) or any(a.dtype != np.uint8 or a.ndim != 1 for a in arrays.values()):
            raise MessageError(f"The shares of site {site!r} are not sealed bytes.")
        if type(block) is not int or not 0 <= block < 2**40:
            raise MessageError(f"The shares of site {site!r} have entries of the wrong kind.")
        if not is_digest(header["order_mac"]):
            raise MessageError(f"The shares of site {site!r} name no cohort.")
        coin = decode(header["coin"], 32, "coin")
        return cls(site, study_hash, block, header["order_mac"], coin, {places[name]: a.tobytes() for name, a in arrays.items()})


@dataclass(frozen=True)
class GramProduct:
    """What a site computed of a block, signed. After the last one it has `seed`, which opens the site's check weights.

    Arrays are by the sites' places on the roster ("0", of pairs "0-1"). Of a holder: `opened` are its parts of w of the other
    sites for this block, and after the last block `products` its shares of all products between sites (fold × column × column),
    under masks that cancel in the sum of the holders, `tails` its shares of what w must amount to (fold × CHECKS × CHECKS) and
    `coins` what the sites showed it. A site that holds no shares has none of them.
    """

    site: str
    study_hash: str
    order_mac: str
    block: int
    seed: bytes = b""
    coins: Mapping[str, bytes] = field(default_factory=dict)
    opened: Mapping[str, Ring] = field(default_factory=dict, repr=False)
    products: Mapping[str, Ring] = field(default_factory=dict, repr=False)
    tails: Mapping[str, Ring] = field(default_factory=dict, repr=False)
    signature: bytes = b""

    @property
    def final(self) -> bool:
        return bool(self.seed)

    def body(self) -> bytes:
        """The bytes the signature covers."""
        return replace(self, signature=b"").to_bytes()

    def to_bytes(self) -> bytes:
        header: dict[str, Any] = {name: getattr(self, name) for name in ("site", "study_hash", "order_mac", "block")}
        header |= {"seed": encode(self.seed), "signature": encode(self.signature)}
        header["coins"] = {name: encode(coin) for name, coin in self.coins.items()}
        parts = {f"{kind}.{name}": a.view(np.int64) for kind in _ARRAYS for name, a in getattr(self, kind).items()}
        return pack("product", header, parts)

    @classmethod
    def from_bytes(cls, raw: Any, *, limit: int = MAX_BYTES) -> "GramProduct":
        header, arrays = unpack(raw, "product", limit_bytes=limit)
        site, study_hash = checked(header, "product", ("order_mac", "block", "seed", "coins", "signature"))
        block, coins = header["block"], header["coins"]
        if type(block) is not int or not 0 <= block < 2**40 or not is_digest(header["order_mac"]) or not isinstance(coins, dict):
            raise MessageError(f"The products of site {site!r} have entries of the wrong kind.")
        found: dict[str, dict[str, Ring]] = {kind: {} for kind in _ARRAYS}
        for label, a in arrays.items():
            kind, _, name = label.partition(".")
            if kind not in found or a.dtype != np.int64 or a.ndim != _ARRAYS[kind]:
                raise MessageError(f"The products of site {site!r} have arrays of the wrong kind.")
            found[kind][name] = np.ascontiguousarray(a).view(np.uint64)
        seed = b"" if header["seed"] == "" else decode(header["seed"], 32, "seed")
        signature = b"" if header["signature"] == "" else decode(header["signature"], 64, "signature")
        shown = {str(name): decode(coin, 32, "coin") for name, coin in coins.items()}
        return cls(site, study_hash, header["order_mac"], block, seed, shown, **found, signature=signature)


_ARRAYS = {"opened": 2, "products": 3, "tails": 3}  # their dimensions


def check_shapes(product: GramProduct, sharing: Sharing, blocks: Mapping[str, GramBlock], cut: Cut, last: bool) -> None:
    """The parts a site owes for a block, by name and shape."""
    holds, folds = product.site in sharing.holders, len(blocks[product.site].folds)
    opened = [str(sharing.sites.index(name)) for name in sharing.opened_by(product.site)] if holds else []
    width = {name: block.columns + CHECKS for name, block in blocks.items()}
    pairs = sharing.pairs if holds and last else {}
    expected: dict[str, dict[str, tuple[int, ...]]] = {
        "opened": dict.fromkeys(opened, (cut.rows, CHECKS)),
        "products": {name: (folds, width[a], width[b]) for name, (a, b) in pairs.items()},
        "tails": dict.fromkeys(opened if last else [], (folds, CHECKS, CHECKS)),
    }
    found = {kind: {name: a.shape for name, a in getattr(product, kind).items()} for kind in expected}
    if found != expected or product.final != last or (holds and last and set(product.coins) != set(sharing.sites)):
        raise MessageError(f"the products of site {product.site!r} lack a part, or have one of the wrong shape.")


class SignedBySite(Protocol):
    """A message that a site signs: its own columns or what it computed."""

    @property
    def site(self) -> str: ...
    @property
    def study_hash(self) -> str: ...
    @property
    def signature(self) -> bytes: ...
    def body(self) -> bytes: ...


def check_signed(study: Study, name: str, message: SignedBySite, what: str) -> None:
    """A message of this site, for this run, signed with its pinned key; `what` it is, in words."""
    if (message.site, message.study_hash) != (name, study.hash):
        raise FederationError(f"The {what} handed over for site {name!r} is of another site, study or run. Refused.")
    key = study.site(name).signing_key
    if key is None or not verify(key, message.signature, message.body()):
        raise FederationError(f"The {what} of site {name!r} is not signed with its key in study.toml. Refused.")


def check_standardised(block: GramBlock, may_be_empty: bool = False) -> None:
    """Every column has Σx² = n − 1 but for rounding: one of another length would be shrunk otherwise than the others.

    A site may bring no column only to a round of a screened study.
    """
    if not block.columns and not may_be_empty:
        raise FederationError(f"gram: site {block.site!r} brings no columns. Refused.")
    lengths = np.ldexp(np.diagonal(block.G, axis1=1, axis2=2).view(np.int64).astype(np.float64).sum(axis=0), -2 * block.bits)
    if (np.abs(lengths - (block.n - 1)) > ROUNDING * block.n).any():
        raise FederationError(
            f"gram: the columns of site {block.site!r} are not standardised: each must have a sum of squares of n − 1. Refused; "
            "nothing was shared with it. Ask the site which version of intarsia made its block."
        )


def _hex(value: Any, length: int) -> bool:
    return isinstance(value, str) and len(value) == length and not set(value) - set("0123456789abcdef")
