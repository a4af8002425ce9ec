"""Five institutions and one cohort of children: what a screened study finds beside pooled columns and beside a sketch.

    python -m experiments.five_institutions                         # simulated: the shape of HELIX, three data sets
    python -m experiments.five_institutions --helix FOLDER          # the public HELIX exposures

Simulated: 1,262 children, 294 exposures of five institutions in families that correlate, one response; six exposures act by
themselves, and one of a pair so alike that nobody can tell them apart. HELIX: the data of the Exposome Data Challenge 2021 of
ISGlobal (github.com/isglobal-exposomeHub), 1,301 children, BMI; the exposures in their order make five institutions. Cohort,
sex, age and the mother's BMI, age and education are taken off beforehand. A screened study goes through the whole protocol in one
process, under the gate's defaults; exposures that a gate refuses by name (levels of too few children, near duplicates) are left
out of all three. Pooled columns and sketch are fitted as the server does it. One line of JSON for each data set.
"""

import argparse
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import intarsia  # noqa: E402
from experiments.pooled import of_rows, study_of  # noqa: E402
from intarsia import study_for  # noqa: E402
from intarsia.errors import PrivacyError  # noqa: E402
from intarsia.server.pseudo_rows import root  # noqa: E402
from intarsia.server.study.fit import sample, settings_of  # noqa: E402

SIZES = (0.25, 0.2, 0.2, 0.16, 0.16, 0.14)  # sd, of the six exposures that act by themselves
ALIKE = 0.2  # of the pair
INSTITUTIONS = ("air", "home", "food", "blood", "urine")
ROWS = 126  # of a sketch: a tenth, which the gate does not warn of
OFF = ("e3_sex_None_male", "hs_child_age_None", "h_mbmi_None", "h_age_None", "h_edumc_None")


def simulated(seed: int, n: int = 1262, P: int = 294) -> tuple[pd.DataFrame, pd.Series, list[str]]:
    """Exposures in families of ten with a common part, the response, and the names of those that act."""
    rng = np.random.default_rng([seed, 1262])
    common = np.repeat(rng.standard_normal((n, -(-P // 10))), 10, axis=1)[:, :P]
    X = np.sqrt(0.4) * common + np.sqrt(0.6) * rng.standard_normal((n, P))
    X[:, 1] = X[:, 0] + 0.1 * rng.standard_normal(n)
    at = [0, *(10 * (3 + 4 * k) + 5 for k in range(len(SIZES)))]
    y = X[:, at] @ (np.array([ALIKE, *SIZES]) * rng.choice([-1, 1], len(at))) + rng.standard_normal(n)
    frame = pd.DataFrame(X, columns=[f"e{j}" for j in range(P)])
    return frame, pd.Series(y, name="bmi"), [f"e{j}" for j in at]


def helix(folder: Path) -> tuple[pd.DataFrame, pd.Series, list[str]]:
    """The public data, as numbers, what is not asked about taken off; nobody knows what acts."""
    X, C, Y = (pd.read_csv(folder / f"{name}.csv").set_index("ID") for name in ("exposome", "covariates", "phenotype"))
    X = X.loc[:, X.nunique() > 1].astype(float)
    cohort = pd.get_dummies(C["h_cohort"], drop_first=True).astype(float)
    Z = np.column_stack([np.ones(len(C)), cohort, C[list(OFF)].astype(float)])
    y = Y["hs_zbmi_who"].to_numpy(float)
    X, y = X - Z @ np.linalg.lstsq(Z, X.to_numpy(), rcond=None)[0], y - Z @ np.linalg.lstsq(Z, y, rcond=None)[0]
    return X, pd.Series(y, index=X.index, name="bmi"), []


def screened(X: pd.DataFrame, y: pd.Series) -> tuple[dict[str, Any], pd.DataFrame]:
    """A study of five institutions, without the exposures that a gate refuses by name; and those that took part."""
    while True:
        tables = {}
        for name, labels in zip(INSTITUTIONS, np.array_split(np.array(X.columns), len(INSTITUTIONS)), strict=True):
            tables[name] = X[list(labels)].assign(id=[f"C{i}" for i in range(len(X))])
        tables["air"]["bmi"] = y.to_numpy()
        sites = [intarsia.Site(name, t, id="id", responses=["bmi"] if name == "air" else []) for name, t in tables.items()]
        study = study_for(sites, id="five", kind="screened", sketch={"holders": list(INSTITUTIONS[:3])})
        try:
            result = intarsia.fit(sites, study, progress=False)
        except PrivacyError as refused:
            named = set(re.findall(r"[\w.]+", str(refused))) & set(X.columns)
            if not named:
                raise
            X = X.drop(columns=list(named))
            continue
        assert result.screened is not None
        return {
            "kept": int(result.screened["kept"].sum()),
            "found": sorted(result.selected),
            "sets": [sorted(one) for one in result.groups],
        }, X


def as_the_server(W: np.ndarray, X: pd.DataFrame, kind: str, m: int, n: int) -> dict[str, Any]:
    """The default fit of all columns: what was found, by name."""
    P, labels = len(X.columns), list(X.columns)
    study = study_of(P, 1)
    _, assessment = sample(study, of_rows(W, np.arange(P), n, P, kind, m), settings_of(study))
    findings = assessment.findings
    sets = [sorted(labels[j] for j in one) for one in findings.findings if len(one) > 1]
    return {"found": sorted(labels[j] for j in np.flatnonzero(findings.selected)), "sets": sets}


def compared(X: pd.DataFrame, y: pd.Series, acts: list[str]) -> dict[str, Any]:
    """One data set, three ways."""
    told, X = screened(X, y)
    W = np.column_stack([X, y])
    W = (W - W.mean(axis=0)) / W.std(axis=0, ddof=1)
    n, rng = len(W), np.random.default_rng(0)
    Phi = np.linalg.qr((G := rng.standard_normal((n, ROWS))) - G.mean(axis=0))[0].T
    pooled = as_the_server(root(W.T @ W), X, "gram", n - 1, n)
    sketch = as_the_server(Phi @ W, X, "orthonormal", ROWS, n)
    return {"n": n, "exposures": len(X.columns), "act": acts, "screened": told, "pooled": pooled, "sketch": sketch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--helix", type=Path, metavar="FOLDER", help="where the three tables of the public data are")
    parser.add_argument("--sets", type=int, default=3, help="simulated data sets")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for data in [helix(args.helix)] if args.helix else map(simulated, range(args.sets)):
        print(json.dumps(compared(*data)), flush=True)


if __name__ == "__main__":
    main()
