"""How time and memory grow: log–log curves with fitted exponents, and what a user might choose instead, in one run.

    make bench-growth                       # about ten minutes on one core; writes results/growth.json and the docs' pictures
    python -m benchmarks.growth --quick     # a look in two minutes, nothing kept
    python -m benchmarks.growth --draw      # the pictures again from the kept results

Sketching (seconds per table) against n, P and m; sampling (milliseconds per sweep: the median over rounds of a full sweep and the
light ones that follow it, warm-up left out) against P, m and Q, with row scales and with element scales. Every point is measured
in a process of its own on one core with one BLAS thread, in processor time, which other programs disturb little; `mb` is its
highest memory above that of a problem of toy size. An exponent k is that of a + b·xᵏ, fitted to logarithms: a is what every point
costs. The comparison gives all methods the same rows (see `benchmarks.rivals`) and stops each at a time budget.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks import child

RESULT = Path(__file__).parent / "results" / "growth.json"
PICTURES = Path(__file__).parents[1] / "docs" / "images"
FLAT = 1.15  # what grows by less than this factor over the last two steps has levelled off: no exponent to fit

# (what, against, fixed sizes, values)
CURVES: list[tuple[str, str, dict[str, Any], list[int]]] = [
    ("sketch", "n", {"P": 500, "m": 200}, [5000, 10_000, 20_000, 40_000, 80_000, 160_000]),
    ("sketch", "P", {"n": 20_000, "m": 200}, [125, 250, 500, 1000, 2000, 4000]),
    ("sketch", "m", {"n": 20_000, "P": 500}, [50, 100, 200, 400, 800, 1600]),
    ("row", "P", {"m": 200, "Q": 5}, [500, 2000, 8000, 32_000, 128_000, 256_000]),
    ("row", "m", {"P": 20_000, "Q": 5}, [50, 100, 200, 400, 800, 1200]),
    ("row", "Q", {"P": 20_000, "m": 100}, [1, 2, 4, 8, 16, 32]),
    ("element", "P", {"m": 50, "Q": 5}, [500, 2000, 8000, 32_000, 128_000]),
    ("element", "m", {"P": 1000, "Q": 5}, [25, 50, 100, 200, 400]),
    ("element", "Q", {"P": 1000, "m": 50}, [1, 2, 4, 8, 16, 32]),
]
# Sketching mnP + nm²; sampling with row scales m²P + Rm³ and passes of mPQ; with element scales R·m²P + (mQ)³.
THEORY = {
    ("sketch", "n"): "1", ("sketch", "P"): "1", ("sketch", "m"): "1 to 2", ("row", "P"): "1", ("row", "m"): "1 to 3",
    ("row", "Q"): "0 to 1", ("element", "P"): "1", ("element", "m"): "2 to 3", ("element", "Q"): "1 to 3",
}  # fmt: skip
# (rows, P, Q) of the comparison, with our draws and the rivals'
SIZES = [(100, 50, 3, 2000, 1000), (100, 300, 5, 2000, 1000), (200, 1000, 5, 2000, 500), (300, 3000, 5, 1000, 400)]
LIMIT = 120  # seconds of processor time for one point of a curve
METHODS = ("ours", "elastic_net", "locus", "paper", "nuts")
BUDGET = 30.0  # seconds of processor time for one rival at one size


def fit_exponent(x: Any, y: Any) -> dict[str, float] | None:
    """k of y ≈ a + b·xᵏ, a ≥ 0, b > 0, by least squares of logarithms, with its standard error; None where y levels off."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(x) < 4 or not y[-1] > FLAT * y[-3] or not y.min() > 0:
        return None
    top, size = x / x.max(), y.max()

    def residual(p: np.ndarray) -> np.ndarray:
        return np.log((np.exp(p[0]) + np.exp(p[1]) * top ** p[2]) * size) - np.log(y)

    starts = [(np.log(share * y.min() / size), -0.1, k) for share in (0.01, 0.5, 0.95) for k in (0.5, 1.0, 2.0, 3.0)]
    bounds = [-30.0, -30.0, 0.0], [5.0, 5.0, 6.0]
    best = min((least_squares(residual, start, bounds=bounds) for start in starts), key=lambda f: float(f.cost))
    J = best.jac
    spread = np.linalg.pinv(J.T @ J)[2, 2] * 2 * best.cost / max(1, len(x) - 3)
    return {"k": float(best.x[2]), "se": float(np.sqrt(max(0.0, spread))), "a": float(np.exp(best.x[0]) * size),
            "b": float(np.exp(best.x[1]) * size / x.max() ** best.x[2])}  # fmt: skip


def simulated(P: int, m: int, Q: int, signals: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """X and Y."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((P, m)).T
    signals = min(signals, P)
    return X, X[:, :signals] @ (rng.standard_normal((signals, Q)) / 5) + rng.standard_normal((m, Q))


def sweeps(P: int, m: int, Q: int, local: str, seconds: float, rounds: int = 5) -> dict[str, Any]:
    """Milliseconds per sweep: at least `rounds` rounds of a full sweep and its light ones, more while time is left."""
    from intarsia.server.sampler.horseshoe.chain import GibbsChain
    from intarsia.server.sampler.horseshoe.model import Model
    from intarsia.server.sampler.horseshoe.sweep import prepare
    from intarsia.server.sampler.settings import Settings

    never = Settings(draws=1, warmup=10**9, thin=1, seed=1)  # nothing is kept
    # What is compiled is no part of the problem's memory.
    GibbsChain(prepare(Model(local=local), *simulated(30, 8, Q)), never, 0).advance(4)
    imports, times, made, warmup = child.high_mb(), [], 0, 4  # warm-up in rounds
    began = time.perf_counter()
    model = prepare(Model(local=local), *simulated(P, m, Q))
    chain, every = GibbsChain(model, never, 0), model.every
    while len(times) < warmup + rounds or (time.perf_counter() - began < seconds and len(times) < 200):
        begin = time.process_time()
        chain.advance(every)
        times.append((time.process_time() - begin) / every)
        made += every
    times = times[warmup:]
    return {"ms_per_sweep": 1e3 * median(times), "fastest": 1e3 * min(times), "sweeps": made, "every": every,
            "imports_mb": imports}  # fmt: skip


def sketching(path: str, m: int, seconds: float, rounds: int = 3) -> dict[str, Any]:
    """Seconds to sketch the table in a file, Φ and its factor made anew: the median of a few."""
    from benchmarks.sketch import KEY, TERMS
    from intarsia.site.data.table import Table
    from intarsia.site.sketch import sketch as site_sketch
    from intarsia.site.sketch.terms import SketchTerms

    times, began = [], time.perf_counter()
    while len(times) < rounds or (time.perf_counter() - began < seconds and len(times) < 20):
        site_sketch._FACTORS.clear()
        begin = time.process_time()
        site_sketch.sketch(Table.open(path), KEY, SketchTerms(m=m, **TERMS))
        times.append(time.process_time() - begin)
    return {"seconds": median(times), "fastest": min(times), "rounds": len(times)}


def point(what: str, sizes: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One measured point of a curve."""
    row: dict[str, Any] = {"what": what, **dict.fromkeys("nPmQ"), "device": "cpu: 1 core", "ms_per_sweep": None, **sizes}
    if what != "sketch":
        return row | child.measure("benchmarks.growth.sweeps", LIMIT, local=what, seconds=seconds, **sizes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npy"
        n, P = sizes["n"], sizes["P"]
        block = np.random.default_rng(0).standard_normal((min(n, 5000), P))
        table = np.lib.format.open_memmap(path, "w+", np.float64, (n, P))
        for start in range(0, n, len(block)):  # the rows' values do not matter to the time
            table[start : start + len(block)] = block[: n - start]
        del table
        return row | child.measure("benchmarks.growth.sketching", LIMIT, path=str(path), m=sizes["m"], seconds=seconds)


def curves(table: Any, seconds: float, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Every curve: its points and the exponents of time and memory."""
    for what, against, fixed, values in table:
        points = []
        for value in values:
            points.append(point(what, {**fixed, against: value}, seconds))
            if points[-1]["stopped"]:  # a busy machine, or a small one
                tell(f"{what:8} {against} = {value:<8,} stopped after {LIMIT} s")
                del points[-1]
                break
            cost = 1e3 * points[-1]["seconds"] if what == "sketch" else points[-1]["ms_per_sweep"]
            tell(f"{what:8} {against} = {value:<8,} {cost:10.2f} ms {points[-1]['mb']:8.0f} MB")
        times, values = [p["seconds" if what == "sketch" else "ms_per_sweep"] for p in points], values[: len(points)]
        seen = [(value, p["mb"]) for value, p in zip(values, points) if p["mb"] > 1]  # less drowns in what a toy takes
        yield {
            "what": what, "against": against, "fixed": fixed, "theory": THEORY[what, against], "points": points,
            "time": fit_exponent(values, times), "memory": fit_exponent(*zip(*seen)) if len(seen) > 3 else None,
        }  # fmt: skip


def comparison(
    sizes: Any, budget: float, tell: Callable[[str], None], methods: tuple[str, ...] = METHODS
) -> Iterator[dict[str, Any]]:
    """Every method at every size. Samplers end at their budget (NUTS may compile besides); what runs on is stopped."""
    for rows, P, Q, draws, theirs in sizes:
        size = {"rows": rows, "P": P, "Q": Q}
        short = {"draws": theirs, "warmup": min(200, theirs), "budget": budget}
        for name in methods:
            options = {"ours": {"draws": draws, "warmup": min(500, draws)}, "paper": short, "nuts": short}.get(name, {})
            limit = {"ours": 3, "nuts": 3}.get(name, 2) * budget
            row = {"method": name, **size, "m": rows, "device": "cpu: 1 core", "ms_per_sweep": None, "budget_s": budget}
            row |= child.measure(f"benchmarks.rivals.{name}", limit, **size, **options)
            tell(f"{name:12} {rows}×{P}×{Q}: {words(row)}, {row['mb']:.0f} MB")
            yield row


def words(row: dict[str, Any]) -> str:
    """One comparison's outcome."""
    if "s_per_1000_worst" in row:
        doubt = "" if row["settled"] else f", R̂ {row['rhat_max']:.2f}: not settled"
        each, worst = row["s_per_1000_median"], row["s_per_1000_worst"]
        return f"1,000 effective draws in {each:.1f} s, of the slowest coefficient in {worst:.0f} s{doubt}"
    if "seconds" in row:
        return f"one fit in {row['seconds']:.2f} s"
    speed = f" ({row['ms_per_sweep']:.0f} ms per sweep)" if row.get("ms_per_sweep") else ""
    return f"stopped after {row['budget_s']:.0f} s{speed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller points, a smaller budget; nothing is kept")
    parser.add_argument("--draw", action="store_true", help="only draw the kept results")
    parser.add_argument("--only", choices=["curves", "comparison"], help="measure one half again; the other stays as it was kept")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of processor time for one rival at one size")
    parser.add_argument("--seconds", type=float, default=1.5, help="least time spent on the rounds of a point")
    args = parser.parse_args()
    if not args.draw:
        began = time.perf_counter()

        def tell(line: str) -> None:
            print(f"{time.perf_counter() - began:5.0f} s  {line}", flush=True)

        table = [(*c[:3], c[3][:4]) for c in CURVES] if args.quick else CURVES
        found: dict[str, Any] = json.loads(RESULT.read_text()) if args.only else {}
        found |= {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": "make bench-growth",
            "machine": f"{cpu()}, {os.cpu_count()} cores", "numpy": np.__version__, "python": platform.python_version(),
        }  # fmt: skip
        if args.only != "comparison":
            found["curves"] = list(curves(table, 0.3 if args.quick else args.seconds, tell))
            for c in found["curves"]:
                time_, memory = ("none" if c[k] is None else f"{c[k]['k']:.2f} ± {c[k]['se']:.2f}" for k in ("time", "memory"))
                tell(f"{c['what']:8} against {c['against']}: exponent of time {time_} (theory {c['theory']}), of memory {memory}")
        if args.only != "curves":
            budget = 10 if args.quick else args.budget
            found["comparison"] = list(comparison(SIZES[: 2 if args.quick else None], budget, tell))
        found["seconds"] = round(time.perf_counter() - began)
        if args.quick:
            return
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
    from benchmarks import growth_plots

    for path in growth_plots.draw(json.loads(RESULT.read_text()), PICTURES):
        print(f"drawn: {path}")


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
