"""Outcomes that are not measurements: do intervals cover, is the false discovery rate kept? And what do missing responses cost?

    python -m experiments.outcomes --jobs 16             # 40 data sets per setting, every setting; goes on where it stopped
    python -m experiments.outcomes --sets 2 --parts time # a look

Everything under the default prior, on sketches of n = 4,000 subjects with P = 300 features of which 10 matter, m = 400 rows.

binary  log odds ratios of .5 to .9 per standard deviation (odds ratios 1.6 to 2.5), a common and a rare outcome, normal features
        and features of skewness 1
weak    the same with log odds ratios of .25 to .5
time    months of mean survival time up to a horizon, three in ten subjects censored
union   four responses with correlated noise, two of them missing for half of the subjects
predicted  probabilities for 20,000 new subjects in the settings of `binary`: calibration, and whether AUC and Brier score lie
        where rows left out made one expect them

Each row is one data set; rows are appended to experiments/results/outcomes_rows.jsonl as they are done, and
experiments/results/outcomes.json sums them up. Φ has the law of the sites' (site/sketch), from NumPy's random numbers.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from scipy.special import expit  # noqa: E402
from scipy.stats import skew  # noqa: E402

from experiments.kept import keep  # noqa: E402
from intarsia.server.assess.effects import unshrunk  # noqa: E402
from intarsia.server.assess.findings import select  # noqa: E402
from intarsia.server.assess.stacking import from_all_rows, interval_of_explained, stack  # noqa: E402
from intarsia.server.posterior.draws import Draws  # noqa: E402
from intarsia.server.prediction_weights import refit_settings  # noqa: E402
from intarsia.server.sampler.horseshoe.model import Model  # noqa: E402
from intarsia.server.sampler.horseshoe.sample import sample  # noqa: E402
from intarsia.server.sampler.settings import Settings  # noqa: E402
from intarsia.site.data.kinds import Prepared, prepare  # noqa: E402
from intarsia.site.own_language import Response  # noqa: E402
from intarsia.site.probabilities import auc, brier, calibration, centred  # noqa: E402
from intarsia.wire.kinds import Back  # noqa: E402
from intarsia.wire.log_odds import expected_scores, normal_draws  # noqa: E402

RESULTS = Path(__file__).parent / "results"
N, M, P, TRUE, FDR, HORIZON, RHO, Q = 4000, 400, 300, 10, 0.05, 24.0, 0.6, 4
RUN = Settings(draws=400, warmup=400, chains=2, thin=2, workers=1)
SETTINGS = {
    "normal features, half yes": ("normal", 0.5),
    "normal features, 7 % yes": ("normal", 0.07),
    "skewed features, half yes": ("skewed", 0.5),
    "skewed features, 7 % yes": ("skewed", 0.07),
}
SIZES = {"binary": (0.5, 0.9), "weak": (0.25, 0.5)}
TIME, UNION = "mean survival time", "two of four responses missing for half"
PARTS = {"binary": list(SETTINGS), "weak": list(SETTINGS), "time": [TIME], "union": [UNION], "predicted": list(SETTINGS)}
NEW = 20_000  # subjects predicted


class Task(NamedTuple):
    part: str
    setting: str
    number: int

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng([list(PARTS).index(self.part), PARTS[self.part].index(self.setting), self.number])


def features(rng: np.random.Generator, shape: str, n: int = N, columns: int = P) -> np.ndarray:
    X = rng.gamma(4.0, size=(n, columns)) if shape == "skewed" else rng.standard_normal((n, columns))  # skewness 1, or 0
    return (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)


def effects(rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Ten log odds (or log hazard) ratios per standard deviation."""
    beta = np.zeros(P)
    beta[rng.choice(P, TRUE, replace=False)] = rng.choice([-1, 1], TRUE) * rng.uniform(low, high, TRUE)
    return beta


def sketched(rng: np.random.Generator, columns: np.ndarray, m: int) -> np.ndarray:
    """Φ times the columns: Φ with orthonormal rows that sum to nought."""
    G = rng.standard_normal((m, len(columns)))
    G -= G.mean(axis=1, keepdims=True)
    return np.linalg.solve(np.linalg.cholesky(G @ G.T), G @ columns)


def fitted(rng: np.random.Generator, X: np.ndarray, prepared: Prepared, truth: np.ndarray) -> dict[str, Any]:
    """What the fit to the sketch says of the true effects, in the response's own language."""
    y = prepared.values
    s_y = float(y.std(ddof=1))
    rows = sketched(rng, np.column_stack([X, (y - y.mean()) / s_y]), M)
    draws = sample(rows[:, :P], rows[:, P:], settings=replace(RUN, seed=int(rng.integers(2**31))))
    C, Sigma = draws.C.reshape(-1, P, 1), draws.Sigma.reshape(-1, 1, 1)
    known: dict[str, Any] = {"s_y": s_y, "sigma2": Sigma[:, 0], "skewness": skew(X), "share": float(y.mean())}
    mean, sd = unshrunk(rows[:, :P], rows[:, P:], draws)
    return judged(
        select(draws.C, fdr=FDR).selected,
        {
            "sparse": prepared.back.effect(C[:, :, 0], **known),
            "unshrunk": prepared.back.effect(normal_draws(mean[:, 0], sd[:, 0], len(C)), **known),
        },
        truth,
    )


def judged(selected: np.ndarray, told: dict[str, np.ndarray], truth: np.ndarray) -> dict[str, Any]:
    """Which effects are covered, the slope of the estimates on the true ones, which selections are false."""
    at = truth != 0
    out: dict[str, Any] = {"false": int((selected & ~at).sum()), "found": int((selected & at).sum())}
    for way, draws in told.items():
        low, high = np.quantile(draws, [0.025, 0.975], axis=0)
        inside = (low <= truth) & (truth <= high)
        out[way] = {
            "true": inside[at].tolist(), "zero": round(float(inside[~at].mean()), 4), "selected": inside[selected].tolist(),
            "slope": round(float(draws.mean(axis=0)[at] @ truth[at] / (truth[at] @ truth[at])), 4),
            "width": round(float((high - low)[at].mean()), 4),
        }  # fmt: skip
    return out


def binary(task: Task) -> dict[str, Any]:
    rng, (shape, share) = task.rng, SETTINGS[task.setting]
    X, beta = features(rng, shape), effects(rng, *SIZES[task.part])
    eta = X @ beta
    y = (rng.random(N) < expit(centred(share, float(eta.std())) + eta)) * 1.0
    return fitted(rng, X, prepare(y, "binary"), beta)


def survival(rng: np.random.Generator, X: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Months to the event, and months to the end of follow-up: three in ten are censored, whatever their features."""
    return rng.exponential(20 * np.exp(-(X @ beta))), rng.uniform(6, 80, len(X))


def months(task: Task) -> dict[str, Any]:
    rng = task.rng
    X, beta = features(rng, "normal"), effects(rng, *SIZES["binary"])
    event, end = survival(rng, X, beta)
    at = np.flatnonzero(beta)
    # The truth is the linear effect on the mean of min(T, horizon), from a large cohort without censoring.
    large = features(rng, "normal", 400_000, TRUE)
    whole = np.minimum(survival(rng, large, beta[at])[0], HORIZON)
    truth = np.zeros(P)
    truth[at] = np.linalg.lstsq(large, whole - whole.mean(), rcond=None)[0]
    observed = (np.minimum(event, end), (event <= end) * 1.0)
    return fitted(rng, X, prepare(observed, "time", {"horizon": HORIZON, "unit": "months"}), truth)


def union(task: Task) -> dict[str, Any]:
    """Four responses, two of them missing for half of the subjects, against the subjects that have all."""
    rng = task.rng
    X, C = rng.standard_normal((N, P)), np.zeros((P, Q))
    C[rng.choice(P, TRUE, replace=False)] = rng.choice([-1, 1], (TRUE, Q)) * rng.uniform(0.3, 0.8, (TRUE, Q))
    Sigma = RHO + (1 - RHO) * np.eye(Q)
    Y = X @ C + rng.standard_normal((N, Q)) @ np.linalg.cholesky(Sigma).T
    half = [sketched(rng, np.column_stack([X, Y])[rows], M // 2) for rows in (slice(0, N // 2), slice(N // 2, None))]
    half[1][:, P + 2 :] = np.nan
    seed, at = int(rng.integers(2**31)), (C != 0).all(axis=1)
    out: dict[str, Any] = {}
    for way, rows in (("union", np.vstack(half)), ("intersect", half[0])):
        draws = sample(rows[:, :P], rows[:, P:], settings=replace(RUN, seed=seed), partly=way == "union")
        low, high = np.quantile(draws.C.reshape(-1, P, Q), [0.025, 0.975], axis=0)
        selected = select(draws.C, fdr=FDR).selected
        out[way] = {
            "covered": ((low <= C) & (high >= C))[at].mean(axis=0).tolist(), "width": (high - low)[at].mean(axis=0).tolist(),
            "false": int((selected & ~at).sum()), "found": int((selected & at).sum()),
        }  # fmt: skip
    # Nothing missing: the same draws as without the mode, to the last bit.
    short = replace(RUN, draws=20, warmup=20, seed=seed)
    both = [sample(half[0][:, :P], half[0][:, P:], settings=short, partly=partly).C for partly in (True, False)]
    return out | {"same_when_nothing_is_missing": bool((both[0] == both[1]).all())}


def predicted(task: Task) -> dict[str, Any]:
    """Probabilities of new subjects as their owner gets them, beside what came."""
    rng, (shape, share) = task.rng, SETTINGS[task.setting]
    X, beta = features(rng, shape, N + NEW), effects(rng, *SIZES["binary"])
    eta = X @ beta
    y = (rng.random(len(X)) < expit(centred(share, float(eta.std())) + eta)) * 1.0
    mean, s_y = float(y[:N].mean()), float(y[:N].std(ddof=1))
    rows = sketched(rng, np.column_stack([X[:N], (y[:N] - mean) / s_y]), M)
    run = replace(RUN, seed=int(rng.integers(2**31)))
    draws = sample(rows[:, :P], rows[:, P:], settings=run)
    short, C, noise = refit_settings(run, Model.REFIT), draws.C.mean(axis=(0, 1)), draws.Sigma.mean(axis=(0, 1))[0]

    def again(some: np.ndarray, of: np.ndarray) -> Draws:
        return sample(some, of, settings=short)

    stacked = stack(rows[:, :P], rows[:, P:], C, again, stretched=np.array([True]))
    assert stacked is not None
    found = from_all_rows(stacked.alike, noise)
    explained, low, high = (float(values[0]) for values in (found, *interval_of_explained(found, stacked.rows, 0.95)))
    owner = Response(mean, s_y, Back("binary"), float(noise[0]), expected=(explained, low, high))
    line = (X[N:] @ (C + stacked.coefficients))[:, 0]
    p = owner.probabilities(1.96, line, None)["mean"]
    intercept, slope = calibration(y[N:], p)
    came = {"auc": auc(y[N:], p), "brier": brier(y[N:], p), "explained": float(np.corrcoef(line, y[N:])[0, 1] ** 2)}
    return {
        "intercept": intercept, "slope": slope, "came": came, "expected": expected_scores(s_y, (explained, low, high), N, 0.95),
        # What it rests on.
        "noise": float(noise[0]), "s_y": s_y, "weight": stacked.weight,
        "alike": float(stacked.alike[0]), "explained": [explained, low, high],
        "slope_of_line": calibration(y[N:], expit(line))[1],
    }  # fmt: skip


MEASURE = {"predicted": predicted, "binary": binary, "weak": binary, "time": months, "union": union}


def measured(task: Task) -> dict[str, Any]:
    began = time.perf_counter()
    found = MEASURE[task.part](task)
    return {**task._asdict(), **found, "seconds": round(time.perf_counter() - began, 1)}


def rate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    false = [one["false"] / max(one["false"] + one["found"], 1) for one in rows]
    return {
        "fdr": round(float(np.mean(false)), 3),
        "power": round(float(np.mean([one["found"] / TRUE for one in rows])), 3),
    }


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One setting of a response that is no measurement."""
    out: dict[str, Any] = {"sets": len(rows), **rate(rows)}
    for way in ("unshrunk", "sparse"):
        found = [one[way] for one in rows]
        selected = [inside for one in found for inside in one["selected"]]
        out[way] = {
            "coverage": round(float(np.mean([one["true"] for one in found])), 3),
            "coverage_se": round(float(np.std([np.mean(one["true"]) for one in found]) / np.sqrt(len(found))), 3),
            "coverage_zero": round(float(np.mean([one["zero"] for one in found])), 3),
            "coverage_selected": round(float(np.mean(selected)), 3) if selected else None,
            "slope": round(float(np.mean([one["slope"] for one in found])), 3),
            "width": round(float(np.mean([one["width"] for one in found])), 3),
        }
    return out


def summed_predicted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"sets": len(rows), "slope_median": round(float(np.median([one["slope"] for one in rows])), 3)}
    out["slope"] = round(float(np.mean([one["slope"] for one in rows])), 3)
    out["intercept"] = round(float(np.mean([one["intercept"] for one in rows])), 3)
    for name in ("auc", "brier"):
        off = np.array([one["expected"][name] - one["came"][name] for one in rows])
        inside = [one["expected"][f"{name}_lower"] <= one["came"][name] <= one["expected"][f"{name}_upper"] for one in rows]
        out[name] = {
            "came": round(float(np.mean([one["came"][name] for one in rows])), 3), "off": round(float(off.mean()), 4),
            "rms": round(float(np.sqrt(np.mean(off**2))), 4), "covered": round(float(np.mean(inside)), 3),
        }  # fmt: skip
    return out


def summed_union(rows: list[dict[str, Any]]) -> dict[str, Any]:
    covered, alone = (np.array([one[way]["covered"] for one in rows]) for way in ("union", "intersect"))
    widths = np.array([one["union"]["width"] for one in rows]) / np.array([one["intersect"]["width"] for one in rows])
    # Of a missing response's noise, the share known from the two responses that are there.
    share = float(2 * RHO**2 / (1 + RHO))
    theory = {"missing": float(np.sqrt(1 - share / 2)), "whole": float(np.sqrt(0.5))}
    return {
        "sets": len(rows), "rho": RHO, **rate([one["union"] for one in rows]),
        "coverage_missing": round(float(covered[:, 2:].mean()), 3), "coverage_whole": round(float(covered[:, :2].mean()), 3),
        "coverage": round(float(covered.mean()), 3),
        "width_missing": round(float(widths[:, 2:].mean()), 3), "width_missing_theory": round(theory["missing"], 3),
        "width_whole": round(float(widths[:, :2].mean()), 3), "width_whole_theory": round(theory["whole"], 3),
        "intersect": {"coverage": round(float(alone.mean()), 3), **rate([one["intersect"] for one in rows])},
        "same_when_nothing_is_missing": all(one["same_when_nothing_is_missing"] for one in rows),
    }  # fmt: skip


SUMMED = {"union": summed_union, "predicted": summed_predicted}


def kept(path: Path) -> dict[Task, dict[str, Any]]:
    """The rows that are whole; a last line that a killed run left half-written is dropped from the file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    whole, _, torn = text.rpartition("\n")
    if torn:
        path.write_text(whole + "\n" if whole else "", encoding="utf-8")
    rows = [json.loads(line) for line in whole.splitlines()]
    return {Task(row["part"], row["setting"], row["number"]): row for row in rows}


def done(tasks: list[Task], jobs: int) -> Iterator[dict[str, Any]]:
    """The first task in this process, so that compiled code is on disk before others want it."""
    if tasks:
        yield measured(tasks[0])
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(measured, tasks[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=40, help="data sets per setting (default 40)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of outcomes.json and outcomes_rows.jsonl")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "outcomes_rows.jsonl"
    rows = kept(path)
    # Data set by data set, so that a run that is stopped has some of every setting.
    asked = [Task(part, name, i) for i in range(args.sets) for part in args.parts for name in PARTS[part]]
    with path.open("a", encoding="utf-8") as file:
        for row in done([task for task in asked if task not in rows], args.jobs):
            rows[Task(row["part"], row["setting"], row["number"])] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(len(rows), row["part"], row["setting"], row["number"], row["seconds"], flush=True)
    found: dict[str, Any] = {}
    for part, names in PARTS.items():
        for name in names:
            of = [row for task, row in sorted(rows.items()) if task.part == part and task.setting == name]
            if of:
                found.setdefault(part, {})[name] = SUMMED.get(part, summed)(of)
                print(part, name, json.dumps(found[part][name], indent=1), flush=True)
    size = {"n": N, "m": M, "P": P, "true_features": TRUE, "fdr_asked": FDR, "log_odds": SIZES, "horizon": HORIZON}
    found["of"] = size | {k: getattr(RUN, k) for k in ("draws", "warmup", "chains", "thin")}
    found["core_seconds"] = round(sum(row.get("seconds", 0.0) for row in rows.values()))  # of the rows whose time was kept
    keep(args.out / "outcomes.json", found)


if __name__ == "__main__":
    main()
