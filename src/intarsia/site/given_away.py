"""Which of a site's columns the sums of its predictions give away, all that leave for one owner taken together.

A mean is a sum of a subject's values with weights that a server may have chosen: the site cannot check a fit. One sum may hide
every column and two of them show two: x₁ + x₂ and x₁ − x₂. So a column is given away if all sums that an owner gets explain it
together, those of earlier runs about the same people among them. Spreads are equations too, in squares: one for each response and
fit. Where some of them, however few, are nearly made up of as many sums as they are (beside those that are known), these count as
told: one spread of one sum, two spreads of the same two sums. Each spread counts alike, so that a large one hides no small one. A
covariate's share of a spread is a sum of sizes and counts as one.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import PrivacyError
from intarsia.site.prediction import SiteModel
from intarsia.site.run_store import read_item
from intarsia.wire.container import pack, unpack, write

Array = NDArray[np.float64]
FOLDER = "predicted"
NOTES = ".told.json"  # the end of the name of a prediction's note in its run folder
ANYBODY = "anybody"  # an owner without a pinned key
SUBJECTS_PER_SUM = 3  # with fewer, chance alone explains columns
ROUNDING = 1 / 12  # variance of what rounding takes away, in steps²
_PARTS = ("weights", "spreads", "rest", "sizes", "centres", "steps")
_DIRECTIONS = 8  # of a spread that are kept: no more spreads are taken together in every way
_ROUNDS = 20  # of the search for the largest sums in a spread; it is quick where they are nearly all


@dataclass(frozen=True)
class Spread:
    """What one spread is made of: sums (subject, sum) whose squares add up to its square but for `rest`, on average over the
    subjects; in steps of the rounding."""

    sums: Array
    rest: float


@dataclass(frozen=True)
class Told:
    """What one owner gets about a subject, in steps of the rounding.

    `weights` (column, sum) are those of the columns in their own units, `spreads` (response, column, sum) those of the sums that
    spreads are made of but for `rest` (response), `sizes` those of the columns' distances from `centres`; `steps` (slice,
    response) are the rounding's own, `bits` what all the numbers can tell. `scores` names the run folder whose normal scores
    stand for the columns' values, where the study asked for them.
    """

    columns: tuple[str, ...]
    weights: Array
    spreads: Array
    rest: Array
    sizes: Array
    centres: Array
    steps: Array
    bits: float
    scores: str = ""

    def sums(self, values: Array, columns: Sequence[str]) -> Array:
        """The sums of these subjects (subject, sum); a column that is not there counts as nothing."""
        here, at = self._known(columns)
        return np.asarray(values[:, here] @ self.weights[at])

    def in_spreads(self, values: Array, columns: Sequence[str]) -> list[Spread]:
        here, at = self._known(columns)
        centred = values[:, here] - self.centres[at]
        return [Spread(centred @ one[at], float(rest)) for one, rest in zip(self.spreads, self.rest, strict=True)]

    def sums_of_sizes(self, values: Array, columns: Sequence[str]) -> Array:
        here, at = self._known(columns)
        return np.asarray(np.abs(values[:, here] - self.centres[at]) @ self.sizes[at])

    def _known(self, columns: Sequence[str]) -> tuple[list[int], list[int]]:
        place = {label: k for k, label in enumerate(self.columns)}
        here = [k for k, label in enumerate(columns) if label in place]
        return here, [place[columns[k]] for k in here]


def columns_of(model: SiteModel) -> tuple[str, ...]:
    return (*model.units.features, *model.units.covariates)


def told_now(model: SiteModel, values: Array, owned: tuple[list[int], Array], bits: float, before: Array, scores: str) -> Told:
    """What a site's part tells of these subjects' columns, (subject, column) as the model has them.

    `owned` are the owner's responses and the steps of their means and, where the part has them, of their spreads; `before`
    (subject, sum) is what other fits told the owner about these subjects.
    """
    c, u, (responses, steps) = model.coefficients, model.units, owned
    scale, centres = np.concatenate([u.x_scale, u.z_scale]), np.concatenate([u.x_mean, u.z_mean])
    means = np.vstack([c.mean + c.to_predict, c.covariate_mean + c.covariate_to_predict])[:, responses]
    weights, sizes = means / scale[:, None] / steps[0], np.zeros((len(scale), 0))
    spreads, rest = np.zeros((0, len(scale), 0)), np.zeros(0)
    if len(steps) > 1 and c.draws is not None:
        V, P = (values - centres) / scale, len(u.features)
        basis = _basis([V @ means, before])
        found = []
        for k, q in enumerate(responses):
            apart = c.draws[:, :, q] - c.draws[:, :, q].mean(axis=0, dtype=np.float64)
            draws = apart / np.sqrt(max(len(c.draws) - 1, 1)) / steps[1, k]
            found.append(_largest_sums(V[:, :P], draws, basis))
        spreads = np.zeros((len(found), len(scale), _DIRECTIONS))
        for k, (sums, _) in enumerate(found):
            spreads[k, :P, : sums.shape[1]] = sums / u.x_scale[:, None]
        rest = np.array([left for _, left in found])
        sizes = np.concatenate([np.zeros((P, len(responses))), c.covariate_sd[:, responses]])
        sizes = sizes / scale[:, None] / steps[1]
    return Told(columns_of(model), weights, spreads, rest, sizes, centres, steps, bits, scores)


def _basis(known: Sequence[Array]) -> Array:
    """Directions (subject, ·) in which nothing is left to tell: what all have in common, and these sums, however small."""
    sums = np.hstack([some - some.mean(axis=0) for some in known])
    length = np.linalg.norm(sums, axis=0)
    left, size, _ = np.linalg.svd(sums[:, length > 0] / length[length > 0], full_matrices=False)
    return np.hstack([np.ones((len(sums), 1)) / np.sqrt(len(sums)), left[:, size > 1e-9]])


def _unknown(sums: Array, basis: Array) -> Array:
    return np.asarray(sums - basis @ (basis.T @ sums))


def _largest_sums(V: Array, draws: Array, basis: Array) -> tuple[Array, float]:
    """The sums (column, sum) that make up most of a spread but for what is known, and the mean square of the rest."""
    if not draws.size:
        return np.zeros((draws.shape[1], 0)), 0.0
    total = sum(float((_unknown(V @ some.T, basis) ** 2).sum()) for some in np.array_split(draws, max(1, len(draws) // 100)))
    # Where the search begins nobody can foresee.
    at = np.linalg.qr(np.random.default_rng().standard_normal((len(draws), min(_DIRECTIONS, *draws.shape))))[0]
    for _ in range(_ROUNDS):
        at = np.linalg.qr(draws @ (V.T @ _unknown(V @ (draws.T @ at), basis)))[0]
    sums = np.asarray(draws.T @ at)
    return sums, max(total - float((_unknown(V @ sums, basis) ** 2).sum()), 0.0) / len(V)


def told_by_spreads(spreads: Sequence[Spread], known: Array, nearly: float) -> Array:
    """The sums (subject, sum) that count as told by some of the spreads, in steps; `known` (subject, sum) are told anyway."""
    n, found, left = len(known), np.zeros((len(known), 0)), list(spreads)
    while left:
        basis = _basis([known, found])
        there = [(_unknown(one.sums, basis), one) for one in left]
        size = [float((sums**2).sum()) + n * one.rest for sums, one in there]
        seen = [k for k in range(len(left)) if size[k] > n * ROUNDING]  # the others are lost in the rounding
        if not seen:
            return found
        every = np.hstack([there[k][0] / np.sqrt(size[k]) for k in seen])
        width = np.repeat(np.arange(len(seen)), [there[k][0].shape[1] for k in seen])
        products = every.T @ every
        for some in _some_of(len(seen)):
            here = np.isin(width, some)
            values, vectors = np.linalg.eigh(products[np.ix_(here, here)])
            if values[-len(some) :].sum() > nearly * len(some):
                break
        else:
            return found
        new = every[:, here] @ vectors[:, -len(some) :] / np.sqrt(np.maximum(values[-len(some) :], 1e-300))
        sums = np.hstack([there[seen[k]][0] for k in some])
        found = np.hstack([found, new * np.linalg.norm(new.T @ sums, axis=1)])
        left = [one for k, one in enumerate(left) if k not in {seen[j] for j in some}]
    return found


def _some_of(count: int) -> Iterator[tuple[int, ...]]:
    """Which spreads are taken together, the fewest first: in every way or, where they are many, by ones and twos and all."""
    sizes = range(1, count + 1) if count <= _DIRECTIONS else (1, 2, count)
    return (some for size in sizes for some in combinations(range(count), size))


def too_few(values: Array, told: Array) -> bool:
    """Are there too few subjects for so many sums?"""
    return bool(values.shape[1] and told.shape[1]) and len(values) < SUBJECTS_PER_SUM * told.shape[1]


def shares(values: Array, told: Array) -> Array:
    """How much of each column the sums told about these subjects, in steps of the rounding, explain (R²)."""
    if not values.shape[1] or not told.shape[1]:
        return np.zeros(values.shape[1])
    if too_few(values, told):
        return np.ones(values.shape[1])
    basis, sizes, _ = np.linalg.svd(told - told.mean(axis=0), full_matrices=False)
    seen = sizes**2 / (sizes**2 + len(told) * ROUNDING)  # of each direction; the rest is lost in the rounding
    off = values - values.mean(axis=0)
    length = (off**2).sum(axis=0)
    return np.asarray(seen @ (basis.T @ off) ** 2 / np.where(length > 0, length, np.inf))


@dataclass(frozen=True)
class People:
    """Whom a part is about: the subjects as the site's ledger knows them, and a digest of each one's numbers."""

    tokens: NDArray[np.uint64]
    numbers: NDArray[np.uint64]

    @classmethod
    def of(cls, tokens: NDArray[np.uint64], part: Array) -> "People":
        """`part` is (slice, subject, response); in the order of the tokens."""
        rows = np.ascontiguousarray(part.transpose(1, 0, 2))
        digests = [int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little") for row in rows]
        order = np.argsort(tokens, kind="stable")
        return cls(tokens[order], np.array(digests, dtype=np.uint64)[order])

    def met(self, other: "People") -> NDArray[np.bool_]:
        """Which of these are among the others."""
        return np.isin(self.tokens, other.tokens, kind="sort")


def remember(folder: Path, fit_digest: str, told: dict[str, tuple[People, Told]]) -> list[str]:
    """Keep what leaves about whom and for whom (`joint_prediction._party`), for the site alone; people are keyed tokens. Returns
    what the files are called."""
    where = folder / FOLDER
    where.mkdir(mode=0o700, exist_ok=True)
    names = []
    for owner, (people, one) in told.items():
        header = {"owner": owner, "columns": list(one.columns), "fit_digest": fit_digest, "bits": one.bits, "scores": one.scores}
        whom = {"people": people.tokens.view(np.int64), "numbers": people.numbers.view(np.int64)}
        raw = pack("told", header, whom | {name: getattr(one, name) for name in _PARTS})
        names.append(hashlib.sha256(raw).hexdigest()[:32])
        write(where / names[-1], raw, mode=0o600)
    return names


def _all_there(folder: Path) -> None:
    """Every prediction's note names the files that hold what it told: without them the count would start anew."""
    for note in sorted(folder.glob(f"studies/*/request-*{NOTES}")):
        if not all((folder / FOLDER / name).is_file() for name in json.loads(read_item(note)).get("kept", ())):
            raise PrivacyError(
                f"{folder / FOLDER} lacks what this site told in an earlier prediction ({note.name} in {note.parent.name}). "
                "It must not be forgotten: restore the folder from a backup. No part of a prediction leaves until then."
            )


@dataclass(frozen=True)
class Before:
    """What an owner was told before about any of some people: `told`, and how many `bits` about one of them at most."""

    told: tuple[Told, ...] = ()
    bits: float = 0.0


def told_before(folder: Path, fit_digest: str, people: People, owner: str, steps: Array) -> Before:
    """What this owner, or one who may be it, was told about any of these people: numbers other than those told now, each once."""
    _all_there(folder)
    bits, told = np.zeros(len(people.tokens)), []
    here = (np.ones(len(people.tokens), dtype=bool), people.numbers)
    known: dict[tuple[str, bytes], list[tuple[NDArray[np.bool_], NDArray[np.uint64]]]] = {(fit_digest, _exactly(steps)): [here]}
    for path in sorted((folder / FOLDER).glob("*")):
        header, arrays = unpack(path, "told")
        others = People(arrays["people"].view(np.uint64), arrays["numbers"].view(np.uint64))
        same_owner = header["owner"] == owner or ANYBODY in (header["owner"], owner)
        if not same_owner or not (met := people.met(others)).any():
            continue
        numbers = others.numbers[np.searchsorted(others.tokens, people.tokens).clip(max=len(others.tokens) - 1)]
        fit = (header["fit_digest"], _exactly(arrays["steps"]))
        new = met.copy()
        for those, same in known.get(fit, ()):
            new &= ~(those & (same == numbers))
        bits[new] += header["bits"]
        if fit not in known:  # the same fit with the same steps has the same sums
            parts = {name: arrays[name] for name in _PARTS}
            told.append(Told(tuple(header["columns"]), **parts, bits=header["bits"], scores=header["scores"]))
        known.setdefault(fit, []).append((met, numbers))
    return Before(tuple(told), float(bits.max(initial=0.0)))


def _exactly(steps: Array) -> bytes:
    return repr((steps.shape, steps.tobytes())).encode()
