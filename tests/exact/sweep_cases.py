"""Small problems for tests that hold two implementations of the sweep together."""

from dataclasses import replace

import numpy as np

from intarsia.server.sampler.model import Model
from intarsia.server.sampler.schedule import plan as make_plan

CASES = {
    "row": {}, "row, P < m": {"P": 9}, "row, rank 2": {"rank": 2, "seed": 1}, "row, one response": {"Q": 1},
    "row, independent noise": {"noise": "independent"}, "row, independent noise, P < m": {"noise": "independent", "P": 9},
    "row, some blocks": {"block": 10, "visits": 3}, "element, some blocks": {"local": "element", "block": 10, "visits": 3},
    "row, one feature": {"P": 1}, "row, plain Gibbs": {"mixing": False}, "row, small tau": {"tau_scale": 0.01},
    "row, group lasso": {"law": "laplace"}, "row, student": {"law": "student"}, "row, fractional": {"power": 0.7},
    "row, jeffreys": {"noise": "jeffreys", "P": 9}, "element": {"local": "element"},
    "element, independent noise": {"local": "element", "noise": "independent"},
    "element, P < m": {"local": "element", "P": 9}, "element, lasso": {"local": "element", "law": "laplace"},
    "element, student": {"local": "element", "law": "student"},
}  # fmt: skip


def problem(m=14, P=150, Q=3, mixing=True, seed=0, block=64, visits=0, tau_scale=1.0, **model):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, P))
    Y = X[:, :1] * 8 + rng.standard_normal((m, Q)) + rng.standard_normal((m, 1))
    plan = make_plan(Model(**model), X, Y, mixing=mixing)
    plan = replace(plan, block=min(block, P), visits=visits, tau_scale=tau_scale, compiled=plan.compiled and not visits)
    return X, Y, plan


def close(a, b, tolerance=1e-10):
    for name in a._fields:
        x, y = np.asarray(getattr(a, name), dtype=float), np.asarray(getattr(b, name), dtype=float)
        np.testing.assert_allclose(y, x, rtol=tolerance, atol=tolerance * max(1e-300, np.abs(x).max(initial=0.0)), err_msg=name)
