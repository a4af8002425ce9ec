"""`intarsia sketch`: from a site's table and key to the one file that leaves the site."""

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from intarsia.errors import InputError, StudyError

EXAMPLE = """example:
  intarsia sketch clinic.parquet --study study.toml --key study.key --site clinic --id patient -o clinic.sketch
  intarsia sketch part1.csv part2.csv.gz --study-id trial --run 1 --m 200 --key study.key --site lab --responses y
With --study the site's privacy check comes first and may refuse (exit code 6).
The .sketch file goes to the server. The .local file beside it holds means and scales and stays at the site.
Rows are taken in the order of --order; with --study and --id in that of the ids' keyed tokens; else as they are."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("file", nargs="+", help=".parquet, .csv, .csv.gz, .feather, .arrow or .npy; several make one table")
    add("--key", required=True, help="the sites' key file")
    add("-o", "--out", help="file to write (SITE.sketch)")
    add("--site", help="this site's name (needed when the study has several)")
    terms = parser.add_argument_group("terms of the sketch, from a study or one by one")
    terms.add_argument("--study", help="study.toml")
    terms.add_argument("--study-id", help="without a study.toml: a name all sites use")
    terms.add_argument("--run", dest="run_nonce", help="without a study.toml: what makes this run unlike every other")
    terms.add_argument("--m", type=int, help="without a study.toml: rows of the sketch")
    terms.add_argument("--kind", choices=("orthonormal", "gaussian"), help="without a study.toml (orthonormal)")
    terms.add_argument("--precision", choices=("float64", "float32"), help="without a study.toml (float64)")
    roles = parser.add_argument_group("columns: names or patterns such as 'snp_*', separated by commas")
    roles.add_argument("--id", help="column of subject ids")
    roles.add_argument("--features", help="features (by the study, else all other columns)")
    roles.add_argument("--responses", help="responses (by the study, else none)")
    roles.add_argument("--ignore", help="columns to leave out")
    roles.add_argument("--missing", choices=("error", "mean"), default="error", help="what to do with missing values")
    roles.add_argument("--constant", choices=("error", "drop"), default="error", help="and with constant columns")
    add("--order", help="text file of row numbers (from 0) in the agreed order; rows not listed are left out")
    add("--ledger", help="the site's folder of past sketches: with --study, a run is sketched once and sums are kept")
    add("--opaque-labels", action="store_true", help="send numbered labels in place of column names")
    add("--threads", type=int, help="threads to use (all cores)")
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def run(args: argparse.Namespace) -> None:
    from intarsia.site.data.table import Table
    from intarsia.site.key import SketchKey
    from intarsia.site.sketch.sketch import sketch

    started = time.perf_counter()
    key = SketchKey.load(args.key)
    study = _study(args)
    site, terms, features, responses = _from_study(study, args.site) if study else _from_options(args)
    if args.features is not None:
        features = _names(args.features)
    if args.responses is not None:
        responses = _names(args.responses) or []
    table = Table.open(
        args.file, id=args.id, features=features, responses=responses, ignore=_names(args.ignore) or [],
        missing=args.missing, constant=args.constant,
    )  # fmt: skip
    order, mac = _order(args, table, key, study)
    check = None if study is None else _gate(args, table, key, study, site, order, mac)
    claim = None if check is None else check.reserve()
    with _bar(args.json) as bar:
        if check is not None and check.noise is not None:
            from intarsia.site.sketch.private import private_sketch

            terms = {name: value for name, value in terms.items() if name != "kind"}
            result: Any = private_sketch(table, key, w=check.noise.w, clip=check.clip, order=order, order_mac=mac,
                                         site=site, **terms)  # fmt: skip
        else:
            result = sketch(
                table, key, order=order, order_mac=mac, site=site, labels="opaque" if args.opaque_labels else "names",
                threads=args.threads, progress=bar, **terms,
            )  # fmt: skip
    if check is not None and claim is not None:
        check.ledger.release(claim, result.message.to_bytes())
    out = Path(args.out or f"{site}.sketch")
    local = out.with_name(out.name + ".local")
    result.message.save(out)
    result.local.save(local)
    message = result.message
    facts: dict[str, Any] = {
        "file": str(out), "local": str(local), "site": site, "n": message.n, "m": message.m, "kind": message.kind,
        "features": len(message.features), "responses": len(message.responses), "dropped": list(result.local.dropped),
        "key_fingerprint": message.key_fingerprint, "study_hash": message.study_hash, "bytes": out.stat().st_size,
        "seconds": round(time.perf_counter() - started, 2),
    }  # fmt: skip
    if args.json:
        print(json.dumps(facts))
        return
    print(f"{site}: {facts['n']:,} subjects, {facts['features']:,} features, {facts['responses']:,} responses "
          f"→ {facts['m']} rows, {facts['kind']}, {facts['seconds']} s")  # fmt: skip
    if facts["dropped"]:
        print(f"left out, constant: {', '.join(facts['dropped'][:10])}")
    print(f"send    {out} ({facts['bytes']:,} bytes)\nkeep    {local} (means and scales; never send it)")


def _study(args: argparse.Namespace) -> Any:
    if args.study is None:
        return None
    options = {"--study-id": args.study_id, "--run": args.run_nonce, "--m": args.m, "--kind": args.kind,
               "--precision": args.precision}  # fmt: skip
    if given := [name for name, value in options.items() if value is not None]:
        raise InputError(f"{', '.join(given)} and --study: the study fixes the terms. Give one or the other.")
    from intarsia.wire.study import Study

    return Study.load(args.study)


def _gate(args: argparse.Namespace, table: Any, key: Any, study: Any, site: str, order: Any, mac: str) -> Any:
    """The site's privacy check: refuses by a PrivacyError, warns on the error stream."""
    from intarsia.privacy.ledger import Ledger
    from intarsia.site.preflight import preflight

    if args.ledger is not None and args.id is None:
        raise InputError("The ledger counts sketches of the same subjects: give their --id too.")
    if study.privacy.epsilon is not None and args.opaque_labels:
        raise InputError("A differentially private study names its columns in study.toml; leave --opaque-labels out.")
    ledger = None if args.ledger is None else Ledger(args.ledger)
    check = preflight(table, key, study, site=site, order=order, order_mac=mac, ledger=ledger)
    for finding in check.verdict.check().warnings:
        print(f"warning: {finding.text}", file=sys.stderr)
    if ledger is None:
        print("note: without --ledger, earlier sketches of these subjects are not counted", file=sys.stderr)
    return check


def _from_study(study: Any, site: str | None) -> tuple[str, dict[str, Any], list[str] | None, list[str]]:
    names = [entry.name for entry in study.sites]
    if site is None and len(names) == 1:
        site = names[0]
    if site is None or site not in names:
        raise StudyError(f"Say which site this is: --site {' | '.join(names)}.")
    entry = next(entry for entry in study.sites if entry.name == site)
    terms = {"study": study.id, "run": study.run, "m": study.sketch.m, "kind": study.sketch.kind,
             "precision": study.sketch.precision, "study_hash": study.hash}  # fmt: skip
    return site, terms, list(entry.features), list(entry.responses)


def _from_options(args: argparse.Namespace) -> tuple[str, dict[str, Any], list[str] | None, list[str]]:
    if not (args.study_id and args.run_nonce and args.m):
        raise InputError("Give --study study.toml, or all of --study-id, --run and --m.")
    terms = {"study": args.study_id, "run": args.run_nonce, "m": args.m, "kind": args.kind or "orthonormal",
             "precision": args.precision or "float64"}  # fmt: skip
    return args.site or "site", terms, None, []


def _order(args: argparse.Namespace, table: Any, key: Any, study: Any) -> tuple[Any, str]:
    """The agreed order: row numbers from a file, or the keyed tokens of a strict study's ids."""
    import numpy as np

    if args.order is not None:
        try:
            return np.loadtxt(args.order, dtype=np.int64, ndmin=1), ""
        except (OSError, ValueError):
            raise InputError(f"{args.order} is not a text file of row numbers, one a line, counted from 0.") from None
    if study is None or args.id is None:
        return None, ""
    if study.alignment.mode != "strict":
        raise InputError("This study intersects its cohorts: align first, and give the agreed rows with --order.")
    from intarsia.site.align import tokenise

    tokens = tokenise(table.ids(), key, study)
    return tokens.rows, tokens.mac()


class _bar:
    """A progress bar on a terminal, silence elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self.shown: Any = nullcontext()
        self.task: Any = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self.shown = Progress(console=Console(stderr=True), transient=True)

    def __enter__(self) -> Any:
        progress = self.shown.__enter__()
        if progress is None:
            return None
        self.task = progress.add_task("sketching", total=None)
        return lambda done, total: progress.update(self.task, completed=done, total=total)

    def __exit__(self, *error: Any) -> None:
        self.shown.__exit__(*error)
