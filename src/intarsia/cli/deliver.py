"""`intarsia deliver`: each site's own rows of the coefficients to the site, and the sites' receipts."""

import argparse
from pathlib import Path

from intarsia.cli.show import add_json, emit

EPILOG = """examples:
  intarsia deliver send liver --server server           # over the network; by files, just send coefficients/SITE.…
  intarsia deliver receipts liver clinic.receipt mri.receipt lab.receipt      # what `intarsia site receive` wrote"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    sub = parser.add_subparsers(dest="sub", metavar="ACTION", required=True)
    send = sub.add_parser("send", help="hand out coefficients over the network (again, if a site was away)")
    send.add_argument("folder", type=Path, help="the study folder")
    send.add_argument("--server", type=Path, required=True, help="the server's folder")
    send.add_argument("--timeout", type=int, default=600, help="seconds given to each step (default %(default)s)")
    add_json(send)
    send.set_defaults(run=run_send)
    receipts = sub.add_parser("receipts", help="by files: note the sites' receipts for their coefficients")
    receipts.add_argument("folder", type=Path, help="the study folder")
    receipts.add_argument("files", nargs="+", type=Path, help="the receipts that sites sent back")
    add_json(receipts)
    receipts.set_defaults(run=run_receipts)


def run_send(args: argparse.Namespace) -> None:
    from intarsia.carriers.flare.engine import Patience, run_job, session
    from intarsia.server.study.folder import StudyFolder

    folder = StudyFolder.open(args.folder)
    with folder.locked(), session(args.server) as opened:
        outcome = run_job(opened, folder, "deliver", patience=Patience(args.timeout))
    emit(args, outcome, ["delivered to " + ", ".join(folder.names)])


def run_receipts(args: argparse.Namespace) -> None:
    from intarsia.carriers.files import carrier
    from intarsia.server.study.folder import StudyFolder
    from intarsia.server.study.protocol import deliver

    folder = StudyFolder.open(args.folder)
    with folder.locked():
        deliver(folder, carrier(folder.study, args.files))
    delivered = {"delivered": list(folder.present("receipt"))}
    emit(args, delivered, ["all sites have their coefficients", f"next: intarsia report {args.folder} -o report.html"])
