"""A site's steps of a screened study: it states and shares its features once, keeps what was shared with it, agrees to lists of
features to keep, and answers looks.

`own_columns` comes after the site's privacy gate, as a sketch does. In round 0 `deal` hands out shares of the features and `hold`
keeps those of the others. In each later round `keep` judges the server's list and gives the site's own block of a Gram matrix of
the listed columns, which `deal` and `multiply` then make as in a Gram study. `look` multiplies all features with what the kept
columns leave of the responses. Where a sketch screens, it leaves with what the site states of its columns, and `keep` follows:
only columns that are kept are shared. Every step may be repeated: it sends the same bytes.
"""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from intarsia.errors import FederationError, MessageError
from intarsia.site.data.table import Table
from intarsia.site.gram import gram_steps
from intarsia.site.gram.desk import SEED, Columns, Desk, RoundStore
from intarsia.site.gram.encode import FILE, encode_table
from intarsia.site.gram.shares import Splitting, received
from intarsia.site.response_kinds import backs_of, published_scales
from intarsia.site.screened.kept_gate import agree, check_list, note_step
from intarsia.site.units import Units
from intarsia.wire.gram_messages import BLOCK, GramBlock, GramDeal, GramProduct, check_signed
from intarsia.wire.gram_packets import Holder
from intarsia.wire.gram_sharing import Cut, Sharing, commitment, digest
from intarsia.wire.held_shares import packed, unpacked
from intarsia.wire.ring import Ring
from intarsia.wire.screening import (
    ROUND,
    KeptList,
    Look,
    LookShares,
    ScreenBlock,
    feature_cuts,
    left_of,
    look_term,
    of_sites,
    pieces,
    sums_shape,
)
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.site.site import Site

_FIRST = "State the site's own columns first."


@dataclass(frozen=True)
class OwnColumns:
    """`message` goes to the server and the other sites; `units` stay."""

    message: ScreenBlock
    units: Units


class Allowed(NamedTuple):
    """What the site's gate allows: how many features of all sites are kept at most (`kept`), and how many effects others may be
    told in full for this site's features (`told`; None: all)."""

    kept: int
    told: int | None


def own_columns(site: "Site", study: Study, table: Table, order: Any, mac: str, most: Allowed) -> OwnColumns:
    """What this site states of its columns, and the digests of all it will share of them."""
    run = site.run_store(study)
    encoded = encode_table(table, order, run, gram_steps.rounding_secret(site), study.spare_bits)
    units, n = encoded.units, len(order)
    split = Splitting(Sharing.of(study), site.name, RoundStore(run, 0).put(SEED, secrets.token_bytes(32)))
    digests: list[bytes] = []
    sketch = b""
    if study.sketch.by_sketch:
        sketch = _mixed(site, study, table, order, mac, units)
    else:
        columns, through = Columns(encoded.columns, range(len(units.features))), feature_cuts(n, study.sketch.rows)
        digests = [digest(_sent(split, piece, columns.rows(cut))) for piece, cut in enumerate(through)]
    unsigned = ScreenBlock(
        site.name, study.hash, units.features, units.responses, units.covariates, n, encoded.bits, mac,
        site.key(study).study_fingerprint(study.hash), commitment(split.check_seed), commitment(split.coin),
        tuple(commitment(seed) for seed in split.seeds.values()), most.kept,
        np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32),
        published_scales(backs_of(table), units) if study.deliver.share_scales else (), most.told,
        hashlib.sha256(sketch).hexdigest() if sketch else "",
    )  # fmt: skip
    return OwnColumns(replace(unsigned, signature=site.own_identity().sign(unsigned.body()), sketch=sketch), units)


def _mixed(site: "Site", study: Study, table: Table, order: Any, mac: str, units: Units) -> bytes:
    """The sketch of this site's columns: the same that a study of sketches would have, under the same rules of the gate."""
    from intarsia.site.sketch.sketch import SketchTerms, factor, sketch

    terms, key = SketchTerms.of(study, site.name, mac), site.key(study)
    factor(terms.design(key, len(order)))  # L from the key and n alone: the same at all sites to the last bit
    message = sketch(table, key, terms, order=order).message
    if (message.features, message.responses, message.covariates) != (units.features, units.responses, units.covariates):
        raise FederationError("The table changed while it was sketched. Start a new run of the study.")
    return message.to_bytes()


def deal(site: "Site", study: Study, payload: Mapping[str, bytes]) -> bytes:
    """Shares of one piece of this site's features (round 0), or of one block of a later round's columns."""
    at, rest = _round_of(study, payload)
    if at:
        if others := {name: raw for name, raw in rest.items() if name != BLOCK}:
            _fits_list(site, study, at, others)
        return gram_steps.deal(_desk(site, study, at), rest)
    _shared_features(study)
    if others := {name: raw for name, raw in rest.items() if name != BLOCK}:
        _hear(site, study, others)
    desk, own = _desk(site, study, 0), heard(site, study)[site.name]
    through = feature_cuts(own.n, study.sketch.rows)
    piece = gram_steps.number(rest, len(through))
    circle, split = gram_steps.circle_of(desk, own.order_mac), desk.splitting
    sent = _sent(split, piece, desk.columns(own.n, own.columns).rows(through[piece]))
    if digest(sent) != own.commitments[piece].tobytes():
        raise FederationError("The columns of this run are not those this site committed to. Start a new run of the study.")
    holders = enumerate(split.sharing.holders)
    sealed = {
        h: circle.seal(name, piece, split.packet(name, sent, None, opens=False)) for h, name in holders if name != site.name
    }
    message = GramDeal(site.name, study.hash, piece, own.order_mac, split.coin, sealed).to_bytes()
    desk.store.sent(f"deal {piece}", message)
    return message


def hold(site: "Site", study: Study, payload: Mapping[str, bytes]) -> bytes:
    """A holder keeps the other sites' shares of one piece of their features, as they committed to them, and says so."""
    at, rest = _round_of(study, payload)
    _shared_features(study)
    desk, blocks = _desk(site, study, 0), heard(site, study)
    own = blocks[site.name]
    through = feature_cuts(own.n, study.sketch.rows)
    piece = gram_steps.number(rest, len(through))
    if at:
        raise FederationError("Only the features of round 0 are kept for later. Refused.")
    if site.name not in desk.sharing.holders:
        raise FederationError(f"Site {site.name!r} holds no shares in this study; nothing is kept here.")
    circle, holder = gram_steps.circle_of(desk, own.order_mac), Holder(desk.sharing, site.name, blocks)
    if desk.store.get(_packets(piece)) is None:
        found = received(circle, blocks, rest, piece)
        opened = {name: circle.open(holder, blocks[name], one, through[piece]) for name, one in found.items()}
        desk.store.put(_packets(piece), packed(opened))
    unsigned = GramProduct(site.name, study.hash, own.order_mac, piece)
    message = replace(unsigned, signature=site.own_identity().sign(unsigned.body())).to_bytes()
    desk.store.sent(f"hold {piece}", message)
    return message


def keep(site: "Site", study: Study, payload: Mapping[str, bytes]) -> bytes:
    """This site's own block of a round, after its gate has agreed to the list of features to keep."""
    if "kept" not in payload:
        raise MessageError("The request names no features to keep.")
    at, listed = _round_of(study, payload)[0], KeptList.from_bytes(payload["kept"])
    if stated := {name: raw for name, raw in payload.items() if name not in ("kept", ROUND)}:
        _hear(site, study, stated)  # a sketch screens: nothing was shared before, so nothing was shown
    run, blocks = site.run_store(study), heard(site, study)
    own, store = blocks[site.name], RoundStore(run, listed.round)
    if listed.study_hash != study.hash or listed.round != at:
        raise FederationError("The list of features to keep is of another study, or of another round than asked for. Refused.")
    if listed.round > 1 and RoundStore(run, listed.round - 1).get("look") is None:
        raise FederationError(f"A list for round {listed.round} comes after the look of round {listed.round - 1}. Refused.")
    made = store.get("sketch")
    if made is None:
        before = _list(run, listed.round - 1).features if listed.round > 1 else ()
        check_list(study, blocks, listed, before, own.most)
        # The first list holds, also when the gate refuses it: lists of the server's choosing would turn refusals into answers.
        if store.put("kept", listed.to_bytes()) != listed.to_bytes():
            raise FederationError("Another list was shown for this round before. Refused; start a new run of the study.")
        agree(site, study, listed, own)
        desk, chosen = _desk(site, study, listed.round), [label for label in own.features if label in set(listed.features)]
        labels = (tuple(chosen), own.responses, own.covariates)
        columns = desk.columns(own.n, own.columns)
        said = gram_steps.Said(own.response_scales, own.most_told)
        block = gram_steps.stated(desk, columns, labels, own.bits, listed.mac(own.order_mac), said)
        # In the ledger before it may leave; killed in between, the same block is made again: all of it follows from the seed.
        note_step(site, study, f"round {listed.round}: {len(listed.features)} features kept, {len(chosen)} of this site",
                  block.to_bytes())  # fmt: skip
        made = store.put("sketch", block.to_bytes())
    elif store.get("kept") != listed.to_bytes():
        raise FederationError("Another list was shown for this round before. Refused; start a new run of the study.")
    store.sent("keep", made)
    return made


def multiply(site: "Site", study: Study, payload: Mapping[str, bytes]) -> bytes:
    """One block more in this site's sums of a round; after the last, its shares of the round's products."""
    at, rest = _round_of(study, payload)
    if not at:
        raise FederationError("Features are not multiplied among each other. Refused.")
    return gram_steps.multiply(_desk(site, study, at), rest)


def look(site: "Site", study: Study, payload: Mapping[str, bytes]) -> bytes:
    """This site's shares of the products of all features with what the round's columns leave of the responses."""
    if "look" not in payload:
        raise MessageError("The request has no weights to look with.")
    asked = Look.from_bytes(payload["look"])
    if asked.study_hash != study.hash or asked.round > study.sketch.looks:
        raise FederationError("This look is of another study, or one more than the study has. Refused.")
    run = site.run_store(study)
    store = RoundStore(run, asked.round)
    if store.get("product") is None:
        raise FederationError(f"A look comes after the products of round {asked.round}. Refused.")
    asked.check(gram_steps.heard(_desk(site, study, asked.round)), study.spare_bits)
    if store.put("asked", asked.to_bytes()) != asked.to_bytes():
        raise FederationError("Other weights were shown for this look before. Refused; start a new run of the study.")
    made = store.get("look")
    if made is None:
        message = _looked(site, study, asked)
        raw = replace(message, signature=site.own_identity().sign(message.body())).to_bytes()
        note_step(site, study, f"look {asked.round}: products of all features", raw)
        made = store.put("look", raw)
    store.sent("look", made)
    return made


def _looked(site: "Site", study: Study, asked: Look) -> LookShares:
    features, targets = _desk(site, study, 0), _desk(site, study, asked.round)
    blocks, columns = heard(site, study), gram_steps.heard(targets)
    own, mac = blocks[site.name], asked.mac(_list(site.run_store(study), asked.round).mac(blocks[site.name].order_mac))
    bare = LookShares(site.name, study.hash, mac, asked.round, features.splitting.check_seed)
    sharing = features.sharing
    if site.name not in sharing.holders:
        return bare
    held, weights = sharing.held(site.name), of_sites(asked.weights, columns)
    Q = asked.weights.shape[1]
    sums = {name: np.zeros(sums_shape(block, Q), dtype=np.uint64) for name, block in blocks.items()}
    kept = Holder(sharing, site.name, columns), Holder(sharing, site.name, blocks)
    piece = 0
    for number, (cut, parts) in enumerate(pieces(own.n, study.sketch.rows)):
        left = left_of(_shares(targets, kept[0], number, cut, columns[site.name].columns), weights, held)
        for part in parts:
            rows = slice(part.start - cut.start, part.stop - cut.start)
            some = {place: share[rows] for place, share in left.items()}
            for name, shares in _shares(features, kept[1], piece, part, own.columns).items():
                term = look_term(held, shares, some)
                if term is not None:
                    sums[name] += term
            piece += 1
    circle = gram_steps.circle_of(features, mac)
    masked = {str(k): sums[name] + circle.zero(k, sums[name].shape) for k, name in enumerate(study.names)}
    return replace(bare, sums=masked)


def _shares(desk: Desk, holder: Holder, number: int, cut: Cut, c: int) -> dict[str, dict[int, Ring]]:
    """What this site holds of everybody's columns for a block, its own among them."""
    packets = unpacked(desk.store.need(_packets(number), "The other sites' shares come first."))
    n, split = sum(holder.blocks[desk.site.name].folds), desk.splitting
    mine = split.shares(number, split.wide(desk.columns(n, c).rows(cut)))
    return {**holder.shares(packets, number, cut), desk.site.name: mine}


def heard(site: "Site", study: Study) -> dict[str, ScreenBlock]:
    """What every site stated of its columns."""
    store, remedy = site.run_store(study), "Show it what every site states of its columns first."
    store.need("columns-heard.json", remedy)
    return {name: ScreenBlock.from_bytes(store.need(f"columns-{name}", remedy)) for name in study.names}


def of_the_kept(store: Any, units: Units) -> Units:
    """The units of the features that the last list this site agreed to keeps; all of them where there was no list."""
    last = None
    for at in range(1, 100):
        raw = RoundStore(store, at).get("kept")
        if raw is None:
            break
        last = KeptList.from_bytes(raw)
    if last is None:
        return units
    at_ = [j for j, label in enumerate(units.features) if label in set(last.features)]
    return replace(
        units, features=tuple(units.features[j] for j in at_), x_mean=units.x_mean[at_], x_scale=units.x_scale[at_]
    )  # fmt: skip


def forget(site: "Site", study: Study) -> None:
    """Delete what only the multiplications needed: the coefficients are here."""
    run = site.run_store(study)
    raw = run.get("sketch")
    pieces_ = 0 if raw is None else len(feature_cuts(ScreenBlock.from_bytes(raw).n, study.sketch.rows))
    for at in range(2 + study.sketch.looks):
        store = RoundStore(run, at)
        for name in (SEED, "sums.secret", "tail.secret", *(_packets(piece) for piece in range(pieces_))):
            store.forget(name)
    run.forget(FILE)


def _sent(split: Splitting, piece: int, columns: Ring) -> Ring:
    return split.shares(piece, split.wide(columns))[split.sharing.sent(split.site)]


def _shared_features(study: Study) -> None:
    if study.sketch.by_sketch:
        raise FederationError("A sketch screens the features of this study: only those that are kept are shared. Refused.")


def _packets(number: int) -> str:
    return f"packets-{number}.secret"


def _round_of(study: Study, payload: Mapping[str, bytes]) -> tuple[int, dict[str, bytes]]:
    text = payload.get(ROUND, b"").decode("ascii", "replace")
    if not text.isdigit() or len(text) > 3 or int(text) > 1 + study.sketch.looks:
        raise MessageError("The request names no round of this study.")
    return int(text), {name: raw for name, raw in payload.items() if name != ROUND}


def _list(run: Any, at: int) -> KeptList:
    return KeptList.from_bytes(RoundStore(run, at).need("kept", "Show it the round's list of features first."))


def _desk(site: "Site", study: Study, at: int) -> Desk:
    """This site's columns of a round, among all it has encoded: features, responses, covariates."""
    run = site.run_store(study)
    own = ScreenBlock.from_bytes(run.get(f"columns-{site.name}") or run.need("sketch", _FIRST))
    P = len(own.features)
    width = P + len(own.responses) + len(own.covariates)
    if not at:
        return Desk(site, study, RoundStore(run, 0), width, range(P))
    wanted = set(_list(run, at).features)
    chosen = [j for j, label in enumerate(own.features) if label in wanted]
    return Desk(site, study, RoundStore(run, at), width, [*chosen, *range(P, width)])


def _fits_list(site: "Site", study: Study, at: int, blocks: Mapping[str, bytes]) -> None:
    """Every site's block of a round is of the columns that the list names of it, and of its responses and covariates."""
    stated, wanted = heard(site, study), set(_list(site.run_store(study), at).features)
    for name, raw in blocks.items():
        found, said = GramBlock.from_bytes(raw), stated.get(name)
        listed = () if said is None else tuple(label for label in said.features if label in wanted)
        if said is None or (found.features, found.responses, found.covariates) != (listed, said.responses, said.covariates):
            raise FederationError(f"The Gram block of site {name!r} is not of the columns that this round keeps. Refused.")


def _hear(site: "Site", study: Study, blocks: Mapping[str, bytes]) -> None:
    """What every site states of its columns, checked and kept: what was heard first holds for the run."""
    missing = [name for name in study.names if name not in blocks]
    if missing:
        raise FederationError(f"The columns of {', '.join(missing)} are not stated; nothing is shared before all are.")
    store, announced = site.run_store(study), site.heard(study)
    own = ScreenBlock.from_bytes(store.need("sketch", _FIRST))
    if blocks[site.name] != own.relayed().to_bytes():
        raise FederationError("What was relayed as this site's columns is not what it stated. Start a new run of the study.")
    sharing, owner = Sharing.of(study), {}
    for name in study.names:
        found = ScreenBlock.from_bytes(blocks[name])
        check_signed(study, name, found, "columns")
        if found.sketch:
            raise FederationError(f"The sketch of site {name!r} was relayed; it is the server's alone. Refused.")
        same = ("n", "bits", "order_mac", "key_fingerprint")
        whole = len(found.commitments) == len(own.commitments) and len(found.seeds) == len(sharing.seeded(name))
        if any(getattr(found, what) != getattr(own, what) for what in same) or not whole:
            raise FederationError(f"Site {name!r} rests on another cohort, order or key than this site. Align again.")
        if study.site(name).foreign(found.features, found.responses, found.covariates) is not None:
            raise FederationError(f"Site {name!r} brings columns that study.toml does not list for it. Refused.")
        labels = (*found.features, *found.responses, *found.covariates)
        if len(labels) > announced.get(name, {}).get("columns", 0) or any(label in owner for label in labels):
            raise FederationError(f"Site {name!r} brings more columns than it announced, or one that another site has. Refused.")
        owner.update(dict.fromkeys(labels, name))
    gram_steps.keep_first(store, "columns-heard.json", "columns", {name: blocks[name] for name in study.names}, "columns")
