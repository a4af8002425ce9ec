"""HTML and SVG from Python values: everything is escaped unless it is `Html` already."""

import html
import re
from typing import Any

from intarsia.wire.plain import probability

_RAISED = dict(zip("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻", strict=True))
NARROW = 3  # columns that a phone has room for
_VOID = {"br", "hr", "img", "input", "meta", "link", "wbr"}


class Html(str):
    """Text that is HTML already and is put in as it is."""

    __slots__ = ()


def text(value: Any) -> Html:
    """A value as escaped text; control and direction-changing characters become visible marks, line ends stay."""
    if isinstance(value, Html):
        return value
    clean = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    return Html(html.escape(clean, quote=True))


def el(tag: str, *children: Any, **attributes: Any) -> Html:
    """An element. `class_` is class, `aria_label` is aria-label; None and False leave an attribute out."""
    parts = [f"<{tag}"]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{text(value)}"')
    parts.append(">")
    if tag not in _VOID:
        parts += [text(child) for child in children if child is not None]
        parts.append(f"</{tag}>")
    return Html("".join(parts))


def join(items: Any, separator: str = "") -> Html:
    """Pieces of HTML (or values, escaped) one after the other."""
    return Html(separator.join(text(item) for item in items if item is not None))


def with_code(words: str) -> Html:
    """A sentence with what stands between `backticks` as code."""
    return join(el("code", part) if i % 2 else part for i, part in enumerate(words.split("`")))


def small(value: float, draws: float = 1000) -> str:
    """A probability with three places, or that it is below or above what so many draws can tell."""
    return probability(value, draws)


def table(head: list[Any], rows: list[list[Any]], *, class_: str = "plain", caption: str | None = None) -> Html:
    """A plain table; cells that are not HTML are escaped. On a phone each row is a card, its cells named by their columns."""
    names = [bare(cell) for cell in head]
    about = caption or ("Table: " + ", ".join(name for name in names if name) if any(names) else "Table")
    made = el(
        "table",
        el("caption", caption) if caption else None,
        el("thead", el("tr", *(el("th", cell, scope="col") for cell in head))) if head else None,
        el("tbody", *(el("tr", *(_cell(i, cell, names) for i, cell in enumerate(row))) for row in rows)),
        class_=f"{class_} cards" if len(head) > NARROW else class_,
    )
    return scrolled(made, about)


def scrolled(child: Any, label: str, class_: str = "scroll") -> Html:
    """What may be wider than the window, in a region that the keyboard reaches and moves."""
    return el("div", child, class_=class_, tabindex="0", role="region", aria_label=label)


def _cell(i: int, cell: Any, names: list[str]) -> Html:
    name = names[i] if i < len(names) and names[i] else None
    return el("th", cell, scope="row") if i == 0 else el("td", cell, data_label=name)


def bare(value: Any) -> str:
    """The text of a heading, whatever marks it up."""
    return html.unescape(re.sub(r"<[^>]*>", "", str(text(value))))


def percent(share: float) -> Html:
    """A share in whole percents, not parted at a line's end; what is nearly none or nearly all is said to be that."""
    if share != share:
        return text("–")
    near = "< 1" if 0 < share < 0.01 else "> 99" if 0.99 < share < 1 else f"{share * 100:.0f}"
    return Html(f"{text(near)}&nbsp;%")


def unparted(words: str) -> Html:
    """A text in which no percent sign is parted from its number."""
    return Html(text(words).replace("%", "&nbsp;%"))


def short(label: str, most: int) -> str:
    """A label cut in the middle, so that both ends can still be told apart."""
    if len(label) <= most:
        return label
    keep = most - 1
    return label[: keep - keep // 2] + "…" + label[len(label) - keep // 2 :]


def number(value: float, digits: int = 3) -> str:
    """A number as a person writes it, with a true minus sign."""
    if value != value:
        return "–"
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    size = abs(value)
    out = f"{value:,.0f}" if size >= 10**digits else f"{value:.{digits}g}"
    if "e" in out and size >= 1e-4:
        out = f"{value:.{digits + 3}f}".rstrip("0")
    mantissa, found, power = out.partition("e")
    out = f"{mantissa} × 10{''.join(_RAISED[c] for c in str(int(power)))}" if found else out
    return out.replace("-", "−")


def fixed(value: float, places: int = 2) -> str:
    """So many places; what rounds to zero has no sign."""
    if value != value:
        return "–"
    out = f"{value:.{places}f}"
    return (out if float(out) else out.removeprefix("-")).replace("-", "−")


def size(count: float) -> str:
    """Bytes as a person says them."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def about(value: float) -> str:
    """An expected number of mistakes, no more precise than it is."""
    return "fewer than 0.1" if value < 0.1 else f"about {value:.1f}"
