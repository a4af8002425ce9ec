"""The rounds of a screened study, driven by the server: each asks only for what is missing, so that any of it can be run again.

Round 0 hands the features' shares to the holders. Round 1 keeps none: it gives the exact products of responses and covariates. A
look follows, and round 2 keeps the best features; where study.toml says `again`, look and round are repeated. Where a sketch
screens, it has come with what the sites state of their columns: nothing is handed out, and round 1 keeps the best features.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from intarsia.errors import FederationError
from intarsia.files import replace_json
from intarsia.server.study import feature_scores, gram, screened, screened_by_sketch, screened_holder
from intarsia.server.study.folder import StudyFolder, write_atomic
from intarsia.server.study.protocol import Ask, ahead, collect_products, gather
from intarsia.server.study.round_folder import RoundFolder, in_round
from intarsia.wire.gram_messages import BLOCK
from intarsia.wire.ring import decode
from intarsia.wire.screening import KeptList, Look, ScreenBlock, feature_cuts

DONE = "columns.dealt"  # every holder keeps its shares of the features


def collect_rounds(folder: StudyFolder, ask: Ask) -> None:
    """All that is missing of the rounds; at its end the study can be fitted."""
    if folder.collected:
        return
    by_sketch = folder.study.sketch.by_sketch
    if not by_sketch and not (folder.path / DONE).is_file():
        hand_out(folder, in_round(ask, 0))
    for at in range(1, screened.last_round(folder) + 1):
        one = RoundFolder(folder, at)
        if not one.collected:
            _keep(folder, one, ask)
            collect_products(one, in_round(ask, at))
        if at < screened.last_round(folder):
            _look(folder, one, ask)
        elif not (folder.path / screened.TABLE).is_file():
            (screened_by_sketch.check_bound if by_sketch else _bound)(folder, one)
            found = screened_by_sketch.table(folder, most_kept(folder)) if by_sketch else _table(folder)
            replace_json(folder.path / screened.TABLE, found, indent=None)


def hand_out(folder: StudyFolder, ask: Ask) -> None:
    """The features' shares, piece by piece, from every site to the holders, who keep them; the server keeps none that is not its
    own."""
    blocks, names = screened.stated(folder), folder.names
    holding = [name for name in folder.study.holders if name in names]
    number = len(feature_cuts(next(iter(blocks.values())).n, folder.study.sketch.rows))
    open_ = [piece for piece in range(number) if any(name in holding for name in folder.missing(f"held-{piece}"))]

    def deal(piece: int) -> None:
        shown = {name: folder.read("sketch", name) for name in names} if piece == 0 else {}
        gather(folder, ask, f"deal-{piece}", "deal", dict.fromkeys(names, {BLOCK: str(piece).encode()} | shown))

    def hold(piece: int) -> None:
        parts = {name: gram.deals_for(folder, name, f"deal-{piece}") for name in holding}
        payloads = {name: {BLOCK: str(piece).encode()} | part for name, part in parts.items()}
        gather(folder, ask, f"held-{piece}", "hold", payloads)

    ahead(ask, open_, deal)
    ahead(ask, open_, hold)
    for piece in open_:
        deal(piece)
        screened_holder.hold(folder, piece, f"deal-{piece}")
        hold(piece)
        folder.drop(f"deal-{piece}")
    write_atomic(folder.path / DONE, b"")


def _keep(folder: StudyFolder, one: RoundFolder, ask: Ask) -> None:
    """Name the features of a round, once, and have every site's own block of them."""
    path = one.path / "kept.list"
    if not path.is_file():
        write_atomic(path, _listed(folder, one.round or 0).to_bytes())
    shown = {"kept": path.read_bytes()}
    if folder.study.sketch.by_sketch:  # nothing was shared before, so nobody has seen what the others state
        stated = {name: ScreenBlock.from_bytes(folder.whole("sketch", name)) for name in folder.names}
        shown |= {name: block.relayed().to_bytes() for name, block in stated.items()}
    gather(one, in_round(ask, one.round or 0), "sketch", "keep", dict.fromkeys(folder.names, shown))


def most_kept(folder: StudyFolder) -> int:
    """What every site's gate agrees to, and no more than study.toml says."""
    limits = [block.most for block in screened.stated(folder).values()]
    return min([*limits, folder.study.sketch.keep or limits[0]])


def _listed(folder: StudyFolder, at: int) -> KeptList:
    blocks = screened.stated(folder)
    labels = np.array([label for block in blocks.values() for label in block.features])
    if folder.study.sketch.by_sketch:
        return screened_by_sketch.listed(folder, most_kept(folder))
    if at == 1:
        return KeptList(folder.study.hash, at, ())
    before = set(screened.kept(screened.round_path(folder, at - 1)).features)
    score = _scores(folder, at - 1)
    already = np.array([label in before for label in labels], dtype=bool)
    number = feature_scores.places(most_kept(folder), folder.study.sketch.looks, at - 1)
    return KeptList(folder.study.hash, at, tuple(str(label) for label in labels[feature_scores.chosen(score, already, number)]))


def _look(folder: StudyFolder, one: RoundFolder, ask: Ask) -> None:
    """Multiply all features with what this round's columns leave of the responses."""
    at = one.round or 0
    path = one.path / "asked.look"
    if not path.is_file():
        _bound(folder, one)
        G, blocks, spare = gram.joint(one), gram.own_blocks(one), folder.study.spare_bits
        others, responses = _places(blocks)
        asked = Look(folder.study.hash, at, feature_scores.weights_of(G, others, responses, spare))
        write_atomic(path, asked.to_bytes())
    raw = path.read_bytes()
    gather(folder, ask, f"look-{at}", "look", {name: {"look": raw} for name in folder.names})
    screened_holder.look(folder, at)


def _bound(folder: StudyFolder, one: RoundFolder) -> None:
    """This round's kept columns against every look before it."""
    blocks, whole = gram.own_blocks(one), gram.whole(one)[0]
    stated = screened.stated(folder)
    labels = [label for block in stated.values() for label in block.features]
    for at in range(1, one.round or 0):
        columns = gram.own_blocks(RoundFolder(folder, at))
        names = [label for b in columns.values() for label in (*b.features, *b.responses, *b.covariates)]
        before = {
            "columns": names, "weights": screened.look_of(folder, at).weights,
            "sums": dict(zip(labels, screened.looked(folder, at), strict=True)),
        }  # fmt: skip
        screened.check_bound(folder, one.round or 0, whole, blocks, before)


def _places(blocks: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Where, among the joint columns, those that are taken off stand (features and covariates), and the responses."""
    roles = [role for block in blocks.values() for role in ("features", "responses", "covariates") for _ in getattr(block, role)]
    others = [k for k, role in enumerate(roles) if role != "responses"]
    return others, [k for k, role in enumerate(roles) if role == "responses"]


def _sums(folder: StudyFolder, at: int) -> tuple[Any, Any]:
    """A look's sums as real numbers (features × responses), and the products of what it multiplied with."""
    one, spare = RoundFolder(folder, at), folder.study.spare_bits
    bits = next(iter(screened.stated(folder).values())).bits
    sums = np.ldexp(decode(screened.looked(folder, at), bits), -spare)
    left = feature_scores.left_products(gram.joint(one), screened.look_of(folder, at).weights, spare)
    n = next(iter(screened.stated(folder).values())).n
    # Products of standardised columns with what is left of a response (Cauchy and Schwarz), but for rounding.
    most = np.sqrt((n - 1) * np.maximum(np.diagonal(left), 0.0))
    if (np.abs(sums) > most * (1 + 1e-6) + 1e-3 * np.sqrt(n)).any():
        raise FederationError(
            "look: a sum is larger than the lengths of its columns allow: a site's features are not standardised. Nothing is "
            "fitted; start a new run of the study."
        )
    return sums, left


def _scores(folder: StudyFolder, at: int) -> Any:
    sums, left = _sums(folder, at)
    return feature_scores.scores(sums, left, next(iter(screened.stated(folder).values())).n)


def _table(folder: StudyFolder) -> dict[str, Any]:
    """Every feature that was looked at, for results: kept in which round, and what the first look said of it."""
    blocks, last = screened.stated(folder), screened.last_round(folder)
    responses = [label for block in blocks.values() for label in block.responses]
    n = next(iter(blocks.values())).n
    sums, left = _sums(folder, 1)
    r = sums / np.sqrt((n - 1) * np.diagonal(left))
    score = feature_scores.scores(sums, left, n)
    since: dict[str, int] = {}
    for at in range(last, 1, -1):
        since |= dict.fromkeys(screened.kept(screened.round_path(folder, at)).features, at - 1)
    rows = []
    for label, name, values, one in zip(
        (label for block in blocks.values() for label in block.features),
        (name for name, block in blocks.items() for _ in block.features), r, score, strict=True,
    ):  # fmt: skip
        correlations = {response: float(v) for response, v in zip(responses, values, strict=True)}
        rows.append({"feature": label, "site": name, "kept": since.get(label), "score": float(one), "r": correlations})
    return {"looked_at": len(rows), "looks": last - 1, "n": n, "responses": responses, "features": rows}
