"""What the promises are worth on data that no simulation of the paper has: `python -m benchmarks.odd_data --jobs 16`.

Each kind of data has its own fault: heavy tails, noise levels a hundredfold apart, responses that are sums or copies of others,
copies of features, covariates that nearly say what a feature says, few rows, nothing to find. A finding (a feature or a set) is
false when none of its members is true; an exact copy of a true feature is true. Rows go to benchmarks/results/odd_data.json.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import resumed  # before NumPy: it sets one thread for each process

import numpy as np  # isort: skip

from benchmarks.local_fit import local_fit
from intarsia.errors import IntarsiaError
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.settings import Settings

RESULT = Path(__file__).parent / "results" / "odd_data.json"
RUN: dict[str, Any] = {"draws": 400, "warmup": 500, "chains": 2, "thin": 2}
N = 400
Array = np.ndarray
Rng = np.random.Generator


@dataclass
class Problem:
    """Data of N subjects, the truth C, which features count as true, covariates, rows of the sketch and what is fitted."""

    X: Array
    Y: Array
    C: Array
    true: Array | None = None
    Z: Array | None = None
    m: int | None = 150
    model: Model = field(default_factory=Model)


KINDS: dict[str, Callable[[Rng], Problem]] = {}


def kind(make: Callable[[Rng], Problem]) -> Callable[[Rng], Problem]:
    KINDS[make.__name__.replace("_", " ")] = make
    return make


def truth(rng: Rng, P: int, Q: int, signals: int = 6, size: float = 0.5) -> Array:
    C = np.zeros((P, Q))
    C[rng.choice(P, min(signals, P), replace=False)] = rng.normal(0.0, size, (min(signals, P), Q))
    return C


def noise(rng: Rng, Q: int, rho: float = 0.6, n: int = N) -> Array:
    return np.sqrt(rho) * rng.standard_normal((n, 1)) + np.sqrt(1 - rho) * rng.standard_normal((n, Q))


def plain(rng: Rng, P: int = 40, Q: int = 4, **more: Any) -> Problem:
    X, C = rng.standard_normal((N, P)), truth(rng, P, Q, **more)
    return Problem(X, X @ C + noise(rng, Q), C)


@kind
def heavy_tails_t2(rng: Rng) -> Problem:
    data = plain(rng)
    E = noise(rng, 4) / np.sqrt(rng.chisquare(2, (N, 1)) / 2)
    data.Y = data.X @ data.C + E
    return data


@kind
def heavy_tailed_features(rng: Rng) -> Problem:
    data = plain(rng)
    data.X = rng.standard_t(2, data.X.shape)
    data.Y = data.X @ data.C + noise(rng, 4)
    return data


@kind
def noise_levels_hundredfold(rng: Rng) -> Problem:
    data = plain(rng)
    levels = np.array([0.1, 1.0, 10.0, 10.0])
    data.C = data.C * levels
    data.Y = data.X @ data.C + noise(rng, 4) * levels
    return data


@kind
def response_that_is_a_sum(rng: Rng) -> Problem:
    data = plain(rng)
    total = data.Y[:, :2].sum(axis=1, keepdims=True)
    return Problem(data.X, np.hstack([data.Y, total]), np.hstack([data.C, data.C[:, :2].sum(axis=1, keepdims=True)]))


@kind
def response_twice(rng: Rng) -> Problem:
    data = plain(rng)
    return Problem(data.X, np.hstack([data.Y, data.Y[:, :1]]), np.hstack([data.C, data.C[:, :1]]))


@kind
def response_nearly_twice(rng: Rng) -> Problem:
    data = plain(rng)
    near = data.Y[:, :1] + 1e-3 * rng.standard_normal((N, 1))
    return Problem(data.X, np.hstack([data.Y, near]), np.hstack([data.C, data.C[:, :1]]))


@kind
def noise_of_rank_two(rng: Rng) -> Problem:
    data = plain(rng, Q=8)
    data.Y = data.X @ data.C + rng.standard_normal((N, 2)) @ rng.standard_normal((2, 8)) + 0.01 * rng.standard_normal((N, 8))
    return data


@kind
def response_without_noise(rng: Rng) -> Problem:
    data = plain(rng, Q=2)
    data.Y[:, 0] = data.X @ data.C[:, 0]
    return data


@kind
def one_response(rng: Rng) -> Problem:
    return plain(rng, Q=1)


@kind
def more_responses_than_rows(rng: Rng) -> Problem:
    data = plain(rng, P=20, Q=40, signals=4)
    data.m = 25
    return data


@kind
def rank_two_of_six(rng: Rng) -> Problem:
    data = plain(rng, Q=6)
    data.C[data.C.any(axis=1)] = 0.5 * rng.standard_normal((6, 2)) @ rng.standard_normal((2, 6))
    data.Y = data.X @ data.C + noise(rng, 6)
    data.model = Model(rank=2)
    return data


@kind
def copies_of_features(rng: Rng) -> Problem:
    """Every true feature has an exact copy, one of them with the other sign and unit; so have some nulls."""
    data = plain(rng)
    true = np.flatnonzero(data.C.any(axis=1))
    X = np.hstack([data.X, data.X[:, true] * np.where(np.arange(len(true)) % 2, -3.0, 1.0), data.X[:, :4]])
    marks = np.concatenate([data.C.any(axis=1), np.ones(len(true), bool), data.C[:4].any(axis=1)])
    C = np.full((X.shape[1], 4), np.nan)  # no single coefficient is known where copies share the effect
    alone = ~data.C.any(axis=1)
    C[: len(data.C)][alone] = 0.0
    return Problem(X, data.Y, C, marks)


@kind
def discrete_features(rng: Rng) -> Problem:
    data = plain(rng)
    data.X = rng.binomial(2, rng.uniform(0.03, 0.5, 40), data.X.shape).astype(float)
    data.C = data.C / np.maximum(data.X.std(axis=0), 0.05)[:, None]
    data.Y = data.X @ data.C + noise(rng, 4)
    return data


@kind
def null_feature_beside_a_covariate_like_it(rng: Rng) -> Problem:
    data = plain(rng)
    p = int(np.flatnonzero(~data.C.any(axis=1))[0])
    z = data.X[:, p] + 0.1 * rng.standard_normal(N)
    data.Z, data.Y = z[:, None], data.Y + z[:, None]
    return data


@kind
def true_feature_beside_a_covariate_like_it(rng: Rng) -> Problem:
    data = plain(rng)
    p = int(np.flatnonzero(data.C.any(axis=1))[0])
    z = data.X[:, p] + 0.1 * rng.standard_normal(N)
    data.Z, data.Y = z[:, None], data.Y + z[:, None]
    return data


@kind
def covariate_with_a_rare_level(rng: Rng) -> Problem:
    data = plain(rng)
    z = np.zeros((N, 2))
    z[rng.choice(N, 3, replace=False), 0] = 1.0
    z[:, 1] = rng.integers(0, 2, N)
    data.Z, data.Y = z, data.Y + z @ np.array([[5.0] * 4, [1.0] * 4])
    return data


@kind
def confounded(rng: Rng) -> Problem:
    data = plain(rng)
    p = int(np.flatnonzero(~data.C.any(axis=1))[0])
    z = rng.standard_normal(N)
    data.X[:, p] = 0.8 * z + 0.6 * data.X[:, p]
    data.Z, data.Y = z[:, None], data.Y + z[:, None]
    return data


@kind
def twins_of_which_one_follows_a_covariate(rng: Rng) -> Problem:
    data = plain(rng)
    true, null = int(np.flatnonzero(data.C.any(axis=1))[0]), int(np.flatnonzero(~data.C.any(axis=1))[0])
    z = rng.standard_normal(N)
    data.X[:, null] = 0.97 * data.X[:, true] + np.sqrt(1 - 0.97**2) * z
    data.Z, data.Y = z[:, None], data.Y + z[:, None]
    return data


@kind
def as_many_rows_as_there_are(rng: Rng) -> Problem:
    data = plain(rng)
    data.m = N - 2
    return data


@kind
def fifteen_rows(rng: Rng) -> Problem:
    data = plain(rng, P=10, Q=3, signals=2, size=1.0)
    data.m = 15
    return data


@kind
def fewer_features_than_responses(rng: Rng) -> Problem:
    return plain(rng, P=3, Q=8, signals=1)


@kind
def one_feature(rng: Rng) -> Problem:
    return plain(rng, P=1, Q=3, signals=1, size=0.3)


@kind
def one_null_feature(rng: Rng) -> Problem:
    return plain(rng, P=1, Q=3, signals=0)


@kind
def nothing_to_find(rng: Rng) -> Problem:
    return plain(rng, signals=0)


@kind
def nothing_to_find_wide(rng: Rng) -> Problem:
    data = plain(rng, P=200, signals=0)
    data.m = 50
    return data


@kind
def nothing_to_find_independent_noise(rng: Rng) -> Problem:
    data = plain(rng, signals=0)
    data.Y = rng.standard_normal((N, 4))
    return data


@kind
def nothing_to_find_one_response(rng: Rng) -> Problem:
    return plain(rng, Q=1, signals=0)


@kind
def dense_and_weak(rng: Rng) -> Problem:
    return plain(rng, P=60, signals=60, size=0.05)


@kind
def one_response_each(rng: Rng) -> Problem:
    data = plain(rng)
    for p in np.flatnonzero(data.C.any(axis=1)):
        q = rng.integers(4)
        data.C[p, np.arange(4) != q] = 0.0
    data.Y = data.X @ data.C + noise(rng, 4)
    return data


def twins(rng: Rng, r: float, copies: int) -> Problem:
    data = plain(rng)
    true = int(np.flatnonzero(data.C.any(axis=1))[0])
    for p in np.flatnonzero(~data.C.any(axis=1))[: copies - 1]:
        data.X[:, p] = r * data.X[:, true] + np.sqrt(1 - r * r) * rng.standard_normal(N)
    data.Y = data.X @ data.C + noise(rng, 4)
    return data


@kind
def twins_97(rng: Rng) -> Problem:
    return twins(rng, 0.97, 2)


@kind
def twins_995(rng: Rng) -> Problem:
    return twins(rng, 0.995, 2)


@kind
def triplets_995(rng: Rng) -> Problem:
    return twins(rng, 0.995, 3)


@kind
def rare_binary_response(rng: Rng) -> Problem:
    data = plain(rng)
    data.Y[:, 0] = data.Y[:, 0] > np.quantile(data.Y[:, 0], 0.97)
    data.C[:, 0] = np.nan  # no linear truth
    data.true = np.nan_to_num(data.C[:, 1:]).any(axis=1)
    return data


Task = tuple[str, int]


def key(task: Task) -> resumed.Row:
    return dict(zip(("kind", "seed"), task, strict=True))


def one(task: Task, **length: Any) -> resumed.Row:
    """One data set: what was found and covered, or why it was refused."""
    name, seed = task
    data = KINDS[name](np.random.default_rng([seed, *name.encode()]))
    began = time.process_time()
    try:
        fit = local_fit(data.X, data.Y, Settings(**(RUN | length), seed=seed, workers=1), data.model, m=data.m, Z=data.Z)
    except (IntarsiaError, np.linalg.LinAlgError, FloatingPointError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    C, known = fit.draws(), ~np.isnan(data.C)
    true = np.nan_to_num(data.C).any(axis=1) if data.true is None else data.true
    low, high = np.quantile(C, [0.025, 0.975], axis=0)
    inside, nonzero = (low <= data.C) & (high >= data.C), known & (data.C != 0)
    findings = fit.findings.findings
    named = np.unique(np.concatenate([*findings, np.empty(0, dtype=int)]).astype(int))
    return {
        "findings": len(findings), "false": sum(not true[finding].any() for finding in findings),
        "sets": len(fit.findings.sets), "true": int(true.sum()), "hit": int(true[named].sum()),
        "nonzero": int(nonzero.sum()), "covered_nonzero": int(inside[nonzero].sum()),
        "zero": int((known & ~nonzero).sum()), "covered_zero": int(inside[known & ~nonzero].sum()),
        "rhat": round(fit.rhat(), 3), "finite": bool(np.isfinite(C).all()), "said": list(fit.said),
        "seconds": round(time.process_time() - began, 1),
    }  # fmt: skip


def table(rows: list[resumed.Row]) -> str:
    lines = [f"{'kind':42s} sets errors findings false (mean share)  found    cover≠0 cover=0   R̂ max said  s"]
    for name in KINDS:
        mine = [row for row in rows if row["kind"] == name]
        fits = [row for row in mine if "error" not in row]
        if not mine:
            continue
        told = f"{name:42s} {len(mine):4d} {len(mine) - len(fits):6d}"
        if fits:
            total = {k: sum(row[k] for row in fits) for k in fits[0] if k not in ("kind", "seed", "said", "rhat")}
            share = np.mean([row["false"] / max(1, row["findings"]) for row in fits])

            def part(a: str, b: str, total: dict[str, Any] = total) -> str:
                return f"{total[a] / total[b]:7.3f}" if total[b] else "      –"

            told += f" {total['findings']:8d} {total['false']:5d} ({share:.3f}) {part('hit', 'true')}"
            told += f" {part('covered_nonzero', 'nonzero')} {part('covered_zero', 'zero')}"
            told += f" {max(row['rhat'] for row in fits):7.2f} {sum(bool(row['said']) for row in fits):4d}"
            told += f" {total['seconds'] / len(fits):.1f}"
        lines.append(told)
        lines += [f"    {text}" for text in sorted({row["error"] for row in mine if "error" in row})[:3]]
    return "\n".join(lines)


def main() -> None:
    parser = resumed.options(__doc__, RESULT, 25)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, metavar="KIND")
    args = parser.parse_args()
    tasks = [(name, seed) for name in args.kinds for seed in range(args.sets)]
    print(table(resumed.gather(tasks, key, one, args.out, args.jobs)))


if __name__ == "__main__":
    main()
