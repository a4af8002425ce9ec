"""The server as the third holder of shares, in a Gram study of two sites: what a site does in `multiply`, done here.

It has one share of each site's columns, uniform by itself. Its own sums stay in its folder; they are worth nothing to anybody
without the sites' shares, and with these they are the Gram matrix, which the server gets anyway.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import FederationError
from intarsia.wire.container import pack, unpack
from intarsia.wire.gram_messages import GramBlock, GramDeal
from intarsia.wire.gram_packets import Holder, Packet
from intarsia.wire.gram_sharing import Sharing, cuts
from intarsia.wire.held_shares import packed
from intarsia.wire.ring import Ring
from intarsia.wire.study_parts import SERVER

if TYPE_CHECKING:
    from intarsia.server.study.folder import StudyFolder


def multiply(folder: "StudyFolder", number: int, kind: str) -> None:
    """One block more in the server's own sums, from what the sites dealt; a block that was done before is left alone."""
    sharing = Sharing.of(folder.study)
    at, sums = _load(folder)
    if not sharing.server_holds or number < at:
        return
    if number > at:
        raise FederationError(f"Block {number} was dealt before block {at} was multiplied. Deal block {at} first.")
    blocks = {name: GramBlock.from_bytes(folder.whole("sketch", name)) for name in sharing.sites}
    through = cuts(next(iter(blocks.values())).folds, folder.study.sketch.rows)
    holder, cut = Holder(sharing, SERVER, blocks), through[number]
    deals = {name: GramDeal.from_bytes(folder.whole(kind, name)) for name in sharing.sites}
    h = sharing.holders.index(SERVER)
    packets = {name: Packet.checked(deal.sealed[h], holder, blocks[name], deal, cut) for name, deal in deals.items()}
    if folder.round is not None:
        folder.write(_file(folder, f"packets-{number}"), packed(packets))  # the look after this round needs them
    coins = {name: deal.coin for name, deal in deals.items()}
    shares = holder.shares(packets, number, cut)
    holder.add(sums, shares, cut)
    found = {f"opened.{k}": part for k, part in holder.opened(packets, shares, coins, number).items()}
    if number == len(through) - 1:
        found |= {f"tails.{k}": part for k, part in holder.tails(packets, coins).items()}
    folder.write(_file(folder, f"opened-{number}"), _packed(found))
    folder.write(
        _file(folder, "sums"), pack("sums", {"at": number + 1}, {f"pair.{k}": v.view(np.int64) for k, v in sums.items()})
    )


def done(folder: "StudyFolder") -> bool:
    """Whether the server has done all blocks, where it is a holder."""
    sharing = Sharing.of(folder.study)
    if not sharing.server_holds:
        return True
    block = GramBlock.from_bytes(folder.whole("sketch", sharing.sites[0]))
    return _load(folder)[0] == len(cuts(block.folds, folder.study.sketch.rows))


def products(folder: "StudyFolder") -> dict[str, Ring]:
    """The server's shares of the products."""
    return _load(folder)[1]


def opened(folder: "StudyFolder", number: int) -> dict[str, Ring]:
    """The server's parts of w for a block, by the sites' places."""
    return _unpacked(folder, number, "opened")


def tails(folder: "StudyFolder") -> dict[str, Ring]:
    """The server's parts of what w must amount to."""
    return _unpacked(folder, _load(folder)[0] - 1, "tails")


def _file(folder: "StudyFolder", name: str) -> Path:
    return folder.path / "holder" / f"{name}.bin"


def _packed(found: dict[str, Ring]) -> bytes:
    return pack("opened", {}, {name: part.view(np.int64) for name, part in found.items()})


def _unpacked(folder: "StudyFolder", number: int, kind: str) -> dict[str, Ring]:
    _header, arrays = unpack(_file(folder, f"opened-{number}").read_bytes(), "opened")
    whole = {tuple(label.split(".")): np.ascontiguousarray(a).view(np.uint64) for label, a in arrays.items()}
    return {k: part for (what, k), part in whole.items() if what == kind}


def _load(folder: "StudyFolder") -> tuple[int, dict[str, Ring]]:
    path = _file(folder, "sums")
    if not path.is_file():
        return 0, {}
    header, arrays = unpack(path.read_bytes(), "sums")
    found = {label.removeprefix("pair."): np.array(a).view(np.uint64) for label, a in arrays.items()}
    return int(header["at"]), found
