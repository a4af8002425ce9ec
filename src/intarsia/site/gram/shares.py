"""A site's shares of its columns: what it gives to the holders, sealed to each, and what it opens of the others'.

Everything secret of a run comes from 32 bytes of the site, by purpose (`gram_sharing.derived`). What a holder gets for a block
of subjects is a packet: the seeds of the shares it can make itself, the seed of its part of z, and where it needs them, numbers.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from intarsia.errors import FederationError, InputError
from intarsia.site.key import SketchKey
from intarsia.wire.gram_messages import GramDeal
from intarsia.wire.gram_packets import Holder, Packet, Shared
from intarsia.wire.gram_sharing import CHECKS, TAIL, Cut, Sharing, check_weights, derived, stream, times
from intarsia.wire.ring import Ring
from intarsia.wire.study import Study
from intarsia.wire.study_parts import SERVER

MOST_SEALED_BYTES = 2**31 - 64  # what the cipher seals at once


@dataclass(frozen=True)
class Splitting:
    """How a site splits its columns: all of it follows from the site's secret for this run."""

    sharing: Sharing
    site: str
    secret: bytes = field(repr=False)

    @property
    def check_seed(self) -> bytes:
        return derived(self.secret, "check")

    @property
    def coin(self) -> bytes:
        return derived(self.secret, "coin")

    @property
    def seeds(self) -> dict[int, bytes]:
        """Of the shares that are not sent as numbers, by the share's place."""
        return {place: derived(self.secret, f"share {place}") for place in self.sharing.seeded(self.site)}

    def mask_seed(self, holder: str) -> bytes:
        """Of one holder's part of z."""
        return derived(self.secret, f"mask for {holder}")

    def wide(self, columns: Ring) -> Ring:
        """A block of columns and, beside it, the check columns made of them by secret weights."""
        return np.concatenate([columns, times(columns, check_weights(self.check_seed, columns.shape[1]))], axis=1)

    def shares(self, block: int, wide: Ring) -> dict[int, Ring]:
        """The shares of a block by place, zero ones left out."""
        out = {place: stream(seed, block, wide.shape) for place, seed in self.seeds.items()}
        rest = wide
        for share in out.values():
            rest = rest - share
        return out | {self.sharing.sent(self.site): rest}

    def z(self, block: int, rows: int) -> Ring:
        """The uniform columns that hide what is opened of this site's columns."""
        parts = [stream(self.mask_seed(holder), block, (rows, CHECKS)) for holder in self.sharing.openers(self.site)]
        return np.asarray(sum(parts[1:], parts[0]))

    def tail_sent(self, tail: Ring) -> Ring:
        """a and b (fold × (columns + CHECKS) × CHECKS) less the parts that holders make from their seeds."""
        last = self.sharing.tail_to(self.site)
        for holder in self.sharing.openers(self.site):
            if holder != last:
                tail = tail - stream(self.mask_seed(holder), TAIL, tail.shape)
        return tail

    def packet(self, holder: str, sent: Ring, tail: Ring | None, opens: bool = True) -> Packet:
        """What a holder gets of a block; `tail` comes with the last one. Nothing to open: no mask."""
        held = self.sharing.held(holder)
        seeds = {place: seed for place, seed in self.seeds.items() if place in held}
        mask = self.mask_seed(holder) if opens and holder in self.sharing.openers(self.site) else b""
        numbers = sent if self.sharing.sent(self.site) in held else None
        return Packet(seeds, mask, numbers, tail if holder == self.sharing.tail_to(self.site) else None)


@dataclass(frozen=True)
class Circle:
    """One site among the holders, and the secrets it shares with the other sites for this run and cohort."""

    study: Study
    name: str
    pairs: dict[str, bytes] = field(repr=False)
    order_mac: str = ""

    @property
    def sharing(self) -> Sharing:
        return Sharing.of(self.study)

    def secret(self, peer: str, purpose: str) -> bytes:
        """A sub-key that this site and the peer have alike, for one purpose."""
        key = SketchKey(self.pairs[peer])
        return key.derive("gram", self.study.id, self.study.run, context=f"{purpose}|{self.order_mac}|{self.study.hash}")

    def zero(self, number: int, shape: tuple[int, ...]) -> Ring:
        """What this site adds to its share of a product: uniform; over the holders the sum is zero.

        The server, where it is a holder, adds nothing: the sum is its own to make.
        """
        holders = self.sharing.holders
        h, out = holders.index(self.name), np.zeros(shape, dtype=np.uint64)
        after, before = holders[(h + 1) % 3], holders[(h + 2) % 3]
        if after != SERVER:
            out += stream(self.secret(after, f"zero of {self.name}"), number, shape)
        if before != SERVER:
            out -= stream(self.secret(before, f"zero of {before}"), number, shape)
        return out

    def seal(self, holder: str, block: int, packet: Packet) -> bytes:
        """A packet for one holder and nobody else. The same input gives the same bytes; the server's is not sealed."""
        raw = packet.raw()
        if len(raw) > MOST_SEALED_BYTES:
            raise InputError("A block of shares has over 2 GB. Choose a smaller rows under [sketch] in study.toml.")
        if holder == SERVER:
            return raw
        key, nonce, bound = self._seal(self.name, holder, block)
        return ChaCha20Poly1305(key).encrypt(nonce, raw, bound)

    def open(self, holder: Holder, sender: Shared, deal: GramDeal, cut: Cut) -> Packet:
        """What a site gave this one for a block, as it committed to it."""
        sealed = deal.sealed.get(self.sharing.holders.index(self.name), b"")
        key, nonce, bound = self._seal(sender.site, self.name, deal.block)
        try:
            raw = ChaCha20Poly1305(key).decrypt(nonce, sealed, bound)
        except InvalidTag:
            raise FederationError(
                f"The shares of site {sender.site!r} (block {deal.block}) were changed on their way, or not made for this site, "
                "run and cohort. Refused."
            ) from None
        return Packet.checked(raw, holder, sender, deal, cut)

    def _seal(self, sender: str, receiver: str, block: int) -> tuple[bytes, bytes, bytes]:
        peer = receiver if sender == self.name else sender
        bound = f"intarsia gram deal 2|{self.study.hash}|{self.order_mac}|{sender}|{receiver}|{block}".encode()
        return self.secret(peer, f"seal of {sender}"), block.to_bytes(12, "little"), bound


def fold_places(tokens: np.ndarray, key: bytes, folds: int) -> np.ndarray:
    """The fold of each subject, by the rank of a keyed hash of its token: folds as equal as can be, known to the sites alone."""
    hashes = [hashlib.blake2b(token.tobytes(), key=key, digest_size=16).digest() for token in tokens]
    rank = np.empty(len(hashes), dtype=np.int64)
    rank[sorted(range(len(hashes)), key=hashes.__getitem__)] = np.arange(len(hashes))
    return rank % folds


def received(circle: Circle, peers: Mapping[str, Any], payload: Mapping[str, bytes], block: int) -> dict[str, GramDeal]:
    """Every other site's deal of a block, addressed to this holder."""
    out = {}
    for name in circle.sharing.sites:
        if name == circle.name:
            continue
        if name not in payload:
            raise FederationError(f"The shares of site {name!r} are missing.")
        deal = GramDeal.from_bytes(payload[name])
        if (deal.site, deal.study_hash, deal.block, deal.order_mac) != (name, circle.study.hash, block, peers[name].order_mac):
            raise FederationError(f"These shares are not block {block} of site {name!r} for this run and cohort. Refused.")
        out[name] = deal
    return out
