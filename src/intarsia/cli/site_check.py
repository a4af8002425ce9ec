"""`intarsia site check`: what would leave this site, and as what. A dry run: nothing is sent, booked or kept."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.cli.accepted import HELP, accepted
from intarsia.cli.show import emit, fitted
from intarsia.errors import PrivacyError
from intarsia.wire.plain import one_line, plural, some

if TYPE_CHECKING:
    from intarsia.site.dry_run import ColumnReport, SiteReport, StudyReport
    from intarsia.wire.study import Study

EXIT_REFUSED = 6
_MOST_SHOWN = 30
_MOST_LEVELS_SHOWN = 8


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--study", help=f"{HELP} (default: all)")
    parser.add_argument("--all", action="store_true", help=f"list every column, not the first {_MOST_SHOWN} features")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    from intarsia.privacy.policy import Policy
    from intarsia.site.dry_run import check_site, columns_alone
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(args.dir)
    wanted = accepted(args.dir, args.study)
    report = check_site(site_folder, wanted)
    alone = None
    if not wanted and not report.problems:
        alone = columns_alone(site_folder.site().table(), Policy().tightened(site_folder.settings["policy"]))
    data = report.as_dict() | {"columns_alone": None if alone is None else {"refused": alone.refused, "warnings": alone.warnings}}
    emit(args, data, list(lines(report, alone, show_all=args.all)))
    return EXIT_REFUSED if report.refused or (alone is not None and alone.refused) else 0


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask before the first sketch of a study (for scripts)")


def ask(folder: Path, studies: "Sequence[Study]", yes: bool) -> None:
    """Show what would leave and let a person say yes, once per study (a repeated sketch is the same bytes); scripts say --yes."""
    from intarsia.site.dry_run import check_site
    from intarsia.site.site_folder import SiteFolder

    if yes:
        return
    site_folder = SiteFolder.load(folder)
    site = site_folder.site()
    new = [study for study in studies if site.run_store(study).get("sketch") is None]
    if not new:
        return
    names = ", ".join(study.id for study in new)
    if not sys.stdin.isatty():
        raise PrivacyError(
            f"The first sketch of {names} needs a yes, and there is no terminal to ask on. Look at what would leave with "
            f"`intarsia site check {folder}`, then give --yes."
        )
    print(fitted("\n".join(lines(check_site(site_folder, new), None)), sys.stdout))
    said = input(f"\nLet the sketch of {names} leave this site? Type yes: ")
    if said.strip().lower() != "yes":
        raise PrivacyError("Not confirmed: nothing was sketched and nothing leaves. Run it again when you have decided.")


def found_before(raw: bytes | None) -> list[str]:
    """What the gate found before the sketch was made, from the run's own record."""
    if raw is None:
        return []
    findings = json.loads(raw)["findings"]
    shown = {"refuse": "REFUSED", "warn": "warning", "overridden": "overridden"}
    out = [f"  {shown[f['level']]:<10} {one_line(f['text'])}" for f in findings if f["level"] in shown]
    return ["the privacy check found:", *out] if out else ["the privacy check found nothing to warn of"]


def filled_in(raw: bytes | None) -> list[str]:
    """How many values were filled before the sketch was made, from the site's own card of the run; nothing where none was."""
    found = {} if raw is None else json.loads(raw)
    filled = found.get("card", found).get("imputed") or {}
    if not filled:
        return []
    total = sum(filled.values())
    return [f"{plural(total, 'missing value')} in {plural(len(filled), 'column')} filled; the card has the count of each column"]


def lines(report: "SiteReport", alone: "StudyReport | None", show_all: bool = False) -> "list[str]":
    """The page as text, the loudest first."""
    counts = {role: [c for c in report.columns if c.role == role] for role in ("response", "covariate", "feature")}
    out = [
        f"site {report.site}: {plural(report.n, 'subject')}, id column {report.id or 'none'}"
        f"{f' ({report.id_form})' if report.id_form else ''}. A dry run: nothing is sent, booked or kept.",
        *([f"{report.withdrawn:,} more have withdrawn (withdrawn.txt) and take no part."] if report.withdrawn else []),
        "",
    ]
    if report.unlisted:
        out += [
            f"ATTENTION: site.toml has no list of features, so EVERY column without another role leaves as one: "
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
    stays = some([f"{report.id or 'no id'} (id)", *report.kept_back], _MOST_SHOWN)
    out += [f"stay here: {stays}", ""]
    filled = {c.name: c.missing for c in report.columns if c.missing and c.when_missing in ("mean", "regression")}
    if filled:
        total = sum(filled.values())
        out += [
            f"{plural(total, 'missing value')} in {plural(len(filled), 'column')} will be filled; the counts go on the card, "
            "and into a report that is given the card (--cards).",
            "",
        ]
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


def _verdict(study: "StudyReport") -> str:
    if study.refused:
        return "REFUSE"
    return "let it pass, with warnings" if study.warnings else "let it pass"


def _findings(study: "StudyReport") -> list[str]:
    out = [f"  REFUSED  {text}" for text in study.refused]
    out += [f"  warning  {text}" for text in study.warnings]
    out += [f"  fine     {text}" for text in study.notes]
    return out + [f"  later    {text}" for text in study.predictions]


def _alike(columns: "Sequence[ColumnReport]", show_all: bool) -> list[str]:
    """Features of which the same is to be said in one line; those of which there is nothing to say in the first."""
    same: dict[str, list[ColumnReport]] = {"": []}
    for column in columns:
        same.setdefault(_about(column, counted=False), []).append(column)
    out = []
    for said, alike in same.items():
        if len(alike) == 1:
            out.append(f"  {_column(alike[0])}")
            continue
        names = [f"{c.name} ({c.missing:,})" if c.missing else c.name for c in alike]
        shown = some(names, len(names) if show_all else _MOST_SHOWN, rest=" (--all lists them)")
        about = f"{said} ({len(names):,} columns): " if said else ""
        out += [f"  {about}{shown}"] if names else []
    return out


def _column(column: "ColumnReport") -> str:
    about = _about(column)
    return f"{column.name}; {about}" if about else column.name


def _about(column: "ColumnReport", counted: bool = True) -> str:
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
