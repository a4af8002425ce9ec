"""`intarsia report`: one self-contained page about a fitted study."""

import argparse
import time
from pathlib import Path

from intarsia.cli.show import add_json, emit

EPILOG = """examples:
  intarsia report liver -o liver.html                         # a study folder at the server
  intarsia report posterior.nc -o report.html                 # a saved posterior alone (no model checks, no card)
  intarsia report liver -o liver.html --regions rois.csv      # features A--B: draw them in the brain

The page needs no network and no script; open it in any browser, send it, print it."""


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("source", type=Path, help="the study folder, or a posterior.nc")
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="the page to write (report.html)")
    parser.add_argument("--title", help="the page's title (default: the study's)")
    parser.add_argument("--regions", type=Path, help="CSV with code, network, x, y, z (mm) of the regions edges join")
    parser.add_argument("--truth", type=Path, help="for simulations: CSV with feature, response, value")
    parser.add_argument("--top", type=int, default=500, help="list at most so many features (default 500)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from intarsia.report import write

    began = time.perf_counter()
    options = {key: value for key in ("title", "regions", "truth") if (value := getattr(args, key)) is not None}
    if args.source.is_dir():
        options["command"] = f"intarsia fit -o {args.source.name}\nintarsia report {args.source.name} -o {args.out.name}"
    path = write(args.source, args.out, top=args.top, **options)
    size = path.stat().st_size
    data = {"report": str(path), "bytes": size, "seconds": round(time.perf_counter() - began, 2)}
    emit(args, data, [f"wrote {path} ({size / 1e3:,.0f} kB); open it in a browser"])
