"""Compiling ahead: after it, a fit of another size compiles nothing more."""

import importlib.util

import numpy as np
import pytest

from intarsia.server import backend
from intarsia.server.chains import sample
from intarsia.server.warm import warm


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")
def test_a_fit_of_another_size_finds_everything_compiled(monkeypatch):
    assert warm() >= 0
    kernels = [f for f in vars(backend.KERNELS).values() if hasattr(f, "signatures")]
    before = {f.__name__: list(f.signatures) for f in kernels}
    rng = np.random.default_rng(1)
    monkeypatch.setattr("intarsia.server.plan.COSTLY", 0)  # as a large problem
    for m, P, Q in ((30, 50, 3), (9, 40, 4), (40, 10, 2)):
        sample(rng.standard_normal((m, P)), rng.standard_normal((m, Q)), draws=8, warmup=8, chains=1, thin=1, workers=1)
    after = {f.__name__: list(f.signatures) for f in kernels}
    assert {name for name in after if after[name] != before[name]} == set()
    assert any(before.values())
