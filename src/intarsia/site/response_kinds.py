"""Kinds of responses at a site: what study.toml and the site itself say of them must agree, and what they come to is kept here.

study.toml decides, because the other sites and the report read the effects by it. The site may say the same once more (then a
difference is found before anything leaves) and adds what is its own matter: which column holds the event, which level is yes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.errors import InputError, MessageError
from intarsia.site.data.table import Table
from intarsia.site.prepared_table import PreparedTable, response_labels
from intarsia.site.units import Units
from intarsia.wire.kinds import Back, check_kind, planned
from intarsia.wire.study import Study

FILE = "kinds.secret"  # in the run folder: the mean of a count is in it
Kinds = Mapping[str, Mapping[str, Any]]


def read_kinds(given: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The site's own words on its responses, checked; InputError names the response."""
    out = {}
    for name, said in (given or {}).items():
        try:
            out[str(name)] = check_kind(said)
        except InputError as error:
            raise InputError(f"Response {name!r}: {error}.") from None
    return out


def kinds_of(study: Study, site: str, own: Kinds) -> dict[str, dict[str, Any]]:
    """Each response's kind and options, as the study says and the site completes them."""
    out = {name: dict(said) for name, said in study.site(site).kinds.items()}
    for name, said in own.items():
        told = out.get(name, {"kind": "continuous"})
        for option, value in said.items():
            if option in told and told[option] != value:
                raise InputError(
                    f"Response {name!r}: the site says {option} = {value!r}, study.toml says {told[option]!r}. The other sites "
                    "read its effects by study.toml: correct one of the two. Nothing was sent."
                )
        out[name] = {**told, **said}
    for name, said in out.items():
        # No study file reaches for a column that the site does not bring: whether an event came leaves with the times.
        if "event" in said and "event" not in own.get(name, {}):
            raise InputError(
                f"study.toml takes column {said['event']!r} of this site for the event of {name!r}. A column that has no role "
                f'here is read only if the site says so itself: kinds = {{ {name} = {{ kind = "time", event = '
                f'"{said["event"]}" }} }} under [table] of site.toml. Nothing was sent.'
            )
    return out


def prepared(table: Table, kinds: Kinds, order: Any = None) -> Table:
    """The table as it is sketched; unchanged where every response is a plain measurement."""
    return PreparedTable.of(table, kinds, order) if kinds else table


def leaving(table: Table, kinds: Kinds) -> list[str]:
    """The labels under which the responses leave."""
    return response_labels(table, kinds)


def published_scales(backs: Mapping[str, Back], units: Units) -> tuple[float, ...]:
    """One number per response of the site, by which others read effects on it; `backs` are those of its own responses."""
    plain = Back("continuous")
    return tuple(backs.get(k, plain).shared_scale(float(s)) for k, s in zip(units.responses, units.y_scale, strict=True))


def backs_of(table: Table) -> Mapping[str, Back]:
    """How the responses of a table that is about to be sketched are to be read."""
    return table.backs if isinstance(table, PreparedTable) else {}


@dataclass(frozen=True)
class Meaning:
    """How this site's coefficients are to be read: the way back by response, notes, the skewness of its features, and how many
    subjects have each response.

    `planned` is the way back of all responses as study.toml tells it, for effects on other sites' responses whose scale is
    shared.
    """

    backs: Mapping[str, Back] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skewness: Mapping[str, float] = field(default_factory=dict)
    planned: Mapping[str, Back] = field(default_factory=dict)
    subjects: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Table, skewness: Mapping[str, float], kinds: Kinds | None = None) -> "Meaning":
        own = table if isinstance(table, PreparedTable) else None
        ways = {name: planned(said) for name, said in (kinds or {}).items()}
        backs = backs_of(table)
        notes = {} if own is None else {name: found.notes for name, found in own.prepared.items() if found.notes}
        rough = any(back.kind == "binary" for back in (*backs.values(), *ways.values()))
        counts = {} if own is None else {name: int(np.isfinite(found.values).sum()) for name, found in own.prepared.items()}
        return cls(backs, notes, dict(skewness) if rough else {}, ways, counts)

    def shared(self, units: Units) -> tuple[float, ...]:
        """What a study that shares scales is told of the site's own responses."""
        return published_scales(self.backs, units)

    def to_bytes(self) -> bytes:
        backs, ways = ({name: back.as_dict() for name, back in some.items()} for some in (self.backs, self.planned))
        content = {"backs": backs, "notes": self.notes, "skewness": self.skewness, "planned": ways, "subjects": self.subjects}
        return json.dumps(content, indent=1).encode()

    @classmethod
    def from_bytes(cls, raw: bytes | None) -> "Meaning":
        if raw is None:
            return cls()
        try:
            found = json.loads(raw)
            backs, ways = ({name: Back.from_dict(back) for name, back in found[key].items()} for key in ("backs", "planned"))
            notes = {name: tuple(texts) for name, texts in found["notes"].items()}
            skewness = {name: float(value) for name, value in found["skewness"].items()}
            return cls(backs, notes, skewness, ways, {name: int(count) for name, count in found["subjects"].items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise MessageError("The file of this site's kinds of responses is damaged. Sketch again to make it.") from None
