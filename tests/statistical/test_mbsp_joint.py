"""MBSP's sweep keeps the joint law of parameters and data; a sweep with a wrong conditional does not."""

import numpy as np
import pytest
from experiments.rivals import mbsp
from experiments.rivals.mbsp import MBSPState, Prior
from scipy.stats import beta, chi2, invwishart, kstest

PRIOR = Prior(tau=0.5, d=6.0, k=1.0)
N, P, Q, TIMES, SWEEPS = 5, 3, 2, 1200, 2


def smallest_p(seed=0):
    """Parameters from the prior, data from them, some sweeps: what comes out has the prior's law. The least p of its tests."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, P))
    gram = X.T @ X
    share, length, log_det = [], [], []
    for _ in range(TIMES):
        psi = PRIOR.tau * rng.beta(PRIOR.u, PRIOR.a, P)
        psi /= 1 - psi / PRIOR.tau
        Sigma = mbsp.draw_inverse_wishart(PRIOR.d, PRIOR.k * np.eye(Q), rng)
        root = np.linalg.cholesky(Sigma)
        B = np.sqrt(psi)[:, None] * (rng.standard_normal((P, Q)) @ root.T)
        Y = X @ B + rng.standard_normal((N, Q)) @ root.T
        state = MBSPState(B, Sigma, psi)
        for _ in range(SWEEPS):
            state = mbsp.sweep(X, Y, gram, X.T @ Y, state, PRIOR, rng)
        share.append(state.psi / (PRIOR.tau + state.psi))
        length.append(np.einsum("pq,qr,pr->p", state.B, np.linalg.inv(state.Sigma), state.B) / state.psi)
        log_det.append(np.linalg.slogdet(state.Sigma)[1])
    fresh = np.linalg.slogdet(invwishart.rvs(PRIOR.d, PRIOR.k * np.eye(Q), 4000, np.random.default_rng(1)))[1]
    tests = [kstest(column, beta(PRIOR.u, PRIOR.a).cdf).pvalue for column in np.array(share).T]
    tests += [kstest(column, chi2(Q).cdf).pvalue for column in np.array(length).T]
    return min([*tests, kstest(log_det, fresh).pvalue])


def test_the_sweep_keeps_the_joint_law():
    assert smallest_p() > 0.001


def forgets_B(residual, B, psi, prior):
    return len(residual) + P + prior.d, residual.T @ residual + prior.k * np.eye(Q)


def two_degrees_short(residual, B, psi, prior):
    degrees, scale = original_terms(residual, B, psi, prior)
    return degrees - 2, scale


def another_shape(psi, distance, q, prior, uniform):
    return original_psi(psi, distance, q - 1, prior, uniform)


original_terms, original_psi = mbsp.sigma_terms, mbsp.draw_psi


@pytest.mark.parametrize(
    ("name", "wrong"), [("sigma_terms", forgets_B), ("sigma_terms", two_degrees_short), ("draw_psi", another_shape)]
)
def test_a_wrong_conditional_is_found(name, wrong, monkeypatch):
    monkeypatch.setattr(mbsp, name, wrong)
    assert smallest_p() < 1e-5
