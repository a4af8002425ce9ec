"""Beside other methods on the same data, where it is hard first; all rows in one place, and a sketch of them.

    python -m experiments.compare --sets 20            # every design, a row for each method and data set; goes on
    python -m experiments.compare --summary            # what the rows say
    python -m experiments.compare --draw               # docs/images/compare.svg

Methods: `experiments.rivals`, those that cannot be loaded (skglm, Rscript with susieR) are said and left out. A row keeps the
evidence of the features that show most, so that power can be asked at the threshold at which 5 % are really false, whatever
threshold the method would have taken. Processor seconds; R² is the share of what the features explain in 1,000 new rows.
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from experiments.genotypes import genotypes  # noqa: E402
from experiments.kept import read_rows  # noqa: E402
from experiments.rivals.answer import Answer, timed  # noqa: E402

Array = np.ndarray
RESULT = Path(__file__).parent / "results" / "compare.jsonl"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "compare.svg"
SHOWN, NEW, NAMED, AT_ONCE = 40, 1000, 0.05, 5


class Design(NamedTuple):
    n: int = 400
    P: int = 100
    Q: int = 3
    m: int = 150
    s: int = 10
    size: float = 0.3
    kind: str = "independent"
    special: str = ""


DESIGNS = {
    "weak": Design(size=0.15),
    "correlated": Design(kind="blocks"),
    "clusters": Design(special="clusters"),
    "genotypes": Design(kind="genotypes", s=6),
    "one of four": Design(Q=4, size=0.35, special="one"),
    "many responses": Design(Q=20, size=0.2),
    "few rows": Design(n=80, P=200, m=60, s=8, size=0.6),
    "noise": Design(special="noise"),
    "nothing": Design(s=0),
    "paper": Design(kind="equal", size=1.0),
    "one response": Design(Q=1),
}
WORDS = {
    "weak": "weak effects, N(0, .15²)", "correlated": "blocks of ten correlated at .9", "clusters": "rows in clusters",
    "genotypes": "genotypes in linkage disequilibrium", "one of four": "effects on one of four responses",
    "many responses": "twenty responses", "few rows": "80 rows, 200 features",
    "noise": "noise with heavy tails, its level by a feature", "nothing": "nothing at all",
    "paper": "the paper's: equicorrelated, N(0, 1)", "one response": "one response",
}  # fmt: skip
PAPERS = ("weak", "correlated", "one of four", "paper")  # designs that the paper's prior is run on: it takes longest


def columns(design: Design, n: int, rng: np.random.Generator, seed: int) -> Array:
    """Features of n rows, each with mean 0 and spread 1."""
    P = design.P
    if design.kind == "genotypes":
        X = genotypes(n, P, seed)[0]
    else:
        X = rng.standard_normal((n, P))
        if design.kind == "blocks":
            X = np.sqrt(0.9) * rng.standard_normal((n, P // 10)).repeat(10, axis=1) + np.sqrt(0.1) * X
        elif design.kind == "equal":
            X = np.sqrt(0.5) * rng.standard_normal((n, 1)) + np.sqrt(0.5) * X
    if design.special == "clusters":
        X = 0.7 * X + 0.7 * rng.standard_normal((40, P))[rng.integers(0, 40, n)]
    return np.asarray((X - X.mean(axis=0)) / X.std(axis=0))


def simulate(name: str, seed: int) -> tuple[Array, Array, Array, Array]:
    """X, Y, the effects, and features of new rows."""
    design, rng = DESIGNS[name], np.random.default_rng([seed, list(DESIGNS).index(name)])
    n, Q = design.n, design.Q
    every = columns(design, n + NEW, rng, 1000 * list(DESIGNS).index(name) + seed)
    X, new = every[:n], every[n:]
    C, chosen = np.zeros((design.P, Q)), rng.choice(design.P, design.s, replace=False)
    C[chosen] = design.size * rng.standard_normal((design.s, Q))
    if design.special == "one":
        C[chosen] = 0.0
        C[chosen, rng.integers(0, Q, design.s)] = design.size * rng.choice([-1, 1], design.s)
    E = np.sqrt(0.5) * rng.standard_normal((n, 1)) + np.sqrt(0.5) * rng.standard_normal((n, Q))
    if design.special == "noise":
        E = E / np.sqrt(rng.chisquare(4, (n, 1)) / 4) * np.exp(0.5 * X[:, :1])
    elif design.special == "clusters":
        E = 0.7 * E + 0.7 * rng.standard_normal((40, Q))[rng.integers(0, 40, n)]
    Y = X @ C + E
    mean = X.mean(axis=0)
    return X - mean, Y - Y.mean(axis=0), C, new - mean


def ways(name: str, X: Array, Y: Array, seed: int) -> dict[str, tuple[Array, Array]]:
    """All rows, and m rows of an orthonormal centred sketch."""
    G = np.random.default_rng([seed, 17]).standard_normal((DESIGNS[name].m, len(X)))
    Phi = np.linalg.qr((G - G.mean(axis=1, keepdims=True)).T)[0].T
    return {"pooled": (X, Y), "sketch": (Phi @ X, Phi @ Y)}


def methods(name: str, rows: str) -> dict[str, Any]:
    """Those that run in this process."""
    from experiments.rivals import knockoff, ours, stability

    found: dict[str, Any] = {"intarsia": ours.answer, "stability": stability.answer}
    if name in PAPERS:
        found["paper's prior"] = ours.paper
    if rows == "pooled":
        found["knockoffs"] = knockoff.answer
    try:
        import skglm  # noqa: F401
    except ImportError:
        print("skglm is not installed: left out")
    else:
        from experiments.rivals import block_mcp

        found["block MCP"] = block_mcp.answer
    return found


def row(found: Answer, X: Array, C: Array, new: Array) -> dict[str, Any]:
    """What one answer is worth, against the truth."""
    true, at = C.any(axis=1), np.argsort(-found.evidence, kind="stable")[:SHOWN]
    out: dict[str, Any] = {
        "seconds": round(found.seconds, 3), "true": int(true.sum()),
        "found": int(true[found.chosen].sum()), "false": int((~true)[found.chosen].sum()),
        "evidence": [[round(float(found.evidence[p]), 4), int(true[p])] for p in at if found.evidence[p] > 0],
    }  # fmt: skip
    if found.coef is not None:
        signal = new @ C
        total = float(np.square(signal - signal.mean(axis=0)).sum())
        missed = float(np.square(signal - new @ found.coef).sum())
        out["r2"] = round(1 - missed / total, 4) if total > 0 else None
        out["error"] = float(f"{np.square(found.coef - C)[true].mean():.4g}") if true.any() else None
    several = [one for one in found.sets if len(one) > 1]
    cor = [np.abs(np.corrcoef(X[:, one].T)).min() for one in several]
    out |= {
        "sets": len(found.sets), "false_sets": sum(not true[one].any() for one in found.sets),
        "members": [len(one) for one in found.sets], "purity": [round(float(r), 3) for r in cor],
    }  # fmt: skip
    if found.lower is not None and found.upper is not None:
        inside = ((found.lower <= C) & (found.upper >= C))[found.chosen & true]
        out |= {"intervals": int(inside.size), "covering": int(inside.sum())}
    return out


def of_design(
    name: str, seeds: list[int], done: set[tuple[str, str, str, int]], only: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Every method on every data set of a design that no kept row has; susieR in one call at the end."""
    waiting = []
    for seed in seeds:
        X, Y, C, new = simulate(name, seed)
        for rows, (A, B) in ways(name, X, Y, seed).items():
            for method, answer in methods(name, rows).items():
                if (name, rows, method, seed) not in done and (not only or method in only):
                    key = {"design": name, "rows": rows, "method": method, "seed": seed}
                    yield key | row(timed(answer, A, B, seed), A, C, new)
            if (name, rows, "susieR", seed) not in done and (not only or "susieR" in only):
                waiting.append((seed, rows, A, B, C, new))
    if waiting:
        from experiments.rivals import susie

        try:
            told = susie.answers([(A, B, 0) for _, _, A, B, _, _ in waiting])
        except FileNotFoundError:
            print("Rscript is not installed: susieR left out")
            return
        for (seed, rows, A, _, C, new), found in zip(waiting, told, strict=True):
            yield {"design": name, "rows": rows, "method": "susieR", "seed": seed} | row(found, A, C, new)


def at_realised(rows: list[dict[str, Any]], rate: float = NAMED) -> float | None:
    """Share of the true features found at the one threshold of a method at which so many of all it names are false."""
    true = sum(one["true"] for one in rows)
    seen = sorted((pair for one in rows for pair in one["evidence"]), key=lambda pair: -pair[0])
    if not true or not seen:
        return None
    value, hit = np.array([pair[0] for pair in seen]), np.array([pair[1] for pair in seen], dtype=bool)
    last = np.append(value[1:] < value[:-1], True)  # a threshold takes all that are as large
    wrong = np.cumsum(~hit) / np.arange(1, len(hit) + 1)
    good = np.flatnonzero(last & (wrong <= rate))
    return float(hit[: good[-1] + 1].sum() / true) if good.size else 0.0


def told(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One line of the tables: sums and means over the data sets of a design, rows and method."""
    named = sum(one["found"] + one["false"] for one in rows)
    true, sets = sum(one["true"] for one in rows), sum(one["sets"] for one in rows)
    r2 = [one["r2"] for one in rows if one.get("r2") is not None]
    error = [one["error"] for one in rows if one.get("error") is not None]
    members = [k for one in rows for k in one["members"] if k > 1]
    purity = [r for one in rows for r in one["purity"]]
    intervals = sum(one.get("intervals", 0) for one in rows)
    return {
        "data_sets": len(rows), "named": named, "false": sum(one["false"] for one in rows), "true": true,
        "power": sum(one["found"] for one in rows) / true if true else None, "at_realised": at_realised(rows),
        "sets": sets, "false_sets": sum(one["false_sets"] for one in rows),
        "members": float(np.median(members)) if members else None, "purity": float(np.median(purity)) if purity else None,
        "r2": float(np.mean(r2)) if r2 else None, "error": float(np.mean(error)) if error else None,
        "coverage": sum(one["covering"] for one in rows if "covering" in one) / intervals if intervals else None,
        "seconds": float(np.median([one["seconds"] for one in rows])),
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """By design, rows and method, in the order of the designs."""
    out = {}
    for name in DESIGNS:
        for way in ("pooled", "sketch"):
            here = [one for one in rows if (one["design"], one["rows"]) == (name, way)]
            for method in dict.fromkeys(one["method"] for one in here):
                out[name, way, method] = told([one for one in here if one["method"] == method])
    return out


def draw(rows: list[dict[str, Any]]) -> None:
    """Power at a realised 5 % and the realised rate of each method's own rule, all rows and sketch."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {
        "intarsia": "#D55E00", "susieR": "#0072B2", "block MCP": "#009E73", "stability": "#CC79A7", "knockoffs": "#E69F00",
        "paper's prior": "#000000",
    }  # fmt: skip
    found, designs = table(rows), [name for name in DESIGNS if any(one["design"] == name for one in rows)]
    plt.rcParams |= {"font.size": 9, "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.5), sharey=True)
    for column, way in enumerate(("pooled", "sketch")):
        for line, (key, label) in enumerate((("at_realised", "found at a realised 5 %"), ("rate", "false, of what is named"))):
            ax = axes[line][column]
            for k, (method, colour) in enumerate(colours.items()):
                values = [found.get((name, way, method)) for name in designs]
                y = [i + (k - 2.5) * 0.12 for i, value in enumerate(values) if value is not None]
                x = [_shown(value, key) for value in values if value is not None]
                ax.plot([np.nan if one is None else one for one in x], y, "o", color=colour, ms=5, label=method)
            ax.set_yticks(range(len(designs)), designs)
            ax.set_xlabel(f"{label}, {'all rows' if way == 'pooled' else 'the same sketch'}")
            ax.set_xlim(-0.03, 1.03 if line == 0 else 0.63)
            ax.grid(axis="x", color="0.9")
            if line:
                ax.axvline(NAMED, color="0.6", lw=0.8)
    axes[0][0].invert_yaxis()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center", ncol=6, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(PICTURE, metadata={"Date": None})


def _shown(value: dict[str, Any], key: str) -> float | None:
    if key == "rate":
        return value["false"] / value["named"] if value["named"] else None
    return value[key]  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", nargs="*", default=list(DESIGNS), choices=list(DESIGNS))
    parser.add_argument("--methods", nargs="*", help="only these")
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--draw", action="store_true")
    args = parser.parse_args()
    rows = read_rows(args.out)
    if args.draw:
        draw(rows)
    elif not args.summary:
        timed(methods("nothing", "pooled")["intarsia"], *simulate("nothing", 0)[:2], 0)  # compiles
        done = {(one["design"], one["rows"], one["method"], one["seed"]) for one in rows}
        args.out.parent.mkdir(exist_ok=True)
        with args.out.open("a", encoding="utf-8") as out:
            for first in range(1, args.sets + 1, AT_ONCE):  # all designs have about as many when it is stopped
                seeds = list(range(first, min(first + AT_ONCE, args.sets + 1)))
                for name in args.designs:
                    for made in of_design(name, seeds, done, args.methods):
                        out.write(json.dumps(made) + "\n")
                        out.flush()
                    print(f"{name} done up to {seeds[-1]}", flush=True)
    for (name, way, method), one in table(read_rows(args.out)).items():
        short = {key: round(value, 3) if isinstance(value, float) else value for key, value in one.items()}
        print(f"{name:15} {way:7} {method:14} {short}")


if __name__ == "__main__":
    main()
