"""The server as the third holder of shares, in a screened study of two sites: a site's `hold` and `look`, done here."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.errors import FederationError
from intarsia.server.study.gram import own_blocks
from intarsia.server.study.screened import look_of, round_path, stated
from intarsia.wire.container import pack, unpack
from intarsia.wire.gram_messages import GramDeal
from intarsia.wire.gram_packets import Holder, Packet
from intarsia.wire.gram_sharing import Cut, Sharing
from intarsia.wire.held_shares import packed, unpacked
from intarsia.wire.ring import Ring
from intarsia.wire.screening import feature_cuts, left_of, look_term, of_sites, pieces, sums_shape
from intarsia.wire.study_parts import SERVER

if TYPE_CHECKING:
    from intarsia.server.study.folder import StudyFolder


def hold(folder: "StudyFolder", piece: int, kind: str) -> None:
    """Keep the server's own shares of a piece of the features, where it is a holder."""
    sharing, target = Sharing.of(folder.study), _packets(folder, piece)
    if not sharing.server_holds or target.is_file():
        return
    blocks, h = stated(folder), sharing.holders.index(SERVER)
    cut = feature_cuts(next(iter(blocks.values())).n, folder.study.sketch.rows)[piece]
    holder = Holder(sharing, SERVER, blocks)
    deals = {name: GramDeal.from_bytes(folder.whole(kind, name)) for name in sharing.sites}
    packets = {name: Packet.checked(deal.sealed[h], holder, blocks[name], deal, cut) for name, deal in deals.items()}
    folder.write(target, packed(packets))


def look(folder: "StudyFolder", at: int) -> None:
    """The server's own shares of a look."""
    sharing, target = Sharing.of(folder.study), _sums(folder, at)
    if not sharing.server_holds or target.is_file():
        return
    from intarsia.server.study.round_folder import RoundFolder  # which rests on this

    blocks, where = stated(folder), round_path(folder, at)
    columns = own_blocks(RoundFolder(folder, at))
    asked, held = look_of(folder, at), sharing.held(SERVER)
    weights, Q = of_sites(asked.weights, columns), asked.weights.shape[1]
    sums = {name: np.zeros(sums_shape(block, Q), dtype=np.uint64) for name, block in blocks.items()}
    few, many = Holder(sharing, SERVER, columns), Holder(sharing, SERVER, blocks)
    piece = 0
    for number, (cut, parts) in enumerate(pieces(next(iter(blocks.values())).n, folder.study.sketch.rows)):
        left = left_of(_shares(where / "holder" / f"packets-{number}.bin", few, number, cut), weights, held)
        for part in parts:
            some = {place: share[part.start - cut.start : part.stop - cut.start] for place, share in left.items()}
            for name, shares in _shares(_packets(folder, piece), many, piece, part).items():
                term = look_term(held, shares, some)
                if term is not None:
                    sums[name] += term
            piece += 1
    arrays = {f"sums.{k}": sums[name].view(np.int64) for k, name in enumerate(blocks)}
    folder.write(target, pack("sums", {"round": at}, arrays))


def sums(folder: "StudyFolder", at: int) -> dict[str, Ring]:
    """What `look` left, by the sites' places on the roster."""
    arrays = unpack(_sums(folder, at).read_bytes(), "sums")[1]
    return {label.removeprefix("sums."): np.ascontiguousarray(a).view(np.uint64) for label, a in arrays.items()}


def _shares(path: Path, holder: Holder, number: int, cut: Cut) -> Any:
    if not path.is_file():
        raise FederationError("The server's own shares of a block are gone from the study folder. Start a new run of the study.")
    return holder.shares(unpacked(path.read_bytes()), number, cut)


def _packets(folder: "StudyFolder", piece: int) -> Path:
    return folder.path / "holder" / f"features-{piece}.bin"


def _sums(folder: "StudyFolder", at: int) -> Path:
    return folder.path / "holder" / f"look-{at}.bin"
