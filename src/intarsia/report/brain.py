"""Features that join two regions: a connectogram, and the regions on outlines of the brain (paper, Figure 6)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.report.html import Html, fixed, short
from intarsia.report.svg import at, circle, el, figure, label, path, tip

SEPARATORS = ("--", "↔", "<->", "~", "__", "-")
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Region:
    """A region of interest: its code, its network and its place (MNI, mm)."""

    code: str
    network: str
    x: float
    y: float
    z: float


@dataclass(frozen=True)
class Edge:
    """A selected feature that joins two regions; width by strength, colour by sign."""

    a: str
    b: str
    strength: float
    name: str
    words: str


def split_edges(features: Sequence[str], known: Mapping[str, Region]) -> dict[int, tuple[str, str]]:
    """Which features are edges: names of the form A--B whose ends recur, or are known regions. Empty when none are."""
    for separator in SEPARATORS:
        found: dict[int, tuple[str, str]] = {}
        for i, name in enumerate(features):
            a, cut, b = name.partition(separator)
            if cut and a and b and separator not in b:
                found[i] = (a, b)
        if known:
            found = {i: pair for i, pair in found.items() if pair[0] in known and pair[1] in known}
        nodes = {end for pair in found.values() for end in pair}
        # Every region meets several others; a hyphen in a name does not make an edge.
        if len(found) >= 3 and (known or len(found) >= 1.4 * len(nodes)):
            return found
    return {}


def connectogram(edges: Sequence[Edge], nodes: Sequence[str], regions: Mapping[str, Region]) -> Html:
    """Regions on a circle, grouped by network; a curve for each edge."""
    network = {code: regions[code].network if code in regions else "" for code in nodes}
    groups = {name: i for i, name in enumerate(dict.fromkeys(network.values()))}
    order = sorted(nodes, key=lambda code: (groups[network[code]], code[:2] == "R_", code))
    slots, here = {}, 0.0
    for before, code in zip([None, *order], order):
        here += 1.0 + (1.2 if before is not None and network[before] != network[code] else 0.0)
        slots[code] = here
    turn = 2 * math.pi / (here + (1.2 if len(groups) > 1 else 0.0))
    size, middle, radius = 560.0, 280.0, 196.0
    angle = {code: -math.pi / 2 + turn * (slot - 0.5) for code, slot in slots.items()}
    place = {code: (middle + radius * math.cos(t), middle + radius * math.sin(t)) for code, t in angle.items()}
    used = {end for edge in edges for end in (edge.a, edge.b)}
    largest = max((abs(edge.strength) for edge in edges), default=1.0) or 1.0
    parts: list[Html] = []
    for edge in sorted(edges, key=lambda e: abs(e.strength)):
        (xa, ya), (xb, yb) = place[edge.a], place[edge.b]
        apart = math.dist((xa, ya), (xb, yb)) / (2 * radius)
        pull = 0.9 * (1 - apart)  # neighbours bow little, opposite regions pass near the centre
        cx, cy = (middle + ((v1 + v2) / 2 - middle) * pull for v1, v2 in ((xa, xb), (ya, yb)))
        width = 1.2 + 5.3 * abs(edge.strength) / largest
        side = "pos" if edge.strength > 0 else "neg"
        d = f"M{at(xa)} {at(ya)}Q{at(cx)} {at(cy)} {at(xb)} {at(yb)}"
        parts.append(el("path", tip(edge.words), d=d, class_=f"edge {side}", stroke_width=f"{width:.1f}"))
    for name in groups:
        turns = [angle[code] for code in order if network[code] == name]
        if len(groups) > 1:
            sweep = np.linspace(turns[0] - 0.35 * turn, turns[-1] + 0.35 * turn, 2 + 3 * len(turns))
            ring = [(middle + radius * math.cos(t), middle + radius * math.sin(t)) for t in sweep]
            parts.insert(0, path(ring, f"ring n{groups[name] % 10}"))
    crowded = len(nodes) > 110
    for code in order:
        x, y = place[code]
        active = code in used
        colour = f"n{groups[network[code]] % 10}" + ("" if active else " idle")
        parts.append(circle(x, y, 4.6 if active else 2.8, f"node {colour}", tip(f"{code} ({network[code] or 'region'})")))
        if crowded and not active:
            continue
        degrees = math.degrees(angle[code])
        flip = math.cos(angle[code]) < 0
        lx, ly = middle + (radius + 9) * math.cos(angle[code]), middle + (radius + 9) * math.sin(angle[code])
        spin = f"rotate({degrees + (180 if flip else 0):.1f} {at(lx)} {at(ly)})"
        class_ = "region" if active else "region idle"
        parts.append(
            label(lx, ly, short(code, 14), class_, "end" if flip else "start", dominant_baseline="middle", transform=spin)
        )
    words = f"Connectogram: {len(edges)} selected connections between {len(used)} of {len(nodes)} regions. "
    words += "; ".join(edge.words for edge in sorted(edges, key=lambda e: -abs(e.strength))[:6])
    return figure(size, size, *parts, name=words, class_="chart round")


# Outlines in MNI millimetres, drawn by hand as closed smooth curves through these points.
_AXIAL: Points = [(0, 74), (28, 66), (50, 36), (64, 0), (68, -30), (58, -68), (30, -98), (6, -104), (0, -100)]
_SAGITTAL: Points = [
    (72, 4), (66, 34), (44, 60), (10, 76), (-30, 76), (-66, 58), (-94, 26), (-104, -6), (-92, -26), (-78, -48),
    (-46, -56), (-30, -44), (-24, -60), (-16, -40), (4, -34), (18, -40), (34, -28), (52, -18), (68, -12),
]  # fmt: skip
_CORONAL: Points = [(0, 76), (30, 70), (54, 44), (66, 12), (64, -16), (50, -36), (36, -52), (14, -56), (0, -44)]


def _smooth(points: Points, steps: int = 8) -> np.ndarray:
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


_VIEWS = {
    "from the left": (_smooth(_SAGITTAL), lambda r: (-r.y, r.z), -1.0),
    "from the front": (_smooth(_mirrored(_CORONAL)), lambda r: (r.x, r.z), 1.0),
    "from above": (_smooth(_mirrored(_AXIAL)), lambda r: (r.x, r.y), 1.0),
}


def brain_views(edges: Sequence[Edge], regions: Mapping[str, Region], nodes: Sequence[str]) -> list[Html]:
    """The regions on three outlines; those that a selected edge joins stand out."""
    groups = {name: i for i, name in enumerate(dict.fromkeys(regions[code].network for code in nodes if code in regions))}
    degree: dict[str, int] = {}
    for edge in edges:
        for end in (edge.a, edge.b):
            degree[end] = degree.get(end, 0) + 1
    largest = max((abs(edge.strength) for edge in edges), default=1.0) or 1.0
    views = []
    for title, (outline, project, mirror) in _VIEWS.items():
        w, h = 236.0, 204.0

        def put(point: tuple[float, float], w: float = w) -> tuple[float, float]:
            return w / 2 + 1.02 * point[0], 84 - 1.02 * point[1]

        shifted = [put((mirror * x if mirror < 0 else x, y)) for x, y in outline]
        # An outline need not be centred on MNI's origin: move everything so that it is centred in its picture.
        dx = w / 2 - (min(p[0] for p in shifted) + max(p[0] for p in shifted)) / 2
        dy = h / 2 + 10 - (min(p[1] for p in shifted) + max(p[1] for p in shifted)) / 2
        where = {
            code: (put(project(regions[code]))[0] + dx, put(project(regions[code]))[1] + dy)
            for code in nodes if code in regions
        }  # fmt: skip
        parts: list[Html] = [path([(x + dx, y + dy) for x, y in shifted], "outline", closed=True)]
        for edge in edges:
            if edge.a in where and edge.b in where:
                side = "pos" if edge.strength > 0 else "neg"
                width = f"{0.8 + 2.4 * abs(edge.strength) / largest:.1f}"
                parts.append(path([where[edge.a], where[edge.b]], f"edge {side}", stroke_width=width))
        for code, (x, y) in where.items():
            if code not in degree:
                parts.append(circle(x, y, 1.9, "node idle grey", tip(code)))
        for code, count in sorted(degree.items(), key=lambda item: -item[1]):
            if code in where:
                x, y = where[code]
                words = tip(f"{code} ({regions[code].network}): {count} selected connection(s)")
                parts.append(circle(x, y, 3.2 + 0.9 * math.sqrt(count), f"node n{groups[regions[code].network] % 10}", words))
        parts.append(label(w / 2, 12, title, "axis-title", "middle"))
        views.append(figure(w, h + 8, *parts, name=f"Brain {title}, with the regions that selected connections join"))
    return views


def legend(regions: Mapping[str, Region], nodes: Sequence[str]) -> list[tuple[str, str]]:
    """Network names with their colour classes."""
    names = dict.fromkeys(regions[code].network for code in nodes if code in regions)
    return [(name, f"n{i % 10}") for i, name in enumerate(names)]


def edge_words(name: str, value: float, response: str) -> str:
    return f"{name}: {fixed(value, 3)} on {response}"
