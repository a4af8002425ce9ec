"""`intarsia report`: one self-contained page about a fitted study."""

import argparse
import time
from pathlib import Path
from typing import Any

from intarsia.cli.show import add_json, emit
from intarsia.errors import InputError
from intarsia.wire.plain import plural

EPILOG = """examples:
  intarsia report liver -o liver.html                         # a study folder at the server
  intarsia report posterior.nc -o report.html                 # a saved posterior alone (no model checks, no card)
  intarsia report liver -o liver.html --regions rois.csv      # features A--B: draw them in the brain
  intarsia report liver --table results.xlsx                  # every coefficient: effect, interval, unit, local fdr, set
  intarsia report liver --table table-2.tex --selected        # those of selected features and sets alone
  intarsia report liver --methods methods.md                  # the paragraph on methods for a paper, with references
  intarsia report liver --tripod tripod.md                    # the reporting checklist TRIPOD+AI, filled in where it can be

The page needs no network and no script; open it in any browser, send it, print it."""
METHODS = "write the paragraph on methods for a paper, true for this study (without FILE: print it)"

TRIPOD = "write the TRIPOD+AI checklist, answered where the study's files know (without FILE: print it)"


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("source", type=Path, help="the study folder, or a posterior.nc")
    parser.add_argument("-o", "--out", type=Path, help="the page to write (report.html unless something else is asked for)")
    parser.add_argument("--table", type=Path, help="write all coefficients: .csv, .tsv, .xlsx, .tex, .md or .jsonl")
    parser.add_argument("--selected", action="store_true", help="the table of selected features and sets alone, as for a paper")
    parser.add_argument("--methods", type=Path, nargs="?", const=Path("-"), metavar="FILE", help=METHODS)
    parser.add_argument("--tripod", type=Path, nargs="?", const=Path("-"), metavar="FILE", help=TRIPOD)
    parser.add_argument("--interval", type=float, help="probability of the table's intervals (default: the study's, else 0.95)")
    parser.add_argument("--cards", type=Path, nargs="+", default=(), help="the sites' own cards: what they filled in and expose")
    parser.add_argument("--title", help="the page's title (default: the study's)")
    parser.add_argument("--regions", type=Path, help="CSV with code, network, x, y, z (mm) of the regions edges join")
    parser.add_argument("--truth", type=Path, help="for simulations: CSV with feature, response, value")
    parser.add_argument("--top", type=int, default=500, help="list at most so many features (default 500)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if args.selected and args.table is None:
        raise InputError("--selected is about the table: give --table FILE too.")
    told: dict[str, Any] = {}
    lines: list[str] = []
    if args.table is not None:
        told["table"], lines = str(args.table), [_table(args)]
    for name, place in (("methods", args.methods), ("tripod", args.tripod)):
        if place is not None:
            told[name] = text = _text(args, name, place)
            lines += [text] if place == Path("-") else [f"wrote {place}; read it against what you did"]
    if args.out is not None or not told:
        args.out = args.out or Path("report.html")
        data, line = _page(args)
        told, lines = told | data, [*lines, line]
    emit(args, told, lines)


def _table(args: argparse.Namespace) -> str:
    from intarsia.report.gather import read_fit
    from intarsia.server.assess.effects import effects_of, sets_of
    from intarsia.wire.result_table import COLUMNS, table_columns, table_rows
    from intarsia.wire.table_files import write_table

    posterior, assessment, study = read_fit(args.source)
    probability = args.interval or (0.95 if study is None else study.deliver.interval)
    kinds = None if study is None else study.kinds
    rows = table_rows(table_columns(effects_of(posterior, assessment, probability, kinds)))
    line = f"wrote {args.table}: {plural(len(rows), 'coefficient')}"
    if args.selected:
        picked, sets = [row for row in rows if row["selected"]], sets_of(posterior, assessment, probability, kinds)
        line = f"wrote {args.table}: {plural(len(picked), 'coefficient')} of selected features"
        if sets:
            line += f", and {plural(len(sets), 'common effect')} of sets of interchangeable features"
        rows = [*picked, *({**dict.fromkeys(rows[0]), **row} for row in sets)]
    write_table(args.table, rows, list(COLUMNS))
    return line


def _text(args: argparse.Namespace, name: str, place: Path) -> str:
    from intarsia.report.methods_paragraph import methods
    from intarsia.report.page import collect
    from intarsia.report.tripod import checklist
    from intarsia.wire.container import write

    material = collect(args.source, **({"cards": args.cards} if args.cards else {}))
    text = methods(material) if name == "methods" else checklist(material)
    if place != Path("-"):
        write(place, text.encode())
    return text


def _page(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from intarsia.report import write

    began = time.perf_counter()
    options = {key: value for key in ("title", "regions", "truth") if (value := getattr(args, key)) is not None}
    if args.cards:
        options["cards"] = args.cards
    if args.source.is_dir():
        options["command"] = f"intarsia fit -o {args.source.name}\nintarsia report {args.source.name} -o {args.out.name}"
    path = write(args.source, args.out, top=args.top, **options)
    size = path.stat().st_size
    data = {"report": str(path), "bytes": size, "seconds": round(time.perf_counter() - began, 2)}
    return data, f"wrote {path} ({size / 1e3:,.0f} kB); open it in a browser"
