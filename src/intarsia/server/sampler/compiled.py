"""The compiled sweep of the CPU: the twin of `sweep.readable` for the models `schedule.plan` says it knows.

Same noise in, same state out to rounding. Everything but the large products runs in a few compiled steps (`kernels`); what is
large already (a shared factor, a system that is too stiff for a plain Cholesky factor) goes through the readable functions.
"""

from typing import Any, cast

import numpy as np

from intarsia.errors import ConvergenceError
from intarsia.server.sampler import conditionals, exchange, inclusion, integrated, kernels, small_shares, without_b
from intarsia.server.sampler.backends.numpy import CACHED, STIFF, Tridiagonal
from intarsia.server.sampler.backends.protocol import Array
from intarsia.server.sampler.conditionals import Given
from intarsia.server.sampler.covariance import Rotation
from intarsia.server.sampler.kernels import Candidates, Constants
from intarsia.server.sampler.schedule import RELAX, Sweep
from intarsia.server.sampler.state import State, Stats
from intarsia.server.sampler.without_b import Systems, Walked, Ways

FEW = 80  # rows up to which half a product is not worth a call of its own


def sweep(now: Sweep, state: State) -> tuple[State, Stats]:
    """One sweep."""
    plan, data, tuning, noise, kind = now.plan, now.data, now.tuning, now.noise, now.kind
    constants = _constants(now)
    correlated = constants.correlated
    stats = Stats(np.zeros(plan.P), np.zeros(plan.Q + 1))
    if kind.collapse:
        state, F, view, stats = _without_B(now, state, stats)
    else:
        whole = kernels.rotated(state.Sigma, data.Y, state.A, correlated)
        B, F = _given_scales(now, state, whole)
        state, view = state._replace(B=B), whole[:3]
    z_Sigma = ("Sigma.a", "Sigma.normal", "Sigma.chi") if correlated else ("Sigma.low", "Sigma.u", "Sigma.v")
    numbers = (
        noise["A"], _get(noise, *z_Sigma), _get(noise, "columns.g", "columns.u"), _three(noise, "tau"),
        _three(noise, "lam" if kind.scales else "tau"),
    )  # fmt: skip
    *new, residual = kernels.given_B(
        np.ascontiguousarray(F), (data.Y, data.rss0), constants, view, (state.B, state.lam, state.tau), numbers, kind.scales
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
    if factor is None and not plan.wide and plan.hold == 1:
        possible, B, F = kernels.draw_B(X.T, Y, state.B, given, (noise["Z"], noise["E"]), RELAX, STIFF)
        if possible:
            return B, F

    def draw(Y: Array, Z: Array, E: Array) -> Array:
        return conditionals.draw_B_row(be, X, Y, given, Z, E, factor)

    B = np.ascontiguousarray(conditionals.relaxed(draw, RELAX, state.B, Y, noise["Z"], noise["E"]))
    return B, be.times(X, B)


def _without_B(now: Sweep, state: State, stats: Stats) -> tuple[Any, ...]:
    """`without_b.draw`: the state, XB, (U, D, YU), what was accepted and known."""
    if now.plan.hold > 1 or now.plan.wide:
        state, F, (U, D), stats = without_b.draw(now, state, stats, Ways(walk, exchanged))
        return state, F, (U, D, now.data.Y @ U), stats
    be, data, noise = now.be, now.data, now.noise
    X, Z = data.X, noise["Z"]
    small = X.shape[0] <= FEW and X.size <= 8 * CACHED
    G, XZ = kernels.weigh(X.T, state.lam, Z) if small else be.weigh(X, state.lam, Z)
    factor = without_b.factored(now, state, G)
    border = inclusion.choose(be, now.plan, data, now.tuning, state.lam, noise["border.take"])
    packed = factor.rotate(np.concatenate([data.Y, noise["E"], XZ, X[:, border.features]], axis=1))
    there = walk(now, state, Systems(factor, packed, border, Z[border.features]), noise)
    lam, W = be.put(state.lam, border.features, there.new), np.ascontiguousarray(factor.unrotate(there.W))
    B, F = kernels.coefficients(X.T, (lam, there.tau), Z, (W, there.Vt))
    (U, D), stats = there.rotation, stats._replace(steps=there.accepted)
    return state._replace(A=there.A, B=B, lam=lam, tau=there.tau), F, (U, D, data.Y @ U), stats


def walk(now: Sweep, state: State, given: Systems, noise: dict[str, Array]) -> Walked:
    """`sweep.walk`."""
    plan, data, (system, packed, border, Zk) = now.plan, now.data, given
    factor = cast(Tridiagonal, system)
    steps = np.exp(now.tuning.log_steps)[[0] * plan.Q + [1]] * noise["steps.z"]
    constants, features = _constants(now), border.features
    if plan.searches:
        state = stretched(now, state, factor, packed[:, : plan.Q], noise)
    if plan.reshapes:
        state = reshaped(now, state, factor, packed[:, : plan.Q], noise)
    U, D = kernels.rotated(state.Sigma, data.Y[:0], state.A, constants.correlated)[:2]
    U, D, tau, accepted, new, W, Vt, d = kernels.integrated(
        (factor.diag, factor.off, packed, data.rss0), (U, D, state.A, state.tau), constants,
        (noise["steps.v"], steps, noise["steps.u"]), (Zk, state.lam[features]), border,
        Candidates(*(noise[f"border.{name}"][: features.size] for name in Candidates._fields)),
    )  # fmt: skip
    if np.isnan(new).any():
        raise ConvergenceError(
            "The linear system of the coefficients is not positive definite: a scale has left the range of "
            "double precision. Standardise the columns, or fit with noise='correlated'."
        )
    return Walked(state.A, Rotation(U, D), tau, accepted, new, d, Vt, W)


def exchanged(be: Any, systems: exchange.Systems, lam: Array, size: Array, tries: exchange.Tries) -> Array:
    """`exchange.scales`."""
    del be
    inverse, projected, d = systems
    return kernels.exchange(inverse.copy(), projected.copy(), d, (lam, size), (float(tries.edge), tries.who, np.log(tries.u)))


def stretched(now: Sweep, state: State, factor: Tridiagonal, Yrot: Array, noise: dict[str, Array]) -> State:
    """`small_shares.stretch`."""
    data = now.data
    moves = noise["stretch.v"], np.array(small_shares.STRETCHES) * noise["stretch.z"], np.log(noise["stretch.u"])
    systems = factor.diag, factor.off, np.ascontiguousarray(Yrot), data.rss0
    small = float(small_shares.outside(np, data, state.lam, now.tuning.clear))
    A, Sigma = kernels.stretch(systems, (state.A, state.Sigma, state.tau), _constants(now), small, moves)
    return state._replace(A=A, Sigma=Sigma)


def reshaped(now: Sweep, state: State, factor: Tridiagonal, Yrot: Array, noise: dict[str, Array]) -> State:
    """`integrated.collapsed_A`."""
    data, constants = now.data, _constants(now)
    U, D = kernels.rotated(state.Sigma, data.Y[:0], state.A, constants.correlated)[:2]
    moves = noise["shape.w"], np.resize(integrated.SHAPES, now.plan.reshapes) * noise["shape.z"], np.log(noise["shape.u"])
    systems = factor.diag, factor.off, np.ascontiguousarray(Yrot), data.rss0
    return state._replace(A=kernels.collapsed_A(systems, (U, D, state.A, state.tau), constants, moves))


def _constants(now: Sweep) -> Constants:
    plan, data = now.plan, now.data
    correlated = plan.model.noise == "correlated" and plan.Q > 1
    return Constants(data.m, plan.model.power, correlated, plan.tau_scale, data.noise_scale, plan.tau_reach)
