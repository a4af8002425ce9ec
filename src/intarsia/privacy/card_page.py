"""The privacy card as one HTML page, without scripts or outside resources."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from intarsia.privacy.card import digest, level
from intarsia.privacy.screened_card import steps

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;
max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.4rem;margin-bottom:0}h2{font-size:1.05rem;margin:1.6rem 0 .3rem;border-bottom:1px solid #ccc}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0}
th{font-weight:600;width:15rem}li{margin:.2rem 0}.refuse,.overridden{color:#a00}.warn{color:#945600}.ok{color:#265c26}
.lead{padding:.7rem .95rem;border-left:5px solid;border-radius:6px}.lead.good{background:#e8f3e8;border-color:#265c26}
.lead.close{background:#fdf3e0;border-color:#945600}.lead.bad{background:#fbe9e7;border-color:#a00}
summary{cursor:pointer;color:#555;margin:.4rem 0}
small,.sub{color:#555}code{font-size:.85em;word-break:break-all}@media print{body{margin:0}}"""


def page(card: Mapping[str, Any], signed_by: str | None = None) -> str:
    """The card as one HTML page without scripts or outside resources."""
    study, sketch, info, attacks = card["study"], card["sketch"], card["information"], card["attacks"]
    private, exact, mixed = card.get("differential_privacy"), sketch["kind"] in ("gram", "screened"), bool(sketch["m"])
    within = f"to ± {attacks['correlations_known_to']:.3f}"
    sure = within if not exact else f"of kept columns exactly, the others {within}" if mixed else "exactly"
    rows_m = f", {sketch['m']} (m/n = {sketch['m'] / sketch['n']:.3f})" if mixed else ""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Privacy card: {escape(str(study['id']))}</title><style>{_STYLE}</style>",
        f"<h1>Privacy card: study {escape(str(study['id']))}</h1>",
        f"<p class=sub>Made by {escape(str(card['made_by']))}; run <code>{escape(str(study['run']))}</code></p>",
        f"<p class='lead {level(card)}'><strong>{escape(str(card['in_one_sentence']))}</strong></p>",
        "<h2>Who sees what</h2>",
        _table(
            [
                ("Sites (know Φ)" if mixed else "Sites", ", ".join(card["parties"]["sites"])),
                ("The server receives", card["parties"]["server_receives"]),
                ("The server never receives", card["parties"]["server_never_receives"]),
                *([("Parties that work together", card["parties"]["together"])] if exact else []),
            ]
        ),
        f"<h2>The {'screened study' if 'screen' in card else 'Gram matrix' if exact else 'sketch'}</h2>",
        _table(
            [
                ("Subjects n, rows m" if mixed else "Subjects n", f"{sketch['n']}{rows_m}"),
                ("Columns", ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in card["columns"].items())),
                *(_history(card) if mixed else []),
                *[("Subjects listed", ", ".join(f"{k} {v:,}" for k, v in card[key].items()))
                  for key in ("subjects_listed",) if card.get(key)],
                ("Kind, precision", f"{sketch['kind']}, {sketch['precision']}"),
                *steps(card),
            ]
        ),
        "<h2>What it tells</h2>",
        _table(
            [
                ("Membership AUC", f"{_number(attacks['membership_auc'])} (0.5 is a guess, 1 is certain), for somebody who "
                 f"has the person's complete record{_most_exposed(card)}"),
                *([("Columns per subject", _number(attacks["columns_per_subject"]))] if exact else []),
                *([("If Φ is known", info["phi_known"])] if mixed else []),
                *_blind(card),
                ("Correlations", f"the server gets each {sure}: that is the aim"),
            ]
        ),
        "" if exact else _in_bits(card),
        "<h2>Differential privacy</h2>",
        "<p>None: no noise was added.</p>" if private is None else _private_table(private),
    ]  # fmt: skip
    if card.get("imputed"):
        rows = [(name, f"{count:,} missing values filled") for name, count in card["imputed"].items()]
        parts += ["<h2>Values that were filled</h2>", _table(rows)]
    if card.get("exposed_columns"):
        rows = [(e["name"], _exposure(e)) for e in card["exposed_columns"]]
        parts += ["<h2>Columns a leaked key would expose</h2>", _table(rows)]
    if card.get("sites"):
        rows = [(str(s["site"]), _site_line(s)) for s in card["sites"]]
        parts += ["<h2>The sites' own cards</h2>", _table(rows)]
    if card.get("findings"):
        items = "".join(f"<li class={escape(f['level'])}>{escape(f['text'])}</li>" for f in card["findings"])
        parts += ["<h2>What the gate found</h2><ul>", items, "</ul>"]
    if card.get("overrides"):
        rows = [(o["rule"], o["reason"] + (f" ({', '.join(o['columns'])})" if o["columns"] else "")) for o in card["overrides"]]
        parts += ["<h2>Rules that were overridden</h2>", _table(rows)]
    parts += ["<h2>What is not claimed</h2><ul>", *(f"<li>{escape(t)}</li>" for t in card["not_claimed"]), "</ul>"]
    prints = [
        ("Study hash", study["hash"]),
        ("Key fingerprint", card.get("key_fingerprint", "")),
        ("Card", digest(card)),
    ]
    if card.get("ledger"):
        prints.append(("Ledger", f"{card['ledger']['entries']} entries, head {card['ledger']['head']}"))
    if signed_by:
        prints.append(("Signed by", signed_by))
    lines = "".join(f"<tr><th>{escape(k)}<td><code>{escape(str(v))}</code>" for k, v in prints)
    parts += ["<h2>Fingerprints</h2><table>", lines, "</table></html>"]
    return "\n".join(parts)


def _most_exposed(card: Mapping[str, Any]) -> str:
    """Of a site's card the person who is most exposed there; of the server's the most exposed at any of its sites."""
    found = [one.get("membership_auc_most_exposed") for one in (card, *card.get("sites", ()))]
    known = [value for value in found if value is not None]
    return f"; that is of the average person, {_number(max(known))} of the one who is most exposed" if known else ""


def _in_bits(card: Mapping[str, Any]) -> str:
    """What only some readers ask for, folded away."""
    info, bits = card["information"], card["information"]["phi_secret_bits"]
    exact = " (exact)" if bits["exact"] else ""
    rows = [
        ("Mutual information, Φ secret",
         f"{_number(bits['lower'])} to {_number(bits['upper'])} bits{exact}; rows taken as Gaussian"),
        ("… for each subject", " to ".join(_number(v) for v in info["phi_secret_bits_per_subject"]) + " bits"),
        ("Known rows R²", _number(card["attacks"]["known_rows_r2"])),
    ]  # fmt: skip
    return (
        "<details><summary>In bits, and for somebody who knows other people's rows</summary>"
        "<p class=sub>Mutual information is how much the sketch and the data have in common: an average over all people, a "
        "guarantee to none. Known rows R² is how well somebody who knows a person's values in all other columns guesses the "
        f"value in one more, Φ secret.</p>{_table(rows)}</details>"
    )


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "<table>" + "".join(f"<tr><th>{escape(str(k))}<td>{escape(str(v))}" for k, v in rows) + "</table>"


def _number(value: Any) -> str:
    return "∞" if value == "infinite" else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _blind(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    value = card.get("blind_danger")
    return (
        [] if value is None else [("Finding Φ without the key", f"{value:.2f} of where it begins to work (1 or more: it works)")]
    )


def _history(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    h = card.get("history")
    return [] if not h else [("Σm over this cohort's history", f"{h['sum_m']} (Σm/n = {h['ratio']:.3f})")]


def _exposure(column: Mapping[str, Any]) -> str:
    if column["attacked"] == "exact":
        return "decoded exactly with the real Φ"
    if column["attacked"] == "partly":
        return f"{column['right_rare']:.0%} of the rarer values decoded"
    return f"by theory {1 - column['theory_unknown']:.0%} of its variance"


def _site_line(site: Mapping[str, Any]) -> str:
    exposed = site["exposed_columns"]
    ratio = f"Σm/n = {site['ratio']:.3f}; " if site.get("sum_m") and isinstance(site["ratio"], int | float) else ""
    overrides = f"; overrides: {', '.join(o['rule'] for o in site['overrides'])}" if site["overrides"] else ""
    count = sum(site.get("imputed", {}).values())
    filled = f"; {count:,} missing values filled in {len(site['imputed'])} columns" if count else ""
    return f"{ratio}{len(exposed)} exposed columns{filled}{overrides}"


def _private_table(private: Mapping[str, Any]) -> str:
    server, insider = private["against_server"], private["against_a_party_that_knows_phi"]
    bounds = "; ".join(f"{k}: B = {v['row_bound']:.4g}, w = {v['w']:.4g}" for k, v in private["sites"].items())
    return _table(
        [
            ("Against the server", f"ε = {server['epsilon']:g}, δ = {server['delta']:g}"),
            (
                "Against a party that knows Φ",
                f"μ = {insider['mu']:.3f}, ε = {insider['epsilon']:.3g} at δ = {insider['delta']:g}",
            ),
            *_all_runs(private),
            ("Neighbours", private["neighbours"]),
            ("Bounds and noise", bounds),
            ("Holds if", private["holds_if"]),
        ]
    )


def _all_runs(private: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "all_runs" not in private:
        return []
    total = private["all_runs"]
    said = (
        "no total: not every run on these people had noise"
        if total is None
        else (f"ε = {total['epsilon']:g}, δ = {total['delta']:g} against the server, by adding up")
    )
    return [("All runs on these people", said)]
