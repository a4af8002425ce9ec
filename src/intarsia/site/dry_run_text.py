"""A dry run as text: the page of `intarsia site check` and of `intarsia.check`, the loudest first."""

from collections.abc import Sequence

from intarsia.site.data.ranges import Range
from intarsia.site.dry_run import ColumnReport, SiteReport, StudyReport
from intarsia.wire.plain import plural, some

MOST_SHOWN = 30  # features of which there is nothing to say, in one line
_FEW = 12  # features that are shown one by one, with their ranges
_MOST_LEVELS_SHOWN = 8


def lines(report: SiteReport, alone: StudyReport | None, show_all: bool = False) -> list[str]:
    """The page of `intarsia site check`, the loudest first."""
    out = columns(report, show_all)
    out += [f"REFUSED: {problem}" for problem in report.problems]
    for study in report.studies:
        how = f"m = {study.m}" if study.m else ""
        what = f"screened{' by a sketch, ' if how else ''}{how}" if study.screened else how or "a Gram matrix"
        out.append(f"study {study.study} ({study.hash[:12]}…), {what}: the gate would {_verdict(study)}")
        out += _findings(study)
    if alone is not None:
        out.append(f"no study accepted yet; of the columns alone the gate would {_verdict(alone)}")
        out += _findings(alone)
    return out


def columns(report: SiteReport, show_all: bool = False) -> list[str]:
    """What would leave, as what."""
    counts = {role: [c for c in report.columns if c.role == role] for role in ("response", "covariate", "feature")}
    out = [
        f"site {report.site}: {plural(report.n, 'subject')}, id column {report.id or 'none'}"
        f"{f' ({report.id_form})' if report.id_form else ''}. A dry run: nothing is sent, booked or kept.",
        *([f"{report.withdrawn:,} more have withdrawn (withdrawn.txt) and take no part."] if report.withdrawn else []),
        "",
    ]
    if report.unlisted:
        out += [
            f"ATTENTION: no list of features is given, so EVERY column without another role leaves as one: "
            f"{plural(len(counts['feature']), 'column')}.",
            'If one of them must stay here, put it under ignore; or name the features: features = ["…"].',
            "",
        ]
    for role, words in (
        ("response", " (outcomes the study explains)"),
        ("covariate", " (adjusted for, not shrunk)"),
        ("feature", ""),
    ):
        of_role = counts[role]
        out.append(plural(len(of_role), role) + words + (":" if of_role else ""))
        out += _alike(of_role, show_all) if role == "feature" else [f"  {_column(c)}" for c in of_role]
    stays = some([f"{report.id or 'no id'} (id)", *report.kept_back], MOST_SHOWN)
    out += [f"stay here: {stays}", ""]
    filled = {c.name: c.missing for c in report.columns if c.missing and c.when_missing in ("mean", "regression")}
    if filled:
        total = sum(filled.values())
        out += [
            f"{plural(total, 'missing value')} in {plural(len(filled), 'column')} will be filled; the counts go on the card, "
            "and into a report that is given the card (--cards).",
            "",
        ]
    return out


def _verdict(study: StudyReport) -> str:
    if study.refused:
        return "REFUSE"
    return "let it pass, with warnings" if study.warnings else "let it pass"


def _findings(study: StudyReport) -> list[str]:
    out = [f"  REFUSED  {text}" for text in study.refused]
    out += [f"  warning  {text}" for text in study.warnings]
    if study.refused and study.largest_m is not None:
        out.append(f"  remedy   {passes(study)}")
    out += [f"  fine     {text}" for text in study.notes]
    return out + [f"  later    {text}" for text in study.predictions]


def passes(study: StudyReport) -> str:
    if study.largest_m:
        return f"m = {study.largest_m:,} is the largest that would pass here, as far as was tried"
    return "no smaller m passes either: what is refused does not rest on m alone"


def _alike(columns: Sequence[ColumnReport], show_all: bool) -> list[str]:
    """Features of which the same is to be said in one line; those of which there is nothing to say in the first."""
    if len(columns) <= _FEW or show_all:
        return [f"  {_column(c)}" for c in columns]
    same: dict[str, list[ColumnReport]] = {"": []}
    for column in columns:
        same.setdefault(_about(column, counted=False), []).append(column)
    out = []
    for said, alike in same.items():
        if len(alike) == 1:
            out.append(f"  {_column(alike[0])}")
            continue
        names = [f"{c.name} ({c.missing:,})" if c.missing else c.name for c in alike]
        shown = some(names, MOST_SHOWN, rest=" (--all lists them)")
        about = f"{said} ({len(names):,} columns): " if said else ""
        out += [f"  {about}{shown}"] if names else []
    return out


def _column(column: ColumnReport) -> str:
    about = "; ".join(part for part in (_about(column), in_words(column.range)) if part)
    return f"{column.name}; {about}" if about else column.name


def in_words(found: Range | None) -> str:
    """The values of a column of numbers, so that one in other units shows."""
    return "" if found is None else f"{found.least:.4g} to {found.most:.4g}, median {found.median:.4g}"


def _about(column: ColumnReport, counted: bool = True) -> str:
    """What is to be said about a column; `counted`: how many values are missing too."""
    parts = []
    if column.levels:
        shown = [f"{level} (reference)" if level == column.reference else level for level in column.levels[:_MOST_LEVELS_SHOWN]]
        more = f", … {len(column.levels)} in all" if len(column.levels) > _MOST_LEVELS_SHOWN else ""
        parts.append(f"categories {', '.join(shown)}{more}")
        if column.reference is None and column.role != "response":
            parts.append("one indicator each")
    if column.missing:
        done = {"error": "REFUSED", "mean": "put at the mean", "regression": "predicted from the other columns here"}
        done["union"] = "these subjects count as lacking it"
        how_many = f"{column.missing:,} missing" if counted else "missing (how many in brackets)"
        parts.append(f"{how_many}: {done[column.when_missing]}")
    if column.note:
        parts.append(column.note)
    return "; ".join(parts)
