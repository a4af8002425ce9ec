"""The server's side of a Gram study: what it checks of the sites' messages, and the joint Gram matrix it makes of them.

The sites' own blocks stand on the diagonal as they were sent. The blocks between two sites are the sums of three shares.
Each is checked: the check columns must be the weighted columns, by weights that were secret while the products were
computed; every number must lie where products of standardised columns can; the whole must be positive semidefinite.
"""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.errors import FederationError, MessageError
from intarsia.server.study.sent_columns import check_columns
from intarsia.wire.alignment import AlignmentReport, same
from intarsia.wire.gram_messages import (
    CHECKS,
    PAIRS,
    GramBlock,
    GramDeal,
    GramProduct,
    check_signed,
    check_weights,
    pair_name,
    seed_digest,
)
from intarsia.wire.messages import Joined
from intarsia.wire.ring import Ring, decode, fits

if TYPE_CHECKING:
    from intarsia.server.study.folder import StudyFolder


def check_block(folder: "StudyFolder", sender: str, raw: bytes | Path) -> None:
    """A site's own block: signed, of the agreed cohort, with the columns the study gives this site."""
    block, study = GramBlock.from_bytes(raw), folder.study
    folder.same_hash("Gram block", sender, block.study_hash, block.site)
    check_signed(study, sender, block)
    check_columns(study, sender, block)
    if len(block.commitments) != study.sketch.blocks(block.n) or not fits(block.G):
        raise FederationError(f"The Gram block of site {sender!r} has the wrong number of commitments, or numbers out of range.")
    if not folder.missing("alignment"):
        n = folder.cohorts()[sender].n
        announced = AlignmentReport.from_bytes(folder.file("alignment", sender)).mac
        strict = study.alignment.mode == "strict"
        if block.n != n or (strict and not same(announced, block.order_mac)):
            raise FederationError(f"The Gram block of site {sender!r} is over other subjects than were agreed. Refused.")
    for name in folder.present("sketch"):
        other = GramBlock.from_bytes(folder.file("sketch", name))
        if other.key_fingerprint != block.key_fingerprint:
            raise FederationError(f"Sites {name!r} and {sender!r} used different study keys. Agree on the key again.")
        if (other.n, other.order_mac) != (block.n, block.order_mac):
            raise FederationError(f"Sites {name!r} and {sender!r} do not prove the same subjects in the same order. Align again.")
        twice = {*block.features, *block.responses, *block.covariates} & {*other.features, *other.responses, *other.covariates}
        if twice:
            raise FederationError(f"Column {min(twice)!r} comes from sites {name!r} and {sender!r}: a column has one owner.")


def check_deal(folder: "StudyFolder", sender: str, raw: bytes | Path, block: int) -> None:
    """Masked columns on their way: the server sees from whom to whom, and which block."""
    dealt = GramDeal.from_bytes(raw)
    folder.same_hash("deal", sender, dealt.study_hash, dealt.site)
    names = folder.study.names
    if dealt.block != block or dealt.to != names[(names.index(sender) + 2) % 3]:
        raise FederationError(f"Site {sender!r} dealt another block, or to another site, than it was asked for.")


def check_product(folder: "StudyFolder", sender: str, raw: bytes | Path, block: int | None = None) -> None:
    """A site's shares of the products (block None), or its word that a block before the last is done."""
    product = GramProduct.from_bytes(raw)
    folder.same_hash("product", sender, product.study_hash, product.site)
    blocks = _blocks(folder)
    if product.order_mac != blocks[0].order_mac:
        raise FederationError(f"The products of site {sender!r} are of another cohort. Refused.")
    last = len(blocks[0].commitments) - 1
    if product.block != (last if block is None else block) or product.final != (block is None):
        raise FederationError(f"Site {sender!r} answered for another block than it was asked for.")
    if block is not None:
        return
    check_signed(folder.study, sender, product)
    own = blocks[folder.names.index(sender)]
    if seed_digest(product.seed) != own.check:
        raise FederationError(f"The check weights of site {sender!r} are not those it committed to. Refused.")
    for i, j in PAIRS:
        if product.products[pair_name((i, j))].shape != (blocks[i].columns + CHECKS, blocks[j].columns + CHECKS):
            raise MessageError(f"the products of sites {blocks[i].site!r} and {blocks[j].site!r} have the wrong shape.")


def joint(folder: "StudyFolder") -> np.ndarray:
    """The joint Gram matrix, columns in the order of the roster; refused with the step that failed when a check does not hold.

    After a site has left it is what was kept of the matrix then: shares of a product are of no use without the third one.
    """
    if folder.left:
        return np.asarray(np.load(remaining(folder, len(folder.left)), allow_pickle=False))
    folder.require("product")
    blocks = _blocks(folder)
    products = [GramProduct.from_bytes(folder.file("product", name)) for name in folder.names]
    ends = np.cumsum([0, *(block.columns for block in blocks)])
    whole = np.zeros((ends[-1], ends[-1]), dtype=np.uint64)
    for k, block in enumerate(blocks):
        whole[ends[k] : ends[k + 1], ends[k] : ends[k + 1]] = block.G
    for i, j in PAIRS:
        first, second, third = (product.products[pair_name((i, j))] for product in products)
        total = first + second + third
        cross = _checked(total, blocks[i], blocks[j], products[i].seed, products[j].seed)
        whole[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = cross
        whole[ends[j] : ends[j + 1], ends[i] : ends[i + 1]] = cross.T
    return decode(whole, blocks[0].bits)


def _checked(total: Ring, first: GramBlock, second: GramBlock, seed_i: bytes, seed_j: bytes) -> Ring:
    """The block between two sites without its check rows and columns, which must be weighted sums of the others."""
    p, q = first.columns, second.columns
    cross = total[:p, :q]
    rows, columns = check_weights(seed_i, p), check_weights(seed_j, q)
    right = np.array_equal(total[p:, :q], rows.T @ cross) and np.array_equal(total[:, q:], total[:, :q] @ columns)
    if not right:
        raise FederationError(
            f"multiply: the products between sites {first.site!r} and {second.site!r} were not computed as they should be: the "
            "check columns do not fit. One of the three sites gave a wrong share. Nothing is fitted; start a new run "
            "of the study."
        )
    a, b = (np.diagonal(block.G).astype(np.float64) for block in (first, second))
    if not fits(cross) or (np.abs(cross.view(np.int64)) > np.sqrt(np.outer(a, b)) * (1 + 1e-9)).any():
        raise FederationError(
            f"gram: a product between sites {first.site!r} and {second.site!r} is larger than the lengths of its two "
            "columns allow. "
            "A site's own block does not belong to the columns it multiplied. Nothing is fitted."
        )
    return np.asarray(cross)


def remaining(folder: "StudyFolder", left: int) -> Path:
    """Where the joint matrix of the sites that stayed is, once so many have left."""
    return folder.path / f"gram-after-{left}-left.npy"


def without(folder: "StudyFolder", site: str) -> bytes:
    """The joint matrix less a site's rows and columns, as the content of the file `remaining`."""
    owners = np.repeat(np.array(folder.names), [block.columns for block in _blocks(folder)])
    stays = np.flatnonzero(owners != site)
    buffer = io.BytesIO()
    np.save(buffer, joint(folder)[np.ix_(stays, stays)], allow_pickle=False)
    return buffer.getvalue()


def joined(folder: "StudyFolder") -> Joined:
    """A root of the joint Gram matrix, as the columns of all sites side by side; `m` is the number of rows it stands for."""
    from intarsia.server.pseudo_rows import root  # the fit's, with all its libraries: not for every job that starts

    blocks, names = _blocks(folder), folder.names
    W = root(joint(folder))
    labels: dict[str, list[tuple[str, str, int]]] = {"features": [], "responses": [], "covariates": []}
    at = 0
    for block, site in zip(blocks, names, strict=True):
        for role, found in labels.items():
            for label in getattr(block, role):
                found.append((label, site, at))
                at += 1

    def part(role: str) -> tuple[tuple[str, ...], tuple[str, ...], list[int]]:
        found = labels[role]
        return tuple(x[0] for x in found), tuple(x[1] for x in found), [x[2] for x in found]

    features, feature_sites, x = part("features")
    responses, response_sites, y = part("responses")
    covariates, covariate_sites, z = part("covariates")
    if not features or not responses:
        raise MessageError(f"No site brings a {'response' if features else 'feature'}: a regression needs at least one.")
    # Rows of zeros change no product; covariates are counted against the rows there are.
    W = np.concatenate([W, np.zeros((2 * len(z), W.shape[1]))])
    first = blocks[0]
    return Joined(
        X=W[:, x], Y=W[:, y], Z=W[:, z], features=features, responses=responses, covariates=covariates,
        feature_sites=feature_sites, response_sites=response_sites, covariate_sites=covariate_sites, n=first.n, m=first.n - 1,
        kind=folder.study.sketch.kind, study_hash=first.study_hash, key_fingerprint=first.key_fingerprint,
        order_mac=first.order_mac, feature_noise=(0.0,) * len(x), response_noise=(0.0,) * len(y),
        response_scales=tuple(scale for block in blocks for scale in block.response_scales),
    )  # fmt: skip


def _blocks(folder: "StudyFolder") -> list[GramBlock]:
    folder.require("sketch")
    return [GramBlock.from_bytes(folder.file("sketch", name)) for name in folder.names]


def collected(folder: "StudyFolder") -> bool:
    """Whether every site's shares of the products are here, or what was made of them before a site left."""
    return not folder.missing("sketch") and (bool(folder.left) or not folder.missing("product"))


def number_of_blocks(folder: "StudyFolder") -> int:
    return len(_blocks(folder)[0].commitments)


def deals_for(folder: "StudyFolder", name: str, kind: str) -> dict[str, Any]:
    """What a site multiplies with: the masked columns of the next site of the roster."""
    names = folder.study.names
    following = names[(names.index(name) + 1) % 3]
    return {following: folder.file(kind, following)}
