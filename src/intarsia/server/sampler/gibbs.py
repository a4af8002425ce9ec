"""Algorithm 1: one sweep (paper, §2.2).

`sweep(be, data, state, tuning, noise) -> (state, stats)` is a pure function: same noise in, same state out, on every backend.
"""

import math
from typing import Any

from intarsia.server.sampler import conditionals, moves
from intarsia.server.sampler.plan import (
    BLOCK,
    DEEP,
    FULL,
    LIGHT,
    PLAIN,
    SHORT,
    TARGET,
    Blocks,
    Data,
    Kind,
    Model,
    Plan,
    State,
    Stats,
    Tuning,
    draw_noise,
    initial,
    initial_tuning,
    part,
    plan,
    prepare,
)

__all__ = [
    "BLOCK", "DEEP", "FULL", "LIGHT", "PLAIN", "SHORT", "TARGET",
    "Blocks", "Data", "Kind", "Model", "Plan", "State", "Stats", "Tuning",
    "draw_noise", "factored", "initial", "initial_tuning", "plan", "prepare", "strength", "sweep",
]  # fmt: skip

Array = Any
RELAX = 0.8  # how far a B that is drawn given all else lies on the other side of its mean


def factored(be: Any, plan: Plan, data: Data, state: State, known: Any = None, top: float = math.nan) -> Any:
    """The system of B at the state's local scales, for the light sweeps that share them; `known` where it still is that.

    A factor made for systems up to `top` (NaN: with room above the present ones) serves while they stay below.
    """
    now = float(whiten_top(be, state.A, state.tau, be.xp.sqrt(state.sigma2 / plan.model.alpha)))
    if known is not None and known.lam is state.lam and now <= known.top:
        return known
    G, _ = be.weigh(data.X, state.lam, state.B[:, :0])  # no scaled copy of the design
    return be.factor(G, data.X, state.lam, top if now <= top else 1e2 * now)


def strength(be: Any, data: Data, state: State) -> Array:
    """(P) size of the coefficients in units of their noise."""
    return be.xp.sqrt(data.norm2 * ((state.B @ state.A.T) ** 2 / state.sigma2).sum(axis=1))


def sweep(
    be: Any,
    plan: Plan,
    data: Data,
    state: State,
    tuning: Tuning,
    noise: dict[str, Array],
    kind: Kind = FULL,
    factor: Any = None,
) -> tuple[State, Stats]:
    """One draw of everything (paper, Algorithm 1, with the moves of `intarsia.server.sampler.moves`).

    `kind` says which moves are made (`Plan.kind` has the schedule); `factor` is `factored(…, state)` where it is known.
    """
    xp, alpha = be.xp, plan.model.alpha
    A, B, lam, tau, sigma2 = state
    no = xp.zeros(1)
    step_stats, shift, compensate, stretch = no, no, no, no
    if plan.mixing and kind.collapse and not plan.element:
        B, F, lam, tau, sigma2, step_stats = _draw_B(be, plan, data, A, lam, tau, sigma2, tuning, noise)
    else:
        B, F = _given_scales(be, plan, data, state, noise, factor)
    if be.kernels is not None and plan.compiled and data.blocks.gram is not None:
        return _compiled(be, plan, data, State(A, B, lam, tau, sigma2), F, tuning, noise, kind, step_stats)
    s = xp.sqrt(sigma2 / alpha)
    A = conditionals.draw_A(be, F, data.Y, s, noise["A"])
    residual = data.Y - F @ A.T
    sigma2 = conditionals.draw_sigma2(
        be, sigma2, (residual**2).sum(axis=0) + data.rss0, data.m, alpha, plan.noise_law(data.noise_scale), part(noise, "sigma")
    )
    sigma2 = xp.maximum(sigma2, 1e-24 * data.noise_scale**2)
    if plan.mixing:
        A, B, tau = moves.rescale_columns(be, A, B, tau, plan.global_, noise["columns.g"], noise["columns.u"])
    if kind.scales:
        lam = conditionals.draw_lam(be, lam, B, tau, plan.local, part(noise, "lam"))
    tau = conditionals.draw_tau(be, tau, B, lam, plan.global_, part(noise, "tau"))
    tau = xp.clip(tau, 1e-15, 1e15)
    single = xp.zeros(lam.shape)
    if plan.mixing and kind.scales:
        step = xp.exp(tuning.log_shift) * noise["shift.z"][0]
        lam, tau, shift = moves.shift_scales(be, lam, tau, plan.local, plan.global_, step, noise["shift.u"][0])
    if plan.mixing and kind.sites:
        s = xp.sqrt(sigma2 / alpha)
        if plan.element:
            B, lam, single = _single_element(be, plan, data, A, B, lam, residual / s, s, tuning, noise)
        else:
            A, B, lam, tau, single, compensate, stretch = _finish_row(
                be, plan, data, A, B, lam, tau, residual / s, s, tuning, noise
            )
    return State(A, B, lam, tau, sigma2), Stats(single, step_stats, shift, compensate, stretch)


def _given_scales(be: Any, plan: Plan, data: Data, state: State, noise: dict[str, Array], factor: Any) -> tuple[Array, Array]:
    """B given all else, over-relaxed, and XB."""
    A, B, lam, tau, sigma2 = state
    X = data.X
    s = be.xp.sqrt(sigma2 / plan.model.alpha)
    if be.kernels is not None and plan.compiled and plan.hold == 1 and factor is None:
        possible, new, F = be.kernels.draw_B(X.T, data.Y, A, B, lam, tau, s, RELAX, noise["Z"], noise["E"], be.stiff)
        if possible:
            return new, F

    def draw(Y: Array, Z: Array, E: Array) -> Array:
        if plan.element:
            return conditionals.draw_B_element(be, X, Y, A, lam, tau, s, Z, E)
        return conditionals.draw_B_row(be, X, Y, A, lam, tau, s, Z, E, factor)

    B = conditionals.relaxed(draw, RELAX if plan.mixing else 0.0, B, data.Y, noise["Z"], noise["E"])
    return B, be.times(X, B)


def _compiled(
    be: Any,
    plan: Plan,
    data: Data,
    state: State,
    F: Array,
    tuning: Tuning,
    noise: dict[str, Array],
    kind: Kind,
    step_stats: Array,
) -> tuple[State, Stats]:
    """What follows the draw of B, in two compiled steps."""
    kernels, xp = be.kernels, be.xp

    def three(name: str) -> tuple[Array, Array, Array]:
        return noise[f"{name}.low"], noise[f"{name}.u"], noise[f"{name}.v"]

    no = xp.zeros(1)
    shift, compensate, stretch, single = no, no, no, xp.zeros(plan.P)
    step, u = (xp.exp(tuning.log_shift) * noise["shift.z"][0], noise["shift.u"][0]) if kind.scales else (0.0, 1.0)
    A, B, lam, tau, sigma2, W, moved = kernels.given_B(
        xp.ascontiguousarray(F), data.Y, data.rss0, data.m, plan.model.alpha, data.noise_scale, *state,
        noise["A"], three("sigma"), (noise["columns.g"], noise["columns.u"]), moves.rescale_shape(plan.Q), three("tau"),
        kind.scales, three("lam" if kind.scales else "tau"), float(step), float(u),
    )  # fmt: skip
    if kind.scales:
        shift = xp.asarray(moved)
    if kind.sites:
        strong, _ = be.compress(tuning.held, tuning.clear)
        A, B, lam, tau, single, compensate, stretched = kernels.finish(
            data.blocks.Xt, data.blocks.gram, data.Y, A, B, lam, tau, W, xp.sqrt(sigma2 / plan.model.alpha),
            tuning.theta, (noise["single.z"], noise["single.u"]), strong, noise["stretch.v"],
            (float(tuning.log_stretch), noise["stretch.z"], noise["stretch.u"]),
            (float(tuning.log_compensate), noise["compensate.z"], noise["compensate.u"]),
        )  # fmt: skip
        stretch = stretched if plan.R == plan.Q else no
    return State(A, B, lam, tau, sigma2), Stats(single, step_stats, shift, compensate, stretch)


def _draw_B(
    be: Any,
    plan: Plan,
    data: Data,
    A: Array,
    lam: Array,
    tau: Array,
    sigma2: Array,
    tuning: Tuning,
    noise: dict[str, Array],
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Row scales: noise level, global scale and borderline features with B integrated out, then B and XB."""
    xp, alpha = be.xp, plan.model.alpha
    X, Q, R = data.X, plan.Q, plan.R
    Z, K = noise["Z"], plan.borderline
    G, XZ = be.weigh(X, lam, Z)
    # Ten times as much as the present d_j² leaves the proposals room.
    factor = be.factor(G, X, lam, 1e1 * whiten_top(be, A, tau, xp.sqrt(sigma2 / alpha)), many=True)
    # K features without replacement, weighted by doubt (Gumbel keys): the choice depends on noise alone.
    chosen = be.largest(tuning.doubt - xp.log(-xp.log(noise["border.take"])), K)
    columns = X[:, chosen]
    packed = factor.rotate(xp.concatenate([data.Y, noise["E"], XZ, columns], axis=1))
    Yrot, E, XZr, Xk = packed[:, :Q], packed[:, Q : Q + R], packed[:, Q + R : Q + 2 * R], packed[:, Q + 2 * R :]
    target = moves.Collapsed(be, factor, Yrot, A, data.rss0, data.m, alpha, plan.global_, plan.noise_law(data.noise_scale))
    old = lam[chosen]
    if be.kernels is not None and plan.compiled and plan.hold == 1:
        sigma2, tau, accepted, new, W, Vt = be.kernels.integrated(
            target.numbers(), sigma2, tau, (tuning.log_steps, noise["steps.z"], noise["steps.u"]), packed, Z[chosen], old,
            (noise["border.value"], noise["border.mix"], noise["border.pick"]),
        )  # fmt: skip
        lam, W = be.put(lam, chosen, factor.checked(new, new)), xp.ascontiguousarray(factor.unrotate(W))
        return *be.kernels.coefficients(X.T, lam, tau, Z, W, Vt, 0.0, Z), lam, tau, sigma2, accepted
    steps = xp.exp(tuning.log_steps) * noise["steps.z"]
    sigma2, tau, accepted = moves.collapsed_scales(be, target, sigma2, tau, steps, noise["steps.u"])
    s = xp.sqrt(sigma2 / alpha)
    U, d, Vt = conditionals.whiten(be, A, tau, s)
    Yr = (Yrot / s) @ U
    new, W = _borderline(be, factor, d, Yr, Yr - d * XZr - E, Xk, Z[chosen], old, plan.local, part(noise, "border"))
    lam = be.put(lam, chosen, new)
    W = factor.unrotate(W) * d
    B = (Z + lam[:, None] * be.cross(X, W)) @ Vt * lam[:, None] * tau

    def known(B: Array) -> Array:
        """XB from products that are there already: X diag(lam) Z + G W, and what the borderline scales changed."""
        del B
        moved = XZ + columns @ ((new - old)[:, None] * Z[chosen] + (new**2 - old**2)[:, None] * (columns.T @ W))
        return (moved + factor.apply(W)) @ Vt * tau

    # Known to rounding times d²G; where that is too much, the product is made.
    F = be.branch((d**2).max() * factor.trace() < 1e5, known, lambda B: be.times(X, B), B)
    return B, F, lam, tau, sigma2, accepted


def _borderline(
    be: Any,
    factor: Any,
    d: Array,
    Yr: Array,
    rhs: Array,
    Xk: Array,
    Zk: Array,
    lam: Array,
    law: Any,
    candidates: dict[str, Array],
) -> tuple[Array, Array]:
    """New scales of the features Xk, all of B integrated out, and (I + d_j² G)⁻¹ rhs_j (m×R) with G and rhs as they are then.

    Zk are the rows of the noise Z that belong to the features: rhs holds - d_j X diag(lam) Z.
    """
    if be.kernels is not None:
        found = be.kernels.borderline(factor, d, Yr, rhs, Xk, Zk, lam, law, candidates)
        return factor.checked(found, found[0])
    xp = be.xp
    K, R = Xk.shape[1], d.shape[0]
    wanted = xp.stack([rhs.T, Yr.T], axis=2)
    solved = factor.solve(d, xp.concatenate([wanted, xp.broadcast_to(Xk, (R, *Xk.shape))], axis=2))
    W, S = solved[:, :, 0], solved[:, :, 2:]  # (R, m) and (R, m, K)
    inverse = Xk.T @ S
    new = moves.collapsed_local(be, inverse, solved[:, :, 1] @ Xk, d, lam, law, candidates)
    # The same systems after the scales have moved (Woodbury, size K).
    W = W - d[:, None] * (S @ ((new - lam)[:, None] * Zk).T[:, :, None])[:, :, 0]
    change = d[:, None] ** 2 * (new**2 - lam**2)
    small = xp.linalg.solve(xp.eye(K) + change[:, :, None] * inverse, (change * (W @ Xk))[:, :, None])
    return new, (W - (S @ small)[:, :, 0]).T


def whiten_top(be: Any, A: Array, tau: Array, s: Array) -> Array:
    """An upper bound of the largest d_j²."""
    return ((A / s[:, None] * tau) ** 2).sum()


def _finish_row(
    be: Any,
    plan: Plan,
    data: Data,
    A: Array,
    B: Array,
    lam: Array,
    tau: Array,
    W: Array,
    s: Array,
    tuning: Tuning,
    noise: dict[str, Array],
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """Non-centred moves: every local scale on its own, then the rows' covariance and the global scale, signals held."""
    xp = be.xp
    new, log_prior = moves.propose_lam(be, lam, tuning.theta, noise["single.z"], plan.local)
    unit, D, delta = moves.non_centred(be, A, B, lam, new, s)
    visited, seen = _visited(be, plan, noise)
    accept, W = moves.single_site(be, data.blocks, W, delta, log_prior, noise["single.u"], visited)
    single = accept if seen is None else xp.where(seen, accept, TARGET)
    lam = xp.where(accept, new, lam)
    strong, clear = be.compress(tuning.held, tuning.clear)
    signal = be.put(xp.zeros(plan.P, dtype=bool), strong, clear)
    # All of the fit is what the residual leaves of Y; the signals' part of it is taken out.
    signals = xp.where(clear, lam[strong], 0.0)[:, None] * D[strong]
    fit = data.Y / s - W - data.X[:, strong] @ signals
    stretch = xp.zeros(1)
    if plan.R == plan.Q:
        mine = D[strong] * s
        scaled = xp.where(clear[:, None], mine, 0.0)
        A, inverse, fit, W, stretch = moves.stretch_responses(
            be,
            A,
            tau,
            fit * s,
            W,
            scaled.T @ scaled,
            clear.sum(),
            s,
            noise["stretch.v"],
            xp.exp(tuning.log_stretch) * noise["stretch.z"],
            noise["stretch.u"],
        )
        fit = fit / s
        unit = be.put(unit, strong, xp.where(clear[:, None], mine @ inverse.T, unit[strong]))
    log_c, compensate = moves.compensated_scale(
        be,
        fit,
        W,
        lam,
        tau,
        signal,
        plan.local,
        plan.global_,
        xp.exp(tuning.log_compensate) * noise["compensate.z"],
        noise["compensate.u"],
    )
    c = xp.exp(log_c)
    B = unit * (lam * xp.where(signal, 1.0, c))[:, None]
    return A, B, xp.where(signal, lam / c, lam), tau * c, single, compensate, stretch


def _visited(be: Any, plan: Plan, noise: dict[str, Array]) -> tuple[Array | None, Array | None]:
    """The blocks to visit, a run of them from a place that noise alone decides; and which features lie in them."""
    if not plan.visits:
        return None, None
    xp = be.xp
    number = -(-plan.P // plan.block)
    start = xp.minimum(xp.floor(noise["single.start"] * number), number - 1).astype(int)
    return (start + xp.arange(plan.visits)) % number, (xp.arange(plan.P) // plan.block - start) % number < plan.visits


def _single_element(
    be: Any,
    plan: Plan,
    data: Data,
    A: Array,
    B: Array,
    lam: Array,
    W: Array,
    s: Array,
    tuning: Tuning,
    noise: dict[str, Array],
) -> tuple[Array, Array, Array]:
    """Element scales: the single-site move column by column."""
    xp = be.xp
    unit = B / lam
    new, log_prior = moves.propose_lam(be, lam, tuning.theta, noise["single.z"], plan.local)
    visited, seen = _visited(be, plan, noise)
    accepted = []
    for r in range(plan.R):
        delta = ((new[:, r] - lam[:, r]) * unit[:, r])[:, None] * (A[:, r] / s)
        accept, W = moves.single_site(be, data.blocks, W, delta, log_prior[:, r], noise["single.u"][:, r], visited)
        accepted.append(accept)
    accept = xp.stack(accepted, axis=1)
    lam = xp.where(accept, new, lam)
    return unit * lam, lam, accept if seen is None else xp.where(seen[:, None], accept, TARGET)
