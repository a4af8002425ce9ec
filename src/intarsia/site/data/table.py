"""A site's columns, each with a role (id, feature, response, ignored), read in row blocks as float64.

Text and categorical columns become indicators named `column=level` (two levels: one indicator, of the second level).
Nothing is held in memory but a block. Errors name columns and counts, never a value.
"""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from intarsia.errors import InputError
from intarsia.site.data.moments import Moments, pilot_of
from intarsia.site.data.sources import LEVEL, NUMBER, Source, open_source, read_as_text, to_text

MAX_LEVELS = 100
BLOCK_VALUES = 1 << 22  # about 32 MB of float64 a block
_PASS_VALUES = 1 << 25  # when rows are asked in another order than the file's: values gathered in one pass over it

Roles = Sequence[str] | str | None


def block_rows(columns: int) -> int:
    """Rows a block, so that a block of this many columns has about 32 MB."""
    return int(np.clip(BLOCK_VALUES // max(columns, 1), 64, 16384))


def _match(wanted: Roles, names: Sequence[str], role: str) -> list[str]:
    """Columns that a role names, exactly or by a pattern such as `snp_*`, in the table's order."""
    patterns = [wanted] if isinstance(wanted, str) else list(wanted or ())
    known, chosen = set(names), set[str]()
    for pattern in patterns:
        found = {pattern} if pattern in known else {name for name in names if fnmatchcase(name, pattern)}
        if not found and (column := pattern.split("=")[0]) in known:
            found = {column}  # an indicator's label names its column
        if not found:
            raise InputError(f"No column {pattern!r} for the role {role}. The table has {_some(names)}.")
        chosen |= found
    return [name for name in names if name in chosen]


def _some(names: Sequence[str]) -> str:
    return f"{len(names)} columns: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}"


class Table:
    """Open it with `Table.open`; then `.n`, `.features`, `.responses`, `.ids()` and `.blocks()`."""

    def __init__(
        self, source: Source, features: list[str], responses: list[str], id: str | np.ndarray | None,
        missing: str, constant: str, levels: Mapping[str, Sequence[str]] | None, max_levels: int,
    ) -> None:  # fmt: skip
        self.source, self.n, self.missing, self.constant = source, source.n, missing, constant
        self._id, self.columns = id, (features, responses)
        self.levels = self._find_levels(levels or {}, max_levels)
        self.features = self._encoded(features)
        self.responses = self._encoded(responses)
        labels = [*self.features, *self.responses]
        if len(set(labels)) != len(labels):
            twice = sorted({label for label in labels if labels.count(label) > 1})
            raise InputError(f"An indicator has the same name as another column: {', '.join(twice[:5])}. Rename one.")
        self._moments: Moments | None = None

    @classmethod
    def open(
        cls,
        source: Any,
        *,
        id: Any = None,
        features: Roles = None,
        responses: Roles = (),
        ignore: Roles = (),
        missing: str = "error",
        constant: str = "error",
        names: Sequence[str] | None = None,
        levels: Mapping[str, Sequence[str]] | None = None,
        max_levels: int = MAX_LEVELS,
    ) -> "Table":
        """Open a table: a path or several, a dataframe, a NumPy or Dask array (with `names`), a dict of columns.

        Roles name columns exactly or by pattern (`snp_*`). `id` is a column, or the ids themselves; `features` is by
        default every column without another role. `missing`: "error", or "mean" to put the column's mean. `constant`:
        "error", or "drop" to leave such columns out of the sketch. `levels` fixes the levels of categorical columns
        (needed when the stores of one site are sketched separately and some lack a level).
        """
        choices = ((missing, ("error", "mean"), "missing"), (constant, ("error", "drop"), "constant"))
        for value, allowed, what in choices:
            if value not in allowed:
                raise InputError(f"{what}={value!r} is not one of {', '.join(allowed)}.")
        opened = open_source(source, names)
        columns = opened.names
        if not all(isinstance(name, str) and name for name in columns):
            raise InputError("A column has no name, or one that is not text. Name every column.")
        if len(set(columns)) != len(columns):
            twice = sorted({name for name in columns if columns.count(name) > 1})
            raise InputError(f"Two columns have the same name: {', '.join(twice[:5])}. Rename one.")
        if opened.n < 1:
            raise InputError("The table has no rows.")
        by_name = isinstance(id, str)
        if by_name and id not in columns:
            raise InputError(f"No column {id!r} for the role id. The table has {_some(columns)}.")
        ids = id if id is None or by_name else np.asarray(id).ravel()
        if ids is not None and not by_name and len(ids) != opened.n:
            raise InputError(f"{len(ids)} ids were given for {opened.n} rows. Give one id a row.")
        if by_name:
            read_as_text(opened, id)
        taken = {id} if by_name else set()
        taken |= set(_match(ignore, columns, "ignored"))
        chosen_y = [name for name in _match(responses, columns, "response") if name not in taken]
        taken |= set(chosen_y)
        chosen_x = [name for name in _match("*" if features is None else features, columns, "feature")
                    if name not in taken]  # fmt: skip
        if features is not None and not isinstance(features, str):
            asked = set(features) & taken
            if asked:
                raise InputError(f"Columns with two roles: {', '.join(sorted(asked)[:5])}. Give each column one role.")
        for name in (*chosen_x, *chosen_y):
            if opened.kinds[name] not in (NUMBER, LEVEL):
                raise InputError(
                    f"Column {name!r} holds {opened.kinds[name]}, neither numbers nor levels. Ignore it or recode it."
                )
        if not chosen_x and not chosen_y:
            raise InputError("No column is left as feature or response. Give at least one.")
        return cls(opened, chosen_x, chosen_y, ids, missing, constant, levels, max_levels)

    def __repr__(self) -> str:
        return f"Table({self.n} subjects, {len(self.features)} features, {len(self.responses)} responses)"

    @property
    def has_id(self) -> bool:
        return self._id is not None

    # --- levels -------------------------------------------------------------------------------------------------

    def _find_levels(self, given: Mapping[str, Sequence[str]], most: int) -> dict[str, list[str]]:
        # A column of numbers whose levels are given is a coded factor.
        chosen = [name for names in self.columns for name in names]
        names = [name for name in chosen if self.source.kinds[name] == LEVEL or name in given]
        found: dict[str, set[str]] = {name: set() for name in names if name not in given}
        if found:
            for batch in self._batches(list(found), block_rows(len(found))):
                for name, seen in found.items():
                    seen.update(x for x in pc.unique(batch.text(name)).to_pylist() if x is not None)
                    if len(seen) > most:
                        raise InputError(
                            f"Column {name!r} has over {most} different texts, too many for levels. Make it the id, "
                            "ignore it, or look for cells that are not numbers in a column of numbers."
                        )
        levels = {name: list(given[name]) if name in given else sorted(found[name]) for name in names}
        for name, texts in levels.items():
            if len(set(texts)) < len(texts):
                raise InputError(f"Column {name!r}: a level is given twice.")
        return levels

    def _encoded(self, names: list[str]) -> list[str]:
        return [label for name in names for label in self._labels(name)]

    def _labels(self, name: str) -> list[str]:
        if name not in self.levels:
            return [name]
        texts = self.levels[name]
        return [f"{name}={text}" for text in (texts[1:] if len(texts) == 2 else texts)]

    def _indicators(self, name: str, column: pa.Array) -> np.ndarray:
        texts = self.levels[name]
        code = pc.index_in(column, value_set=pa.array(texts, pa.string()))
        unknown = code.null_count - column.null_count
        if unknown:
            raise InputError(f"Column {name!r} has {unknown} cells with a level that is not in its list of levels.")
        index = code.fill_null(-1).to_numpy(zero_copy_only=False)
        out = (index[:, None] == np.arange(len(texts))).astype(np.float64)
        out[index < 0] = np.nan
        return out[:, 1:] if len(texts) == 2 else out

    # --- reading ------------------------------------------------------------------------------------------------

    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        try:
            yield from self.source.batches(columns, rows)
        except (pa.ArrowException, OSError) as error:
            # The library's own words may quote a cell.
            raise InputError(f"Reading the table failed ({type(error).__name__}). Is the file whole?") from None

    def raw_blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """Blocks [X Y] of at most `rows` rows in the table's own order, missing values as NaN, nothing checked."""
        names = [name for names in self.columns for name in names]
        rows = rows or block_rows(len(self.features) + len(self.responses))
        plain = not self.levels
        for batch in self._batches(names, rows):
            if plain:
                yield batch.matrix(names)
            else:
                numbers = [name for name in names if name not in self.levels]
                matrix = batch.matrix(numbers)
                parts, at = [], 0
                for name in names:
                    if name in self.levels:
                        parts.append(self._indicators(name, batch.text(name)))
                    else:
                        parts.append(matrix[:, at : at + 1])
                        at += 1
                yield np.concatenate(parts, axis=1)

    def moments(self) -> Moments:
        """Means, standard deviations and counts of all columns (features, then responses); one pass, kept."""
        if self._moments is None:
            found: Moments | None = None
            for Z in self.raw_blocks():
                found = found or Moments.empty(pilot_of(Z))
                found.add(Z, slice(None))
                found.rows += len(Z)
            assert found is not None
            found.check([*self.features, *self.responses], missing=self.missing, constant="drop")
            self._moments = found
        return self._moments

    def _clean_blocks(self, rows: int | None) -> Iterator[np.ndarray]:
        for Z in self.raw_blocks(rows):
            if not np.isfinite(Z).all():
                mean = self.moments().mean  # refuses what must be refused, with counts over the whole table
                Z = np.where(np.isnan(Z), mean, Z)
            yield Z

    def blocks(self, rows: int | None = None, order: Any = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks (X, Y) of `rows` rows: in the table's order, or rows `order[0], order[1], …` when an order is given.

        Missing values are refused or at the mean, as the table was opened. An order costs one pass over the table for
        every 32 million values.
        """
        P = len(self.features)
        if order is None:
            for Z in self._clean_blocks(rows):
                yield Z[:, :P], Z[:, P:]
            return
        chosen = check_order(order, self.n)
        columns = P + len(self.responses)
        rows = rows or block_rows(columns)
        stretch = max(_PASS_VALUES // columns // rows, 1) * rows
        for start in range(0, len(chosen), stretch):
            wanted = chosen[start : start + stretch]
            place = np.full(self.n, -1, dtype=np.int64)
            place[wanted] = np.arange(len(wanted))
            gathered, at = np.empty((len(wanted), columns)), 0
            for Z in self._clean_blocks(None):
                here = place[at : at + len(Z)]
                gathered[here[here >= 0]] = Z[here >= 0]
                at += len(Z)
            for a in range(0, len(wanted), rows):
                yield gathered[a : a + rows, :P], gathered[a : a + rows, P:]

    def ids(self) -> np.ndarray:
        """The subjects' ids as text, in the table's order; missing or duplicate ids are refused (by count)."""
        if self._id is None:
            raise InputError("The table has no id column. Say which it is: id='…', or --id on the command line.")
        if isinstance(self._id, str):
            kind = self.source.kinds[self._id]
            if kind not in (NUMBER, LEVEL):
                raise InputError(f"The id column {self._id!r} holds {kind}. Ids are text or whole numbers.")
            parts = [batch.text(self._id) for batch in self._batches([self._id], 1 << 16)]
            text = pa.concat_arrays(parts) if parts else pa.array([], pa.string())
        else:
            text = to_text(pa.array(self._id if self._id.dtype != object else self._id.tolist()))
        if text.null_count:
            raise InputError(f"{text.null_count} subjects have no id. Give every subject one.")
        found = np.array(text.to_pylist(), dtype=object)
        extra = len(found) - len(set(found.tolist()))
        if extra:
            raise InputError(f"{extra} rows repeat the id of another row. One row a subject: merge or remove them.")
        return found


def check_order(order: Any, n: int) -> np.ndarray:
    """Row numbers in the agreed order, as an integer array: each row of the table at most once."""
    chosen = np.asarray(order)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not len(chosen):
        raise InputError("The order must be a list of row numbers, counted from 0.")
    chosen = chosen.astype(np.int64)
    if chosen.min() < 0 or chosen.max() >= n:
        raise InputError(f"The order names a row beyond the table, which has {n} rows. Align again with this table.")
    if len(np.unique(chosen)) != len(chosen):
        raise InputError("The order names a row twice. Each subject has one place.")
    return chosen
