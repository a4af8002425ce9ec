"""The lab's tables in the documents: short ones on docs/lab.md, all of them on docs/lab-tables.md."""

import math
from collections.abc import Iterator
from functools import cache

import pandas as pd

from experiments.kept import RESULTS
from experiments.paper import paired
from experiments.paper.designs import EXPERIMENTS
from experiments.paper.runner import kept_size
from experiments.paper.tables import number, results, tables
from experiments.quoting import Between, Quote, Rows, Sentence, bare, kept

LAB, ALL = "docs/lab.md", "docs/lab-tables.md"
SEES = {"intarsia": "200 sketched rows", "horseshoe": "200 sketched rows", "BayesVFLReg": "200 sketched rows"}
METHODS = ("intarsia", "horseshoe", "BayesVFLReg", "MBSP", "locus", "srrr", "elasticnet", "ridge", "dRidge")
OTHERS = METHODS[2:-1]


@cache
def frame(experiment: str) -> pd.DataFrame:
    return results(RESULTS, experiment, kept_size(RESULTS, experiment) or "full")


def mean(part: pd.DataFrame, measure: str, digits: int = 4) -> str:
    return number(part[measure].mean() if len(part) else None, digits)


def span(values: pd.Series, digits: int) -> str:
    values = values.dropna()
    return "-" if not len(values) else f"{values.min():.{digits}f}–{values.max():.{digits}f}"


def sim2_rows() -> Iterator[list[str]]:
    """Each method over the nine stated cells: least and most of the cells' means; worst false discovery rate and power."""
    yield default_row()
    stated = frame("sim2").query("design == 'stated'")
    for method in METHODS:
        cells = stated[stated["method"] == method].groupby("cell")
        if not len(cells):
            continue
        sets, means = cells.size(), cells.mean(numeric_only=True)
        counted = str(sets.min()) if sets.min() == sets.max() else f"{sets.min()} to {sets.max()}"
        worst = [number(means["fdr"].max(), 3), number(means["power"].min(), 3)]
        errors = [span(means["mse_nz"], 4), span(means["coverage_nz"], 2)]
        yield [method, SEES.get(method, "all 1,000 rows"), counted, *errors, *worst, number(means["seconds"].median(), 1)]


def default_row() -> list[str]:
    """The default fit in Simulation 2 (`make bench-default`): other data sets of the same cells."""
    cells = pd.DataFrame(kept("sim2_default")).groupby(["rho", "s"])
    means, sets = cells.mean(numeric_only=True), cells.size()
    worst = [number(means["fdr"].max(), 3), number(means["power"].min(), 3)]
    errors = [span(means["mse_nz"], 4), span(means["coverage_nz"], 2)]
    return ["intarsia", SEES["intarsia"], str(sets.min()), *errors, *worst, number(cells["seconds"].median().median(), 1)]


def harder_rows() -> Iterator[list[str]]:
    """Ours in every harder design, and the others' error beside it."""
    every = frame("harder")
    for cell in dict.fromkeys(every["cell"]):
        here = every[every["cell"] == cell]
        ours = here[here["method"] == "horseshoe"]
        own = [mean(ours, "mse_nz"), *(mean(ours, measure, 2) for measure in ("coverage_nz", "fdr", "power"))]
        yield [str(cell), str(len(ours)), *own, *(mean(here[here["method"] == other], "mse_nz") for other in OTHERS)]


def prediction_rows(experiment: str) -> Iterator[list[str]]:
    """Out-of-fold R² by set and number of rows: the sketched fits, then what sees all rows."""
    every = frame(experiment)
    for cell in dict.fromkeys(every["cell"]):
        here = every[every["cell"] == cell]
        for m in sorted(here["m"].dropna().unique()):
            at = here[here["m"] == m]
            sketched = [mean(at[at["method"] == name], "r2", 2) for name in ("horseshoe", "BayesVFLReg", "sketched-ridge")]
            yield [str(cell), f"m = {m:.0f}", *sketched, "-", "-", "-", "-"]
        pooled = [mean(here[here["method"] == name], "r2", 2) for name in ("locus", "srrr", "elasticnet", "ridge")]
        yield [str(cell), "all", mean(here[here["method"] == "centralized"], "r2", 2), "-", "-", *pooled]


def paired_figures() -> list[str]:
    """Data sets of Simulation 2 won, how many there are, ratio of errors; the same where the paper's chains have settled."""
    every = frame("sim2")
    both = paired.pairs(every, "mse_nz")
    settled = every[(every["method"] == paired.THEIRS) & (every["sigma2"] < paired.SETTLED)]
    out = []
    for part in (both, both.merge(settled[["cell", "replicate"]], on=["cell", "replicate"])):
        ratio = math.exp((part["mse_nz"].map(math.log) - part["mse_nz_other"].map(math.log)).mean())
        out += [str(int((part["mse_nz"] < part["mse_nz_other"]).sum())), str(len(part)), bare(ratio, 2)]
    return out


def affinities() -> list[str]:
    """Affinity of the sketched with the pooled posterior, non-zero coefficients, least and most over s: ours and the paper's at
    m = 50, then at m = 250."""
    every = frame("sim1")
    out = []
    for m in (50, 250):
        for method in ("horseshoe", "BayesVFLReg"):
            cells = every[(every["method"] == method) & (every["m"] == m)].groupby("s")["acc_gauss_nz"].mean()
            out += [bare(cells.min(), 2), bare(cells.max(), 2)]
    return out


def all_tables() -> str:
    parts = []
    for name, experiment in EXPERIMENTS.items():
        size = kept_size(RESULTS, name)
        if size is not None:
            parts += [f"## {experiment.title}", *(table.markdown() for table in tables(RESULTS, name, size))]
    return "\n\n".join(part.strip() for part in parts)


LAB_QUOTES: list[Quote] = [
    Rows(LAB, "lab simulation 2", sim2_rows),
    Rows(LAB, "lab simulation 1", lambda: paired.sim1_paired(frame("sim1")).rows),
    Rows(LAB, "lab harder", harder_rows),
    Rows(LAB, "lab brain", lambda: prediction_rows("brain")),
    Rows(LAB, "lab real", lambda: prediction_rows("real")),
    Sentence(
        LAB,
        "It has less error on {} of {} data sets, {} times the paper's error in the geometric mean. On the data sets where the "
        "paper's chains have settled (a noise variance below 1.2, true: 1) it has less on {} of {}, {} times.",
        paired_figures,
    ),
    Sentence(
        LAB,
        "grows from {}–{} at m = 50 (the paper's method: {}–{}) to {}–{} at m = 250 ({}–{})",
        affinities,
    ),
    Between(ALL, "lab", all_tables),
]
