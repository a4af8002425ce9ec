"""`intarsia deliver`: each site's own rows of the coefficients, to the site and into its own units."""

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intarsia.cli.show import add_json, emit
from intarsia.wire.plain import cells

EPILOG = """examples:
  intarsia deliver send liver --server server           # over the network; by files, just send coefficients/SITE.…
  intarsia deliver read clinic.coefficients --local clinic.sketch.local -o clinic.csv"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    sub = parser.add_subparsers(dest="sub", metavar="ACTION", required=True)
    send = sub.add_parser("send", help="hand out coefficients over the network (again, if a site was away)")
    send.add_argument("folder", type=Path, help="the study folder")
    send.add_argument("--server", type=Path, required=True, help="the server's folder")
    send.add_argument("--timeout", type=int, default=600)
    add_json(send)
    send.set_defaults(run=run_send)
    read = sub.add_parser("read", help="at a site: coefficients in the site's own units, as a table")
    read.add_argument("file", type=Path, help="the coefficients file from the server")
    read.add_argument("--local", type=Path, required=True, help="the .local file that `intarsia sketch` left at the site")
    read.add_argument("-o", "--out", type=Path, required=True, help="table to write (.csv or .jsonl)")
    read.add_argument("--model", type=Path, help="also keep the model for later predictions")
    add_json(read)
    read.set_defaults(run=run_read)


def run_send(args: argparse.Namespace) -> None:
    from intarsia.carriers.flare.engine import run_job, session
    from intarsia.carriers.flare.study import alone
    from intarsia.server.study.folder import StudyFolder

    folder = StudyFolder.open(args.folder)
    with alone(folder), session(args.server) as opened:
        outcome = run_job(opened, folder, "deliver", timeout=args.timeout)
    emit(args, outcome, ["delivered to " + ", ".join(folder.study.names)])


def run_read(args: argparse.Namespace) -> None:
    from intarsia.errors import MessageError
    from intarsia.site.local import Local
    from intarsia.site.prediction import SiteModel, Units
    from intarsia.wire.coefficients import Coefficients

    coefficients = Coefficients.from_bytes(args.file)
    local = Local.load(args.local)
    if coefficients.study_hash != local.study_hash or coefficients.site != local.site:
        raise MessageError(f"{args.file} and {args.local} are not of the same site, study and run.")
    model = SiteModel(coefficients, Units.from_local(local))
    rows = model.rows()
    write_rows(args.out, rows)
    if args.model is not None:
        model.save(args.model)
    lines = [f"{len(rows)} coefficients in {args.out}", coefficients.verdict]
    emit(args, {"rows": len(rows), "file": str(args.out), "verdict": coefficients.verdict}, lines)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A table as CSV or JSON lines."""
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(cells(rows[0])) if rows else ["feature"])
            writer.writeheader()
            writer.writerows(cells(row) for row in rows)
