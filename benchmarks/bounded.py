"""What a run that does not keep every draw knows of the others: `python -m benchmarks.bounded` (about two minutes on two cores).

One run with all draws; then, for several numbers of whole draws, what would have been known with these alone. Intervals are
held against the quantiles of all draws, R̂ against that of all draws.
"""

import json
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.quoting import RESULTS
from intarsia.server.assess.diagnostics import entries
from intarsia.server.sampler.keeping import whole_draws
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings

P, M, Q, SIGNALS = 2_000, 120, 5, 10
RUN = Settings(draws=400, warmup=300, chains=4, thin=4, seed=1)
WHOLE = (5, 13, 25, 50, 100)  # per chain
TARGET = RESULTS / "bounded.json"


def measure() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((M, P))
    C = np.zeros((P, Q))
    C[:SIGNALS] = rng.normal(0.0, 0.7, (SIGNALS, Q))
    Y = X @ C + rng.standard_normal((M, Q))
    full = sample(X, Y, settings=RUN)
    bounded = sample(X, Y, settings=replace(RUN, memory=full.C.nbytes // 2))  # every draw is kept whole, in single precision
    known = bounded.summaries
    assert known is not None
    others = known.others()
    draws = full.C.reshape(-1, P, Q)[:, others]
    lower, upper = np.quantile(draws, [0.025, 0.975], axis=0)
    rows = []
    for number in WHOLE:
        at = whole_draws(RUN.draws, number)
        ends = replace(known, whole=full.C[:, at].astype(np.float32), at=at).quantiles(others, [0.025, 0.975])
        inside = ((draws >= ends[0]) & (draws <= ends[1])).mean(axis=0)
        rows.append({
            "whole_draws": RUN.chains * len(at),
            "width": round(float(((ends[1] - ends[0]) / (upper - lower)).mean()), 3),
            "error": round(float(np.sqrt(np.square((ends - [lower, upper]) / (upper - lower)).mean())), 3),
            "inside": round(float(inside.mean()), 4),
            "inside_low": round(float(np.quantile(inside, 0.05)), 4),
            "inside_high": round(float(np.quantile(inside, 0.95)), 4),
        })  # fmt: skip
    exact = entries(full.C[:, :, others])
    agreement = {
        name: {
            "correlation": round(float(np.corrcoef(exact[name].ravel(), getattr(known, name)[others].ravel())[0, 1]), 3),
            "largest": [round(float(values.max()), 3) for values in (exact[name], getattr(known, name)[others])],
            "median_ratio": round(float(np.median(getattr(known, name)[others] / exact[name])), 3),
            "smallest": [round(float(values.min()), 1) for values in (exact[name], getattr(known, name)[others])],
        }
        for name in ("rhat", "rhat_folded", "ess_bulk", "ess_tail")
    }
    return {"P": P, "m": M, "Q": Q, "draws": RUN.draws, "chains": RUN.chains, "intervals": rows, "diagnostics": agreement}


def main() -> None:
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    found = measure()
    print(json.dumps(found, indent=1))
    print(f"{time.perf_counter() - began:.0f} s")
    TARGET.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
