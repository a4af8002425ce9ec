"""The report's section on covariates: what was adjusted for, and its effects."""

from typing import Any

from intarsia.report.gather import Material
from intarsia.report.html import Html, el, join, table
from intarsia.report.language import in_units, named, of_response

MOST_ROWS = 200
MOST_SIDE_BY_SIDE = 6  # responses that stand beside each other


def effects(m: Material) -> Html | None:
    """Effects of the covariates with their intervals; None when there are none."""
    names = m.posterior.covariates
    if not names:
        return None
    found = m.posterior.covariate_summary(m.probability)
    sites = m.covariate_sites or ["data"] * len(names)
    level = f"{m.probability:.0%}".replace("%", " %")
    told = {
        (j, q): in_units(m, q, [float(found[end][j, q]) for end in ("mean", "lower", "upper")])
        for j in range(len(names))
        for q in range(m.Q)
    }
    if m.Q <= MOST_SIDE_BY_SIDE:
        head = ["covariate", "site", *(join([el("bdi", name), f" {named(m, q)}".rstrip()]) for q, name in enumerate(m.responses))]
        rows: list[list[Any]] = [
            [el("bdi", name), el("bdi", sites[j]), *(_cell(m, q, *told[j, q]) for q in range(m.Q))]
            for j, name in enumerate(names)
        ]
    else:
        head = ["covariate", "site", "response", "effect", f"{level} interval"]
        rows = [
            [el("bdi", name), el("bdi", sites[j]), el("bdi", response), *told[j, q]]
            for j, name in enumerate(names)
            for q, response in enumerate(m.responses)
        ]
    more = f" The first {MOST_ROWS} of {len(rows)} rows are listed." if len(rows) > MOST_ROWS else ""
    own = ""
    if m.study is not None:
        own = (
            " The site that holds a covariate has them for one unit (a year of age) and, of a category, as differences from its "
            "reference level: intarsia site table."
        )
    return join([
        el("p", f"Everything on this page is adjusted for {', '.join(names[:12])}{' …' if len(names) > 12 else ''}. Covariates "
           "are not shrunk and not selected; each costs one row of the sketch. Their effects are in "
           f"{of_response(m, shrunk=False)}, for one standard deviation of the covariate, with {level} intervals.{own}{more}"),
        table(head, rows[:MOST_ROWS]),
    ])  # fmt: skip


def _cell(m: Material, q: int, effect: str, interval: str) -> Html:
    """An effect above its interval; what sort of number it is stands in the head."""
    return join([effect.removesuffix(named(m, q)).rstrip(), el("br"), el("small", interval, class_="note")])
