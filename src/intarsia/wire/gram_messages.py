"""Messages of a Gram study: a site's own block, masked columns from site to site, shares of the products for the server.

The columns of a site stand in the order features, responses, covariates; after them `CHECKS` columns that the site makes of
its own by secret weights, so that the server can tell whether the products were computed rightly. All numbers are modulo 2⁶⁴
(`wire/ring.py`).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError, MessageError
from intarsia.wire.alignment import checked, is_digest
from intarsia.wire.container import MAX_BYTES, pack, unpack
from intarsia.wire.messages import check_labels, check_scales
from intarsia.wire.ring import Ring, fraction_bits
from intarsia.wire.signed import decode, encode, verify
from intarsia.wire.study import Study

BLOCK = "block.number"  # entry of a request that says which block; no site can be called so
CHECKS = 4  # check columns per site
PAIRS = ((0, 1), (1, 2), (2, 0))  # sites of the roster whose columns are multiplied
_ROLES = ("features", "responses", "covariates")
_ZEROS = memoryview(bytes(1 << 20))


def stream(secret: bytes, number: int, shape: tuple[int, int]) -> Ring:
    """Uniform numbers of the ring: ChaCha20 under a secret, one nonce per message number."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    out = np.empty(shape, dtype="<u8")
    cipher = Cipher(ChaCha20(secret, bytes(4) + number.to_bytes(12, "little")), None).encryptor()
    view = out.reshape(-1).data.cast("B")
    for a in range(0, view.nbytes, len(_ZEROS)):
        piece = view[a : a + len(_ZEROS)]
        cipher.update_into(_ZEROS[: piece.nbytes], piece)
    return out.astype(np.uint64, copy=False)


def check_weights(seed: bytes, columns: int) -> Ring:
    """The secret weights (columns × CHECKS) by which a site makes its check columns of its own."""
    return stream(hashlib.sha256(b"intarsia gram check 1|" + seed).digest(), 0, (columns, CHECKS))


def seed_digest(seed: bytes) -> str:
    """What a site states of its weights before anything is multiplied."""
    return hashlib.sha256(b"intarsia gram seed 1|" + seed).hexdigest()


@dataclass(frozen=True)
class GramBlock:
    """A site's own columns: their labels, their products among each other, and what it commits to.

    `commitments` (messages × 32 bytes) are the digests of the masked columns that it will hand to another site, `check` that
    of the seed of its check weights. Signed with the site's pinned key.
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
    G: Ring = field(repr=False)
    commitments: NDArray[np.uint8] = field(repr=False)
    response_scales: tuple[float, ...] = ()
    signature: bytes = b""

    @property
    def columns(self) -> int:
        return len(self.features) + len(self.responses) + len(self.covariates)

    def body(self) -> bytes:
        """The bytes the signature covers."""
        return replace(self, signature=b"").to_bytes()

    def to_bytes(self) -> bytes:
        names = ("site", "study_hash", "n", "bits", "order_mac", "key_fingerprint", "check")
        header = {name: getattr(self, name) for name in names} | {role: list(getattr(self, role)) for role in _ROLES}
        header |= {"response_scales": list(self.response_scales), "signature": encode(self.signature)}
        return pack("gram", header, {"G": self.G.view(np.int64), "commitments": self.commitments})

    @classmethod
    def from_bytes(cls, raw: Any, *, limit: int = MAX_BYTES) -> "GramBlock":
        header, arrays = unpack(raw, "gram", limit_bytes=limit)
        entries = ("n", "bits", "order_mac", "key_fingerprint", "check", "response_scales", "signature", *_ROLES)
        site, study_hash = checked(header, "gram", entries)
        n, bits = header["n"], header["bits"]
        labels: dict[str, Any] = {role: check_labels(header[role], role[:-1]) for role in _ROLES}
        c = sum(len(found) for found in labels.values())
        texts = is_digest(header["order_mac"]) and is_digest(header["check"]) and _hex(header["key_fingerprint"], 32)
        if type(n) is not int or type(bits) is not int or not 2 <= n < 2**40 or bits != fraction_bits(n) or not texts:
            raise MessageError(f"The Gram block of site {site!r} has entries of the wrong kind.")
        if not c or len({label for found in labels.values() for label in found}) != c:
            raise MessageError(f"The Gram block of site {site!r} has no columns, or a column with two roles.")
        if set(arrays) != {"G", "commitments"}:
            raise MessageError(f"The Gram block of site {site!r} lacks its matrix or its commitments.")
        G, commitments = arrays["G"], arrays["commitments"]
        if G.dtype != np.int64 or G.shape != (c, c) or not np.array_equal(G, G.T):
            raise MessageError(f"The Gram block of site {site!r} is not a symmetric matrix of its {c} columns.")
        if commitments.dtype != np.uint8 or commitments.ndim != 2 or commitments.shape[1] != 32 or not len(commitments):
            raise MessageError(f"The Gram block of site {site!r} has no commitments.")
        scales = check_scales(header["response_scales"], len(labels["responses"]))
        rest: dict[str, Any] = {name: header[name] for name in ("order_mac", "key_fingerprint", "check")}
        signature = b"" if header["signature"] == "" else decode(header["signature"], 64, "signature")
        return cls(site, study_hash, **labels, n=n, bits=bits, **rest, G=np.ascontiguousarray(G).view(np.uint64),
                   commitments=commitments, response_scales=scales, signature=signature)  # fmt: skip


@dataclass(frozen=True)
class GramDeal:
    """Masked columns of some subjects, sealed by one site to another; nobody else can read or make it."""

    site: str
    study_hash: str
    to: str
    block: int
    order_mac: str
    sealed: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        header = {name: getattr(self, name) for name in ("site", "study_hash", "to", "block", "order_mac")}
        return pack("deal", header, {"sealed": np.frombuffer(self.sealed, dtype=np.uint8)})

    @classmethod
    def from_bytes(cls, raw: Any, *, limit: int = MAX_BYTES) -> "GramDeal":
        header, arrays = unpack(raw, "deal", limit_bytes=limit)
        site, study_hash = checked(header, "deal", ("to", "block", "order_mac"))
        sealed, block = arrays.get("sealed"), header["block"]
        if set(arrays) != {"sealed"} or sealed is None or sealed.dtype != np.uint8 or sealed.ndim != 1:
            raise MessageError(f"The masked columns of site {site!r} are not sealed bytes.")
        if type(block) is not int or not 0 <= block < 2**40 or not isinstance(header["to"], str):
            raise MessageError(f"The masked columns of site {site!r} have entries of the wrong kind.")
        if not is_digest(header["order_mac"]):
            raise MessageError(f"The masked columns of site {site!r} name no cohort.")
        return cls(site, study_hash, header["to"], block, header["order_mac"], sealed.tobytes())


@dataclass(frozen=True)
class GramProduct:
    """A site's shares of all products between sites, under masks that cancel in the sum of the three sites; after the last block.

    Before that the message only says which block is done. `products` are by pair of sites, `seed` opens the site's check weights.
    """

    site: str
    study_hash: str
    order_mac: str
    block: int
    seed: bytes = b""
    products: Mapping[str, Ring] = field(default_factory=dict, repr=False)
    signature: bytes = b""

    @property
    def final(self) -> bool:
        return bool(self.products)

    def body(self) -> bytes:
        """The bytes the signature covers."""
        return replace(self, signature=b"").to_bytes()

    def to_bytes(self) -> bytes:
        header = {name: getattr(self, name) for name in ("site", "study_hash", "order_mac", "block")}
        header |= {"seed": encode(self.seed), "signature": encode(self.signature)}
        return pack("product", header, {name: product.view(np.int64) for name, product in self.products.items()})

    @classmethod
    def from_bytes(cls, raw: Any, *, limit: int = MAX_BYTES) -> "GramProduct":
        header, arrays = unpack(raw, "product", limit_bytes=limit)
        site, study_hash = checked(header, "product", ("order_mac", "block", "seed", "signature"))
        block = header["block"]
        if type(block) is not int or not 0 <= block < 2**40 or not is_digest(header["order_mac"]):
            raise MessageError(f"The products of site {site!r} have entries of the wrong kind.")
        whole = set(arrays) == {pair_name(pair) for pair in PAIRS}
        if arrays and not (whole and all(a.dtype == np.int64 and a.ndim == 2 for a in arrays.values())):
            raise MessageError(f"The products of site {site!r} are not those of the three pairs of sites.")
        seed = decode(header["seed"], 32 if arrays else 0, "seed")
        signature = b"" if header["signature"] == "" else decode(header["signature"], 64, "signature")
        products = {name: np.ascontiguousarray(a).view(np.uint64) for name, a in arrays.items()}
        return cls(site, study_hash, header["order_mac"], block, seed, products, signature)


def pair_name(pair: tuple[int, int]) -> str:
    return f"G{pair[0]}{pair[1]}"


def check_signed(study: Study, name: str, message: GramBlock | GramProduct) -> None:
    """A message of this site, for this run, signed with its pinned key."""
    what = "Gram block" if isinstance(message, GramBlock) else "products"
    if (message.site, message.study_hash) != (name, study.hash):
        raise FederationError(f"The {what} handed over for site {name!r} is of another site, study or run. Refused.")
    key = study.site(name).signing_key
    if key is None or not verify(key, message.signature, message.body()):
        raise FederationError(f"The {what} of site {name!r} is not signed with its key in study.toml. Refused.")


def _hex(value: Any, length: int) -> bool:
    return isinstance(value, str) and len(value) == length and not set(value) - set("0123456789abcdef")
