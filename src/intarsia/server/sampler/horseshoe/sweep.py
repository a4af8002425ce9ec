"""Algorithm 1: one sweep (paper, §2.2), a step per line; what it works on, and which moves each sweep makes."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from intarsia.errors import ConvergenceError, InputError
from intarsia.server.sampler.horseshoe import collapsed, conditionals, noise
from intarsia.server.sampler.horseshoe.collapsed import CANDIDATES, SHAPES, Candidates, Place, Steps, Target
from intarsia.server.sampler.horseshoe.conditionals import Given, Numbers
from intarsia.server.sampler.horseshoe.model import Law, Model, gamma_shape, global_scale, local_law
from intarsia.server.sampler.horseshoe.noise import NoisePrior
from intarsia.server.sampler.horseshoe.systems import Changed, System

Array = NDArray[Any]

BLOCK = 64  # features decided together in the single-site move
BORDERLINE = 16, 96  # features whose scales are drawn with B integrated out: a sixth of all, within these
COSTLY = 2e7  # multiplications of factoring the system of B above which two sweeps share it
STRETCHES = 30  # steps of A with B integrated out in a full sweep, where sweeps share a factor
RELAX = 0.8  # how far a B that is drawn given all else lies on the other side of its mean


class State(NamedTuple):
    """One chain's position."""

    A: Array
    B: Array
    lam: Array  # (P, 1) row scales or (P, R) element scales
    tau: Array
    Sigma: Array  # (Q, Q) covariance of a row's noise

    @property
    def C(self) -> Array:
        return np.asarray(self.B @ self.A.T)


class Tuning(NamedTuple):
    """Step sizes and weights, adapted in the warm-up and fixed after it."""

    theta: Array  # rotation of the single-site proposals, shaped as lam
    doubt: Array  # (P) log weights with which features are taken for the borderline move
    log_steps: Array  # (2) proposals of a log noise variance and of tau's common log scale, B integrated out


class Kind(NamedTuple):
    """Which moves a sweep makes besides drawing B, A, Sigma and tau."""

    collapse: bool  # the moves with B integrated out
    scales: bool  # the local scales; without, the factored system of B stays as it is
    sites: bool  # every local scale on its own, its B/lam held


FULL, DEEP = Kind(True, True, True), Kind(True, True, False)
LIGHT, PLAIN, SHORT = Kind(False, True, True), Kind(False, True, False), Kind(False, False, False)


class Accepted(NamedTuple):
    """What the moves accepted."""

    sites: Array | None = None  # shaped as lam
    scales: Array | None = None  # (Q + 1) of `collapsed.move_scales`


@dataclass(frozen=True)
class Problem:
    """The model with the data it is fitted to. Where P < m the rows are rotated so that only P of them carry the design."""

    model: Model
    X: Array  # (min(m, P), P)
    Y: Array
    rss0: Array  # (Q, Q) scatter of the rows no feature reaches
    rows: float  # m, before the rotation: the noise is counted over these
    R: int
    norm2: Array  # (P) squared column lengths of X
    blocks: Array  # Xᵀ in blocks of features (blocks, k, m), padded with zeros
    grams: Array  # their Gram matrices (blocks, k, k)
    noise: NoisePrior
    local: Law
    tau: Law
    mixing: bool = True  # False: the plain Gibbs sampler, for comparison
    costly: bool = False  # does factoring B's system take most of a sweep?

    @property
    def element(self) -> bool:
        return self.model.local == "element"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(P, Q, R)"""
        return self.X.shape[1], self.Y.shape[1], self.R

    @property
    def scales(self) -> tuple[int, int]:
        """The shape of lam."""
        return self.X.shape[1], self.R if self.element else 1

    @property
    def every(self) -> int:
        """After so many sweeps the kinds come round again."""
        if not self.mixing:
            return 1
        return 2 if self.element or self.costly else 4

    def kind(self, sweep: int) -> Kind:
        """What sweep number `sweep` (from 0) is."""
        if not self.mixing:
            return PLAIN
        place = sweep % self.every
        if self.element:
            return PLAIN if place else LIGHT
        if self.costly:
            return FULL if place else SHORT  # the short one shares the factored system with the full one after it
        return (DEEP, PLAIN, LIGHT, PLAIN)[place]

    def with_responses(self, Y: Array, rss0: Array) -> "Problem":
        return replace(self, Y=Y, rss0=rss0)


def check(X: Any, Y: Any) -> None:
    """Refuse what cannot be sketches of the same subjects."""
    if X.ndim != 2 or Y.ndim != 2:
        raise InputError(f"X and Y must be matrices; got {X.ndim} and {Y.ndim} dimensions.")
    if X.shape[0] != Y.shape[0]:
        raise InputError(f"X has {X.shape[0]} rows and Y has {Y.shape[0]}; they must be sketches of the same subjects.")
    if X.shape[0] < 2 or X.shape[1] < 1 or Y.shape[1] < 1:
        raise InputError(f"X is {X.shape} and Y is {Y.shape}; expected at least 2 rows, 1 feature and 1 response.")
    if not (np.isfinite(X).all() and np.isfinite(Y).all()):
        raise InputError("X or Y holds NaN or infinite values; expected finite numbers.")


def rotation(X: Array) -> tuple[Array, Array]:
    """X = qr with orthonormal columns q (m×P) and a triangular r (P×P) without a negative diagonal, so that rows with the same
    Gram matrix become the same data.
    """
    q, r = qr(X, mode="economic")
    sign = np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return q * sign, sign[:, None] * r


def prepare(model: Model, X: Any, Y: Any, *, mixing: bool = True, degrees: int | None = None) -> Problem:
    """Check X (m×P) and Y (m×Q), rotate to the small side, compute what never changes.

    `degrees` is m where X and Y are a root of the Gram matrix of so many rows.
    """
    X, Y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
    check(X, Y)
    P, Q = X.shape[1], Y.shape[1]
    R = model.rank_of(Q)
    rows = len(X) if degrees is None else degrees
    scale = np.sqrt((Y**2).sum(axis=0) / rows)
    level, length = math.sqrt((Y**2).sum() / (rows * Q)), math.sqrt((X**2).sum() / P)
    rss0 = np.zeros((Q, Q))
    if len(X) > P:
        q, X = rotation(X)
        rest = Y - q @ (q.T @ Y)
        Y, rss0 = np.ascontiguousarray(q.T @ Y), rest.T @ rest
    k = min(BLOCK, P)
    columns = np.zeros((-(-P // k) * k, len(X)))
    columns[:P] = X.T
    blocks = columns.reshape(-1, k, len(X))
    m = len(X)
    return Problem(
        model, columns[:P].T, Y, rss0, float(rows), R, np.einsum("pm,pm->p", columns[:P], columns[:P]),
        blocks, blocks @ blocks.transpose(0, 2, 1),
        noise.noise_prior(model.noise, np.where(scale > 0, scale, 1.0)),
        local_law(model.law, 1 if model.local == "element" else R),
        Law(size=global_scale(model.expected_features, P, R, level, length)),
        mixing, mixing and model.local == "row" and m**2 * P + 3 * m**3 > COSTLY,
    )  # fmt: skip


class Sweep(NamedTuple):
    """What the steps of one sweep share. `system` is that of B at the present local scales, where it is known."""

    problem: Problem
    tuning: Tuning
    kind: Kind
    rng: np.random.Generator
    system: System | None = None


class Rotated(NamedTuple):
    """Responses and A in coordinates in which the noise is independent, and its standard deviations s = sigma/√power."""

    U: Array
    Y: Array
    A: Array
    s: Array


def sweep(now: Sweep, state: State) -> tuple[State, Accepted]:
    """One draw of everything (paper, Algorithm 1, with the moves of `collapsed` and `conditionals`)."""
    kind, mixing, accepted, changed = now.kind, now.problem.mixing, Accepted(), None
    if kind.collapse:
        state, scales, changed = without_B(now, state)
        accepted = accepted._replace(scales=scales)
    state, F, view = draw_B(now, state, changed)
    state = draw_A(now, state, F, view)
    state, residual = draw_Sigma(now, state, F)
    if mixing:
        state = rescale_columns(now, state)
    if kind.scales:
        state = draw_lam(now, state)
    state = draw_tau(now, state)
    if mixing and kind.sites:
        state, sites = single_sites(now, state, residual)
        accepted = accepted._replace(sites=sites)
    return state, accepted


def rotated(problem: Problem, state: State) -> Rotated:
    U, D = noise.rotation(state.Sigma, problem.noise.correlated)
    return Rotated(U, problem.Y @ U, U.T @ state.A, np.sqrt(D / problem.model.power))


def uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """In (0, 1]."""
    return 1.0 - rng.random(shape)


def scale_numbers(rng: np.random.Generator, law: Law, k: float, shape: tuple[int, ...]) -> Numbers:
    """What draws of scales need, each given k values."""
    of = gamma_shape(law, k)
    return rng.standard_gamma(of, shape) if of else np.zeros(shape), uniform(rng, shape), uniform(rng, shape)


def without_B(now: Sweep, state: State) -> tuple[State, Array, Changed]:
    """A, Sigma, tau's common scale and the local scales of some features, B integrated out.

    What was accepted, and the system of B at the new scales, come with them.
    """
    problem, tuning, rng, (P, Q, R) = now.problem, now.tuning, now.rng, now.problem.shape
    system = now.system or System(problem.X, state.lam)
    K, log_det = noise.root(state.Sigma, problem.noise.correlated)
    at, power = Place(state.A, state.tau, K, log_det), problem.model.power
    # Room for ten times as much as the present d_j²: proposals need it.
    factor = system.factor(10 * power * float(((K @ state.A * state.tau) ** 2).sum()))
    number = min(int(np.clip(P // 6, *BORDERLINE)), P)
    # Without replacement, weighted by doubt (Gumbel keys).
    chosen = np.argsort(tuning.doubt + rng.gumbel(size=P))[P - number :]
    chosen.sort()
    packed = factor.rotate(np.concatenate([problem.Y, problem.X[:, chosen]], axis=1))
    Y, X = np.ascontiguousarray(packed[:, :Q]), np.ascontiguousarray(packed[:, Q:])
    target = Target(factor.diag, factor.off, Y, problem.rss0, problem.rows, power, problem.noise, problem.tau)
    if problem.costly:
        sizes = np.resize(SHAPES, STRETCHES) * rng.standard_normal(STRETCHES)
        at = collapsed.stretch_A(
            target, at, Steps(rng.standard_normal((STRETCHES, R)), sizes, np.log(uniform(rng, (STRETCHES,))))
        )
    sizes = np.exp(tuning.log_steps)[[0] * Q + [1]] * rng.standard_normal(Q + 1)
    steps = Steps(rng.standard_normal((Q, Q)), sizes, np.log(uniform(rng, (Q + 1,))))
    at, accepted = collapsed.move_scales(target, at, steps)
    numbers = Candidates(rng.random((number, CANDIDATES)), rng.random((number, CANDIDATES)), rng.random(number))
    new = collapsed.borderline(target, at, X, state.lam[chosen, 0], problem.local, numbers)
    if np.isnan(new).any():
        raise ConvergenceError(
            "The linear system of the coefficients is not positive definite: a scale has left the range of "
            "double precision. Standardise the columns, or fit with noise='correlated'."
        )
    lam = state.lam.copy()
    lam[chosen, 0] = new
    Sigma = noise.from_root(at.K, problem.noise.correlated)
    return (
        state._replace(A=at.A, tau=at.tau, lam=lam, Sigma=Sigma),
        accepted,
        Changed(factor, X, new**2 - state.lam[chosen, 0] ** 2),
    )


def draw_B(now: Sweep, state: State, changed: Changed | None = None) -> tuple[State, Array, Rotated]:
    """B given all else: anew after the moves without it, else over-relaxed; and XB."""
    problem, rng, (P, Q, R) = now.problem, now.rng, now.problem.shape
    X, view = problem.X, rotated(problem, state)
    Z, E = rng.standard_normal((P, R)), rng.standard_normal((len(X), Q if problem.element else R))
    if problem.element:
        given = Given(view.A, state.lam, state.tau, view.s)

        def draw(Y: Array, Z: Array, E: Array) -> Array:
            return conditionals.draw_B_element(X, Y, given, Z, E)
    else:
        given = Given(view.A, state.lam[:, 0], state.tau, view.s)
        system = changed or now.system or System(X, state.lam)
        top = float(((view.A / view.s[:, None] * state.tau) ** 2).sum())
        known = system.factor(top) if isinstance(system, System) else system

        def draw(Y: Array, Z: Array, E: Array) -> Array:
            return conditionals.draw_B_row(X, Y, given, Z, E, known)

    back = RELAX if problem.mixing and not now.kind.collapse else 0.0
    B = np.ascontiguousarray(conditionals.relaxed(draw, back, state.B, view.Y, Z, E))
    return state._replace(B=B), X @ B, view


def draw_A(now: Sweep, state: State, F: Array, view: Rotated) -> State:
    Z = now.rng.standard_normal(state.A.shape)
    return state._replace(A=view.U @ conditionals.draw_A(np.ascontiguousarray(F), view.Y, view.s, Z))


def draw_Sigma(now: Sweep, state: State, F: Array) -> tuple[State, Array]:
    """Sigma given the residual, which is returned too."""
    problem, power = now.problem, now.problem.model.power
    residual = problem.Y - F @ state.A.T
    scatter, rows = power * (residual.T @ residual + problem.rss0), power * problem.rows
    numbers = noise.numbers_for(problem.noise, rows, now.rng)
    return state._replace(Sigma=noise.draw_Sigma(state.Sigma, scatter, rows, problem.noise, numbers)), residual


def rescale_columns(now: Sweep, state: State) -> State:
    _, Q, R = now.problem.shape
    g, u = now.rng.standard_gamma(conditionals.rescale_shape(Q), R), uniform(now.rng, (R,))
    A, B, tau = conditionals.rescale_columns(state.A, state.B, state.tau, now.problem.tau, g, u)
    return state._replace(A=A, B=B, tau=tau)


def draw_lam(now: Sweep, state: State) -> State:
    problem = now.problem
    numbers = scale_numbers(now.rng, problem.local, float(problem.R // state.lam.shape[1]), state.lam.shape)
    return state._replace(lam=conditionals.draw_lam(state.lam, state.B, state.tau, problem.local, numbers))


def draw_tau(now: Sweep, state: State) -> State:
    problem, (P, _, R) = now.problem, now.problem.shape
    numbers = scale_numbers(now.rng, problem.tau, float(P), (R,))
    return state._replace(tau=conditionals.draw_tau(state.tau, state.B, state.lam, problem.tau, numbers))


def single_sites(now: Sweep, state: State, residual: Array) -> tuple[State, Array]:
    """Every local scale on its own, with B/lam held; what was accepted."""
    problem, rng, lam = now.problem, now.rng, state.lam
    view = rotated(problem, state)
    effects, W = view.A / view.s[:, None], residual @ view.U / view.s
    new, owed = conditionals.propose_lam(lam.ravel(), now.tuning.theta.ravel(), rng.standard_normal(lam.size), problem.local)
    share = new.reshape(lam.shape) / lam
    slack = owed.reshape(lam.shape) - np.log(uniform(rng, lam.shape))
    accept = np.empty(lam.shape, dtype=bool)
    for c in range(lam.shape[1]):  # row scales: all of a row of B at once
        own = slice(c, c + 1) if problem.element else slice(None)
        delta = (share[:, c : c + 1] - 1) * (state.B[:, own] @ effects[:, own].T)
        accept[:, c], W = conditionals.single_site(problem.blocks, problem.grams, W, delta, np.ascontiguousarray(slack[:, c]))
    share = np.where(accept, share, 1.0)
    return state._replace(B=state.B * share, lam=lam * share), accept


def shrinkage(problem: Problem, state: State) -> Array:
    """(P) share of each feature's coefficients that the prior takes away, were it alone."""
    U, D = noise.rotation(state.Sigma, problem.noise.correlated)
    spread = (((U.T @ (state.A * state.tau)) ** 2).sum(axis=1) / D).sum() / problem.R
    return np.asarray(1 / (1 + problem.norm2 * spread * (state.lam**2).mean(axis=1)))
