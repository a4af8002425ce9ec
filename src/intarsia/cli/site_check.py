"""`intarsia site check`: what would leave this site, and as what. A dry run: nothing is sent, booked or kept."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.cli.accepted import HELP, accepted
from intarsia.cli.show import emit, fitted
from intarsia.errors import InputError, PrivacyError
from intarsia.wire.plain import one_line, plural, printable

if TYPE_CHECKING:
    from intarsia.wire.study import Study

EXIT_REFUSED = 6
MOST_SHOWN = 30  # features of which there is nothing to say, on the page


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--study", help=f"{HELP} (default: all)")
    parser.add_argument("--all", action="store_true", help=f"list every column, not the first {MOST_SHOWN} features")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    from intarsia.privacy.policy import Policy
    from intarsia.site.dry_run import check_site, columns_alone
    from intarsia.site.dry_run_text import lines
    from intarsia.site.odd_cells import odd_cells
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(args.dir)
    wanted = accepted(args.dir, args.study)
    odd = odd_cells(site_folder.site())
    try:
        report = check_site(site_folder.site(), wanted)
    except InputError:
        print("\n".join(printable(f"to mend: {text}") for text in odd), file=sys.stderr)
        raise
    alone = None
    if not wanted and not report.problems:
        alone = columns_alone(site_folder.site().table(), Policy().tightened(site_folder.settings["policy"]))
    data = report.as_dict() | {"columns_alone": None if alone is None else {"refused": alone.refused, "warnings": alone.warnings}}
    refused = report.refused or (alone is not None and bool(alone.refused))
    said = [*lines(report, alone, show_all=args.all), *(f"to mend: {text}" for text in odd)]
    if not refused:
        said.append(_next(args.dir, bool(wanted)))
    emit(args, data | {"to_mend": odd}, said)
    return EXIT_REFUSED if refused else 0


def _next(folder: Path, planned: bool) -> str:
    if planned:
        return f"next: intarsia site next {folder} MAIL (by files), or intarsia site serve {folder} (over the network)"
    return f"next: when study.toml has come: intarsia site accept {folder} study.toml"


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask before the first sketch of a study (for scripts)")


def ask(folder: Path, studies: "Sequence[Study]", yes: bool) -> None:
    """Show what would leave and let a person say yes, once per study (a repeated sketch is the same bytes); scripts say --yes."""
    from intarsia.site.dry_run import check_site
    from intarsia.site.dry_run_text import lines
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
    print(fitted("\n".join(lines(check_site(site, new), None)), sys.stdout))
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
