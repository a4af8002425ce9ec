"""The paper's prior where features carry privacy noise: the latent features are drawn, then the coefficients given them."""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ConvergenceError
from intarsia.server.sampler.errors_in_variables import LEARN, Latent, NoisyFeatures, small_side
from intarsia.server.sampler.errors_in_variables import draw_features as draw_latent_features
from intarsia.server.sampler.horseshoe import conditionals, noise
from intarsia.server.sampler.horseshoe.chain import Chain
from intarsia.server.sampler.horseshoe.conditionals import Given
from intarsia.server.sampler.horseshoe.model import Law, Model, global_scale, local_law
from intarsia.server.sampler.horseshoe.noise import NoisePrior
from intarsia.server.sampler.horseshoe.sweep import scale_numbers, uniform
from intarsia.server.sampler.settings import Settings

Array = NDArray[np.float64]


@dataclass
class State:
    """One chain's position."""

    X: Array
    A: Array
    B: Array
    lam: Array
    tau: Array
    Sigma: Array
    strength: float

    @property
    def C(self) -> Array:
        return self.B @ self.A.T


@dataclass(frozen=True)
class Setting:
    """What does not change along a chain."""

    Z: Array
    Y: Array
    d: Array
    T: Array
    local: Law
    tau: Law
    noise: NoisePrior
    row: bool
    rank: int


def sweep(s: Setting, state: State, rng: np.random.Generator, learn: bool = True) -> State:
    """One sweep; `learn` also draws ν (an eigenvalue problem, so not every time)."""
    return draw_coefficients(s, draw_features(s, state, rng, learn), rng)


def draw_features(s: Setting, state: State, rng: np.random.Generator, learn: bool = True) -> State:
    """The latent features given the coefficients."""
    root, _ = noise.root(state.Sigma, s.noise.correlated)
    now = Latent(state.X, state.strength)
    X, strength = draw_latent_features(NoisyFeatures(s.Z, s.d, s.T), now, s.Y, state.C, root, rng, learn)
    return replace(state, X=X, strength=strength)


def draw_coefficients(s: Setting, state: State, rng: np.random.Generator) -> State:
    """B, A, Sigma, λ, τ given the latent features, from XᵀX, XᵀY and YᵀY alone when P < m."""
    Xs, Ys, beyond = small_side(state.X, s.Y)
    (rows, Q), (m, P) = Ys.shape, state.X.shape
    U, D = noise.rotation(state.Sigma, s.noise.correlated)
    given = Given(U.T @ state.A, state.lam[:, 0] if s.row else state.lam, state.tau, np.sqrt(D))
    Yr, Z = Ys @ U, rng.standard_normal((P, s.rank))
    if s.row:
        B = conditionals.draw_B_row(Xs, Yr, given, Z, rng.standard_normal((rows, s.rank)))
    else:
        B = conditionals.draw_B_element(Xs, Yr, given, Z, rng.standard_normal((rows, Q)))
    F = Xs @ B
    A = U @ conditionals.draw_A(np.ascontiguousarray(F), Yr, given.s, rng.standard_normal((Q, s.rank)))
    residual = Ys - F @ A.T
    numbers = noise.numbers_for(s.noise, float(m), rng)
    Sigma = noise.draw_Sigma(state.Sigma, residual.T @ residual + beyond, float(m), s.noise, numbers)
    g, u = rng.standard_gamma(conditionals.rescale_shape(Q), s.rank), uniform(rng, (s.rank,))
    A, B, tau = conditionals.rescale_columns(A, np.ascontiguousarray(B), state.tau, s.tau, g, u)
    k = float(s.rank if s.row else 1)
    lam = conditionals.draw_lam(state.lam, B, tau, s.local, scale_numbers(rng, s.local, k, state.lam.shape))
    tau = conditionals.draw_tau(tau, B, lam, s.tau, scale_numbers(rng, s.tau, float(P), (s.rank,)))
    if not (np.isfinite(B).all() and np.isfinite(A).all() and np.isfinite(Sigma).all()):
        raise ConvergenceError("The sampler left the range of double precision. Check the public scales of the columns.")
    return replace(state, A=A, B=B, lam=lam, tau=tau, Sigma=Sigma)


def setting(Z: Any, Y: Any, d: Any, model: Model) -> Setting:
    """Check the input and fix what does not change."""
    Y = np.asarray(Y, float)
    Z, d, T = NoisyFeatures.of(Z, d, Y, model.power)
    Q = Y.shape[1]
    R = model.rank_of(Q)
    row = model.local == "row"
    scale = np.sqrt(np.square(Y).mean(axis=0))
    level, length = float(np.sqrt(np.square(Y).mean())), float(np.sqrt(np.square(Z).sum() / Z.shape[1]))
    tau = Law(size=global_scale(model.expected_features, Z.shape[1], R, level, length))
    return Setting(Z, Y, d, T, local_law(model.law, R if row else 1), tau, noise.noise_prior(model.noise, scale), row, R)


def start(s: Setting, rng: np.random.Generator) -> State:
    """An over-dispersed start: the features as their best linear guess, coefficients near zero."""
    (m, P), Q = s.Z.shape, s.Y.shape[1]
    X = NoisyFeatures(s.Z, s.d, s.T).best_guess()
    A = rng.standard_normal((Q, s.rank))
    lam = np.exp(rng.standard_normal((P, 1 if s.row else s.rank)))
    tau = np.exp(rng.standard_normal(s.rank) - 2)
    Sigma = np.diag(np.square(s.Y).mean(axis=0) * rng.uniform(0.2, 0.8, Q))
    return State(X, A, np.zeros((P, s.rank)), lam, tau, Sigma, float(m))


class LatentChain(Chain):
    """A chain of `sweep`."""

    def __init__(self, setting: Setting, settings: Settings, k: int) -> None:
        super().__init__(settings, k, (setting.Z.shape[1], setting.Y.shape[1], setting.rank))
        self.setting = setting
        self.state = start(setting, self.rng)

    def _sweep(self) -> None:
        self.state = sweep(self.setting, self.state, self.rng, learn=self.sweeps % LEARN == 0)

    def _draw(self) -> tuple[Array, Array, Array, Array | float]:
        return self.state.C, self.state.Sigma, self.state.tau, 0.0

    def arrays(self) -> dict[str, Any]:
        return super().arrays() | {f"state.{one.name}": np.asarray(getattr(self.state, one.name)) for one in fields(State)}

    def restore(self, arrays: dict[str, Any]) -> None:
        super().restore(arrays)
        values = {one.name: arrays[f"state.{one.name}"] for one in fields(State)}
        self.state = State(**values | {"strength": float(values["strength"])})
