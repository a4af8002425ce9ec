"""A site's three steps of a Gram study: its own block, its masked columns for another site, its share of the products.

`own_block` comes after the site's privacy gate, as a sketch does. `deal` hands out masked columns block by block once every
site's own block is known and fits. `multiply` takes those of the next site, adds to its sums and, after the last block, gives its
shares to the server. Every step may be repeated: it sends the same bytes. A killed site goes on with the block it had not
finished.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.errors import FederationError, MessageError, PrivacyError
from intarsia.site.data.table import Table
from intarsia.site.gram.encode import FILE, encode_table, opened
from intarsia.site.gram.shares import Circle, digest, terms, with_checks
from intarsia.site.run_store import RunStore
from intarsia.site.units import Units
from intarsia.wire.container import pack, unpack
from intarsia.wire.gram_messages import BLOCK, CHECKS, GramBlock, GramDeal, GramProduct, check_signed, pair_name, seed_digest
from intarsia.wire.ring import Ring
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.site.site import Site

COLUMNS_PER_SUBJECT = 1 / 3  # all sites' columns together: beyond, a Gram matrix tells too much of each subject
_SUMS = "sums.secret"


@dataclass(frozen=True)
class OwnBlock:
    """`message` goes to the server and the other sites; `units` stay."""

    message: GramBlock
    units: Units


def own_block(site: "Site", study: Study, table: Table, order: Any, mac: str) -> OwnBlock:
    """The products of this site's own columns, and what it commits to."""
    store, rows = site.run_store(study), study.sketch.rows or len(order)
    seed = store.put("seed.secret", secrets.token_bytes(32))
    # A signature of fixed words: secret while it stays here, and the same in every run.
    encoded = encode_table(table, order, store, site.own_identity().sign(b"intarsia gram rounding 1"))
    circle = _circle(site, study, mac)
    blocks = study.sketch.blocks(len(order))
    commitments = [digest(_masked(circle, encoded.columns, seed, block, rows)) for block in range(blocks)]
    units = encoded.units
    unsigned = GramBlock(
        site.name, study.hash, units.features, units.responses, units.covariates, len(order), encoded.bits, mac,
        site.key(study).study_fingerprint(study.hash), seed_digest(seed), encoded.gram(rows),
        np.frombuffer(b"".join(commitments), dtype=np.uint8).reshape(blocks, 32),
        tuple(float(scale) for scale in units.y_scale) if study.deliver.share_scales else (),
    )  # fmt: skip
    return OwnBlock(replace(unsigned, signature=site.own_identity().sign(unsigned.body())), units)


def deal(site: "Site", study: Study, payload: Mapping[str, bytes]) -> bytes:
    """Masked columns of one block of subjects, sealed to the site before this one in the roster."""
    store = site.run_store(study)
    if any(name != BLOCK for name in payload):
        _hear(site, study, {name: raw for name, raw in payload.items() if name != BLOCK})
    own, _peers = _heard(site, study)
    block = _number(payload, len(own.commitments))
    circle = _circle(site, study, own.order_mac)
    seed = store.need("seed.secret", "Make the site's own Gram block first.")
    masked = _masked(circle, opened(store, own.n, own.columns), seed, block, study.sketch.rows or own.n)
    if digest(masked) != own.commitments[block].tobytes():
        raise FederationError("The columns of this run are not those this site committed to. Start a new run of the study.")
    message = GramDeal(site.name, study.hash, circle.at(2), block, own.order_mac, circle.seal(block, masked)).to_bytes()
    store.sent(f"deal {block}", message)
    return message


def multiply(site: "Site", study: Study, payload: Mapping[str, bytes]) -> bytes:
    """Add one block to this site's sums; after the last one, its shares of all products."""
    store = site.run_store(study)
    own, peers = _heard(site, study)
    block = _number(payload, len(own.commitments))
    done = store.get("product")
    if done is not None and block == len(own.commitments) - 1:
        return _sent(store, block, done)
    circle = _circle(site, study, own.order_mac)
    following, before = peers[circle.at(1)], peers[circle.at(2)]
    at, sums = _load(store)
    if block > at:
        raise FederationError(f"Block {block} was sent before block {at} was multiplied. Send block {at} first.")
    if block == at:
        rows = study.sketch.rows or own.n
        seed = store.need("seed.secret", "Make the site's own Gram block first.")
        columns = with_checks(_rows(opened(store, own.n, own.columns), block, rows), seed)
        received = _open(circle, payload, block, (len(columns), following.columns + CHECKS), following)
        for name, term in terms(circle, block, columns, received, before.columns + CHECKS).items():
            sums[name] = term if name not in sums else sums[name] + term
        _save(store, block + 1, sums)
    message = GramProduct(site.name, study.hash, own.order_mac, block)
    if block == len(own.commitments) - 1:
        seed = store.need("seed.secret", "Make the site's own Gram block first.")
        pairs = {pair_name(pair): pair for pair in ((0, 1), (1, 2), (2, 0))}
        shares = {name: value + circle.zero(pairs[name], value.shape) for name, value in sums.items()}  # type: ignore[arg-type]
        unsigned = replace(message, seed=seed, products=shares)
        message = replace(unsigned, signature=site.own_identity().sign(unsigned.body()))
        raw = store.put("product", message.to_bytes())
        store.forget(_SUMS)
        return _sent(store, block, raw)
    return _sent(store, block, message.to_bytes())


def forget(store: RunStore) -> None:
    """Delete what only the multiplication needed: the coefficients are here."""
    for name in (FILE, _SUMS, "seed.secret"):
        store.forget(name)


def _sent(store: RunStore, block: int, message: bytes) -> bytes:
    store.sent(f"product {block}", message)
    return message


def _circle(site: "Site", study: Study, mac: str) -> Circle:
    raw = site.run_store(study).need("pairs.secret", "Agree on the study key first.")
    return Circle(study, site.name, {name: bytes.fromhex(secret) for name, secret in json.loads(raw).items()}, mac)


def _rows(columns: Ring, block: int, rows: int) -> Ring:
    return np.asarray(columns[block * rows : (block + 1) * rows])


def _masked(circle: Circle, columns: Ring, seed: bytes, block: int, rows: int) -> Ring:
    """M of this site: its columns and check columns less the mask."""
    wide = with_checks(_rows(columns, block, rows), seed)
    return wide - circle.own_mask(block, wide.shape)  # type: ignore[arg-type]


def _open(circle: Circle, payload: Mapping[str, bytes], block: int, shape: tuple[int, int], sender: GramBlock) -> Ring:
    raw = payload.get(sender.site)
    if raw is None:
        raise MessageError(f"The masked columns of site {sender.site!r} are missing.")
    dealt = GramDeal.from_bytes(raw)
    expected = (sender.site, circle.study.hash, circle.name, block, circle.order_mac)
    if (dealt.site, dealt.study_hash, dealt.to, dealt.block, dealt.order_mac) != expected:
        raise FederationError(f"These masked columns are not block {block} of site {sender.site!r} for this site. Refused.")
    return circle.open(block, dealt.sealed, shape, sender.commitments[block].tobytes())


def _hear(site: "Site", study: Study, blocks: Mapping[str, bytes]) -> None:
    """Every site's own block, checked and kept: what was heard first holds for the run."""
    missing = [name for name in study.names if name not in blocks]
    if missing:
        raise FederationError(f"The Gram blocks of {', '.join(missing)} are missing; nothing is shared before all are there.")
    store = site.run_store(study)
    own = GramBlock.from_bytes(store.need("sketch", "Make the site's own Gram block first."))
    if blocks[site.name] != own.to_bytes():
        raise FederationError("The relayed Gram block of this site is not the one it made. Start a new run of the study.")
    total = 0
    for name in study.names:
        found = GramBlock.from_bytes(blocks[name])
        check_signed(study, name, found)
        same = ("n", "bits", "order_mac", "key_fingerprint")
        if any(getattr(found, what) != getattr(own, what) for what in same) or len(found.commitments) != len(own.commitments):
            raise FederationError(f"Site {name!r} rests on another cohort, order or key than this site. Align again.")
        if study.site(name).foreign(found.features, found.responses, found.covariates) is not None:
            raise FederationError(f"Site {name!r} brings columns that study.toml does not list for it. Refused.")
        total += found.columns
    if total > COLUMNS_PER_SUBJECT * own.n:
        raise PrivacyError(
            f"The sites bring {total} columns for {own.n} subjects: more than a third. A Gram matrix of so many "
            "columns tells too "
            'much of each subject. Use a sketch (kind = "orthonormal") instead.'
        )
    text = json.dumps({name: hashlib.sha256(blocks[name]).hexdigest() for name in study.names}, sort_keys=True).encode()
    if store.put("blocks.json", text) != text:
        raise FederationError("Other Gram blocks were shown before in this run. Refused; start a new run of the study.")
    for name in study.names:
        store.put(f"block-{name}", blocks[name])


def _heard(site: "Site", study: Study) -> tuple[GramBlock, dict[str, GramBlock]]:
    store = site.run_store(study)
    remedy = "Show it every site's Gram block first."
    store.need("blocks.json", remedy)
    peers = {name: GramBlock.from_bytes(store.need(f"block-{name}", remedy)) for name in study.names}
    return peers[site.name], peers


def _number(payload: Mapping[str, bytes], blocks: int) -> int:
    text = payload.get(BLOCK, b"").decode("ascii", "replace")
    if not text.isdigit() or len(text) > 12 or int(text) >= blocks:
        raise MessageError(f"The request names no block; expected a number from 0 to {blocks - 1}.")
    return int(text)


def _save(store: RunStore, at: int, sums: Mapping[str, Ring]) -> None:
    store.replace(_SUMS, pack("sums", {"at": at}, {name: value.view(np.int64) for name, value in sums.items()}))


def _load(store: RunStore) -> tuple[int, dict[str, Ring]]:
    raw = store.get(_SUMS)
    if raw is None:
        return 0, {}
    header, arrays = unpack(raw, "sums")
    return int(header["at"]), {name: np.ascontiguousarray(value).view(np.uint64) for name, value in arrays.items()}
