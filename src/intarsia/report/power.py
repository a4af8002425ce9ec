"""What this study could have found: of the sizes alone, so that "not found" is read for what it is."""

from typing import Any

from intarsia.privacy.precision import CHANCE, FDR, Findable, findable
from intarsia.report.gather import Material
from intarsia.report.html import Html, el, join, percent, table, unparted


def reach(m: Material) -> Findable | None:
    """Of the rows that the fit had: the sketch's, or all subjects where exact products were fitted or nothing was mixed."""
    rows = m.m if m.m and not m.gram else (m.n - 1 if m.n else None)
    looked_at = m.attrs.get("looked_at")
    features = max(m.P, int(looked_at) if isinstance(looked_at, int | float) else 0)
    return None if rows is None or rows < 3 else findable(int(rows), features)


def section(m: Material) -> Html | None:
    """The chance of finding effects of several sizes, and the smallest worth naming."""
    found = reach(m)
    if found is None:
        return None
    rows: list[list[Any]] = [
        [f"{effect:g}", percent(effect**2), percent(chance)] for effect, chance in found.power
    ]  # fmt: skip
    parts: list[Any] = [el("p", unparted(found.text))]
    if found.smallest < 1:
        rows.append([f"{found.smallest:.2f}", percent(found.smallest**2), percent(CHANCE)])
        rows.sort(key=lambda row: float(row[0]))
    parts += [
        table(["true effect, sd per sd", "variance it explains", "chance that it is selected"], rows),
        el(
            "p",
            f"By theory, from {found.m:,} rows and {found.features:,} features of which {found.nonzero} matter, at a false "
            f"discovery rate of {FDR:g}. Of features that correlate, the part that others do not explain counts: an "
            "effect must be larger by 1/√(1 − R²) to be found as often.",
            class_="note",
        ),
    ]
    return join(parts)
