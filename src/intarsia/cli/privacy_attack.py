"""`intarsia privacy attack`: a site's own sketch, attacked as the server and as a party that knows Φ would."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from intarsia.cli.show import grid, print_json
from intarsia.errors import InputError
from intarsia.wire.plain import one_line, some
from intarsia.wire.study_parts import PRECISIONS, SKETCH_KINDS

EPILOG = """examples:
  intarsia privacy attack clinic.csv --id patient --responses hba1c --m 200
  intarsia privacy attack clinic --study study.toml                # a site's folder: columns and rules as its site.toml has them
  intarsia privacy attack records.duckdb --query visits --id patient --m 200
  intarsia privacy attack clinic.csv --id patient --study study.toml --key study.key --site clinic --json

Without --key a throw-away key is used: Φ then has the same law as the real one. Nothing leaves this machine.

columns of the table:
  off mode      subjects who do not have the commonest value
  decoded       exact: every value read by someone who knows Φ; partly: most of the rarer ones
  rare found    how well these subjects are found (F score: 100 % finds all of them and nobody else)
  theory        share of the column's variance that a party that knows Φ gets, for long columns
  one subject   largest share of the column's variance that one subject carries"""


def register(a: argparse.ArgumentParser) -> None:
    a.add_argument("table", help="a site's folder, or a table as site.toml may name one: a file or a database")
    a.add_argument("--query", help="of a database: one SELECT, or the name of a table")
    a.add_argument("--id", help="the id column")
    a.add_argument("--features", nargs="+", help="feature columns or patterns (default: all the others)")
    a.add_argument("--responses", nargs="+", default=(), help="response columns or patterns")
    a.add_argument("--ignore", nargs="+", default=(), help="columns to leave out")
    a.add_argument(
        "--missing", choices=("error", "mean"), default="error", help="what to do with missing values (default %(default)s)"
    )
    a.add_argument("--study", help="study.toml: takes m, kind and precision from it")
    a.add_argument("--site", help="this site's name in study.toml (default: that of the site's folder)")
    a.add_argument("--m", type=int, help="sketch rows, when there is no study file")
    a.add_argument("--kind", choices=SKETCH_KINDS, default="orthonormal", help="law of Φ (default %(default)s)")
    a.add_argument("--precision", choices=PRECISIONS, default="float32", help="of the numbers that leave (default %(default)s)")
    a.add_argument("--key", help="the sites' key file (default: a throw-away key)")
    a.add_argument("--transform", choices=("rank-normal",), help="try the remedy: continuous features as normal scores")
    a.add_argument("--seconds", type=float, default=60.0, help="time for the decoders (default 60)")


def run(args: argparse.Namespace) -> int:
    from intarsia.privacy.facts import Facts
    from intarsia.privacy.gate import facts_table, judge
    from intarsia.privacy.policy import Policy
    from intarsia.site.data.columns import profile
    from intarsia.site.key import SketchKey
    from intarsia.site.rank_normal import as_the_study_asks
    from intarsia.site.self_attack import attack_as_server, attack_columns
    from intarsia.site.sketch.terms import SketchTerms
    from intarsia.wire.study import Study

    table, name = _table(args)
    policy = Policy()
    if args.study:
        study = Study.load(args.study)
        name = args.site or name
        if name not in study.names:
            told = "Which site of the study is it?" if name is None else f"The study has no site {name!r}."
            raise InputError(f"{told} Give --site: {', '.join(study.names)}.")
        policy, terms = Policy.of_study(study.privacy), SketchTerms.of(study, name)
        args.transform = args.transform or study.site(name).transform
    elif args.m is not None:
        terms = SketchTerms("self-attack", os.urandom(8).hex(), args.m, args.kind, args.precision)
    else:
        raise InputError("How large is the sketch? Give --m, or --study with a study file.")
    table = as_the_study_asks(table, args.transform)
    key = SketchKey.load(args.key) if args.key else SketchKey.new()
    phi = terms.design(key, table.n)
    found = profile(table)
    columns, complete = attack_columns(table, phi, found, None, terms.precision, args.seconds)
    varying = [c.name for c in columns if c.distinct < 2]
    if varying:
        raise InputError(f"Columns of one value carry nothing and cannot be attacked: {some(varying)}. Drop them.")
    server = attack_as_server(table, phi, None, terms.precision)
    facts = Facts(
        n=table.n, m=terms.m, kind=cast(Any, terms.kind), columns=len(columns), own_columns=tuple(columns),
        precision=terms.precision, attack_complete=complete, blind_found=server.blind,
    )  # fmt: skip
    verdict = judge(facts, policy)
    rows = facts_table(facts)
    if args.json:
        return print_json({"columns": rows, "server": server.as_dict(), **verdict.as_dict()})
    _column_table(f"{terms.kind} sketch, n = {table.n}, m = {terms.m}: columns most exposed if Φ is known", rows)
    print()
    _server_lines(server, table.n)
    print(f"All this is of the table's {len(columns)} columns alone. In a study the columns of all sites count for membership:")
    print("intarsia site check, once the study is accepted, or intarsia privacy plan with the numbers of all of them.")
    for finding in verdict.findings:
        print(f"{finding.level:>10}  {one_line(finding.text)}")
    return 0


def _table(args: argparse.Namespace) -> tuple[Any, str | None]:
    """The table, and the site's name where it is known: a site's folder says both."""
    from intarsia.site.data.open import Queried
    from intarsia.site.data.table import Table
    from intarsia.site.data.table_rules import TableRules
    from intarsia.site.site_folder import SiteFolder

    if (Path(args.table) / "site.toml").is_file():
        given = [f"--{name}" for name in ("query", "id", "features", "responses", "ignore") if getattr(args, name)]
        given += ["--missing"] if args.missing != "error" else []
        if given:
            raise InputError(
                f"{args.table} is a site's folder, and its site.toml says the columns. Leave out {', '.join(given)}."
            )
        site = SiteFolder.load(Path(args.table)).site()
        return site.table(), site.name
    columns = {"features": args.features, "responses": args.responses, "ignore": args.ignore}
    source = args.table if args.query is None else Queried(args.table, args.query)
    return Table.open(source, id=args.id, **columns, rules=TableRules(missing=args.missing)), None


def _column_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    exposed = [r for r in rows if r["theory_unknown"] is not None or r["duplicate_of"] or r["dominance"] > 0.25]
    shown = [
        [
            r["name"], str(r["distinct"]) if r["distinct"] <= 12 else "> 12", str(r["off_mode"]), r["attacked"] or "-",
            "-" if r["right_rare"] is None else f"{r['right_rare']:.0%}",
            "-" if r["theory_unknown"] is None else f"{1 - r['theory_unknown']:.0%}", f"{r['dominance']:.0%}",
        ]
        for r in exposed[:40]
    ]  # fmt: skip
    head = ["column", "values", "off mode", "decoded", "rare found", "theory", "one subject"]
    grid(title, head, shown or [["none of few values", *["-"] * 6]])
    if len(exposed) > 40:
        print(f"… and {len(exposed) - 40} more (--json lists all)")


def _server_lines(server: Any, n: int) -> None:
    from intarsia.site.self_attack import by_chance

    def value(x: float | None) -> str:
        return "-" if x is None else f"{x:.3f}"

    def count(x: int | None) -> str:
        return "-" if x is None else str(x)

    rows = [
        ["membership AUC, Σ known", value(server.membership_theory), value(server.membership_known_sigma)],
        ["membership AUC, sketch only", "-", value(server.membership_sketch_only)],
        ["known rows R²", value(server.known_rows_theory), value(server.known_rows_measured)],
        ["columns of Φ found from rare columns", "0", count(server.singletons)],
        ["columns of Φ found from pairs of similar columns", "0", count(server.differences)],
        ["columns of Φ found blind (ICA)", "0", count(server.blind)],
    ]
    grid("what the server could do without Φ", ["attack", "expected", "measured"], rows)
    if server.membership_known_sigma is not None:
        outside, off = by_chance(n)
        print(f"The measured AUCs rest on {outside} subjects held back: by chance they are off by up to {off:.2f}.")
    if server.reason:
        print(server.reason)
    print()
