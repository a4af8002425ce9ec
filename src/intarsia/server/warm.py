"""`python -m intarsia.server.warm`: compile the sampler's loops now rather than in the first fit.

They are kept on disk, beside the package or in the user's cache, until the package changes.
"""

import time

import numpy as np

from intarsia.server import backend
from intarsia.server.chains import sample


def warm() -> float:
    """Seconds it took; next to none when everything is there."""
    begin = time.perf_counter()
    if backend.KERNELS is not None:
        rng = np.random.default_rng(0)
        X, Y = rng.standard_normal((12, 20)), rng.standard_normal((12, 2))
        sample(X, Y, draws=8, warmup=8, chains=1, thin=1, workers=1)
    return time.perf_counter() - begin


if __name__ == "__main__":
    print(f"The sampler's loops are compiled ({warm():.0f} s).")
