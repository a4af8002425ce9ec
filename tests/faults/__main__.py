"""`make faults`: the whole suite, its counts and faults kept in last_run.json beside this file.

python -m tests.faults --kill 1000 --mutation 2000 --full 100 --stop 50 --clock 50
python -m tests.faults --more                    # after a stop: the seeds that are left of so many
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
KEEP_SECONDS = 20.0


def main() -> int:
    from tests.faults.record import Record
    from tests.faults.studies import PLANS
    from tests.faults.suite import Suite

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for what, count in COUNTS.items():
        parser.add_argument(f"--{what}", type=int, default=count, help=f"trials of this kind in all ({count})")
    parser.add_argument("--kinds", nargs="+", default=list(PLANS), choices=list(PLANS), help="kinds of study")
    parser.add_argument("--more", action="store_true", help="go on after the seeds that are kept, up to as many in all")
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after so many")
    parser.add_argument("--workers", type=int, default=2, help="processes of each fit")
    parser.add_argument("--again", help="repeat one trial, as a fault names it; what comes of it is kept beside the fault")
    parser.add_argument("-o", "--out", type=Path, default=KEPT)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    end = time.monotonic() + 60 * args.minutes
    record = Record(args.out, more=args.more or bool(args.again))
    first = {what: record.next_seed(what) for what in COUNTS}
    if args.again:
        what, seed = args.again.split()
        plan = [(what, int(seed))]
    else:
        plan = [(what, seed) for what in COUNTS for seed in range(first[what], getattr(args, what))]
        plan.sort(key=lambda one: (one[1] + 1) / getattr(args, one[0]))
        record.begin()
    # Thousands of copies of studies are made and deleted: in memory, where the system has a place for it.
    fast = FAST if os.access(FAST, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="intarsia-faults-", dir=fast) as root:
        suite = Suite(Path(root), tuple(args.kinds), workers=args.workers)
        report, seeds, told, kept = suite.report, {}, 0, time.monotonic()
        for done, (what, seed) in enumerate(plan, 1):
            suite.trial(what, seed)
            seeds[what] = (first[what], seed)
            while len(report.faults) > told:
                fault = report.faults[told]
                print(f"\n{fault['fault']:<7} {fault['trial']}\n        {fault['said']}", flush=True)
                told += 1
            if args.again:
                continue
            if sys.stderr.isatty() or done % 25 == 0:
                print(f"\r{done:,} of {len(plan):,} trials, {told} faults", end="", file=sys.stderr, flush=True)
            if time.monotonic() - kept > KEEP_SECONDS or done == len(plan):
                record.keep(seeds, report.trials, report.faults)
                kept = time.monotonic()
            if time.monotonic() > end:
                break
        print(file=sys.stderr)
    print(f"{sum(report.trials.values()):,} trials, {len(report.faults)} faults")
    if args.again:
        record.tried_again(args.again, report.faults)
    else:
        record.keep(seeds, report.trials, report.faults)
    return bool(report.faults)


if __name__ == "__main__":
    sys.exit(main())
