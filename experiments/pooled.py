"""What a screened study finds beside pooled tables: many simulated data sets, each screened and fitted as the server does it.

    python -m experiments.pooled --minutes 15               # go on where the last call ended; a row for each data set and way
    python -m experiments.pooled --design sketched --minutes 5
    python -m experiments.pooled --summary                  # what the rows say

Designs. `effects` and `empty`: 20,000 people, 1,000 features (neighbours correlated at .5), 3 responses, five effects each of
.02, .04, .08 and .16 sd, or none; all columns pooled, screened by one look, by two. `weak` and `moderate`: 1,000 people, 2,000
features, 5 responses with noise correlated at .5, 20 effects N(0, .1²) or N(0, .15²); a sketch of 200 rows alone, and one that
screens and keeps 300. No shares and no sites: a secure product is the product. What the server does with it is the product's own
code: scores, lists, looks, the root of the kept Gram matrix, the default fit and its findings.

With normal rows the products are drawn as what they are, a Wishart matrix, so a data set of 20,000 people costs no more than its
columns.
"""

import argparse
import json
import os
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from scipy import linalg  # noqa: E402

from intarsia.privacy.screened_leakage import most_kept, usual_kept  # noqa: E402
from intarsia.server.pseudo_rows import root  # noqa: E402
from intarsia.server.study import feature_scores, screened_by_sketch  # noqa: E402
from intarsia.server.study.fit import sample, settings_of  # noqa: E402
from intarsia.wire.messages import Joined  # noqa: E402
from intarsia.wire.study import Study  # noqa: E402
from intarsia.wire.study_parts import GRAM, LOOK_BITS  # noqa: E402

Array = np.ndarray
RESULT = Path(__file__).parent / "results" / "pooled.jsonl"
SIZES = (0.02, 0.04, 0.08, 0.16)
LIMIT = 0.65  # of the gate
DEAR = {"pooled": 50, "sketch": 3}  # ways that take many times as long: of the first data sets alone
# people, features, responses, correlation of neighbours, correlation of the noise
LARGE, SMALL = (20_000, 1000, 3, 0.5, 0.0), (1000, 2000, 5, 0.0, 0.5)
DESIGNS: dict[str, tuple[tuple[int, int, int, float, float], tuple[str, ...]]] = {
    "effects": (LARGE, ("one look", "two looks", "pooled")),
    "empty": (LARGE, ("one look", "two looks")),
    "weak": (SMALL, ("sketch", "sketch screens")),
    "moderate": (SMALL, ("sketch", "sketch screens")),
}
SPREAD = {"weak": 0.1, "moderate": 0.15}  # standard deviation of the effects
ROWS, KEEP = 200, 300  # of the sketch, and how many features it keeps


def simulated(design: str, seed: int) -> tuple[Array, Array]:
    """The Gram matrix of all columns, standardised (features, then responses), and the true effects per sd of each."""
    (n, P, Q, rho, shared), _ = DESIGNS[design]
    rng = np.random.default_rng([seed, zlib.crc32(design.encode())])
    B = np.zeros((P, Q))
    if design == "effects":
        chosen = rng.choice(P, 5 * len(SIZES), replace=False)
        for k, size in enumerate(SIZES):
            rows = chosen[5 * k : 5 * k + 5]
            B[rows] = size * rng.choice([-1, 1], (5, Q))
    S = rho ** np.abs(np.subtract.outer(np.arange(P), np.arange(P))) if rho else np.eye(P)
    noise = shared + (1 - shared) * np.eye(Q)
    L = linalg.block_diag(np.linalg.cholesky(S), np.linalg.cholesky(noise))
    T = np.tril(rng.standard_normal((P + Q, P + Q)), -1)
    T[np.diag_indices(P + Q)] = np.sqrt(rng.chisquare(n - 1 - np.arange(P + Q)))
    half = (L @ T).T  # columns of features and of noise: their products are those of n − 1 rows
    half[:, P:] += half[:, :P] @ B
    G = half.T @ half
    sd = np.sqrt(np.diagonal(G) / (n - 1))
    return G / np.outer(sd, sd), B * sd[:P, None] / sd[P:]


def sketched(design: str, seed: int) -> tuple[Array, Array]:
    """As many rows as are independent of each other (n − 1), standardised, and the true effects. The first of them are the
    sketch: of normal rows, orthonormal mixtures are such rows.
    """
    n, P, Q, _, shared = DESIGNS[design][0]
    rng = np.random.default_rng([seed, zlib.crc32(design.encode())])
    B = np.zeros((P, Q))
    B[rng.choice(P, 20, replace=False)] = SPREAD[design] * rng.standard_normal((20, Q))
    X = rng.standard_normal((n - 1, P))
    E = np.sqrt(shared) * rng.standard_normal((n - 1, 1)) + np.sqrt(1 - shared) * rng.standard_normal((n - 1, Q))
    W = np.hstack([X, X @ B + E])
    sd = np.sqrt(np.square(W).sum(axis=0) / (n - 1))
    return W / sd, B * sd[:P, None] / sd[P:]


def looked(G: Array, n: int, P: int, looks: int, most: int) -> Array:
    """The places of the features that are kept after so many looks, as the server chooses them."""
    Q, kept = len(G) - P, np.zeros(P, dtype=bool)
    spare = LOOK_BITS if looks > 1 else 0
    for look in range(1, looks + 1):
        some = np.concatenate([np.flatnonzero(kept), np.arange(P, P + Q)])
        few = int(kept.sum())
        weights = feature_scores.weights_of(G[np.ix_(some, some)], list(range(few)), list(range(few, few + Q)), spare)
        sums = np.ldexp(G[:P, some] @ weights, -spare)
        score = feature_scores.scores(sums, feature_scores.left_products(G[np.ix_(some, some)], weights, spare), n)
        kept = feature_scores.chosen(score, kept, feature_scores.places(most, looks, look))
    return np.flatnonzero(kept)


def study_of(P: int, Q: int) -> Study:
    """What a study.toml of these columns says where it says nothing: the defaults of the fit."""
    names = ("clinic", "lab", "mri")
    roster: list[dict[str, Any]] = [{"name": name, "features": [f"{name}_*"]} for name in names]
    roster[0]["responses"] = [f"y{q}" for q in range(Q)]
    return Study.from_dict({"id": "pooled", "run": "0" * 32, "sketch": {"m": 100}, "site": roster})


def joined(G: Array, at: Array, n: int, P: int, looked_at: int | None) -> Joined:
    """A root of the Gram matrix of these features and all responses, as the server makes it of a round."""
    columns = np.concatenate([at, np.arange(P, len(G))])
    return of_rows(root(G[np.ix_(columns, columns)]), at, n, P, looked_at=looked_at)


def of_rows(W: Array, at: Array, n: int, P: int, kind: str = GRAM, m: int = 0, looked_at: int | None = None) -> Joined:
    """Rows of these features and of the responses as the server has them."""
    Q = W.shape[1] - len(at)
    return Joined(
        X=W[:, : len(at)], Y=W[:, len(at) :],
        features=tuple(f"clinic_{j}" for j in at), responses=tuple(f"y{q}" for q in range(Q)),
        feature_sites=("clinic",) * len(at), response_sites=("clinic",) * Q, n=n, m=m or n - 1, kind=kind,
        study_hash=study_of(P, Q).hash, feature_noise=(0.0,) * len(at), response_noise=(0.0,) * Q, looked_at=looked_at,
    )  # fmt: skip


def fitted(found: Joined, at: Array, true: Array) -> tuple[dict[str, Any], Any, Any]:
    """The default fit of these features, held against the truth: what was found, errors and coverage of the effects."""
    study, began = study_of(*true.shape), time.process_time()
    posterior, assessment = sample(study, found, settings_of(study))
    drawn = posterior.draws
    mean, (low, high) = np.zeros_like(true), np.zeros((2, *true.shape))
    mean[at] = drawn.mean()
    low[at], high[at] = drawn.quantile((0.025, 0.975))
    selected = at[np.asarray(assessment.findings.selected)]
    nonzero = true.any(axis=1)
    inside = (low <= true) & (true <= high)
    told = {
        "kept": len(at), "kept_true": int(nonzero[at].sum()), "false": int((~nonzero[selected]).sum()),
        "found": sorted(int(p) for p in selected[nonzero[selected]]),
        "squares": float(np.square((mean - true)[nonzero]).sum()), "entries": int(nonzero.sum() * true.shape[1]),
        "covered": int(inside[nonzero].sum()), "converged": bool(assessment.diagnosis.converged),
        "seconds": round(time.process_time() - began, 1),
    }  # fmt: skip
    return told, posterior, assessment


def by_sums(design: str, seed: int) -> Iterator[dict[str, Any]]:
    """One data set of exact sums, all of its ways."""
    n, P, Q, *_ = DESIGNS[design][0]
    G, true = simulated(design, seed)
    for way in ways_of(design, seed):
        at, looks = np.arange(P), 1 + (way == "two looks")
        if way != "pooled":
            at = looked(G, n, P, looks, min(most_kept(n, P * Q * looks, Q, 0, LIMIT), usual_kept(n)))
        yield {"way": way, **fitted(joined(G, at, n, P, None if way == "pooled" else P), at, true)[0], "sizes": sizes_of(true)}


def by_sketch(design: str, seed: int) -> Iterator[dict[str, Any]]:
    """One data set: the sketch alone, and the exact products of what it keeps, with what it has not seen of these."""
    n, P, Q, *_ = DESIGNS[design][0]
    W, true = sketched(design, seed)
    every, sizes = np.arange(P), {"sizes": sizes_of(true)}
    sketch = of_rows(W[:ROWS], every, n, P, "orthonormal", ROWS)
    if "sketch" in ways_of(design, seed):
        yield {"way": "sketch", **fitted(sketch, every, true)[0], **sizes}
    at = screened_by_sketch.best(screened_by_sketch.scored(sketch, KEEP, 0), KEEP)
    V = W[:, np.concatenate([at, np.arange(P, P + Q)])]
    whole = of_rows(root(V.T @ V), at, n, P, looked_at=P)
    told, posterior, assessment = fitted(whole, at, true)
    unseen = of_rows(root(V[ROWS:].T @ V[ROWS:]), at, n, P, m=n - 1 - ROWS)
    findings, study = assessment.findings.findings, study_of(P, Q)
    held = screened_by_sketch.held_against(study, (unseen, whole), posterior, findings, settings_of(study)) if findings else []
    right = [any(true[int(name.split("_")[1])].any() for name in row["features"]) for row in held]
    told["confirmed"] = sum(row["confirmed"] and good for row, good in zip(held, right, strict=True))
    told["confirmed_false"] = sum(row["confirmed"] and not good for row, good in zip(held, right, strict=True))
    yield {"way": "sketch screens", **told, **sizes}


def sizes_of(true: Array) -> dict[int, float]:
    """The mean size of each effect that there is."""
    return {int(p): round(float(np.abs(true[p]).mean()), 4) for p in np.flatnonzero(true.any(axis=1))}


def ways_of(design: str, seed: int) -> list[str]:
    """Those of a data set, all of them of the first ones alone."""
    return [way for way in DESIGNS[design][1] if seed < DEAR.get(way, seed + 1)]


def rows_of(design: str, seed: int) -> Iterator[dict[str, Any]]:
    """One data set, all of its ways."""
    for row in (by_sketch if design in SPREAD else by_sums)(design, seed):
        yield {"design": design, "seed": seed, **row}


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULT.read_text().splitlines()] if RESULT.is_file() else []


def run(designs: list[str], minutes: float, most: int) -> None:
    """Data sets one after the other, the designs in turn, until the time is up; a set that was begun is ended."""
    done = {(row["design"], row["seed"], row["way"]) for row in read()}
    began = time.process_time()
    for seed in range(most):
        for design in designs:
            if all((design, seed, way) in done for way in ways_of(design, seed)):
                continue
            if time.process_time() - began > 60 * minutes:
                return
            for row in rows_of(design, seed):
                with RESULT.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def summary() -> list[str]:
    """One line for each design and way."""
    found, lines = read(), []
    last = {(row["design"], row["seed"], row["way"]): row for row in found}
    for design, (_, ways) in DESIGNS.items():
        dear = next((way for way in ways if way in DEAR), "")
        beside = {seed for d, seed, way in last if (d, way) == (design, dear)}
        for way in (*ways, *(f"{way}, beside {dear}" for way in ways if beside and way != dear)):
            name, _, only = way.partition(", ")
            rows = [row for (d, s, w), row in last.items() if (d, w) == (design, name) and (not only or s in beside)]
            if not rows:
                continue
            total = sum(len(row["sizes"]) for row in rows)
            hits, false = sum(len(row["found"]) for row in rows), sum(row["false"] for row in rows)
            line = f"{design}, {way}: {len(rows)} sets, {rows[0]['kept']} kept"
            if total:
                error = np.sqrt(sum(r["squares"] for r in rows) / sum(r["entries"] for r in rows))
                covered = sum(r["covered"] for r in rows) / sum(r["entries"] for r in rows)
                line += f", found {hits} of {total} ({hits / len(rows):.1f} a set; {_by_size(design, rows)})"
                line += f", RMSE {error:.5f}, coverage {covered:.3f}"
            if "confirmed" in rows[0]:
                line += f", confirmed {sum(r['confirmed'] for r in rows)} and {sum(r['confirmed_false'] for r in rows)} false"
            line += f", false {false} ({false / max(1, hits + false):.1%} of findings)"
            line += f", sets with a false one {sum(row['false'] > 0 for row in rows)}"
            line += f", not converged {sum(not row['converged'] for row in rows)}"
            lines.append(line + f", {np.mean([row['seconds'] for row in rows]):.0f} s a fit")
    return lines


def _by_size(design: str, rows: list[dict[str, Any]]) -> str:
    """The share found of each size, where a design has sizes."""
    if design != "effects":
        return "-"
    shares = []
    for size in SIZES:
        hits = [int(p) in row["found"] for row in rows for p, found in row["sizes"].items() if nearest(found) == size]
        shares.append(f"{np.mean(hits):.2f}")
    return " / ".join(shares)


def nearest(size: float) -> float:
    """The size an effect was made with; standardised it differs a little."""
    return min(SIZES, key=lambda one: abs(np.log(one / size)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--design", choices=tuple(DESIGNS), action="append", help="all where none is given")
    parser.add_argument("--minutes", type=float, default=15.0, help="of processor time")
    parser.add_argument("--sets", type=int, default=100, help="data sets of each design at most")
    parser.add_argument("--summary", action="store_true")
    args = parser.parse_args()
    if not args.summary:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(args.design or list(DESIGNS), args.minutes, args.sets)
    print("\n".join(summary()))


if __name__ == "__main__":
    main()
