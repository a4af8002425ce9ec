"""The report's section on covariates: what was adjusted for, and its effects."""

from typing import Any

from intarsia.report.gather import Material
from intarsia.report.html import Html, el, join, table
from intarsia.report.language import in_units, named, of_response

MOST_ROWS = 200


def effects(m: Material) -> Html | None:
    """Effects of the covariates with their intervals; None when there are none."""
    names = m.posterior.covariates
    if not names:
        return None
    found = m.posterior.covariate_summary(m.probability)
    sites = m.covariate_sites or ["data"] * len(names)
    level = f"{m.probability:.0%}".replace("%", " %")
    rows: list[list[Any]] = []
    for j, name in enumerate(names):
        for q, response in enumerate(m.responses):
            lower, upper = found["lower"][j, q], found["upper"][j, q]
            rows.append([el("bdi", name), el("bdi", sites[j]), el("bdi", response),
                         f"{in_units(m, found['mean'][j, q], q)} {named(m, q)}".rstrip(),
                         f"{in_units(m, lower, q)} to {in_units(m, upper, q)}"])  # fmt: skip
    more = f" The first {MOST_ROWS} of {len(rows)} effects are listed." if len(rows) > MOST_ROWS else ""
    return join([
        el("p", f"Everything on this page is adjusted for {', '.join(names[:12])}{' …' if len(names) > 12 else ''}. Covariates "
           "are not shrunk and not selected; each costs one row of the sketch. Their effects are in "
           f"{of_response(m)}, for one standard deviation of the covariate.{more}"),
        table(["covariate", "site", "response", "effect", f"{level} interval"], rows[:MOST_ROWS]),
    ])  # fmt: skip
