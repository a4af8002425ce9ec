"""The monitor's page: made anew at the server each time; the script only asks for its live part again."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from intarsia.progress import clock
from intarsia.report.assets import LOGO, MONITOR_SCRIPT
from intarsia.report.html import Html, el, fixed, join, size, table
from intarsia.report.page import document

_NAMES = {
    "offer": "keys offered", "share": "key shares", "confirmation": "key confirmed", "announcement": "counts",
    "alignment": "alignment", "sketch": "sketches", "product": "products", "fit": "fit", "deliver": "delivery",
}  # fmt: skip


def page(state: Mapping[str, Any], part: bool = False) -> str:
    """The whole page, or its live part."""
    live = body(state)
    if part:
        return str(live)
    names = state["studies"]
    links = [el("li", el("a", name, href=f"/?study={quote(name)}")) for name in names]
    side = el(
        "nav", el("div", Html(LOGO), "intarsia", class_="logo"), el("ul", *links),
        el("p", el("span", "live", id="link", class_="tag yes js", role="status"), class_="note"),
        el("button", "Light / dark", type="button", id="theme", class_="js"), aria_label="Studies",
    )  # fmt: skip
    # Without a script the page reloads itself.
    reload = Html('<noscript><meta http-equiv="refresh" content="4"></noscript>')
    main = el("main", reload, el("div", live, id="live"), id="main")
    content = el("div", side, main, class_="page monitor")
    return document("intarsia monitor", content, MONITOR_SCRIPT, {"connect-src": "'self'"})


def body(state: Mapping[str, Any]) -> Html:
    study = state["study"]
    if study is None:
        return el(
            "section",
            el("h2", "No study yet"),
            el("p", "The folder holds no study. One appears here as soon as it is begun."),
        )
    if "error" in study:
        return el("section", el("h2", study["name"]), el("p", study["error"], class_="verdict bad"))
    return join([
        el("header", el("p", "Study monitor", class_="kicker"), el("h1", el("bdi", study["title"] or study["id"])),
           el("p", "run ", el("code", study["run"][:12] + "…"), " · hash ", el("code", study["hash"][:12] + "…"), class_="sub")),
        el("section", el("h2", "Steps"), _steps(study)),
        _fit(study),
        el("section", el("h2", "Sites"), _sites(study)),
        el("section", el("h2", "What happened"), table(["time (UTC)", "event", ""], [
            [e["time"], e["event"], e["words"]] for e in reversed(study["events"])
        ]) if study["events"] else el("p", "Nothing yet.")),
    ])  # fmt: skip


def _steps(study: Mapping[str, Any]) -> Html:
    items, waiting = [], True
    for row in study["steps"]:
        name = _NAMES.get(str(row["step"]), str(row["step"]))
        absent = None
        if row["done"]:
            tag, words = "tag yes", "done"
        elif waiting:
            tag, words, waiting = "tag mid", "now", False
            if row["missing"]:  # below the pill, where any number of names has room
                absent = el("small", "waiting for " + ", ".join(row["missing"]), class_="note")
        else:
            tag, words = "tag", "later"
        items.append(el("div", el("b", name), el("span", words, class_=tag), absent, class_="tile"))
    aligned = study["aligned"]
    lost = ", ".join(f"{count:,} of {name}" for name, count in study["left_out"].items())
    without = f" Left out, because not all sites have them: {lost}." if lost else ""
    note = el("p", f"{aligned:,} subjects are at all sites{_rows(study)}.{without}") if aligned is not None else None
    return join([el("div", *items, class_="tiles steps"), note])


def _rows(study: Mapping[str, Any]) -> str:
    return f"; m = {study['m']:,} sketch rows" if study["m"] else ""


def _fit(study: Mapping[str, Any]) -> Html | None:
    fit = study["fit"]
    if fit is not None:
        words = str(fit.get("verdict", ""))
        link = el("a", "Open the report", href=f"/report?study={quote(study['name'])}", class_="button", id="report")
        selected = fit.get("selected", [])
        return el(
            "section", el("h2", "Result"),
            el("p", words[:1].upper() + words[1:], class_="verdict " + ("good" if fit.get("converged") else "bad")),
            el("p", f"{'' if fit.get('converged') else 'Provisional: '}{len(selected):,} of {fit.get('features', 0):,} features "
               "selected. ", link if study["report"] else None),
        )  # fmt: skip
    chains = study["chains"]
    if not any(row["total"] for row in chains):
        return None
    rows = []
    together = all(row["total"] and row["sweeps"] >= row["total"] for row in chains)
    for row in chains:
        share = row["sweeps"] / row["total"] if row["total"] else 0.0
        meter = el("progress", f"{share:.0%}", max=1, value=f"{share:.4f}", aria_label=f"chain {row['chain'] + 1}")
        to = "sweeps to the next look" if study["looks"] else "sweeps"
        rows.append(
            [
                f"chain {row['chain'] + 1}",
                meter,
                f"{share:.0%}",
                f"{row['sweeps']:,} of {row['total']:,} {to}" if row["total"] else "",
                _doing(row, study["looks"], together),
                _left(row, study["looks"]),
            ]
        )
    rhat = next((row["rhat"] for row in chains if row["rhat"] is not None), None)
    words = (
        "R̂ needs a few kept draws of two chains."
        if rhat is None
        else f"Largest R̂ so far, over the watched entries: {fixed(rhat, 3)}."
    )
    if study["looks"]:
        words += " At each look the run ends if it has converged."
    return el("section", el("h2", "Chains"), table([], rows), el("p", words))


def _doing(row: Mapping[str, Any], looks: bool, together: bool) -> str:
    """What a chain does; `together`: all chains have come as far as they were asked to."""
    if row["silent"] is not None:
        return f"no news for {clock(row['silent'])}"
    if not row["total"]:
        return "waiting"
    if row["sweeps"] < row["total"]:
        return "warm-up" if row["sweeps"] < row["warmup"] else "sampling"
    return "done" if not looks else "looking whether it has converged" if together else "ready for the look"


def _left(row: Mapping[str, Any], looks: bool) -> str:
    """The time to the end or, where the run ends by itself, to the next look: how many follow nobody knows."""
    if row["left"] is None or row["sweeps"] >= row["total"]:
        return ""
    time = clock(row["left"]) if row["left"] >= 1 else "less than 1 s"
    return f"next look in {time}" if looks else f"{time} left"


def _sites(study: Mapping[str, Any]) -> Html:
    agreed = any(row["offer"] is not None for row in study["sites"])
    head = ["site", *(["offer", "share", "confirmation"] if agreed else []), "alignment", "sketch", "coefficients"]
    rows = []
    for i, site in enumerate(study["sites"]):
        cells: list[Any] = [join([el("span", "", class_=f"swatch s{i % 8}", aria_hidden="true"), site["name"]])]
        absent = el("span", "–", class_="note")
        for kind in ("offer", "share", "confirmation", "alignment", "sketch") if agreed else ("alignment", "sketch"):
            count = site[kind]
            told = f"✓ {size(count)}" if count and kind in ("alignment", "sketch") else "✓"  # what is about subjects: how much
            cells.append(absent if count is None else el("span", told, class_="tag yes", title="received"))
        cells.append(el("span", "✓", class_="tag yes", title="delivered") if site["delivered"] else absent)
        rows.append(cells)
    return table(head, rows)
