"""A site whose subjects lie in several stores (hospitals, databases): one sketch, no store's part seen by another.

Sketches are additive over rows, so the stores' partial sums are added before the last step. Each store hides its sums
under masks it shares with each other store; modulo 2⁶⁴ the masks cancel exactly in the total, and whoever adds up (the
site's collector) learns the total only. Two rounds: the columns' means, so that all stores count from one pilot and
no digits are lost; then the sums themselves.

    plan = StorePlan(design, {store: public exchange key, …}, context)
    A = [column_sums(plan, store) …]        pilot = add_column_sums(plan, A)
    B = [row_sums(plan, store, pilot) …]    sums = add_row_sums(plan, B, pilot)
    result = finish(sums, design, …)        # the sketch, as from one table
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import AlignmentError, FederationError, InputError, MessageError
from intarsia.site.align import Tokens
from intarsia.site.data.moments import Moments
from intarsia.site.data.table import Table
from intarsia.site.identity import Identity
from intarsia.site.masks import Fixed, from_fixed, to_fixed, total_mask
from intarsia.site.sketch.partial import Design, Partial
from intarsia.site.sketch.sketch import partial
from intarsia.wire.alignment import halves
from intarsia.wire.container import pack, unpack

# A number travels as three fixed-point numbers: to 2³⁰, what is left to 2⁻³⁰, what is left of that to 2⁻⁹⁰.
# Together they hold every float64 from 1e-27 to 1e27 without loss, and their sums modulo 2⁶⁴ are exact.
_LIMBS = (-30, 30, 90)


@dataclass(frozen=True)
class Store:
    """One store: its identity (for the masks), its table, its rows' places in the agreed order (−1: left out)."""

    name: str
    identity: Identity = field(repr=False)
    table: Table = field(repr=False)
    positions: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class StorePlan:
    """What the stores of a site agree on: Φ, each other's public keys, the columns, and what the masks are bound to."""

    design: Design
    keys: Mapping[str, str]
    features: tuple[str, ...]
    responses: tuple[str, ...]
    context: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.keys)

    def check(self, store: Store) -> None:
        if len(self.keys) < 2:
            raise InputError("Masks need two stores or more; sketch a single store as a table.")
        if self.keys.get(store.name) != store.identity.exchange_key:
            raise InputError(f"Store {store.name!r} is not in the plan, or with another key.")
        if (tuple(store.table.features), tuple(store.table.responses)) != (self.features, self.responses):
            raise InputError(
                f"Store {store.name!r} has other columns than the plan. Open every store with the same roles and, for "
                "categorical columns, the same levels."
            )


def places(tokens: Mapping[str, Tokens], keep: NDArray[np.bool_] | None = None) -> dict[str, NDArray[np.int64]]:
    """Each store's rows' places in the site's order (that of all tokens together); a subject is in one store only.

    `keep` is the agreed selection over the site's sorted tokens, from an intersecting alignment.
    """
    high, low = halves(np.concatenate([t.tokens for t in tokens.values()]))
    order = np.lexsort((low, high))
    twice = int(((np.diff(high[order]) == 0) & (np.diff(low[order]) == 0)).sum())
    if twice:
        raise AlignmentError(f"{twice} subjects are in two stores of this site. Each subject is counted in one store only.")
    rank = np.full(len(order), -1, dtype=np.int64)
    chosen = order if keep is None else order[keep]
    rank[chosen] = np.arange(len(chosen))
    out, at = {}, 0
    for name, t in tokens.items():
        positions = np.empty(t.n, dtype=np.int64)
        positions[t.rows] = rank[at : at + t.n]
        out[name] = positions
        at += t.n
    return out


def column_sums(plan: StorePlan, store: Store) -> bytes:
    """Round 1: masked column totals and counts of one store."""
    plan.check(store)
    total, seen = np.zeros(len(plan.features) + len(plan.responses)), 0.0
    missing = np.zeros_like(total)
    at = 0
    for Z in store.table.raw_blocks():
        here = Z[store.positions[at : at + len(Z)] >= 0]
        at += len(Z)
        absent = ~np.isfinite(here)
        total += np.where(absent, 0.0, here).sum(axis=0)
        missing += absent.sum(axis=0)
        seen += len(here)
    return _hide(plan, store, "columns", {"total": total, "seen": seen - missing})


def add_column_sums(plan: StorePlan, messages: Sequence[bytes]) -> NDArray[np.float64]:
    """The common pilot: the columns' means over all stores."""
    sums = _add(plan, "columns", messages)
    return sums["total"] / np.maximum(sums["seen"], 1.0)


def row_sums(plan: StorePlan, store: Store, pilot: NDArray[np.float64]) -> bytes:
    """Round 2: the masked partial sketch of one store, counted from the common pilot."""
    plan.check(store)
    own = partial(store.table, plan.design, positions=store.positions, gram=False)
    seen = own.g[:, None] if own.H is None else own.g[:, None] - own.H
    S = own.S + seen * (own.moments.pilot - pilot)
    moments = own.moments.moved(pilot)
    H = np.zeros_like(S) if own.H is None else own.H
    arrays = {"S": S, "g": own.g, "H": H, "total": moments.total, "square": moments.square}
    arrays |= {"missing": moments.missing.astype(float), "infinite": moments.infinite.astype(float)}
    return _hide(plan, store, "rows", {**arrays, "covered": own.covered.astype(float)})


def add_row_sums(plan: StorePlan, messages: Sequence[bytes], pilot: NDArray[np.float64]) -> Partial:
    """The site's partial sums over all its stores, ready for `intarsia.site.sketch.sketch.finish`."""
    sums = _add(plan, "rows", messages)
    covered = np.rint(sums["covered"]).astype(np.int64)
    if (covered > 1).any():
        raise AlignmentError(f"{int((covered > 1).sum())} subjects are counted in two stores. Each is in one only.")
    if (covered < 1).any():
        raise AlignmentError(f"{int((covered < 1).sum())} subjects of the agreed cohort are in no store of this site.")
    missing = np.rint(sums["missing"]).astype(np.int64)
    infinite = np.rint(sums["infinite"]).astype(np.int64)
    moments = Moments(pilot, plan.design.n, missing, infinite, sums["total"], sums["square"])
    H = sums["H"] if missing.any() else None
    return Partial(plan.design.tag, plan.features, plan.responses, sums["S"], sums["g"], None, H, moments, covered.astype(bool))


def _hide(plan: StorePlan, store: Store, stage: str, arrays: Mapping[str, Any]) -> bytes:
    values = np.concatenate([np.ravel(np.asarray(a, dtype=np.float64)) for a in arrays.values()])
    limbs = []
    for bits in _LIMBS:
        limbs.append(to_fixed(values, bits))
        values = values - from_fixed(limbs[-1], bits)
    fixed: Fixed = np.concatenate(limbs)
    secrets = {}
    for peer, key in plan.keys.items():
        if peer != store.name:
            pair = "|".join(sorted((store.name, peer)))
            context = f"stores|{stage}|{plan.context}|{plan.design.tag}|{pair}"
            secrets[peer] = store.identity.pair_secret(key, context.encode())
    masked = fixed + total_mask(store.name, secrets, fixed.shape)
    shapes = [[name, list(np.shape(a))] for name, a in arrays.items()]
    header = {"store": store.name, "stage": stage, "tag": plan.design.tag, "shapes": shapes}
    return pack("store-sums", header, {"masked": masked.view(np.int64)})


def _add(plan: StorePlan, stage: str, messages: Sequence[bytes]) -> dict[str, NDArray[np.float64]]:
    total: Fixed | None = None
    shapes: list[Any] = []
    seen = []
    for raw in messages:
        header, arrays = unpack(raw, "store-sums")
        if header.get("stage") != stage or header.get("tag") != plan.design.tag:
            raise MessageError("A store's sums are of another round or another sketch.")
        masked = arrays.get("masked")
        if masked is None or masked.dtype != np.int64 or masked.ndim != 1 or len(masked) % len(_LIMBS):
            raise MessageError("A store's sums have the wrong form.")
        if total is not None and (header["shapes"] != shapes or masked.shape != total.shape):
            raise MessageError("Two stores sent sums of different columns.")
        shapes = header["shapes"]
        total = masked.view(np.uint64).copy() if total is None else total + masked.view(np.uint64)
        seen.append(header.get("store"))
    if sorted(map(str, seen)) != sorted(plan.names) or total is None:
        lacking = sorted(set(plan.names) - set(seen))
        raise FederationError(
            f"Sums of {', '.join(lacking) or 'a store'} are missing or come twice: masks cancel over all stores only."
        )
    # Smallest first, so that nothing is lost in the addition.
    limbs = total.reshape(len(_LIMBS), -1)
    values = sum((from_fixed(limb, bits) for limb, bits in zip(limbs[::-1], _LIMBS[::-1])), np.zeros(limbs.shape[1]))
    out, at = {}, 0
    for name, shape in shapes:
        size = int(np.prod(shape)) if shape else 1
        out[str(name)] = values[at : at + size].reshape(shape)
        at += size
    return out
