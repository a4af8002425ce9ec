"""`intarsia site leave`, `withdraw`, `correct` and `changes`: a study that goes on after it has begun (docs/living-study.md)."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from intarsia.cli.show import add_json, emit
from intarsia.errors import InputError, StudyError
from intarsia.wire.plain import one_line, plural, some


def register(add: Callable[..., argparse.ArgumentParser]) -> None:
    """`add(name, help, run)` makes a subcommand of `intarsia site`."""
    leave = add("leave", "leave a study after having sent: a signed notice that nobody else can make", run_leave)
    leave.add_argument("-o", "--out", type=Path, required=True, help="where the notice goes; send it to the server's operator")
    add("forget", "forget a study that was given up: its file is put aside, and what has left stays counted", run_forget)
    withdraw = add("withdraw", "subjects withdraw: left out from now on, and what the old messages still reveal", run_withdraw)
    withdraw.add_argument("--subjects", type=Path, required=True, metavar="FILE", help="their ids, one per line")
    withdraw.add_argument("-o", "--out", type=Path, help="also write the study file of a new run without them")
    add_json(withdraw)
    correct = add("correct", "values of the table were corrected: which columns, and the study file of a new run", run_correct)
    correct.add_argument("-o", "--out", type=Path, required=True, help="the study file to write")
    add_json(correct)
    changes = add("changes", "the fit beside the earlier one, every effect side by side in this site's units", run_changes)
    changes.add_argument("-o", "--out", type=Path, help="write the table too: .csv, .xlsx, .tex, .md, .jsonl")
    add_json(changes)


def run_forget(args: argparse.Namespace) -> None:
    """The accepted text alone is put aside: keys, messages and the ledger stay, so that nothing is made twice."""
    from intarsia.cli.accepted import the_one
    from intarsia.site.site_folder import SiteFolder

    study = the_one(args.dir, args.study)
    path = args.dir / "accepted" / f"{study.folder_name}.toml"
    store = SiteFolder.load(args.dir).site().run_store(study)
    sent = store.get("sketch") is not None
    path.rename(path.with_name(f"{path.name}.forgotten"))
    print(f"forgotten: {study.id}-{study.hash[:8]}; this site answers nothing of it any more")
    if sent and store.get("receipt") is None:
        print("its sketch has left and counts as before. To have it taken out of the fit too: accept again, then `site leave`")
    print(f"next: nothing; to take part again: intarsia site accept {args.dir} study.toml")


def run_leave(args: argparse.Namespace) -> None:
    from intarsia.cli.message_files import write_file
    from intarsia.cli.site import both

    site, study = both(args)
    write_file(args.out, site.leave(study))
    for line in (
        f"send {args.out} to the server's operator, who runs: intarsia study leave FOLDER {args.out.name}",
        "From now on this site answers no step of this run. An honest server deletes its messages, and its columns go. "
        "What cannot be taken back: a server or a site that kept a copy still has it; the results so far are known; and "
        "this site's ledger keeps counting the sketch, because it left.",
        "This site's own files of the run stay where they are; delete the run folder when you no longer need the results, but "
        "keep the ledger.",
    ):
        print(line)


def run_withdraw(args: argparse.Namespace) -> None:
    from intarsia.cli.living_study import write_new
    from intarsia.privacy.policy import Policy
    from intarsia.site.site_folder import SiteFolder
    from intarsia.site.site_ledger import FOLDER, open_ledger
    from intarsia.site.withdrawal import FILE, told_before, withdraw
    from intarsia.wire.study import Privacy

    if args.out is not None and args.out.exists():
        raise InputError(f"{args.out} exists already; it is not overwritten.")
    site_folder = SiteFolder.load(args.dir)
    new_text = None if args.out is None else _new_run(args, "withdrawal")
    try:
        ids = args.subjects.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(f"Cannot read {args.subjects}: give a text file with one id per line.") from None
    done = withdraw(args.dir, ids, site_folder.site().whole_table().ids())
    told = []
    if (args.dir / FOLDER / "ledger.jsonl").exists():
        policy = Policy.of_study(Privacy()).tightened(site_folder.settings["policy"])
        told = told_before(args.dir, open_ledger(args.dir), policy)
    lines = [
        f"{plural(done.given, 'id')} given: {done.in_table} are in the table, {done.new} are new on {args.dir / FILE} (never "
        "sent)",
        *_not_here(args, done),
        "they are left out of every later run and prediction of this site, before anything is counted or computed",
        *(told or ["no run that left this site had them in it"]),
        *_elsewhere(args),
    ]
    if new_text is not None and done.in_table:
        write_new(args.out, new_text)
        lines += [f"wrote {args.out}: send it to every site, and run it as the first one", *_allowance(args)]
    elif new_text is not None:
        lines.append(f"{args.out} was not written: a new run would leave nobody of this table out")
    emit(args, {"given": done.given, "in_table": done.in_table, "new": done.new, "told_before": told}, lines)


def _not_here(args: argparse.Namespace, done: Any) -> list[str]:
    """A slip of the pen in an id would leave the person in."""
    absent = done.given - done.in_table
    if not absent:
        return []
    return [
        f"ATTENTION: {plural(absent, 'id')} of those given {'is' if absent == 1 else 'are'} not in the table. If that is a slip "
        f"of the pen, the person is still in: compare with the table, take the wrong line out of {args.dir / 'withdrawn.txt'}, "
        "and give the command again."
    ]


def _allowance(args: argparse.Namespace) -> list[str]:
    """Whether this site's own ledger leaves room for the new run."""
    from intarsia.privacy.policy import Policy
    from intarsia.site.site_folder import SiteFolder
    from intarsia.site.site_ledger import FOLDER, open_ledger
    from intarsia.wire.study import Study

    study, site_folder = Study.load(args.out), SiteFolder.load(args.dir)
    if study.sketch.shares or study.privacy.epsilon is not None or not (args.dir / FOLDER / "ledger.jsonl").exists():
        return []
    ledger, ids = open_ledger(args.dir), site_folder.site().table().ids()
    limit = Policy.of_study(study.privacy).tightened(site_folder.settings["policy"]).max_ratio
    told = ledger.history(ledger.tokens(ids))
    then = (told + study.sketch.m) / len(ids)
    if then <= limit:
        return [f"with it {told + study.sketch.m:,} rows will have left about the same subject (Σm/n = {then:.3f} of {limit:g})"]
    room = max(int(limit * len(ids)) - told, 0)
    return [
        f"ATTENTION: with its m = {study.sketch.m:,} Σm/n would be {then:.3f} here, above {limit:g}, and this site's gate would "
        f"refuse: {told:,} rows have left. There is room for m = {room:,}; change m in {args.out} before you send it."
    ]


def _elsewhere(args: argparse.Namespace) -> list[str]:
    """Who else must leave the subjects out, by how the site's accepted studies align."""
    from intarsia.wire.study import Study

    modes = {Study.load(path).alignment.mode for path in sorted((args.dir / "accepted").glob("*.toml"))}
    words = {
        "intersect": "studies that intersect: it is enough that this site leaves them out; they are in no later cohort",
        "strict": "strict studies: every site must leave them out, or the next run stops with 'not the same subjects'. Tell the "
        "other sites by a channel of your own: no id travels through this software",
        "union": "union studies: it is enough that one site with features leaves them out. If this site brings responses alone, "
        "a site with features must do it",
    }
    return [words[mode] for mode in sorted(modes)]


def run_correct(args: argparse.Namespace) -> None:
    from intarsia.cli.living_study import write_new
    from intarsia.cli.site import both
    from intarsia.site.fingerprint import FILE, Fingerprint
    from intarsia.site.site_ledger import open_ledger

    if args.out.exists():
        raise InputError(f"{args.out} exists already; it is not overwritten.")
    site, study = both(args)
    raw = site.run_store(study).get(FILE)
    if raw is None:
        raise StudyError(f"Site {site.name!r} has not sketched in this run of study {study.id!r}: correct the table and go on.")
    table, ledger, before = site.whole_table(), open_ledger(args.dir), Fingerprint.from_bytes(raw)
    now, gone = before.again(table, ledger)
    if gone:
        raise InputError(
            f"{gone} subjects of that run are not in the table any more, so its columns cannot be compared. If they withdrew, "
            "use `intarsia site withdraw`; else bring the rows back."
        )
    changed = before.changed(now)
    if not changed:
        raise InputError(
            "No column has changed since this run sketched them: there is nothing to correct. Change the table first."
        )
    if study.sketch.shares:
        raise StudyError(
            "Exact sums over a cohort leave once: those of the same people with other values is refused by the "
            "gate, because the difference of the two would show whose value was changed. Write a new study with a sketch, "
            "`intarsia study new`."
        )
    write_new(args.out, _new_run(args, "correction"))
    roles = {
        role: [label for label in changed if label in getattr(table, role)] for role in ("responses", "features", "covariates")
    }
    lines = [
        f"changed since that run: {plural(len(labels), role[:-1])}: {some(labels)}" for role, labels in roles.items() if labels
    ]
    if len(changed) > sum(map(len, roles.values())):
        lines.append("columns of that run that the table has no more: correct site.toml or the table")
    lines += [
        f"wrote {args.out}: send it to every site, and run it as the first one",
        *_allowance(args),
        "the sketch of the old values stays sent: it tells of them what the card of that run says; under another Φ the new one "
        "cannot be subtracted from it",
        "after the new fit: intarsia site changes, which lays both side by side",
    ]
    emit(args, {"changed": list(changed), "file": str(args.out)}, lines)


def _new_run(args: argparse.Namespace, reason: str) -> str:
    """The text of the accepted study as a new run."""
    from intarsia.cli.site import both
    from intarsia.wire.next_run import next_run

    _, study = both(args)
    path = args.dir / "accepted" / f"{study.folder_name}.toml"
    return next_run(path.read_text(encoding="utf-8"), str(path), reason)[0]


def run_changes(args: argparse.Namespace) -> None:
    from intarsia.cli.site import both
    from intarsia.wire.changes import COLUMNS, RESPONSE_COLUMNS
    from intarsia.wire.table_files import write_table

    site, study = both(args)
    found = compared(site, study)
    if found is None:
        raise StudyError(
            f"This site holds one fit of study {study.id!r} only: no site has left this run, and it replaces no run whose "
            "coefficients are here."
        )
    lines = [one_line(line) for line in found.lines()]
    if args.out is not None:
        alone = bool(found.responses) and not found.rows  # without a column that has coefficients
        rows, columns = (found.responses, RESPONSE_COLUMNS) if alone else (found.rows, COLUMNS)
        write_table(args.out, rows, list(columns))
        lines.append(f"wrote {args.out}: {plural(len(rows), 'response' if alone else 'coefficient')} side by side")
    emit(args, found.as_dict(), lines)


def compared(site: Any, study: Any) -> Any:
    """This site's fit beside the earlier one: before a site left, or of the run that this one replaces; None without one."""
    from intarsia.errors import FederationError
    from intarsia.site.departed import left
    from intarsia.wire.changes import compare, compare_responses

    now, before = site.model(study), site.earlier_model(study)
    gone, counts = left(site, study), site.heard(study)
    why = [f"{name} left" + (f" with its {counts[name]['columns']:,} columns" if name in counts else "") for name in gone]
    if gone:
        why.append(f"the fit rests on {', '.join(site.remaining(study))}")
    if len(gone) == len(study.names) - 2 and len(study.names) > 2:
        why.append("two sites take part now: in a prediction the owner of a response sees the other site's part as it is")
    if before is None and study.replaces is not None:
        old = _accepted(site, study.replaces)
        try:
            before = None if old is None else site.model(old)
        except FederationError:
            before = None
        why.append(f"run {study.run[:8]}… replaces an earlier one" + (f", because of {study.reason}" if study.reason else ""))
    if before is None:
        return None
    found = compare(before.rows(), now.rows(), why)
    if before.units.features or now.units.features:
        return found
    return replace(found, responses=compare_responses(before.response_rows(), now.response_rows()))


def _accepted(site: Any, study_hash: str) -> Any:
    from intarsia.errors import StudyError as NotAccepted
    from intarsia.site.site_folder import SiteFolder

    try:
        return None if site.folder is None else SiteFolder.load(site.folder).accepted(study_hash)
    except NotAccepted:
        return None


def what_changed(site: Any, study: Any) -> list[str]:
    """For `site receive`: what is different from an earlier fit; nothing for a study fitted once."""
    found = compared(site, study)
    return [] if found is None else ["what changed:", *(f"  {one_line(line)}" for line in found.lines())]
