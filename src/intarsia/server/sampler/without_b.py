"""The part of a sweep in which B is integrated out, for row scales, and the draw of B and XB that ends it.

`draw` is for both sweeps; they differ in how they `walk`: over the noise's covariance, the global scale and the local scales of
borderline features.

Where there are many features, looks come first: rounds of that walk in which B is not drawn at all. A look needs
G = X diag(lam²) Xᵀ, the responses and the columns of the features it looks at, but no product over all of X, so that several of
them cost less than a sweep. In place of B it draws F = XB, whose columns are N(0, tau_r² G) before the data are seen, and A and
Sigma given F.
"""

from collections.abc import Callable
from typing import NamedTuple

from intarsia.server.sampler import conditionals, exchange, inclusion, integrated, small_shares
from intarsia.server.sampler.backends.protocol import Array, Factor
from intarsia.server.sampler.covariance import Rotation
from intarsia.server.sampler.schedule import KNOWN, Sweep, part
from intarsia.server.sampler.state import Border, State, Stats


class Systems(NamedTuple):
    """What a walk starts from: the factored G, and rotated with it Y, E, X diag(lam) Z and the borderline features' columns."""

    factor: Factor
    packed: Array  # (m, Q + 2R + K)
    border: Border
    Zk: Array  # the features' rows of Z


class Walked(NamedTuple):
    """Where a walk ends: A, Sigma, tau, what was accepted, the features' new scales; d_j and Vᵀ of the whitened A; and
    d_j (I + d_j² G)⁻¹ rhs_j, rotated, with G and rhs at the new scales.
    """

    A: Array
    rotation: Rotation
    tau: Array
    accepted: Array
    new: Array
    d: Array
    Vt: Array
    W: Array


Walk = Callable[[Sweep, State, Systems, dict[str, Array]], Walked]


class Ways(NamedTuple):
    """What the two sweeps do each in their own way: a walk, and the new scales of look-alikes (`exchange.scales`)."""

    walk: Walk
    exchange: Callable[..., Array]


class Drawn(NamedTuple):
    """The state with its new B, XB, Sigma's rotation, and what the moves accepted and know."""

    state: State
    F: Array
    rotation: Rotation
    stats: Stats


def draw(now: Sweep, state: State, stats: Stats, ways: Ways) -> Drawn:
    """Looks, exchanges, a walk; then B and XB, and the small coefficients' size (`small_shares.resize`)."""
    be, plan, data, noise, kind = now.be, now.plan, now.data, now.noise, now.kind
    xp, X, Z = be.xp, data.X, noise["Z"]
    factor = now.factor
    if factor is not None:
        G, XZ = factor.G, be.times(X, state.lam[:, None] * Z)
    else:
        G, XZ = be.weigh(X, state.lam, Z[:, :0] if plan.looks else Z)
    if plan.looks:
        state, G = looks(now, state, G, ways.walk)
        XZ = be.times(X, state.lam[:, None] * Z)
    factor = factored(now, state, G, many=not plan.exchanges) if factor is None else factor
    if plan.exchanges:
        state, G, moved = exchanged(now, state, factor, ways)
        factor, XZ = factor if G is factor.G else factored(now, state, G), XZ + moved
    lam = state.lam
    if kind.score:
        stats = stats._replace(scored=inclusion.scored(be, plan, data, state, factor))
    border = inclusion.choose(be, plan, data, now.tuning, lam, noise["border.take"])
    chosen = border.features
    columns, old = be.columns(X, chosen), lam[chosen]
    packed = factor.rotate(xp.concatenate([data.Y, noise["E"], XZ, columns], axis=1))
    there = ways.walk(now, state, Systems(factor, packed, border, Z[chosen]), noise)
    new, change, tau, Vt = there.new, there.new**2 - old**2, there.tau, there.Vt
    lam, size = be.put(lam, chosen, new), (there.d**2).max() * factor.trace()
    W = factor.unrotate(there.W)
    B = (Z + lam[:, None] * be.cross(X, W)) @ Vt * lam[:, None] * tau

    def known(B: Array) -> Array:
        """XB from products that are there already: X diag(lam) Z + G W, and what the borderline scales changed."""
        del B
        moved = XZ + columns @ ((new - old)[:, None] * Z[chosen] + change[:, None] * (columns.T @ W))
        return (moved + factor.apply(W)) @ Vt * tau

    F = be.branch(size < KNOWN, known, lambda B: be.times(X, B), B)
    drawn = Drawn(state._replace(A=there.A, B=B, lam=lam, tau=tau), F, there.rotation, stats._replace(steps=there.accepted))
    return resized(now, drawn, there.d) if plan.searches else drawn


def exchanged(now: Sweep, state: State, factor: Factor, ways: Ways) -> tuple[State, Array, Array]:
    """The state after some look-alikes have exchanged their scales; G = X diag(lam²) Xᵀ, `factor`'s own where none have; and what
    X diag(lam) Z grows by.
    """
    be, plan, data, noise = now.be, now.plan, now.data, now.noise
    xp, X, lam, Q = be.xp, data.X, state.lam, plan.Q
    assert data.alike is not None
    edge = xp.exp(now.tuning.limit) / xp.sqrt(data.norm2.mean())
    sets = exchange.visited(be, data.alike, lam, edge, noise["exchange.sets"])
    chosen, old = sets.features.reshape(-1), lam[sets.features]
    columns = be.columns(X, chosen)
    packed = factor.rotate(xp.concatenate([data.Y, columns], axis=1))
    rotation = plan.covariance(data.noise_scale).rotation(be, state.Sigma)
    s = (rotation.variances / plan.model.power) ** 0.5
    U, d, _ = conditionals.whiten(be, rotation.U.T @ state.A, state.tau, s)
    Yr, Xk = (packed[:, :Q] @ rotation.U / s) @ U, packed[:, Q:]
    wanted = [Yr.T[:, :, None], xp.broadcast_to(Xk, (d.shape[0], *Xk.shape))]
    products = Xk.T @ factor.solve(d, xp.concatenate(wanted, axis=2))
    systems = exchange.Systems(products[:, :, 1:], products[:, :, 0], d)
    who, u = (noise[f"exchange.{name}"][: old.shape[0]] for name in ("who", "u"))
    new = ways.exchange(be, systems, old, sets.size, exchange.Tries(edge, who, u))
    counts = (xp.arange(old.shape[1]) < sets.size[:, None]).reshape(-1)
    lam = be.put(lam, chosen, xp.where(counts, new.reshape(-1), xp.repeat(new[:, 0], new.shape[1])))
    step, change = (xp.where(counts, (x - y).reshape(-1), 0.0) for x, y in ((new, old), (new**2, old**2)))
    size = (d**2).max() * factor.trace()
    G = be.branch((new == old).all(), lambda G: G, lambda G: integrated.grown(be, X, lam, G, (columns, change), size), factor.G)
    return state._replace(lam=lam), G, columns @ (step[:, None] * noise["Z"][chosen])


def resized(now: Sweep, drawn: Drawn, d: Array) -> Drawn:
    """The same after `small_shares.resize`."""
    be, plan, data = now.be, now.plan, now.data
    xp, state, F = be.xp, drawn.state, drawn.F
    number = min(plan.rows, plan.P)
    if plan.wide:
        listed = small_shares.listed(be, small_shares.over_limit(be, state.lam, data.norm2, d), number)
    else:  # the data say something of too many features
        listed = small_shares.listed_as(be, now.tuning.clear, number)
    columns, B = be.columns(data.X, listed.chosen), state.B[listed.chosen] * listed.counts[:, None]
    small = F - columns @ B
    white = plan.model.power**0.5 * drawn.rotation.whiten(xp.eye(plan.Q))
    fit = small_shares.Fit((data.Y - F @ state.A.T) @ white, small @ (state.A.T @ white), columns, B @ (state.A.T @ white))
    x = small_shares.resize(small_shares.Sizing.of(be, state, listed, fit, plan.laws), now.noise)
    state, own = small_shares.moved(be, state, listed, x)
    return drawn._replace(state=state, F=xp.exp(x) * small + columns @ (own[:, None] * B))


def factored(now: Sweep, state: State, G: Array, *, many: bool = True) -> Factor:
    """G with room for ten times as much as the present d_j²: proposals need it, and there are `many` or none."""
    plan, data = now.plan, now.data
    root = plan.covariance(data.noise_scale).rotation(now.be, state.Sigma).root()
    top = plan.model.power * ((root.K @ state.A * state.tau) ** 2).sum()
    return now.be.factor(G, data.X, state.lam, 1e1 * top, many=many)


def target(now: Sweep, state: State, factor: Factor, Yrot: Array) -> integrated.Collapsed:
    """The density of Sigma and tau's common scale, given A and lam, B integrated out."""
    plan, data = now.plan, now.data
    law, power = plan.covariance(data.noise_scale), plan.model.power
    return integrated.Collapsed(now.be, factor, Yrot, state.A, data.rss0, data.m, power, state.tau, plan.laws.global_, law)


def looks(now: Sweep, state: State, G: Array, walk: Walk) -> tuple[State, Array]:
    """All looks of a sweep, one after the other."""
    noise = part(now.noise, "looks")

    def one(carry: tuple[State, Array], numbers: tuple[Array, ...]) -> tuple[tuple[State, Array], None]:
        return look(now, *carry, dict(zip(noise, numbers, strict=True)), walk), None

    return now.be.scan(one, (state, G), tuple(noise.values()))[0]


def look(now: Sweep, state: State, G: Array, noise: dict[str, Array], walk: Walk) -> tuple[State, Array]:
    """A, Sigma, tau's common scale and borderline features, B integrated out; its B is no longer this state's. G goes along."""
    be, plan, data = now.be, now.plan, now.data
    xp, X, lam, (Q, R) = be.xp, data.X, state.lam, (plan.Q, plan.R)
    factor = factored(now, state, G)
    border = inclusion.choose(be, plan, data, now.tuning, lam, noise["border.take"])
    chosen = border.features
    columns, old = be.columns(X, chosen), lam[chosen]
    packed = factor.rotate(xp.concatenate([data.Y, xp.zeros((data.Y.shape[0], 2 * R)), columns], axis=1))
    state = given_G(now, state, factor, packed[:, :Q], noise)
    there = walk(now, state, Systems(factor, packed, border, xp.zeros((chosen.shape[0], R))), noise)
    lam, size = be.put(lam, chosen, there.new), (there.d**2).max() * factor.trace()
    G = integrated.grown(be, X, lam, G, (columns, there.new**2 - old**2), size)
    Sigma = (there.rotation.U * there.rotation.variances) @ there.rotation.U.T
    return state._replace(A=there.A, lam=lam, tau=there.tau, Sigma=Sigma), G


def given_G(now: Sweep, state: State, factor: Factor, Yrot: Array, noise: dict[str, Array]) -> State:
    """F = XB without B, then A and Sigma given F, all in the factor's coordinates."""
    be, plan, data, power = now.be, now.plan, now.data, now.plan.model.power
    law = plan.covariance(data.noise_scale)
    rotation = law.rotation(be, state.Sigma)
    s, YU = (rotation.variances / power) ** 0.5, Yrot @ rotation.U
    U, d, Vt = conditionals.whiten(be, rotation.U.T @ state.A, state.tau, s)
    F = fitted(factor, d, (YU / s) @ U, noise["z"], noise["e"]) @ Vt * state.tau
    A = rotation.U @ conditionals.draw_A(be, F, YU, s, noise["A"])
    residual = Yrot - F @ A.T
    scatter = power * (residual.T @ residual + data.rss0)
    return state._replace(A=A, Sigma=law.draw(be, rotation, scatter, power * data.m, part(noise, "Sigma")))


def fitted(factor: Factor, d: Array, Yr: Array, z: Array, e: Array) -> Array:
    """f_j ~ N(0, G) given Yr_j = d_j f_j + N(0, I), for each j, rotated; z and e (m×R) are standard normal."""
    f = factor.root(z)
    W = factor.solve(d, (Yr - d * f - e).T[:, :, None])[:, :, 0].T
    return f + factor.apply_rotated(W) * d
