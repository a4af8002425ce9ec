"""The sampler on an accelerator: ms per sweep from small problems to a million features.

    make bench-gpu                              # in this environment
    PYTHONPATH=src python -m benchmarks.gpu     # on a machine that has NumPy, SciPy and JAX alone

Every row is the median over compiled stretches of sweeps (full and light ones in turn, as the sampler makes them), adaptation
left out, random numbers included, after a warm-up that also compiles. `chains` run side by side; ms_per_sweep is the time in
which every chain makes one sweep; ms_full_sweep, where it is given, the same when every sweep is full, with every move.
"""

import argparse
import json
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).parent / "results" / "gpu.json"


@dataclass(frozen=True)
class Case:
    P: int
    m: int
    Q: int
    chains: int = 1
    local: str = "row"
    warmup: int = 40
    sweeps: int = 28  # a stretch: whole rounds of full and light sweeps
    stretches: int = 5
    full: bool = False  # time full sweeps on their own too
    why: str = ""


CASES = {
    "million": Case(1_000_000, 1000, 10, full=True, why="a million features"),
    "hundred-thousand": Case(100_000, 500, 10),
    "hundred-thousand-4": Case(100_000, 500, 10, chains=4),
    "cpu-bar": Case(100_000, 500, 5, why="the size of bench-cpu"),
    "centralized-element": Case(1000, 1000, 5, chains=5, local="element", warmup=200, sweeps=100, stretches=10,
                                why="n = P = 1000 unsketched, the paper's model: 5 chains × 1,200 sweeps"),
    "centralized-row": Case(1000, 1000, 5, chains=4),
    "sim2": Case(1000, 200, 5, chains=4, warmup=112, sweeps=112),
    "sim1-m100": Case(300, 100, 5, chains=4, warmup=112, sweeps=112),
    "sim1-m100-64": Case(300, 100, 5, chains=64, warmup=112, sweeps=112),
}  # fmt: skip


def make(be: Any, case: Case, block: int) -> Any:
    """Data of the case, made on the device when they are large: a random design with 50 signals."""
    from intarsia.server.sampler.state import prepare

    if case.P * case.m < 2**25:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((case.m, case.P))
        k = min(50, case.P)
        Y = X[:, :k] @ rng.standard_normal((k, case.Q)) / 5 + rng.standard_normal((case.m, case.Q))
        return prepare(be, X, Y, block=block)
    return be.simulated(case.P, case.m, case.Q, block)


def full_sweeps(plan: Any, data: Any, case: Case, be: Any) -> float:
    """Milliseconds of a sweep when every one is full."""
    from intarsia.server.sampler import device
    from intarsia.server.sampler.schedule import Plan

    class Full(Plan):
        every = 1  # type: ignore[assignment]

    every = Full(**{f.name: getattr(plan, f.name) for f in fields(plan) if f.init})
    runner = device.Runner(every, data, keep_C=False, be=be)
    chains, summary, times = runner.start(1, case.chains), runner.blank(case.chains), []
    for _ in range(6):
        begin = time.perf_counter()
        chains, summary, _ = runner.draw(chains, summary, 10, 1)
        times.append((time.perf_counter() - begin) / 10)
    return 1e3 * float(np.median(times[1:]))


def measure(name: str, case: Case) -> dict[str, Any]:
    from intarsia.server.sampler import backends, device
    from intarsia.server.sampler.model import Model
    from intarsia.server.sampler.schedule import plan as make_plan

    be = backends.on_device()
    began = time.perf_counter()
    shape = np.broadcast_to(0.0, (case.m, case.P)), np.broadcast_to(0.0, (case.m, case.Q))
    plan = device.on_device(make_plan(Model(local=case.local), *shape), be.device())
    with be.precision():
        plan, data = device.with_bounds(be, plan, make(be, case, plan.block))
    runner = device.Runner(plan, data, keep_C=False, be=be)
    chains, summary = runner.start(1, case.chains), runner.blank(case.chains)
    ready = time.perf_counter()
    chains = runner.warm_up(chains, 0, case.warmup, case.warmup)
    chains, summary, _ = runner.draw(chains, summary, case.sweeps, 1)
    compiled = time.perf_counter()
    times = []
    for _ in range(case.stretches):
        begin = time.perf_counter()
        chains, summary, _ = runner.draw(chains, summary, case.sweeps, 1)
        times.append((time.perf_counter() - begin) / case.sweeps)
    alone = full_sweeps(plan, data, case, be) if case.full else None
    finite = bool(np.isfinite(np.asarray(summary.kappa)).all())
    nb = -(-case.P // plan.block)
    return {
        "case": name, "P": case.P, "m": case.m, "Q": case.Q, "local": case.local, "chains": case.chains,
        "device": be.device(), "ms_per_sweep": 1e3 * float(np.median(times)),
        "ms_full_sweep": alone, "every": plan.every, "fastest": 1e3 * min(times),
        "slowest": 1e3 * max(times), "block": plan.block, "blocks_visited": plan.visits or nb, "blocks": nb,
        "seconds_data": ready - began, "seconds_warmup_and_compiling": compiled - ready,
        "seconds_timed": sum(times) * case.sweeps,
        "sweeps": case.warmup + case.sweeps * (1 + case.stretches), "finite": finite, "why": case.why,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--shrink", type=int, default=1, help="divide P and m: a check that it runs, not a measurement")
    for name in ("warmup", "sweeps", "stretches"):
        parser.add_argument(f"--{name}", type=int, help=f"instead of the case's own number of {name}")
    args = parser.parse_args()
    own = {k: v for k in ("warmup", "sweeps", "stretches") if (v := getattr(args, k)) is not None}
    rows = []
    for name in args.only:
        case = replace(CASES[name], **own)
        if args.shrink > 1:
            case = replace(case, P=case.P // args.shrink, m=max(10, case.m // args.shrink), warmup=8, sweeps=4, stretches=2)
        try:
            row = measure(name, case)
        except Exception as error:  # one case that does not fit must not cost the others
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        rows.append(row)
        if args.shrink == 1:
            args.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
