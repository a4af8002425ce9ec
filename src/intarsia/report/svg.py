"""Small SVG pieces: a scale with round ticks, paths, labelled figures. Colours are the page's own variables."""

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.report.html import Html, el, join, number


class Scale:
    """A linear map from values to places, with ticks at round numbers."""

    def __init__(self, low: float, high: float, start: float, stop: float):
        if not (math.isfinite(low) and math.isfinite(high)):
            low, high = -1.0, 1.0
        if high <= low:
            pad = abs(low) * 0.1 or 1.0
            low, high = low - pad, high + pad
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, about: int = 4) -> list[float]:
        """Round numbers inside the limits."""
        raw = (self.high - self.low) / max(1, about)
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [0.0 if k == 0 else k * step for k in range(first, last + 1)]

    def marks(self, about: int = 4) -> list[tuple[float, str]]:
        """Ticks with labels of as many places as tell them apart."""
        found = self.ticks(about)
        gap = found[1] - found[0] if len(found) > 1 else abs(found[0]) if found and found[0] else 1.0
        if gap < 1e-4 or gap >= 1e6:
            return [(tick, number(tick)) for tick in found]
        places = next(d for d in range(8) if abs(round(gap, d) - gap) < 1e-9 * max(1.0, gap))
        return [(tick, "0" if tick == 0 else f"{tick:,.{places}f}".replace("-", "−")) for tick in found]


def at(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "axis", **more: Any) -> Html:
    return el("line", x1=at(x1), y1=at(y1), x2=at(x2), y2=at(y2), class_=class_, **more)


def rect(x: float, y: float, w: float, h: float, class_: str, *children: Any, **more: Any) -> Html:
    return el("rect", *children, x=at(x), y=at(y), width=at(max(0.0, w)), height=at(max(0.0, h)), class_=class_, **more)


def circle(x: float, y: float, r: float, class_: str, *children: Any, **more: Any) -> Html:
    return el("circle", *children, cx=at(x), cy=at(y), r=at(r), class_=class_, **more)


def label(x: float, y: float, content: Any, class_: str = "", anchor: str | None = None, **more: Any) -> Html:
    return el("text", content, x=at(x), y=at(y), class_=class_ or None, text_anchor=anchor, **more)


def path(points: Iterable[tuple[float, float]], class_: str, closed: bool = False, **more: Any) -> Html:
    d = "M" + "L".join(f"{at(x)} {at(y)}" for x, y in points) + ("Z" if closed else "")
    return el("path", d=d, class_=class_, **more)


def tip(content: str) -> Html:
    return el("title", content)


def figure(width: float, height: float, *children: Any, name: str, class_: str = "chart") -> Html:
    """An SVG that scales with its place; `name` is read out in its stead."""
    return el(
        "svg", *children, viewBox=f"0 0 {at(width)} {at(height)}", role="img", aria_label=name, class_=class_,
        style=f"--w:{at(width)}px",
    )  # fmt: skip


def bottom_axis(scale: Scale, y: float, *, about: int = 4, title: str | None = None, zero: float | None = None) -> Html:
    """Ticks below y; with `zero` a line through 0 up to that height."""
    parts = [line(scale.start, y, scale.stop, y)]
    for tick, words in scale.marks(about):
        x = scale(tick)
        parts += [line(x, y, x, y + 3), label(x, y + 13, words, "tick", "middle")]
    if zero is not None and scale.low <= 0 <= scale.high:
        parts.insert(0, line(scale(0.0), zero, scale(0.0), y, "zero"))
    if title:
        parts.append(label((scale.start + scale.stop) / 2, y + 27, title, "axis-title", "middle"))
    return join(parts)


def left_axis(scale: Scale, x: float, *, about: int = 3, title: str | None = None) -> Html:
    parts = []
    for tick, words in scale.marks(about):
        y = scale(tick)
        parts += [line(x - 3, y, x, y), label(x - 5, y + 3.5, words, "tick", "end")]
    if title:
        middle = (scale.start + scale.stop) / 2
        parts.append(label(x - 32, middle, title, "axis-title", "middle", transform=f"rotate(-90 {at(x - 32)} {at(middle)})"))
    return join(parts)


def histogram_bars(values: NDArray[Any], edges: Sequence[float], x: Scale, y: Scale, base: float, class_: str) -> Html:
    counts, _ = np.histogram(values, bins=np.asarray(edges))
    bars = []
    for count, a, b in zip(counts, edges[:-1], edges[1:]):
        if count:
            bars.append(
                rect(x(a) + 0.5, y(count), x(b) - x(a) - 1, base - y(count), class_, tip(f"{count:,} of {values.size:,}"))
            )
    return join(bars)


# Orange is positive and blue negative, in any light and for most eyes; strength is opacity, so the page shows through.
POSITIVE, NEGATIVE = (213, 94, 0), (30, 120, 190)


def heat_image(values: NDArray[np.float64], largest: float) -> str:
    """A matrix as a PNG data address, one pixel per entry."""
    share = np.sqrt(np.clip(np.abs(values) / (largest or 1.0), 0, 1))
    pixels = np.zeros((*values.shape, 4), dtype=np.uint8)
    pixels[..., :3] = np.where((values > 0)[..., None], POSITIVE, NEGATIVE)
    pixels[..., 3] = np.nan_to_num(255 * share).astype(np.uint8)
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8, 6, 0, 0, 0)
    body = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(raw, 9)) + _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(body).decode()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
