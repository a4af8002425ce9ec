"""One chain: where it starts, its sweeps and their tuning in the warm-up, the draws it keeps."""

import json
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import ConvergenceError
from intarsia.server.sampler.horseshoe import noise
from intarsia.server.sampler.horseshoe.sweep import Accepted, Problem, State, Sweep, Tuning, rotation, shrinkage, sweep
from intarsia.server.sampler.horseshoe.systems import System
from intarsia.server.sampler.missing import draw_missing, patterns
from intarsia.server.sampler.settings import Settings

Array = NDArray[Any]

SITES, STEPS = 0.4, 0.44  # acceptance rates that single-site proposals, and proposals of one number at a time, are tuned to
LEAST = 1e-3  # added to the variance of a feature's strength, so that every feature has its chance
WATCHED = 200  # entries of C that feed the live R̂
DUE = 20  # sweeps after which the weights of borderline features are renewed


class Chain:
    """A chain numbered `k`: sweeps, and the draws it keeps in arrays of its own. Which sweeps those are says `_sweep`."""

    def __init__(self, settings: Settings, k: int, shape: tuple[int, int, int]) -> None:
        """`shape` is (P, Q, R)."""
        (P, Q, R), draws = shape, settings.draws
        assert draws is not None
        assert settings.warmup is not None
        assert settings.thin is not None
        self.k, self.sweeps, self.warmup, self.thin = k, 0, settings.warmup, settings.thin
        self.rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(settings.seed, spawn_key=(k,))))
        self.C, self.Sigma, self.tau = np.empty((draws, P, Q)), np.empty((draws, Q, Q)), np.empty((draws, R))
        self.kappa = np.empty((draws, P))  # shrinkage factors

    def _sweep(self) -> None:
        """One sweep."""
        raise NotImplementedError

    def _draw(self) -> tuple[Array, Array, Array, Array | float]:
        """The present C, Sigma, tau and shrinkage factors."""
        raise NotImplementedError

    device = "cpu"

    def watched(self) -> Array:
        """(1, draw, number): some entries of C and the log noise levels."""
        kept = self.kept
        flat = self.C.reshape(len(self.C), -1)[:kept]
        some = flat[:, np.unique(np.linspace(0, self.C[0].size - 1, min(WATCHED, self.C[0].size)).astype(int))]
        with np.errstate(all="ignore"):
            return np.concatenate([some, np.log(np.diagonal(self.Sigma[:kept], axis1=1, axis2=2))], axis=1)[None]

    @property
    def kept(self) -> int:
        """Draws kept so far."""
        return max(0, self.sweeps - self.warmup) // self.thin

    def advance(self, sweeps: int) -> None:
        """Make so many sweeps."""
        with np.errstate(all="ignore"):
            for _ in range(sweeps):
                self._sweep()
                past = self.sweeps + 1 - self.warmup
                if past > 0 and past % self.thin == 0:
                    at = past // self.thin - 1
                    self.C[at], self.Sigma[at], self.tau[at], self.kappa[at] = self._draw()
                self.sweeps += 1  # last: another thread may look at what is kept

    def arrays(self) -> dict[str, Any]:
        """Everything a continuation needs."""
        kept = {name: getattr(self, name)[: self.kept] for name in ("C", "Sigma", "tau", "kappa")}
        words = np.frombuffer(json.dumps(self.rng.bit_generator.state).encode(), dtype=np.uint8)
        return kept | {"sweeps": np.array(self.sweeps), "generator": words}

    def restore(self, arrays: dict[str, Any]) -> None:
        self.sweeps = int(arrays["sweeps"])
        for name in ("C", "Sigma", "tau", "kappa"):
            getattr(self, name)[: self.kept] = arrays[name][: self.kept]
        self.rng.bit_generator.state = json.loads(arrays["generator"].tobytes().decode())


class Memory(NamedTuple):
    """Running mean and variance of each feature's strength over the warm-up: those that move are the borderline ones."""

    strength: Array
    spread: Array


class Missing:
    """The rows of a run whose responses are not all there."""

    def __init__(self, X: Array, Y: Array) -> None:
        self.X, self.Y, self.patterns = X, Y, patterns(Y)
        absent = np.isnan(Y)
        # Priors rest on the responses' root mean squares: those of what is there.
        self.level = np.where(absent, np.sqrt(np.nanmean(Y**2, axis=0)), Y)
        self._rotation = rotation(X)[0] if X.shape[0] > X.shape[1] else None  # as `sweep.prepare` does

    def fill(self, problem: Problem, C: Array, Sigma: Array, rng: np.random.Generator) -> Problem:
        """The problem with missing responses drawn given C and Sigma."""
        Y = draw_missing(self.Y, self.X @ C, Sigma, self.patterns, rng.standard_normal(self.Y.shape))
        if self._rotation is None:
            return problem.with_responses(Y, problem.rss0)
        reached = self._rotation.T @ Y
        rest = Y - self._rotation @ reached
        return problem.with_responses(reached, rest.T @ rest)


class GibbsChain(Chain):
    """A chain of `sweep.sweep`; missing responses are drawn before each sweep."""

    def __init__(self, problem: Problem, settings: Settings, k: int, missing: Missing | None = None) -> None:
        super().__init__(settings, k, problem.shape)
        self.problem, self.missing = problem, missing
        self.state, self.tuning = start(problem, self.rng), untuned(problem)
        self.memory = Memory(np.zeros(problem.shape[0]), np.zeros(problem.shape[0]))
        self._system: System | None = None

    def _sweep(self) -> None:
        problem, state, kind = self.problem, self.state, self.problem.kind(self.sweeps)
        if self.missing is not None:
            self.problem = problem = self.missing.fill(problem, state.C, state.Sigma, self.rng)
        if problem.costly and (self._system is None or self._system.lam is not state.lam):
            self._system = System(problem.X, state.lam)
        try:
            self.state, accepted = sweep(Sweep(problem, self.tuning, kind, self.rng, self._system), state)
            fine = math.isfinite(self.state.B.sum() + self.state.Sigma.sum())
        except np.linalg.LinAlgError:
            fine = False
        if not fine:
            raise ConvergenceError(
                f"Chain {self.k + 1}, sweep {self.sweeps + 1}: it left the range of double precision. Standardise the columns, "
                "or use noise='correlated'."
            )
        if self.sweeps < self.warmup and problem.mixing:
            self.tuning, self.memory = adapt(problem, self.tuning, self.memory, self.state, accepted, (self.sweeps, self.warmup))

    def _draw(self) -> tuple[Array, Array, Array, Array | float]:
        return self.state.C, self.state.Sigma, self.state.tau, shrinkage(self.problem, self.state)

    def arrays(self) -> dict[str, Any]:
        out = super().arrays()
        for part in ("state", "tuning", "memory"):
            out |= {f"{part}.{name}": value for name, value in getattr(self, part)._asdict().items()}
        return out

    def restore(self, arrays: dict[str, Any]) -> None:
        super().restore(arrays)
        for name, kind in (("state", State), ("tuning", Tuning), ("memory", Memory)):
            setattr(self, name, kind(**{field: arrays[f"{name}.{field}"] for field in kind._fields}))
        self._system = None


def start(problem: Problem, rng: np.random.Generator) -> State:
    """An overdispersed start: scales from wide laws, noise from a tenth to all of the responses' variance, uncorrelated."""
    P, Q, R = problem.shape
    return State(
        A=rng.standard_normal((Q, R)),
        B=np.zeros((P, R)),
        lam=np.exp(rng.normal(0.0, 1.0, problem.scales)),
        tau=np.exp(rng.normal(np.log(0.1 / np.sqrt(P)), 1.5, R)),
        Sigma=np.diag(problem.noise.scale**2 * np.exp(rng.uniform(np.log(0.1), 0.0, Q))),
    )


def untuned(problem: Problem) -> Tuning:
    """Before the warm-up."""
    return Tuning(np.full(problem.scales, np.pi / 2), np.zeros(problem.shape[0]), np.log([np.sqrt(8.0 / problem.rows), 0.3]))


def adapt(
    problem: Problem, tuning: Tuning, memory: Memory, state: State, accepted: Accepted, when: tuple[int, int]
) -> tuple[Tuning, Memory]:
    """Tuning and memory after a sweep, number `when[0]` (from 0) of a warm-up of `when[1]`.

    Nothing here runs after the warm-up: the kept draws come from one fixed, exactly invariant sweep.
    """
    number, warmup = when
    gain = 0.3 if number < warmup / 2 else 0.1
    if accepted.sites is not None:
        theta = np.clip(tuning.theta * np.exp(gain * (accepted.sites - SITES)), 0.01, np.pi / 2)
        tuning = tuning._replace(theta=theta)
    if accepted.scales is not None:
        rates = np.array([accepted.scales[:-1].mean(), accepted.scales[-1]])
        tuning = tuning._replace(log_steps=np.clip(tuning.log_steps + gain * (rates - STEPS), -7, 1))
    if problem.element or number < min(DUE, warmup // 4):
        return tuning, memory
    away = strength(problem, state) - memory.strength
    memory = Memory(memory.strength + 0.05 * away, 0.98 * memory.spread + 0.02 * np.minimum(away**2, 100.0))
    if number % DUE == 0 or number == warmup - 1:
        tuning = tuning._replace(doubt=np.log(memory.spread + LEAST))
    return tuning, memory


def strength(problem: Problem, state: State) -> Array:
    """(P) size of the coefficients in units of their noise."""
    U, D = noise.rotation(state.Sigma, problem.noise.correlated)
    white = state.B @ (U.T @ state.A / np.sqrt(D)[:, None]).T
    return np.asarray(np.sqrt(problem.norm2 * (white**2).sum(axis=1)))
