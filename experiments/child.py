"""Measure in a process of its own: fresh memory, one core unless told, stopped at a limit of processor time.

It prints one object per line as it gets on, so that one stopped at its limit still tells what it knew; the last line counts.
"""

import importlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def high_mb(process: int | str = "self") -> float:
    """Highest resident memory of a process. Linux's own count, as getrusage's includes the parent before exec."""
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)


def spent(process: int, began: float) -> float:
    """Seconds of processor time of a process (a busy machine stops nobody early); by the clock where it is not known."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return time.perf_counter() - began


def measure(function: str, limit: float, cores: int = 1, **arguments: Any) -> dict[str, Any]:
    """Run `module.function(**arguments)` (a dict, or an iterable of ever better ones) in a child.

    Adds `mb` (highest memory above that of the module's imports), `wall_s`, and `stopped` when it was ended at the limit (seconds
    of processor time).
    """
    began = time.perf_counter()
    env = os.environ | dict.fromkeys(THREADS, str(cores))
    command = [sys.executable, "-m", "experiments.child", function, str(cores), json.dumps(arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=env)
    stopped, high = False, 0.0
    while True:
        try:
            out, errors = process.communicate(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            if not stopped and spent(process.pid, began) > limit:
                stopped, high = True, high_mb(process.pid)
                process.kill()
    lines = [json.loads(line[2:]) for line in out.splitlines() if line.startswith("> ")]
    if not stopped and (process.returncode or not lines):
        raise RuntimeError(f"{function} failed: {errors[-2000:]}")
    found: dict[str, Any] = {}
    for line in lines:
        found |= line
    found["mb"] = round(max(high, found.pop("high_mb", 0.0)) - found.pop("imports_mb", 0.0), 1)
    return found | {"wall_s": round(time.perf_counter() - began, 2), "stopped": stopped}


def main(function: str, cores: str, arguments: str) -> None:
    if hasattr(os, "sched_setaffinity"):  # JAX and others start a thread for each core they see
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[-int(cores) :]))
    module, name = function.rsplit(".", 1)
    run = getattr(importlib.import_module(module), name)
    print("> " + json.dumps({"imports_mb": high_mb()}), flush=True)
    found: dict[str, Any] | Iterable[dict[str, Any]] = run(**json.loads(arguments))
    for row in [found] if isinstance(found, dict) else found:
        print("> " + json.dumps(row | {"high_mb": high_mb()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
