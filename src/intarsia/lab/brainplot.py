"""Figure 6: the chosen edges as a connectogram, and the regions they join on outlines of the brain."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Curve

from intarsia.lab.connectome import Region
from intarsia.lab.realdata import Analysis, RealData

Points = list[tuple[float, float]]

POSITIVE, NEGATIVE = "#D55E00", "#0072B2"
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",
    "#8C7A00", "#7F3C8D", "#666666", "#A5AA99", "#B33A3A", "#F2B701", "#1B5E20", "#5D4037", "#00ACC1",
)  # fmt: skip


def network_colours(regions: list[Region]) -> dict[str, str]:
    names = dict.fromkeys(region.network for region in regions)
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def connectogram(ax: Axes, study: RealData, edges: list[tuple[int, int]], strength: np.ndarray) -> None:
    """Regions on a circle, grouped by network; a curve for each edge, as wide as its strength, coloured by its sign."""
    regions = study.regions or []
    colours = network_colours(regions)
    order = sorted(range(len(regions)), key=lambda i: (list(colours).index(regions[i].network), i))
    gaps = np.cumsum([0] + [regions[a].network != regions[b].network for a, b in pairwise(order)])
    slots = np.arange(len(order)) + 1.0 * gaps
    angle = np.empty(len(order))
    angle[order] = np.pi / 2 - 2 * np.pi * slots / (slots[-1] + 2)
    at = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    largest = np.abs(strength).max(initial=1e-300)
    used = {i for edge in edges for i in edge}
    for (a, b), value in sorted(zip(edges, strength), key=lambda pair: abs(pair[1])):
        # Neighbours bow little, opposite regions pass near the centre.
        pull = (1 - 0.45 * np.linalg.norm(at[a] - at[b])) * (at[a] + at[b]) / 2
        curve = Curve([at[a], pull, at[b]], [Curve.MOVETO, Curve.CURVE3, Curve.CURVE3])
        colour = POSITIVE if value > 0 else NEGATIVE
        width = 0.5 + 3.0 * abs(value) / largest
        ax.add_patch(PathPatch(curve, fill=False, ec=colour, lw=width, alpha=0.65, capstyle="round"))
    for i, region in enumerate(regions):
        active = i in used
        ax.plot(*at[i], "o", color=colours[region.network], ms=5.5 if active else 3, alpha=1 if active else 0.45)
        turn = np.degrees(angle[i])
        flip = np.cos(angle[i]) < 0
        ax.text(
            1.05 * at[i, 0], 1.05 * at[i, 1], region.code, rotation=turn + 180 if flip else turn,
            rotation_mode="anchor", ha="right" if flip else "left", va="center", fontsize=6, color="0.1" if active
            else "0.65", fontweight="bold" if active else "normal",
        )  # fmt: skip
    ax.set(xlim=(-1.42, 1.42), ylim=(-1.42, 1.42), aspect="equal")
    ax.axis("off")


# Outlines in MNI millimetres, drawn by hand as closed smooth curves through these points.
_AXIAL: Points = [(0, 74), (28, 66), (50, 36), (64, 0), (68, -30), (58, -68), (30, -98), (6, -104), (0, -100)]
_SAGITTAL: Points = [
    (72, 4), (66, 34), (44, 60), (10, 76), (-30, 76), (-66, 58), (-94, 26), (-104, -6), (-92, -26), (-78, -48),
    (-46, -56), (-30, -44), (-24, -60), (-16, -40), (4, -34), (18, -40), (34, -28), (52, -18), (68, -12),
]  # fmt: skip
_CORONAL: Points = [(0, 76), (30, 70), (54, 44), (66, 12), (64, -16), (50, -36), (36, -52), (14, -56), (0, -44)]


def _smooth(points: Points, steps: int = 12) -> np.ndarray:
    """A closed Catmull–Rom curve through the points."""
    p = np.array(points, dtype=float)
    t = np.linspace(0, 1, steps, endpoint=False)[:, None]
    pieces = []
    for i in range(len(p)):
        a, b, c, d = p[i - 1], p[i], p[(i + 1) % len(p)], p[(i + 2) % len(p)]
        pieces.append(0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3))
    return np.concatenate(pieces)


def _mirrored(points: Points) -> Points:
    return points + [(-x, y) for x, y in reversed(points) if x != 0]


def brain_view(axes: list[Axes], study: RealData, edges: list[tuple[int, int]], strength: np.ndarray) -> None:
    """The regions on three outlines (from the left, the front, above); those that a chosen edge joins are
    highlighted."""
    regions = study.regions or []
    colours = network_colours(regions)
    degree = np.zeros(len(regions))
    for a, b in edges:
        degree[[a, b]] += 1
    place = np.array([[r.x, r.y, r.z] for r in regions])
    views = (
        (_smooth(_SAGITTAL), 1, 2, "side"),
        (_smooth(_mirrored(_CORONAL)), 0, 2, "front"),
        (_smooth(_mirrored(_AXIAL)), 0, 1, "above"),
    )
    largest = np.abs(strength).max(initial=1e-300)
    for ax, (outline, h, v, title) in zip(axes, views):
        ax.fill(*outline.T, fc="0.95", ec="0.6", lw=1.2, zorder=0)
        for (a, b), value in zip(edges, strength):
            ax.plot(
                place[[a, b], h], place[[a, b], v], color=POSITIVE if value > 0 else NEGATIVE, alpha=0.35,
                lw=0.4 + 1.6 * abs(value) / largest, zorder=1,
            )  # fmt: skip
        for i, region in enumerate(regions):
            if degree[i]:
                ax.scatter(
                    place[i, h], place[i, v], s=16 + 14 * degree[i], color=colours[region.network], ec="white", lw=0.6,
                    zorder=3,
                )  # fmt: skip
            else:
                ax.scatter(place[i, h], place[i, v], s=7, color="0.72", zorder=2, lw=0)
        ax.set_title(title, fontsize=8, color="0.3", pad=1)
        ax.set_aspect("equal")
        ax.axis("off")


def figure6(study: RealData, analysis: Analysis, most: int = 60) -> plt.Figure:
    """Brain view and connectogram of the selected edges; when there are none, of the `most` largest, and it says so."""
    chosen = np.flatnonzero(analysis.selected)
    note = f"{len(chosen)} edges selected at expected FDR ≤ .05"
    if len(chosen) == 0:
        chosen = np.argsort(analysis.signal)[::-1][:most]
        note = f"no edge reaches an expected FDR of .05; shown: the {most} largest in |mean|/sd"
    pairs = study.edges()
    edges, strength = [pairs[i] for i in chosen], analysis.strength[chosen]
    fig = plt.figure(figsize=(11, 7.6))
    grid = fig.add_gridspec(3, 2, width_ratios=(0.34, 0.66), wspace=0.0, hspace=0.08, left=0.0, right=1.0, top=0.93, bottom=0.09)
    brain_view([fig.add_subplot(grid[i, 0]) for i in range(3)], study, edges, strength)
    connectogram(fig.add_subplot(grid[:, 1]), study, edges, strength)
    colours = network_colours(study.regions or [])
    handles = [Line2D([], [], marker="o", ls="", color=c, label=name) for name, c in colours.items()]
    handles += [
        Line2D([], [], color=POSITIVE, lw=2, label="positive"), Line2D([], [], color=NEGATIVE, lw=2, label="negative")
    ]  # fmt: skip
    columns = 4 if len(handles) <= 8 else 5
    fig.legend(handles=handles, loc="lower center", ncol=columns, fontsize=7, bbox_to_anchor=(0.5, 0.0))
    fig.suptitle(f"Figure 6. {study.name}, m = {analysis.m}: {note}", fontsize=10, x=0.02, ha="left", y=0.985)
    return fig
