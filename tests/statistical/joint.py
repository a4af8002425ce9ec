"""Draws from the joint law of parameters and data, and the sweep applied to them: tools of the joint tests."""

import numpy as np

from intarsia.server.sampler import backend, gibbs

BE = backend.get("numpy")


class Setting:
    """A small problem with a proper prior: fixed design, fixed noise scale, fixed tuning of every move."""

    def __init__(self, local="row", law="horseshoe", m=5, P=6, Q=2, R=2, mixing=True, seed=0, kinds=None, shared=True):
        self.shared = shared  # do light sweeps share the factored system?
        self.kinds = kinds or (gibbs.FULL if mixing else gibbs.PLAIN,)
        rng = np.random.default_rng(seed)
        self.X = rng.standard_normal((m, P)) + 0.5 * rng.standard_normal((m, 1))
        blank = np.zeros((m, Q))
        self.plan = gibbs.plan(gibbs.Model(local=local, law=law, rank=R), self.X, blank, mixing=mixing, borderline=2)
        self.m, self.Q = m, Q
        tuning = gibbs.initial_tuning(self.plan)
        self.tuning = tuning._replace(
            theta=np.linspace(0.3, np.pi / 2, tuning.theta.size).reshape(tuning.theta.shape),
            clear=np.arange(P) >= P - 2,
            doubt=np.linspace(0.0, 2.0, P),
            log_steps=np.log(np.full(Q + 1, 0.7)),
            log_shift=np.log(np.full_like(tuning.log_shift, 0.5)),
            log_compensate=np.log(np.array(0.5)),
            log_stretch=np.log(np.array(0.5)),
        )

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
        tau, sigma = np.abs(rng.standard_cauchy(p.R)), np.abs(rng.standard_cauchy(p.Q))
        rows = lam if p.element else lam[:, None]
        B = rng.standard_normal((p.P, p.R)) * rows * tau
        return gibbs.State(rng.standard_normal((p.Q, p.R)), B, lam, tau, sigma**2)

    def data(self, state, rng):
        Y = self.X @ state.B @ state.A.T + rng.standard_normal((self.m, self.Q)) * np.sqrt(state.sigma2)
        return Y, gibbs.prepare(BE, self.X, Y)._replace(noise_scale=np.ones(self.Q))

    def functions(self, state, Y):
        """Bounded or χ²-distributed functions of parameters and data, to compare before and after."""
        rows = state.lam if state.lam.ndim == 2 else state.lam[:, None]
        C = state.B @ state.A.T
        white = (Y - self.X @ C) / np.sqrt(state.sigma2)
        unit = state.B / (rows * state.tau)
        rows = np.broadcast_to(rows, unit.shape)
        return np.array(
            [
                np.arctan(rows[0, 0]), np.arctan(rows[1, 0]), np.arctan(rows[-1, -1]), np.arctan(rows).mean(),
                np.arctan(state.tau[0]), np.arctan(state.tau).mean(), np.arctan(state.sigma2[0]), np.arctan(state.sigma2[-1]),
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
        if kind.collapse or plan.element or not setting.shared:
            factor = None
        else:
            factor = gibbs.factored(BE, plan, data, state, factor)
        state, _ = gibbs.sweep(BE, plan, data, state, setting.tuning, gibbs.draw_noise(plan, rng, kind), kind, factor)
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
