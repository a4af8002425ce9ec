"""The pictures of docs/performance.md from the results of `experiments.growth`."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

# Colour-blind safe (Okabe & Ito).
COLOURS = {"sketch": "#009E73", "sample": "#D55E00"}
NAMES = {"sketch": "sketching", "sample": "sampling"}
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "0.9",
    "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False, "savefig.dpi": 110, "savefig.bbox": "tight",
}  # fmt: skip
PANELS = [[("sketch", "n"), ("sketch", "P"), ("sketch", "m")], [("sample", "P"), ("sample", "m"), ("sample", "Q")]]


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """growth-time.png and growth-memory.png."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with plt.rc_context(STYLE):
        for kind in ("time", "memory"):
            name, figure = f"growth-{kind}", growth(found, kind)
            made.append(folder / f"{name}.png")
            figure.savefig(made[-1])
            plt.close(figure)
    return made


def source(found: dict[str, Any]) -> str:
    return f"{found['command']} · {found['machine']}, one of them used · {found['date']}"


def growth(found: dict[str, Any], kind: str) -> plt.Figure:
    """Two rows of panels: sketching and sampling, each against its sizes, the fitted curve through the points."""
    fig, axes = plt.subplots(2, 3, figsize=(10, 6.4))
    for row, line in zip(axes, PANELS):
        for ax, (what, against) in zip(row, line):
            part = [c for c in found["curves"] if c["against"] == against and (c["what"] == "sketch") == (what == "sketch")]
            for c in part:
                curve(ax, c, kind)
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_xlabel({"n": "subjects, n", "P": "features, P", "m": "rows of the sketch, m", "Q": "responses, Q"}[against])
            unit = "MB above the imports" if kind == "memory" else "s per table" if what == "sketch" else "ms per sweep"
            ax.set_ylabel(f"{'sketching' if what == 'sketch' else 'sampling'}: {unit}")
            decades(ax)
            if part:
                ax.legend(fontsize=7.5, loc="upper left", handlelength=1.4)
    what = "Time" if kind == "time" else "Peak memory"
    fig.suptitle(f"{what} against size, with the fitted exponent k of a + b·xᵏ", x=0.01, ha="left", fontsize=11)
    fig.text(0.01, 0.005, source(found), fontsize=7.5, color="0.35")
    fig.tight_layout(rect=(0, 0.02, 1, 0.985))
    return fig


def curve(ax: Axes, c: dict[str, Any], kind: str) -> None:
    x = np.array([p[c["against"]] for p in c["points"]], dtype=float)
    key = "mb" if kind == "memory" else "seconds" if c["what"] == "sketch" else "ms_per_sweep"
    y = np.array([p[key] for p in c["points"]], dtype=float)
    x, y = x[y > 1e-3], y[y > 1e-3]
    fit, colour = c[kind], COLOURS[c["what"]]
    fixed = ", ".join(f"{k}={v:,}" for k, v in c["fixed"].items())
    exponent = "levels off" if fit is None else f"k = {fit['k']:.2f}"
    if kind == "time":
        exponent += f" (theory {c['theory']})"
    ax.plot(x, y, "o", color=colour, ms=5, label=f"{NAMES[c['what']]}, {fixed}:\n{exponent}")
    if fit is not None:
        grid = np.geomspace(x.min(), x.max(), 60)
        ax.plot(grid, fit["a"] + fit["b"] * grid ** fit["k"], "-", color=colour, lw=1.1)
    else:
        ax.plot(x, y, ":", color=colour, lw=1)
    # Room for the legend above the curves.
    low, high = ax.get_ylim() if ax.get_yscale() == "log" else (y.min(), y.max())
    ax.set_ylim(min(low, y.min() * 0.6), max(high, y.max() * 12))


def decades(ax: Axes) -> None:
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(numticks=12))
        axis.set_minor_formatter(NullFormatter())
