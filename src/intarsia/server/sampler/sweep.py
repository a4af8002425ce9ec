"""Algorithm 1: one sweep (paper, §2.2), as a list of steps, written for any array library.

`sweep(Sweep(be, plan, data, tuning, noise, kind, factor), state) -> (state, stats)` is a pure function: same noise in, same state
out.
`readable` is what JAX runs and what the tests hold up as truth; `compiled.sweep` is its twin for the CPU.
"""

import math
from typing import Any, NamedTuple

from intarsia.server.sampler import compiled, conditionals, exchange, integrated, moves, small_shares, without_b
from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.conditionals import Given
from intarsia.server.sampler.covariance import Rotation
from intarsia.server.sampler.schedule import RELAX, TARGET, Plan, Sweep, part
from intarsia.server.sampler.state import Data, State, Stats
from intarsia.server.sampler.without_b import Systems, Walked, Ways


def sweep(now: Sweep, state: State) -> tuple[State, Stats]:
    """One draw of everything (paper, Algorithm 1, with the moves of `moves` and `integrated`)."""
    way = compiled.sweep if now.plan.compiled else readable
    return way(now, state)


class Rotated(NamedTuple):
    """Data and A in coordinates in which the responses' noise is independent."""

    rotation: Rotation
    Y: Array
    A: Array

    def deviation(self, power: float) -> Array:
        """s = sigma/√power of each rotated response."""
        return (self.rotation.variances / power) ** 0.5


def rotated(now: Sweep, state: State) -> Rotated:
    rotation = now.plan.covariance(now.data.noise_scale).rotation(now.be, state.Sigma)
    return Rotated(rotation, now.data.Y @ rotation.U, rotation.U.T @ state.A)


def readable(now: Sweep, state: State) -> tuple[State, Stats]:
    """One sweep, step by step."""
    be, plan, kind = now.be, now.plan, now.kind
    stats = Stats(be.xp.zeros(state.lam.shape), be.xp.zeros(plan.Q + 1))
    if plan.mixing and kind.collapse and not plan.element:
        state, F, rotation, stats = without_b.draw(now, state, stats, Ways(walk, exchange.scales))
        view = Rotated(rotation, now.data.Y @ rotation.U, rotation.U.T @ state.A)
    else:
        state, F, view = draw_B(now, state)
    state = draw_A(now, state, F, view)
    state, residual = draw_Sigma(now, state, F, view)
    if plan.mixing:
        state = rescale_columns(now, state)
    if kind.scales:
        state = draw_lam(now, state)
    state = draw_tau(now, state)
    if plan.mixing and kind.sites:
        state, stats = (sites_element if plan.element else sites_row)(now, state, residual, stats)
    return state, stats


def draw_B(now: Sweep, state: State) -> tuple[State, Array, Rotated]:
    """B given all else, over-relaxed; and XB."""
    be, plan, X, noise = now.be, now.plan, now.data.X, now.noise
    view = rotated(now, state)
    given = Given(view.A, state.lam, state.tau, view.deviation(plan.model.power))

    def draw(Y: Array, Z: Array, E: Array) -> Array:
        if plan.element:
            return conditionals.draw_B_element(be, X, Y, given, Z, E)
        return conditionals.draw_B_row(be, X, Y, given, Z, E, now.factor)

    B = conditionals.relaxed(draw, RELAX if plan.mixing else 0.0, state.B, view.Y, noise["Z"], noise["E"])
    return state._replace(B=B), be.times(X, B), view


def walk(now: Sweep, state: State, given: Systems, noise: dict[str, Array]) -> Walked:
    """Each response's share against its noise, Sigma and tau's common scale, then the local scales of borderline features, all
    with B integrated out.
    """
    be, plan, data = now.be, now.plan, now.data
    xp, power, (Q, R) = be.xp, plan.model.power, (plan.Q, plan.R)
    factor, packed, border, Zk = given
    law = plan.covariance(data.noise_scale)
    Yrot, E, XZr, Xk = packed[:, :Q], packed[:, Q : Q + R], packed[:, Q + R : Q + 2 * R], packed[:, Q + 2 * R :]
    if plan.searches:
        state = small_shares.stretch(without_b.target(now, state, factor, Yrot), data, state, now.tuning.clear, noise)
    target = without_b.target(now, state, factor, Yrot)
    root = law.rotation(be, state.Sigma).root()
    if plan.reshapes:
        state = state._replace(A=integrated.collapsed_A(target, root, noise))
        target = target._replace(A=state.A)
    steps = xp.exp(now.tuning.log_steps)[xp.asarray([0] * Q + [1])] * noise["steps.z"]
    directions = law.directions(be, noise["steps.v"])
    root, tau, accepted = integrated.collapsed_scales(be, target, root, directions, steps, noise["steps.u"])
    rotation = law.from_root(be, root)
    s = (rotation.variances / power) ** 0.5
    U, d, Vt = conditionals.whiten(be, rotation.U.T @ state.A, tau, s)
    Yr = (Yrot @ rotation.U / s) @ U
    systems = integrated.Systems(factor, d, Yr, Yr - d * XZr - E)
    uniform = {name: noise[f"border.{name}"][: Xk.shape[1]] for name in ("value", "mix", "pick")}
    taken = integrated.Taken(Xk, Zk, state.lam[border.features])
    new, W = integrated.borderline(be, systems, taken, border, plan.laws.local, uniform)
    return Walked(state.A, rotation, tau, accepted, new, d, Vt, W * d)


def draw_A(now: Sweep, state: State, F: Array, view: Rotated) -> State:
    A = conditionals.draw_A(now.be, F, view.Y, view.deviation(now.plan.model.power), now.noise["A"])
    return state._replace(A=view.rotation.U @ A)


def draw_Sigma(now: Sweep, state: State, F: Array, view: Rotated) -> tuple[State, Array]:
    """Sigma given the residual, which is returned too."""
    data, power = now.data, now.plan.model.power
    residual = data.Y - F @ state.A.T
    scatter = power * (residual.T @ residual + data.rss0)
    law = now.plan.covariance(data.noise_scale)
    Sigma = law.draw(now.be, view.rotation, scatter, power * data.m, part(now.noise, "Sigma"))
    return state._replace(Sigma=Sigma), residual


def rescale_columns(now: Sweep, state: State) -> State:
    A, B, tau = moves.rescale_columns(
        now.be, state.A, state.B, state.tau, now.plan.laws.global_, now.noise["columns.g"], now.noise["columns.u"]
    )
    return state._replace(A=A, B=B, tau=tau)


def draw_lam(now: Sweep, state: State) -> State:
    law, noise = now.plan.laws.local, part(now.noise, "lam")
    return state._replace(lam=conditionals.draw_lam(now.be, state.lam, state.B, state.tau, law, noise))


def draw_tau(now: Sweep, state: State) -> State:
    law, noise = now.plan.laws.global_, part(now.noise, "tau")
    tau = conditionals.draw_tau(now.be, state.tau, state.B, state.lam, law, noise)
    return state._replace(tau=now.be.xp.clip(tau, 1e-15, 1e15))


def sites_row(now: Sweep, state: State, residual: Array, stats: Stats) -> tuple[State, Stats]:
    """Every local scale on its own, with B/lam held."""
    be, plan, data, tuning, noise = now.be, now.plan, now.data, now.tuning, now.noise
    xp, lam = be.xp, state.lam
    view = rotated(now, state)
    s = view.deviation(plan.model.power)
    if plan.refreshes:
        return refreshed(now, state, view, (residual @ view.rotation.U) / s, stats)
    new, log_prior = moves.propose_lam(be, lam, tuning.theta, noise["single.z"], plan.laws.local)
    unit, delta = moves.non_centred(view.A, state.B, lam, new, s)
    visited, seen = _visited(now)
    W = (residual @ view.rotation.U) / s
    accept, _ = moves.single_site(be, data.blocks, W, delta, log_prior, noise["single.u"], visited)
    lam = xp.where(accept, new, lam)
    single = accept if seen is None else xp.where(seen, accept, TARGET)
    return state._replace(B=unit * lam[:, None], lam=lam), stats._replace(single=single)


def refreshed(now: Sweep, state: State, view: Rotated, W: Array, stats: Stats) -> tuple[State, Stats]:
    """Every local scale with its coefficients, those of a block at once; W is the whitened residual."""
    be, plan, noise = now.be, now.plan, now.noise
    U, d, Vt = conditionals.whiten(be, view.A, state.tau, view.deviation(plan.model.power))
    numbers = moves.Refreshed(noise["single.value"], noise["single.u"], noise["single.xi"], noise["single.e"])
    scaled = moves.Scaled((state.B / state.tau) @ Vt.T, state.lam, plan.laws.local)
    _, w, lam, accept = moves.refresh(be, now.data.blocks, W @ U, d, scaled, numbers, plan.lanes)
    return state._replace(B=w @ Vt * state.tau, lam=lam), stats._replace(single=accept)


def sites_element(now: Sweep, state: State, residual: Array, stats: Stats) -> tuple[State, Stats]:
    """Element scales: the single-site move column by column."""
    be, plan, data, tuning, noise = now.be, now.plan, now.data, now.tuning, now.noise
    xp, lam = be.xp, state.lam
    view = rotated(now, state)
    s = view.deviation(plan.model.power)
    W, unit = (residual @ view.rotation.U) / s, state.B / lam
    new, log_prior = moves.propose_lam(be, lam, tuning.theta, noise["single.z"], plan.laws.local)
    visited, seen = _visited(now)
    accepted = []
    for r in range(plan.R):
        delta = ((new[:, r] - lam[:, r]) * unit[:, r])[:, None] * (view.A[:, r] / s)
        accept, W = moves.single_site(be, data.blocks, W, delta, log_prior[:, r], noise["single.u"][:, r], visited)
        accepted.append(accept)
    accept = xp.stack(accepted, axis=1)
    lam = xp.where(accept, new, lam)
    single = accept if seen is None else xp.where(seen[:, None], accept, TARGET)
    return state._replace(B=unit * lam, lam=lam), stats._replace(single=single)


def _visited(now: Sweep) -> tuple[Array | None, Array | None]:
    """The blocks to visit, a run of them from a place that noise alone decides; and which features lie in them."""
    plan, xp = now.plan, now.be.xp
    if not plan.visits:
        return None, None
    number = -(-plan.P // plan.block)
    start = xp.minimum(xp.floor(now.noise["single.start"] * number), number - 1).astype(int)
    return (start + xp.arange(plan.visits)) % number, (xp.arange(plan.P) // plan.block - start) % number < plan.visits


def whiten_top(A: Array, tau: Array, s: Array) -> Array:
    """An upper bound of the largest d_j²."""
    return ((A / s[:, None] * tau) ** 2).sum()


def factored(be: Backend, plan: Plan, data: Data, state: State, known: Any = None, top: float = math.nan) -> Any:
    """The system of B at the state's local scales, for the sweeps that share them; `known` where it still is that.

    A factor made for systems up to `top` (NaN: with room above the present ones) serves while ten times the present ones, which
    proposals need, stay below.
    """
    rotation = plan.covariance(data.noise_scale).rotation(be, state.Sigma)
    s = be.xp.sqrt(rotation.variances / plan.model.power)
    now = 1e1 * float(whiten_top(rotation.U.T @ state.A, state.tau, s))
    if known is not None and known.lam is state.lam and now <= known.top:
        return known
    G, _ = be.weigh(data.X, state.lam, state.B[:, :0])  # no scaled copy of the design
    return be.factor(G, data.X, state.lam, top if now <= top else 1e1 * now)


def strength(be: Backend, plan: Plan, data: Data, state: State) -> Array:
    """(P) size of the coefficients in units of their noise; empty where there are many, and nothing is made of it."""
    if plan.searches:
        return be.xp.zeros(0)
    rotation = plan.covariance(data.noise_scale).rotation(be, state.Sigma)
    white = rotation.whiten(state.B @ state.A.T)
    return be.xp.sqrt(data.norm2 * (white**2).sum(axis=1))


def shrinkage(be: Backend, plan: Plan, data: Data, state: State) -> Array:
    """(P) share of each feature's coefficients that the prior takes away, were it alone."""
    rotation = plan.covariance(data.noise_scale).rotation(be, state.Sigma)
    spread = (rotation.whiten((state.A * state.tau).T) ** 2).sum() / plan.R
    rows2 = state.lam**2 if state.lam.ndim == 1 else (state.lam**2).mean(axis=1)
    return 1 / (1 + data.norm2 * spread * rows2)
