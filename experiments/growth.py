"""How time and memory grow: log–log curves with fitted exponents.

    make bench-growth                        # a few minutes on one core; writes results/growth.json and the docs' pictures
    python -m experiments.growth --quick     # a look in a minute, nothing kept
    python -m experiments.growth --draw      # the pictures again from the kept results

Sketching (seconds per table) against n, P and m; sampling with the default prior (milliseconds per sweep after the warm-up, the
median over rounds) against P, m and Q. Every point is measured in a process of its own on one core with one BLAS thread, in
processor time, which other programs disturb little; `mb` is its highest memory above that of a problem of toy size. An exponent k
is that of a + b·xᵏ, fitted to logarithms: a is what every point costs.
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

from experiments import child
from experiments.kept import keep

RESULT = Path(__file__).parent / "results" / "growth.json"
PICTURES = Path(__file__).parents[1] / "docs" / "images"
FLAT = 1.15  # what grows by less than this factor over the last two steps has levelled off: no exponent to fit

# (what, against, fixed sizes, values)
CURVES: list[tuple[str, str, dict[str, Any], list[int]]] = [
    ("sketch", "n", {"P": 500, "m": 200}, [5000, 10_000, 20_000, 40_000, 80_000, 160_000]),
    ("sketch", "P", {"n": 20_000, "m": 200}, [125, 250, 500, 1000, 2000, 4000]),
    ("sketch", "m", {"n": 20_000, "P": 500}, [50, 100, 200, 400, 800, 1600]),
    ("sample", "P", {"m": 200, "Q": 5}, [500, 2000, 8000, 32_000, 128_000]),
    ("sample", "m", {"P": 20_000, "Q": 5}, [50, 100, 200, 400, 800]),
    ("sample", "Q", {"P": 20_000, "m": 100}, [1, 2, 4, 8, 16, 32]),
]
# Sketching mnP + nm²; a scan's passes over the features cost mPQ, the slab and what is in Q³ and m²Q.
THEORY = {
    ("sketch", "n"): "1", ("sketch", "P"): "1", ("sketch", "m"): "1 to 2", ("sample", "P"): "1", ("sample", "m"): "1 to 2",
    ("sample", "Q"): "0 to 2",
}  # fmt: skip
LIMIT = 120  # seconds of processor time for one point of a curve
ROUND, WARM_UP = 5, 60  # sweeps


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


def simulated(P: int, m: int, Q: int, signals: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """X and Y."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((P, m)).T
    signals = min(signals, P)
    return X, X[:, :signals] @ (rng.standard_normal((signals, Q)) / 2) + rng.standard_normal((m, Q))


def sweeps(P: int, m: int, Q: int, seconds: float, rounds: int = 5) -> dict[str, Any]:
    """Milliseconds per sweep of one chain: the median over at least `rounds` rounds, more while time is left."""
    from intarsia.server.sampler.sparse.chain import SparseChain
    from intarsia.server.sampler.sparse.problem import Prior, prepare

    def chain(P: int, m: int, Q: int) -> Any:
        return SparseChain(prepare(*simulated(P, m, Q), Prior(), background=True)[0], 0, 1, WARM_UP)

    chain(40, 12, Q).advance(WARM_UP + 4)  # what is compiled is no part of the problem's memory
    imports, times, made = child.high_mb(), [], chain(P, m, Q)
    made.advance(WARM_UP)
    began = time.perf_counter()
    while len(times) < rounds or (time.perf_counter() - began < seconds and len(times) < 200):
        begin = time.process_time()
        made.advance(ROUND)
        times.append((time.process_time() - begin) / ROUND)
    return {"ms_per_sweep": 1e3 * median(times), "fastest": 1e3 * min(times), "sweeps": ROUND * len(times), "imports_mb": imports}


def sketching(path: str, m: int, seconds: float, rounds: int = 3) -> dict[str, Any]:
    """Seconds to sketch the table in a file, Φ and its factor made anew: the median of a few."""
    from experiments.sketch import KEY, TERMS
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
        return row | child.measure("experiments.growth.sweeps", LIMIT, seconds=seconds, **sizes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npy"
        n, P = sizes["n"], sizes["P"]
        block = np.random.default_rng(0).standard_normal((min(n, 5000), P))
        table = np.lib.format.open_memmap(path, "w+", np.float64, (n, P))
        for start in range(0, n, len(block)):  # the rows' values do not matter to the time
            table[start : start + len(block)] = block[: n - start]
        del table
        return row | child.measure("experiments.growth.sketching", LIMIT, path=str(path), m=sizes["m"], seconds=seconds)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller points; nothing is kept")
    parser.add_argument("--draw", action="store_true", help="only draw the kept results")
    parser.add_argument("--seconds", type=float, default=1.5, help="least time spent on the rounds of a point")
    args = parser.parse_args()
    if not args.draw:
        began = time.perf_counter()

        def tell(line: str) -> None:
            print(f"{time.perf_counter() - began:5.0f} s  {line}", flush=True)

        table = [(*c[:3], c[3][:4]) for c in CURVES] if args.quick else CURVES
        found: dict[str, Any] = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": "make bench-growth",
            "machine": f"{cpu()}, {os.cpu_count()} cores", "numpy": np.__version__, "python": platform.python_version(),
        }  # fmt: skip
        found["curves"] = list(curves(table, 0.3 if args.quick else args.seconds, tell))
        for c in found["curves"]:
            time_, memory = ("none" if c[k] is None else f"{c[k]['k']:.2f} ± {c[k]['se']:.2f}" for k in ("time", "memory"))
            tell(f"{c['what']:8} against {c['against']}: exponent of time {time_} (theory {c['theory']}), of memory {memory}")
        found["seconds"] = round(time.perf_counter() - began)
        if args.quick:
            return
        keep(RESULT, found)
    from experiments import growth_plots

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
