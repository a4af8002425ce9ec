"""`intarsia privacy plan | attack | card | ledger | dpia`: what a sketch tells, before and after it leaves."""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from intarsia import files
from intarsia.cli import privacy_attack
from intarsia.cli.show import grid, print_json
from intarsia.errors import InputError, MessageError
from intarsia.wire.bounded import read_file
from intarsia.wire.plain import one_line, plural, some
from intarsia.wire.study_parts import SKETCH_KINDS

_PLAN = """example:
  intarsia privacy plan --n 500 --features 300 --responses 5
  intarsia privacy plan --n 100000 --features 300 --responses 5 --kind gaussian --epsilon 1 --delta 1e-6
  intarsia privacy plan --n 5000 --features 200 --responses 3 --plot plan.png --json

columns of the table, what m buys:
  width         expected width of an interval beside that of pooled data (1 ×)
  finds         chance that an effect of --effect is selected, at a false discovery rate of 5 %
and what it tells:
  bits/subject  mutual information of the sketch and one subject's row if Φ stays secret (∞ when there is no limit)
  AUC           with which someone who holds a person's full row can tell whether the person took part (.5: a guess)
  R² with Φ     how well a party that knows Φ predicts a continuous column
  decodes       rare 0/1 columns, up to this prevalence, are read exactly by a party that knows Φ
  blind         how near someone without the key is to finding Φ (1: it begins to work), for columns of --skewness, --kurtosis
  --json adds `rate`: the paper's bound (QR + R s ln P)/m on the squared error of C in noise variances, up to a constant"""
_CARD = """example:
  intarsia privacy card clinic.card.json                       # check the signature, show the card
  intarsia privacy card clinic.card.json --key <base64> --html clinic.html
  intarsia privacy card --study study.toml --sketch *.sketch --site-card *.card.json --html study.html

A site's own card lies beside its sketch, in the study's folder (card.json, card.html)."""
_LEDGER = """example:
  intarsia privacy ledger site/ledger                           # check the chain, list what left
  intarsia privacy ledger site/ledger --card clinic.card.json   # also: is everything the card saw still there?"""


_DPIA = """example:
  intarsia privacy dpia study.toml --card clinic.card.json -o dpia.md

A draft of a data-protection impact assessment: what study file and cards know is filled in; places for people are marked."""


EFFECT = "the effect that must not be missed: sd of the response for one sd of the feature (default 0.2, 4 %% of the variance)"
LEGEND = (
    "buys   width: intervals beside those of pooled data; finds: chance to select the effect that must not be missed",
    "tells  bits/subject: if Φ stays secret; AUC: whether somebody whose whole row is known took part (0.5: a guess);",
    "       R² with Φ: a subject's value guessed by someone who knows Φ; decodes: yes/no columns up to this prevalence are read",
    "       exactly by someone who knows Φ; blind: finding Φ without the key, which begins to work at 1 (docs/choosing-m.md)",
)


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "\n".join(
        ["examples:", *(text.splitlines()[1] for text in (_PLAN, privacy_attack.EPILOG, _CARD, _LEDGER, _DPIA))]
    )
    commands = parser.add_subparsers(dest="privacy_command", metavar="WHAT", required=True)

    def add(name: str, text: str, epilog: str, run: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
        sub.set_defaults(run=run)
        return sub

    p = add("plan", "the trade of sketch size m against leakage, membership and accuracy; recommends an m", _PLAN, _plan)
    p.add_argument("--n", type=int, required=True, help="subjects")
    p.add_argument("--features", type=int, required=True, help="features of all sites together (P)")
    p.add_argument("--responses", type=int, required=True, help="responses of all sites together (Q)")
    p.add_argument("--nonzero", type=int, help="features expected to matter (s; default a thirtieth, at least 5)")
    p.add_argument("--rank", type=int, help="rank R of the coefficients (default Q)")
    p.add_argument("--effect", type=float, default=0.2, metavar="SD", help=EFFECT)
    p.add_argument("--skewness", type=float, default=1.0, help="of a typical column (default 1; 0: normal)")
    p.add_argument("--kurtosis", type=float, default=1.5, help="excess kurtosis of a typical column (default 1.5; 0: normal)")
    p.add_argument("--kind", choices=SKETCH_KINDS, default="orthonormal", help="law of Φ (default %(default)s)")
    p.add_argument("--m", type=int, nargs="+", help="sizes to tabulate (default: 1 %% of n to n − 1)")
    p.add_argument("--history", type=int, default=0, metavar="M", help="Σm of earlier studies on the same cohort")
    p.add_argument("--epsilon", type=float, help="differential privacy: ε against the server")
    p.add_argument("--delta", type=float, help="differential privacy: δ")
    p.add_argument("--row-bound", type=float, help="public bound on a joint row's length (default √(P+Q))")
    p.add_argument("--plot", metavar="FILE", help="write the trade-off as a picture (png, svg, pdf; needs matplotlib)")

    attack = "attack your own sketch and list the columns by how exposed they are"
    privacy_attack.register(add("attack", attack, privacy_attack.EPILOG, privacy_attack.run))

    c = add("card", "check a signed privacy card and show it, or make the server's card for a study", _CARD, _card)
    c.add_argument("card", nargs="?", help="a site's signed card (JSON)")
    c.add_argument("--study", help="study.toml: make the card of the whole study")
    c.add_argument("--sketch", nargs="+", default=(), help="the sketches of all sites")
    c.add_argument("--site-card", nargs="+", default=(), help="the sites' own cards")
    c.add_argument("--out", metavar="FILE", help="write the study's card")
    c.add_argument("--key", help="the site's signing key as pinned in study.toml (base64)")
    c.add_argument("--html", metavar="FILE", help="write the card as a page")

    g = add("ledger", "check a site's ledger and list what left", _LEDGER, _ledger)
    g.add_argument("folder", help="the ledger's folder")
    g.add_argument("--card", nargs="+", default=(), help="signed cards whose ledger state must still be there")

    d = add("dpia", "begin a data-protection impact assessment from a study file and its cards", _DPIA, _dpia)
    d.add_argument("study", help="study.toml")
    d.add_argument("--card", nargs="+", default=(), help="the sites' signed cards, or the server's card")
    d.add_argument("-o", "--out", metavar="FILE", help="write it there (Markdown; default: print it)")


# --- plan -------------------------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace) -> int:
    from intarsia.privacy.gram_leakage import beside_sketch
    from intarsia.privacy.kinds_of_study import compare
    from intarsia.privacy.plan import Budget, Problem, plan
    from intarsia.privacy.precision import findable

    if (args.epsilon is None) != (args.delta is None):
        raise InputError("State epsilon and delta together, or neither.")
    problem = Problem.expected(args.n, args.features, args.responses, args.nonzero, args.rank)
    problem = replace(problem, effect=args.effect, skewness=args.skewness, kurtosis=args.kurtosis)
    budget = None if args.epsilon is None else Budget(args.epsilon, args.delta, args.row_bound)
    found = plan(problem, kind=args.kind, grid=args.m, history_m=args.history, budget=budget)
    other, ways = beside_sketch(args.n, problem.columns, found.recommended), compare(problem, found)
    if args.plot:
        _plot(found, args.plot)
    if args.json:
        reach = findable(found.recommended, found.features, found.nonzero)
        more = {"gram": asdict(other), "ways": [way.as_dict() for way in ways], "could_find": reach._asdict()}
        return print_json(found.as_dict() | more)
    head = ["m", "Σm/n", "width", f"finds {found.effect:g}", "bits/subject", "AUC", "R² with Φ", "decodes", "blind"]
    private = found.epsilon is not None
    rows = [
        [
            f"{'→ ' if r.m == found.recommended else ''}{r.m}", f"{r.ratio:.3f}", f"{_number(r.interval_ratio)} ×",
            f"{r.power:.0%}", _bits(r), f"{r.membership_auc:.3f}", f"{r.known_phi_r2:.3f}", f"{r.decodable_prevalence:.2%}",
            f"{r.blind:.2f}",
            *([f"{r.noise_variance:.2f}"] if private else []),
        ]
        for r in found.rows
    ]  # fmt: skip
    title = (
        f"{found.kind} sketch of {plural(found.features, 'feature')} and {plural(found.responses, 'response')}, n = {found.n:,}"
    )
    grid(title, [*head, *(["noise variance"] if private else [])], rows)
    print(*LEGEND, sep="\n")
    _bars(found)
    print(f"\nrecommended m = {found.recommended}")
    for reason in found.reasons:
        print(f"  - {reason}")
    reach = findable(found.recommended, found.features, found.nonzero)
    print(f"  - {reach.text}")
    if not private:
        print(f"  - {other.sentence}")
        _ways(ways)
    print(f"  (s = {found.nonzero} features expected to matter, rank {found.rank}; state yours with --nonzero and --rank)")
    return 0


def _ways(ways: Any) -> None:
    """The four kinds of study side by side."""
    from intarsia.privacy.kinds_of_study import EFFECTS, verdict

    def cells(way: Any) -> list[str]:
        if not way.allowed:
            return [way.name, *["–"] * len(EFFECTS), "–", "–"]
        return [way.name, *(f"{p:.0%}" for p in way.power), f"{way.membership_auc:.3f}", f"{way.megabytes:,.1f} MB"]

    head = ["", *(f"finds {effect:g}" for effect in EFFECTS), "AUC", "leaves a site"]
    print()
    grid("four kinds of study: the chance to find an effect of so many sd, and what it costs", head, [cells(way) for way in ways])
    for way in ways:
        print(f"  {way.name}: {'tells ' + way.tells if way.allowed else 'refused, ' + way.why_not}")
    print(f"  {verdict(ways)}")


def _bits(row: Any) -> str:
    low, high = _number(row.lower_bits_per_subject), _number(row.upper_bits_per_subject)
    return high if low == high else f"{low}-{high}"


def _number(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:.3g}"


def _bars(found: Any) -> None:
    """A terminal plot: membership risk falls away from 1 as accuracy is lost."""
    if not sys.stdout.isatty():
        return
    top = max(min(r.interval_ratio, 25.0) for r in found.rows)
    print("\n        m  membership (.5 to 1)      width of intervals (pooled data: 1)")
    for r in found.rows:
        risk, loss = round(40 * (r.membership_auc - 0.5)), round(24 * min(r.interval_ratio, 25.0) / top)
        print(f"{r.m:>9}  {'█' * risk:<24}  {'▒' * loss}{'   ← recommended' if r.m == found.recommended else ''}")


def _plot(found: Any, path: str) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise InputError("A picture needs matplotlib: `pip install 'intarsia[lab]'`.") from None
    m = [r.m for r in found.rows]
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    series: list[tuple[str, list[float], str]] = [
        ("membership AUC", [r.membership_auc for r in found.rows], "tab:red"),
        ("bits per subject (upper bound)", [r.upper_bits_per_subject for r in found.rows], "tab:purple"),
        ("width of intervals (pooled data: 1)", [r.interval_ratio for r in found.rows], "tab:blue"),
    ]
    for axis, (label, values, colour) in zip(axes, series):
        axis.plot(m, values, "o-", color=colour)
        axis.axvline(found.recommended, color="0.6", linestyle="--", label=f"recommended m = {found.recommended}")
        axis.set(xlabel="m", title=label, xscale="log")
        axis.legend(frameon=False, fontsize=8)
    figure.suptitle(f"{found.kind} sketch, n = {found.n}, P = {found.features}, Q = {found.responses}")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot write the picture {path}: {error}. Use a name ending in .png, .svg or .pdf.") from None
    plt.close(figure)


# --- card and ledger --------------------------------------------------------------------------------------------


def _dpia(args: argparse.Namespace) -> int:
    from intarsia.privacy.card import card_of
    from intarsia.privacy.dpia import OPEN, assessment
    from intarsia.wire.study import Study

    study = Study.load(args.study)
    cards = [card_of(_read(path), study) for path in args.card]
    try:
        text = assessment(study, cards)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise MessageError("A card lacks what every card of ours says. Ask the site for its card.json again.") from None
    if args.out:
        files.replace(Path(args.out), text.encode())
    if args.json:
        return print_json({"text": text, "open": text.count(OPEN), "out": args.out})
    print(f"wrote {args.out}; {text.count(OPEN)} places are left for people" if args.out else text)
    return 0


def _read(path: str) -> bytes:
    from intarsia.privacy.card import LARGEST_CARD_BYTES

    return read_file(path, LARGEST_CARD_BYTES)


def _formal(bound: dict[str, Any] | None) -> str:
    return "none" if bound is None else f"against the server ε = {bound['epsilon']:g}, δ = {bound['delta']:g}"


def _study_card(args: argparse.Namespace) -> dict[str, Any]:
    """The server's card, from the sketches it holds and the cards the sites gave it."""
    from intarsia.privacy.card import card_of, study_card
    from intarsia.wire.messages import Sketch, join
    from intarsia.wire.study import Study

    study, joined = Study.load(args.study), join([Sketch.load(path) for path in args.sketch])
    if joined.study_hash != study.hash:
        raise InputError("The sketches belong to another study file or run than --study.")
    cards = [card_of(_read(path), study) for path in args.site_card]
    card = study_card(study, n=joined.n, columns=joined.columns, key_fingerprint=joined.key_fingerprint, site_cards=cards)
    if args.out:
        files.replace(Path(args.out), json.dumps(card, indent=1, ensure_ascii=False).encode())
    return card


def _card(args: argparse.Namespace) -> int:
    from intarsia.privacy.card import verify
    from intarsia.privacy.card_page import page

    if bool(args.card) == bool(args.study):
        raise InputError("Give a site's card to check, or --study and --sketch to make the study's card.")
    if args.study:
        card, signer = _study_card(args), None
    else:
        text = _read(args.card)
        card = verify(text, args.key)
        signer = args.key or str(json.loads(text)["signing_key"])
    if args.html:
        files.replace(Path(args.html), page(card, signer).encode())
    if args.json:
        return print_json(card)
    sketch, attacks, bits = card["sketch"], card["attacks"], card["information"]["phi_secret_bits"]
    known = "holds under the pinned key" if args.key else "holds under the key it names: compare it with study.toml"
    rows = [
        ["study, run", f"{card['study']['id']}, {card['study']['run']}"],
        ["made by", card["made_by"]],
        ["signature", known if signer else "none: made here"],
        ["n, m, kind", f"{sketch['n']}, {sketch['m']}, {sketch['kind']}"],
        ["bits, Φ secret", " to ".join(dict.fromkeys(_short(bits[end]) for end in ("lower", "upper")))],
        ["Φ known", card["information"]["phi_known"]],
        ["membership AUC", _short(attacks["membership_auc"])],
        ["exposed columns", _exposed(card)],
        ["overrides", _overrides(card)],
        ["differential privacy", _formal((card["differential_privacy"] or {}).get("against_server"))],
    ]
    print(one_line(str(card["in_one_sentence"])))
    grid("privacy card", ["", ""], rows)
    for path in (args.out if args.study else None, args.html):
        if path:
            print(f"wrote {path}")
    return 0


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _exposed(card: Any, most: int = 12) -> str:
    """Exposed columns; of a server's card nothing is known about those of sites whose own cards are not given."""
    from intarsia.privacy.card import exposed_names, without_card

    names, absent = exposed_names(card), without_card(card)
    if absent and not card["sites"]:
        return "unknown: give the sites' cards (--site-card)"
    found = f"{len(names)}: {some(names, most, rest=' (--json)')}" if names else "none found"
    return found + (f"; of {', '.join(absent)} unknown: give all cards (--site-card)" if absent else "")


def _overrides(card: Any) -> str:
    """Exceptions to the gate's rules: of a site's card its own, of the server's those on the sites' cards."""
    from intarsia.privacy.card import without_card

    absent = without_card(card)
    if absent and not card["sites"]:
        return "unknown: give the sites' cards (--site-card)"
    found = [str(o["rule"]) for o in card.get("overrides", ())]
    found += [f"{o['rule']} ({site['site']})" for site in card.get("sites", ()) for o in site["overrides"]]
    return (", ".join(found) or "none") + (f"; of {', '.join(absent)} unknown" if absent else "")


def _ledger(args: argparse.Namespace) -> int:
    from intarsia.privacy.card import verify
    from intarsia.privacy.ledger import Ledger

    if not (Path(args.folder) / "ledger.jsonl").exists():
        raise InputError(f"There is no ledger in {args.folder}.")
    ledger = Ledger(args.folder)
    heads = []
    for path in args.card:
        state = verify(_read(path)).get("ledger")
        if state:
            heads.append((int(state["entries"]), str(state["head"])))
    count = ledger.verify(heads)
    entries = ledger.entries()
    if args.json:
        return print_json({"entries": [vars(e) for e in entries], "head": ledger.head[1], "cards_checked": len(heads)})
    rows = [
        [
            e.time,
            e.state,
            e.study,
            e.run[:8],
            e.cohort[:8],
            str(e.n),
            str(e.m),
            "-" if e.epsilon is None else f"{e.epsilon:g}",
        ]
        for e in entries
    ]
    grid(f"{count} entries; the chain holds", ["time", "state", "study", "run", "cohort", "n", "m", "ε"], rows)
    return 0
