"""Two fits side by side: what a site, or the server, is told when a study is fitted again.

A fit is made again when a site left, a site joined, a subject withdrew or a response was corrected. Both fits rest on much of
the same data, so what moved is described and not tested.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Column -> what it says, in the order of the table.
COLUMNS = {
    "feature": "the column's label",
    "role": "'feature' or 'covariate'",
    "site": "who holds the column",
    "response": "the response it acts on",
    "unit": "what one of `before` and of `after` means",
    "before": "the earlier effect, empty where there was none",
    "before_lower": "lower end of its interval",
    "before_upper": "upper end of its interval",
    "after": "the effect now, empty where there is none any more",
    "after_lower": "lower end of its interval",
    "after_upper": "upper end of its interval",
    "moved": "after less before, in posterior standard deviations of the earlier fit",
    "outside": "whether the effect now lies outside of the earlier interval",
    "selected_before": "whether the feature was selected",
    "selected_after": "whether it is now",
}
_SHOWN = 8
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Changes:
    """The table of all coefficients of both fits, and in words what is different. `why` says what happened between them."""

    why: tuple[str, ...]
    rows: list[dict[str, Any]] = field(repr=False)
    selected_before: tuple[str, ...]
    selected_after: tuple[str, ...]

    @property
    def gone(self) -> dict[str, tuple[str, ...]]:
        """Features and responses that only the earlier fit had."""
        return self._only("before")

    @property
    def added(self) -> dict[str, tuple[str, ...]]:
        """Features and responses that only the fit now has."""
        return self._only("after")

    def _only(self, here: str) -> dict[str, tuple[str, ...]]:
        elsewhere = [row for row in self.rows if row["after" if here == "before" else "before"] is not None]
        mine = [row for row in self.rows if row[here] is not None]
        return {
            what: tuple(dict.fromkeys(row[what] for row in mine if row[what] not in {other[what] for other in elsewhere}))
            for what in ("feature", "response")
        }

    @property
    def outside(self) -> list[dict[str, Any]]:
        """Coefficients that now lie outside of their earlier interval, those that moved most first."""
        return sorted((row for row in self.rows if row["outside"]), key=lambda row: -abs(row["moved"]))

    def lines(self) -> list[str]:
        """What changed, for a person to read."""
        out = list(self.why)
        for which, words in ((self.gone, "no longer in the fit"), (self.added, "new in the fit")):
            out += [f"{len(names)} {what}s {words}: {_some(names)}" for what, names in which.items() if names]
        before, after = set(self.selected_before), set(self.selected_after)
        out.append(f"selected before: {_some(self.selected_before)}; now: {_some(self.selected_after)}")
        if before == after:
            out.append("the same features are selected")
        for words, names in (("no longer selected", before - after), ("newly selected", after - before)):
            if names:
                out.append(f"{words}: {_some(sorted(names))}")
        both = sum(row["moved"] is not None for row in self.rows)
        out.append(f"{len(self.outside)} of {both} coefficients lie outside of their earlier interval")
        for row in self.outside[:_SHOWN]:
            was, now = (f"{row[t]:.3g} ({row[f'{t}_lower']:.3g} to {row[f'{t}_upper']:.3g})" for t in ("before", "after"))
            out.append(f"  {row['feature']} on {row['response']}: {was} before, {now} now")
        return out

    def as_dict(self) -> dict[str, Any]:
        return {
            "why": list(self.why), "gone": {k: list(v) for k, v in self.gone.items()},
            "added": {k: list(v) for k, v in self.added.items()}, "selected_before": list(self.selected_before),
            "selected_after": list(self.selected_after), "rows": self.rows,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Changes":
        return cls(
            tuple(found["why"]), list(found["rows"]), tuple(found["selected_before"]), tuple(found["selected_after"])
        )  # fmt: skip


def compare(before: Sequence[Row], after: Sequence[Row], why: Iterable[str] = ()) -> Changes:
    """Two tables of results (`wire.result_table`) of the same columns, coefficient by coefficient."""
    old, new = ({(r["site"], r["role"], r["feature"], r["response"]): r for r in rows} for rows in (before, after))
    rows = [_beside(old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])]
    return Changes(tuple(why), rows, _selected(before), _selected(after))


def _beside(old: Row | None, new: Row | None) -> dict[str, Any]:
    known = new or old
    assert known is not None
    out: dict[str, Any] = {name: known[name] for name in ("feature", "role", "site", "response", "unit")}
    for when, row in (("before", old), ("after", new)):
        for name, source in ((when, "effect"), (f"{when}_lower", "lower"), (f"{when}_upper", "upper")):
            out[name] = None if row is None else row[source]
    # Effects in different units (a scale that is shared now) are shown, and not compared.
    out |= {"moved": None, "outside": False}
    if old is not None and new is not None and old["unit"] == new["unit"] and old["sd"] > 0:
        out["moved"] = (new["effect"] - old["effect"]) / old["sd"]
        out["outside"] = not old["lower"] <= new["effect"] <= old["upper"]
    out["selected_before"] = None if old is None else bool(old["selected"])
    out["selected_after"] = None if new is None else bool(new["selected"])
    return {name: out[name] for name in COLUMNS}


def _selected(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["feature"] for row in rows if row["selected"]))


def _some(names: Sequence[str]) -> str:
    return (", ".join(names[:_SHOWN]) or "none") + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
