"""The share of the responses' variance that the many small coefficients take, moved as a whole.

With many more features than rows the small coefficients together look like noise, and the large ones hold the global scale where
it is: moving tau alone changes the prior of every large coefficient too, so that it moves in small steps. Two moves go round
that.

`resize`, given B: tau and the small coefficients are multiplied by e^x, and the local scales of the large features are divided
by it, so that their coefficients stay. Each coefficient keeps its place within its prior, so that the fit of the small ones, the
law of tau and that of the large features' scales alone decide. Among many features the present state says which are large, and
those between small and large go along in part (`along`); else they are those of `Tuning.clear`.

`stretch`, with B integrated out: one direction of the responses after the other, A is stretched along it, by which the
coefficients of all features but the clearly needed ones (`Tuning.clear`, fixed after the warm-up) gain or lose there, and Sigma
gives or takes as much.
"""

from typing import Any, NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.covariance import Rotation
from intarsia.server.sampler.integrated import Collapsed
from intarsia.server.sampler.moves import Laws
from intarsia.server.sampler.priors import Noise
from intarsia.server.sampler.state import Data, State

SIZES = (0.03, 0.1, 0.3) * 4  # standard deviations of the proposals of x
STRETCHES = (0.1, 0.2, 0.4) * 10  # standard deviations of the logarithms by which A is stretched
LARGE, WIDTH = 1.2, 0.9  # lam ‖x‖ d of features between the small and the large ones, and half of that zone's width in logarithms
LEAST = 1e-9  # share of the responses' variance below which no eigenvalue of Sigma is proposed


def needs() -> dict[str, Noise]:
    """The random numbers of one call of `resize`."""
    return {"resize.z": ("normal", (len(SIZES),), 0.0), "resize.u": ("uniform", (len(SIZES),), 0.0)}


class Listed(NamedTuple):
    """The features that are large or next to it: their indices (on a device a list of fixed length), those that count, how far
    above the limit each is (None: so far that all of them stay), and what x stays below so that every other feature is small all
    along.
    """

    chosen: Array
    counts: Array
    over: Array | None
    room: Array

    def along(self, xp: Any, x: Array) -> tuple[Array, Array]:
        """By how much log lam tau of each grows at x, and the logarithm of the slope of `along`."""
        if self.over is None:
            return xp.zeros(self.chosen.shape), xp.zeros(self.chosen.shape)
        new, slope = along(xp, self.over, x)
        return new - self.over, slope


def listed(be: Backend, over: Array, number: int) -> Listed:
    """The `number` features that are furthest above the limit. Along x their order stays, so that the list does, too."""
    xp = be.xp
    chosen = be.largest(over, number)
    others = -WIDTH - be.put(over, chosen, -xp.inf).max()
    room = xp.where(others > 0, others, -xp.inf)  # where another one is too large already x stays nought
    return Listed(chosen, xp.ones(number, dtype=bool), over[chosen], room)


def listed_as(be: Backend, clear: Array, number: int) -> Listed:
    """Those marked in `clear` (P), at most `number`, as the large ones, and all others as small ones."""
    xp = be.xp
    chosen = be.members(clear, number)
    return Listed(chosen, clear[chosen], None, xp.asarray(xp.inf))


def over_limit(be: Backend, lam: Array, norm2: Array, d: Array) -> Array:
    """log lam ‖x‖ d less that of the limit: how much the data say of each feature, in the direction d_j they say most in."""
    xp = be.xp
    return xp.log(lam) + 0.5 * xp.log(xp.maximum(norm2, 1e-300)) + xp.log(xp.maximum(d.max(), 1e-300) / LARGE)


def clock(xp: Any, over: Array) -> tuple[Array, Array]:
    """A number that x is added to when a feature goes along with it, and the logarithm of its slope in `over`."""
    left = xp.maximum(WIDTH - over, 1e-12) / (2 * WIDTH)  # 1 where the zone begins, 0 where it ends
    inside = over > -WIDTH
    return xp.where(inside, -2 * WIDTH * xp.log(left), over + WIDTH), xp.where(inside, -xp.log(left), 0.0)


def along(xp: Any, over: Array, x: Array) -> tuple[Array, Array]:
    """Where features are at x that are at `over` for x = 0, and the logarithm of the slope of the one in the other.

    Small features go along with tau, by x; large ones stay; between them lies a zone in which they go the slower the larger
    they are: d over/dx falls from one to nought.
    """
    begin, slope = clock(xp, over)
    there = begin + x
    new = xp.where(there > 0, WIDTH - 2 * WIDTH * xp.exp(-xp.maximum(there, 0.0) / (2 * WIDTH)), there - WIDTH)
    stays = over >= WIDTH
    return xp.where(stays, over, new), xp.where(stays, 0.0, slope - clock(xp, new)[1])


class Fit(NamedTuple):
    """What `resize` must know of the fit, in coordinates in which the noise is standard: the residual, what the features that are
    not listed add to the fitted values, both (m, Q), the columns of the listed ones and their coefficients.
    """

    residual: Array
    small: Array
    X: Array
    C: Array


class Sizing(NamedTuple):
    """The posterior density of x, given the state at x = 0."""

    be: Backend
    against: Array  # inner products of the residual and what each part adds to the fitted values: all small ones, each listed one
    square: Array  # and of these parts
    log_tau: Array
    log_lam: Array  # of the listed features
    listed: Listed
    laws: Laws

    @classmethod
    def of(cls, be: Backend, state: State, listed: Listed, fit: Fit, laws: Laws) -> "Sizing":
        xp, (residual, small, X, C) = be.xp, fit
        if listed.over is None:
            X, C = X[:, :0], C[:0]  # all of them stay
        against = xp.concatenate([(residual * small).sum()[None], ((X.T @ residual) * C).sum(axis=1)])
        mixed = ((X.T @ small) * C).sum(axis=1)
        first = xp.concatenate([(small**2).sum()[None], mixed])
        square = xp.concatenate([first[None], xp.concatenate([mixed[:, None], (X.T @ X) * (C @ C.T)], axis=1)])
        return cls(be, against, square, xp.log(state.tau), xp.log(state.lam[listed.chosen]), listed, laws)

    def __call__(self, x: Array) -> Array:
        """Log density with respect to dx, up to a constant: the priors of B, and the volumes of what goes along by x, cancel."""
        xp, counts = self.be.xp, self.listed.counts
        own, slope = self.listed.along(xp, x)
        grown = xp.expm1(xp.concatenate([x[None], xp.where(counts, own, 0.0)[: len(self.against) - 1]]))
        value = grown @ self.against - 0.5 * grown @ (self.square @ grown)
        value = value + self.laws.global_.log_density(xp, self.log_tau + x).sum()
        return value + xp.where(counts, self.laws.local.log_density(xp, self.log_lam + own - x) + slope, 0.0).sum()


def resize(target: Sizing, noise: dict[str, Array]) -> Array:
    """x, after a walk from nought."""
    be, xp, room = target.be, target.be.xp, target.listed.room

    def one(carry: Any, numbers: Any) -> Any:
        x, current = carry
        step, log_u = numbers
        proposed = target(x + step)
        accept = (log_u < proposed - current) & (x + step < room)
        return (xp.where(accept, x + step, x), xp.where(accept, proposed, current)), accept

    zero = xp.zeros(())
    steps = xp.asarray(SIZES) * noise["resize.z"]
    return be.scan(one, (zero, target(zero)), (steps, xp.log(noise["resize.u"])))[0][0]


def moved(be: Backend, state: State, listed: Listed, x: Array) -> tuple[State, Array]:
    """The state at x, and by how much the listed features' rows of B are multiplied."""
    xp, chosen = be.xp, listed.chosen
    own = xp.where(listed.counts, listed.along(xp, x)[0], x)  # of the list, on a device, some features do not count
    B = be.put(state.B * xp.exp(x), chosen, state.B[chosen] * xp.exp(own)[:, None])
    lam = be.put(state.lam, chosen, state.lam[chosen] * xp.exp(own - x))
    return state._replace(B=B, lam=lam, tau=state.tau * xp.exp(x)), xp.exp(own)


def stretch_needs(Q: int) -> dict[str, Noise]:
    """The random numbers of one call of `stretch`."""
    number = len(STRETCHES)
    return {
        "stretch.v": ("normal", (number, Q), 0.0),
        "stretch.z": ("normal", (number,), 0.0),
        "stretch.u": ("uniform", (number,), 0.0),
    }


def outside(xp: Any, data: Data, lam: Array, clear: Array) -> Array:
    """What the features that are not clear add to a row's variance before tau and A come to it."""
    return xp.where(clear, 0.0, lam**2 * data.norm2).sum() / data.m


def stretch(target: Collapsed, data: Data, state: State, clear: Array, noise: dict[str, Array]) -> State:
    """A is stretched along one direction v of the responses after the other, and Sigma takes or gives what the small coefficients
    lose or gain there. tau and the local scales stay. `target` is the density of Sigma given A, B integrated out.
    """
    be, law, xp, R = target.be, target.covariance, target.be.xp, state.A.shape[1]
    least = LEAST * (law.scale**2).min()
    small = outside(xp, data, state.lam, clear)

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
