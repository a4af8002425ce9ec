"""Compiling ahead: after it, a fit of another size compiles nothing more."""

import os
import subprocess
import sys

import numpy as np
import pytest

from intarsia.server.sampler import kernels
from intarsia.server.sampler.precompile import precompile
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.settings import Settings

FIT = """
import hashlib, sys
import numpy as np
from intarsia.server.sampler.sample import sample
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.settings import Settings
rng = np.random.default_rng(0)
X, Y = rng.standard_normal((12, 30)), rng.standard_normal((12, 2))
for local in sys.argv[1:]:
    draws = sample(X, Y, Model(local=local), Settings(draws=60, warmup=40, chains=1, thin=1, seed=1, workers=1))
print(hashlib.sha256(draws.C.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_the_same_bits_whether_compiled_now_or_before_and_whatever_ran_first(tmp_path):
    def fit(*local):
        return subprocess.run(
            [sys.executable, "-c", FIT, *local], check=True, capture_output=True, text=True,
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"},
        ).stdout  # fmt: skip

    first = fit("row")
    assert any(tmp_path.iterdir())
    assert first == fit("row") == fit("element", "row")


def test_a_fit_of_another_size_finds_everything_compiled(monkeypatch):
    precompile()
    compiled = [f for f in vars(kernels).values() if hasattr(f, "signatures")]
    before = {f.__name__: list(f.signatures) for f in compiled}
    rng = np.random.default_rng(1)
    for costly in (np.inf, 0):  # as small problems, then as large ones
        monkeypatch.setattr("intarsia.server.sampler.schedule.COSTLY", costly)
        for m, P, Q in ((30, 50, 3), (9, 40, 4), (40, 10, 2)):
            X, Y = rng.standard_normal((m, P)), rng.standard_normal((m, Q))
            sample(X, Y, settings=Settings(draws=8, warmup=8, chains=1, thin=1, workers=1))
    X = rng.standard_normal((30, 1_200))  # look-alikes among features that are searched
    X[:, 1] += 40 * X[:, 0]
    Y = 9 * X[:, :1] + rng.standard_normal((30, 3))
    sample(X, Y, settings=Settings(draws=8, warmup=8, chains=1, thin=1, workers=1))
    after = {f.__name__: list(f.signatures) for f in compiled}
    assert {name for name in after if after[name] != before[name]} == set()
    assert before["exchange"]
