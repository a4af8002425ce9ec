"""What follows the sweeps at a million features: `python -m benchmarks.million_report`.

The estimator's fit of a joined sketch (R̂, selection, leave-one-out, effects without shrinkage), its report and its netCDF file.
The draws are made up (what a bounded run of four chains keeps: draws of 2,200 features, whole draws, sums of every coefficient),
so that no accelerator is needed. Kept in benchmarks/results/million_report.json: seconds, sizes, host memory beyond X and draws.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import high_mb

RESULT = Path(__file__).parent / "results" / "million_report.json"
CHAINS, DRAWS, KEPT, WHOLE, TRUE = 4, 400, 2_200, 8, 100  # the last: features that matter


def made_up(P: int, Q: int, file: Path | None = None) -> Any:
    """Draws, those that are whole in a file where one is named, as a run leaves them."""
    from intarsia.server.assess.summaries import Summaries

    from intarsia.server.posterior.draws import Draws
    from intarsia.server.sampler.mapped import let_go

    rng = np.random.default_rng(0)
    kept = np.sort(rng.choice(P, min(P, KEPT), replace=False))
    places = np.sort(rng.choice(len(kept), TRUE, replace=False))
    mean, sd = np.zeros((P, Q)), np.full((P, Q), 0.002)
    mean[kept[places]], sd[kept[places]] = 0.5 * rng.standard_normal((TRUE, Q)), 0.03
    C = rng.standard_normal((CHAINS, DRAWS, len(kept), Q)) * sd[kept] + mean[kept]
    shape = CHAINS, WHOLE, P, Q
    whole = np.empty(shape, np.float32) if file is None else np.lib.format.open_memmap(file, "w+", np.float32, shape)
    for draw in whole.reshape(-1, P, Q):  # no second copy of them all
        draw[:] = rng.standard_normal((P, Q), dtype=np.float32) * sd + mean
        let_go(whole)
    positive = np.full((P, Q), CHAINS * DRAWS // 2)
    positive[kept] = (C > 0).sum(axis=(0, 1))
    same = {"rhat": 1.002, "rhat_folded": 1.002, "ess_bulk": 1500.0, "ess_tail": 1300.0}
    known: dict[str, Any] = {name: np.full((P, Q), value) for name, value in same.items()}
    at = np.arange(WHOLE) * DRAWS // WHOLE
    sums = Summaries(features=kept, mean=mean, sd=sd, positive=positive, **known, whole=whole, at=at, total=CHAINS * DRAWS)
    Sigma = np.broadcast_to(np.eye(Q), (CHAINS, DRAWS, Q, Q)) * rng.uniform(0.9, 1.1, (CHAINS, DRAWS, 1, 1))
    info = {"m": 1000, "warmup": 120, "thin": 1, "seed": 1}
    return Draws(C, Sigma, np.ones((CHAINS, DRAWS, Q)), np.full(P, 0.99), info, sums)


def joined(draws: Any, m: int) -> Any:
    """A joined sketch of m rows that goes with the draws."""
    from intarsia.wire.messages import Joined

    rng, known = np.random.default_rng(1), draws.summaries
    P, Q = known.mean.shape
    X = np.empty((m, P))
    for row in X:  # one after the other: the numbers of all rows in single precision would be half as large as X
        row[:] = rng.standard_normal(P, dtype=np.float32)
    Y = X[:, known.features] @ known.mean[known.features] + rng.standard_normal((m, Q))
    names = tuple(f"rs{p}" for p in range(P)), tuple(f"y{q}" for q in range(Q))
    return Joined(X, Y, *names, ("chip",) * P, ("clinic",) * Q, 20 * m, m, "orthonormal", "0" * 64)


def measure(P: int, Q: int, m: int) -> dict[str, Any]:
    from intarsia import ReducedRankHorseshoe
    from intarsia.report import render
    from intarsia.report.gather import gather
    from intarsia.server.sampler import sample as sampler

    draws = made_up(P, Q)
    sampler.sample = lambda *given, **more: draws  # type: ignore[assignment]
    sketch = joined(draws, m)
    before, began = high_mb(), time.perf_counter()
    posterior = ReducedRankHorseshoe(folds=0).fit_sketch(sketch).posterior_
    judged = time.perf_counter() - began
    began = time.perf_counter()
    page = render(gather(posterior))
    reported = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        size = posterior.save(Path(folder) / "posterior.nc").stat().st_size
        saved = time.perf_counter() - began
    return {
        "P": P, "m": m, "Q": Q, "judge_seconds": round(judged, 1),
        "report_seconds": round(reported, 1), "report_mb": round(len(page.encode()) / 1e6, 2),
        "netcdf_seconds": round(saved, 1), "netcdf_gb": round(size / 1e9, 2),
        "extra_host_gb": round((high_mb() - before) / 1024, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="5,000 features, to see that it runs; nothing is kept")
    args = parser.parse_args()
    row = measure(5_000, 10, 200) if args.small else measure(1_000_000, 10, 1000)
    print(json.dumps(row))
    if not args.small:
        RESULT.write_text(json.dumps(row) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
