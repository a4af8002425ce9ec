"""`intarsia predict`: joint predictions for new subjects from masked parts; nobody sees another site's part."""

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from intarsia.cli.accepted import HELP
from intarsia.cli.show import add_json, emit
from intarsia.errors import InputError, MessageError
from intarsia.wire.bounded import read_file
from intarsia.wire.plain import plural
from intarsia.wire.steps import most_bytes

EPILOG = """examples, over the network (each site has put a table of new subjects in its folder, predict/STUDY-HASH/june.csv):
  intarsia predict run liver june --server server
by files:
  intarsia predict part clinic june new-clinic.csv -o clinic.part     # every site; send to the server
  intarsia predict sum liver june *.part -o sums                      # the server
  intarsia predict finish clinic june new-clinic.csv sums/clinic.sum -o june.csv   # sites with responses
  intarsia predict part registry june records.sqlite --query new_visits -o registry.part   # new subjects in a database"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    sub = parser.add_subparsers(dest="sub", metavar="ACTION", required=True)
    run = sub.add_parser("run", help="over the network, all sites at once")
    run.add_argument("folder", type=Path, help="the study folder at the server")
    run.add_argument("request", help="a name for this prediction")
    run.add_argument("--server", type=Path, required=True, help="the server's folder")
    run.add_argument("--timeout", type=int, default=600, help="seconds given to each step (default %(default)s)")
    add_json(run)
    run.set_defaults(run=run_run)
    part = sub.add_parser("part", help="at a site: its masked part")
    finish = sub.add_parser("finish", help="at a site with responses: the predictions in its own units")
    for parser_ in (part, finish):
        parser_.add_argument("dir", type=Path, help="the site's folder")
        parser_.add_argument("request", help="the name of this prediction, the same at all sites")
        parser_.add_argument("table", help="the new subjects' table at this site: a file or a database")
        parser_.add_argument("--query", help="of a database: one SELECT, or the name of a table (default: as site.toml has it)")
        parser_.add_argument("--study", help=HELP)
        parser_.add_argument("-o", "--out", type=Path, required=True, help="the file to write")
    part.set_defaults(run=run_part)
    finish.add_argument("sum", type=Path, help="the sum of the other sites' parts, from the server")
    finish.add_argument("--observed", help="a table with what came, by subject: how well yes/no predictions held")
    finish.set_defaults(run=run_finish)
    total = sub.add_parser("sum", help="at the server: add the masked parts")
    total.add_argument("folder", type=Path, help="the study folder")
    total.add_argument("request", help="the name of this prediction")
    total.add_argument("parts", nargs="+", type=Path, help="the parts of all sites")
    total.add_argument("-o", "--out", type=Path, required=True, help="folder for one sum per owner of responses")
    add_json(total)
    total.set_defaults(run=run_sum)


def run_run(args: argparse.Namespace) -> None:
    from intarsia.carriers.flare.engine import Patience
    from intarsia.carriers.flare.network_study import run_prediction

    outcome = run_prediction(args.folder, args.server, args.request, patience=Patience(args.timeout))
    emit(args, outcome, [f"{args.request}: the sites with responses have their predictions"])


def run_part(args: argparse.Namespace) -> None:
    from intarsia.cli.message_files import write_signed
    from intarsia.cli.site import both
    from intarsia.site.answer import answer

    site, study = both(args)
    raw = answer(site, study, "predict", {"request": args.request.encode()}, lambda _study, _request: _source(args))
    write_signed(args.out, site, study, raw)
    told = json.loads(site.run_store(study).need(f"request-{args.request}.told.json", ""))
    for owner, one in told["owners"].items():
        print(
            f"tells {owner} up to {one['with_earlier_fits']:.0f} bits about a subject, all fits together; allowed: {one['of']:g}"
        )


def _source(args: argparse.Namespace) -> Any:
    from intarsia.site.data.open import Queried

    return args.table if args.query is None else Queried(args.table, args.query)


def run_finish(args: argparse.Namespace) -> None:
    from intarsia.cli.site import both
    from intarsia.site.answer import answer

    site, study = both(args)
    payload = {"request": args.request.encode(), "sum": read_file(args.sum, most_bytes("finish"))}
    answer(site, study, "finish", payload, lambda _study, _request: _source(args))
    prediction = site.predictions[study.hash, args.request]
    prediction.save(args.out)
    args.out.chmod(0o600)  # it names people
    print(f"{plural(len(prediction.mean), 'subject')} × {plural(len(prediction.responses), 'response')} in {args.out}")
    if args.observed is not None:
        from intarsia.site.observed import observed

        for response, found in prediction.scores(observed(site, study, args.observed, prediction.ids)).items():
            print(
                f"{response}: AUC {found['auc']:.3f}, Brier score {found['brier']:.4f}; calibration: intercept "
                f"{found['intercept']:.2f} (0 is perfect), slope {found['slope']:.2f} (1 is perfect; below 1: too extreme)"
            )


def run_sum(args: argparse.Namespace) -> None:
    from intarsia.carriers.files import carrier
    from intarsia.server.study.folder import StudyFolder
    from intarsia.server.study.protocol import collect_parts
    from intarsia.wire.container import write
    from intarsia.wire.prediction import PredictionPart

    folder = StudyFolder.open(args.folder)
    for path in args.parts:  # also where the server has all parts and would ask for none
        with contextlib.suppress(MessageError):  # the carrier says what a file that is no part is
            given = PredictionPart.from_bytes(read_file(path)).request
            if given != args.request:
                raise InputError(f"{path.name} belongs to prediction {given!r}; expected parts of {args.request!r}.")
    with folder.locked():
        sums = collect_parts(folder, args.request, carrier(folder.study, args.parts))
    args.out.mkdir(parents=True, exist_ok=True)
    for owner, total in sums.items():
        write(args.out / f"{owner}.sum", total.to_bytes())
    emit(args, {"owners": list(sums), "folder": str(args.out)}, [f"send {args.out / (owner + '.sum')}" for owner in sums])
