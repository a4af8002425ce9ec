"""What a holder gets of a site's columns for one block, and what a holder (a site, or the server) makes of all of them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError
from intarsia.wire.gram_messages import GramDeal
from intarsia.wire.gram_sharing import (
    CHECKS,
    TAIL,
    Cut,
    Sharing,
    commitment,
    opening,
    opening_weights,
    stream,
    tail_part,
    terms,
)
from intarsia.wire.ring import Ring


class Shared(Protocol):
    """What a site states of the columns it shares: of a Gram matrix, or of a screen."""

    @property
    def site(self) -> str: ...
    @property
    def columns(self) -> int: ...
    @property
    def folds(self) -> tuple[int, ...]: ...
    @property
    def opens(self) -> bool: ...
    @property
    def seeds(self) -> tuple[str, ...]: ...
    @property
    def coin(self) -> str: ...
    @property
    def commitments(self) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class Packet:
    """Seeds of shares by place, the seed of this holder's part of z (empty: it opens nothing of this site), and numbers."""

    seeds: Mapping[int, bytes] = field(repr=False)
    mask: bytes = field(repr=False)
    numbers: Ring | None = field(default=None, repr=False)
    tail: Ring | None = field(default=None, repr=False)

    def raw(self) -> bytes:
        parts = [self.seeds[place] for place in sorted(self.seeds)] + [self.mask]
        return b"".join(parts + [a.astype("<u8", copy=False).tobytes() for a in (self.numbers, self.tail) if a is not None])

    @classmethod
    def checked(cls, raw: bytes, holder: "Holder", sender: Shared, deal: GramDeal, cut: Cut) -> "Packet":
        """Read a packet as this holder must find it, and hold it against what the sender committed to."""
        sharing, held = holder.sharing, holder.sharing.held(holder.name)
        seeded = [place for place in sharing.seeded(sender.site) if place in held]
        last, name = deal.block == len(sender.commitments) - 2, sender.site
        shape = (cut.rows, sender.columns + CHECKS) if sharing.sent(name) in held else (0, 0)
        tail = sender.opens and last and holder.name == sharing.tail_to(name)
        shapes = (shape, (len(sender.folds), sender.columns + CHECKS, CHECKS) if tail else (0, 0, 0))
        places = [*seeded, *([-1] if sender.opens and holder.name in sharing.openers(name) else [])]
        sizes = [32] * len(places) + [8 * int(np.prod(s)) for s in shapes]
        if len(raw) != sum(sizes):
            raise FederationError(f"deal: block {deal.block} of site {name!r} has the wrong size. Refused.")
        ends = np.cumsum([0, *sizes])
        parts = [raw[a:b] for a, b in pairwise(ends)]
        secrets = dict(zip(places, parts, strict=False))
        mask = secrets.pop(-1, b"")
        digests = dict(zip(sharing.seeded(name), sender.seeds, strict=True))
        wrong = any(commitment(seed) != digests[place] for place, seed in secrets.items())
        for text, row in zip(parts[-2:], (deal.block, -1), strict=True):
            wrong |= bool(text) and hashlib.sha256(text).digest() != sender.commitments[row].tobytes()
        if wrong or commitment(deal.coin) != sender.coin:
            raise FederationError(f"deal: block {deal.block} of site {name!r} is not the one it committed to. Refused.")
        numbers = [
            np.frombuffer(t, "<u8").astype(np.uint64, copy=False).reshape(s) for t, s in zip(parts[-2:], shapes, strict=True)
        ]
        return cls(secrets, mask, numbers[0] if parts[-2] else None, numbers[1] if parts[-1] else None)

    def shares(self, sharing: Sharing, site: str, block: int, shape: tuple[int, int]) -> dict[int, Ring]:
        """The shares that it holds, by place; zero ones left out."""
        out = {place: stream(seed, block, shape) for place, seed in self.seeds.items()}
        return out if self.numbers is None else out | {sharing.sent(site): self.numbers}


Shares = Mapping[str, Mapping[int, Ring]]  # by site and place; zero ones left out


@dataclass(frozen=True)
class Holder:
    """One holder's work: `blocks` are all sites' own blocks, `name` is a site's or the server's."""

    sharing: Sharing
    name: str
    blocks: Mapping[str, Shared]

    def shares(self, packets: Mapping[str, Packet], block: int, cut: Cut) -> dict[str, dict[int, Ring]]:
        """What it holds of the other sites' columns for a block."""
        return {
            site: packet.shares(self.sharing, site, block, (cut.rows, self.blocks[site].columns + CHECKS))
            for site, packet in packets.items()
        }

    def add(self, sums: dict[str, Ring], shares: Shares, cut: Cut) -> None:
        """Its terms of the products of one block more, by pair (fold × column × column)."""
        for pair, term in terms(self.sharing, self.name, shares).items():
            if pair not in sums:
                folds = len(next(iter(self.blocks.values())).folds)
                sums[pair] = np.zeros((folds, *term.shape), dtype=np.uint64)
            sums[pair][cut.fold] += term

    def opened(self, packets: Mapping[str, Packet], shares: Shares, coins: Mapping[str, bytes], block: int) -> dict[str, Ring]:
        """Its parts of w for a block, by the sites' places on the roster."""
        out = {}
        for site in self.sharing.opened_by(self.name):
            share = shares[site][self.sharing.openers(site)[self.name]]
            mask = stream(packets[site].mask, block, (len(share), CHECKS))
            weights = opening_weights(coins, site, self.blocks[site].columns)
            out[str(self.sharing.sites.index(site))] = opening(share, weights, mask)
        return out

    def tails(self, packets: Mapping[str, Packet], coins: Mapping[str, bytes]) -> dict[str, Ring]:
        """Its parts of what wᵀw must be more than rᵀGr (fold × CHECKS × CHECKS); from the packets of the last block."""
        out = {}
        for site in self.sharing.opened_by(self.name):
            own, packet = self.blocks[site], packets[site]
            shape = (len(own.folds), own.columns + CHECKS, CHECKS)
            tail = stream(packet.mask, TAIL, shape) if packet.tail is None else packet.tail
            weights = opening_weights(coins, site, own.columns)
            out[str(self.sharing.sites.index(site))] = np.stack([tail_part(one, weights) for one in tail])
        return out
