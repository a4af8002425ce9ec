"""The present sampler against that of 0.1.0, on one machine: effective samples of C per second, as a ratio.

    python -m benchmarks.before                  # both trees in turn, twice; about five minutes on an idle core
    python -m benchmarks.before --old FOLDER     # where there is no git: the files of 0.1.0 (`git archive`) lie there

The files of 0.1.0 are taken out of git's history into a temporary folder. Each tree runs in processes of its own, with one BLAS
thread, on the same sketches, of the sizes of `benchmarks.sampler`; a ratio is that of the medians. At m = 50, where nobody
waits, half of 0.1.0's speed is enough; at m ≥ 100 four fifths.

The last line is one JSON object; it is kept as results/sampler_before.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.child import THREADS
from benchmarks.sampler import SIZES, sketched

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "sampler_before.json"
RELEASE = "470f568"  # the last commit of 0.1.0
ENOUGH = {"sim1_m50": 0.5, "sim1_m100": 0.8, "sim1_m250": 0.8, "sim2_m200": 0.8}
DRAWS, WARMUP = 1500, 300  # of each of four chains

# Runs in either tree: both have this function, which times one run in one process.
MEASURE = """
import json, sys
import numpy as np
from threadpoolctl import threadpool_limits
from benchmarks.sampler import ours, rate
data, draws, warmup = np.load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with threadpool_limits(1):
    found = ours(data["X"], data["Y"], "row", draws, warmup)
print(json.dumps({which: rate(found, which) for which in ("total", "min")} | {"ms_per_sweep": found["ms_per_sweep"]}))
"""


def release(where: Path) -> Path:
    """The files of 0.1.0."""
    packed = subprocess.run(["git", "archive", RELEASE, "src", "benchmarks"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(where)], input=packed, check=True)
    return where


def measure(tree: Path, data: Path, draws: int, warmup: int) -> dict[str, float]:
    """Effective samples per second of one tree's sampler, all entries of C together and the smallest."""
    paths = os.pathsep.join([str(tree / "src"), str(tree)])
    command = [sys.executable, "-P", "-c", MEASURE, str(data), str(draws), str(warmup)]
    env = os.environ | dict.fromkeys(THREADS, "1") | {"PYTHONPATH": paths}
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The run in {tree} failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(old: Path, times: int, short: int) -> dict[str, dict[str, float]]:
    """Size -> the ratios, and what they are made of."""
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (scenario, m, *_) in SIZES.items():
            data = Path(folder) / f"{name}.npz"
            X, Y = sketched(scenario, m, seed=7)
            np.savez(data, X=X, Y=Y)
            trees = {"old": old, "new": ROOT}
            runs = [
                {side: measure(tree, data, DRAWS // short, WARMUP // short) for side, tree in trees.items()} for _ in range(times)
            ]
            was, now = ({key: median(run[side][key] for run in runs) for key in runs[0][side]} for side in trees)
            out[name] = {
                "ratio": now["total"] / was["total"],
                "min_ratio": now["min"] / was["min"],
                "old_ms_per_sweep": was["ms_per_sweep"],
                "new_ms_per_sweep": now["ms_per_sweep"],
            }
            told = out[name]
            print(
                f"{name:10} {told['ratio']:.2f} of 0.1.0's effective samples per second (enough: {ENOUGH[name]}), smallest entry "
                f"{told['min_ratio']:.2f}; {told['old_ms_per_sweep']:.2f} → {told['new_ms_per_sweep']:.2f} ms per sweep",
                flush=True,
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="a folder with src/ and benchmarks/ of 0.1.0, in place of git's history")
    parser.add_argument("--times", type=int, default=2, help="runs of each tree at each size")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sweeps, once: a look, not a measurement")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = args.old.resolve() if args.old else release(Path(folder))
        found = compare(old, 1 if args.quick else args.times, 10 if args.quick else 1)
    if not args.quick:
        rounded = {name: {key: round(value, 3) for key, value in row.items()} for name, row in found.items()}
        machine = {"cores": os.cpu_count(), "numpy": np.__version__}
        RESULT.write_text(json.dumps({"sizes": rounded, "enough": ENOUGH, "machine": machine}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: round(row["ratio"], 2) for name, row in found.items()}))


if __name__ == "__main__":
    main()
