"""`intarsia study again`, `join`, `leave` and `changes`: a study that goes on after it has begun (docs/living-study.md)."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from intarsia.cli import kind_options
from intarsia.cli.show import add_json, emit
from intarsia.errors import InputError, StudyError
from intarsia.wire.container import write
from intarsia.wire.plain import one_line
from intarsia.wire.study import REASONS, Study

SENT_ANEW = (
    "Φ is new, because it is made from a key that all sites agree on for one run, and from the cohort. So nothing that was "
    "sent in the earlier run is of use in this one: key agreement, counts, tokens and sketches are sent anew, and no draw or "
    "coefficient of the earlier fit goes into the new one."
)
REUSED = (
    "What every site keeps as it is: its identity and the keys pinned in study.toml, its certificate, site.toml, its table and "
    "its ledger. A pinned key's words need no second comparison as long as they are the same; the words of study.toml do."
)


def register(sub: Any) -> None:
    again = sub.add_parser(
        "again",
        help="the same study with a new run nonce: Φ is used once",
        description="Write the study file of a new run: the same text with a new nonce and the hash of the run it replaces.",
    )
    again.add_argument("--reason", choices=REASONS, default="repeat", help="why there is a new run (default: repeat)")
    again.add_argument("--without", metavar="SITE", help="leave this site out of the roster (comments are not kept)")
    _from_study_to_study(again, run_again)

    join = sub.add_parser(
        "join",
        help="a site joins later: a new run with one site more",
        description="Write the study file of a new run in which one site more takes part, and say what that means.",
    )
    join.add_argument("--site", required=True, metavar="NAME|FILE", help="the new site, by name or by its public file")
    join.add_argument("--features", default="*", metavar="A,B", help="its features (default: *)")
    join.add_argument("--responses", default="", metavar="A,B", help="responses it brings")
    join.add_argument("--covariates", default="", metavar="A,B", help="columns of it to adjust for")
    join.add_argument("--kind", action="append", default=[], metavar="RESPONSE=KIND,…", help=kind_options.HELP)
    _from_study_to_study(join, run_join)

    leave = sub.add_parser(
        "leave",
        help="a site left after it had sent: delete its messages, fit again without it, say what changed",
        description="Take a site out of a study whose sites have all sent. The site itself makes the notice, with `intarsia "
        "site leave`; nobody else can. Its messages are deleted here, its columns leave the fit, and the fit so far is kept as "
        "superseded. Then hand out the new coefficients as before: each site checks the notice itself.",
    )
    leave.add_argument("folder", type=Path, help="the study folder at the server")
    leave.add_argument("notice", type=Path, help="the file that `intarsia site leave` wrote")
    leave.add_argument("--workers", type=int, help="processes for the sampler")
    add_json(leave)
    leave.set_defaults(run=run_leave)

    changes = sub.add_parser(
        "changes",
        help="a fit beside the one it replaces: who left or joined, what is selected, every effect side by side",
        description="Of a study that a site left: this fit beside the superseded one. With --before: beside the fit of the run "
        "that this one replaces. Kept in the study folder, where `intarsia report` finds it.",
    )
    changes.add_argument("folder", type=Path, help="the study folder at the server")
    changes.add_argument("--before", type=Path, help="the study folder of the run that this one replaces")
    changes.add_argument("-o", "--out", type=Path, help="write the table too: .csv, .xlsx, .tex, .md, .jsonl")
    add_json(changes)
    changes.set_defaults(run=run_changes)


def _from_study_to_study(command: Any, run: Callable[..., None]) -> None:
    """A command that reads the study file of a run and writes that of another."""
    command.add_argument("path", type=Path, help="study.toml of the run so far")
    command.add_argument("-o", "--out", type=Path, required=True, help="the file to write")
    command.set_defaults(run=run)


def write_new(path: Path, text: str) -> None:
    """A study file that does not exist yet."""
    if path.exists():
        raise InputError(f"{path} exists already; it is not overwritten.")
    write(path, text.encode())


def run_again(args: argparse.Namespace) -> None:
    from intarsia.server.study.toml_text import dump
    from intarsia.wire.next_run import next_run, without_site

    if args.out.exists():
        raise InputError(f"{args.out} exists already; it is not overwritten.")
    if args.without is not None:
        study = without_site(Study.load(args.path), args.without)
        text = dump(study)
    else:
        Study.load(args.path)
        text, study = next_run(args.path.read_text(encoding="utf-8"), str(args.path), args.reason)
    write_new(args.out, text)
    print(f"wrote {args.out}, run {study.run[:12]}…, hash {study.hash[:16]}…")
    for line in _costs(study):
        print(line)


def run_join(args: argparse.Namespace) -> None:
    from intarsia.cli.study import site_block, site_of
    from intarsia.wire.next_run import next_run

    if args.out.exists():
        raise InputError(f"{args.out} exists already; it is not overwritten.")
    old, site = Study.load(args.path), site_of(args.site)
    if site["name"] in old.names:
        raise StudyError(
            f"Site {site['name']!r} is on the roster already. For another run of the same sites: intarsia study again"
        )
    if old.agrees and "exchange_key" not in site:
        raise InputError(
            f"The sites of this study agree on the key through the server, so the keys of {site['name']!r} must be pinned too: "
            "give the public file that `intarsia site init` writes there, not a name."
        )
    roles = {role: [label.strip() for label in getattr(args, role).split(",") if label.strip()] for role in _ROLES}
    kinds = kind_options.kinds_by_site(args.kind, {site["name"]: roles["responses"]})
    block = site_block(site, roles, kinds.get(site["name"]))
    try:
        text, study = next_run(args.path.read_text(encoding="utf-8"), str(args.path), "join", block)
    except StudyError as error:
        raise StudyError(f"With {site['name']!r} on the roster the study is not valid: {error}") from None
    write_new(args.out, text)
    print(f"wrote {args.out}, run {study.run[:12]}…, hash {study.hash[:16]}…: {', '.join(study.names)}")
    print("Send it to every site; each reads it and accepts it anew (`intarsia site accept`), the old ones too.")
    for line in (SENT_ANEW, REUSED, *_costs(study)):
        print(line)
    print(
        "The earlier fit stays what it was, an answer without the new site's columns. `intarsia study changes` and `intarsia "
        "site changes` lay the two side by side."
    )


_ROLES = ("features", "responses", "covariates")


def _costs(study: Study) -> list[str]:
    """What a further run costs the subjects, in every site's ledger."""
    if study.sketch.shares:
        return [
            "Exact products of columns over the same people with other values or columns are refused by every site's gate; "
            "those of other people pass if these differ from the earlier in enough (docs/living-study.md)."
        ]
    lines = [
        f"Every subject who takes part again is told of in {study.sketch.m:,} rows more: Σm in every site's ledger grows by "
        f"that, and a site refuses above Σm/n = {study.privacy.max_ratio:g}; `intarsia site check` says what is left."
    ]
    if study.privacy.epsilon is not None:
        lines.append(f"Σε grows by {study.privacy.epsilon:g}; refused above {study.privacy.max_epsilon:g}.")
    return lines


def run_leave(args: argparse.Namespace) -> None:
    from intarsia.cli.fit import found
    from intarsia.cli.message_files import one
    from intarsia.progress import Bar
    from intarsia.server.study.departure import leave
    from intarsia.server.study.folder import StudyFolder
    from intarsia.wire.leave import Leave

    folder = StudyFolder.open(args.folder)
    raw, _ = one(args.notice, Leave.from_bytes, "notice of leaving", step="align")
    with folder.locked(), Bar() as bar:
        notice, summary, changes = leave(folder, raw, workers=args.workers, progress=bar)
    lines = [*found(summary)]
    if changes is not None:
        lines += ["what changed:", *(f"  {one_line(line)}" for line in changes.lines())]
    lines += [
        f"deleted here: everything that {notice.site} had sent (events.jsonl lists it); not undone: whoever looked at it before",
        f"by files, send each site its own file of {args.folder / 'coefficients'} and {folder.file('leave', notice.site)}",
        f"over the network: intarsia deliver send {args.folder} --server SERVER",
    ]
    data = summary | {"left": list(folder.left), "changes": None if changes is None else changes.as_dict()}
    emit(args, data, lines)


def run_changes(args: argparse.Namespace) -> None:
    from intarsia.server.study.comparison import replaced
    from intarsia.server.study.departure import changes as since_departure
    from intarsia.server.study.folder import StudyFolder
    from intarsia.wire.changes import COLUMNS
    from intarsia.wire.table_files import write_table

    folder = StudyFolder.open(args.folder)
    found = since_departure(folder) if args.before is None else replaced(folder, StudyFolder.open(args.before))
    if found is None:
        raise StudyError(
            f"{args.folder} has not been fitted twice. If it replaces another run, say where that is: --before OLDER-FOLDER."
        )
    lines = [one_line(line) for line in found.lines()]
    if args.out is not None:
        write_table(args.out, found.rows, list(COLUMNS))
        lines.append(f"wrote {args.out}: {len(found.rows):,} coefficients side by side")
    emit(args, found.as_dict(), lines)
