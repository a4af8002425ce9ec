"""The sketch against a plain matrix product of the same shape, with Φ already in memory.

    make bench-sketch                            # m = 500, P = 2,000, n = 100,000, as the README quotes
    python -m experiments.sketch --n 20000        # a smaller one

The last line is one JSON object: `time_over_gemm` (sketch including making Φ, its factor, means and scales, over the
product alone, one after the other in one process; median of the rounds' ratios, each of which is there too),
`orthonormality_error` (largest entry of |ΦΦᵀ − I| and |Φ1| at this n and m) and `peak_mb` (highest memory of another
process that sketches such a table from a file, above its imports). `cores_got` says how many cores the product and the
sketch really had: well below `threads`, other programs were in the way and the times say little. `cpu_over_gemm` is
the ratio of processor seconds with one thread each, which other programs disturb less.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from scipy.linalg import solve_triangular
from threadpoolctl import threadpool_limits

from experiments.kept import keep
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.sketch import sketch as site_sketch
from intarsia.site.sketch.partial import Design, default_threads
from intarsia.site.sketch.stream import fill, gaussian_columns, stride
from intarsia.site.sketch.terms import SketchTerms, Work

RESULT = Path(__file__).parent / "results" / "sketch.json"
TERMS = {"study": "bench", "run": "bench"}
KEY = SketchKey(bytes(range(32)))  # a benchmark has no secrets


def timed(function: Callable[..., object], *args: object) -> tuple[float, float]:
    """Seconds by the clock, and processor seconds of all threads."""
    clock, processor = time.perf_counter(), time.process_time()
    function(*args)
    return time.perf_counter() - clock, time.process_time() - processor


def fresh_sketch(X: np.ndarray, m: int, kind: str, threads: int | None = None) -> None:
    """A sketch from nothing: the factor L of an earlier round is forgotten."""
    site_sketch._FACTORS.clear()
    site_sketch.sketch(Table.open(X), KEY, SketchTerms(m=m, kind=kind, **TERMS), work=Work(threads=threads))


def orthonormality(design: Design) -> tuple[float, float]:
    """Largest entry of |ΦΦᵀ − I| and of |Φ1|, with Φ = L⁻¹G_c made block by block from the stream and L."""
    L, step = site_sketch.factor(design), 4096
    g = np.zeros(design.m)
    for a in range(0, design.n, step):
        g += gaussian_columns(design.subkey, design.m, a, min(a + step, design.n)).sum(axis=1)
    gram, ones = np.zeros((design.m, design.m)), np.zeros(design.m)
    for a in range(0, design.n, step):
        G = gaussian_columns(design.subkey, design.m, a, min(a + step, design.n))
        Phi = solve_triangular(L, G - g[:, None] / design.n, lower=True)
        gram += Phi @ Phi.T
        ones += Phi.sum(axis=1)
    return float(np.abs(gram - np.eye(design.m)).max()), float(np.abs(ones).max())


def peak_mb(n: int, m: int, P: int) -> dict[str, float]:
    """Sketch a table from an .npy file in another process; its highest resident memory, and that of its imports."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npy"
        rng, table = np.random.default_rng(1), np.lib.format.open_memmap(path, "w+", np.float64, (n, P))
        for a in range(0, n, 4096):
            table[a : a + 4096] = rng.standard_normal((min(4096, n - a), P))
        del table
        command = [sys.executable, "-m", "experiments.sketch", "--child", str(path), "--m", str(m)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def high_mb() -> float:
    """Highest resident memory of this process. Linux's own count, as getrusage's includes the parent before exec."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)


def child(path: str, m: int) -> None:
    fill(bytes(32), 512, range(512), np.empty((512, stride(512))))  # what is compiled is loaded: it counts as an import
    before = high_mb()
    site_sketch.sketch(Table.open(path), KEY, SketchTerms(m=m, **TERMS))
    print(json.dumps({"imports_mb": round(before, 1), "peak_total_mb": round(high_mb(), 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--m", type=int, default=500)
    parser.add_argument("--columns", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.m)
    n, m, P = args.n, args.m, args.columns
    memory = peak_mb(n, m, P)
    print(f"memory: {memory}", flush=True)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, P))
    design = SketchTerms(m=m, **TERMS).design(KEY, n)
    fresh_sketch(X[: 4 * m], m, "orthonormal")  # imports and first touches are not what is measured
    times: dict[str, list[tuple[float, float]]] = {"gemm": [], "orthonormal": [], "gaussian": []}
    for i in range(args.rounds):
        Phi = gaussian_columns(design.subkey, m, 0, n)
        times["gemm"].append(timed(np.matmul, Phi, X))
        del Phi
        for kind in ("orthonormal", "gaussian"):
            times[kind].append(timed(fresh_sketch, X, m, kind))
        print(f"round {i + 1}: " + ", ".join(f"{name} {t[-1][0]:.2f} s" for name, t in times.items()), flush=True)
    Phi = gaussian_columns(design.subkey, m, 0, n)
    with threadpool_limits(1):
        single = timed(np.matmul, Phi, X)[1]
    del Phi
    alone = timed(fresh_sketch, X, m, "orthonormal", 1)[1]
    site_sketch._FACTORS.clear()
    identity, ones = orthonormality(design)
    ratios = {kind: [a[0] / b[0] for a, b in zip(times[kind], times["gemm"])] for kind in ("orthonormal", "gaussian")}
    seconds = {name: median(clock for clock, _ in t) for name, t in times.items()}
    cores = {name: round(sum(cpu for _, cpu in t) / sum(clock for clock, _ in t), 2) for name, t in times.items()}
    result = {
        "n": n, "m": m, "columns": P, "threads": default_threads(), "rounds": args.rounds,
        "gemm_s": round(seconds["gemm"], 3), "sketch_s": round(seconds["orthonormal"], 3), "cores_got": cores,
        "time_over_gemm": round(median(ratios["orthonormal"]), 3),
        "time_over_gemm_rounds": [round(r, 3) for r in ratios["orthonormal"]],
        "time_over_gemm_gaussian": round(median(ratios["gaussian"]), 3),
        "cpu_over_gemm": round(alone / single, 3),
        "orthonormality_error": max(identity, ones), "phi_one": ones,
        "peak_mb": round(memory["peak_total_mb"] - memory["imports_mb"], 1), **memory,
        "table_mb": round(n * P * 8 / 2**20), "phi_mb": round(n * m * 8 / 2**20),
        "numpy": np.__version__, "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }  # fmt: skip
    RESULT.parent.mkdir(exist_ok=True)
    keep(RESULT, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
