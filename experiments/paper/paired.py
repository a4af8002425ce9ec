"""Our default against the paper's method on the same data sets: paired differences, and the coverage of our intervals.

Means alone mislead here: the error differs far more between data sets than between methods, and a chain that has not
converged on one data set can decide a mean. The paired difference of log error, its standard error and the share of data sets
won say what a table of means cannot.
"""

import numpy as np
import pandas as pd

from experiments.paper.tables import RHO, S, Table, number

OURS, THEIRS = "horseshoe", "BayesVFLReg"
BASE = {"horseshoe": "centralized", "BayesVFLReg": "centralized-paper"}


def pairs(frame: pd.DataFrame, measure: str, other: str = THEIRS) -> pd.DataFrame:
    """The measure of our default and of the other method, side by side for each data set and sketch size (0: all the data)."""
    ours, theirs = (
        frame[frame["method"].isin((name, BASE.get(name, name)))].assign(m=lambda f: f["m"].fillna(0)) for name in (OURS, other)
    )
    keys = ["cell", "replicate"] + (["m"] if other in BASE else [])
    return ours.merge(theirs[[*keys, measure]], on=keys, suffixes=("", "_other")).dropna(subset=[measure, f"{measure}_other"])


def _line(part: pd.DataFrame) -> tuple[str, ...]:
    """Data sets, both means, ratio of geometric means with a 95 % range, data sets won."""
    if not len(part):
        return ("0", *("-",) * 5)
    gap = np.log(part["mse_nz"]) - np.log(part["mse_nz_other"])
    n = len(part)
    half = 1.96 * gap.std(ddof=1) / np.sqrt(n) if n > 1 else float("nan")
    middle = float(gap.mean())
    span = "-" if np.isnan(half) else f"{np.exp(middle - half):.2f}–{np.exp(middle + half):.2f}"
    means = (number(part["mse_nz"].mean(), 4), number(part["mse_nz_other"].mean(), 4))
    return (str(n), *means, number(float(np.exp(middle)), 2), span, f"{int((gap < 0).sum())}/{n}")


HEADER = ("data sets", "ours", "BayesVFLReg", "ratio", "95 % range", "won")
NOTES = [
    "MSE_nz of intarsia and of BayesVFLReg on the same data sets; ratio: of geometric means, below 1 is better for intarsia;",
    "its range from the standard error of the paired differences of log MSE_nz; won: data sets with less error than BayesVFLReg.",
]


def sim1_paired(frame: pd.DataFrame) -> Table:
    both = pairs(frame, "mse_nz")
    rows = []
    for m in (50, 100, 250, 0):
        for s in S:
            part = both[(both["m"] == m) & (both["s"] == s)]
            rows.append((f"m={m}" if m else "centralized", f"s={s}", *_line(part)))
    return Table("Simulation 1: our default against the paper's method, paired", ("sketch", "s", *HEADER), rows, NOTES)


SETTLED = 1.2  # noise variance (true: 1) under which a chain has found the signal; one still on its way has two to thirty


def sim2_paired(frame: pd.DataFrame, settled: bool = False) -> Table:
    """Every data set, or only those on which the paper's chains have settled: what is left when chains are not the reason."""
    both = pairs(frame, "mse_nz")
    title, notes = "Simulation 2: our default against the paper's method, paired", NOTES
    if settled:
        their = frame[(frame["method"] == THEIRS) & (frame["sigma2"] < SETTLED)]
        both = both.merge(their[["cell", "replicate"]], on=["cell", "replicate"])
        title += ", where its chains have settled"
        won = int((both["mse_nz"] < both["mse_nz_other"]).sum())
        ratio = np.exp(np.log(both["mse_nz"] / both["mse_nz_other"]).mean()) if len(both) else float("nan")
        notes = [
            f"Only data sets on which BayesVFLReg's mean noise variance is below {SETTLED} (true: 1).",
            f"There are {len(both)}, of them {won} won; ratio over all of them {number(float(ratio), 2)}.",
        ]
    rows = []
    for design in ("stated", "as-run"):
        for rho in RHO:
            if rho == 0 and design == "as-run":
                continue
            for s in S:
                part = both[(both["design"] == design) & (both["rho"] == rho) & (both["s"] == s)]
                if len(part):
                    rows.append((design, f"ρ={rho:g} s={s}", *_line(part)))
    return Table(title, ("design", "cell", *HEADER), rows, notes)


def coverage(frame: pd.DataFrame, title: str) -> Table:
    """Coverage of the non-zero coefficients by our 95 % intervals, with its standard error over data sets."""
    rows: list[tuple[str, ...]] = []
    for cell in dict.fromkeys(frame["cell"]):
        ours = frame[(frame["cell"] == cell) & frame["method"].isin((OURS, BASE[OURS]))]
        for m, group in ours.assign(m=ours["m"].fillna(0)).groupby("m", sort=True):
            values = group["coverage_nz"].dropna()
            if not len(values):
                continue
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
            rhat, sketch = group["rhat_99"].median(), f"m={m:.0f}" if m else "centralized"
            rows.append((str(cell), sketch, str(len(values)), number(values.mean()), number(error), number(rhat)))
    header = ("cell", "sketch", "data sets", "coverage_nz", "standard error", "R̂ (99 %), median")
    return Table(title, header, rows, ["Standard error over data sets. R̂: what 99 % of the coefficients stay under."])
