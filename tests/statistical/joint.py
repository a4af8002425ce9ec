"""Draws from the joint law of parameters and data, and the sweep applied to them: tools of the joint tests."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import invwishart

from intarsia.server.sampler.horseshoe.chain import untuned
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sweep import FULL, LIGHT, PLAIN, State, Sweep, prepare, sweep
from intarsia.server.sampler.horseshoe.systems import System


class Case(NamedTuple):
    """What a joint test is made of. `costly`: as in a large problem, where sweeps share a factored system."""

    local: str = "row"
    law: str = "horseshoe"
    noise: str = "correlated"
    m: int = 5
    P: int = 6
    Q: int = 2
    R: int = 2
    power: float = 1.0
    mixing: bool = True
    kinds: tuple = ()
    costly: bool = False


class Setting:
    """A small problem with a proper prior: fixed design, fixed noise scale, fixed tuning of every move."""

    def __init__(self, seed=0, **options):
        case = self.case = Case(**options)
        m, P, Q = case.m, case.P, case.Q
        usual = FULL if case.local == "row" else LIGHT
        self.kinds = case.kinds or (usual if case.mixing else PLAIN,)
        rng = np.random.default_rng(seed)
        self.X = rng.standard_normal((m, P)) + 0.5 * rng.standard_normal((m, 1))
        self.model = Model(local=case.local, law=case.law, rank=case.R, noise=case.noise, power=case.power)
        self.m, self.Q, self.R, self.element = m, Q, case.R, case.local == "element"
        tuning = untuned(self.problem(np.ones((m, Q))))
        self.tuning = tuning._replace(
            theta=np.linspace(0.3, np.pi / 2, tuning.theta.size).reshape(tuning.theta.shape),
            doubt=np.linspace(0.0, 2.0, P),
            log_steps=np.log(np.full(2, 1.2)),
        )

    def problem(self, Y):
        made = prepare(self.model, self.X, Y, mixing=self.case.mixing)
        return replace(made, noise=made.noise._replace(scale=np.ones(self.Q)), costly=self.case.costly)

    def scale(self, rng, shape, law):
        if law == "horseshoe":
            return np.abs(rng.standard_cauchy(shape))
        if law == "student":
            return np.sqrt(2.0 / rng.standard_gamma(2.0, shape))
        k = 1 if self.element else self.R
        return np.sqrt(rng.standard_gamma((k + 1) / 2, shape) * 2)

    def prior(self, rng):
        P, Q, R = self.case.P, self.Q, self.R
        lam = self.scale(rng, (P, R if self.element else 1), self.case.law)
        tau = np.abs(rng.standard_cauchy(R))
        B = rng.standard_normal((P, R)) * lam * tau
        return State(rng.standard_normal((Q, R)), B, lam, tau, self.covariance(rng))

    def covariance(self, rng):
        """Sigma from its prior, written from the paper that proposes it (Huang & Wand 2013), all scales one."""
        Q = self.Q
        if self.case.noise == "independent" or Q == 1:
            return np.diag(np.abs(rng.standard_cauchy(Q)) ** 2)
        a = 1 / rng.standard_gamma(0.5, Q)
        return np.atleast_2d(invwishart.rvs(2 + Q - 1, 2 * 2 * np.diag(1 / a), random_state=rng))

    def data(self, state, rng):
        L = np.linalg.cholesky(state.Sigma)
        Y = self.X @ state.B @ state.A.T + rng.standard_normal((self.m, self.Q)) @ L.T
        return Y, self.problem(Y)

    def functions(self, state, Y):
        """Bounded or χ²-distributed functions of parameters and data, to compare before and after."""
        C = state.B @ state.A.T
        white = np.linalg.solve(np.linalg.cholesky(state.Sigma), (Y - self.X @ C).T)
        sigma2 = np.diag(state.Sigma)
        correlation = state.Sigma[0, -1] / np.sqrt(sigma2[0] * sigma2[-1])
        unit = state.B / (state.lam * state.tau)
        rows = np.broadcast_to(state.lam, unit.shape)
        return np.array(
            [
                np.arctan(rows[0, 0]), np.arctan(rows[1, 0]), np.arctan(rows[-1, -1]), np.arctan(rows).mean(),
                np.arctan(state.tau[0]), np.arctan(state.tau).mean(), np.arctan(sigma2[0]), np.arctan(sigma2[-1]),
                correlation, np.arctan(np.linalg.slogdet(state.Sigma)[1]),
                np.arctan(C[0, 0]), np.arctan(C[-1, -1]), np.arctan(C[1, 0] * C[1, -1]), np.arctan(np.abs(C)).mean(),
                (white**2).sum(), (unit**2).sum(), unit[1, 0], unit[-1, -1], (state.A**2).sum(), state.A[0, 0],
                (unit[1:3] ** 2).sum() * np.arctan(state.tau[0]), np.arctan(state.tau[-1] * rows[1, 0]),
            ]
        )  # fmt: skip


def sweeps_of(setting, problem, state, rng, sweeps):
    """So many sweeps of the setting's kinds in turn, the factored system shared as a chain shares it."""
    system = None
    for i in range(sweeps):
        if problem.costly and (system is None or system.lam is not state.lam):
            system = System(problem.X, state.lam)
        state, _ = sweep(Sweep(problem, setting.tuning, setting.kinds[i % len(setting.kinds)], rng, system), state)
    return state


def pairs(setting, replicates, sweeps, seed):
    """Functions of prior draws, and of the states the sweep makes of them given data drawn from them."""
    rng = np.random.default_rng(seed)
    before, after = [], []
    with np.errstate(all="ignore"):
        for _ in range(replicates):
            other = setting.prior(rng)
            before.append(setting.functions(other, setting.data(other, rng)[0]))
            state = setting.prior(rng)
            Y, problem = setting.data(state, rng)
            state = sweeps_of(setting, problem, state, rng, sweeps)
            after.append(setting.functions(state, Y))
    return np.array(before), np.array(after)
