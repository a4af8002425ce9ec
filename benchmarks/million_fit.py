"""`intarsia fit` at a million features without its sweeps: `python -m benchmarks.million_fit`.

The sketches of two sites as files (a million features, ten responses, m = 1000: 8 GB), taken in, joined, judged, and each site's
coefficients written, as the command does. The draws are made up (`benchmarks.million_report`), with as many whole ones as a long
run keeps, so that no accelerator is needed; a real run adds its sweeps and checkpoints. Needs 18 GB of memory and 24 GB of disk
where temporary files go. Kept in benchmarks/results/million_fit.json: seconds, sizes, host memory beyond X.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import million_report
from benchmarks.child import ROOT, high_mb

RESULT = Path(__file__).parent / "results" / "million_fit.json"
WHOLE = 21  # whole draws per chain
STUDY = """id = "chip"
run = "abababababababab"
[sketch]
m = {m}
[[site]]
name = "chip"
features = ["*"]
[[site]]
name = "clinic"
features = []
responses = ["*"]
"""


def make_sketches(folder: Path, P: int, Q: int, m: int) -> None:
    """What the two sites send."""
    from intarsia.wire.messages import Sketch
    from intarsia.wire.study import Study

    (folder / "study.toml").write_text(STUDY.format(m=m), encoding="utf-8")
    study, sketch = Study.load(folder / "study.toml"), million_report.joined(million_report.made_up(P, Q), m)
    sketch.X.flags.writeable = False  # or it would be copied
    facts: dict[str, Any] = {
        "n": sketch.n, "m": m, "kind": study.sketch.kind, "precision": study.sketch.precision, "study_hash": study.hash,
        "key_fingerprint": "cd" * 16, "order_mac": "12" * 32,
    }  # fmt: skip
    none = np.empty((m, 0))
    Sketch("clinic", (), sketch.responses, none, sketch.Y, **facts).save(folder / "clinic.sketch")
    Sketch("chip", sketch.features, (), sketch.X, none, **facts).save(folder / "chip.sketch")


def measure(folder: Path, P: int, Q: int) -> dict[str, Any]:
    from intarsia.carriers.files import fit_files
    from intarsia.server.study import fit

    before, began, when = high_mb(), time.perf_counter(), []

    def made_up(X: np.ndarray, *given: Any, **more: Any) -> Any:
        when.append(time.perf_counter())
        draws = million_report.made_up(P, Q, folder / "whole.npy")
        when.append(time.perf_counter())
        return draws

    million_report.WHOLE = WHOLE
    fit.run_chains = made_up  # type: ignore[assignment]
    fit_files([folder / "chip.sketch", folder / "clinic.sketch"], folder / "study.toml", folder / "out")
    sizes = {
        name: sum(file.stat().st_size for file in (folder / "out").glob(name)) for name in ("posterior.nc", "coefficients/*")
    }
    X = (folder / "out" / "sketch" / "chip.sketch").stat().st_size
    return {
        "P": P, "Q": Q, "whole_draws": million_report.CHAINS * WHOLE, "seconds_taken_in": round(when[0] - began, 1),
        "seconds_after_draws": round(time.perf_counter() - when[1], 1),
        "host_gb_beyond_x": round((high_mb() - before) * 2**20 / 1e9 - X / 1e9, 2),
        "netcdf_gb": round(sizes["posterior.nc"] / 1e9, 2), "coefficients_gb": round(sizes["coefficients/*"] / 1e9, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="5,000 features, to see that it runs; nothing is kept")
    parser.add_argument("--taken-from", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    P, Q, m = (5_000, 10, 200) if args.small else (1_000_000, 10, 1000)
    if args.taken_from:
        print(json.dumps(measure(args.taken_from, P, Q)))
        return
    with tempfile.TemporaryDirectory() as name:
        make_sketches(Path(name), P, Q, m)
        # In a process of its own: making the sketches took more memory than the fit does.
        command = [sys.executable, "-m", "benchmarks.million_fit", "--taken-from", name, *(["--small"] if args.small else [])]
        row = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    print(json.dumps(row))
    if not args.small:
        RESULT.write_text(json.dumps(row) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
