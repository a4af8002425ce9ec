"""The report's sections around the results: what was asked, what it tells whom, how to do it again."""

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.privacy.card import level
from intarsia.report import session
from intarsia.report.gather import Material
from intarsia.report.html import Html, el, join, number, short, size, table
from intarsia.report.svg import Scale, figure, label, rect, tip
from intarsia.wire.plain import plural


def asked(m: Material) -> Html:
    n, rows = m.n, m.m
    sites = m.sites
    counts = {s: (m.feature_sites.count(s), m.response_sites.count(s), m.covariate_sites.count(s)) for s in sites}
    holders = sum(1 for s in sites if counts[s][0])
    what = f"{plural(m.P, 'feature')} at {plural(holders, 'site')}"
    words = f"Which of {what} go with {plural(m.Q, 'response')}, and how strongly"
    words += f", in {n:,} subjects that all sites hold?" if n else "?"
    sketch = ""
    if m.gram and n:
        sketch = (
            " No site showed its data: the sites multiplied their columns in shares that tell nothing by "
            "themselves, and the server "
            f"got the exact correlations over {n:,} subjects. The fit is the one that pooled data would give."
        )
    elif rows and n:
        kind = f"{m.study.sketch.kind} " if m.study is not None else ""
        sketch = (
            f" No site showed its data: each sent {rows:,} random mixtures of its {n:,} subjects ({kind}sketch, "
            f"m/n = {rows / n:.3f}), and the server fitted those."
        )
    table_rows: list[list[Any]] = []
    for i, site in enumerate(sites):
        names = [m.responses[q] for q, s in enumerate(m.response_sites) if s == site]
        sent = size(m.site_bytes[site]) if site in m.site_bytes else "–"
        held = size(n * sum(counts[site]) * 8) if n else "–"
        shown = ", ".join(short(name, 30) for name in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        table_rows.append(
            [
                join([el("span", "", class_=f"swatch s{i % 8}", aria_hidden="true"), el("bdi", site)]),
                *([f"{m.listed[site]:,}"] if site in m.listed else []),
                f"{counts[site][0]:,}" if counts[site][0] else "–",
                el("bdi", shown) if shown else "–",
                *([f"{counts[site][2]:,}" if counts[site][2] else "–"] if m.covariate_sites else []),
                held,
                sent,
            ]
        )
    covariates = ["covariates"] if m.covariate_sites else []
    listed = ["subjects"] if m.listed else []
    if m.listed and n and max(m.listed.values()) > n:
        sketch += " Subjects that not all sites hold are left out."
    return join(
        [
            el("p", words, sketch),
            _strip(m, counts),
            table(["site", *listed, "features", "responses", *covariates, "its table", "its sketch"], table_rows) if n else None,
        ]
    )


def _strip(m: Material, counts: Mapping[str, tuple[int, int, int]]) -> Html:
    """The vertical partition: one rectangle per site, as wide as its columns."""
    width, gap = 860.0, 3.0
    weights = [max(1.0, sum(counts[s]) ** 0.6) for s in m.sites]
    x = Scale(0, sum(weights), 0, width - gap * max(0, len(weights) - 1))
    parts, start, left = [], 0.0, 0.0
    for i, (site, weight) in enumerate(zip(m.sites, weights)):
        w = x(start + weight) - x(start)
        has = ", ".join(plural(count, thing) for count, thing in zip(counts[site], ("feature", "response", "covariate")) if count)
        parts.append(rect(left, 0, w, 46, f"site s{i % 8}", tip(f"{site}: {has}"), rx="3"))
        if w > 60:
            parts.append(label(left + 10, 20, short(site, max(4, int(w / 9))), "inlay"))
            if w > 6 * len(has):
                parts.append(label(left + 10, 36, has, "inlay small"))
        start, left = start + weight, left + w + gap
    words = "; ".join(f"{s}: {counts[s][0]} features, {counts[s][1]} responses, {counts[s][2]} covariates" for s in m.sites)
    return figure(width, 46, *parts, name=f"Who brought what. {words}", class_="chart wide strip")


def privacy(m: Material) -> Html:
    card = m.card
    if card is None:
        return el("p", "There is no privacy card: the posterior was made without a study, or its sketches are not at hand.")
    info, attacks, sketch = card["information"], card["attacks"], card["sketch"]
    bits = info["phi_secret_bits"]
    per_subject = _range(info["phi_secret_bits_per_subject"])
    private = card.get("differential_privacy")
    if private is None:
        formal = "None. No noise was added, so no bound holds against someone with other knowledge of a person."
    else:
        server, insider = private["against_server"], private["against_a_party_that_knows_phi"]
        formal = (
            f"Against the server ε = {server['epsilon']:g}, δ = {server['delta']:g}. Against a party that knows Φ: "
            f"μ = {_number(insider['mu'])}, ε = {_number(insider['epsilon'])} at the same δ. "
            f"Neighbours: {private['neighbours']}. Holds if {private['holds_if']}."
        )
    sees = card["parties"]
    rows: list[list[Any]] = [
        ["The server receives", sees["server_receives"]],
        ["The server never receives", sees["server_never_receives"]],
        ["Know the mixing matrix Φ", sees["know_phi"]],
        *([] if m.gram else [["Rows per subject", f"m/n = {sketch['m']:,}/{sketch['n']:,} = {sketch['m'] / sketch['n']:.3f}"]]),
        [
            "“Was this person in the study?” (AUC)",
            f"{_number(attacks['membership_auc'])} for an attacker who has the person's whole row (0.5 is a coin, 1 is certain)",
        ],
        ["If Φ becomes known", info["phi_known"]],
        [
            "Correlations between columns",
            f"known to the server to ± {_number(attacks['correlations_known_to'])}: that is the aim",
        ],
        ["Differential privacy", formal],
        *_site_facts(card),
    ]
    detail: list[list[Any]] = [
        [
            "Mutual information, Φ secret",
            f"{_range([bits['lower'], bits['upper']])} bits; {per_subject} bits per subject ({info['assumes']}). How much the "
            "sketch and the data have in common: an average over all people, a guarantee to none.",
        ],
        [
            "A value guessed with Φ (R²)",
            f"{_number(attacks['known_phi_r2'])}: share of a continuous column's variance that somebody who knows Φ reads.",
        ],
        [
            "Rows known, others guessed (R²)",
            f"{_number(attacks['known_rows_r2'])}: how well somebody who knows a person's values in all other columns guesses "
            "the value in one more, Φ secret.",
        ],
    ]
    return join(
        [
            el("p", el("strong", card["in_one_sentence"]), class_=f"verdict {level(card)}"),
            el(
                "p",
                "Computed by the server from the study's sizes. Each site has its own signed card for its own columns.",
                class_="note",
            ),
            table([], rows, class_="plain facts"),
            None
            if m.gram
            else el("details", el("summary", "In bits, and if attackers know more"), table([], detail, class_="plain facts")),
            el("details", el("summary", "What is not claimed"), el("ul", *(el("li", line) for line in card["not_claimed"]))),
        ]
    )


def _site_facts(card: Mapping[str, Any]) -> list[list[Any]]:
    """What the sites' own cards add, where the report was given them: values filled in, columns a leaked key would expose."""
    rows: list[list[Any]] = []
    for site in card.get("sites", ()):
        filled = site.get("imputed") or {}
        each = ", ".join(f"{name} {count:,}" for name, count in list(filled.items())[:8])
        each += f" and {len(filled) - 8} more columns" if len(filled) > 8 else ""
        total = f"{plural(sum(filled.values()), 'missing value')} in {plural(len(filled), 'column')}"
        told = [f"{total} filled ({each})"] if filled else []
        exposed = site["exposed_columns"]
        told += (
            [f"a leaked key would expose {', '.join(exposed[:8])}" + (" and more" if len(exposed) > 8 else "")] if exposed else []
        )
        rows.append([str(site["site"]), "; ".join(told) or "no missing values, no exposed columns"])
    return rows


def _range(ends: Sequence[Any]) -> str:
    """Bounds, or the one number when they are the same."""
    return " to ".join(dict.fromkeys(_number(v) for v in ends))


def _number(value: Any) -> str:
    if value == "infinite":
        return "∞"
    return number(float(value), 3) if isinstance(value, int | float) else str(value)


def reproduce(m: Material, command: str | None) -> Html:
    rows: list[list[Any]] = []
    s = m.study
    if s is not None:
        f = s.fit
        rank = "as many as responses" if f.rank is None else str(f.rank)
        drawn = f"{m.posterior.draws.draws:,} draws" + (" (it stops when converged)" if f.until == "converged" else "")
        warmup, thin = (m.attrs.get(name, default) for name, default in (("warmup", f.warmup), ("thin", f.thin)))
        rows += [
            ["Study, run", join([el("bdi", s.id), ", ", el("code", s.run)])],
            ["Study hash", el("code", s.hash)],
            ["Model", f"{_prior(f, rank)}; {f.noise} noise; likelihood power {f.power:g}"],
            [
                "Sampler",
                f"{f.chains} chains × ({'' if warmup is None else f'{warmup:,} sweeps of '}warm-up + {drawn}), "
                f"{'' if thin in (None, 1) else f'one sweep in {thin} kept, '}seed {f.seed}",
            ],
            ["Selection", f"{f.select} at {f.fdr:g}"],
            ["Alignment", f"{s.alignment.mode}; ids compared after {', '.join(s.alignment.canonical) or 'nothing'}"],
            ["Gram matrix", "exact, by secure multiplication between the sites"]
            if m.gram
            else ["Sketch", f"{s.sketch.kind}, m = {s.sketch.m}, values leave as {s.sketch.precision}"],
        ]
    else:
        model = m.attrs.get("model")
        if isinstance(model, dict):
            rows.append(["Model", ", ".join(f"{k} {v}" for k, v in model.items())])
        for key in ("warmup", "thin", "seed"):
            if key in m.attrs:
                rows.append([key, str(m.attrs[key])])
    if m.joined is not None:
        rows.append(["Key fingerprint", el("code", m.joined.key_fingerprint)])
    rows += session.rows(m)
    parts: list[Any] = [table([], rows, class_="plain facts")]
    if command:
        parts += [
            el(
                "p",
                "The same sketches, study file and seed give the same draws, bit for bit, on the same processor and libraries:",
            ),
            el("pre", el("code", command), tabindex="0", role="region", aria_label="Commands"),
        ]
    if m.events:
        log = [
            [
                e.get("time", ""),
                e.get("event", ""),
                " ".join(str(e[k]) for k in ("site", "kind", "why", "verdict") if k in e),
            ]
            for e in m.events[-40:]
        ]
        parts.append(el("details", el("summary", "What happened, from the server's log"), table(["time", "event", ""], log)))
    parts += [el("h3", "To cite"), el("ul", *(el("li", work) for work in session.citation()))]
    return join(parts)


def _prior(fit: Any, rank: str) -> str:
    """The prior in words."""
    if fit.prior == "horseshoe":
        return f"rank {rank}; {fit.law} prior, local scales by {fit.local}"
    return f"rank {rank}; sparse prior" + (" on a dense background" if fit.background else "")
