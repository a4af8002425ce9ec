"""A table whose responses of other kinds come prepared (0/1, pseudo-observations, scores): what is sketched is linear as ever.

    kinds = {"asthma": "binary", "months": {"kind": "time", "event": "died", "horizon": 24}}
    prepared = PreparedTable.of(table, kinds, order)
    prepared.backs["asthma"].effect(C, s_y=…, sigma2=…)     # log odds ratios

A prepared response leaves under the name of its column. Ranks and pseudo-observations are those of the cohort (`order`). For a
time to event the response is the column of times, and
`event` names the column that says whether the event came; that column itself has no role and does not leave. Where features come
as normal scores too, make the `ScoredTable` first and prepare its responses.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from intarsia.errors import InputError
from intarsia.site.data.grades import graded
from intarsia.site.data.kinds import Prepared, prepare
from intarsia.site.data.layout import Layout
from intarsia.site.data.roles import Roles
from intarsia.site.data.row_blocks import check_order
from intarsia.site.data.scores import ScoredSource
from intarsia.site.data.sources import NUMBER
from intarsia.site.data.table import Table
from intarsia.wire.kinds import Back, check_kind


class PreparedTable(Table):
    """A table with some responses replaced. `prepared` has them by name, `backs` says how their coefficients are to be read."""

    prepared: dict[str, Prepared]

    @classmethod
    def of(cls, table: Table, kinds: Mapping[str, str | Mapping[str, Any]], order: Any = None) -> "PreparedTable":
        """Prepare the named responses over the cohort; the others stay as they are. Holds one number per subject and response."""
        from intarsia.site.sketch.sketch import ManyPieces

        if isinstance(table.source, ManyPieces):
            raise InputError(
                "Kinds of responses need the whole column in one place; this table lies in pieces elsewhere. Prepare the "
                "responses there (intarsia.site.data.kinds.prepare), or gather the table first."
            )
        rows = np.arange(table.n) if order is None else check_order(order, table.n)
        said = {name: check_kind(given) for name, given in kinds.items()}
        table = graded(table, _text_grades(table, said))
        # A table that already makes other numbers of its features goes on doing so.
        made: Any = cls if type(table) is Table else type(cls.__name__, (cls, type(table)), {})
        out: PreparedTable = made.__new__(made)
        out.__dict__.update(table.__dict__)
        out._moments, out._missing = None, None
        out.prepared, out._replaced = {}, {}
        for name, given in said.items():
            options = dict(given)
            kind = str(options.pop("kind"))
            label = _label(table, name, kind)
            found = _prepare(table, name, kind, options, rows)
            whole = np.full(table.n, np.nanmean(found.values))  # rows outside of the cohort: never sketched, nothing to refuse
            whole[rows] = found.values
            out.prepared[name], out._replaced[table.labels.index(label)] = found, whole
        out.responses = response_labels(table, kinds)
        out.missing_rules = table.missing_rules | {name: table.missing_rules[_label(table, name)] for name in out.prepared}
        return out

    _replaced: dict[int, np.ndarray]

    @property
    def backs(self) -> dict[str, Back]:
        return {name: found.back for name, found in self.prepared.items()}

    def encoded(self, rows: int | None = None) -> Iterator[np.ndarray]:
        at = 0
        for Z in super().encoded(rows):
            Z = np.array(Z, dtype=np.float64)
            for j, whole in self._replaced.items():
                Z[:, j] = whole[at : at + len(Z)]
            at += len(Z)
            yield Z

    def raw_blocks(self, rows: int | None = None) -> Iterator[np.ndarray]:
        yield from super().raw_blocks(rows)  # stated here so that no block leaves as bytes past `encoded`


def response_labels(table: Table, kinds: Mapping[str, Any]) -> list[str]:
    """The labels under which the responses leave: a response with a kind under its column's own name."""
    out = []
    for name in table.layout.roles.responses:
        out += [name] if name in kinds else table.layout.labels([name])
    return out


def _label(table: Table, name: str, kind: str = "") -> str:
    """The one label that a response of this kind has in the table."""
    if name not in table.layout.roles.responses:
        raise InputError(f"A kind is given for {name!r}, which is no response of this site.")
    labels = table.layout.labels([name])
    if name not in table.levels or not kind:
        return labels[0]
    count = len(table.levels[name])
    if kind != "binary":
        raise InputError(
            f"Response {name!r} is a column of texts ({count} different ones); kind {kind!r} needs numbers. Look for cells that "
            "are not numbers and mark them as missing (missing_codes under [table] in site.toml)."
        )
    if count == 2:
        return labels[0]
    if count < 2:
        raise InputError(f"Response {name!r} is called binary and has {count} level{'s' * (count != 1)}: leave it out.")
    raise InputError(
        f"Response {name!r} is called binary and has {count} levels. A binary response has two: make it ordinal, or bring one "
        "yes/no column per level."
    )


def _text_grades(table: Table, kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The order of every ordinal response that is a column of texts."""
    out = {}
    for name, said in kinds.items():
        if said["kind"] == "ordinal" and name in table.levels and name in table.layout.roles.responses:
            if "order" not in said:
                raise InputError(
                    f"Response {name!r} is a column of texts: an ordinal response needs their order. Say it in study.toml or "
                    'site.toml, from the lowest to the highest: { kind = "ordinal", order = ["none", "mild", "severe"] }.'
                )
            out[name] = [str(grade) for grade in said["order"]]
    return out


def _prepare(table: Table, name: str, kind: str, options: dict[str, Any], rows: np.ndarray) -> Prepared:
    try:
        values = _column(table, name)[rows]
        if isinstance(table.source, ScoredSource) and name in table.source.scales:
            options["order"] = list(range(1, len(options["order"]) + 1))
        if name in table.levels:
            values = _turned(table, name, values, options)
        if kind != "time":
            return prepare(values, kind, options)
        event = options.pop("event", None)
        if event not in table.source.names or table.source.kinds[event] != NUMBER:
            raise InputError(
                "a time to event needs `event`: the name of a column of the table with 1 (it came) or 0 (it did not)."
            )
        if event in table.layout.roles.all:
            raise InputError(
                f"the event column {event!r} would leave as a column of its own. Put it under ignore; it is read all the same."
            )
        events = np.concatenate([batch.matrix([event])[:, 0] for batch in table.source.batches([event], 1 << 16)])
        return prepare((values, events[rows]), kind, options)
    except InputError as error:
        raise InputError(f"Response {name!r}: {error}") from None


def _turned(table: Table, name: str, values: np.ndarray, options: dict[str, Any]) -> np.ndarray:
    """A column of two texts comes as the indicator of one of them: the other way round where that one is not the yes."""
    yes = str(options.pop("yes", table.layout.shown(name)[0]))
    if yes not in table.levels[name]:
        raise InputError("the level given as `yes` is neither of the response's two levels.")
    return values if yes in table.layout.shown(name) else 1.0 - values


def _column(table: Table, name: str) -> np.ndarray:
    """One response over the whole table, missing values as NaN; only its own column is read."""
    layout = table.layout
    alone = Layout(Roles(responses=(name,)), *({k: v for k, v in part.items() if k == name} for part in _parts(layout)))
    return np.concatenate([alone.encode(batch)[:, 0] for batch in table.source.batches([name], 1 << 16)])


def _parts(layout: Layout) -> tuple[dict[str, Any], ...]:
    return layout.levels, layout.reference, layout.codes, layout.limits, layout.merged
