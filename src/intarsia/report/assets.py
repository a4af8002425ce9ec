"""The page's style and script, as text. Both live in the page: nothing is fetched."""

from pathlib import Path


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


_LIGHT = """--bg:#faf8f4;--card:#fff;--ink:#1f2329;--mute:#59616c;--line:#e2ddd3;--accent:#8a4a23;--accent-ink:#fff;
--pos:#c9560b;--neg:#1f6fae;--good:#1d6b3a;--good-bg:#e7f3ea;--warn:#7a5600;--warn-bg:#fbf1d9;--bad:#9b2c1f;--bad-bg:#fbe9e5;--truth:#1f2329;
--bar:#b58a63;--frame:#f3efe7;--code:#f3efe7;color-scheme:light;"""
_DARK = """--bg:#15171b;--card:#1d2025;--ink:#ebe8e2;--mute:#a9afb8;--line:#343941;--accent:#e2a877;--accent-ink:#1b1410;
--pos:#f08a46;--neg:#62acec;--good:#7fd29a;--good-bg:#1b2d22;--warn:#e8c468;--warn-bg:#2f2816;--bad:#ff9a8a;--bad-bg:#33201d;--truth:#f4f1ea;
--bar:#a9805c;--frame:#23272d;--code:#262a31;color-scheme:dark;"""
# Inlays: walnut, teal, ochre, plum, slate, moss, brick, sky; white letters are readable on each.
_SITES = ("#7a4a2b", "#1f6f6b", "#8a6a14", "#74406f", "#4b5a70", "#55702f", "#9a3f35", "#2f6a9a")
_CHAINS = ("#1f77b4", "#d9760c", "#2a9157", "#b2559f", "#8a6a14", "#5b6fd8", "#9a3f35", "#4d8f94")
_NETWORKS = (
    "#3a7ca5",
    "#d1782f",
    "#3f9a6b",
    "#b0609d",
    "#b9942a",
    "#6a6fc4",
    "#b4524a",
    "#4f979b",
    "#7d8a3c",
    "#8b8b93",
)

STYLE = (
    f":root{{{_LIGHT}}}@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{_DARK}}}}}"
    f":root[data-theme=dark]{{{_DARK}}}@media print{{:root,:root[data-theme=dark]{{{_LIGHT}}}}}"
    + "".join(f".s{i}{{fill:{c};--c:{c}}}" for i, c in enumerate(_SITES))
    + "".join(f".c{i}{{--c:{c}}}" for i, c in enumerate(_CHAINS))
    + "".join(f".n{i}{{fill:{c};--c:{c}}}" for i, c in enumerate(_NETWORKS))
    + _text("style.css")
)

SCRIPT = "\n".join(_text(name).strip() for name in ("report.js", "figures.js"))
MONITOR_SCRIPT = _text("monitor.js").strip()

LOGO = (
    '<svg viewBox="0 0 26 26" aria-hidden="true"><path class="s0" d="M1 1h12v12H1z"/><path class="s1" d="M13 1h12v24z"/>'
    '<path class="s2" d="M1 13h12v12H1z"/><path class="s6" d="M13 1v24h12z"/></svg>'
)
