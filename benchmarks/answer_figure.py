"""Draw the kept times to an answer against the number of features: `python -m benchmarks.answer_figure`.

Ours are the rows of benchmarks/results/answer.json with independent features and a right start; those that ended at their budget
are hollow. Beside them the multi-task lasso of the same rows, and from growth.json what the paper's sampler and NUTS would take
for 400 effective draws of the slowest coefficient, where they came that far within their budget.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "answer.png"
NEEDED = 0.4  # of the 1,000 effective draws that growth.json speaks of


def series() -> dict[str, list[tuple[int, float, bool]]]:
    """Name -> (features, seconds, has it converged?)."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / "answer.json").read_text(encoding="utf-8"))
    others: list[dict[str, Any]] = json.loads((RESULTS / "growth.json").read_text(encoding="utf-8"))["comparison"]
    out: dict[str, list[tuple[int, float, bool]]] = {}
    for row in rows:
        if row["design"] == "independent" and "wrong" not in row["case"]:
            name = "intarsia, two cores" if row["device"] == "cpu" else "intarsia, one H200"
            done = row["rhat_over"] + row["folded_over"] + row["ess_under"] == 0
            out.setdefault(name, []).append((row["P"], row["seconds_to_answer"], done))
            if "lasso_seconds" in row:
                out.setdefault("multi-task lasso (no intervals)", []).append((row["P"], row["lasso_seconds"], True))
    for key, name in (("paper", "the paper's sampler, one core"), ("nuts", "NUTS (NumPyro), one core")):
        for row in others:
            if row["method"] == key and "s_per_1000_worst" in row:
                out.setdefault(name, []).append((row["P"], NEEDED * row["s_per_1000_worst"], row["settled"]))
    return out


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), dpi=150)
    for (name, points), marker in zip(series().items(), "osD^v", strict=False):
        points = sorted(points)
        (line,) = axes.plot([p for p, _, _ in points], [s for _, s, _ in points], alpha=0.4)
        color = line.get_color()
        for p, s, settled in points:
            axes.scatter(p, s, marker=marker, edgecolors=color, color=color if settled else "white", zorder=3)
        axes.scatter([], [], marker=marker, color=color, label=name)
    axes.set(xscale="log", yscale="log", xlabel="features", ylabel="seconds to an answer")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False, title="hollow: not settled when it ended", title_fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE)


if __name__ == "__main__":
    main()
