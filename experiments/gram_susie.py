"""A Gram study's fit beside susieR on the same matrices, one response: `python -m experiments.gram_susie --sets 10`.

Both get XᵀX, Xᵀy and yᵀy of all rows and how many rows those are: ours as the root of the joint Gram matrix that a study samples
from, susieR through `susie_suff_stat`. susieR on the pooled rows stands beside: what it says must not depend on the way. A line
of experiments/results/gram_susie.jsonl for each data set.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from experiments.compare import simulate
from experiments.rivals import ours, susie
from intarsia.server.pseudo_rows import root

RESULT = Path(__file__).parent / "results" / "gram_susie.jsonl"
DESIGN, HALF = "one response", 0.5


def rows_of(seeds: list[int]) -> list[dict[str, Any]]:
    """One for each data set; susieR is asked once for all."""
    sets, problems = [], []
    for seed in seeds:
        X, Y, C, _ = simulate(DESIGN, seed)
        both = np.column_stack([X, Y / Y.std(axis=0)])
        W, P = root(both.T @ both), X.shape[1]
        sets.append((seed, W[:, :P], W[:, P:], C.any(axis=1), len(X) - 1))
        problems += [(W[:, :P], W[:, P:], len(X)), (X, both[:, P:], 0)]
    told = susie.answers(problems)
    out = []
    for (seed, A, B, true, degrees), theirs, pooled in zip(sets, told[::2], told[1::2], strict=True):
        mine = ours.answer(A, B, seed, degrees)
        found, other = mine.evidence >= HALF, theirs.evidence >= HALF
        out.append({
            "seed": seed, "found": int(true[found].sum()), "false": int((~true)[found].sum()),
            "susie_found": int(true[other].sum()), "susie_false": int((~true)[other].sum()), "true": int(true.sum()),
            "correlation": round(float(np.corrcoef(mine.evidence, theirs.evidence)[0, 1]), 4),
            "susie_apart": float(f"{np.abs(theirs.evidence - pooled.evidence).max():.1e}"),
        })  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=10)
    args = parser.parse_args()
    rows = rows_of(list(range(101, 101 + args.sets)))
    RESULT.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
