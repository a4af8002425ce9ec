"""Directions among sent columns that few people carry, as somebody looks for them who has what left and not the key.

What leaves is a matrix S of m rows, a column for each of the table's: a sketch ΦZ, or for a Gram study any S with SᵀS = ZᵀZ. Any
combination w of its columns is a direction S w = Φ(Z w). Where one person carries most of Z w, S w is that person's column of Φ,
and its products with all columns are an estimate of the person's row. There are many combinations and most tell nothing; an
attacker has to find the one that does, and these are the ways there are:

* `principal`: the longest and the shortest directions, of all columns and of each family. A loud person makes a long one, a
  total with a slip a short one.
* `pursuit`: what is left of a column when the columns most like it are taken off, one by one. Pairs, totals, ratios.
* `totals`: what is left of a column when its whole family is taken off.
* `meeting`: what the spans of two families have in common, and of many: panels that share a person.

A family are columns that belong together by their names (the same visit, the same item); blind separation is in `blind`. All of
it is linear algebra on S. The site runs these on what it is about to send, and looks with the real Φ at what they find.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
ENDS = 10  # longest and shortest directions, of all columns
FAMILY_ENDS = 3  # the same of a family
MEETINGS = 300  # pairs of families whose spans are intersected
MOST_FAMILIES = 300  # of one length of beginning or end
LONGEST_NAME = 6  # parts of a name
PURSUED = (1, 2, 3, 5, 8, 12)  # after so many steps somebody looks at what is left
SHORT = 0.1  # of a column's variance: so little is left of a sum when its parts are taken off
_PART = re.compile(r"[^\W\d_]+|\d+")
_NEGLIGIBLE = 1e-6  # of a column's length: less is rounding


@dataclass(frozen=True)
class Directions:
    """Unit directions (rows of S, k) found in one way; `weights(some)` are those of the columns (column, ·) in some of them.

    Where something is taken off a column, `short` says of which next to nothing is left: an attacker sees that, and takes it for
    few people's.
    """

    how: str
    found: Array
    weights: Callable[[Indices], Array]
    short: NDArray[np.bool_] | None = None


def families(labels: Sequence[str]) -> list[list[Indices]]:
    """Columns that share the beginning or the end of their names (`visit3_…`, `…_item4`, `a17` and `a18`): for each length of
    beginning and end the sets there are, largest first."""
    parts = [tuple(_PART.findall(label.lower())) for label in labels]
    namings: list[dict[tuple[str, ...], list[int]]] = []
    for k in range(1, min(max(map(len, parts), default=0), LONGEST_NAME)):
        for end in (slice(None, k), slice(-k, None)):
            naming: dict[tuple[str, ...], list[int]] = {}
            for j, tokens in enumerate(parts):
                if len(tokens) > k:
                    naming.setdefault(tokens[end], []).append(j)
            namings.append(naming)
    out, seen = [], set()
    for naming in namings:
        groups = [tuple(group) for group in naming.values() if 2 <= len(group) < len(labels)]
        if groups and (key := frozenset(groups)) not in seen:
            seen.add(key)
            out.append([np.array(group) for group in sorted(groups, key=len, reverse=True)[:MOST_FAMILIES]])
    return out


def attacks(S: Array, labels: Sequence[str], steps: int, loud: Sequence[Indices] = ()) -> Iterator[Directions]:
    """Every direction that the server tries, way by way. Columns that are nought or repeat others are no matter. `loud` are sets
    of columns in which somebody is known to be loud: an attacker has to look for these.
    """
    length = np.linalg.norm(S, axis=0)
    length = np.where(length > 0, length, 1.0)
    for some in _attacks(S / length, labels, steps, loud):
        yield replace(some, weights=_per_length(some.weights, length))


def _attacks(unit: Array, labels: Sequence[str], steps: int, loud: Sequence[Indices]) -> Iterator[Directions]:
    namings = families(labels)
    for some in loud:
        for longest in principal(unit, some, 1):
            yield replace(longest, how="loud")
    yield from principal(unit, np.arange(len(labels)), ENDS)
    for some in {tuple(group): group for naming in namings for group in naming}.values():
        yield from principal(unit, some, FAMILY_ENDS)
        if len(some) <= len(unit) // 2:
            yield from totals(unit, some)
    for naming in namings:
        yield from meeting(unit, naming)
    yield from pursuit(unit, steps)


def principal(unit: Array, at: Indices, ends: int) -> Iterator[Directions]:
    """The longest directions of these columns and, where they are fewer than the rows, the shortest."""
    block = unit[:, at]
    m, c = block.shape
    if c < 2:
        return
    if c <= m:
        size2, right = np.linalg.eigh(block.T @ block)
        ordered = np.argsort(-size2, kind="stable")
        keep = ordered[size2[ordered] > _NEGLIGIBLE**2 * c]
        chosen = np.unique(np.concatenate([keep[:ends], keep[-ends:]]))
        left = block @ right[:, chosen]
        weights = right[:, chosen]
    else:
        size2, vectors = np.linalg.eigh(block @ block.T)
        left = vectors[:, ::-1][:, : min(ends, m)]
        weights = block.T @ left
    yield Directions("principal", _unit(left), _placed(weights, at, unit.shape[1]))


def totals(unit: Array, at: Indices) -> Iterator[Directions]:
    """Each of these columns less what the others make of it."""
    block = unit[:, at]
    products = block.T @ block
    inverse = np.linalg.inv(products + _NEGLIGIBLE**2 * np.eye(len(at)))
    weights = inverse / np.diag(inverse)
    yield Directions("totals", _unit(block @ weights), _placed(weights, at, unit.shape[1]))


def meeting(unit: Array, groups: Sequence[Indices]) -> Iterator[Directions]:
    """What spans of families have in common: the nearest directions of two, and the directions nearest to all."""
    m, c = unit.shape
    bases = []
    for at in groups:
        block = unit[:, at]
        size2, right = np.linalg.eigh(block.T @ block) if len(at) <= 2 * m else (np.zeros(0), np.zeros((0, 0)))
        keep = size2 > 1e-9 * size2.max(initial=0.0)
        if 1 < keep.sum() <= m // 2:
            weights = right[:, keep] / np.sqrt(size2[keep])
            bases.append((at, block @ weights, weights))
    for first, second in [(bases[a], bases[b]) for b in range(len(bases)) for a in range(b)][:MEETINGS]:
        at, basis, weights = first
        left = np.linalg.svd(basis.T @ second[1])[0][:, :2]
        yield Directions("meeting", _unit(basis @ left), _placed(weights @ left, at, c))
    if len(bases) > 2:
        every, columns = np.hstack([basis for _, basis, _ in bases]), np.concatenate([at for at, _, _ in bases])
        nearest = np.linalg.eigh(every @ every.T)[1][:, ::-1][:, :FAMILY_ENDS]
        back = [weights @ (basis.T @ nearest) for _, basis, weights in bases]
        yield Directions("meeting", nearest, _placed(np.concatenate(back), columns, c, repeated=True))


def pursuit(unit: Array, steps: int, chunk: int = 2048) -> Iterator[Directions]:
    """Each column less the columns most like what is left of it, one after the other."""
    m, c = unit.shape
    steps = min(steps, c - 1, m // 3)
    single = unit.astype(np.float32)  # enough to choose by
    for start in range(0, c if steps > 0 else 0, chunk):
        here = np.arange(start, min(start + chunk, c))
        left = unit[:, here].copy()
        picks, basis = np.zeros((len(here), steps), dtype=np.int64), np.zeros((steps, m, len(here)))
        closed = np.zeros((c, len(here)), dtype=bool)
        closed[here, np.arange(len(here))] = True
        for k in range(steps):
            inner = np.abs(single.T @ left.astype(np.float32))
            inner[closed] = -1.0
            picks[:, k] = best = inner.argmax(axis=0)
            closed[best, np.arange(len(here))] = True
            new = unit[:, best]
            for _ in range(2):
                for j in range(k):
                    new = new - basis[j] * np.einsum("ij,ij->j", basis[j], new)
            size = np.linalg.norm(new, axis=0)
            basis[k] = np.where(size > 1e-7, new / np.maximum(size, 1e-300), 0.0)  # a copy has nothing of its own
            left = left - basis[k] * np.einsum("ij,ij->j", basis[k], left)
            if k + 1 in PURSUED:
                remains = np.linalg.norm(left, axis=0)
                good = np.flatnonzero(remains > _NEGLIGIBLE)
                short = remains[good] ** 2 < SHORT * (1 - (k + 1) / m)
                yield Directions("pursuit", _unit(left[:, good]), _pursued(unit, here[good], picks[good, : k + 1]), short)


def _pursued(unit: Array, columns: Indices, picks: Indices) -> Callable[[Indices], Array]:
    def weights(some: Indices) -> Array:
        out, at = np.zeros((unit.shape[1], len(some))), np.arange(len(some))
        taken = picks[some]
        # Least squares of all of them at once; a copy among the columns has nothing of its own, and gets nothing.
        basis, factor = np.linalg.qr(unit[:, taken].transpose(1, 0, 2))
        size = np.abs(np.diagonal(factor, axis1=1, axis2=2))
        own = size > 1e-7 * size.max(axis=1, keepdims=True)
        k = np.arange(taken.shape[1])
        factor[:, k, k] = np.where(own, factor[:, k, k], 1e300)
        inner = np.einsum("imk,mi->ik", basis, unit[:, columns[some]])
        times = np.linalg.solve(factor, np.where(own, inner, 0.0)[:, :, None])[:, :, 0]
        out[columns[some], at] = 1.0
        out[taken, at[:, None]] = -times
        return out

    return weights


def _placed(weights: Array, at: Indices, columns: int, repeated: bool = False) -> Callable[[Indices], Array]:
    """`repeated`: a column may stand in `at` twice, as those do that belong to two families that meet."""

    def those(some: Indices) -> Array:
        out = np.zeros((columns, len(some)))
        if repeated:
            np.add.at(out, at, weights[:, some])
        else:
            out[at] = weights[:, some]
        return out

    return those


def _per_length(weights: Callable[[Indices], Array], length: Array) -> Callable[[Indices], Array]:
    return lambda some: weights(some) / length[:, None]


def _unit(directions: Array) -> Array:
    length = np.linalg.norm(directions, axis=0)
    return np.asarray(directions / np.where(length > 0, length, 1.0))
