"""How a table's columns become numbers: roles, levels of categorical columns, which level has no indicator, codes for "missing",
levels that are merged, numbers beyond which nothing is told apart.

A layout is small and holds no rows, so it can travel to the machines of a site that read its partitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from intarsia.errors import InputError
from intarsia.site.data.roles import Roles
from intarsia.site.data.sources import Batch
from intarsia.wire.plain import plural, some


@dataclass(frozen=True)
class Layout:
    """Columns by role and their encoding. `reference` is the level of a categorical column that has no indicator."""

    roles: Roles
    levels: dict[str, list[str]] = field(default_factory=dict)
    reference: dict[str, str] = field(default_factory=dict)
    codes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by column: what means "missing" there
    limits: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)  # by column: at least, at most
    merged: dict[str, dict[str, str]] = field(default_factory=dict)  # by column: a level as written, the level it is taken as

    @classmethod
    def of(
        cls,
        roles: Roles,
        levels: dict[str, list[str]],
        reference: dict[str, str],
        codes: dict[str, tuple[str, ...]] | None = None,
        limits: dict[str, tuple[float | None, float | None]] | None = None,
        merged: dict[str, dict[str, str]] | None = None,
    ) -> "Layout":
        """Fill in the references that nobody chose.

        A column of two levels has one indicator, of its second level. A covariate always lacks its first level: with all of
        them its indicators would add up to the intercept, and a covariate's effect is not shrunk, so it could not be told from
        it. A feature of three or more levels has an indicator for each: its effects are shrunk, and none of them is special.
        """
        chosen: dict[str, str] = {}
        for name, texts in levels.items():
            if len(set(texts)) < len(texts):
                raise InputError(f"Column {name!r}: a level is given twice.")
            if name in reference:
                if reference[name] not in texts:
                    raise InputError(f"Column {name!r} has no level like the reference given for it. It has {len(texts)} levels.")
                chosen[name] = reference[name]
            elif len(texts) == 2 or (len(texts) > 2 and name in roles.covariates):
                chosen[name] = texts[0]
        layout = cls(roles, levels, chosen, codes or {}, limits or {}, merged or {})
        labels = layout.labels(roles.all)
        if len(set(labels)) != len(labels):
            twice = sorted({label for label in labels if labels.count(label) > 1})
            raise InputError(f"An indicator has the same name as another column: {some(twice)}. Rename one.")
        return layout

    def shown(self, name: str) -> list[str]:
        """The levels of a column that have an indicator."""
        return [text for text in self.levels[name] if text != self.reference.get(name)]

    def labels(self, names: Sequence[str]) -> list[str]:
        """What these columns are called once encoded: a number keeps its name, a level is `column=level`."""
        out = []
        for name in names:
            out += [f"{name}={text}" for text in self.shown(name)] if name in self.levels else [name]
        return out

    def encode(self, batch: Batch) -> np.ndarray:
        """A batch as float64, columns in the order of `roles.all`, missing values as NaN."""
        names = self.roles.all
        numbers = [name for name in names if name not in self.levels]
        matrix = self._within_limits(self._without_codes(batch.matrix(numbers), numbers), numbers)
        if len(numbers) == len(names):
            return matrix
        parts, at = [], 0
        for name in names:
            if name in self.levels:
                parts.append(self._indicators(name, self.text(batch, name)))
            else:
                parts.append(matrix[:, at : at + 1])
                at += 1
        return np.concatenate(parts, axis=1)

    def text(self, batch: Batch, name: str) -> pa.Array:
        """A column as text, its codes for "missing" as nulls, a merged level as the one it is taken as."""
        column = batch.text(name)
        if name in self.codes:
            coded = pc.is_in(column, value_set=pa.array(self.codes[name], pa.string()))
            column = pc.if_else(coded, pa.scalar(None, pa.string()), column)
        return merge(column, self.merged[name]) if name in self.merged else column

    def _within_limits(self, matrix: np.ndarray, names: Sequence[str]) -> np.ndarray:
        for j, name in enumerate(names):
            if name in self.limits:
                matrix = matrix if matrix.flags.writeable and matrix.flags.owndata else matrix.copy()
                low, high = self.limits[name]
                np.clip(matrix[:, j], low, high, out=matrix[:, j])
        return matrix

    def _without_codes(self, matrix: np.ndarray, names: Sequence[str]) -> np.ndarray:
        for j, name in enumerate(names):
            values = [value for code in self.codes.get(name, ()) if (value := _number(code)) is not None]
            if values and (coded := np.isin(matrix[:, j], values)).any():
                matrix = matrix if matrix.flags.writeable and matrix.flags.owndata else matrix.copy()
                matrix[coded, j] = np.nan
        return matrix

    def _indicators(self, name: str, column: pa.Array) -> np.ndarray:
        texts = self.levels[name]
        code = pc.index_in(column, value_set=pa.array(texts, pa.string()))
        unknown = code.null_count - column.null_count
        if unknown:
            raise InputError(
                f"Column {name!r} has {plural(unknown, 'cell')} with a level that is not among its {len(texts)} levels (those of "
                "the study's subjects, or those that site.toml lists). Write them as they stand there, merge them in "
                "site.toml, or leave these subjects out."
            )
        index = code.fill_null(-1).to_numpy(zero_copy_only=False)
        at = [i for i, text in enumerate(texts) if text != self.reference.get(name)]
        out = (index[:, None] == np.array(at, dtype=np.int64)).astype(np.float64)
        out[index < 0] = np.nan
        return out


def merge(column: pa.Array, taken_as: dict[str, str]) -> pa.Array:
    """A column of texts, each merged level as the one it is taken as."""
    at = pc.index_in(column, value_set=pa.array(list(taken_as), pa.string()))
    new = pc.take(pa.array(list(taken_as.values()), pa.string()), at)
    return pc.coalesce(new, column)


def _number(code: str) -> float | None:
    try:
        return float(code)
    except ValueError:
        return None
