"""The server's side of a Gram study: what it checks of the sites' messages, and the joint Gram matrix it makes of them.

The sites' own blocks stand on the diagonal as they were sent. The blocks between two sites are the sums of three shares.
Each is checked: the check columns must be the weighted columns, by weights that were secret while the products were
computed; what was opened of a site's shared columns must fit its own block; every number must lie where products of
standardised columns can; the whole must be positive semidefinite.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.errors import FederationError
from intarsia.files import read_arrays, replace_arrays
from intarsia.server.study import gram_holder, screened
from intarsia.server.study.sent_columns import check_agreed, check_beside, check_columns
from intarsia.wire.gram_messages import GramBlock, GramDeal, GramProduct, check_shapes, check_signed, check_standardised
from intarsia.wire.gram_sharing import (
    Cut,
    Sharing,
    check_weights,
    commitment,
    cuts,
    expected_opening,
    opening_weights,
    times,
)
from intarsia.wire.messages import Joined
from intarsia.wire.ring import Ring, decode, fits, square
from intarsia.wire.study_parts import GRAM, SERVER

if TYPE_CHECKING:
    from intarsia.server.study.folder import StudyFolder

ENDED = "Nothing is fitted; start a new run of the study."


def check_block(folder: "StudyFolder", sender: str, raw: bytes | Path) -> None:
    """A site's own block: signed, of the agreed cohort, with the columns the study gives this site."""
    block, study = GramBlock.from_bytes(raw), folder.study
    folder.same_hash("Gram block", sender, block.study_hash, block.site)
    check_signed(study, sender, block, "Gram block")
    check_columns(study, sender, block, folder.announced(sender))
    seeds = len(Sharing.of(study).seeded(sender))
    whole = len(block.commitments) == len(cuts(block.folds, study.sketch.rows)) + 1 and len(block.seeds) == seeds
    if block.folds != study.sketch.fold_sizes(block.n) or not whole:
        raise FederationError(
            f"The Gram block of site {sender!r} has other folds or commitments than the study asks for. Refused."
        )
    if not all(fits(G, np.diagonal(G).copy(), np.diagonal(G).copy()) for G in block.G):
        raise FederationError(f"gram: the own block of site {sender!r} has a product larger than its two columns allow. Refused.")
    check_standardised(block, may_be_empty=folder.round is not None)
    screened.check_round(folder, sender, block)
    if folder.round is None:
        check_agreed(folder, sender, block, "Gram block")
    check_beside(folder, sender, block, GramBlock)


def check_deal(folder: "StudyFolder", sender: str, raw: bytes | Path, block: int) -> None:
    """Shares on their way: the server sees from whom to whom, and which block."""
    dealt, sharing = GramDeal.from_bytes(raw), Sharing.of(folder.study)
    folder.same_hash("deal", sender, dealt.study_hash, dealt.site)
    to = {h for h, name in enumerate(sharing.holders) if name != sender}
    if dealt.block != block or set(dealt.sealed) != to:
        raise FederationError(f"Site {sender!r} dealt another block, or to other holders, than it was asked for.")
    if commitment(dealt.coin) != screened.coin_of(folder, sender):
        raise FederationError(f"deal: the coin of site {sender!r} is not the one it committed to. Refused.")


def check_product(folder: "StudyFolder", sender: str, raw: bytes | Path, block: int | None = None) -> None:
    """A site's shares of the products (block None), or what it opened of a block before the last."""
    product, blocks = GramProduct.from_bytes(raw), own_blocks(folder)
    folder.same_hash("product", sender, product.study_hash, product.site)
    if product.order_mac != blocks[sender].order_mac:
        raise FederationError(f"The products of site {sender!r} are of another cohort. Refused.")
    through, last = all_cuts(folder), block is None
    number = len(through) - 1 if block is None else block
    if product.block != number:
        raise FederationError(f"Site {sender!r} answered for another block than it was asked for.")
    check_shapes(product, Sharing.of(folder.study), blocks, through[number], last)
    check_signed(folder.study, sender, product, "products")
    if not last:
        return
    if commitment(product.seed) != blocks[sender].check:
        raise FederationError(f"The check weights of site {sender!r} are not those it committed to. Refused.")
    if any(commitment(coin) != blocks[name].coin for name, coin in product.coins.items()):
        raise FederationError(f"Site {sender!r} used a coin that another site did not commit to. Refused.")


def settle_block(folder: "StudyFolder", number: int) -> None:
    """What the holders opened of a block: w of every site, of which its products with itself are kept, and nothing else."""
    target, sharing = opened_file(folder, number), Sharing.of(folder.study)
    if target.is_file():
        return
    kind = _kind(folder, number)
    found = {name: GramProduct.from_bytes(folder.whole(kind, name)).opened for name in sharing.holders if name in folder.names}
    if sharing.server_holds:
        found[SERVER] = gram_holder.opened(folder, number)
    squares = []
    for k in range(len(sharing.sites)):
        parts = [opened[str(k)] for opened in found.values() if str(k) in opened]
        squares.append(square(np.asarray(sum(parts[1:], parts[0]))))
    target.parent.mkdir(exist_ok=True)
    replace_arrays(target, {"squares": np.stack(squares).view(np.int64)})


def opened_file(folder: "StudyFolder", number: int) -> Path:
    return folder.path / "opened" / f"{number}.npz"


def _kind(folder: "StudyFolder", number: int) -> str:
    return "product" if number == number_of_blocks(folder) - 1 else f"progress-{number}"


def joint(folder: "StudyFolder") -> np.ndarray:
    """The joint Gram matrix, columns in the order of the roster; refused with the step that failed when a check does not hold."""
    return decode(whole(folder).sum(axis=0, dtype=np.uint64), _bits(folder))


def by_fold(folder: "StudyFolder") -> np.ndarray:
    """The joint Gram matrices of the folds (fold × column × column); of all subjects where the study has no folds."""
    return decode(whole(folder), _bits(folder))


def _bits(folder: "StudyFolder") -> int:
    return next(iter(own_blocks(folder).values())).bits


def whole(folder: "StudyFolder") -> Ring:
    """The matrices of the folds as numbers of the ring, checked.

    After a site has left it is what was kept of them then: shares of a product are of no use without the third one.
    """
    if folder.left:
        return read_arrays(remaining(folder, len(folder.left)), ENDED)["whole"].view(np.uint64)
    folder.require("product")
    blocks, sharing = own_blocks(folder), Sharing.of(folder.study)
    found = {name: GramProduct.from_bytes(folder.whole("product", name)) for name in folder.names}
    shares = [found[name].products for name in sharing.holders if name in found]
    if sharing.server_holds:
        shares.append(gram_holder.products(folder))
    ends = np.cumsum([0, *(block.columns for block in blocks.values())])
    at = {name: slice(ends[k], ends[k + 1]) for k, name in enumerate(blocks)}
    whole = np.zeros((len(next(iter(blocks.values())).folds), ends[-1], ends[-1]), dtype=np.uint64)
    for name, block in blocks.items():
        whole[:, at[name], at[name]] = block.G
    for pair, (i, j) in sharing.pairs.items():
        total = np.asarray(sum((share[pair] for share in shares[1:]), shares[0][pair]))
        for fold, one in enumerate(total):
            cross = _checked(one, blocks[i], blocks[j], (found[i].seed, found[j].seed), fold)
            whole[fold, at[i], at[j]], whole[fold, at[j], at[i]] = cross, cross.T
    _check_own(folder, blocks, found)
    return whole


def _checked(total: Ring, first: GramBlock, second: GramBlock, seeds: tuple[bytes, bytes], fold: int) -> Ring:
    """The block between two sites without its check rows and columns, which must be weighted sums of the others."""
    p, q = first.columns, second.columns
    cross = np.ascontiguousarray(total[:p, :q])
    rows, columns = check_weights(seeds[0], p), check_weights(seeds[1], q)
    right = np.array_equal(total[p:, :q], times(np.ascontiguousarray(rows.T), cross))
    if not right or not np.array_equal(total[:, q:], times(total[:, :q], columns)):
        raise FederationError(
            f"multiply: the products between sites {first.site!r} and {second.site!r} were not computed as they should be: the "
            "check columns do not fit. One of the holders gave a wrong share, or one of the two sites shared wrong check "
            f"columns. {ENDED}"
        )
    a, b = (np.diagonal(block.G[fold]).copy() for block in (first, second))
    if not fits(cross, a, b):
        raise FederationError(
            f"gram: a product between sites {first.site!r} and {second.site!r} is larger than the lengths of its two "
            f"columns allow. A site's own block does not belong to the columns it multiplied. {ENDED}"
        )
    return cross


def _check_own(folder: "StudyFolder", blocks: Mapping[str, GramBlock], found: Mapping[str, GramProduct]) -> None:
    """Every site's own block against what the others opened of the columns it shared."""
    sharing, through = Sharing.of(folder.study), all_cuts(folder)
    holding = [product for name, product in found.items() if name in sharing.holders]
    coins, tails = holding[0].coins, [product.tails for product in holding]
    if any(product.coins != coins for product in holding):
        raise FederationError(f"open: the holders were shown different coins. {ENDED}")
    if sharing.server_holds:
        tails.append(gram_holder.tails(folder))
    for number in range(len(through)):
        settle_block(folder, number)
    found_then = [read_arrays(opened_file(folder, number), ENDED)["squares"] for number in range(len(through))]
    squares = np.stack(found_then).view(np.uint64)
    of_fold = np.array([cut.fold for cut in through])
    for k, (name, block) in enumerate(blocks.items()):
        parts = [tail[str(k)] for tail in tails if str(k) in tail]
        weights, tail = opening_weights(coins, name, block.columns), np.asarray(sum(parts[1:], parts[0]))
        for fold, G in enumerate(block.G):
            opened = squares[of_fold == fold, k].sum(axis=0, dtype=np.uint64)
            if not np.array_equal(opened, expected_opening(G, weights) + tail[fold]):
                openers = " or ".join(repr(holder) for holder in sharing.openers(name))
                raise FederationError(
                    f"open: the own block of site {name!r} does not belong to the columns it shared: what was opened of them "
                    f"does not fit. Site {name!r} stated another block, or {openers} opened wrongly. {ENDED}"
                )


def remaining(folder: "StudyFolder", left: int) -> Path:
    """Where the joint matrices of the sites that stayed are, once so many have left."""
    return folder.path / f"gram-after-{left}-left.npz"


def keep_without(folder: "StudyFolder", site: str) -> None:
    """Keep the joint matrices less a site's rows and columns, as the file `remaining` of a study that it has left."""
    owners = np.repeat(np.array(folder.names), [block.columns for block in own_blocks(folder).values()])
    stays = np.flatnonzero(owners != site)
    stay = np.ascontiguousarray(whole(folder)[:, stays][:, :, stays]).view(np.int64)
    replace_arrays(remaining(folder, len(folder.left) + 1), {"whole": stay})


def joined(folder: "StudyFolder", G: Any = None, rows: int | None = None, below_zero: float = 1e-9) -> Joined:
    """A root of the joint Gram matrix, as the columns of all sites side by side; `m` is the number of rows it stands for.

    `G` and `rows`: another matrix of the same columns, such as that of all folds but one, and how many rows it has; `below_zero`:
    how far its eigenvalues may lie there, where it is less exact.
    """
    from intarsia.server.pseudo_rows import root  # the fit's, with all its libraries: not for every job that starts

    blocks = own_blocks(folder)
    W = root(joint(folder) if G is None else G, below_zero)
    labels: dict[str, list[tuple[str, str, int]]] = {"features": [], "responses": [], "covariates": []}
    at = 0
    for site, block in blocks.items():
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
        raise FederationError(f"No site brings a {'response' if features else 'feature'}: a regression needs at least one.")
    # Rows of zeros change no product; covariates are counted against the rows there are.
    W = np.concatenate([W, np.zeros((2 * len(z), W.shape[1]))])
    first = next(iter(blocks.values()))
    return Joined(
        X=W[:, x], Y=W[:, y], Z=W[:, z], features=features, responses=responses, covariates=covariates,
        feature_sites=feature_sites, response_sites=response_sites, covariate_sites=covariate_sites, n=first.n,
        m=first.n - 1 if rows is None else rows, kind=GRAM, study_hash=first.study_hash,
        key_fingerprint=first.key_fingerprint, order_mac=first.order_mac, feature_noise=(0.0,) * len(x),
        response_noise=(0.0,) * len(y),
        response_scales=tuple(scale for block in blocks.values() for scale in block.response_scales),
        most_told={name: block.most_told for name, block in blocks.items() if block.most_told is not None},
    )  # fmt: skip


def own_blocks(folder: "StudyFolder") -> dict[str, GramBlock]:
    """The sites' own blocks, in the order of the roster."""
    folder.require("sketch")
    return {name: GramBlock.from_bytes(folder.whole("sketch", name)) for name in folder.names}


def collected(folder: "StudyFolder") -> bool:
    """Whether every site's shares of the products are here, or what was made of them before a site left."""
    if folder.missing("sketch"):
        return False
    return bool(folder.left) or (not folder.missing("product") and gram_holder.done(folder))


def all_cuts(folder: "StudyFolder") -> tuple[Cut, ...]:
    first = next(iter(own_blocks(folder).values()))
    return cuts(first.folds, folder.study.sketch.rows)


def number_of_blocks(folder: "StudyFolder") -> int:
    return len(all_cuts(folder))


def deals_for(folder: "StudyFolder", name: str, kind: str) -> dict[str, Any]:
    """What a holder multiplies with: its part of what the other sites dealt."""
    sharing = Sharing.of(folder.study)
    if name not in sharing.holders:
        return {}
    h = sharing.holders.index(name)
    senders = [sender for sender in sharing.sites if sender != name]
    return {sender: GramDeal.from_bytes(folder.whole(kind, sender)).only(h).to_bytes() for sender in senders}
