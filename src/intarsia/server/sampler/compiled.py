"""The compiled sweep of the CPU: the twin of `sweep.readable` for the models `schedule.plan` says it knows.

Same noise in, same state out to rounding. Everything but the large products runs in a few compiled steps (`kernels`); what is
large already (a shared factor, a system that is too stiff for a plain Cholesky factor) goes through the readable functions.
"""

from typing import Any

import numpy as np

from intarsia.errors import ConvergenceError
from intarsia.server.sampler import conditionals, inclusion, integrated, kernels, trade
from intarsia.server.sampler.backends.numpy import CACHED, NOT_POSITIVE, STIFF, Tridiagonal
from intarsia.server.sampler.backends.protocol import Array
from intarsia.server.sampler.conditionals import Given
from intarsia.server.sampler.kernels import Candidates, Constants
from intarsia.server.sampler.schedule import KNOWN, RELAX, Sweep
from intarsia.server.sampler.state import State, Stats

FEW = 80  # rows up to which half a product is not worth a call of its own


def sweep(now: Sweep, state: State) -> tuple[State, Stats]:
    """One sweep."""
    plan, data, tuning, noise, kind = now.plan, now.data, now.tuning, now.noise, now.kind
    correlated = plan.model.noise == "correlated" and plan.Q > 1
    constants = Constants(data.m, plan.model.power, correlated, plan.tau_scale, data.noise_scale, plan.tau_reach)
    stats = Stats(np.zeros(plan.P), np.zeros(plan.Q + 1))
    view = kernels.rotated(state.Sigma, data.Y, state.A, correlated)
    if kind.collapse:
        B, F, lam, tau, view, stats = _without_B(now, state, view, constants, stats)
    else:
        B, F = _given_scales(now, state, view)
        lam, tau = state.lam, state.tau
    z_Sigma = ("Sigma.a", "Sigma.normal", "Sigma.chi") if correlated else ("Sigma.low", "Sigma.u", "Sigma.v")
    numbers = (
        noise["A"], _get(noise, *z_Sigma), _get(noise, "columns.g", "columns.u"), _three(noise, "tau"),
        _three(noise, "lam" if kind.scales else "tau"),
    )  # fmt: skip
    *new, residual = kernels.given_B(
        np.ascontiguousarray(F), (data.Y, data.rss0), constants, view[:3], (B, lam, tau), numbers, kind.scales
    )
    state = State(*new)
    if kind.sites:
        design = data.blocks.Xt, data.blocks.gram, data.Y
        sites = _get(noise, "single.z", "single.u")
        B, lam, single = kernels.sites(design, tuple(state), residual, constants, tuning.theta, sites)
        state, stats = state._replace(B=B, lam=lam), stats._replace(single=single)
    return state, stats


def _get(noise: dict[str, Array], *names: str) -> tuple[Array, ...]:
    return tuple(noise[name] for name in names)


def _three(noise: dict[str, Array], name: str) -> tuple[Array, Array, Array]:
    """The numbers of a half-Cauchy draw; those of a single value need no gamma variate, and none is looked at."""
    u = noise[f"{name}.u"]
    return noise.get(f"{name}.low", u), u, noise[f"{name}.v"]


def _given_scales(now: Sweep, state: State, view: tuple[Array, ...]) -> tuple[Array, Array]:
    """`sweep.draw_B`."""
    be, plan, data, noise, factor = now.be, now.plan, now.data, now.noise, now.factor
    X, (_, D, Y, A) = data.X, view
    s = np.sqrt(D / plan.model.power)
    given = Given(A, state.lam, state.tau, s)
    if factor is None and plan.hold == 1:
        possible, B, F = kernels.draw_B(X.T, Y, state.B, given, (noise["Z"], noise["E"]), RELAX, STIFF)
        if possible:
            return B, F

    def draw(Y: Array, Z: Array, E: Array) -> Array:
        return conditionals.draw_B_row(be, X, Y, given, Z, E, factor)

    B = np.ascontiguousarray(conditionals.relaxed(draw, RELAX, state.B, Y, noise["Z"], noise["E"]))
    return B, be.times(X, B)


def _without_B(now: Sweep, state: State, view: tuple[Array, ...], constants: Constants, stats: Stats) -> tuple[Any, ...]:
    """`sweep.draw_without_B`: B, XB, lam, tau, (U, D, YU), what was accepted and known."""
    be, plan, data, tuning, noise, kind, _, gram = now
    X, Z = data.X, noise["Z"]
    if gram is not None:
        G, XZ = gram, be.times(X, state.lam[:, None] * Z)
    else:
        small = X.shape[0] <= FEW and X.size <= 8 * CACHED
        G, XZ = kernels.weigh(X.T, state.lam, Z) if small else be.weigh(X, state.lam, Z)
    if kind.trade:
        prior = plan.laws, plan.covariance(data.noise_scale), plan.model.power
        state, G, XZ = trade.trade(be, data, state, (G, XZ), prior, noise)
        view = kernels.rotated(state.Sigma, data.Y, state.A, constants.correlated)
    lam, (U, D, _, A) = state.lam, view
    top = plan.model.power * ((A * state.tau) ** 2 / D[:, None]).sum()
    factor = Tridiagonal(G, X, lam, 1e1 * top)
    if kind.score:
        stats = stats._replace(scored=inclusion.scored(be, plan, data, state, factor))
    border = inclusion.choose(be, plan, data, tuning, lam, noise["border.take"])
    chosen = border.features
    packed = factor.rotate(np.concatenate([data.Y, noise["E"], XZ, X[:, chosen]], axis=1))
    steps = np.exp(tuning.log_steps)[[0] * plan.Q + [1]] * noise["steps.z"]
    U, D, tau, accepted, new, W, Vt, d = kernels.integrated(
        (factor.diag, factor.off, packed, data.rss0), (U, D, state.A, state.tau), constants,
        (noise["steps.v"], steps, noise["steps.u"]), (Z[chosen], lam[chosen]), border,
        Candidates(*(noise[f"border.{name}"][: chosen.size] for name in Candidates._fields)),
    )  # fmt: skip
    if np.isnan(new).any():
        raise ConvergenceError(NOT_POSITIVE)
    old, lam = lam[chosen], be.put(lam, chosen, new)
    W = np.ascontiguousarray(factor.unrotate(W))
    if plan.hold == 1:
        B, F = kernels.coefficients(X.T, (lam, tau), Z, (W, Vt))
    else:
        B = (Z + lam[:, None] * be.cross(X, W)) @ Vt * lam[:, None] * tau
        columns, change, size = X[:, chosen], new**2 - old**2, (d**2).max() * factor.trace()
        if plan.searches and not kind.scales:
            stats = stats._replace(gram=integrated.grown(be, X, lam, G, (columns, change), size))
        if size < KNOWN:
            moved = XZ + columns @ ((new - old)[:, None] * Z[chosen] + change[:, None] * (columns.T @ W))
            F = (moved + factor.apply(W)) @ Vt * tau
        else:
            F = be.times(X, B)
    return B, F, lam, tau, (U, D, data.Y @ U), stats._replace(steps=accepted)
