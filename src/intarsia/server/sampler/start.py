"""Where a chain starts: overdispersed states, and the tuning before any warm-up."""

import numpy as np

from intarsia.server.sampler.schedule import Plan
from intarsia.server.sampler.sparse_start import SparseStart, disperse
from intarsia.server.sampler.state import Data, State, Tuning


def initial(plan: Plan, data: Data, rng: np.random.Generator, found: SparseStart | None = None) -> State:
    """An overdispersed start.

    At a sparse solution where one was `found`; else scales from wide laws, noise from a tenth to all of the responses' variance,
    uncorrelated.
    """
    if found is not None and found.features.size:
        return from_sparse(plan, data, rng, found)
    P, Q, R = plan.P, plan.Q, plan.R
    shape = (P, R) if plan.element else (P,)
    return State(
        A=rng.standard_normal((Q, R)),
        B=np.zeros((P, R)),
        lam=np.exp(rng.normal(0.0, 1.0, shape)),
        tau=np.exp(rng.normal(np.log(0.1 / np.sqrt(P)), 1.5, R)),
        Sigma=np.diag(np.asarray(data.noise_scale) ** 2 * np.exp(rng.uniform(np.log(0.1), 0.0, Q))),
    )


def from_sparse(plan: Plan, data: Data, rng: np.random.Generator, found: SparseStart) -> State:
    """A start at a fast sparse solution, dispersed: its features have the scales their coefficients ask for, others small ones.

    The global scale is the one at which about as many features matter as the solution has (Piironen & Vehtari, 2017).
    """
    P, Q, R = plan.P, plan.Q, plan.R
    mine = disperse(found, P, rng)
    left, size, right = np.linalg.svd(mine.C, full_matrices=False)
    k, s = min(size.size, R), max(1, mine.features.size)
    A, B = rng.standard_normal((Q, R)), np.zeros((P, R))
    A[:, :k] = right[:k].T * np.sqrt(Q)
    B[mine.features, :k] = left[:, :k] * size[:k] / np.sqrt(Q)
    noise = np.trace(mine.residual) / Q
    tau = s / max(1, P - s) * np.sqrt(noise / (R * float(np.mean(data.norm2)))) * np.exp(rng.normal(0.0, 0.3, R))
    lam = np.exp(rng.normal(-0.5, 0.7, P))
    lam[mine.features] = np.maximum(np.sqrt(np.square(B[mine.features] / tau).mean(axis=1)), 1e-3)
    Sigma = mine.residual * np.exp(rng.normal(0.0, 0.1)) + 1e-6 * np.diag(np.asarray(data.noise_scale) ** 2)
    return State(A=A, B=B, lam=lam, tau=tau, Sigma=Sigma)


def initial_tuning(plan: Plan) -> Tuning:
    """Before the warm-up."""
    shape = (plan.P, plan.R) if plan.element else (plan.P,)
    return Tuning(
        theta=np.full(shape, np.pi / 2),
        doubt=np.zeros(plan.P),
        log_steps=np.log([np.sqrt(8.0 / plan.m), 0.3]),
        limit=np.zeros(()),
        rate=np.zeros(plan.P if plan.searches else ()),
        clear=np.zeros(plan.P if plan.searches else (), dtype=bool),
    )
