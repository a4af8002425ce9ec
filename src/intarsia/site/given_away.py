"""Which of a site's columns the sums of its predictions give away, all that leave for one owner taken together.

A mean is a sum of a subject's values with weights that a server may have chosen: the site cannot check a fit. One sum may hide
every column and two of them show two: x₁ + x₂ and x₁ − x₂. So a column is given away if all sums that an owner gets explain it
together, those of earlier runs about the same people among them. Spreads are equations too, in squares: as many as there are
responses. Where so many sums, beside those that the means tell, make up nearly all of the spreads, they count as told. A
covariate's share of a spread is a sum of sizes and counts as one.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from intarsia.site.prediction import SiteModel
from intarsia.wire.container import pack, unpack, write

Array = NDArray[np.float64]
FOLDER = "predicted"
ANYBODY = "anybody"  # an owner without a pinned key
SUBJECTS_PER_SUM = 3  # with fewer, chance alone explains columns
ROUNDING = 1 / 12  # variance of what rounding takes away, in steps²
_PARTS = ("weights", "sizes", "centres", "steps")
_ROUNDS = 20  # of the search for the largest sums in the spreads; it is quick where they are nearly all


@dataclass(frozen=True)
class Told:
    """What one owner gets about a subject, in steps of the rounding.

    `weights` (column, sum) are those of the columns in their own units, `sizes` those of their distances from `centres`; `steps`
    (slice, response) are the rounding's own, `bits` what all the numbers can tell.
    """

    columns: tuple[str, ...]
    weights: Array
    sizes: Array
    centres: Array
    steps: Array
    bits: float

    def sums(self, values: Array, columns: Sequence[str]) -> Array:
        """The sums of these subjects (subject, sum); a column that is not there counts as nothing."""
        here, at = self._known(columns)
        return np.asarray(values[:, here] @ self.weights[at])

    def sums_of_sizes(self, values: Array, columns: Sequence[str]) -> Array:
        here, at = self._known(columns)
        return np.asarray(np.abs(values[:, here] - self.centres[at]) @ self.sizes[at])

    def _known(self, columns: Sequence[str]) -> tuple[list[int], list[int]]:
        place = {label: k for k, label in enumerate(self.columns)}
        here = [k for k, label in enumerate(columns) if label in place]
        return here, [place[columns[k]] for k in here]


def columns_of(model: SiteModel) -> tuple[str, ...]:
    return (*model.units.features, *model.units.covariates)


def told_now(
    model: SiteModel, values: Array, owned: tuple[list[int], Array], bits: float, before: Array, nearly: float
) -> Told:  # fmt: skip
    """What a site's part tells of these subjects' columns, (subject, column) in their own units.

    `owned` are the owner's responses and the steps of their means and, where the part has them, of their spreads; `before`
    (subject, sum) is what other fits told the owner about these subjects.
    """
    c, u, (responses, steps) = model.coefficients, model.units, owned
    scale, centres = np.concatenate([u.x_scale, u.z_scale]), np.concatenate([u.x_mean, u.z_mean])
    means = np.vstack([c.mean + c.to_predict, c.covariate_mean + c.covariate_to_predict])[:, responses]
    weights, sizes = means / scale[:, None] / steps[0], np.zeros((len(scale), 0))
    if len(steps) > 1 and c.draws is not None:
        V = (values - centres) / scale
        draws = c.draws[:, :, responses] - c.draws[:, :, responses].mean(axis=0)
        stacked = draws.transpose(2, 0, 1).reshape(len(draws) * len(responses), len(u.features)) / np.sqrt(max(len(draws) - 1, 1))
        found = _in_spreads(V[:, : len(u.features)], stacked, np.hstack([V @ means, before]), len(responses), nearly)
        squares = np.concatenate([found, np.zeros((len(u.covariates), found.shape[1]))])
        weights = np.hstack([weights, squares / scale[:, None] / steps[1].min()])
        sizes = np.concatenate([np.zeros((len(u.features), len(responses))), c.covariate_sd[:, responses]])
        sizes = sizes / scale[:, None] / steps[1]
    return Told(columns_of(model), weights, sizes, centres, steps, bits)


def _in_spreads(V: Array, draws: Array, known: Array, count: int, nearly: float) -> Array:
    """The `count` sums (column, sum) that make up nearly all of the spreads but for what is known; none where there are more."""
    basis, length, _ = np.linalg.svd(known - known.mean(axis=0), full_matrices=False)
    basis = basis[:, length > 1e-9 * length.max(initial=0.0)]
    basis = np.hstack([np.ones((len(V), 1)) / np.sqrt(len(V)), basis])  # what all have in common tells nobody apart

    def unknown(sums: Array) -> Array:
        return np.asarray(sums - basis @ (basis.T @ sums))

    if not draws.size:
        return np.zeros((draws.shape[1], 0))
    order = np.argsort((draws**2).sum(axis=1))[::-1]
    at = np.zeros((len(draws), min(count, *draws.shape)))
    at[order[: at.shape[1]], np.arange(at.shape[1])] = 1.0
    total = sum(float((unknown(V @ some.T) ** 2).sum()) for some in np.array_split(draws, max(1, len(draws) // 100)))
    if total <= 0:
        return np.zeros((draws.shape[1], 0))
    for _ in range(_ROUNDS):
        at = np.linalg.qr(draws @ (V.T @ unknown(V @ (draws.T @ at))))[0]
    sums = np.asarray(draws.T @ at)
    return sums if float((unknown(V @ sums) ** 2).sum()) > nearly * total else sums[:, :0]


def largest_share(values: Array, told: Array) -> float:
    """How much of any column the sums told about these subjects, in steps of the rounding, explain (R²)."""
    if not values.shape[1] or not told.shape[1]:
        return 0.0
    if len(values) < SUBJECTS_PER_SUM * told.shape[1]:
        return 1.0
    basis, sizes, _ = np.linalg.svd(told - told.mean(axis=0), full_matrices=False)
    seen = sizes**2 / (sizes**2 + len(told) * ROUNDING)  # of each direction; the rest is lost in the rounding
    off = values - values.mean(axis=0)
    length = (off**2).sum(axis=0)
    return float(np.max(seen @ (basis.T @ off) ** 2 / np.where(length > 0, length, np.inf), initial=0.0))


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

    def told_the_same(self, other: "People") -> bool:
        """Whether everybody in both has the same numbers in both."""
        return np.array_equal(self.numbers[self.met(other)], other.numbers[other.met(self)])


def remember(folder: Path, fit_digest: str, told: dict[str, tuple[People, Told]]) -> None:
    """Keep what leaves about whom and for whom (`joint_prediction._party`), for the site alone; people are keyed tokens."""
    where = folder / FOLDER
    where.mkdir(mode=0o700, exist_ok=True)
    for owner, (people, one) in told.items():
        header = {"owner": owner, "columns": list(one.columns), "fit_digest": fit_digest, "bits": one.bits}
        whom = {"people": people.tokens.view(np.int64), "numbers": people.numbers.view(np.int64)}
        raw = pack("told", header, whom | {name: getattr(one, name) for name in _PARTS})
        write(where / hashlib.sha256(raw).hexdigest()[:32], raw, mode=0o600)


def told_before(folder: Path, fit_digest: str, people: People, owner: str, steps: Array) -> Iterator[Told]:
    """What this owner, or one who may be it, was told about any of these people: numbers other than those told now, each once."""
    known = [(fit_digest, steps, people)]
    for path in sorted((folder / FOLDER).glob("*")):
        header, arrays = unpack(path, "told")
        others = People(arrays["people"].view(np.uint64), arrays["numbers"].view(np.uint64))
        same_owner = header["owner"] == owner or ANYBODY in (header["owner"], owner)
        if not same_owner or not people.met(others).any():
            continue
        fit, step = header["fit_digest"], arrays["steps"]
        if not any(fit == f and np.array_equal(step, s) and others.told_the_same(p) for f, s, p in known):
            known.append((fit, step, others))
            yield Told(tuple(header["columns"]), **{name: arrays[name] for name in _PARTS}, bits=header["bits"])
