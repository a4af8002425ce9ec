"""A site's columns, each with a role (id, feature, response, covariate, ignored), read in row blocks as float64.

Text and categorical columns become indicators named `column=level`; which level goes without one is in `layout`.
Nothing is held in memory but a block. Errors name columns and counts, never a value.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from intarsia.errors import InputError
from intarsia.privacy.subject_ids import canonical_id
from intarsia.site.data.column_rules import Rules
from intarsia.site.data.given_back import give_back
from intarsia.site.data.id_column import IdColumn
from intarsia.site.data.kept_rows import KeptRows
from intarsia.site.data.layout import Layout
from intarsia.site.data.missing import Filler
from intarsia.site.data.moments import Moments, pilot_of
from intarsia.site.data.open import open_source
from intarsia.site.data.roles import Roles, Wanted, assign
from intarsia.site.data.row_blocks import block_rows, check_order
from intarsia.site.data.scores import by_rules
from intarsia.site.data.sources import LEVEL, NUMBER, Source, read_as_text
from intarsia.site.data.table_rules import TableRules
from intarsia.wire.plain import plural, some

LOG = logging.getLogger(__name__)
MAX_LEVELS = 100
_FEW_ROWS, _BATCH_VALUES = 1024, 1 << 24  # of a wide table so many values are read together, and cut into blocks
_PASS_VALUES = 1 << 24  # when rows are asked in another order than the file's: values gathered in one pass over it
_WIDE = 5  # times as many of a table with more columns than rows: to read it again costs much, and what leaves is no smaller


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
        missing: str | Mapping[str, str] = "error",
        constant: str = "error",
        filler: Filler | None = None,
    ) -> None:
        self.source, self.n, self.constant = source, source.n, constant
        self._id, self.layout, self._filler = id, layout, filler
        self.features = layout.labels(layout.roles.features)
        self.responses = layout.labels(layout.roles.responses)
        self.covariates = layout.labels(layout.roles.covariates)
        self.missing_rules = dict.fromkeys(self.labels, missing) if isinstance(missing, str) else dict(missing)
        self._moments: Moments | None = None
        self._missing: dict[str, int] | None = None
        self._kept: list[tuple[np.ndarray, np.ndarray]] | None = None
        self._ids: IdColumn | None = None
        self.heard: Callable[[int, int], None] | None = None  # how many rows of a pass were read, of how many

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
        rules: TableRules | None = None,
    ) -> "Table":
        """Open a table: a path or several, a dataframe, a NumPy or Dask array (named by its rules), a dict of columns.

        Roles name columns exactly or by pattern (`snp_*`). `id` is a column, or the ids themselves; `covariates` are adjusted for
        and never shrunk; `features` is by default every column without another role. A table of ids alone has `features=()`.
        """
        rules, by_name = rules or TableRules(), isinstance(id, str)
        by_column = rules.by_column
        opened = open_source(source, rules.names, rules.reading_of(id if by_name else None))
        known = opened.names
        if not all(isinstance(name, str) and name for name in known):
            raise InputError(
                "A column has no name, or one that is not text. Name every column. Where it holds the numbers of the rows, write "
                "the table without them: index=False in pandas, row.names = FALSE in R."
            )
        if len(set(known)) != len(known):
            twice = sorted({name for name in known if known.count(name) > 1})
            raise InputError(f"Two columns have the same name: {some(twice)}. Rename one.")
        if opened.n < 1:
            raise InputError("The table has no rows.")
        ids = id if id is None or by_name else np.asarray(id).ravel()
        if ids is not None and not by_name and len(ids) != opened.n:
            raise InputError(f"{len(ids)} ids were given for {opened.n} rows. Give one id per row.")
        roles = assign(known, id=id if by_name else None, features=features, responses=responses, covariates=covariates,
                       ignore=ignore)  # fmt: skip
        by_column.check_names(known)
        if by_name:
            read_as_text(opened, id)
        opened = by_rules(opened, by_column, roles.responses)
        if rules.without:
            texts = (text for array in IdColumn(opened, id if by_name else ids).arrays() for text in array.to_pylist())
            keep = np.array([text is None or canonical_id(text) not in rules.without for text in texts], dtype=bool)
            if not keep.any():
                raise InputError("Every subject of the table has withdrawn.")
            opened = opened if keep.all() else KeptRows(opened, keep)
            ids = ids[keep] if isinstance(ids, np.ndarray) else ids
        for name in roles.all:
            if opened.kinds[name] not in (NUMBER, LEVEL):
                raise InputError(
                    f"Column {name!r} holds {opened.kinds[name]}, neither numbers nor levels. Leave it out "
                    f'(ignore = ["{name}"] under [table] of site.toml), or make numbers or texts of it.'
                )
        references = {name: ref for name in roles.all if (ref := by_column.at(name).reference) is not None}
        limits = _limits(opened, roles, by_column)
        merged = {name: dict(rule.merge) for name in roles.all if (rule := by_column.at(name)).merge}
        levels = _find_levels(opened, roles, by_column, merged)
        layout = Layout.of(roles, levels, references, _codes(roles, by_column), limits, merged)
        missing = _missing_rules(layout, by_column, rules.missing)
        LOG.debug("opened a table: %s, %s, %s", type(opened).__name__, plural(opened.n, "row"), plural(len(roles.all), "column"))
        return cls(opened, layout, id=ids, missing=missing, constant=rules.constant)

    def __repr__(self) -> str:
        counts = [(self.n, "subject"), (len(self.features), "feature"), (len(self.responses), "response")]
        counts.append((len(self.covariates), "covariate"))
        return f"Table({', '.join(plural(count, thing) for count, thing in counts)})"

    @property
    def labels(self) -> list[str]:
        """All encoded columns in the order in which blocks have them: features, responses, covariates."""
        return [*self.features, *self.responses, *self.covariates]

    @property
    def levels(self) -> dict[str, list[str]]:
        return self.layout.levels

    @property
    def missing(self) -> str:
        """ "error" when no column may lack values, else "mean"."""
        return "mean" if any(rule != "error" for rule in self.missing_rules.values()) else "error"

    @property
    def has_id(self) -> bool:
        return self._id is not None

    # --- reading ------------------------------------------------------------------------------------------------

    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        yield from _read(self.source, columns, rows)

    def encoded(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """Blocks [X Y Z] with every missing value as NaN, whatever its rule."""
        rows = rows or block_rows(len(self.labels))
        at_once, done = rows, 0
        if rows < _FEW_ROWS:  # every column of a batch costs the reader as much as a hundred of its values
            at_once = max(_BATCH_VALUES // len(self.labels) // rows, 1) * rows
        for batch in self._batches(self.layout.roles.all, at_once):
            Z = self.layout.encode(batch)
            for a in range(0, len(Z), rows):
                yield Z[a : a + rows]
            done += len(Z)
            if self.heard is not None:
                self.heard(done, self.n)

    def raw_blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """Blocks [X Y Z] of at most `rows` rows in the table's own order, nothing checked. Missing values are NaN, but in columns
        whose rule is "regression": there they are filled."""
        filler = self.filler()
        for Z in self.encoded(rows):
            yield Z if filler is None else filler.fill(Z)

    @property
    def packed(self) -> bool:
        """Whether blocks can be had as bytes: genotypes without any rule that needs numbers."""
        plain = not self.levels and not self.layout.codes and not self.layout.limits and self.filler() is None
        # A table that makes other numbers of its blocks gives no bytes.
        return plain and getattr(self.source, "packed", False) and type(self).raw_blocks is Table.raw_blocks

    def sketch_blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """As `raw_blocks`; where `packed`, blocks of bytes that `Moments.add` turns into numbers, some columns at a time."""
        if not self.packed:
            yield from self.raw_blocks(rows)
            return
        names = self.layout.roles.all
        for batch in self._batches(names, rows or block_rows(len(names) // 8)):
            yield batch.bytes(names)

    def filler(self) -> Filler | None:
        """What fills the columns whose rule is "regression"; found in one pass over the table, kept."""
        if self._filler is None and "regression" in self.missing_rules.values():
            filled = np.array([self.missing_rules[label] == "regression" for label in self.labels])
            known = np.ones(len(self.labels), dtype=bool)
            known[len(self.features) : len(self.features) + len(self.responses)] = False
            pilot = pilot_of(next(self.encoded()))
            self._filler = Filler.fit(self.encoded(), pilot, filled, known)
        return self._filler

    @property
    def missing_counts(self) -> dict[str, int]:
        """Missing cells of every column that has any (by the table's own column names); one pass over the table, kept."""
        if self._missing is None:
            counts = np.zeros(len(self.labels), dtype=np.int64)
            for Z in self.encoded():
                counts += np.isnan(Z).sum(axis=0)
            self._missing = self._by_column(counts)
        return dict(self._missing)

    @property
    def imputed(self) -> dict[str, int]:
        """How many cells of each column are filled (not refused): nothing is ever filled in silence."""
        if self.missing == "error":
            return {}
        rules = {name: self.missing_rules[labels[0]] for name in self.layout.roles.all if (labels := self.layout.labels([name]))}
        return {name: count for name, count in self.missing_counts.items() if rules[name] != "error"}

    def _by_column(self, counts: np.ndarray) -> dict[str, int]:
        out, at = {}, 0
        for name in self.layout.roles.all:
            width = len(self.layout.labels([name]))
            if width and counts[at]:
                out[name] = int(counts[at])
            at += width
        return out

    def moments(self) -> Moments:
        """Means, standard deviations and counts of all columns (features, responses, covariates); one pass, kept."""
        if self._moments is None:
            found: Moments | None = None
            for Z in self.raw_blocks():
                found = found or Moments.empty(pilot_of(Z))
                found.add(Z, slice(None))
                found.rows += len(Z)
            assert found is not None
            found.check(self.labels, missing=self.missing_rules, constant="drop")
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
        every 16 million values; rows in the table's own order cost one pass in all.
        """
        for block in self.whole_blocks(rows, order):
            yield self.split(block)

    def whole_blocks(self, rows: int | None = None, order: Any = None) -> Iterator[np.ndarray]:
        """As `blocks`, with all columns side by side; not to be written to."""
        if order is None:
            yield from self._clean_blocks(rows)
            return
        chosen = check_order(order, self.n)
        columns = len(self.labels)
        rows = rows or block_rows(columns)
        if not self.gathers(len(chosen)) and (np.diff(chosen) > 0).all():
            yield from self._filtered(chosen, rows)
            return
        stretch = max(self._pass_values // columns // rows, 1) * rows
        for start in range(0, len(chosen), stretch):
            gathered = self._gathered(chosen[start : start + stretch], keep=len(chosen) <= stretch)
            for a in range(0, len(gathered), rows):
                yield gathered[a : a + rows]

    def gathers(self, rows: int) -> bool:
        """Whether so many rows are put into another order in one pass over the table."""
        return rows * len(self.labels) <= self._pass_values

    @property
    def _pass_values(self) -> int:
        return _PASS_VALUES * (_WIDE if len(self.labels) > self.n else 1)

    def _filtered(self, chosen: np.ndarray, rows: int) -> Iterator[np.ndarray]:
        """These rows in the table's own order: one pass, one block in memory."""
        wanted, at = np.zeros(self.n, dtype=bool), 0
        wanted[chosen] = True
        left = np.empty((0, len(self.labels)))
        for block in self._clean_blocks(rows):
            here = wanted[at : at + len(block)]
            at += len(block)
            left = block[here] if not len(left) else np.concatenate([left, block[here]])
            if len(left) >= rows:  # the same blocks as where all are gathered: sums over them are the same to the last bit
                yield left[:rows]
                left = left[rows:]
        if len(left):
            yield left

    @contextmanager
    def reading_once(self) -> Iterator[None]:
        """While this lasts, rows asked for in one order again and again are read once, where one pass gathers them all."""
        self._kept = []
        try:
            yield
        finally:
            self._kept = None
            give_back()  # what the looks at the table leave is as much as the sketch takes

    def _gathered(self, wanted: np.ndarray, *, keep: bool) -> np.ndarray:
        """These rows in this order, in memory."""
        kept = self._kept
        for order, rows in kept or ():
            if np.array_equal(order, wanted):
                return rows
            if np.array_equal(order, np.sort(wanted)):
                return np.asarray(rows[np.searchsorted(order, wanted)])
        place = np.full(self.n, -1, dtype=np.int64)
        place[wanted] = np.arange(len(wanted))
        gathered, at = np.empty((len(wanted), len(self.labels))), 0
        for block in self._clean_blocks(None):
            here = place[at : at + len(block)]
            gathered[here[here >= 0]] = block[here >= 0]
            at += len(block)
        if keep and kept is not None:
            gathered.flags.writeable = False  # whoever looks next must find what was read
            kept[:] = [(wanted, gathered)]
        return gathered

    def split(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A block [X Y Z] as its three parts."""
        P, Q = len(self.features), len(self.responses)
        return block[:, :P], block[:, P : P + Q], block[:, P + Q :]

    @property
    def id_column(self) -> IdColumn:
        """The subjects' ids, read in blocks: for what must not hold them all."""
        if self._ids is None:
            self._ids = IdColumn(self.source, self._id)
        return self._ids

    def ids(self) -> np.ndarray:
        """The subjects' ids as text, in the table's order; missing or duplicate ids are refused (by count)."""
        return self.id_column.array()


def _read(source: Source, columns: Sequence[str], rows: int) -> Iterator[Any]:
    try:
        yield from source.batches(columns, rows)
    except (pa.ArrowException, OSError) as error:
        # The library's own words may quote a cell.
        raise InputError(f"Reading the table failed ({type(error).__name__}). Is the file whole?") from None


def _codes(roles: Roles, rules: Rules) -> dict[str, tuple[str, ...]]:
    return {name: codes for name in roles.all if (codes := rules.codes(name))}


def _limits(source: Source, roles: Roles, rules: Rules) -> dict[str, tuple[float | None, float | None]]:
    """The numbers beyond which a column tells nothing apart; not of responses: a count that is an outcome has `cap`."""
    found = {name: rules.at(name) for name in roles.all} if rules.columns else {}
    out = {name: (rule.at_least, rule.at_most) for name, rule in found.items() if (rule.at_least, rule.at_most) != (None, None)}
    for name in out:
        if name in roles.responses:
            raise InputError(
                f"Column {name!r} is a response: at_least and at_most are for features and covariates. Of a count say its cap: "
                f'kinds = {{ {name} = {{ kind = "count", cap = … }} }}.'
            )
        if source.kinds[name] == LEVEL:
            raise InputError(
                f"Column {name!r} holds texts: at_least and at_most are for numbers. Levels are put together by merge."
            )
    return out


def _missing_rules(layout: Layout, rules: Rules, missing: str) -> dict[str, str]:
    """What is done about a missing value, by label. A response is filled only where a rule under its own name says so."""
    out: dict[str, str] = {}
    responses = set(layout.roles.responses)
    for name in layout.roles.all:
        if name in responses:
            own = rules.columns[name].missing if name in rules.columns else None
            rule = own or "error"
        else:
            rule = rules.at(name).missing or missing
        for label in layout.labels([name]):
            out[label] = rule
    return out


def _find_levels(source: Source, roles: Roles, rules: Rules, merged: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """The levels of every categorical column: one of texts, or one of numbers that a rule declares to be codes."""
    given = {name: levels for name in roles.all if (levels := rules.at(name).levels) is not None}
    names = [name for name in roles.all if source.kinds[name] == LEVEL or name in given or rules.at(name).categorical]
    found: dict[str, set[str]] = {name: set() for name in names if name not in given}
    if found:
        for batch in _read(source, list(found), block_rows(len(found))):
            for name, seen in found.items():
                seen.update(x for x in pc.unique(batch.text(name)).to_pylist() if x is not None and x not in rules.codes(name))
                if len(seen) > MAX_LEVELS:
                    raise InputError(
                        f"Column {name!r} has over {MAX_LEVELS} different texts, too many for levels. Make it the id, "
                        "ignore it, or look for cells that are not numbers in a column of numbers (a decimal comma: say "
                        "decimal = ',')."
                    )
    for name, seen in found.items():
        taken_as = merged.get(name, {})
        absent = [text for text in taken_as if text not in seen]
        if absent:  # a slip of the pen must not switch a rule off
            raise InputError(
                f"Column {name!r}: merge names {plural(len(absent), 'level')} that the column does not have. "
                "Write each as it stands in the table; `intarsia site check` lists the levels when merge is left out."
            )
        found[name] = {taken_as.get(text, text) for text in seen}
    return {name: list(given[name]) if name in given else sorted(found[name], key=_level_order) for name in names}


def _level_order(text: str) -> tuple[int, float, str]:
    """Codes in the order of their numbers (2 before 10), texts after them in theirs."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
