"""The paper's prior where features carry privacy noise: the latent features are drawn, then the coefficients given them."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ConvergenceError
from intarsia.server.sampler import errors_in_variables as ev
from intarsia.server.sampler.errors_in_variables import LEARN, Latent, NoisyFeatures
from intarsia.server.sampler.horseshoe import chain, noise, sweep
from intarsia.server.sampler.horseshoe.chain import Chain
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sweep import PLAIN, Problem, Sweep, prepare
from intarsia.server.sampler.settings import Settings

Array = NDArray[np.float64]


class State(NamedTuple):
    """One chain's position: the latent features, and the rest."""

    latent: Latent
    rest: sweep.State


@dataclass(frozen=True)
class Setting:
    """What does not change along a chain. Of `problem` the rows do: they are the latent ones."""

    noisy: NoisyFeatures
    Y: Array
    problem: Problem


def draw_features(s: Setting, state: State, rng: np.random.Generator, learn: bool = True) -> State:
    """The latent features given the coefficients."""
    root, _ = noise.root(state.rest.Sigma, s.problem.noise.correlated)
    return state._replace(latent=ev.draw_features(s.noisy, state.latent, s.Y, state.rest.C, root, rng, learn))


def draw_coefficients(s: Setting, state: State, rng: np.random.Generator) -> State:
    """B, A, Sigma, λ, τ given the latent features: a plain sweep."""
    X, Y, beyond = ev.small_side(state.latent.X, s.Y)
    problem = replace(s.problem, X=X, Y=Y, rss0=beyond)
    rest, _ = sweep.sweep(Sweep(problem, chain.untuned(problem), PLAIN, rng), state.rest)
    if not np.isfinite(rest.B.sum() + rest.A.sum() + rest.Sigma.sum()):
        raise ConvergenceError("The sampler left the range of double precision. Check the public scales of the columns.")
    return state._replace(rest=rest)


def setting(Z: Any, Y: Any, d: Any, model: Model) -> Setting:
    """Check the input and fix what does not change."""
    Y = np.asarray(Y, float)
    noisy = NoisyFeatures.of(Z, d, Y, model.power)
    return Setting(noisy, Y, prepare(model, noisy.Z, Y))


def start(s: Setting, rng: np.random.Generator) -> State:
    """An over-dispersed start: the features as their best linear guess, coefficients near zero."""
    return State(Latent(s.noisy.best_guess(), float(len(s.Y))), chain.start(s.problem, rng))


class LatentChain(Chain):
    """A chain that draws the latent features in every sweep."""

    def __init__(self, setting: Setting, settings: Settings, k: int) -> None:
        super().__init__(settings, k, setting.problem.shape)
        self.setting = setting
        self.state = start(setting, self.rng)

    def _sweep(self) -> None:
        state = draw_features(self.setting, self.state, self.rng, learn=self.sweeps % LEARN == 0)
        self.state = draw_coefficients(self.setting, state, self.rng)

    def _draw(self) -> tuple[Array, Array, Array, Array | float]:
        return self.state.rest.C, self.state.rest.Sigma, self.state.rest.tau, 0.0

    def arrays(self) -> dict[str, Any]:
        rest = {f"state.{name}": value for name, value in self.state.rest._asdict().items()}
        latent = self.state.latent
        return super().arrays() | rest | {"latent": latent.X, "strength": np.array(latent.strength)}

    def restore(self, arrays: dict[str, Any]) -> None:
        super().restore(arrays)
        rest = sweep.State(**{name: arrays[f"state.{name}"] for name in sweep.State._fields})
        self.state = State(Latent(arrays["latent"], float(arrays["strength"])), rest)
