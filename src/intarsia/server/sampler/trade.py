"""The share of the responses' variance that the many small coefficients take, traded against the noise, B integrated out.

With many more features than rows the small coefficients together look like noise, and the large ones hold the global scale where
it is: moving tau alone changes the prior of every large coefficient too, so that it moves in small steps. Here tau is multiplied
by e^x while the local scales of the features that are clearly *in* are divided by it: the large coefficients keep their prior,
and only the small ones grow or shrink. Every other proposal also takes from Sigma what the small coefficients gain, so that the
responses' variance stays what it is.

Which features are in depends on lam tau alone, which the move leaves as it is for them; a proposal that would carry another
feature over the limit is refused. So the way back starts from the same features, and the Metropolis ratio is that of the
densities.
"""

from typing import Any, NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend, Factor
from intarsia.server.sampler.covariance import Covariance, Root, Rotation
from intarsia.server.sampler.integrated import Collapsed, without_features
from intarsia.server.sampler.moves import Laws
from intarsia.server.sampler.priors import Noise
from intarsia.server.sampler.state import EXACT, Data, State

SIZES = (0.1, 0.1, 0.3, 0.3, 0.6, 0.6)  # standard deviations of the proposals of x; the second of each pair moves Sigma too
STRETCHES = (0.1, 0.2, 0.4) * 10  # standard deviations of the logarithms by which A is stretched
LIMIT = 3.0  # a feature is in when lam² tau² ‖x‖² passes this, in units of the responses' variance
LEAST = 1e-9  # share of the responses' variance below which no eigenvalue of Sigma is proposed


def needs() -> dict[str, Noise]:
    """The random numbers of one call."""
    return {"trade.z": ("normal", (len(SIZES),), 0.0), "trade.u": ("uniform", (len(SIZES),), 0.0)}


def most(rows: int, P: int) -> int:
    """Features that may be in; with more the move is not made."""
    return min(P, max(64, rows // 4))


class Inside(NamedTuple):
    """The features that are in: `chosen` indices (on a device a list of fixed length), those that count, whether it holds all."""

    chosen: Array
    counts: Array
    room: Array  # how far the largest scale of a feature that is out may grow, as a logarithm
    possible: Array


def inside(be: Backend, data: Data, state: State, law: Covariance) -> Inside:
    """Which features are in: by lam tau, in units that no step of this move changes."""
    xp, lam = be.xp, state.lam
    size = ((state.A * state.tau) ** 2 / law.scale[:, None] ** 2).sum() / law.scale.shape[0]
    strength = lam**2 * data.norm2 * size
    number = most(data.Y.shape[0], lam.shape[0])
    chosen = be.members(strength > LIMIT, number)
    counts = strength[chosen] > LIMIT
    out = xp.where(strength > LIMIT, 0.0, strength).max()
    room = 0.5 * (xp.log(LIMIT) - xp.log(xp.maximum(out, 1e-300)))
    return Inside(chosen, counts, room, (strength > LIMIT).sum() <= counts.sum())


class Target(NamedTuple):
    """The posterior density of x and Sigma, given A and the rest of lam, B integrated out."""

    be: Backend
    factor: Factor  # of G without the features that are in
    columns: Array  # (rows, number) X diag(lam) of those, rotated; nought where they do not count
    log_lam: Array
    counts: Array
    Yrot: Array
    data: Data
    A: Array
    tau: Array
    power: float
    laws: Laws
    covariance: Covariance

    def __call__(self, x: Array, at: Root) -> Array:
        """Log density with respect to dx dSigma, up to a constant."""
        xp = self.be.xp
        K, tau = at.K * self.power**0.5, self.tau * xp.exp(x)
        M, Yw = K @ self.A * tau, self.Yrot @ K.T
        U, d, _ = xp.linalg.svd(M, full_matrices=False)
        Yr = Yw @ U
        value = self.factor.log_marginal(d, Yr) + (Yw**2).sum() - (Yr**2).sum()
        wanted = xp.concatenate([self.columns, xp.zeros((self.columns.shape[0], 1))], axis=1)
        solved = self.factor.solve(d, _with_last(xp, wanted, Yr))
        S, b = self.columns.T @ solved[:, :, :-1], (self.columns.T @ solved[:, :, -1:])
        c = (d**2 * xp.exp(-2 * x))[:, None, None]
        small = xp.eye(S.shape[1]) + c * S
        value = value + xp.linalg.slogdet(small)[1].sum() - (c * b * xp.linalg.solve(small, b)).sum()
        value = -0.5 * value + without_features(xp, at, self.data.rss0, self.data.m, self.power)
        value = value + self.covariance.log_lebesgue(self.be, at) + self.laws.global_.log_density(xp, xp.log(tau)).sum()
        return value + xp.where(self.counts, self.laws.local.log_density(xp, self.log_lam - x), 0.0).sum()


def _with_last(xp: Any, columns: Array, Yr: Array) -> Array:
    """(R, rows, number + 1): the columns, and for each system its own response."""
    R = Yr.shape[1]
    return xp.concatenate([xp.broadcast_to(columns[:, :-1], (R, *columns[:, :-1].shape)), Yr.T[:, :, None]], axis=2)


class Traded(NamedTuple):
    """The state after the move, and X diag(lam²) Xᵀ (its lower triangle at least) and X diag(lam) Z at its scales."""

    state: State
    G: Array
    XZ: Array


def trade(
    be: Backend,
    data: Data,
    state: State,
    known: tuple[Array, Array],
    prior: tuple[Laws, Covariance, float],
    noise: dict[str, Array],
) -> Traded:
    """A walk along x and Sigma.

    `known` are X diag(lam²) Xᵀ and X diag(lam) Z, `prior` the scales' laws, Sigma's and the likelihood's power; `noise` has Z.
    """
    xp = be.xp
    laws, law, power = prior
    X, lam, Z = data.X, state.lam, noise["Z"]
    found = inside(be, data, state, law)
    own = lam[found.chosen]
    columns, rest = X[:, found.chosen] * xp.where(found.counts, own, 0.0), xp.where(found.counts, 0.0, own)
    root = law.rotation(be, state.Sigma).root()
    top = 1e2 * power * ((root.K @ state.A * state.tau) ** 2).sum()
    out = be.put(lam, found.chosen, rest)
    G, XZ = be.branch(
        top * xp.trace(known[0]) < EXACT,
        lambda known: (known[0] - columns @ columns.T, known[1] - columns @ Z[found.chosen]),
        lambda known: be.weigh(X, out, Z),
        known,
    )
    factor = be.factor(G, X, out, top, many=True)
    Q = data.Y.shape[1]
    packed = factor.rotate(xp.concatenate([data.Y, columns], axis=1))
    target = Target(
        be, factor, packed[:, Q:], xp.log(own), found.counts, packed[:, :Q], data, state.A, state.tau, power, laws, law
    )
    # What the small coefficients add to the responses' covariance, per row.
    gain = law.nearest(be, (state.A * state.tau**2) @ state.A.T) * (factor.trace() / data.m)
    least = LEAST * (law.scale**2).min()

    def one(carry: Any, numbers: Any) -> Any:
        x, Sigma, current = carry
        step, compensate, log_u = numbers
        there = x + step
        Sigma_there = Sigma - compensate * (xp.exp(2 * there) - xp.exp(2 * x)) * gain
        rotation = law.rotation(be, Sigma_there)
        proposed = target(there, rotation._replace(variances=xp.maximum(rotation.variances, least)).root())
        accept = (log_u < proposed - current) & found.possible & (there < found.room) & (rotation.variances.min() > least)
        return (xp.where(accept, there, x), xp.where(accept, Sigma_there, Sigma), xp.where(accept, proposed, current)), accept

    steps = xp.asarray(SIZES) * noise["trade.z"]
    compensate = 1.0 * (xp.arange(len(SIZES)) % 2)
    begin = xp.zeros(()), state.Sigma, target(xp.zeros(()), root)
    (x, Sigma, _), _ = be.scan(one, begin, (steps, compensate, xp.log(noise["trade.u"])))
    columns = columns * xp.exp(-x)
    own = xp.where(found.counts, own * xp.exp(-x), own)
    state = state._replace(lam=be.put(lam, found.chosen, own), tau=state.tau * xp.exp(x), Sigma=Sigma)
    return Traded(state, G + columns @ columns.T, XZ + columns @ Z[found.chosen])


def stretch_needs(Q: int) -> dict[str, Noise]:
    """The random numbers of one call of `stretch`."""
    number = len(STRETCHES)
    return {
        "stretch.v": ("normal", (number, Q), 0.0),
        "stretch.z": ("normal", (number,), 0.0),
        "stretch.u": ("uniform", (number,), 0.0),
    }


def outside(xp: Any, data: Data, state: State, scale: Array) -> Array:
    """What the features that are out add to a row's variance before tau and A come to it; `scale` (Q) is that of the noise's law.

    By lam and tau alone, so that the way back of a stretch has the same.
    """
    strength = state.lam**2 * data.norm2
    inside = strength * (state.tau**2).sum() > LIMIT * (scale**2).mean()
    return xp.where(inside, 0.0, strength).sum() / data.m


def stretch(target: Collapsed, data: Data, state: State, noise: dict[str, Array]) -> State:
    """The same trade for one direction v of the responses after the other: A is stretched along v, by which the small
    coefficients gain or lose there, and Sigma gives or takes as much. tau and the local scales stay.

    `target` is the density of Sigma given A, B integrated out.
    """
    be, law, xp, R = target.be, target.covariance, target.be.xp, state.A.shape[1]
    least = LEAST * (law.scale**2).min()
    small = outside(xp, data, state, law.scale)

    def density(A: Array, rotation: Rotation) -> Array:
        at = rotation._replace(variances=xp.maximum(rotation.variances, least)).root()
        value = target._replace(A=A)(at, xp.zeros(())) - law.log_density(be, at) + law.log_lebesgue(be, at)
        return value - 0.5 * (A**2).sum()

    def one(carry: Any, numbers: Any) -> Any:
        A, Sigma, current = carry
        v, step, log_u = numbers
        there = A + xp.outer(xp.expm1(step) * v, v @ A)
        gain = law.nearest(be, (there * state.tau**2) @ there.T - (A * state.tau**2) @ A.T) * small
        Sigma_there = Sigma - gain
        rotation = law.rotation(be, Sigma_there)
        proposed = density(there, rotation)
        accept = (log_u < proposed - current + R * step) & (rotation.variances.min() > least)
        return (xp.where(accept, there, A), xp.where(accept, Sigma_there, Sigma), xp.where(accept, proposed, current)), accept

    begin = state.A, state.Sigma, density(state.A, law.rotation(be, state.Sigma))
    steps = xp.asarray(STRETCHES) * noise["stretch.z"]
    directions = law.directions(be, noise["stretch.v"])
    (A, Sigma, _), _ = be.scan(one, begin, (directions, steps, xp.log(noise["stretch.u"])))
    return state._replace(A=A, Sigma=Sigma)
