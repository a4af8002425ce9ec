"""The report's charts. Each function takes arrays and labels and gives one SVG; none knows about studies."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from intarsia.report.html import Html, fixed, join, number, short
from intarsia.report.svg import (
    Scale,
    bottom_axis,
    circle,
    figure,
    heat_image,
    histogram_bars,
    label,
    left_axis,
    line,
    path,
    rect,
    tip,
)

Array = NDArray[np.float64]


MOST_HOVERED = 300  # columns of a large map that say their name
MOST_IN_TIP = 6  # responses told there


@dataclass(frozen=True)
class Interval:
    """One line of a forest: posterior median or mean, inner 50 % and outer interval; the truth where it is known."""

    name: str
    mean: float
    lower: float
    upper: float
    inner: tuple[float, float] | None = None
    truth: float | None = None
    strong: bool = True
    told: str = ""  # effect and interval as a person reads them, where that is not these numbers

    @property
    def words(self) -> str:
        if self.told:
            return f"{self.name}: {self.told}"
        known = "" if self.truth is None else f"; truth {fixed(self.truth, 3)}"
        low, high = fixed(self.lower, 3), fixed(self.upper, 3)
        ends = f"up to {high}" if self.lower == 0 else f"down to {low}" if self.upper == 0 else f"{low}, {high}"
        return f"{self.name}: {fixed(self.mean, 3)} [{ends}]{known}"


def forest(
    rows: Sequence[Interval],
    *,
    title: str,
    axis: str,
    limits: tuple[float, float] | None = None,
    width: float = 350,
    zero: bool = True,
) -> Html:
    """Intervals under one another on a common scale."""
    longest = max((len(short(r.name, 24)) for r in rows), default=4)
    left = min(165.0, 14 + 6.3 * longest)
    low, high = limits or span(rows, zero)
    x, top, step = Scale(low, high, left, width - 10), 4.0, 17.0
    base = top + step * len(rows) + 4
    parts: list[Html] = [bottom_axis(x, base, title=axis, zero=top if zero else None)]
    for i, row in enumerate(rows):
        y = top + step * (i + 0.5)
        side = "pos" if row.mean > 0 else "neg"
        class_ = f"iv {side}" + ("" if row.strong else " weak")
        parts.append(label(left - 8, y + 3.5, short(row.name, 24), "rowname" + ("" if row.strong else " weak"), "end"))
        parts.append(line(x(row.lower), y, x(row.upper), y, class_))
        if row.inner is not None:
            parts.append(line(x(row.inner[0]), y, x(row.inner[1]), y, class_ + " thick"))
        if row.truth is not None:
            t = x(row.truth)
            parts.append(path([(t, y - 5.5), (t + 4, y), (t, y + 5.5), (t - 4, y)], "truth", closed=True))
        parts.append(circle(x(row.mean), y, 3.4, class_ + " dot"))
        parts.append(rect(0, y - step / 2, width, step, "hit", tip(row.words)))
    return figure(width, base + (32 if axis else 18), *parts, name=f"{title}. " + "; ".join(r.words for r in rows[:8]))


def span(rows: Sequence[Interval], zero: bool = True) -> tuple[float, float]:
    """Limits that hold every interval, and zero."""
    ends = [v for r in rows for v in (r.lower, r.upper, r.mean if r.truth is None else r.truth) if np.isfinite(v)]
    low, high = min(ends, default=-1.0), max(ends, default=1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    pad = 0.04 * (high - low) or 0.1
    return low - pad, high + pad


def bar(row: Interval, limits: tuple[float, float]) -> Html:
    """One interval, small, for a table's cell."""
    x, y = Scale(*limits, 2, 128), 9.0
    class_ = "iv " + ("pos" if row.mean > 0 else "neg") + ("" if row.strong else " weak")
    parts = [line(x(0.0), 1, x(0.0), 17, "zero"), line(x(row.lower), y, x(row.upper), y, class_ + " thick")]
    if row.truth is not None:
        t = x(row.truth)
        parts.append(path([(t, y - 5), (t + 3.5, y), (t, y + 5), (t - 3.5, y)], "truth", closed=True))
    parts.append(circle(x(row.mean), y, 3.2, class_ + " dot"))
    return figure(130, 18, *parts, tip(row.words), name=row.words, class_="mini")


def heat(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    name: str,
    largest: float | None = None,
    marked: NDArray[np.bool_] | None = None,
    look: str = "plain",
) -> Html:
    """A matrix with its labels; `look` is "plain", "off-diagonal" (the diagonal stays empty) or "numbers" (each cell says its
    value). `marked` entries carry a dot, or with numbers a frame and bold."""
    numbers = look == "numbers"
    cell_w = 50.0 if numbers else 30.0 if len(columns) <= 20 else max(9.0, 620.0 / len(columns))
    cell_h, left = 22.0 if numbers else 16.0, 12 + 6.6 * max((len(short(r, 26)) for r in rows), default=1)
    top = 18 + 4.5 * max((len(short(c, 16)) for c in columns), default=1)
    largest = largest or float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    parts: list[Html] = []
    for q, column in enumerate(columns):
        cx = left + cell_w * (q + 0.5) + 3
        parts.append(label(cx, top - 5, short(column, 16), "colname", None, transform=f"rotate(-50 {cx:.1f} {top - 5})"))
    for p, row in enumerate(rows):
        y = top + cell_h * p
        parts.append(label(left - 6, y + cell_h / 2 + 3.5, short(row, 26), "rowname", "end"))
        for q, column in enumerate(columns):
            v = float(values[p, q])
            if look == "off-diagonal" and p == q:
                continue
            x = left + cell_w * q
            share = min(1.0, abs(v) / largest) ** 0.6
            words = tip(f"{row} × {column}: {fixed(v, 3)}")
            class_ = "cell " + ("pos" if v > 0 else "neg")
            here = marked is not None and bool(marked[p, q])
            share *= 0.6 if numbers else 1.0  # the number stays readable
            frame = " framed" if numbers and here else ""
            parts.append(rect(x + 1, y + 1, cell_w - 2, cell_h - 2, class_ + frame, words, fill_opacity=f"{share:.2f}"))
            if numbers:
                bold = "value bold" if here else "value"
                parts.append(label(x + cell_w / 2, y + cell_h / 2 + 3.8, fixed(v, 2), bold, "middle"))
            elif here:
                parts.append(circle(x + cell_w / 2, y + cell_h / 2, 2.1, "mark"))
    return figure(left + cell_w * len(columns) + 46, top + cell_h * len(rows) + 6, *parts, name=name, class_="chart natural")


@dataclass(frozen=True)
class Map:
    """Every coefficient (P, Q) with its labels; `roster` is the sites' order, which decides their colours."""

    values: Array
    features: Sequence[str]
    sites: Sequence[str]
    roster: Sequence[str]
    responses: Sequence[str]
    selected: NDArray[np.bool_]

    def words(self, start: int, stop: int) -> str:
        """Name and effects of the strongest feature of these."""
        p = start + int(np.abs(self.values[start:stop]).max(axis=1).argmax())
        strong = np.argsort(-np.abs(self.values[p]), kind="stable")[:MOST_IN_TIP]
        effects = ", ".join(f"{self.responses[q]} {fixed(float(self.values[p, q]), 2)}" for q in strong)
        of = f", strongest of {stop - start}" if stop - start > 1 else ""
        return f"{self.features[p]} ({self.sites[p]}{of}){' – selected' if self.selected[p] else ''}: {effects}"


def overview(shown_map: Map, name: str, most: int = 900) -> Html:
    """Every coefficient, features from left to right by site, responses from top to bottom.

    More features than pixels: a pixel shows the strongest of its features. Ticks above are selected features; whoever points at
    a column is told its name and effects.
    """
    values, sites, roster = shown_map.values, shown_map.sites, shown_map.roster
    responses, selected = shown_map.responses, shown_map.selected
    P, Q = values.shape
    bins = min(P, most)
    place = np.minimum(np.arange(P) * bins // max(P, 1), bins - 1)
    shown = np.zeros((bins, Q))
    for q in range(Q):
        order = np.argsort(np.abs(values[:, q]), kind="stable")
        shown[place[order], q] = values[order, q]  # the strongest is written last
    left = 12 + 5.6 * max((len(short(r, 18)) for r in responses), default=1)
    width, high = 860.0, max(7.0, min(22.0, 420.0 / Q))
    x, top = Scale(0, P, left, width - 4), 30.0
    largest = float(np.abs(values).max(initial=0.0))
    image = (
        f'<image href="{heat_image(shown.T, largest)}" x="{left:.1f}" y="{top}" width="{width - 4 - left:.1f}" '
        f'height="{high * Q:.1f}" preserveAspectRatio="none" style="image-rendering:pixelated"/>'
    )
    parts: list[Html] = [rect(left, top, width - 4 - left, high * Q, "frame"), Html(image)]
    every = max(1, int(np.ceil(9 / high)))
    for q in range(0, Q, every):
        parts.append(label(left - 6, top + high * (q + 0.5) + 3.5, short(responses[q], 18), "rowname", "end"))
    for start, stop, site, index in blocks(sites, roster):
        a, b = x(start), x(stop)
        parts.append(rect(a, top + high * Q + 4, b - a - 1, 5, f"site s{index % 8}"))
        if b - a > 6.2 * len(short(site, 16)):
            parts.append(label((a + b) / 2, top + high * Q + 22, short(site, 16), "sitename", "middle"))
        if start:
            parts.append(line(a, top - 4, a, top + high * Q + 9, "split"))
    hover = P if most >= P else MOST_HOVERED
    edges = np.linspace(0, P, hover + 1).astype(int)
    for start, stop in pairwise(edges.tolist()):
        tip_ = tip(shown_map.words(start, stop))
        parts.append(rect(x(start), top, x(stop) - x(start), high * Q, "hit", tip_))
    for p in np.flatnonzero(selected)[:400]:
        parts.append(line(x(p + 0.5), top - 11, x(p + 0.5), top - 3, "tickmark"))
    if selected.any():
        parts.append(label(left, 12, "selected features", "tick"))
    return figure(width, top + high * Q + 28, *parts, name=name, class_="chart wide")


def blocks(sites: Sequence[str], roster: Sequence[str]) -> list[tuple[int, int, str, int]]:
    """Runs of the same site: (start, stop, site, its number on the roster)."""
    out: list[tuple[int, int, str, int]] = []
    numbers = {site: i for i, site in enumerate(dict.fromkeys([*roster, *sites]))}
    start = 0
    for i in range(1, len(sites) + 1):
        if i == len(sites) or sites[i] != sites[start]:
            out.append((start, i, sites[start], numbers[sites[start]]))
            start = i
    return out


def trace(draws: Array, name: str, width: float = 350, height: float = 120) -> Html:
    """Draws (chain, draw) against their number, one line per chain."""
    chains, n = draws.shape
    step = max(1, n // 220)
    shown = draws[:, ::step]
    y = Scale(float(np.nanmin(draws)), float(np.nanmax(draws)), height - 18, 6)
    x = Scale(0, n, 42, width - 6)
    parts = [left_axis(y, 40), bottom_axis(x, height - 14, about=3)]
    for k in range(chains):
        points = [(x(i * step), y(float(v))) for i, v in enumerate(shown[k])]
        parts.append(path(points, f"chain c{k % 8}"))
    return figure(width, height + 4, *parts, name=f"Trace of {name}, {chains} chains")


def rank_plot(draws: Array, name: str, width: float = 350, bins: int = 20) -> Html:
    """Ranks of each chain's draws among all: flat when the chains agree (Vehtari et al. 2021)."""
    chains, n = draws.shape
    ranks = np.argsort(np.argsort(draws.reshape(-1), kind="stable"), kind="stable").reshape(chains, n)
    counts = np.stack([np.histogram(r, bins=bins, range=(0, chains * n))[0] for r in ranks])
    high, gap = 20.0, 5.0
    expected, largest = n / bins, max(float(counts.max()), 1.0)
    parts: list[Html] = []
    for k in range(chains):
        base = (high + gap) * (k + 1)
        for i, count in enumerate(counts[k]):
            w = (width - 48) / bins
            parts.append(
                rect(42 + w * i + 0.5, base - high * count / largest, w - 1, high * count / largest, f"rankbar c{k % 8}")
            )
        y = base - high * expected / largest
        parts += [line(42, y, width - 6, y, "expected"), label(36, base - 6, f"chain {k + 1}", "tick", "end")]
    return figure(width, (high + gap) * chains + 4, *parts, name=f"Rank plot of {name}: flat lines mean that the chains agree")


def quantile_band(observed: Array, low: Array, middle: Array, high: Array, name: str, size: float = 190) -> Html:
    """Ordered observed values against their predictive medians, with the predictive band."""
    ends = np.concatenate([observed, low, high])
    a, b = float(ends.min()), float(ends.max())
    x, y = Scale(a, b, 34, size - 6), Scale(a, b, size - 20, 6)
    band = [(x(m), y(v)) for m, v in zip(middle, low)] + [(x(m), y(v)) for m, v in zip(middle[::-1], high[::-1])]
    dots = [circle(x(m), y(v), 1.7, "point") for m, v in zip(middle, observed)]
    return figure(
        size, size + 4, path(band, "band", closed=True), line(x(a), y(a), x(b), y(b), "expected"),
        join(dots), bottom_axis(x, size - 18, about=3), left_axis(y, 32), name=name,
    )  # fmt: skip


def scree(values: Sequence[float], intervals: Sequence[Sequence[float]], width: float = 350) -> Html:
    """Singular values with their intervals."""
    most = min(len(values), 20)
    top, base = 8.0, 150.0
    y = Scale(0.0, max([i[1] for i in intervals[:most]] + [1e-12]) * 1.05, base, top)
    gap = (width - 60) / most
    parts: list[Html] = [left_axis(y, 44), line(44, base, width - 8, base)]
    for i in range(most):
        x = 50 + gap * (i + 0.5)
        a, b = intervals[i]
        w = min(26.0, gap * 0.7)
        words = tip(f"component {i + 1}: {number(values[i])} [{number(a)}, {number(b)}]")
        parts.append(rect(x - w / 2, y(values[i]), w, base - y(values[i]), "bar", words))
        parts += [line(x, y(a), x, y(b), "whisker"), label(x, base + 14, i + 1, "tick", "middle")]
    parts.append(label((50 + width) / 2, base + 29, "component", "axis-title", "middle"))
    return figure(width, base + 34, *parts, name="Singular values of C: " + ", ".join(number(v) for v in values[:most]))


def histogram(
    values: Array, *, name: str, axis: str, bins: int = 24, limits: tuple[float, float] | None = None,
    rule: float | None = None, width: float = 350,
) -> Html:  # fmt: skip
    """Counts of values; `rule` is a limit drawn as a line."""
    values = values[np.isfinite(values)]
    if not values.size:
        values = np.zeros(1)
    low, high = limits or (float(values.min()), float(values.max()))
    if rule is not None:
        low, high = min(low, rule), max(high, rule)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = list(np.linspace(low, high, bins + 1))
    counts, _ = np.histogram(np.clip(values, low, high), bins=np.asarray(edges))
    x, y, base = Scale(low, high, 46, width - 10), Scale(0, float(counts.max()) * 1.05, 110, 6), 110.0
    parts = [
        histogram_bars(np.clip(values, low, high), edges, x, y, base, "bar"),
        left_axis(y, 44),
        bottom_axis(x, base, title=axis),
    ]
    if rule is not None:
        parts.append(line(x(rule), 4, x(rule), base, "rule"))
    return figure(width, base + 32, *parts, name=name)
