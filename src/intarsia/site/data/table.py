"""A site's columns, each with a role (id, feature, response, covariate, ignored), read in row blocks as float64.

Text and categorical columns become indicators named `column=level`; which level goes without one is in `layout`.
Nothing is held in memory but a block. Errors name columns and counts, never a value.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from intarsia.errors import InputError
from intarsia.site.data.layout import Layout
from intarsia.site.data.moments import Moments, pilot_of
from intarsia.site.data.roles import Roles, Wanted, assign
from intarsia.site.data.sources import LEVEL, NUMBER, Source, open_source, read_as_text, to_text

MAX_LEVELS = 100
BLOCK_VALUES = 1 << 22  # about 32 MB of float64 a block
_PASS_VALUES = 1 << 25  # when rows are asked in another order than the file's: values gathered in one pass over it


def block_rows(columns: int) -> int:
    """Rows a block, so that a block of this many columns has about 32 MB."""
    return int(np.clip(BLOCK_VALUES // max(columns, 1), 64, 16384))


class Table:
    """Open it with `Table.open`; then `.n`, `.features`, `.responses`, `.covariates`, `.ids()` and `.blocks()`.

    Every block has its columns in the order of `labels`: features, then responses, then covariates.
    """

    def __init__(
        self,
        source: Source,
        layout: Layout,
        *,
        id: str | np.ndarray | None = None,
        missing: str = "error",
        constant: str = "error",
    ) -> None:
        self.source, self.n, self.missing, self.constant = source, source.n, missing, constant
        self._id, self.layout = id, layout
        self.features = layout.labels(layout.roles.features)
        self.responses = layout.labels(layout.roles.responses)
        self.covariates = layout.labels(layout.roles.covariates)
        self._moments: Moments | None = None

    @classmethod
    def open(
        cls,
        source: Any,
        *,
        id: Any = None,
        features: Wanted = None,
        responses: Wanted = (),
        covariates: Wanted = (),
        ignore: Wanted = (),
        missing: str = "error",
        constant: str = "error",
        names: Sequence[str] | None = None,
        levels: Mapping[str, Sequence[str]] | None = None,
        reference: Mapping[str, str] | None = None,
        max_levels: int = MAX_LEVELS,
    ) -> "Table":
        """Open a table: a path or several, a dataframe, a NumPy or Dask array (with `names`), a dict of columns.

        Roles name columns exactly or by pattern (`snp_*`). `id` is a column, or the ids themselves; `covariates` are adjusted for
        and never shrunk; `features` is by default every column without another role. `missing`: "error", or "mean" to put the
        column's mean. `constant`: "error", or "drop" to leave such columns out of the sketch. `levels` fixes the levels of
        categorical columns (needed when the stores of one site are sketched separately and some lack a level), `reference` the
        level without an indicator. A table of ids alone is opened with `features=()`.
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
        ids = id if id is None or by_name else np.asarray(id).ravel()
        if ids is not None and not by_name and len(ids) != opened.n:
            raise InputError(f"{len(ids)} ids were given for {opened.n} rows. Give one id a row.")
        roles = assign(columns, id=id if by_name else None, features=features, responses=responses, covariates=covariates,
                       ignore=ignore)  # fmt: skip
        if by_name:
            read_as_text(opened, id)
        for name in roles.all:
            if opened.kinds[name] not in (NUMBER, LEVEL):
                raise InputError(
                    f"Column {name!r} holds {opened.kinds[name]}, neither numbers nor levels. Ignore it or recode it."
                )
        layout = Layout.of(roles, _find_levels(opened, roles, levels or {}, max_levels), dict(reference or {}))
        return cls(opened, layout, id=ids, missing=missing, constant=constant)

    def __repr__(self) -> str:
        counts = f"{len(self.features)} features, {len(self.responses)} responses, {len(self.covariates)} covariates"
        return f"Table({self.n} subjects, {counts})"

    @property
    def labels(self) -> list[str]:
        """All encoded columns in the order in which blocks have them: features, responses, covariates."""
        return [*self.features, *self.responses, *self.covariates]

    @property
    def levels(self) -> dict[str, list[str]]:
        return self.layout.levels

    @property
    def has_id(self) -> bool:
        return self._id is not None

    # --- reading ------------------------------------------------------------------------------------------------

    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        yield from _read(self.source, columns, rows)

    def raw_blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """Blocks [X Y Z] of at most `rows` rows in the table's own order, missing values as NaN, nothing checked."""
        for batch in self._batches(self.layout.roles.all, rows or block_rows(len(self.labels))):
            yield self.layout.encode(batch)

    def moments(self) -> Moments:
        """Means, standard deviations and counts of all columns (features, responses, covariates); one pass, kept."""
        if self._moments is None:
            found: Moments | None = None
            for Z in self.raw_blocks():
                found = found or Moments.empty(pilot_of(Z))
                found.add(Z, slice(None))
                found.rows += len(Z)
            assert found is not None
            found.check(self.labels, missing=self.missing, constant="drop")
            self._moments = found
        return self._moments

    def _clean_blocks(self, rows: int | None) -> Iterator[np.ndarray]:
        for Z in self.raw_blocks(rows):
            if not np.isfinite(Z).all():
                mean = self.moments().mean  # refuses what must be refused, with counts over the whole table
                Z = np.where(np.isnan(Z), mean, Z)
            yield Z

    def blocks(self, rows: int | None = None, order: Any = None) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Blocks (X, Y, Z) of `rows` rows: features, responses, covariates; in the table's order, or in `order` (row numbers).

        Missing values are refused or at the mean, as the table was opened. An order costs one pass over the table for
        every 32 million values.
        """
        if order is None:
            for block in self._clean_blocks(rows):
                yield self.split(block)
            return
        chosen = check_order(order, self.n)
        columns = len(self.labels)
        rows = rows or block_rows(columns)
        stretch = max(_PASS_VALUES // columns // rows, 1) * rows
        for start in range(0, len(chosen), stretch):
            wanted = chosen[start : start + stretch]
            place = np.full(self.n, -1, dtype=np.int64)
            place[wanted] = np.arange(len(wanted))
            gathered, at = np.empty((len(wanted), columns)), 0
            for block in self._clean_blocks(None):
                here = place[at : at + len(block)]
                gathered[here[here >= 0]] = block[here >= 0]
                at += len(block)
            for a in range(0, len(wanted), rows):
                yield self.split(gathered[a : a + rows])

    def split(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A block [X Y Z] as its three parts."""
        P, Q = len(self.features), len(self.responses)
        return block[:, :P], block[:, P : P + Q], block[:, P + Q :]

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


def _read(source: Source, columns: Sequence[str], rows: int) -> Iterator[Any]:
    try:
        yield from source.batches(columns, rows)
    except (pa.ArrowException, OSError) as error:
        # The library's own words may quote a cell.
        raise InputError(f"Reading the table failed ({type(error).__name__}). Is the file whole?") from None


def _find_levels(source: Source, roles: Roles, given: Mapping[str, Sequence[str]], most: int) -> dict[str, list[str]]:
    """The levels of every categorical column; a column of numbers whose levels are given is a coded factor."""
    names = [name for name in roles.all if source.kinds[name] == LEVEL or name in given]
    found: dict[str, set[str]] = {name: set() for name in names if name not in given}
    if found:
        for batch in _read(source, list(found), block_rows(len(found))):
            for name, seen in found.items():
                seen.update(x for x in pc.unique(batch.text(name)).to_pylist() if x is not None)
                if len(seen) > most:
                    raise InputError(
                        f"Column {name!r} has over {most} different texts, too many for levels. Make it the id, "
                        "ignore it, or look for cells that are not numbers in a column of numbers."
                    )
    return {name: list(given[name]) if name in given else sorted(found[name]) for name in names}


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
