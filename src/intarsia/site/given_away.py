"""Which of a site's columns the sums of its predictions give away, all that leave for one owner taken together.

A mean is a sum of a subject's values with weights that a server may have chosen: the site cannot check a fit. One sum may hide
every column and two of them show two: x₁ + x₂ and x₁ − x₂. So a column is given away if all sums that an owner gets explain it
together, those of earlier runs about the same people among them. A spread tells the size of a sum where one sum makes up
nearly all of it, and counts as that sum.
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
SUBJECTS_PER_SUM = 3  # with fewer, chance alone explains columns
_TO, _ROUNDS = "to.", 20


@dataclass(frozen=True)
class Sums:
    """The sums that one owner gets: weights (column, sum) of the columns by name, in the columns' own units."""

    columns: tuple[str, ...]
    weights: Array

    def of(self, values: Array, columns: Sequence[str]) -> Array:
        """The sums of these subjects (subject, sum); a column that is not there counts as nothing."""
        at = {label: k for k, label in enumerate(self.columns)}
        known = [k for k, label in enumerate(columns) if label in at]
        return values[:, known] @ self.weights[[at[columns[k]] for k in known]]


def columns_of(model: SiteModel) -> tuple[str, ...]:
    return (*model.units.features, *model.units.covariates)


def sums(model: SiteModel, values: Array, spreads: Array | None, responses: Sequence[int], nearly: float) -> Sums:
    """What a site's part tells of these subjects' columns; `spreads` is the part's second slice, where it has one."""
    c, u = model.coefficients, model.units
    scale = np.concatenate([u.x_scale, u.z_scale])
    means = np.vstack([c.mean + c.to_predict, c.covariate_mean + c.covariate_to_predict])
    found = [means[:, q] for q in responses]
    if spreads is not None and c.draws is not None:
        V, W = np.split((values - np.concatenate([u.x_mean, u.z_mean])) / scale, [len(u.features)], axis=1)
        for q in responses:
            total = (len(c.draws) - 1) * float(((spreads[:, q] - np.abs(W) @ c.covariate_sd[:, q]) ** 2).sum())
            leading = _leading(V, c.draws[:, :, q] - c.draws[:, :, q].mean(axis=0))
            if total > 0 and float(((V @ leading) ** 2).sum()) > nearly * total:
                found.append(np.concatenate([leading, np.zeros(len(u.covariates))]))
    return Sums(columns_of(model), np.stack(found, axis=1) / scale[:, None])


def _leading(V: Array, draws: Array) -> Array:
    """The sum of columns that makes up most of the spread: by power iteration, which is quick where it makes up nearly all."""
    v = draws @ draws[np.argmax((draws**2).sum(axis=1))]
    weights: Array = np.zeros(draws.shape[1])
    for _ in range(_ROUNDS):
        length = float(np.linalg.norm(v))
        if length == 0:
            break
        weights = draws.T @ (v / length)
        v = draws @ (V.T @ (V @ weights))
    return weights


def largest_share(values: Array, told: Array, step: float) -> float:
    """How much of any column the sums told about these subjects explain (R²). `step`: differences below it do not show."""
    if not values.shape[1] or not told.shape[1]:
        return 0.0
    if len(values) < SUBJECTS_PER_SUM * told.shape[1]:
        return 1.0
    left, sizes, _ = np.linalg.svd(told - told.mean(axis=0), full_matrices=False)
    basis = left[:, sizes > step * np.sqrt(len(told))]
    off = values - values.mean(axis=0)
    length = (off**2).sum(axis=0)
    return float(np.max(((basis.T @ off) ** 2).sum(axis=0) / np.where(length > 0, length, np.inf), initial=0.0))


def remember(folder: Path, fit_digest: str, people: NDArray[np.uint64], told: dict[str, Sums]) -> None:
    """Keep what leaves about whom and for whom (`joint_prediction._party`), for the site alone; people are keyed tokens."""
    columns = next(iter(told.values())).columns if told else ()
    arrays = {"people": np.sort(people).view(np.int64), **{_TO + owner: one.weights for owner, one in told.items()}}
    raw = pack("told", {"columns": list(columns), "fit_digest": fit_digest}, arrays)
    where = folder / FOLDER
    where.mkdir(mode=0o700, exist_ok=True)
    write(where / hashlib.sha256(raw).hexdigest()[:32], raw, mode=0o600)


def told_before(folder: Path, fit_digest: str, people: NDArray[np.uint64], owner: str) -> Iterator[Sums]:
    """The sums of other fits that this owner got about any of these people."""
    for path in sorted((folder / FOLDER).glob("*")):
        header, arrays = unpack(path, "told")
        met = np.isin(people, arrays["people"].view(np.uint64), kind="sort").any()
        if header["fit_digest"] != fit_digest and met and _TO + owner in arrays:
            yield Sums(tuple(header["columns"]), arrays[_TO + owner])
