"""Beside susieR, on one response: `python -m experiments.susie --sets 5` (Debian: r-cran-susier).

susieR sums up to L single effects by a variational approximation with the same spike and slab for each; its inclusion
probabilities should be near ours where the posterior has one mode. Rows of the same sketch, no background, susieR with L = 20 and
an estimated prior variance. A line of experiments/results/susie.jsonl for each data set: both sides' inclusion probabilities of
the features above .05 for either, what each finds at one half, and the sets that both have.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.calibration import DESIGNS, simulate, sketched
from experiments.rivals.susie import answers
from intarsia.server.assess.findings import select
from intarsia.server.sampler.settings import Settings, Until
from intarsia.server.sampler.sparse.sample import SparseModel, sample

RESULT = Path(__file__).parent / "results" / "susie.jsonl"
KINDS = ("one response", "blocks", "ar", "genotypes")


def row(design: str, seed: int) -> dict[str, Any]:
    X, Y, C, m = simulate(design, seed)
    A, B, _scale = sketched(X, Y[:, :1], m, seed)
    true = C[:, 0] != 0
    began = time.perf_counter()
    draws = sample(A, B, SparseModel(background=False), Settings(seed=seed, until=Until()))
    seconds = time.perf_counter() - began
    found, other = select(draws, X=A), answers([(A, B, 0)])[0]
    ours, theirs = np.asarray(found.pip), other.evidence
    shown = np.flatnonzero(np.maximum(ours, theirs) >= 0.05)
    sets = [set(map(int, one)) for one in other.sets]
    return {
        "design": design, "seed": seed, "true": int(true.sum()), "seconds": round(seconds, 2), "susie_seconds": other.seconds,
        "found": int(true[ours >= 0.5].sum()), "false": int((~true)[ours >= 0.5].sum()),
        "susie_found": int(true[theirs >= 0.5].sum()), "susie_false": int((~true)[theirs >= 0.5].sum()),
        "correlation": round(float(np.corrcoef(ours, theirs)[0, 1]), 4),
        "median_difference": round(float(np.median(np.abs(ours - theirs)[shown])), 4) if shown.size else 0.0,
        "susie_sets": len(sets), "false_susie_sets": sum(not true[list(one)].any() for one in sets),
        "sets_with_ours": sum(any(one & {int(p) for p in finding} for finding in found.findings) for one in sets),
        "pips": [[int(p), round(float(ours[p]), 3), round(float(theirs[p]), 3), int(true[p])] for p in shown],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", nargs="*", default=list(KINDS), choices=list(DESIGNS))
    parser.add_argument("--sets", type=int, default=5)
    args = parser.parse_args()
    with RESULT.open("w", encoding="utf-8") as out:
        for design in args.designs:
            for seed in range(1, args.sets + 1):
                made = row(design, seed)
                out.write(json.dumps(made) + "\n")
                out.flush()
                print({name: value for name, value in made.items() if name != "pips"}, flush=True)


if __name__ == "__main__":
    main()
