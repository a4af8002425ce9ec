"""Figures 2 to 6 of the paper from the result files: the same quantities, drawn without a display."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from experiments.paper.runner import kept_size
from experiments.paper.tables import RHO, SIM2_METHODS, S, results
from intarsia.errors import InputError

# Colour-blind safe (Okabe & Ito); the paper's blue and red for all and for non-zero coefficients.
ALL, NONZERO = "#0072B2", "#D55E00"
COLOURS = {
    "horseshoe": "#D55E00", "BayesVFLReg": "#0072B2", "centralized": "#000000", "dRidge": "#009E73",
    "locus": "#CC79A7", "srrr": "#E69F00", "ridge": "#56B4E9", "elasticnet": "#8C7A00",
}  # fmt: skip
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "0.9", "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False,
    "figure.dpi": 100, "savefig.dpi": 160, "savefig.bbox": "tight",
}  # fmt: skip


def _spread(values: pd.Series) -> tuple[float, float, float]:
    """Mean and a 95 % range over replicates (the values' own range when they are few)."""
    values = values.dropna()
    return float(values.mean()), float(values.quantile(0.025)), float(values.quantile(0.975))


def figure2(frame: pd.DataFrame) -> plt.Figure:
    """Simulation 1: MSE and MSE_nz over the sketch size, for each sparsity, mean ± standard error."""
    models = (("horseshoe", "centralized", "-", "o"), ("BayesVFLReg", "centralized-paper", "--", "s"))
    sizes = sorted(int(m) for m in frame["m"].dropna().unique())
    fig, axes = plt.subplots(1, len(S), figsize=(9.5, 3.4), sharey=True)
    for ax, s in zip(axes, S):
        for name, base, line, marker in models:
            for measure, colour in (("mse", ALL), ("mse_nz", NONZERO)):
                part = frame[(frame["s"] == s)]
                groups = [part[(part["method"] == name) & (part["m"] == m)][measure].dropna() for m in sizes]
                groups.append(part[part["method"] == base][measure].dropna())
                if not all(len(g) for g in groups):
                    continue
                x = np.arange(len(groups)) + (0.06 if name == "horseshoe" else -0.06)
                error = [g.std(ddof=1) / np.sqrt(len(g)) if len(g) > 1 else 0.0 for g in groups]
                ax.errorbar(x, [g.mean() for g in groups], error, color=colour, ls=line, marker=marker, ms=4, lw=1.2, capsize=2)
        ax.set_xticks(range(len(sizes) + 1), [f"m={m}" for m in sizes] + ["all data"])
        ax.set_title(f"s = {s}")
        ax.set_yscale("log")
    axes[0].set_ylabel("mean squared error")
    handles = [
        Line2D([], [], color=NONZERO, label="MSE$_{nz}$"), Line2D([], [], color=ALL, label="MSE"),
        *(Line2D([], [], color="0.3", ls=line, marker=mk, ms=4, label=name) for name, _, line, mk in models),
    ]  # fmt: skip
    fig.legend(handles=handles, loc="lower center", ncol=4, bbox_to_anchor=(0.5, -0.06))
    fig.suptitle("Figure 2. Error over the sketch size, Simulation 1", y=1.0)
    fig.tight_layout()
    return fig


def _sim2_part(frame: pd.DataFrame, design: str, rho: float, s: int, method: str) -> pd.DataFrame:
    here = "stated" if rho == 0 else design
    return frame[(frame["design"] == here) & (frame["rho"] == rho) & (frame["s"] == s) & (frame["method"] == method)]


def _sim2_methods(frame: pd.DataFrame) -> list[str]:
    return [method for method in SIM2_METHODS if (frame["method"] == method).any()]


def figure3(frame: pd.DataFrame, design: str) -> plt.Figure:
    """Simulation 2: log MSE and log MSE_nz of every method, mean and 95 % range of the replicates."""
    methods = _sim2_methods(frame)
    fig, axes = plt.subplots(len(RHO), len(S), figsize=(9.5, 8), sharex=True, sharey=True)
    for row, rho in zip(axes, RHO):
        for ax, s in zip(row, S):
            for i, method in enumerate(methods):
                part = _sim2_part(frame, design, rho, s, method)
                for measure, colour, shift in (("mse", ALL, -0.12), ("mse_nz", NONZERO, 0.12)):
                    values = np.log(part[measure].dropna())
                    if len(values):
                        mean, low, high = _spread(values)
                        ax.plot([i + shift] * 2, [low, high], color=colour, lw=1.4)
                        ax.plot(i + shift, mean, "o", color=colour, ms=5)
            ax.set_title(f"ρ = {rho:g}, s = {s}", fontsize=9)
            ax.set_xticks(range(len(methods)), methods, rotation=55, ha="right", rotation_mode="anchor")
    for row in axes:
        row[0].set_ylabel("log(MSE)")
    handles = [
        Line2D([], [], color=NONZERO, marker="o", label="MSE$_{nz}$"), Line2D([], [], color=ALL, marker="o",
        label="MSE")
    ]  # fmt: skip
    fig.legend(handles=handles, loc="upper right", ncol=2, bbox_to_anchor=(0.99, 0.995))
    fig.suptitle(f"Figure 3. Error against competitors, Simulation 2, design “{design}”", x=0.03, ha="left")
    fig.tight_layout(rect=(0, 0, 1, 0.985))
    return fig


def figure4(frame: pd.DataFrame, design: str) -> plt.Figure:
    """Simulation 2: coverage bars (left axis) with mean interval widths as points (right axis)."""
    methods = [m for m in _sim2_methods(frame) if frame[frame["method"] == m]["coverage"].notna().any()]
    fig, axes = plt.subplots(len(RHO), len(S), figsize=(9.5, 7.6), sharex=True, sharey=True)
    widest = frame[frame["method"].isin(methods)].groupby(["cell", "method"])["width_nz"].mean().max()
    for row, rho in zip(axes, RHO):
        for ax, s in zip(row, S):
            right = ax.twinx()
            right.spines["right"].set_visible(True)
            right.grid(False)
            right.set_ylim(0, 1.15 * widest)
            for i, method in enumerate(methods):
                part = _sim2_part(frame, design, rho, s, method)
                for tag, colour, shift in (("", ALL, -0.19), ("_nz", NONZERO, 0.19)):
                    if part[f"coverage{tag}"].notna().any():
                        ax.bar(i + shift, part[f"coverage{tag}"].mean(), 0.36, color=colour, alpha=0.55)
                        right.plot(
                            i + shift,
                            part[f"width{tag}"].mean(),
                            "D",
                            color=colour,
                            mec="white",
                            mew=0.8,
                            ms=6,
                            clip_on=False,
                        )
            ax.axhline(0.95, color="0.2", lw=0.8, ls="--")
            ax.set_ylim(0, 1.05)
            ax.set_title(f"ρ = {rho:g}, s = {s}", fontsize=9)
            ax.set_xticks(range(len(methods)), methods, rotation=30, ha="right", rotation_mode="anchor")
            if s == S[-1]:
                right.set_ylabel("interval width")
            else:
                right.set_yticklabels([])
        row[0].set_ylabel("coverage")
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=ALL, alpha=0.55, label="coverage"),
        plt.Rectangle((0, 0), 1, 1, color=NONZERO, alpha=0.55, label="coverage$_{nz}$"),
        Line2D([], [], color="0.4", marker="D", ls="", label="interval width"),
    ]
    fig.legend(handles=handles, loc="upper right", ncol=3, bbox_to_anchor=(0.99, 0.995))
    fig.suptitle(f"Figure 4. Coverage of 95 % intervals, design “{design}”", x=0.03, ha="left")
    fig.tight_layout(rect=(0, 0, 1, 0.985))
    return fig


def figure5(frame: pd.DataFrame, cell: str) -> plt.Figure:
    """Out-of-sample MSE_Y of our fit over the competitor's, for each sketch size; below 1 is better for ours."""
    part = frame[frame["cell"] == cell]
    ours = part[part["method"] == "horseshoe"]
    sizes = sorted(int(m) for m in ours["m"].unique())
    fig, ax = plt.subplots(figsize=(6, 3.8))
    for method in ("dRidge", "locus", "srrr", "ridge", "elasticnet", "centralized", "BayesVFLReg"):
        theirs = part[part["method"] == method]
        if not len(theirs):
            continue
        ratios = []
        for m in sizes:
            mine = ours[ours["m"] == m].set_index("replicate")["mse_y"]
            other = theirs[theirs["m"] == m] if method == "BayesVFLReg" else theirs
            ratios.append((mine / other.set_index("replicate")["mse_y"]).mean())
        label = f"{method}, same m" if method == "BayesVFLReg" else method
        ax.plot(sizes, ratios, "o-", color=COLOURS[method], ms=4.5, lw=1.4, label=label)
    ax.axhline(1, color="0.2", lw=0.9, ls="--")
    ax.set_xticks(sizes)
    ax.set_xlabel("rows of the sketch, m")
    ax.set_ylabel("MSE$_Y$ of intarsia / of the competitor")
    ax.legend(title="competitor", loc="center left", bbox_to_anchor=(1.0, 0.5))
    ax.set_title(f"Figure 5. Relative out-of-sample error, {cell}", loc="left", fontsize=10)
    return fig


def draw_all(
    folder: str | Path, size: str | None, out: str | Path, data: str | Path | None = None
) -> tuple[list[Path], list[str]]:
    """Draw every figure that has results; the files, and a line for each that could not be drawn.

    size None: of each experiment the largest that has results.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    missing: list[str] = []

    def save(drawn: plt.Figure | str, name: str) -> None:
        """A picture as PNG; a page, which is text, as HTML."""
        made.append(out / f"{name}.{'html' if isinstance(drawn, str) else 'png'}")
        if isinstance(drawn, str):
            made[-1].write_text(drawn, encoding="utf-8")
        else:
            drawn.savefig(made[-1])
            plt.close(drawn)

    with plt.rc_context(STYLE):
        for experiment, draw in (("sim1", _draw_sim1), ("sim2", _draw_sim2), ("brain", _draw_brain)):
            own = size or kept_size(folder, experiment) or "quick"
            try:
                frame = results(folder, experiment, own)
            except InputError as error:
                missing.append(str(error))
                continue
            for name, fig in draw(frame, own, data):
                save(fig, name)
    return made, missing


def _draw_sim1(frame: pd.DataFrame, size: str, data: Any) -> Sequence[tuple[str, plt.Figure | str]]:
    return [("figure2", figure2(frame))]


def _draw_sim2(frame: pd.DataFrame, size: str, data: Any) -> Sequence[tuple[str, plt.Figure | str]]:
    figures = []
    for design in ("stated", "as-run"):
        if (frame["design"] == design).any():
            figures += [(f"figure3-{design}", figure3(frame, design)), (f"figure4-{design}", figure4(frame, design))]
    return figures


def _draw_brain(frame: pd.DataFrame, size: str, data: Any) -> list[tuple[str, plt.Figure | str]]:
    from experiments.paper.designs.real import BRAIN
    from experiments.paper.figure6 import figure6
    from experiments.paper.realdata import analyse, available, load

    figures: list[tuple[str, plt.Figure | str]] = []
    length = BRAIN.settings[size]
    for cell in dict.fromkeys(frame["cell"]):
        figures.append((f"figure5-{cell}", figure5(frame, cell)))
        if cell in available(data):
            study = load(cell, data)
            chosen = analyse(study, choose_m(frame, cell), length.draws, length.warmup, length.chains)
            figures.append((f"figure6-{cell}", figure6(study, chosen)))
    return figures


def choose_m(frame: pd.DataFrame, cell: str) -> int:
    """The smallest sketch whose error is within 2 % of the best: near-minimal error, least shared (as the paper's
    m=50)."""
    part = frame[(frame["cell"] == cell) & (frame["method"] == "horseshoe")]
    error = part.groupby("m")["mse_y"].mean()
    return int(error.index[error <= 1.02 * error.min()].min())
