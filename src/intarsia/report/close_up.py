"""The report's map of all coefficients, the close-up of those of selected features, and each one with its own evidence."""

from typing import Any

import numpy as np

from intarsia.report import charts
from intarsia.report.gather import Material
from intarsia.report.html import Html, el, join, scrolled, small, table
from intarsia.report.language import in_units, of_response

IN_MAP = 40  # features in the close-up of the map
MOST_RESPONSES = 24  # with numbers in the cells
MOST_LISTED = 200  # coefficients in the list


def coefficient_map(m: Material) -> Html:
    place = {site: i for i, site in enumerate(m.sites)}
    order = np.argsort([place.get(s, len(place)) for s in m.feature_sites], kind="stable")
    pixel = f" With {m.P:,} features a pixel shows the strongest of its {int(np.ceil(m.P / 900)):,}." if m.P > 900 else ""
    parts: list[Any] = [
        el("p", "Every posterior mean, features from left to right grouped by site, responses from top to bottom. ",
           sign_key(), " Stronger colour is a larger effect; ticks above mark selected features. Point at a column for its name "
           "and effects.", pixel),
        scrolled(charts.overview(_as_map(m, order), f"Map of {m.P:,} × {m.Q} coefficients by site"), "Map of all coefficients"),
    ]  # fmt: skip
    close = m.chosen[:IN_MAP]
    if len(close):
        of = f"the {len(close)} surest of {m.count:,}" if m.count > len(close) else f"the {len(close)}"
        numbers = m.Q <= MOST_RESPONSES
        parts += [
            el("h3", f"Close-up: {of} selected features"),
            el("p", "A feature is selected for acting on some response; each of its coefficients then has evidence of its own. "
               + ("Bold in a frame" if numbers else "A dot") + ": the coefficient itself is selected. Effects are in standard "
               "deviations, so that they compare.", class_="note"),
            scrolled(charts.heat(
                m.mean[close], [m.features[p] for p in close], m.responses,
                name="Effects of the selected features on each response", marked=m.findings.by_response[close],
                look="numbers" if numbers else "plain",
            ), "Effects of the selected features on each response"),
            el("details", el("summary", "These coefficients with interval and local false discovery and sign rate"), _listed(m)),
        ]  # fmt: skip
    return join(parts)


def _as_map(m: Material, order: Any) -> charts.Map:
    features = [m.features[p] for p in order]
    return charts.Map(
        m.mean[order], features, [m.feature_sites[p] for p in order], m.sites, m.responses, m.findings.selected[order]
    )


def _listed(m: Material) -> Html:
    """Every coefficient of the selected features, surest first; in units where the scales are shared."""
    level = f"{m.probability:.0%}".replace("%", " %")
    at = [(i, int(p), q) for i, p in enumerate(m.shown) if m.findings.selected[p] for q in range(m.Q)]
    fdr, lfsr = m.findings.local_fdr_by_response, m.findings.lfsr
    at.sort(key=lambda found: float(fdr[found[1], found[2]]))
    rows: list[list[Any]] = []
    for i, p, q in at[:MOST_LISTED]:
        low, high = float(m.quantiles[0, i, q]), float(m.quantiles[4, i, q])
        row = [el("bdi", m.features[p]), el("bdi", m.responses[q]), *in_units(m, q, (float(m.mean[p, q]), low, high))]
        here = bool(m.findings.by_response[p, q])
        rows.append(
            [
                *row,
                small(float(fdr[p, q]), m.findings.draws),
                small(float(lfsr[p, q]), m.findings.draws),
                el("span", "selected", class_="tag yes") if here else "not selected here",
            ]
        )
    head = ["feature", "response", "effect", f"{level} interval", "local fdr", "sign rate", ""]
    more = f" The {MOST_LISTED} surest of {len(at):,} are listed." if len(at) > MOST_LISTED else ""
    why = (
        f"Effects are in {of_response(m)} for one standard deviation of the feature. Local fdr is the probability that selecting "
        "this one coefficient is wrong, sign rate (lfsr) that it has not the sign of its effect. A large effect with a wide "
        "interval can have a larger one than a small effect that is known well." + more
    )
    return join([el("p", why, class_="note"), table(head, rows)])


def sign_key() -> Html:
    return join([el("span", "", class_="swatch posmark"), "positive ", el("span", "", class_="swatch negmark"), "negative."])
