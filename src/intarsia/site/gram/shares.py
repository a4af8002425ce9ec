"""How three sites multiply their columns without showing them: replicated shares, one of them zero.

The sites stand in the order of the roster, in a circle. Site i splits its columns X_i = S_i + M_i modulo 2⁶⁴: S_i is
uniform, made from a secret that i shares with the next site; M_i, uniform by itself, is sealed to the site before. For the
pair (i, j = i + 1)

    X_iᵀX_j  =  X_iᵀM_j  +  S_iᵀS_j  +  M_iᵀS_j

where i has X_i and M_j, j has S_i and S_j, and the third site has M_i and S_j. Each computes its term, and adds masks that
cancel in the sum of the three terms: the server learns the sum and nothing else. One site sees uniform numbers only. Two
sites together have S_i and M_i, so they have the third one's columns (docs/gram.md).
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from intarsia.errors import FederationError, InputError
from intarsia.site.key import SketchKey
from intarsia.wire.gram_messages import PAIRS, check_weights, pair_name, stream
from intarsia.wire.ring import Ring, product
from intarsia.wire.study import Study

MOST_SEALED_BYTES = 2**31 - 64  # what the cipher seals at once


@dataclass(frozen=True)
class Circle:
    """One site's place among the three, and the secrets it shares with the other two for this run and cohort."""

    study: Study
    name: str
    pairs: dict[str, bytes]
    order_mac: str

    @property
    def place(self) -> int:
        return self.study.names.index(self.name)

    def at(self, steps: int) -> str:
        """The site so many places further on."""
        return self.study.names[(self.place + steps) % 3]

    def secret(self, peer: str, purpose: str) -> bytes:
        """A sub-key that this site and the peer have alike, for one purpose."""
        key = SketchKey(self.pairs[peer])
        return key.derive("gram", self.study.id, self.study.run, context=f"{purpose}|{self.order_mac}|{self.study.hash}")

    def own_mask(self, block: int, shape: tuple[int, int]) -> Ring:
        """S of this site."""
        return stream(self.secret(self.at(1), f"mask of {self.name}"), block, shape)

    def mask_before(self, block: int, shape: tuple[int, int]) -> Ring:
        """S of the site before."""
        return stream(self.secret(self.at(2), f"mask of {self.at(2)}"), block, shape)

    def zero(self, pair: tuple[int, int], shape: tuple[int, int]) -> Ring:
        """What this site adds to its share of a product: uniform; over the three sites the sum is zero."""
        number = PAIRS.index(pair)
        mine = stream(self.secret(self.at(1), f"zero of {self.name}"), number, shape)
        return mine - stream(self.secret(self.at(2), f"zero of {self.at(2)}"), number, shape)

    def seal(self, block: int, masked: Ring) -> bytes:
        """M of this site for some subjects, for the site before and nobody else. The same input gives the same bytes."""
        if masked.nbytes > MOST_SEALED_BYTES:
            raise InputError("A block of masked columns has over 2 GB. Choose a smaller rows under [sketch] in study.toml.")
        key, nonce, bound = self._seal(self.name, self.at(2), block)
        return ChaCha20Poly1305(key).encrypt(nonce, masked.astype("<u8", copy=False).tobytes(), bound)

    def open(self, block: int, sealed: bytes, shape: tuple[int, int], commitment: bytes) -> Ring:
        """M of the next site, as it committed to it."""
        key, nonce, bound = self._seal(self.at(1), self.name, block)
        try:
            raw = ChaCha20Poly1305(key).decrypt(nonce, sealed, bound)
        except InvalidTag:
            raise FederationError(
                f"The masked columns of site {self.at(1)!r} (block {block}) were changed on their way, or not made "
                "for this site, "
                "run and cohort. Refused."
            ) from None
        if len(raw) != 8 * shape[0] * shape[1] or hashlib.sha256(raw).digest() != commitment:
            raise FederationError(f"Block {block} of site {self.at(1)!r} is not the one it committed to. Refused.")
        return np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False).reshape(shape)

    def _seal(self, sender: str, receiver: str, block: int) -> tuple[bytes, bytes, bytes]:
        peer = receiver if sender == self.name else sender
        bound = f"intarsia gram deal 1|{self.study.hash}|{self.order_mac}|{sender}|{receiver}|{block}".encode()
        return self.secret(peer, f"seal of {sender}"), block.to_bytes(12, "little"), bound


def with_checks(columns: Ring, seed: bytes) -> Ring:
    """A block of columns and, beside it, the check columns made of them by secret weights."""
    return np.concatenate([columns, columns @ check_weights(seed, columns.shape[1])], axis=1)


def digest(masked: Ring) -> bytes:
    """What a site commits to before a block is used. The block is uniform by itself, so its digest tells nothing."""
    return hashlib.sha256(masked.astype("<u8", copy=False).tobytes()).digest()


def terms(circle: Circle, block: int, own: Ring, received: Ring, width_before: int) -> dict[str, Ring]:
    """This site's terms of the three products over one block of subjects; `received` is M of the next site."""
    mask = circle.own_mask(block, own.shape)  # type: ignore[arg-type]
    before = circle.mask_before(block, (len(own), width_before))
    i = circle.place
    first, second, third = PAIRS[i], PAIRS[(i + 2) % 3], PAIRS[(i + 1) % 3]
    return {
        pair_name(first): product(own, received),  # X_iᵀM_j of the pair (this site, the next)
        pair_name(second): product(before, mask),  # S_iᵀS_j of the pair (the site before, this site)
        pair_name(third): product(received, before),  # M_iᵀS_j of the pair of the other two
    }
