"""`intarsia demo`: a federated study of three simulated hospitals, from tables to report."""

import argparse
from pathlib import Path
from typing import Any

from intarsia.cli.show import add_json, emit, table

EPILOG = """examples:
  intarsia demo                                # into ./demo-study, then open demo-study/report.html
  intarsia demo --network --out net-demo       # the same over NVIDIA FLARE with TLS on loopback
  intarsia demo --screened --out pooled-demo   # exact sums in place of a sketch: what pooled tables would find
  intarsia demo --draws 300 --json             # shorter; only the summary, as JSON"""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--out", type=Path, default=Path("demo-study"), help="folder to write (demo-study)")
    parser.add_argument("--network", action="store_true", help="over the federated engine, with certificates and TLS")
    parser.add_argument("--screened", action="store_true", help="no sketch: look at all features, multiply the few that matter")
    parser.add_argument("--people", type=int, help="people all three hospitals know (2000; screened 10000)")
    parser.add_argument("--m", type=int, default=160, help="rows of the sketch (160)")
    parser.add_argument("--draws", type=int, help="draws per chain, and as many for warm-up (at most 500)")
    parser.add_argument(
        "--patience", type=float, default=120.0, metavar="S", help="give up on a hospital that gives no sign for S seconds (120)"
    )
    parser.add_argument("--workers", type=int, help="processes for the sampler")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from importlib import import_module

    from intarsia.demo.processes import Options

    go = import_module("intarsia.demo.network" if args.network else "intarsia.demo.processes").run
    quiet = args.json
    length: dict[str, Any] = {} if args.draws is None else {"draws": args.draws, "warmup": min(500, args.draws)}
    say = (lambda text: None) if quiet else _say
    people = args.people or (10_000 if args.screened else 2000)
    options = Options(people, args.m, length, args.workers, say, screened=args.screened, patience_s=args.patience)
    result = go(args.out, options)
    if not quiet:
        rows = [
            {
                "feature": row["feature"], "site": row["site"], "response": row["response"], "effect": f"{row['effect']:+.2f}",
                "95 % interval": f"{row['lower']:+.2f} to {row['upper']:+.2f}", "truth": f"{row['truth']:+.2f}",
            }
            for row in result["table"]
        ]  # fmt: skip
        print()
        table(
            f"{len(rows)} of {result['features']} features selected (effects in standard deviations)",
            ("feature", "site", "response", "effect", "95 % interval", "truth"),
            rows,
        )
    missed = f"; {result['missed']} true one(s) not found" if result["missed"] else "; none missed"
    lines = [
        "",
        f"{result['right']} of the selected are true, {result['wrong']} {'is' if result['wrong'] == 1 else 'are'} not{missed}. "
        f"{result['seconds']:.0f} s in all.",
        f"Study folder  {result['folder']}",
        f"Open this     {result['report']}",
    ]
    emit(args, result, lines)


def _say(text: str) -> None:
    print(text, flush=True)
