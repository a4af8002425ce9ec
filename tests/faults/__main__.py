"""`make faults`: the whole suite, its counts and faults kept in last_run.json beside this file.

python -m tests.faults --kill 1000 --mutation 2000 --full 100 --stop 50 --clock 50
python -m tests.faults --again "mutation 17"     # one trial that found a fault
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

KEPT = Path(__file__).with_name("last_run.json")
FAST = Path("/dev/shm")
COUNTS = {"kill": 1000, "wire": 2000, "mutation": 1000, "full": 100, "stop": 50, "clock": 50}


def main() -> int:
    from tests.faults.studies import PLANS
    from tests.faults.suite import Suite, save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for what, count in COUNTS.items():
        parser.add_argument(f"--{what}", type=int, default=count, help=f"trials of this kind ({count})")
    parser.add_argument("--kinds", nargs="+", default=list(PLANS), choices=list(PLANS), help="kinds of study")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial of each kind; the others follow")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after so many")
    parser.add_argument("--workers", type=int, default=2, help="processes of each fit")
    parser.add_argument("--again", help="repeat one trial, as a fault names it")
    parser.add_argument("-o", "--out", type=Path, default=KEPT)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    end = time.monotonic() + 60 * args.minutes
    # Thousands of copies of studies are made and deleted: in memory, where the system has a place for it.
    fast = FAST if os.access(FAST, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="intarsia-faults-", dir=fast) as root:
        suite = Suite(Path(root), tuple(args.kinds), workers=args.workers)
        if args.again:
            what, seed = args.again.split()
            plan = [(what, int(seed))]
        else:
            plan = sorted(
                ((what, args.seed + k) for what in COUNTS for k in range(getattr(args, what))),
                key=lambda one: (one[1] - args.seed + 1) / max(getattr(args, one[0]), 1),
            )
        told = 0
        for done, (what, seed) in enumerate(plan, 1):
            suite.trial(what, seed)
            while len(suite.report.faults) > told:
                fault = suite.report.faults[told]
                print(f"\n{fault['fault']:<7} {fault['trial']}\n        {fault['said']}", flush=True)
                told += 1
            if sys.stderr.isatty() or done % 25 == 0:
                print(
                    f"\r{done:,} of {len(plan):,} trials, {len(suite.report.faults)} faults", end="", file=sys.stderr, flush=True
                )
            if time.monotonic() > end:
                break
        print(file=sys.stderr)
    print(f"{sum(suite.report.trials.values()):,} trials, {len(suite.report.faults)} faults")
    if not args.again:
        save(suite.report, args.out)
    return bool(suite.report.faults)


if __name__ == "__main__":
    sys.exit(main())
