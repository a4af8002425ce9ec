"""The server's checks of a screened study's messages, and what the rounds leave: the table of looks and the joined columns.

What is screened is bound to what is kept: the exact products of a kept feature with the responses, which a round's Gram matrix
has, must be those that a look gave for it, number by number in the ring. A site that shared other columns than it states of a
round is found out there, and so is a holder that computed a look wrongly, by the check columns of every site.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.errors import FederationError
from intarsia.files import read_json
from intarsia.server.study.sent_columns import check_agreed, check_beside, check_columns
from intarsia.wire.gram_messages import GramBlock, GramProduct, check_signed, widths
from intarsia.wire.gram_sharing import Sharing, check_weights, commitment, times
from intarsia.wire.messages import Joined, Sketch, join
from intarsia.wire.ring import Ring
from intarsia.wire.screening import KeptList, Look, LookShares, ScreenBlock, feature_cuts, sums_shape

if TYPE_CHECKING:
    from intarsia.privacy.facts import Screen
    from intarsia.server.study.folder import StudyFolder
    from intarsia.wire.study import Study

TABLE = "screened.json"  # what was looked at: the result of the screen, beside posterior.nc


def stated(folder: "StudyFolder") -> dict[str, ScreenBlock]:
    """What every site stated of its columns, in the order of the roster."""
    folder.require("sketch")
    return {name: ScreenBlock.from_bytes(folder.whole("sketch", name)) for name in folder.names}


def last_round(folder: "StudyFolder") -> int:
    return 1 + folder.study.sketch.looks


def round_path(folder: "StudyFolder", at: int) -> Path:
    return folder.path / "rounds" / str(at)


def check_columns_stated(folder: "StudyFolder", sender: str, raw: bytes | Path) -> None:
    """Signed, of the agreed cohort, with the columns the study gives this site."""
    block, study = ScreenBlock.from_bytes(raw), folder.study
    folder.same_hash("columns", sender, block.study_hash, block.site)
    check_signed(study, sender, block, "columns")
    check_columns(study, sender, block, folder.announced(sender))
    seeds = len(Sharing.of(study).seeded(sender))
    shared = 0 if study.sketch.by_sketch else len(feature_cuts(block.n, study.sketch.rows))
    whole = len(block.commitments) == shared and len(block.seeds) == seeds
    if not whole or block.bits != widths(block.n)[bool(study.spare_bits)]:
        raise FederationError(f"The columns of site {sender!r} have other commitments than the study asks for. Refused.")
    if block.most < 1:
        raise FederationError(f"The gate of site {sender!r} lets no feature be kept. Use a sketch, or fewer columns.")
    check_agreed(folder, sender, block, "columns")
    if study.sketch.by_sketch:
        check_sketch(study, sender, block)
    check_beside(folder, sender, block, ScreenBlock)


def check_sketch(study: "Study", sender: str, block: ScreenBlock) -> None:
    """The sketch that screens: of the study's size, and of the columns, people and key of the message it came with."""
    found = Sketch.load(block.sketch)
    terms = (found.m, found.kind, found.precision, found.noise)
    if terms != (study.sketch.m, study.sketch.mixing, study.sketch.precision, 0.0):
        raise FederationError(f"The sketch of site {sender!r} is of another size, kind or precision than the study's. Refused.")
    own = ("site", "study_hash", "features", "responses", "covariates", "n", "order_mac", "key_fingerprint")
    if any(getattr(found, what) != getattr(block, what) for what in own):
        raise FederationError(f"The sketch of site {sender!r} is not of the columns or the cohort that it states. Refused.")


def check_round(folder: "StudyFolder", sender: str, block: GramBlock) -> None:
    """A site's own block of a round: of the listed columns, the cohort and the round; nothing to say of other studies."""
    if folder.above is None:
        return
    above = ScreenBlock.from_bytes(folder.above.whole("sketch", sender))
    listed = kept(folder.path)
    wanted = set(listed.features)
    columns = (tuple(label for label in above.features if label in wanted), above.responses, above.covariates)
    if (block.features, block.responses, block.covariates) != columns or block.n != above.n or block.bits != above.bits:
        raise FederationError(
            f"The Gram block of site {sender!r} is not of the columns that round {folder.round} keeps. Refused."
        )
    if block.order_mac != listed.mac(above.order_mac):
        raise FederationError(f"The Gram block of site {sender!r} is of another round or cohort. Refused.")


def coin_of(folder: "StudyFolder", sender: str) -> str:
    """What a site committed to before it dealt: its features in round 0, the columns of a round."""
    raw = folder.whole("sketch", sender)
    read = ScreenBlock if folder.study.sketch.screened and folder.round is None else GramBlock
    return read.from_bytes(raw).coin


def check_held(folder: "StudyFolder", sender: str, raw: bytes | Path, piece: int) -> None:
    """A holder says that it keeps the others' shares of a piece."""
    said = GramProduct.from_bytes(raw)
    folder.same_hash("held", sender, said.study_hash, said.site)
    check_signed(folder.study, sender, said, "word")
    empty = not (said.opened or said.products or said.tails or said.coins or said.final)
    if said.block != piece or not empty or said.order_mac != stated(folder)[sender].order_mac:
        raise FederationError(f"Site {sender!r} answered for another piece than it was asked for.")


def check_look(folder: "StudyFolder", sender: str, raw: bytes | Path, at: int) -> None:
    """A site's shares of a look: signed, bound to the weights it was asked with, of the right shapes, its seed as committed."""
    found, blocks = LookShares.from_bytes(raw), stated(folder)
    folder.same_hash("look", sender, found.study_hash, found.site)
    check_signed(folder.study, sender, found, "sums")
    asked, sharing = look_of(folder, at), Sharing.of(folder.study)
    if (found.round, found.order_mac) != (at, look_mac(folder, at)):
        raise FederationError(f"The sums of site {sender!r} are of another look, list or cohort. Refused.")
    if commitment(found.seed) != blocks[sender].check:
        raise FederationError(f"The check weights of site {sender!r} are not those it committed to. Refused.")
    Q = asked.weights.shape[1]
    owed = {str(k): sums_shape(block, Q) for k, block in enumerate(blocks.values())} if sender in sharing.holders else {}
    if {name: a.shape for name, a in found.sums.items()} != owed:
        raise FederationError(f"The sums of site {sender!r} lack a part, or have one of the wrong shape. Refused.")


def kept(where: Path) -> KeptList:
    """The list of a round, as it was sent to the sites; `where` is the round's folder."""
    return KeptList.from_bytes((where / "kept.list").read_bytes())


def look_of(folder: "StudyFolder", at: int) -> Look:
    return Look.from_bytes((round_path(folder, at) / "asked.look").read_bytes())


def look_mac(folder: "StudyFolder", at: int) -> str:
    order_mac = next(iter(stated(folder).values())).order_mac
    return look_of(folder, at).mac(kept(round_path(folder, at)).mac(order_mac))


def looked(folder: "StudyFolder", at: int) -> Ring:
    """The sums of a look (features × responses), features in the order of the roster; refused when a check does not hold."""
    from intarsia.server.study import screened_holder

    blocks, sharing = stated(folder), Sharing.of(folder.study)
    found = {name: LookShares.from_bytes(folder.whole(f"look-{at}", name)) for name in folder.names}
    shares: list[Mapping[str, Ring]] = [found[name].sums for name in sharing.holders if name in found]
    if sharing.server_holds:
        shares.append(screened_holder.sums(folder, at))
    out = []
    for k, (name, block) in enumerate(blocks.items()):
        total = np.asarray(sum((share[str(k)] for share in shares[1:]), shares[0][str(k)]))
        top, weights = np.ascontiguousarray(total[: block.columns]), check_weights(found[name].seed, block.columns)
        if not np.array_equal(total[block.columns :], times(np.ascontiguousarray(weights.T), top)):
            raise FederationError(
                f"look: the sums over the features of site {name!r} were not computed as they should be: the check columns do "
                "not fit. One of the holders gave a wrong share, or the site shared wrong check columns. Nothing is fitted; "
                "start a new run of the study."
            )
        out.append(top)
    return np.concatenate(out)


def sketched(folder: "StudyFolder") -> Joined:
    """The sketches of all sites side by side, where a sketch screens."""
    return join([Sketch.load(block.sketch) for block in stated(folder).values()])


def check_bound(folder: "StudyFolder", at: int, whole: Ring, blocks: Mapping[str, GramBlock], before: Mapping[str, Any]) -> None:
    """Every kept feature has, in this round's Gram matrix, the products that the look before gave for it, to the last bit.

    `before` has the sums of that look by feature, and its weights by the label of the column that they weigh.
    """
    labels = [label for block in blocks.values() for label in (*block.features, *block.responses, *block.covariates)]
    place = {label: k for k, label in enumerate(labels)}
    columns = [place[label] for label in before["columns"]]
    weights = np.ascontiguousarray(before["weights"]).view(np.uint64)
    for name, block in blocks.items():
        rows = [place[label] for label in block.features]
        if not rows:
            continue
        found = times(np.ascontiguousarray(whole[np.ix_(rows, columns)]), weights)
        sums = np.stack([before["sums"][label] for label in block.features])
        if not np.array_equal(found, sums):
            raise FederationError(
                f"keep: site {name!r} stated other columns in round {at} than it shared to be screened: their products with the "
                "responses are not those of the look. Nothing is fitted; start a new run of the study."
            )


def collected(folder: "StudyFolder") -> bool:
    """Whether the last round is done and what was looked at is written down."""
    return not folder.missing("sketch") and (folder.path / TABLE).is_file()


def joined(folder: "StudyFolder") -> Joined:
    """The last round's Gram matrix as rows for the sampler, with the number of features that were looked at."""
    from intarsia.server.study import gram
    from intarsia.server.study.round_folder import RoundFolder

    found = gram.joined(RoundFolder(folder, last_round(folder)))
    blocks = stated(folder)
    told = {name: block.most_told for name, block in blocks.items() if block.most_told is not None}
    return replace(found, looked_at=sum(block.columns for block in blocks.values()), most_told=told)


def counted(folder: "StudyFolder") -> "Screen":
    """How much left in this study, for the server's card."""
    from intarsia.privacy.facts import Screen  # with it come libraries that a process that only answers does not need

    blocks = stated(folder).values()
    return Screen(
        features=sum(len(b.features) for b in blocks), responses=sum(len(b.responses) for b in blocks),
        covariates=sum(len(b.covariates) for b in blocks), looks=folder.study.sketch.looks, keep=folder.study.sketch.keep,
        largest=max(len(b.features) for b in blocks), binary=len(folder.study.yes_or_no),
    )  # fmt: skip


def table(folder: "StudyFolder") -> list[dict[str, Any]]:
    """Every feature that was looked at: its site, in which round it was kept (None: screened out), its correlation with each
    response in the first look, and its score then."""
    remedy = "Delete it and give the command that collects the study again: it is made from what the sites sent."
    return list(read_json(folder.path / TABLE, remedy)["features"])
