"""Where a chain starts: overdispersed states, and the tuning before any warm-up."""

import numpy as np

from intarsia.server.sampler.schedule import Plan
from intarsia.server.sampler.state import Data, State, Tuning


def initial(plan: Plan, data: Data, rng: np.random.Generator) -> State:
    """An overdispersed start: scales from wide laws, noise from a tenth to all of the responses' variance, uncorrelated."""
    P, Q, R = plan.P, plan.Q, plan.R
    shape = (P, R) if plan.element else (P,)
    return State(
        A=rng.standard_normal((Q, R)),
        B=np.zeros((P, R)),
        lam=np.exp(rng.normal(0.0, 1.0, shape)),
        tau=np.exp(rng.normal(np.log(0.1 / np.sqrt(P)), 1.5, R)),
        Sigma=np.diag(np.asarray(data.noise_scale) ** 2 * np.exp(rng.uniform(np.log(0.1), 0.0, Q))),
    )


def initial_tuning(plan: Plan) -> Tuning:
    shape = (plan.P, plan.R) if plan.element else (plan.P,)
    return Tuning(
        theta=np.full(shape, np.pi / 2),
        doubt=np.zeros(plan.P),
        log_steps=np.log([np.sqrt(8.0 / plan.m), 1.0, 0.3]),
        log_odds=np.zeros(()),
    )
