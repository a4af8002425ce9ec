"""Simulation-based calibration: the true value's rank among the draws is uniform (Talts et al. 2018).

Here the whole sampler is on trial: overdispersed start, warm-up with adaptation, thinning. Ranks of C, Sigma and tau's size.
FAILURE is the chance that a correct sampler fails a setting.
"""

import contextlib

import numpy as np
import pytest
from joint import BE, Setting
from scipy.stats import kstest
from test_joint import wrong_tau

from intarsia.errors import ConvergenceError
from intarsia.server.sampler import adapt, kernels
from intarsia.server.sampler.schedule import Sweep, draw_noise
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.sweep import factored, strength, sweep

FAILURE = 1e-4


def posterior(setting, data, rng, warmup, draws, thin):
    """Quantities of `draws` thinned draws of one chain with its own warm-up."""
    plan = setting.plan
    state, tuning, memory = initial(plan, data, rng), initial_tuning(plan), adapt.start(plan)
    kept, factor = [], None
    with np.errstate(all="ignore"):
        for i in range(warmup + draws * thin):
            kind = plan.kind(i)
            factor = None if kind.collapse or plan.element else factored(BE, plan, data, state, factor)
            state, stats = sweep(Sweep(BE, plan, data, tuning, draw_noise(plan, rng, kind), kind, factor), state)
            if i < warmup:
                seen = adapt.Seen(i, warmup, kind, stats, strength(BE, plan, data, state))
                tuning, memory = adapt.adapt(BE, plan, tuning, memory, seen)
            elif (i - warmup) % thin == 0:
                kept.append(quantities(state))
    return np.array(kept)


def quantities(state):
    C = state.B @ state.A.T
    V = (state.A * state.tau**2) @ state.A.T
    noise = *np.log(np.diag(state.Sigma)), state.Sigma[0, -1]
    return np.array([C[0, 0], C[1, -1], C[-1, 0], np.abs(C).sum(), *noise, np.trace(V)])


def ranks(setting, replicates, warmup=60, draws=20, thin=12, seed=0):
    out = []
    for r in range(replicates):
        rng = np.random.default_rng([seed, r])
        truth = setting.prior(rng)
        _, data = setting.data(truth, rng)
        kept = posterior(setting, data, rng, warmup, draws, thin)
        below = (kept < quantities(truth)).sum(axis=0)
        out.append((below + rng.random(below.shape)) / (draws + 1))
    return np.array(out)


def smallest(values):
    p = [kstest(values[:, i], "uniform").pvalue for i in range(values.shape[1])]
    return min(p) * len(p)


def test_row_scales_are_calibrated():
    assert smallest(ranks(Setting(), 40)) > FAILURE


@pytest.mark.slow
def test_the_papers_tau_step_is_not_calibrated(monkeypatch):
    """It drives tau to infinity until a factorisation breaks: both ways of failing count."""
    monkeypatch.setattr(kernels, "given_B", kernels.given_B.py_func)
    monkeypatch.setattr(kernels, "draw_tau", wrong_tau)
    with contextlib.suppress(np.linalg.LinAlgError, ConvergenceError):
        assert smallest(ranks(Setting(), 60)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("law", ["horseshoe", "laplace", "student"])
@pytest.mark.parametrize("local", ["row", "element"])
def test_every_law_is_calibrated(local, law):
    assert smallest(ranks(Setting(local=local, law=law), 400, warmup=200, thin=30, seed=1)) > FAILURE
