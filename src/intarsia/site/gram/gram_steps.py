"""A site's three steps of a Gram study: its own block, shares of its columns for the holders, its share of the products.

`own_block` comes after the site's privacy gate, as a sketch does. `deal` hands out shares block by block once every
site's own block is known and fits. `multiply` takes those of the other sites, adds to its sums and, after the last block,
gives its shares to the server. Every step may be repeated: it sends the same bytes. A killed site goes on with the block it had
not finished.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from intarsia.errors import FederationError, MessageError, PrivacyError
from intarsia.site.data.table import Table
from intarsia.site.gram.desk import FIRST, SEED, Columns, Desk, RoundStore
from intarsia.site.gram.encode import FILE, encode_table
from intarsia.site.gram.shares import Circle, Splitting, fold_places, received
from intarsia.site.response_kinds import backs_of, published_scales
from intarsia.site.run_store import RunStore
from intarsia.site.units import Units
from intarsia.wire.container import pack, unpack
from intarsia.wire.gram_messages import BLOCK, GramBlock, GramDeal, GramProduct, check_signed, check_standardised
from intarsia.wire.gram_packets import Holder
from intarsia.wire.gram_sharing import CHECKS, Cut, Sharing, commitment, cuts, digest
from intarsia.wire.held_shares import packed
from intarsia.wire.ring import Ring, product, square
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.site.site import Site

COLUMNS_PER_SUBJECT = 1 / 3  # all sites' columns together: beyond, a Gram matrix tells too much of each subject
_SUMS, _TAIL = "sums.secret", "tail.secret"


Labels = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]  # features, responses, covariates


@dataclass(frozen=True)
class OwnBlock:
    """`message` goes to the server and the other sites; `units` stay."""

    message: GramBlock
    units: Units


def own_block(site: "Site", study: Study, table: Table, order: Any, mac: str, most_told: int | None = None) -> OwnBlock:
    """The products of this site's own columns, what it commits to, and how many effects others may be told in full for them."""
    desk = Desk(site, study, site.run_store(study))
    encoded = encode_table(table, order, desk.run, rounding_secret(site))
    units = encoded.units
    scales = published_scales(backs_of(table), units) if study.deliver.share_scales else ()
    labels = (units.features, units.responses, units.covariates)
    block = stated(desk, Columns(encoded.columns), labels, encoded.bits, mac, Said(scales, most_told))
    return OwnBlock(block, units)


def rounding_secret(site: "Site") -> bytes:
    """A signature of fixed words: secret while it stays here, and the same in every run."""
    return site.own_identity().sign(b"intarsia gram rounding 1")


class Said(NamedTuple):
    """What a site says of its columns beside their products: scales of its responses where the study shares them, and how many
    effects others may be told in full for its features (None: all)."""

    scales: tuple[float, ...] = ()
    most_told: int | None = None


def stated(desk: Desk, columns: Columns, labels: Labels, bits: int, mac: str, said: Said) -> GramBlock:
    """The message that states the products of these columns; `labels` are features, responses and covariates in their order."""
    site, study, n = desk.site, desk.study, len(columns.all)
    split = Splitting(desk.sharing, site.name, desk.store.put(SEED, secrets.token_bytes(32)))
    folds = study.sketch.fold_sizes(n)
    G, tail, commitments = _pass(split, columns, cuts(folds, study.sketch.rows), len(folds))
    sent = split.tail_sent(tail)
    desk.store.replace(_TAIL, sent.astype("<u8", copy=False).tobytes())
    commitments.append(digest(sent))
    unsigned = GramBlock(
        site.name, study.hash, *labels, n, folds, bits, mac,
        site.key(study).study_fingerprint(study.hash), commitment(split.check_seed), commitment(split.coin),
        tuple(commitment(seed) for seed in split.seeds.values()), G,
        np.frombuffer(b"".join(commitments), dtype=np.uint8).reshape(-1, 32), said.scales, said.most_told,
    )  # fmt: skip
    return replace(unsigned, signature=site.own_identity().sign(unsigned.body()))


def by_folds(site: "Site", study: Study, order: Any, keep: Any) -> Any:
    """The agreed order with the subjects of each fold together; `keep` are the places of the cohort among the site's tokens."""
    if not study.sketch.folds:
        return order
    key = site.key(study).derive("folds", study.id, study.run)
    return order[np.argsort(fold_places(site.tokens(study).tokens[keep], key, study.sketch.folds), kind="stable")]


def _pass(split: Splitting, encoded: Columns, through: tuple[Cut, ...], folds: int) -> tuple[Ring, Ring, list[bytes]]:
    """One pass over the columns: their products and those with z, by fold, and a commitment to every block."""
    c = encoded.count
    G = np.zeros((folds, c, c), dtype=np.uint64)
    tail = np.zeros((folds, c + CHECKS, CHECKS), dtype=np.uint64)
    commitments = []
    for block, cut in enumerate(through):
        columns = encoded.rows(cut)
        wide, z = split.wide(columns), split.z(block, cut.rows)
        G[cut.fold] += square(columns)
        tail[cut.fold] += product(np.concatenate([columns, z], axis=1), z)
        commitments.append(digest(split.shares(block, wide)[split.sharing.sent(split.site)]))
    return G, tail, commitments


def deal(desk: Desk, payload: Mapping[str, bytes]) -> bytes:
    """Shares of this site's columns for one block of subjects, sealed to each holder."""
    site, study, store = desk.site, desk.study, desk.store
    if any(name != BLOCK for name in payload):
        _hear(desk, {name: raw for name, raw in payload.items() if name != BLOCK})
    own = heard(desk)[site.name]
    through = cuts(own.folds, study.sketch.rows)
    block = number(payload, len(through))
    circle, split = circle_of(desk, own.order_mac), desk.splitting
    wide = split.wide(desk.columns(own.n, own.columns).rows(through[block]))
    sent = split.shares(block, wide)[split.sharing.sent(site.name)]
    if digest(sent) != own.commitments[block].tobytes():
        raise FederationError("The columns of this run are not those this site committed to. Start a new run of the study.")
    tail = None
    if block == len(through) - 1:
        tail = np.frombuffer(store.need(_TAIL, FIRST), "<u8").astype(np.uint64, copy=False)
    holders = enumerate(split.sharing.holders)
    sealed = {h: circle.seal(name, block, split.packet(name, sent, tail)) for h, name in holders if name != site.name}
    message = GramDeal(site.name, study.hash, block, own.order_mac, split.coin, sealed).to_bytes()
    store.sent(f"deal {block}", message)
    return message


def multiply(desk: Desk, payload: Mapping[str, bytes]) -> bytes:
    """Add one block to this site's sums; after the last one, its shares of all products.

    A site that holds no shares has nothing to multiply; after the last block it shows the seed of its check weights.
    """
    site, study, store, blocks = desk.site, desk.study, desk.store, heard(desk)
    own = blocks[site.name]
    through = cuts(own.folds, study.sketch.rows)
    block = number(payload, len(through))
    last = block == len(through) - 1
    done = store.get("product" if last else f"progress-{block}")
    if done is not None:
        return _sent(store, block, done)
    split = desk.splitting
    message = GramProduct(site.name, study.hash, own.order_mac, block)
    if site.name in split.sharing.holders:
        message = _multiplied(desk, message, payload)
    elif not last:
        raise FederationError(f"Site {site.name!r} holds no shares in this study; it is asked after the last block only.")
    if last:
        message = replace(message, seed=split.check_seed)
    message = replace(message, signature=site.own_identity().sign(message.body()))
    # Kept until the next block: a repeated step sends the same bytes.
    raw = store.put("product" if last else f"progress-{block}", message.to_bytes())
    store.forget(_SUMS if last else f"progress-{block - 1}")
    return _sent(store, block, raw)


def _multiplied(desk: Desk, message: GramProduct, payload: Mapping[str, bytes]) -> GramProduct:
    """A holder's part: what it opens of this block and, after the last one, its shares of the products."""
    site, store, blocks, block = desk.site, desk.store, heard(desk), message.block
    own = blocks[site.name]
    through = cuts(own.folds, desk.study.sketch.rows)
    circle, split = circle_of(desk, own.order_mac), desk.splitting
    at, sums = _load(store)
    if block > at:
        raise FederationError(f"Block {block} was sent before block {at} was multiplied. Send block {at} first.")
    holder, cut = Holder(split.sharing, site.name, blocks), through[block]
    deals = received(circle, blocks, payload, block)
    packets = {name: circle.open(holder, blocks[name], deal, cut) for name, deal in deals.items()}
    if isinstance(store, RoundStore):
        store.put(f"packets-{block}.secret", packed(packets))  # the look after this round needs them
    coins = {name: deal.coin for name, deal in deals.items()} | {site.name: split.coin}
    shares = holder.shares(packets, block, cut)
    if block == at:
        mine = split.shares(block, split.wide(desk.columns(own.n, own.columns).rows(cut)))
        holder.add(sums, {**shares, site.name: mine}, cut)
        _save(store, block + 1, sums)
    message = replace(message, opened=holder.opened(packets, shares, coins, block))
    if block < len(through) - 1:
        return message
    products = {name: value + circle.zero(k, value.shape) for k, (name, value) in enumerate(sums.items())}
    return replace(message, coins=coins, products=products, tails=holder.tails(packets, coins))


def forget(store: RunStore) -> None:
    """Delete what only the multiplication needed: the coefficients are here."""
    for name in (FILE, _SUMS, SEED, _TAIL):
        store.forget(name)


def _sent(store: RunStore | RoundStore, block: int, message: bytes) -> bytes:
    store.sent(f"product {block}", message)
    return message


def circle_of(desk: Desk, mac: str) -> Circle:
    raw = desk.run.need("pairs.secret", "Agree on the study key first.")
    return Circle(desk.study, desk.site.name, {name: bytes.fromhex(secret) for name, secret in json.loads(raw).items()}, mac)


def _hear(desk: Desk, blocks: Mapping[str, bytes]) -> None:
    """Every site's own block, checked and kept: what was heard first holds for the run."""
    site, study, store = desk.site, desk.study, desk.store
    missing = [name for name in study.names if name not in blocks]
    if missing:
        raise FederationError(f"The Gram blocks of {', '.join(missing)} are missing; nothing is shared before all are there.")
    own = GramBlock.from_bytes(store.need("sketch", FIRST))
    if blocks[site.name] != own.to_bytes():
        raise FederationError("The relayed Gram block of this site is not the one it made. Start a new run of the study.")
    total, sharing = 0, Sharing.of(study)
    for name in study.names:
        found = GramBlock.from_bytes(blocks[name])
        check_signed(study, name, found, "Gram block")
        same = ("n", "folds", "bits", "order_mac", "key_fingerprint")
        whole = len(found.commitments) == len(own.commitments) and len(found.seeds) == len(sharing.seeded(name))
        if any(getattr(found, what) != getattr(own, what) for what in same) or not whole:
            raise FederationError(f"Site {name!r} rests on another cohort, order or key than this site. Align again.")
        if study.site(name).foreign(found.features, found.responses, found.covariates) is not None:
            raise FederationError(f"Site {name!r} brings columns that study.toml does not list for it. Refused.")
        check_standardised(found, may_be_empty=isinstance(store, RoundStore))
        total += found.columns
    if total > COLUMNS_PER_SUBJECT * min(own.folds):
        of = "subjects" if len(own.folds) == 1 else "subjects of a fold"
        raise PrivacyError(
            f"The sites bring {total} columns for {min(own.folds)} {of}: more than a third. A Gram matrix of so many columns "
            'tells too much of each subject. Use a sketch (kind = "orthonormal") instead.'
        )
    keep_first(store, "blocks.json", "block", {name: blocks[name] for name in study.names}, "Gram blocks")


def keep_first(store: RunStore | RoundStore, index: str, prefix: str, blocks: Mapping[str, bytes], what: str) -> None:
    """What every site states, as it was shown first: that holds for the run."""
    text = json.dumps({name: hashlib.sha256(raw).hexdigest() for name, raw in blocks.items()}, sort_keys=True).encode()
    if store.put(index, text) != text:
        raise FederationError(f"Other {what} were shown before in this run. Refused; start a new run of the study.")
    for name, raw in blocks.items():
        store.put(f"{prefix}-{name}", raw)


def heard(desk: Desk) -> dict[str, GramBlock]:
    """Every site's own block, as it was heard."""
    remedy = "Show it every site's Gram block first."
    desk.store.need("blocks.json", remedy)
    return {name: GramBlock.from_bytes(desk.store.need(f"block-{name}", remedy)) for name in desk.study.names}


def number(payload: Mapping[str, bytes], blocks: int) -> int:
    text = payload.get(BLOCK, b"").decode("ascii", "replace")
    if not text.isdigit() or len(text) > 12 or int(text) >= blocks:
        raise MessageError(f"The request names no block; expected a number from 0 to {blocks - 1}.")
    return int(text)


def _save(store: RunStore | RoundStore, at: int, sums: Mapping[str, Ring]) -> None:
    store.replace(_SUMS, pack("sums", {"at": at}, {f"pair.{name}": value.view(np.int64) for name, value in sums.items()}))


def _load(store: RunStore | RoundStore) -> tuple[int, dict[str, Ring]]:
    raw = store.get(_SUMS)
    if raw is None:
        return 0, {}
    header, arrays = unpack(raw, "sums")
    found = {name.removeprefix("pair."): np.array(value).view(np.uint64) for name, value in arrays.items()}
    return int(header["at"]), found
