"""What a holder keeps of the packets it was given, until a look needs them: a file of its own, never a message."""

from collections.abc import Mapping

import numpy as np

from intarsia.wire.container import pack, unpack
from intarsia.wire.gram_packets import Packet


def packed(packets: Mapping[str, Packet]) -> bytes:
    """By site: the seeds of the shares it can make, and the shares that came as numbers. Masks and tails are used up by now."""
    seeds = {site: {str(place): seed.hex() for place, seed in packet.seeds.items()} for site, packet in packets.items()}
    numbers = {f"of.{site}": p.numbers.view(np.int64) for site, p in packets.items() if p.numbers is not None}
    return pack("packets", {"seeds": seeds}, numbers)


def unpacked(raw: bytes) -> dict[str, Packet]:
    header, arrays = unpack(raw, "packets")
    numbers = {label.removeprefix("of."): np.ascontiguousarray(a).view(np.uint64) for label, a in arrays.items()}
    return {
        site: Packet({int(place): bytes.fromhex(text) for place, text in seeds.items()}, b"", numbers.get(site))
        for site, seeds in header["seeds"].items()
    }
