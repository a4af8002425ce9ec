"""The report's section on responses that are no plain measurements: what each is, what acts on it in its own language, and how
well its predictions will hold."""

from statistics import NormalDist
from typing import Any

import numpy as np

from intarsia.report.gather import Material
from intarsia.report.html import Html, el, fixed, join, small, table
from intarsia.report.language import Language
from intarsia.wire.kinds import ODDS_RATIO, in_words, planned
from intarsia.wire.log_odds import expected_scores, response_caution
from intarsia.wire.result_table import flat_interval

MOST_FEATURES = 12  # per response


def outcomes(m: Material) -> Html | None:
    """One row per response that has a kind in study.toml, and a table of effects for each whose scale is known; else None."""
    kinds = {} if m.study is None else m.study.kinds
    at = [q for q, response in enumerate(m.responses) if response in kinds]
    if not at:
        return None
    rows: list[list[Any]] = []
    for q in at:
        words = in_words(kinds[m.responses[q]])
        rows.append([el("bdi", m.responses[q]), el("bdi", m.response_sites[q]), words[:1].upper() + words[1:]])
    known = [q for q in at if m.languages[q].scale is not None]
    where = (
        "The owners share the responses' scales, so this page tells effects in each response's own language, for one standard "
        "deviation of the feature."
        if known
        else "Effects on this page are in standard deviations of that. The owner reads them in the response's own language, with "
        "intervals, because it alone knows the response's spread ([deliver] share_scales in study.toml lets everybody)."
    )
    return join([
        el("p", "These responses were prepared at the site that owns them, and the linear model was fitted to what they became. ",
           where, " Selection needs no such reading."),
        table(["response", "site", "what it is, and how it is read"], rows),
        el("p", "To mind:", class_="note"),
        el("ul", *(el("li", el("bdi", m.responses[q]), ": ", _mind(m, q)) for q in at)),
        *(_effects(m, q) for q in known),
        _which(m) if known else None,
        _expected(m, at),
    ])  # fmt: skip


def _mind(m: Material, q: int) -> Html:
    """What the kind takes for granted and, where the scale tells that the approximation ends here, that it does."""
    language: Language = m.languages[q]
    usual = planned(m.study.kinds[m.responses[q]]).language.caution
    limit = ""
    if language.scale is not None and language.back.kind == "binary":
        limit = response_caution(language.scale, m.posterior.draws.sigma2[..., q])
    return join([el("strong", f"{limit[:1].upper()}{limit[1:]}. ") if limit else "", usual])


def _effects(m: Material, q: int) -> Html | None:
    """The features that act on one response: as the sparse posterior has it, and under a flat prior of its own."""
    fdr = m.findings.local_fdr_by_response[:, q]
    here = np.flatnonzero(m.findings.by_response[:, q])
    sets = [(k, one) for k, one in enumerate(m.findings.sets, 1) if q in one.acts_on(m.findings.fdr)]
    if not len(here) and not sets:
        return None
    place = {int(p): i for i, p in enumerate(m.shown)}
    listed = [int(p) for p in here[np.argsort(fdr[here], kind="stable")] if int(p) in place][:MOST_FEATURES]
    language: Language = m.languages[q]
    flat = flat_interval(m.assessment.unshrunk, m.probability)
    rows: list[list[Any]] = []
    for p in listed:
        low, high = (float(m.quantiles[k, place[p], q]) for k in (0, 4))
        free = language.ends(*(float(values[p, q]) for values in flat.values())) if flat else []
        sparse = language.ends(float(m.mean[p, q]), low, high)
        rows.append([
            el("bdi", m.features[p]), el("bdi", m.feature_sites[p]),
            f"{sparse[0]} [{sparse[1]}, {sparse[2]}]",
            f"{free[0]} [{free[1]}, {free[2]}]" if free else "–", small(float(fdr[p]), m.findings.draws),
            language.caution(float(m.mean[p, q])),
        ])  # fmt: skip
    reach = NormalDist().inv_cdf((1 + m.probability) / 2)
    for k, one in sets:
        mean, sd = float(one.mean[q]), float(one.sd[q])
        common = language.ends(mean, mean - reach * sd, mean + reach * sd)
        sites = ", ".join(dict.fromkeys(m.feature_sites[p] for p in one.members))
        rows.append([f"one of set {k}", el("bdi", sites), f"{common[0]} [{common[1]}, {common[2]}]", "–",
                     small(float(one.local_fdr_by_response[q]), m.findings.draws), language.caution(mean)])  # fmt: skip
    level = f"{m.probability:.0%}".replace("%", " %")
    name = language.name or "effect"
    head = ["feature", "site", f"{name} [{level}]", f"{name}, unshrunk [{level}]", "local fdr", "mind"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return join([el("h3", "What acts on ", el("bdi", m.responses[q])), table(head, rows)])


def _which(m: Material) -> Html:
    """Which of the two columns is for whom."""
    odds = any(language.name == ODDS_RATIO for language in m.languages)
    return el("p", "Did you name the effect before the study? Read the unshrunk column: its interval holds also for effects that "
              "the sparse prior draws towards none. Do you look at it because it was selected? Read the other column.",
              " Tables of results have the unshrunk odds ratio as odds_ratio." if odds else "", class_="note")  # fmt: skip


def _expected(m: Material, at: list[int]) -> Html | None:
    """AUC and Brier score to be expected of yes/no predictions, from rows left out."""
    found = m.assessment.expected_r2(m.posterior.draws.sigma2.mean(axis=(0, 1)), m.probability)
    yes = [q for q in at if m.study.kinds[m.responses[q]]["kind"] == "binary"]
    if found is None or not yes:
        return None
    rows: list[list[Any]] = []
    for q in yes:
        r2, low, high = (float(values[q]) for values in found)
        row: list[Any] = [el("bdi", m.responses[q]), f"{fixed(r2)} [{fixed(low)}, {fixed(high)}]"]
        scale = m.scales.get(m.responses[q])
        if scale is None:
            rows.append([*row, "its owner reads it", "its owner reads it"])
            continue
        s = expected_scores(scale, (r2, low, high), int(m.posterior.attrs["n"]), m.probability)
        rows.append([
            *row, f"{fixed(s['auc'])} [{fixed(s['auc_lower'])}, {fixed(s['auc_upper'])}]",
            f"{fixed(s['brier'], 3)} [{fixed(s['brier_lower'], 3)}, {fixed(s['brier_upper'], 3)}]; {fixed(scale**2, 3)} without "
            "any feature",
        ])  # fmt: skip
    level = f"{m.probability:.0%}".replace("%", " %")
    return join([
        el("h3", "How well yes and no will be predicted"),
        el("p", "From rows of the sketch that were left out: what new subjects like those of the study would show. An AUC of 0.5 "
           "is a coin, 1 is certain; a Brier score of 0 is perfect. How probabilities are calibrated shows only where outcomes "
           "are known: intarsia predict finish --observed."
           + ("" if m.assessment.weighed is None else " Those rows were predicted by fits to four fifths of the rows.")),
        table(["response", f"variance explained in new subjects [{level}]", f"AUC [{level}]", f"Brier score [{level}]"], rows),
    ])  # fmt: skip


def kind_of(m: Material, q: int) -> str:
    """A short word for a response's kind, beside its name; empty for a plain measurement."""
    kinds = {} if m.study is None else m.study.kinds
    return "" if m.responses[q] not in kinds else in_words(kinds[m.responses[q]]).partition(";")[0]
