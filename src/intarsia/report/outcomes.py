"""The report's section on responses that are no plain measurements: what each is, and how its effects are read."""

from typing import Any

from intarsia.report.gather import Material
from intarsia.report.html import Html, el, join, table
from intarsia.wire.kinds import in_words, planned


def outcomes(m: Material) -> Html | None:
    """One row per response that has a kind in study.toml; None where there is none."""
    kinds = {} if m.study is None else m.study.kinds
    rows: list[list[Any]] = []
    for q, response in enumerate(m.responses):
        if response in kinds:
            words = in_words(kinds[response])
            caution = planned(kinds[response]).language.caution
            rows.append([el("bdi", response), el("bdi", m.response_sites[q]), words[:1].upper() + words[1:], caution])
    if not rows:
        return None
    return join([
        el("p", "These responses were prepared at the site that owns them, and the linear model was fitted to what they became. "
           "Effects on this page are in standard deviations of that. The owner reads them in the response's own language, with "
           "intervals, because it alone knows the response's spread. Selection needs no such reading."),
        table(["response", "site", "what it is, and how its owner reads it", "mind"], rows),
    ])  # fmt: skip


def named(m: Material, q: int) -> str:
    """A short word for a response's kind, beside its name; empty for a plain measurement."""
    kinds = {} if m.study is None else m.study.kinds
    return "" if m.responses[q] not in kinds else in_words(kinds[m.responses[q]]).partition(";")[0]
