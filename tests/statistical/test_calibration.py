"""Simulation-based calibration: the true value's rank among the draws is uniform (Talts et al. 2018).

Here the whole sampler is on trial: overdispersed start, warm-up with adaptation, thinning. Ranks of C, Sigma and tau's size.
FAILURE is the chance that a correct sampler fails a setting.
"""

import contextlib

import numpy as np
import pytest
from joint import Setting
from scipy.stats import kstest
from test_joint import wrong_tau

from intarsia.errors import ConvergenceError
from intarsia.server.sampler.horseshoe import conditionals
from intarsia.server.sampler.horseshoe.chain import GibbsChain
from intarsia.server.sampler.settings import Settings

FAILURE = 1e-4


def posterior(problem, seed, warmup, draws, thin):
    """Quantities of `draws` thinned draws of one chain with its own warm-up."""
    chain, kept = GibbsChain(problem, Settings(draws=draws, warmup=warmup, thin=thin, seed=seed), 0), []
    chain.advance(warmup)
    for _ in range(draws):
        chain.advance(thin)
        kept.append(quantities(chain.state))
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
        _, problem = setting.data(truth, rng)
        kept = posterior(problem, [seed, r, 1], warmup, draws, thin)
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
    monkeypatch.setattr(conditionals, "draw_tau", wrong_tau)
    with contextlib.suppress(np.linalg.LinAlgError, ConvergenceError):
        assert smallest(ranks(Setting(), 60)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("law", ["horseshoe", "laplace", "student"])
@pytest.mark.parametrize("local", ["row", "element"])
def test_every_law_is_calibrated(local, law):
    assert smallest(ranks(Setting(local=local, law=law), 400, warmup=200, thin=30, seed=1)) > FAILURE
