"""Who is in the analysis and who was left out on the way, from the sites' lists to the fit (STROBE, item 13)."""

from typing import Any

from intarsia.report.gather import Material
from intarsia.report.html import Html, el, join
from intarsia.wire.plain import plural


def section(m: Material) -> Html | None:
    """Boxes from top to bottom; what was left out stands beside the arrow on which it was."""
    if m.study is None or not m.n:
        return None
    steps: list[Html] = []
    mode = m.study.alignment.mode
    if m.listed:
        each = ", ".join(f"{name} {count:,}" for name, count in m.listed.items())
        steps.append(_box("Listed by the sites", each))
    common = m.n + m.dropped
    out = {name: count - common for name, count in m.listed.items() if count > common}
    if out:
        steps.append(_left_out("not at all sites", [f"{count:,} of {name}" for name, count in out.items()]))
    where = "At all sites with features" if mode == "union" else "At all sites"
    if mode == "strict":
        steps.append(_box("At every site, the same people", plural(m.n, "subject")))
    else:
        steps.append(_box(where, plural(common, "subject")))
    if m.dropped:
        steps.append(_left_out("too few had the same responses, or they had none", [plural(m.dropped, "subject")]))
    if m.groups:
        each = "; ".join(f"{group.n:,} with {_named(list(group.responses))}" for group in m.groups)
        steps.append(_box("In the analysis, by the responses they have", f"{plural(m.n, 'subject')}: {each}"))
    else:
        steps.append(_box("In the analysis", plural(m.n, "subject")))
    left = f"{', '.join(m.left)} left after having sent, with all columns of theirs. " if m.left else ""
    return join([
        el("ol", *steps, class_="flow"),
        el("p", left + "Values that were missing and filled, and people who were left out before a site listed its own, are "
           "known to that site: its card and its own records say so.", class_="note"),
    ])  # fmt: skip


def _box(title: str, words: str) -> Html:
    return el("li", el("b", title), el("span", words))


def _left_out(why: str, whom: list[str]) -> Html:
    return el("li", el("b", "Left out"), el("span", f"{', '.join(whom)}: {why}"), class_="out")


def _named(responses: list[Any], most: int = 4) -> str:
    more = f" and {len(responses) - most} more" if len(responses) > most else ""
    return ", ".join(str(name) for name in responses[:most]) + more
