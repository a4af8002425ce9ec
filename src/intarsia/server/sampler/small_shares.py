"""The share of the responses' variance that the many small coefficients take, moved as a whole.

With many more features than rows the small coefficients together look like noise, and the large ones hold the global scale where
it is: moving tau alone changes the prior of every large coefficient too, so that it moves in small steps. Two moves go round
that. Both leave the coefficients of the features that are clearly needed (`Tuning.clear`, fixed after the warm-up) as they are.

`resize`, given B: tau and the small coefficients are multiplied by e^x, and the local scales of the clear features are divided
by it. Each coefficient keeps its place within its prior, so that the fit of the small ones, the law of tau and that of the clear
features' scales alone decide.

`stretch`, with B integrated out: one direction of the responses after the other, A is stretched along it, by which the small
coefficients gain or lose there, and Sigma gives or takes as much.
"""

from typing import Any, NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.covariance import Rotation
from intarsia.server.sampler.integrated import Collapsed
from intarsia.server.sampler.moves import Laws
from intarsia.server.sampler.priors import Noise
from intarsia.server.sampler.state import Data, State

SIZES = (0.05, 0.1, 0.2) * 4  # standard deviations of the proposals of x
STRETCHES = (0.1, 0.2, 0.4) * 10  # standard deviations of the logarithms by which A is stretched
LEAST = 1e-9  # share of the responses' variance below which no eigenvalue of Sigma is proposed


def needs() -> dict[str, Noise]:
    """The random numbers of one call of `resize`."""
    return {"resize.z": ("normal", (len(SIZES),), 0.0), "resize.u": ("uniform", (len(SIZES),), 0.0)}


class Fit(NamedTuple):
    """What `resize` must know of the fit, in coordinates in which the noise is standard: the residual and what the features that
    are not clear add to the fitted values, both (m, Q).
    """

    residual: Array
    small: Array


class Clear(NamedTuple):
    """The features that are clearly needed: their indices (on a device a list of fixed length), and those that count."""

    chosen: Array
    counts: Array


def listed(be: Backend, clear: Array, number: int) -> Clear:
    """The features marked in `clear` (P), which are at most `number`."""
    chosen = be.members(clear, number)
    return Clear(chosen, clear[chosen])


class Sizing(NamedTuple):
    """The posterior density of x, given the state at x = 0."""

    be: Backend
    against: Array  # inner product of the residual and what the small coefficients add to the fitted values
    square: Array  # squared length of that
    log_tau: Array
    log_lam: Array  # of the clear features
    counts: Array
    laws: Laws

    def __call__(self, x: Array) -> Array:
        """Log density with respect to dx, up to a constant: volumes and the priors of B cancel."""
        xp, grown = self.be.xp, self.be.xp.expm1(x)
        value = grown * self.against - 0.5 * grown**2 * self.square
        value = value + self.laws.global_.log_density(xp, self.log_tau + x).sum()
        return value + xp.where(self.counts, self.laws.local.log_density(xp, self.log_lam - x), 0.0).sum()


def resize(be: Backend, state: State, clear: Clear, fit: Fit, laws: Laws, noise: dict[str, Array]) -> tuple[State, Array]:
    """The state after a walk along x, and e^x."""
    xp, (chosen, counts) = be.xp, clear
    inner = (fit.residual * fit.small).sum(), (fit.small**2).sum()
    target = Sizing(be, *inner, xp.log(state.tau), xp.log(state.lam[chosen]), counts, laws)

    def one(carry: Any, numbers: Any) -> Any:
        x, current = carry
        step, log_u = numbers
        proposed = target(x + step)
        accept = log_u < proposed - current
        return (xp.where(accept, x + step, x), xp.where(accept, proposed, current)), accept

    zero = xp.zeros(())
    steps = xp.asarray(SIZES) * noise["resize.z"]
    (x, _), _ = be.scan(one, (zero, target(zero)), (steps, xp.log(noise["resize.u"])))
    return moved(be, state, clear, x), xp.exp(x)


def moved(be: Backend, state: State, clear: Clear, x: Array) -> State:
    """The state at x."""
    xp, (chosen, counts) = be.xp, clear
    factor = xp.exp(x)
    own = xp.where(counts, 1.0, factor)  # of the listed features, which may be more than the clear ones
    B = be.put(state.B * factor, chosen, state.B[chosen] * own[:, None])
    lam = be.put(state.lam, chosen, state.lam[chosen] * (own / factor))
    return state._replace(B=B, lam=lam, tau=state.tau * factor)


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
