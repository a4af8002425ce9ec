"""Draws from the joint law of parameters and data, and the sweep applied to them: tools of the joint tests."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import invwishart

from intarsia.server.sampler import backends, moves
from intarsia.server.sampler.exchange import Alike
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.moves import Bound
from intarsia.server.sampler.schedule import FULL, PLAIN, Sweep, draw_noise
from intarsia.server.sampler.schedule import plan as make_plan
from intarsia.server.sampler.start import initial_tuning
from intarsia.server.sampler.state import BLOCK, State, prepare
from intarsia.server.sampler.sweep import factored, sweep

BE = backends.get("numpy")


class Problem(NamedTuple):
    """What a joint test is made of. `shared`: do light sweeps share the factored system? `compiled`: on the path users take?
    `many`: as if there were many features (the test lowers their number); `reach`: of the law of tau; `at_once`: are all scales
    of a block drawn at once? `alike`: do features exchange their scales?
    """

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
    shared: bool = True
    compiled: bool = True
    many: bool = False
    reach: float = math.inf
    at_once: bool = False
    alike: bool = False


class Setting:
    """A small problem with a proper prior: fixed design, fixed noise scale, fixed tuning of every move."""

    def __init__(self, seed=0, **options):
        problem = self.problem = Problem(**options)
        self.shared, m, P, Q = problem.shared, problem.m, problem.P, problem.Q
        self.kinds = problem.kinds or (FULL if problem.mixing else PLAIN,)
        rng = np.random.default_rng(seed)
        self.X = rng.standard_normal((m, P)) + 0.5 * rng.standard_normal((m, 1))
        model = Model(local=problem.local, law=problem.law, rank=problem.R, noise=problem.noise, power=problem.power)
        self.plan = make_plan(
            model, self.X, np.zeros((m, Q)), mixing=problem.mixing, borderline=min(2, P), compiled=problem.compiled
        )
        self.m, self.Q = m, Q
        if problem.many:
            self.plan = replace(self.plan, borderline=P, tau_reach=problem.reach, refreshes=problem.at_once)
            self.plan = replace(self.plan, exchanges=2 if problem.alike else 0)
        assert self.plan.searches is problem.many
        tuning = initial_tuning(self.plan)
        self.tuning = tuning._replace(
            theta=np.linspace(0.3, np.pi / 2, tuning.theta.size).reshape(tuning.theta.shape),
            doubt=np.linspace(0.0, 2.0, P),
            log_steps=np.log(np.full(2, 1.2)),
        )
        if problem.many:
            self.tuning = self.tuning._replace(
                doubt=np.log(np.linspace(0.05, 0.9, P)), limit=np.log(2.0), rate=np.log(np.linspace(0.9, 0.3, P)),
                clear=np.arange(P) % 3 == 1,
            )  # fmt: skip

    def scale(self, rng, shape, law):
        if law == "horseshoe":
            return np.abs(rng.standard_cauchy(shape))
        if law == "student":
            return np.sqrt(2.0 / rng.standard_gamma(2.0, shape))
        k = 1 if self.plan.element else self.plan.R
        return np.sqrt(rng.standard_gamma((k + 1) / 2, shape) * 2)

    def prior(self, rng):
        p = self.plan
        lam = self.scale(rng, (p.P, p.R) if p.element else (p.P,), p.model.law)
        tau = np.abs(rng.standard_cauchy(p.R))
        while p.tau_reach < math.inf and (rng.random(p.R) > np.exp(-((tau / p.tau_reach) ** 2) / 2)).any():
            tau = np.abs(rng.standard_cauchy(p.R))
        rows = lam if p.element else lam[:, None]
        B = rng.standard_normal((p.P, p.R)) * rows * tau
        return State(rng.standard_normal((p.Q, p.R)), B, lam, tau, self.covariance(rng))

    def covariance(self, rng):
        """Sigma from its prior, written from the paper that proposes it (Huang & Wand 2013), all scales one."""
        Q = self.Q
        if self.problem.noise == "independent" or Q == 1:
            return np.diag(np.abs(rng.standard_cauchy(Q)) ** 2)
        a = 1 / rng.standard_gamma(0.5, Q)
        return np.atleast_2d(invwishart.rvs(2 + Q - 1, 2 * 2 * np.diag(1 / a), random_state=rng))

    def data(self, state, rng):
        L = np.linalg.cholesky(state.Sigma)
        Y = self.X @ state.B @ state.A.T + rng.standard_normal((self.m, self.Q)) @ L.T
        data = prepare(BE, self.X, Y, block=4 if self.plan.refreshes else BLOCK)._replace(noise_scale=np.ones(self.Q))
        if self.plan.refreshes:
            bound = Bound(*map(np.stack, zip(*(moves.bound(BE, Xt) for Xt in data.blocks.Xt), strict=True)))
            data = data._replace(blocks=data.blocks._replace(bound=bound))
        if self.plan.exchanges:
            data = data._replace(alike=Alike(np.array([[0, 1, 4], [2, 5, 2]]), np.array([3, 2])))
        return Y, data

    def functions(self, state, Y):
        """Bounded or χ²-distributed functions of parameters and data, to compare before and after."""
        rows = state.lam if state.lam.ndim == 2 else state.lam[:, None]
        C = state.B @ state.A.T
        white = np.linalg.solve(np.linalg.cholesky(state.Sigma), (Y - self.X @ C).T)
        sigma2 = np.diag(state.Sigma)
        correlation = state.Sigma[0, -1] / np.sqrt(sigma2[0] * sigma2[-1])
        unit = state.B / (rows * state.tau)
        rows = np.broadcast_to(rows, unit.shape)
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


def sweeps_of(setting, data, state, rng, sweeps):
    """So many sweeps of the setting's kinds in turn, the factored system shared as a chain shares it."""
    plan, factor = setting.plan, None
    for i in range(sweeps):
        kind = setting.kinds[i % len(setting.kinds)]
        if plan.element or not setting.shared or (kind.collapse and plan.hold == 1):  # full sweeps factor for themselves
            factor = None
        else:
            factor = factored(BE, plan, data, state, factor)
        now = Sweep(BE, plan, data, setting.tuning, draw_noise(plan, rng, kind), kind, factor)
        state, _ = sweep(now, state)
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
            Y, data = setting.data(state, rng)
            state = sweeps_of(setting, data, state, rng, sweeps)
            after.append(setting.functions(state, Y))
    return np.array(before), np.array(after)
