"""Two fits side by side: what a site, or the server, is told when a study is fitted again.

A fit is made again when a site left, a site joined, a subject withdrew or a response was corrected. Both fits rest on much of
the same data, so what moved is described and not tested.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.wire.plain import plural, some

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
    "moved": "after less before, in posterior standard deviations of the earlier fit; empty where these are zero",
    "outside": "whether the effect now lies outside of the earlier interval",
    "selected_before": "whether the feature was selected",
    "selected_after": "whether it is now",
}
# The same for a site that brings no features and so has no effects of its own to compare.
RESPONSE_COLUMNS = {
    "response": "a response of the site",
    "features_selected_before": "how many features of all sites were selected for it",
    "features_selected_after": "how many are now",
    "explained_before": "share of its variance explained, in-sample",
    "explained_after": "the same now",
    "explained_out_of_sample_before": "the same for rows left out",
    "explained_out_of_sample_after": "the same now",
}
_SHOWN = 8  # coefficients outside of their interval
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Changes:
    """Two fits side by side, as a table and in words.

    `why` says what happened between them, `gone` and `added` are the features and responses that only one of them has,
    `compared` is how many coefficients are in both. `rows` is the whole table, or what is worth a look of it (`noteworthy`).
    `responses` are those of a site that brings no features (`RESPONSE_COLUMNS`): it is not told which features are selected.
    """

    why: tuple[str, ...]
    rows: list[dict[str, Any]] = field(repr=False)
    gone: dict[str, list[str]] = field(repr=False)
    added: dict[str, list[str]] = field(repr=False)
    compared: int
    selected_before: tuple[str, ...]
    selected_after: tuple[str, ...]
    responses: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def outside(self) -> list[dict[str, Any]]:
        """Coefficients that now lie outside of their earlier interval, those that moved most first."""
        return sorted((row for row in self.rows if row["outside"]), key=lambda row: -how_far(row))

    @property
    def noteworthy(self) -> "Changes":
        """With the rows of features that are or were selected, and of coefficients outside of their earlier interval, alone."""
        chosen = [row for row in self.rows if row["selected_before"] or row["selected_after"] or row["outside"]]
        return replace(self, rows=chosen)

    def lines(self) -> list[str]:
        """What changed, for a person to read."""
        out = list(self.why)
        for which, words in ((self.gone, "no longer in the fit"), (self.added, "new in the fit")):
            out += [f"{plural(len(names), what)} {words}: {some(names)}" for what, names in which.items() if names]
        out += self._of_responses() if self.responses else self._of_features()
        if self.responses and not self.rows:
            return out  # not even a covariate
        out.append(f"{len(self.outside)} of {self.compared} coefficients lie outside of their earlier interval")
        for row in self.outside[:_SHOWN]:
            was, now = (f"{row[t]:.3g} ({row[f'{t}_lower']:.3g} to {row[f'{t}_upper']:.3g})" for t in ("before", "after"))
            out.append(f"  {row['feature']} on {row['response']}: {was} before, {now} now")
        return out

    def _of_features(self) -> list[str]:
        before, after = set(self.selected_before), set(self.selected_after)
        out = [f"selected before: {some(self.selected_before)}; now: {some(self.selected_after)}"]
        if before == after:
            out.append("the same features are selected")
        for words, names in (("no longer selected", before - after), ("newly selected", after - before)):
            if names:
                out.append(f"{words}: {some(sorted(names))}")
        return out

    def _of_responses(self) -> list[str]:
        out = [
            "this site brings no features, so it has no effects of features to compare and is not told which are selected: the "
            "sites that hold them are, and the server"
        ]
        for row in self.responses:
            told = [
                f"{words} {_figure(row[f'{name}_before'])} before, {_figure(row[f'{name}_after'])} now"
                for name, words in (
                    ("features_selected", "features of all sites selected for it:"),
                    ("explained_out_of_sample", "share explained in rows left out:"),
                )
                if (row[f"{name}_before"], row[f"{name}_after"]) != (None, None)
            ]
            out.append(f"{row['response']}: {'; '.join(told)}")
        return out

    def as_dict(self) -> dict[str, Any]:
        lists = {name: list(getattr(self, name)) for name in ("why", "selected_before", "selected_after")}
        return {**lists, "gone": self.gone, "added": self.added, "compared": self.compared, "rows": self.rows} | (
            {"responses": self.responses} if self.responses else {}
        )

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Changes":
        lists: dict[str, Any] = {name: tuple(found[name]) for name in ("why", "selected_before", "selected_after")}
        same: dict[str, Any] = {name: found[name] for name in ("gone", "added", "compared", "rows")}
        return cls(**lists, **same, responses=found.get("responses", []))


def compare(before: Sequence[Row], after: Sequence[Row], why: Iterable[str] = ()) -> Changes:
    """Two tables of results (`wire.result_table`) of the same columns, coefficient by coefficient."""
    old, new = ({(r["site"], r["role"], r["feature"], r["response"]): r for r in rows} for rows in (before, after))
    rows = [_beside(old.get(key), new.get(key)) for key in dict.fromkeys([*new, *old])]
    compared = sum(key in old and old[key]["unit"] == row["unit"] for key, row in new.items())
    return Changes(
        tuple(why), rows, _only(before, after), _only(after, before), compared, _selected(before), _selected(after)
    )  # fmt: skip


def compare_responses(before: Sequence[Row], after: Sequence[Row]) -> list[dict[str, Any]]:
    """A site's own responses (`SiteModel.response_rows`) in two fits."""
    old, new = ({row["response"]: row for row in rows} for rows in (before, after))
    out = []
    for response in dict.fromkeys([*new, *old]):
        row: dict[str, Any] = {"response": response}
        for name in ("features_selected", "explained", "explained_out_of_sample"):
            for when, fit in (("before", old), ("after", new)):
                row[f"{name}_{when}"] = fit[response][name] if response in fit else None
        out.append(row)
    return out


def _figure(value: float | None) -> str:
    return "unknown" if value is None else str(value) if isinstance(value, int) else f"{value:.2f}"


def _only(here: Sequence[Row], there: Sequence[Row]) -> dict[str, list[str]]:
    """Features and responses of the one table that the other has not."""
    out = {}
    for what in ("feature", "response"):
        elsewhere = {row[what] for row in there}
        out[what] = [name for name in dict.fromkeys(row[what] for row in here) if name not in elsewhere]
    return out


def how_far(row: Row) -> float:
    """By how many earlier standard deviations; one that was in no draw moved more than any other."""
    return float("inf") if row["moved"] is None else abs(row["moved"])


def _beside(old: Row | None, new: Row | None) -> dict[str, Any]:
    known = new or old
    assert known is not None
    out: dict[str, Any] = {name: known[name] for name in ("feature", "role", "site", "response", "unit")}
    for when, row in (("before", old), ("after", new)):
        for name, source in ((when, "effect"), (f"{when}_lower", "lower"), (f"{when}_upper", "upper")):
            out[name] = None if row is None else row[source]
    # Effects in different units (a scale that is shared now) are shown, and not compared.
    out |= {"moved": None, "outside": False}
    if old is not None and new is not None and old["unit"] == new["unit"]:
        # A feature that is in now and then has a mean outside of its own interval, whose ends are zero.
        now = min(max(new["effect"], new["lower"]), new["upper"])
        out["outside"] = not old["lower"] <= now <= old["upper"]
        if old["sd"] > 0:  # else it was in no draw
            out["moved"] = (new["effect"] - old["effect"]) / old["sd"]
    out["selected_before"] = None if old is None else bool(old["selected"])
    out["selected_after"] = None if new is None else bool(new["selected"])
    return {name: out[name] for name in COLUMNS}


def _selected(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["feature"] for row in rows if row["selected"]))
