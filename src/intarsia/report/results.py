"""The report's sections on results: selected features, the map of all coefficients, forests, connections."""

import base64
import csv
import io
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from intarsia.report import brain, charts
from intarsia.report.charts import Interval
from intarsia.report.close_up import sign_key
from intarsia.report.gather import Material
from intarsia.report.html import Html, about, el, fixed, join, scrolled, short, small, table, text
from intarsia.report.language import in_units, named, of_response, several
from intarsia.report.outcomes import kind_of
from intarsia.server.assess.sets import FeatureSet
from intarsia.wire.plain import cell, plural

FORESTS = 12  # responses with a forest of their own
IN_FOREST = 18  # features in one forest
MOST_SETS = 100  # sets listed
SETS_IN_FOREST = 6  # lines of sets in one forest


def interval(m: Material, i: int, q: int, name: str) -> Interval:
    """The i-th shown feature at response q."""
    p = int(m.shown[i])
    low, inner_low, _mid, inner_high, high = (float(v) for v in m.quantiles[:, i, q])
    truth = None if m.truth is None else float(m.truth[p, q])
    strong = bool(m.findings.selected[p])
    said = m.languages[q].words(float(m.mean[p, q]), low, high) if several(m) and truth is None else ""
    return Interval(name, float(m.mean[p, q]), low, high, (inner_low, inner_high), truth, strong, said)


def selected(m: Material) -> Html:
    level = f"{m.probability:.0%}".replace("%", " %")
    listing, records = _features(m, level)
    tools = el(
        "div",
        el(
            "label",
            "Search ",
            el("input", type="search", id="q", placeholder="feature, site, response", autocomplete="off"),
        ),
        el("label", "Show ", el("select", *(el("option", t, value=v) for v, t in _shown_options(m)), id="k")),
        el("span", "", id="count", aria_live="polite"),
        class_="tools js",
    )
    listed, rest = len(m.chosen), len(m.shown) - len(m.chosen)
    note = f"{listed:,} of {m.count:,} selected features are listed. " if listed < m.count else ""
    if rest > 0:
        note += f"Below the selected ones: the {rest:,} with most evidence among those not selected."
    download = el("a", "Download this table (CSV)", href=_csv(records), download="features.csv", class_="button")
    return join([*_in_words(m, level), *sets(m), tools,
                 scrolled(listing, "Features", "scroll tall"),
                 el("p", note, " ", download, class_="note")])  # fmt: skip


def _in_words(m: Material, level: str) -> list[Html]:
    """How many features are selected, by which rule, and what the table's numbers are."""
    s = m.findings
    words: list[Html] = []
    if m.count == 0:
        words.append(
            el("p", el("strong", "No feature is selected."), " At an expected false discovery rate of "
               f"{s.fdr:g} the data do not single out any. The table lists the features with most evidence; their "
               "intervals say what is still possible.")
        )  # fmt: skip
    else:
        rule = "their inclusion probabilities" if s.counted else "how far zero lies outside of their posterior"
        rule = f"a Bayesian false discovery rate, by {rule}" if s.method == "bfdr" else "the paper's two-component mixture"
        whole = " and sets" if s.sets else ""
        words.append(
            el("p", el("strong", f"{m.count:,} of {m.P:,} features"), f" are selected at {s.fdr:g} by {rule}. Of these "
               f"features{whole}, {about(s.expected_fdr * len(s.findings))} are expected to be wrong.")
        )  # fmt: skip
    words.append(
        el("p", f"Effects are posterior means in {of_response(m)} for one standard deviation of the feature, with {level} "
           "credible intervals, at the response where the feature shows most. "
           + ("The bars are in standard deviations, so that they compare. " if m.scales else
              "Only the sites know the units; each reads its own coefficients in them. ")
           + "PIP is the posterior inclusion probability: that the feature matters, for some response. The sign rate (lfsr) is "
           "the probability that the effect has not the sign it shows there." + _of_ends(m) + _of_background(m), class_="note")
    )  # fmt: skip
    return words


def _of_ends(m: Material) -> str:
    """Intervals of effects that are exactly zero in many draws have an end there, which is no bound."""
    if not m.posterior.draws.sparse:
        return ""
    return " “Up to” and “down to”: the other end is zero, because the feature is out in more of the draws than an end allows."


def _of_background(m: Material) -> str:
    """What the column on the background says, where one was fitted."""
    if m.findings.without is None:
        return ""
    return (
        " A dense background takes what rows that are alike share, and the many effects too small to name. Selected features "
        "stand beyond it; the last column says which stand without one too, and lists those that only do so."
    )


def _features(m: Material, level: str) -> tuple[Html, list[list[Any]]]:
    """The table of features, and the same rows for a file."""
    s = m.findings
    rows, records, limits = [], [], _limits(m)
    for i, p in enumerate(int(v) for v in m.shown):
        q = m.strongest(p)
        iv = interval(m, i, q, m.features[p])
        hits = int(s.by_response[p].sum())
        pip, lfsr = float(s.pip[p]), float(s.lfsr[p, q])
        effect, ends = in_units(m, q, (iv.mean, iv.lower, iv.upper))
        cells: list[Any] = [
            el("th", _tick(iv.strong), _named(m.features[p]), scope="row", class_="name"),
            el("td", _site_mark(m, m.feature_sites[p]), data_label="site"),
            el("td", _named(m.responses[q]), class_="long", data_label="response"),
            el("td", effect, data_v=f"{iv.mean:.6g}", class_="num", data_label="effect"),
            el("td", ends, data_v=f"{iv.lower:.6g}", class_="num", data_label=f"{level} interval"),
            el("td", charts.bar(iv, limits), class_="draw"),
        ]
        if m.truth is not None:
            cells.append(el("td", fixed(iv.truth or 0.0, 3), data_v=f"{iv.truth:.6g}", class_="num"))
        cells += [
            el("td", f"{hits} of {m.Q}", data_v=hits, class_="num count"),
            el("td", small(pip, s.draws), data_v=f"{pip:.6g}", class_="num", data_label="PIP"),
            el("td", small(lfsr, s.draws), data_v=f"{lfsr:.6g}", class_="num", data_label="sign rate"),
        ]
        cells += [] if s.without is None else [el("td", s.stands(p), data_label="stands")]
        rows.append(el("tr", *cells, class_=None if iv.strong else "rest"))
        told = [text.replace("−", "-") for text in m.languages[q].ends(iv.mean, iv.lower, iv.upper)] + [named(m, q)]
        records.append(
            [m.features[p], m.feature_sites[p], m.responses[q], iv.mean, iv.lower, iv.upper, pip, lfsr, iv.strong, *told]
        )
    head = ["feature", "site", "response", "effect", f"{level} interval", ""]
    head += (["truth"] if m.truth is not None else []) + ["responses", "PIP", "sign rate"]
    kinds = ["text", "text", "text", "num", "num", ""] + (["num"] if m.truth is not None else []) + ["num", "num", "num"]
    if s.without is not None:
        head, kinds = [*head, "stands"], [*kinds, "text"]
    titles = {
        "responses": "at how many responses the coefficient itself is selected",
        "PIP": "posterior inclusion probability: that the feature matters",
        "sign rate": "local false sign rate: probability that the effect has another sign",
    }
    shown = {"responses": "num count"}  # a narrow window has no room for it
    header = el("tr", *(
        el("th", h, scope="col", data_sort=k or None, class_=shown.get(h, "num" if k == "num" else None), title=titles.get(h))
        for h, k in zip(head, kinds)
    ))  # fmt: skip
    return el("table", el("thead", header), el("tbody", *rows), class_="sortable cards", id="features"), records


def sets(m: Material) -> list[Html]:
    """Sets of interchangeable features: one of them matters, the data do not say which."""
    if not m.findings.sets:
        return []
    rows: list[list[Any]] = []
    for k, one in enumerate(m.findings.sets[:MOST_SETS], 1):
        members = join([join([el("bdi", m.features[p]), f" ({m.feature_sites[p]})"]) for p in one.members[:8]], ", ")
        more = f" and {len(one.members) - 8} more" if len(one.members) > 8 else ""
        rows.append([
            str(k),
            join([members, more]),
            join([el("div", el("bdi", m.responses[q]), " ", set_interval(m, one, q, "").told)
                  for q in one.acts_on(m.findings.fdr)]),
            small(one.coverage, m.findings.draws),
            fixed(one.purity, 2),
            "–" if one.log_bayes_factor is None else fixed(one.log_bayes_factor, 1),
        ])  # fmt: skip
    level = f"{m.probability:.0%}".replace("%", " %")
    return [
        el("h3", "Sets of interchangeable features"),
        el("p", "One feature of each set matters at the stated rate, and the data cannot tell which: the members are so "
           f"correlated that each could stand for the others. The effect is that of the set as a whole, in {of_response(m)}, for "
           "one standard deviation of its members: on the response where it shows most, and where else it is sure by itself. "
           "Coverage is the probability that at least one member matters, purity the least correlation between two."),
        table(["set", "one of", f"common effect [{level}]", "coverage", "purity", "log Bayes factor"], rows),
    ]  # fmt: skip


def set_interval(m: Material, one: FeatureSet, q: int, name: str) -> Interval:
    """The common effect of a set on response q, in standard deviations; strong where the set is found to act on it."""
    mean, sd = float(one.mean[q]), float(one.sd[q])
    reach, half = (float(stats.norm.ppf((1 + p) / 2)) * sd for p in (m.probability, 0.5))
    told = m.languages[q].words(mean, mean - reach, mean + reach)
    return Interval(
        name, mean, mean - reach, mean + reach, (mean - half, mean + half), None, q in one.acts_on(m.findings.fdr), told
    )


def _named(label: str, most: int = 48) -> Html:
    """A label, a long one cut in the middle; a pointer and a screen reader have all of it."""
    if len(label) <= most:
        return el("bdi", label)
    return el("bdi", short(label, most), title=label, aria_label=label)


def _tick(strong: bool) -> Html:
    """Selected or not, for eyes and for ears."""
    if strong:
        return el("span", "✓", class_="yes-mark", role="img", aria_label="selected")
    return el("span", "", class_="yes-mark", role="img", aria_label="not selected")


def _shown_options(m: Material) -> list[tuple[str, str]]:
    out = [("sel", "selected"), ("all", "all listed")] if m.count else [("all", "all listed")]
    return out + [(str(k), f"top {k}") for k in (10, 25, 100) if k < len(m.shown)]


def _site_mark(m: Material, site: str) -> Html:
    index = m.sites.index(site) if site in m.sites else 0
    return el("span", el("span", "", class_=f"swatch s{index % 8}", aria_hidden="true"), el("bdi", site))


def _limits(m: Material) -> tuple[float, float]:
    if not len(m.shown):
        return -1.0, 1.0
    best = np.array([m.strongest(int(p)) for p in m.shown])
    at = np.arange(len(m.shown))
    low, high = m.quantiles[0, at, best].min(), m.quantiles[4, at, best].max()
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    pad = 0.05 * (high - low) or 1.0
    return low - pad, high + pad


def _csv(records: list[list[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    told = ["told", "told_lower", "told_upper", "told_is"]
    writer.writerow(["feature", "site", "response", "mean", "lower", "upper", "pip", "lfsr", "selected", *told])
    for record in records:
        writer.writerow([f"{c:.6g}" if isinstance(c, float) else cell(c) for c in record])
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(out.getvalue().encode()).decode()


def forests(m: Material) -> Html:
    """One forest plot per response: the selected features that matter most there, else those with most evidence."""
    level = f"{m.probability:.0%}".replace("%", " %")
    hits = m.findings.by_response.sum(axis=0)
    order = sorted(range(m.Q), key=lambda q: (-int(hits[q]), q))[:FORESTS]
    order.sort()
    pool = [i for i, p in enumerate(m.shown) if m.findings.selected[p]] or list(range(min(10, len(m.shown))))
    picked = {q: sorted(pool, key=lambda i: -abs(m.mean[m.shown[i], q]))[:IN_FOREST] for q in order}
    first = m.findings.sets[:SETS_IN_FOREST]
    whole = {q: [set_interval(m, one, q, f"one of set {k}") for k, one in enumerate(first, 1)] for q in order}
    rows = {q: [interval(m, i, q, m.features[int(m.shown[i])]) for i in picked[q]] for q in order}
    own = several(m) and m.truth is None
    in_sd = [q for q in order if not own or m.languages[q].scale is None]
    limits = charts.span([iv for q in in_sd for iv in rows[q] + whole[q]])
    panels = []
    for q in order:
        here = [bool(m.findings.by_response[m.shown[i], q]) for i in picked[q]]
        ivs = [replace(iv, strong=strong) for iv, strong in zip(rows[q], here)]
        ivs = sorted(ivs + whole[q], key=lambda iv: -abs(iv.mean))
        if q not in in_sd:
            ivs = [_in_its_language(m, iv, q) for iv in ivs]
        with_sets = "".join(f", {plural(k, 'set')}" for k in [sum(iv.strong for iv in whole[q])] if k)
        notes = [note for note in (kind_of(m, q), f"{int(hits[q])} selected here{with_sets}" if m.Q > 1 else "") if note]
        title = el("h3", el("bdi", m.responses[q]), " ", el("small", "; ".join(notes)))
        axis = "effect (sd per sd)" if q in in_sd else m.languages[q].axis
        panels.append(el("figure", title, charts.forest(ivs, title=f"Effects on {m.responses[q]}", axis=axis,
                                                        limits=limits if q in in_sd else None), class_="panel"))  # fmt: skip
    truth = " Diamonds are the simulated truth." if m.truth is not None else ""
    more = f" Shown: the {len(order)} responses with most selected coefficients of {m.Q}." if len(order) < m.Q else ""
    scale = "all on one scale" if len(in_sd) == len(order) else "each in the response's own language, named below it"
    return join([
        el("p", f"Dots are posterior means, thick lines 50 % and thin lines {level} credible intervals, {scale}. "
           "Faint lines are coefficients not selected at that response.",
           " The line of a set of interchangeable features is its common effect." if first else "",
           truth, more),
        el("div", *panels, class_="panels"),
    ])  # fmt: skip


def _in_its_language(m: Material, iv: Interval, q: int) -> Interval:
    """The same line where the response's language puts it."""
    inner = iv.inner or (iv.mean, iv.mean)
    mean, lower, upper, low, high = (float(v) for v in m.languages[q].effect([iv.mean, iv.lower, iv.upper, *inner]))
    return replace(iv, mean=mean, lower=lower, upper=upper, inner=(low, high))


def connections(m: Material) -> Html | None:
    """Connectogram and brain, when features are edges between regions."""
    pairs = brain.split_edges(m.features, m.regions)
    if not pairs:
        return None
    seen = dict.fromkeys(end for pair in pairs.values() for end in pair)
    nodes = [code for code in m.regions if code in seen] + [code for code in seen if code not in m.regions]
    edges = []
    for p in (int(v) for v in np.flatnonzero(m.findings.selected) if int(v) in pairs):
        q = m.strongest(p)
        strength = float(np.abs(m.mean[p]).mean() * (np.sign(m.mean[p, q]) or 1.0))
        words = brain.edge_words(m.features[p], float(m.mean[p, q]), m.responses[q])
        edges.append(brain.Edge(*pairs[p], strength, m.features[p], words))
    if not edges:
        return el("p", f"{len(pairs):,} features are connections between {len(nodes)} regions; none of them is selected.")
    edges = sorted(edges, key=lambda e: -abs(e.strength))[:300]
    key = [el("span", el("span", "", class_=f"swatch {c}"), short(name, 30)) for name, c in brain.legend(m.regions, nodes)]
    placed = any(code in m.regions for code in nodes)
    views = brain.brain_views(edges, m.regions, nodes) if placed else []
    hubs = _hubs(edges)
    return join([
        el("p", f"{len(edges)} selected connections between {len({e for x in edges for e in (x.a, x.b)})} of {len(nodes)} "
           "regions. Width is the mean absolute effect over the responses, colour the sign where it is strongest. ",
           sign_key(), f" Most connected: {hubs}."),
        el("div", scrolled(brain.connectogram(edges, nodes, m.regions), "Connections between regions", "circle"),
           el("div", *views, class_="views") if views else None, class_="brain" if views else None),
        el("p", *key, class_="key") if key else None,
        None if placed else el("p", "Coordinates were not given; with a table of regions (code, network, x, y, z) the "
                               "report also draws them in the brain.", class_="note"),
    ])  # fmt: skip


def _hubs(edges: list[brain.Edge]) -> Html:
    degree: dict[str, int] = {}
    for edge in edges:
        for end in (edge.a, edge.b):
            degree[end] = degree.get(end, 0) + 1
    best = sorted(degree.items(), key=lambda item: (-item[1], item[0]))[:5]
    return text(", ".join(f"{code} ({count})" for code, count in best))
