"""Are the stated probabilities right? The default fit on simulated data of many kinds.

    python -m experiments.calibration --workers 16 --sets 25      # all designs; a row for each data set
    python -m experiments.calibration --summary                   # what the rows say

For every data set: findings at a stated 1, 5 and 10 %, by feature, by response and by set; inclusion probabilities in bins of a
tenth; intervals of what was selected; the power at the one threshold at which 5 % are really false.
"""

import argparse
import json
import os
import time
import warnings
import zlib
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from scipy.stats import norm  # noqa: E402

Array = np.ndarray
RESULT = Path(__file__).parent / "results" / "calibration.jsonl"
RATES = (0.01, 0.05, 0.10)
LEAST = 0.05  # inclusion probabilities from which on a row keeps them
# n, P, Q, m, s, size of effects, how features are made, what is special about the responses
DESIGNS: dict[str, tuple[int, int, int, int, int, float, str, str]] = {
    "weak": (1000, 300, 5, 200, 15, 0.15, "independent", ""),
    "moderate": (1000, 300, 5, 200, 30, 0.25, "independent", ""),
    "blocks": (1000, 300, 5, 200, 15, 0.3, "blocks", ""),
    "ar": (1000, 300, 5, 200, 15, 0.3, "ar", ""),
    "genotypes": (1000, 600, 4, 300, 15, 0.3, "genotypes", ""),
    "clusters": (1000, 300, 5, 200, 15, 0.3, "independent", "clusters"),
    "heteroscedastic": (1000, 300, 5, 200, 15, 0.3, "independent", "heteroscedastic"),
    "heavy tails": (1000, 300, 5, 200, 15, 0.3, "heavy", ""),
    "one response": (1000, 300, 1, 200, 15, 0.3, "independent", ""),
    "forty responses": (1000, 300, 40, 200, 15, 0.3, "independent", ""),
    "nothing": (1000, 300, 5, 200, 0, 0.0, "independent", ""),
    "acts on one": (1000, 300, 10, 200, 15, 0.35, "independent", "one"),
    "acts on half": (1000, 300, 6, 200, 15, 0.3, "independent", "half"),
    "imaging": (126, 2346, 6, 50, 20, 0.5, "independent", ""),
}


def features(kind: str, n: int, P: int, rng: np.random.Generator) -> Array:
    X = rng.standard_normal((n, P))
    if kind == "blocks":
        X = np.sqrt(0.9) * rng.standard_normal((n, P // 10)).repeat(10, axis=1) + np.sqrt(0.1) * X
    elif kind == "ar":
        for p in range(1, P):
            X[:, p] = 0.9 * X[:, p - 1] + np.sqrt(0.19) * X[:, p]
    elif kind == "heavy":
        X = np.exp(X)
    elif kind == "genotypes":
        share = rng.uniform(0.05, 0.5, P // 10).repeat(10)
        common = np.sqrt(0.8) * rng.standard_normal((n, P // 10)).repeat(10, axis=1)
        copies = [common + np.sqrt(0.2) * rng.standard_normal((n, P)) < norm.ppf(share) for _ in range(2)]
        X = np.sum(copies, axis=0).astype(float)
    return X


def simulate(design: str, seed: int) -> tuple[Array, Array, Array, int]:
    """X, Y, the effects per standard deviation of X, and m."""
    n, P, Q, m, s, size, kind, special = DESIGNS[design]
    rng = np.random.default_rng([seed, zlib.crc32(design.encode())])
    X = features(kind, n, P, rng)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    C, chosen = np.zeros((P, Q)), rng.choice(P, s, replace=False)
    C[chosen] = size * rng.standard_normal((s, Q))
    if special == "half":
        C[chosen] *= rng.random((s, Q)) < 0.5
    elif special == "one":
        C[chosen] = 0.0
        C[chosen, rng.integers(0, Q, s)] = size * rng.choice([-1, 1], s)
    E = np.sqrt(0.6) * rng.standard_normal((n, 1)) + np.sqrt(0.4) * rng.standard_normal((n, Q))
    if special == "heteroscedastic":
        E *= np.exp(0.7 * X[:, :1])
    elif special == "clusters":
        of = rng.integers(0, 50, n)
        E = 0.7 * E + 0.7 * rng.standard_normal((50, Q))[of]
        X = 0.7 * X + 0.7 * rng.standard_normal((50, P))[of]
        X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, X @ C + E, C, m


def sketched(X: Array, Y: Array, m: int, seed: int) -> tuple[Array, Array, Array]:
    """Orthonormal, centred sketches of standardised columns, and the responses' standard deviations."""
    scale = Y.std(axis=0)
    G = np.random.default_rng([seed, 17]).standard_normal((m, len(X)))
    Phi = np.linalg.qr((G - G.mean(axis=1, keepdims=True)).T)[0].T
    return Phi @ X, Phi @ (Y / scale), scale


def row(design: str, seed: int) -> dict[str, Any]:
    from intarsia.server.assess.findings import select
    from intarsia.server.sampler.settings import Settings, Until
    from intarsia.server.sampler.sparse.sample import SparseModel, sample

    warnings.simplefilter("ignore")
    X, Y, C, m = simulate(design, seed)
    A, B, scale = sketched(X, Y, m, seed)
    began = time.perf_counter()
    settings = Settings(until=Until(), seed=seed, workers=1)
    draws = sample(A, B, SparseModel(compare=False), settings)
    seconds = time.perf_counter() - began
    true, acts = C.any(axis=1), C != 0
    out: dict[str, Any] = {
        "design": design,
        "seed": seed,
        "seconds": round(seconds, 2),
        "draws": draws.draws,
        "true": int(true.sum()),
    }
    for rate in RATES:
        found = select(draws, fdr=rate, X=A)
        sets = [one.members for one in found.sets]
        name = f"{rate:g}"
        out |= {
            f"found {name}": int(true[found.selected].sum()), f"false {name}": int((~true[found.selected]).sum()),
            f"sets {name}": len(sets), f"false sets {name}": sum(not true[one].any() for one in sets),
            f"set members {name}": sum(map(len, sets)),
            f"entries {name}": int(acts[found.by_response].sum()), f"false entries {name}": int((~acts[found.by_response]).sum()),
        }  # fmt: skip
        if rate == 0.05:
            lower, upper = draws.quantile([0.025, 0.975]) * scale
            chosen = found.selected & true
            inside = ((lower <= C) & (upper >= C))[chosen]
            out |= {"intervals": int(inside.size), "covering": int(inside.sum())}
            out["mse"] = float(np.square(draws.mean() * scale - C)[true].mean()) if true.any() else None
            local = 1 - found.pip
    doubtful = np.flatnonzero(local <= 1 - LEAST)
    out["pips"] = [[round(float(1 - local[p]), 4), int(true[p])] for p in doubtful[np.argsort(local[doubtful], kind="stable")]]
    bins = [(1 - local >= low) & (1 - local < low + 0.1) for low in np.arange(0.1, 1, 0.1)]
    out["bins"] = [[int(b.sum()), int(true[b].sum()), round(float((1 - local)[b].sum()), 3)] for b in bins]
    return out


def best(rows: list[dict[str, Any]], rate: float = 0.05) -> int:
    """True features that are found at the one threshold of the inclusion probability at which so many of all found are false."""
    true = np.array([one[1] for one in sorted((one for row in rows for one in row["pips"]), key=lambda one: -one[0])], dtype=bool)
    wrong = np.cumsum(~true) / np.arange(1, len(true) + 1)
    at = np.flatnonzero(wrong <= rate)
    return int(true[: at[-1] + 1].sum()) if at.size else 0


def summary(rows: list[dict[str, Any]]) -> str:
    lines = ["design            sets    s   found/of (best)    false 1 5 10 %          by response 5 %      sets   coverage"]
    for design in dict.fromkeys(one["design"] for one in rows):
        own = [one for one in rows if one["design"] == design]

        def total(name: str, own: list[dict[str, Any]] = own) -> int:
            return sum(one[name] for one in own)

        rates = "  ".join(
            f"{total(f'false {r:g}') + total(f'false sets {r:g}')}/"
            f"{total(f'found {r:g}') + total(f'false {r:g}') + total(f'sets {r:g}')}" for r in RATES
        )  # fmt: skip
        entries = f"{total('false entries 0.05')}/{total('entries 0.05') + total('false entries 0.05')}"
        cover = total("covering") / max(1, total("intervals"))
        lines.append(
            f"{design:17} {len(own):3} {np.median([one['seconds'] for one in own]):6.1f}  {total('found 0.05')}/{total('true')} "
            f"({best(own)})   {rates:24} {entries:18} {total('false sets 0.05')}/{total('sets 0.05')}   {cover:.3f}"
        )
        bins = np.array([one["bins"] for one in own]).sum(axis=0)
        lines.append("    PIP bins: " + " ".join(f"{t / max(1, n):.2f}({p / max(1, n):.2f};{int(n)})" for n, t, p in bins))
    bins = np.array([one["bins"] for one in rows if one["design"] != "imaging"]).sum(axis=0)
    lines.append("all PIP bins: " + " ".join(f"{t / max(1, n):.2f}({p / max(1, n):.2f};{int(n)})" for n, t, p in bins))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", nargs="*", default=list(DESIGNS))
    parser.add_argument("--sets", type=int, default=25)
    parser.add_argument("--first", type=int, default=1, help="seed of the first data set")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="give up what is not done by then")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--summary", action="store_true")
    args = parser.parse_args()
    if not args.summary:
        row("weak", 0)  # compiles
        tasks = [(design, args.first + k) for k in range(args.sets) for design in args.designs]
        args.out.parent.mkdir(exist_ok=True)
        with ProcessPoolExecutor(args.workers, get_context("fork")) as pool, args.out.open("a") as out:
            waiting = [pool.submit(row, *task) for task in tasks]
            try:
                for done in as_completed(waiting, timeout=None if np.isinf(args.seconds) else args.seconds):
                    out.write(json.dumps(done.result()) + "\n")
                    out.flush()
            except TimeoutError:
                for process in list(pool._processes.values()):
                    process.kill()
    print(summary([json.loads(line) for line in args.out.read_text().splitlines()]))


if __name__ == "__main__":
    main()
