"""The paper's tables from the result files, its printed numbers beside ours; and tables of what it did not print."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.paper.designs.design import MEASURES
from experiments.paper.runner import result_file
from intarsia.errors import InputError

# Table 1 of the paper: by quantity and m, for s = 10, 30, 50.
PAPER_TABLE1 = {
    ("accuracy_nz", 50): (0.995, 0.997, 0.998), ("accuracy_nz", 100): (0.994, 0.997, 0.998),
    ("accuracy_nz", 250): (0.994, 0.996, 0.997), ("accuracy_z", 50): (0.997, 0.997, 0.998),
    ("accuracy_z", 100): (0.998, 0.998, 0.999), ("accuracy_z", 250): (0.999, 0.999, 0.999),
    ("efficiency", 50): (9.880, 9.846, 9.917), ("efficiency", 100): (7.748, 7.463, 7.680),
    ("efficiency", 250): (5.562, 4.540, 5.542), ("efficiency", None): (3.261, 3.228, 2.932),
}  # fmt: skip
# Table 2: FDR by method for rho = 0, .5, .7, each with s = 10, 30, 50.
PAPER_TABLE2 = {
    "BayesVFLReg": (0.004, 0.037, 0.063, 0.074, 0.117, 0.159, 0.132, 0.079, 0.202),
    "dRidge": (0.0,) * 9,
    "locus": (0.789, 0.561, 0.435, 0.797, 0.575, 0.464, 0.804, 0.586, 0.471),
    "srrr": (0.349, 0.241, 0.134, 0.391, 0.343, 0.252, 0.316, 0.288, 0.271),
}
S = (10, 30, 50)
RHO = (0.0, 0.5, 0.7)
SIM2_METHODS = ("intarsia", "horseshoe", "BayesVFLReg", "MBSP", "dRidge", "locus", "srrr", "ridge", "elasticnet")


@dataclass(frozen=True)
class Table:
    """A table as text: header, rows of cells, notes below."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)

    def plain(self) -> str:
        """Aligned columns for a terminal or a file."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        text = [self.title, ""]
        for index, line in enumerate(lines):
            cells = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
            text.append("  ".join(cells).rstrip())
            if index == 0:
                text.append("-" * min(118, sum(widths) + 2 * len(widths) - 2))
        return "\n".join([*text, "", *self.notes] if self.notes else text)

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.header) + " |", "|" + "---|" * len(self.header)]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([*lines, "", *self.notes])

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "header": list(self.header),
            "rows": [list(r) for r in self.rows],
            "notes": self.notes,
        }


def results(folder: str | Path, experiment: str, size: str) -> pd.DataFrame:
    """The rows of an experiment as a data frame."""
    path = result_file(folder, experiment, size)
    if not path.exists():
        raise InputError(
            f"No results of {experiment} at size {size} in the results folder. "
            f"Run `intarsia lab run {experiment} --size {size}` first."
        )
    frame = pd.read_csv(path)
    return frame.astype({name: float for name in MEASURES if name in frame})


def number(value: float | None, digits: int = 3) -> str:
    """A number as the paper prints it, `-` when there is none."""
    return "-" if value is None or pd.isna(value) else f"{value:.{digits}f}"


class Means:
    """Means over replicates by method, design, rho, s and m, looked up without filtering the frame each time."""

    def __init__(self, frame: pd.DataFrame, by: tuple[str, ...]) -> None:
        filled = frame[list(by)].assign(**({"m": frame["m"].fillna(0)} if "m" in by else {}))
        present = [name for name in MEASURES if name in frame]
        means = frame[present].groupby([filled[name] for name in by]).mean()
        self._means: dict[str, dict[Any, float]] = {name: means[name].to_dict() for name in present}

    def get(self, measure: str, *key: Any) -> float | None:
        value = self._means.get(measure, {}).get(tuple(0 if part is None else part for part in key))
        return None if value is None or pd.isna(value) else value


def table1(frame: pd.DataFrame) -> Table:
    """Accuracy and computational efficiency (paper's Table 1), with the exact affinities that its formula misses."""
    means = Means(frame, ("method", "m", "s"))
    rows: list[tuple[str, ...]] = []
    for part, label in (("nz", "accuracy, non-zero"), ("z", "accuracy, zero")):
        for m in (50, 100, 250):
            rows.append((label, f"m={m}", "paper", *(number(v) for v in PAPER_TABLE1[f"accuracy_{part}", m])))
            for method in ("BayesVFLReg", "horseshoe"):
                for tag, words in (("paper", "printed formula"), ("gauss", "exact, Gaussian"), ("draws", "from draws")):
                    values = [means.get(f"acc_{tag}_{part}", method, m, s) for s in S]
                    rows.append((label, f"m={m}", f"{method}, {words}", *(number(v) for v in values)))
    for m_or_none in (50, 100, 250, None):
        where = "centralized" if m_or_none is None else f"m={m_or_none}"
        rows.append(("log2(ESS/T)", where, "paper", *(number(v) for v in PAPER_TABLE1["efficiency", m_or_none])))
        for method in ("BayesVFLReg", "horseshoe"):
            fitted = method if m_or_none else {"BayesVFLReg": "centralized-paper", "horseshoe": "centralized"}[method]
            for measure, words in (("efficiency", "coda"), ("efficiency_arviz", "ArviZ bulk")):
                values = [means.get(measure, fitted, m_or_none, s) for s in S]
                rows.append(("log2(ESS/T)", where, f"{method}, {words}", *(number(v) for v in values)))
    notes = [
        _count(frame),
        "The printed formula averages over its grid without the grid's width: near 1 whatever the posteriors are.",
        "Exact lines: the Bhattacharyya affinity of the sketched and the centralized posterior of the same model.",
    ]
    return Table("Table 1: accuracy and computational efficiency, Simulation 1", _s_header(), rows, notes)


def sim1_errors(frame: pd.DataFrame) -> Table:
    """MSE, MSE_nz, coverage and FDR of Simulation 1 (Figure 2 in numbers)."""
    means = Means(frame, ("method", "m", "s"))
    rows: list[tuple[str, ...]] = []
    for measure in ("mse", "mse_nz", "coverage_nz", "width_nz", "fdr", "power"):
        for m in (50, 100, 250, None):
            for method in ("BayesVFLReg", "horseshoe", "intarsia"):
                fitted = method if m else {"BayesVFLReg": "centralized-paper", "horseshoe": "centralized"}.get(method, method)
                values = [means.get(measure, fitted, m, s) for s in S]
                if method == "intarsia" and all(v is None for v in values):
                    continue
                digits = 6 if measure == "mse" else 4
                rows.append((measure, f"m={m}" if m else "centralized", method, *(number(v, digits) for v in values)))
        values = [means.get(measure, "MBSP", None, s) for s in S]
        if any(v is not None for v in values):
            rows.append((measure, "centralized", "MBSP", *(number(v, 6 if measure == "mse" else 4) for v in values)))
    return Table("Simulation 1: error, coverage, selection", _s_header(), rows, [_count(frame)])


def _s_header() -> tuple[str, ...]:
    return ("quantity", "sketch", "from", *(f"s={s}" for s in S))


def _count(frame: pd.DataFrame) -> str:
    """How many replicates the means are over, method by method where they differ."""
    counts = frame.groupby(["method", "cell", "m"], dropna=False, sort=False).size().groupby("method", sort=False)
    spans = {str(name): (int(c.min()), int(c.max())) for name, c in counts}
    words = {name: str(low) if low == high else f"{low} to {high}" for name, (low, high) in spans.items()}
    if len(set(words.values())) == 1:
        return f"Means over {next(iter(words.values()))} replicates."
    return f"Means over replicates: {', '.join(f'{name} {text}' for name, text in words.items())}."


def _sim2_columns() -> tuple[str, ...]:
    return tuple(f"{rho:g}/{s}" for rho in RHO for s in S)


def _sim2_values(means: Means, measure: str, method: str, design: str) -> list[float | None]:
    # At rho = 0 the two designs are one.
    return [means.get(measure, method, "stated" if rho == 0 else design, rho, s) for rho in RHO for s in S]


def table2(frame: pd.DataFrame) -> Table:
    """False discovery rate of Algorithm 3 (paper's Table 2), both designs, both covariance choices, and own rules."""
    means = Means(frame, ("method", "design", "rho", "s"))
    rows: list[tuple[str, ...]] = []
    for method in SIM2_METHODS:
        if method in PAPER_TABLE2:
            rows.append((method, "paper", "", *(number(v) for v in PAPER_TABLE2[method])))
        for design in ("as-run", "stated"):
            for measure, words in (("fdr_mclust", "Alg. 3, BIC"), ("fdr_eii", "Alg. 3, EII"), ("fdr", "own rule")):
                values = _sim2_values(means, measure, method, design)
                if any(v is not None for v in values):
                    rows.append((method, design, words, *(number(v) for v in values)))
    notes = [
        "Columns: correlation / number of non-zero features. " + _count(frame),
        "as-run: features by the transposed Cholesky factor, as in the authors' example; stated: equicorrelated.",
        "Alg. 3, BIC chooses the mixture's covariance as mclust does; EII forces one equal sphere.",
        "Own rule: Bayesian FDR of intarsia and of the horseshoe, MBSP's intervals, locus' inclusion probabilities, support of "
        "srrr and elasticnet.",
    ]
    return Table("Table 2: false discovery rate, Simulation 2", ("method", "design", "rule", *_sim2_columns()), rows, notes)


def sim2_measure(frame: pd.DataFrame, measure: str, digits: int = 4) -> Table:
    """One measure of Simulation 2 for every method, design and cell."""
    means = Means(frame, ("method", "design", "rho", "s"))
    rows: list[tuple[str, ...]] = []
    for design in ("stated", "as-run"):
        for method in SIM2_METHODS:
            values = _sim2_values(means, measure, method, design)
            if any(v is not None for v in values):
                rows.append((method, design, *(number(v, digits) for v in values)))
    return Table(f"Simulation 2: {measure}", ("method", "design", *_sim2_columns()), rows, [_count(frame)])


def by_cell(frame: pd.DataFrame, title: str, measures: tuple[str, ...], digits: int = 4) -> Table:
    """Every cell and method, one column for each measure."""
    rows = []
    for cell in dict.fromkeys(frame["cell"]):
        part = frame[frame["cell"] == cell]
        for (method, m), group in part.groupby(["method", "m"], dropna=False, sort=False):
            label = str(method) if pd.isna(m) else f"{method}, m={int(m)}"
            rows.append((str(cell), label, *(number(group[measure].mean(), digits) for measure in measures)))
    return Table(title, ("cell", "method", *measures), rows, [_count(frame)])


def tables(folder: str | Path, experiment: str, size: str) -> list[Table]:
    """The tables of one experiment."""
    from experiments.paper import paired

    frame = results(folder, experiment, size)
    match experiment:
        case "sim1":
            covered = paired.coverage(frame, "Simulation 1: coverage of the non-zero coefficients, our default")
            return [table1(frame), sim1_errors(frame), paired.sim1_paired(frame), covered]
        case "sim2":
            extra = ("mse_nz", "mse", "coverage_nz", "coverage", "width_nz", "power", "power_mclust", "power_eii", "seconds")
            covered = paired.coverage(frame, "Simulation 2: coverage of the non-zero coefficients, our default")
            others = [sim2_measure(frame, measure, 6 if measure == "mse" else 4) for measure in extra]
            both = [paired.sim2_paired(frame), paired.sim2_paired(frame, settled=True)]
            return [table2(frame), *others, *both, covered]
        case "harder":
            measures = ("mse_nz", "mse", "coverage_nz", "fdr", "power", "fdr_mclust", "power_mclust", "seconds")
            return [by_cell(frame, "Harder designs", measures)]
        case _:
            return [by_cell(frame, "Out-of-fold prediction", ("r2", "mse_y", "seconds"))]
