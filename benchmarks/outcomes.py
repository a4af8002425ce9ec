"""Outcomes that are not measurements: do intervals cover, is the false discovery rate kept? And what do missing responses cost?

    python -m benchmarks.outcomes binary --sets 10      # log odds ratios, four settings
    python -m benchmarks.outcomes time --sets 10        # months of mean survival time
    python -m benchmarks.outcomes union --sets 10       # two of four responses missing for half of the subjects

Everything under the default prior, on sketches of n = 4,000 subjects with P = 300 features of which 10 matter. Results of a part
replace those of the same part in benchmarks/results/outcomes.json.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from intarsia.server.results.selection import select
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.site.data.kinds import Prepared, prepare
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.probabilities import centred
from intarsia.site.sketch.sketch import SketchTerms, Work, sketch

RESULTS = Path(__file__).parent / "results" / "outcomes.json"
N, M, P, TRUE = 4000, 400, 300, 10
RUN = Settings(draws=400, warmup=400, chains=2, thin=2, workers=1)
SETTINGS = {
    "normal, half": ("normal", 0.5),
    "normal, 7 %": ("normal", 0.07),
    "skewed, half": ("skewed", 0.5),
    "skewed, 7 %": ("skewed", 0.07),
}
FDR = 0.05
HORIZON = 24.0


def features(rng: np.random.Generator, shape: str, n: int = N, columns: int = P) -> np.ndarray:
    X = rng.gamma(4.0, size=(n, columns)) if shape == "skewed" else rng.standard_normal((n, columns))  # skewness 1, or 0
    return (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)


def effects(rng: np.random.Generator) -> np.ndarray:
    """Ten log odds (or log hazard) ratios per standard deviation, from .5 to .9."""
    beta = np.zeros(P)
    beta[rng.choice(P, TRUE, replace=False)] = rng.choice([-1, 1], TRUE) * rng.uniform(0.5, 0.9, TRUE)
    return beta


def fitted(rng: np.random.Generator, X: np.ndarray, prepared: Prepared) -> tuple[Any, np.ndarray]:
    """Draws given the sketch of the features and the prepared response, and its effects in their own language."""
    names = [*(f"x{j}" for j in range(P)), "y"]
    table = Table.open(np.column_stack([X, prepared.values]), responses="y", rules=TableRules(names=names))
    made = sketch(table, SketchKey(rng.bytes(32)), SketchTerms("outcomes", "1", M), work=Work(threads=1))
    draws = sample(made.message.X, made.message.Y, settings=replace(RUN, seed=int(rng.integers(2**31))))
    sigma2 = draws.Sigma.reshape(-1, 1)
    C = draws.C.reshape(len(sigma2), P)
    return draws, prepared.back.effect(C, s_y=float(made.units.y_scale[0]), sigma2=sigma2)


def judged(draws: Any, told: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Which true effects are covered, the slope of the estimates on them, which selections are false."""
    low, high = np.quantile(told, [0.025, 0.975], axis=0)
    at = truth != 0
    selected = select(draws.C, fdr=FDR).selected
    return {
        "covered": ((low <= truth) & (truth <= high))[at].tolist(),
        "covered_zero": float(((low <= 0) & (high >= 0))[~at].mean()),
        "slope": float(told.mean(axis=0)[at] @ truth[at] / (truth[at] @ truth[at])),
        "false": int((selected & ~at).sum()), "found": int((selected & at).sum()),
    }  # fmt: skip


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    covered = np.concatenate([one["covered"] for one in found])
    rates = [one["false"] / max(one["false"] + one["found"], 1) for one in found]
    return {
        "sets": len(found),
        "coverage": round(float(covered.mean()), 3),
        "coverage_se": round(float(np.std([np.mean(one["covered"]) for one in found]) / np.sqrt(len(found))), 3),
        "coverage_zero": round(float(np.mean([one["covered_zero"] for one in found])), 3),
        "slope": round(float(np.mean([one["slope"] for one in found])), 3),
        "fdr": round(float(np.mean(rates)), 3),
        "power": round(float(np.mean([one["found"] / TRUE for one in found])), 3),
    }


def binary(sets: int) -> dict[str, Any]:
    out = {}
    for k, (name, (shape, share)) in enumerate(SETTINGS.items()):
        found = []
        for i in range(sets):
            rng = np.random.default_rng([1, k, i])
            X, beta = features(rng, shape), effects(rng)
            eta = X @ beta
            y = (rng.random(N) < expit(centred(share, float(eta.std())) + eta)) * 1.0
            found.append(judged(*fitted(rng, X, prepare(y, "binary")), beta))
        out[name] = summary(found)
        print(name, out[name], flush=True)
    return out


def survival(rng: np.random.Generator, X: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Months to the event, and months to the end of follow-up: three in ten are censored, whatever their features."""
    return rng.exponential(20 * np.exp(-(X @ beta))), rng.uniform(6, 80, len(X))


def months(sets: int) -> dict[str, Any]:
    found = []
    for i in range(sets):
        rng = np.random.default_rng([2, i])
        X, beta = features(rng, "normal"), effects(rng)
        event, end = survival(rng, X, beta)
        at = np.flatnonzero(beta)
        # The truth is the linear effect on the mean of min(T, horizon), from a large cohort without censoring.
        large = features(np.random.default_rng([3, i]), "normal", 400_000, TRUE)
        whole = np.minimum(survival(np.random.default_rng([4, i]), large, beta[at])[0], HORIZON)
        truth = np.zeros(P)
        truth[at] = np.linalg.lstsq(large, whole - whole.mean(), rcond=None)[0]
        prepared = prepare((np.minimum(event, end), (event <= end) * 1.0), "time", {"horizon": HORIZON, "unit": "months"})
        found.append(judged(*fitted(rng, X, prepared), truth))
    print(summary(found), flush=True)
    return {"mean survival time": summary(found)}


def union(sets: int, rho: float = 0.6) -> dict[str, Any]:
    """Four responses with equicorrelated noise; two of them missing for half of the rows, against the rows that have all."""
    Q, both, alone = 4, [], []
    Sigma = rho + (1 - rho) * np.eye(Q)
    for i in range(sets):
        rng = np.random.default_rng([5, i])
        X = rng.standard_normal((M, P))
        C = np.zeros((P, Q))
        C[rng.choice(P, TRUE, replace=False)] = rng.choice([-1, 1], (TRUE, Q)) * rng.uniform(0.3, 0.8, (TRUE, Q))
        Y = X @ C + rng.standard_normal((M, Q)) @ np.linalg.cholesky(Sigma).T
        Y[M // 2 :, 2:] = np.nan
        seed = int(rng.integers(2**31))
        for rows, into in ((slice(None), both), (slice(0, M // 2), alone)):
            draws = sample(X[rows], Y[rows], settings=replace(RUN, seed=seed), partly=True)
            low, high = np.quantile(draws.C.reshape(-1, P, Q), [0.025, 0.975], axis=0)
            at = (C != 0).all(axis=1)
            selected = select(draws.C, fdr=FDR).selected
            inside = (low <= C) & (high >= C)
            into.append({
                "covered": inside[at].mean(axis=0).tolist(), "width": (high - low)[at].mean(axis=0).tolist(),
                "fdr": float((selected & ~at).sum() / max(selected.sum(), 1)), "power": float(selected[at].mean()),
            })  # fmt: skip
    share = float(
        Sigma[2, :2] @ np.linalg.solve(Sigma[:2, :2], Sigma[:2, 2])
    )  # of a missing response's noise, known from the others
    widths = np.array([one["width"] for one in both]) / np.array([one["width"] for one in alone])
    out = {
        "sets": sets, "rho": rho,
        "coverage_missing": round(float(np.mean([one["covered"][2:] for one in both])), 3),
        "coverage_whole": round(float(np.mean([one["covered"][:2] for one in both])), 3),
        "fdr": round(float(np.mean([one["fdr"] for one in both])), 3),
        "power": round(float(np.mean([one["power"] for one in both])), 3),
        "width_missing": round(float(widths[:, 2:].mean()), 3), "width_missing_theory": round(float(np.sqrt(1 - share / 2)), 3),
        "width_whole": round(float(widths[:, :2].mean()), 3), "width_whole_theory": round(float(np.sqrt(0.5)), 3),
        "intersect": {
            "coverage": round(float(np.mean([one["covered"] for one in alone])), 3),
            "fdr": round(float(np.mean([one["fdr"] for one in alone])), 3),
            "power": round(float(np.mean([one["power"] for one in alone])), 3),
        },
    }  # fmt: skip
    print(out, flush=True)
    return {"half of two responses missing": out}


PARTS = {"binary": binary, "time": months, "union": union}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--sets", type=int, default=10, help="data sets per setting")
    args = parser.parse_args()
    began = time.perf_counter()
    found = PARTS[args.part](args.sets)
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    size = {
        "n": N,
        "m": M,
        "P": P,
        "true_features": TRUE,
        "fdr_asked": FDR,
        **{k: getattr(RUN, k) for k in ("draws", "warmup", "chains", "thin")},
    }
    kept[args.part] = {"settings": found, "of": size, "seconds": round(time.perf_counter() - began, 1)}
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
