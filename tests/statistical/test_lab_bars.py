"""Our default against the paper's method on the paper's own design: long evidence on a few data sets.

Two seeds for each of four cells of Simulation 1. Its cells m = 50 with s = 30 or 50 are left out on purpose: there
are too few rows for the non-zero features, no method recovers C, and the posterior has several modes.
"""

import numpy as np
import pytest
from experiments.paper.methods import Effort, fit
from experiments.paper.simulate import Scenario, simulate

SETTINGS = Effort(draws=250, warmup=250, chains=2)


@pytest.mark.slow
@pytest.mark.parametrize(("s", "m"), [(10, 50), (10, 100), (30, 100), (50, 100)])
def test_ours_has_less_error_and_calibrated_intervals(s, m):
    inside, ours, theirs = [], [], []
    for seed in (1, 2):
        data = simulate(Scenario(n=500, P=300, Q=5, s=s, rho=0.5, K=3), np.random.default_rng([seed, s]))
        _, row = fit("horseshoe", data, SETTINGS, m, seed)
        _, other = fit("BayesVFLReg", data, SETTINGS, m, seed)
        inside.append(row["coverage_nz"])
        ours.append(row["mse_nz"])
        theirs.append(other["mse_nz"])
        assert row["fdr"] <= 0.2
    assert np.mean(ours) < np.mean(theirs)
    # 2·s·Q coefficients, those of one response dependent: three standard errors of at most s·2 independent ones.
    assert np.mean(inside) > 0.95 - 3 * np.sqrt(0.95 * 0.05 / (2 * s))
