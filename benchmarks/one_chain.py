"""One chain of the sampler as it really runs (`intarsia.server.sampler.chain`), sweep by sweep, for the benchmarks."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.server.sampler import gibbs
from intarsia.server.sampler.chain import Chain

NEVER = 10**9  # sweeps between kept draws: none is kept here


@contextmanager
def one_chain(X: Any, Y: Any, *, warmup: int, seed: int = 1, local: str = "row", mixing: bool = True) -> Iterator[Chain]:
    """A chain in a folder of its own; `sweep(chain)` makes its next sweep. X and Y may be dropped once it is there."""
    model = {"local": local, "rank": None, "law": "horseshoe", "noise": "half-cauchy", "alpha": 1.0}
    run = {"model": model, "warmup": warmup, "thin": NEVER, "seed": seed, "chains": 1, "mixing": mixing}
    with tempfile.TemporaryDirectory() as name, np.errstate(all="ignore"):
        folder = Path(name)
        (folder / "run.json").write_text(json.dumps(run))
        np.save(folder / "X.npy", X)
        np.save(folder / "Y.npy", Y)
        np.save(folder / "C.npy", np.zeros((1, 0, X.shape[1], Y.shape[1])))
        del X, Y
        yield Chain(folder, 0)


def sweep(chain: Chain) -> None:
    chain._sweep()


def period(plan: gibbs.Plan, longest: int = 64) -> int:
    """Sweeps after which the sequence of full and light sweeps comes round."""
    kinds = [plan.kind(i) for i in range(2 * longest)]
    return next(p for p in range(1, longest + 1) if all(kinds[i] == kinds[i % p] for i in range(2 * longest)))
