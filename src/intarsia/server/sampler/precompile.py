"""`python -m intarsia.server.sampler.precompile`: compile the loops of sampler and diagnostics now rather than in the first fit.

They are kept on disk, beside the package or in the user's cache, until the package changes.
"""

import time

import numpy as np

from intarsia.server.assess.diagnostics import entries
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.sparse.sample import SparseModel


def precompile() -> float:
    """Seconds it took; next to none when everything is there."""
    begin = time.perf_counter()
    rng = np.random.default_rng(0)
    # The horseshoe: a small problem, one whose sweeps share a factor, one with a scale per entry.
    for m, P, local in ((12, 20, "row"), (150, 600, "row"), (12, 20, "element")):
        X, Y = rng.standard_normal((m, P)), rng.standard_normal((m, 2))
        X[:, 1] += 40.0 * X[:, 0]
        Y += 9.0 * X[:, :1]
        run = sample(X, Y, Model(local=local), Settings(draws=8, warmup=8, chains=1, thin=1, workers=1))
    entries(run.effects.dense())
    for P in (40, 600):  # enough features for a background, and for some to be near
        X, Y = rng.standard_normal((30, P)), rng.standard_normal((30, 2))
        sample(X, Y, SparseModel(compare=False), Settings(draws=8, warmup=8, chains=1, workers=1))
    return time.perf_counter() - begin


if __name__ == "__main__":
    print(f"The loops of sampler and diagnostics are compiled ({precompile():.0f} s).")
