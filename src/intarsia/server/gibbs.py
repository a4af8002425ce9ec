"""Algorithm 1: the model, the state and one sweep (paper, §2.2).

`sweep(be, data, state, tuning, noise) -> (state, stats)` is a pure function: same noise in, same state out, on every backend.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import qr

from intarsia.errors import InputError
from intarsia.server import conditionals, moves, priors

Array = Any
HELD = 128  # at most so many features count as clear signals
BLOCK = 64  # features decided together in the single-site move
RELAX = 0.8  # how far a B that is drawn given all else lies on the other side of its mean
COSTLY = 2e7  # multiplications of factoring the system of B above which light sweeps share it
BORDERLINE = 16, 96  # features in doubt whose scales a full sweep draws with B integrated out: a sixth of all, within these
TARGET = 0.4  # acceptance rate the single-site proposals are tuned to
MANY = 20_000  # below so many features every block is visited in every sweep
GRAMS = 2**28  # bytes of the blocks' Gram matrices above which they are made when needed


@dataclass(frozen=True)
class Model:
    """What is fitted. `rank=None` means R = Q; `alpha` is the power of a fractional posterior (paper, §5)."""

    local: str = "row"
    rank: int | None = None
    law: str = "horseshoe"
    noise: str = "half-cauchy"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.local not in ("row", "element"):
            raise InputError(f"Local scales {self.local!r} are not known; expected 'row' or 'element'.")
        if self.law not in priors.LAWS:
            raise InputError(f"Local law {self.law!r} is not known; expected one of {', '.join(priors.LAWS)}.")
        if self.noise not in priors.NOISES:
            raise InputError(f"Noise prior {self.noise!r} is not known; expected one of {', '.join(priors.NOISES)}.")
        if not 0 < self.alpha <= 1:
            raise InputError(f"The power alpha is {self.alpha!r}; expected 0 < alpha <= 1 (1: the ordinary posterior).")


class Blocks(NamedTuple):
    """The features in blocks of columns: Xᵀ (blocks, k, m) and their Gram matrices (blocks, k, k), padded with zeros."""

    Xt: Array
    gram: Array  # None: made when needed


class Data(NamedTuple):
    """What the sweep needs of the sketches. When P < m the rows are rotated so that only P of them carry the design."""

    X: Array  # (min(m, P), P)
    Y: Array
    rss0: Array  # (Q) sum of squares of the rows no feature reaches
    m: float  # rows before the rotation
    norm2: Array  # (P) squared column lengths of X
    noise_scale: Array  # (Q)
    blocks: Blocks


class State(NamedTuple):
    A: Array
    B: Array
    lam: Array  # (P) row scales or (P, R) element scales
    tau: Array
    sigma2: Array


class Tuning(NamedTuple):
    """Step sizes and feature lists, adapted in the warm-up and fixed after it."""

    theta: Array  # rotation of the single-site proposals, shaped as lam
    held: Array  # (H) indices of the strongest features
    clear: Array  # (H) bool: which of them are clear signals, held while null rows follow the global scales
    doubt: Array  # (P) log weights with which features are taken for the borderline move
    log_steps: Array  # (Q+1) proposals of log sigma_q and of log tau, B integrated out
    log_shift: Array  # () or (R) proposals of (lam/c, c tau)
    log_compensate: Array  # ()
    log_stretch: Array  # ()
    log_global: Array  # ()


class Stats(NamedTuple):
    """What the moves accepted."""

    single: Array
    steps: Array
    shift: Array
    compensate: Array
    stretch: Array
    globals: Array


class Kind(NamedTuple):
    """Which moves a sweep makes besides drawing B, A, sigma2 and tau."""

    collapse: bool  # noise level, global scale and borderline features with B integrated out
    scales: bool  # the local scales; without, the factored system of B stays as it is
    sites: bool  # the non-centred moves


FULL, LIGHT, SHORT, PLAIN = Kind(True, True, True), Kind(False, True, True), Kind(False, False, False), Kind(False, True, False)


@dataclass(frozen=True)
class Plan:
    """The model with the sizes filled in: laws, noise to draw, number of candidates."""

    model: Model
    m: int
    P: int
    Q: int
    R: int
    rows: int
    borderline: int = 16
    candidates: int = 12
    mixing: bool = True
    block: int = BLOCK
    visits: int = 0  # blocks of features that the single-site move visits in a sweep; 0: all of them
    local: priors.Law = field(init=False)
    global_: priors.Law = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "local", priors.local_law(self.model.law, 1 if self.element else self.R))
        object.__setattr__(self, "global_", priors.HalfCauchy())

    @property
    def element(self) -> bool:
        return self.model.local == "element"

    def noise_law(self, scale: Array) -> priors.Law:
        return priors.noise_law(self.model.noise, scale)

    @property
    def hold(self) -> int:
        """Light sweeps that share local scales and so the factored system: three where factoring takes most of the time."""
        return 3 if self.rows**2 * self.P + 3 * self.rows**3 > COSTLY else 1

    @property
    def small(self) -> bool:
        """May a light sweep be made in two compiled steps? (Row scales, half-Cauchy laws, no shared factor.)"""
        laws = self.model.law == "horseshoe" and self.model.noise == "half-cauchy" and self.model.alpha * self.m > 1
        return laws and self.hold == 1 and self.mixing and not (self.element or self.visits) and min(self.R, self.P) > 1

    @property
    def every(self) -> int:
        """One sweep in so many is full."""
        return 1 if self.element or not self.mixing else 7

    def kind(self, sweep: int) -> Kind:
        """What sweep number `sweep` (from 0) is."""
        if not self.mixing:
            return PLAIN
        place = sweep % self.every
        return FULL if place == 0 else LIGHT if place % self.hold == 0 else SHORT

    def noise(self, kind: Kind = FULL) -> dict[str, tuple[str, tuple[int, ...], float]]:
        """Every random number of a sweep: name -> (kind, shape, parameter)."""
        P, Q, R, K, T = self.P, self.Q, self.R, self.borderline, self.candidates
        scales = (P, R) if self.element else (P,)
        spec: dict[str, tuple[str, tuple[int, ...], float]] = {
            "Z": ("normal", (P, R), 0.0),
            "E": ("normal", (self.rows, Q if self.element else R), 0.0),
            "A": ("normal", (Q, R), 0.0),
        }
        laws: dict[str, tuple[priors.Law, float, tuple[int, ...]]] = {
            "sigma": (self.noise_law(1.0), self.model.alpha * self.m, (Q,)),
            "tau": (self.global_, float(P), (R,)),
        }
        if kind.scales:
            laws["lam"] = self.local, 1.0 if self.element else float(R), scales
        for name, (law, k, shape) in laws.items():
            for part, (of, parameter) in law.noise(k).items():
                spec[f"{name}.{part}"] = (of, shape, parameter)
        if self.mixing:
            spec |= {"columns.g": ("gamma", (R,), moves.rescale_shape(Q)), "columns.u": ("uniform", (R,), 0.0)}
        if self.mixing and kind.scales:
            shift = (1, R) if self.element else (1,)
            spec |= {"shift.z": ("normal", shift, 0.0), "shift.u": ("uniform", shift, 0.0)}
        if self.mixing and kind.sites:
            spec |= {"single.z": ("normal", scales, 0.0), "single.u": ("uniform", scales, 0.0)}
            if self.visits:
                spec["single.start"] = ("uniform", (), 0.0)
            if not self.element:
                spec |= {
                    "stretch.v": ("normal", (Q, Q), 0.0),
                    "stretch.z": ("normal", (Q, 2), 0.0),
                    "stretch.u": ("uniform", (Q, 2), 0.0),
                    "compensate.z": ("normal", (3,), 0.0),
                    "compensate.u": ("uniform", (3,), 0.0),
                }
        if self.mixing and kind.collapse and not self.element:
            spec |= {
                "steps.z": ("normal", (Q + 1,), 0.0),
                "steps.u": ("uniform", (Q + 1,), 0.0),
                "border.take": ("uniform", (P,), 0.0),
                "border.value": ("uniform", (K, T), 0.0),
                "border.mix": ("uniform", (K, T), 0.0),
                "border.pick": ("uniform", (K,), 0.0),
                "global.z": ("normal", (), 0.0),
                "global.u": ("uniform", (), 0.0),
            }
        return spec


def plan(model: Model, X: Array, Y: Array, *, mixing: bool = True, borderline: int | None = None) -> Plan:
    """Check the sizes and fix what depends on them."""
    m, P = X.shape
    Q = Y.shape[1]
    R = Q if model.rank is None else model.rank
    if not 1 <= R <= Q:
        raise InputError(f"Rank {R} does not fit {Q} response(s); expected 1 ≤ rank ≤ {Q}.")
    block, rows = min(BLOCK, P), min(m, P)
    if borderline is None:
        borderline = int(np.clip(P // 6, *BORDERLINE))
    # A block costs about 80 µs and its two products, the long product m²P at 40 GFLOP/s: a fifteenth of that is for the blocks.
    visits = int(rows**2 * P / 6e11 / (8e-5 + block * rows * Q / 2e9))
    visits = 0 if visits >= -(-P // block) or P < MANY else max(1, visits)
    return Plan(model, m, P, Q, R, rows, borderline=min(borderline, P), mixing=mixing, block=block, visits=visits)


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


def prepare(be: Any, X: Any, Y: Any, *, block: int = BLOCK) -> Data:
    """Check X (m×P) and Y (m×Q), rotate to the small side, precompute what never changes."""
    X, Y = np.asarray(X, dtype=float), np.asarray(Y, dtype=float)
    check(X, Y)
    m, P = X.shape
    total = (Y**2).sum(axis=0)
    scale = np.sqrt(total / m)
    rss0 = np.zeros(Y.shape[1])
    if m > P:
        q, X = qr(X, mode="economic")
        Y = q.T @ Y
        rss0 = np.maximum(total - (Y**2).sum(axis=0), 0.0)
    k = min(block, P)
    nb = -(-P // k)
    columns = np.zeros((nb * k, X.shape[0]))
    columns[:P] = X.T
    X, Xt = columns[:P].T, columns.reshape(nb, k, -1)  # one copy of the design serves both
    gram = be.asarray(Xt @ Xt.transpose(0, 2, 1)) if nb * k * k * 8 <= GRAMS else None
    return Data(
        be.asarray(X),
        be.asarray(Y),
        be.asarray(rss0),
        float(m),
        be.asarray(np.einsum("mp,mp->p", X, X)),
        be.asarray(np.where(scale > 0, scale, 1.0)),
        Blocks(be.asarray(Xt), gram),
    )


def initial(plan: Plan, data: Data, rng: np.random.Generator) -> State:
    """An overdispersed start: scales from wide laws, noise from a tenth to all of the responses' variance."""
    P, Q, R = plan.P, plan.Q, plan.R
    shape = (P, R) if plan.element else (P,)
    return State(
        A=rng.standard_normal((Q, R)),
        B=np.zeros((P, R)),
        lam=np.exp(rng.normal(0.0, 1.0, shape)),
        tau=np.exp(rng.normal(np.log(0.1 / np.sqrt(P)), 1.5, R)),
        sigma2=np.asarray(data.noise_scale) ** 2 * np.exp(rng.uniform(np.log(0.1), 0.0, Q)),
    )


def initial_tuning(plan: Plan) -> Tuning:
    shape = (plan.P, plan.R) if plan.element else (plan.P,)
    return Tuning(
        theta=np.full(shape, np.pi / 2),
        held=np.arange(min(plan.P, HELD)),
        clear=np.zeros(min(plan.P, HELD), dtype=bool),
        doubt=np.zeros(plan.P),
        log_steps=np.log(np.r_[np.full(plan.Q, np.sqrt(2.0 / plan.m)), 0.3]),
        log_shift=np.full((plan.R,) if plan.element else (), np.log(2.4 / np.sqrt(plan.P / 2))),
        log_compensate=np.array(np.log(0.2)),
        log_stretch=np.array(np.log(0.2)),
        log_global=np.array(np.log(0.3)),
    )


def draw_noise(plan: Plan, rng: np.random.Generator, kind: Kind = FULL) -> dict[str, Array]:
    """One sweep's random numbers: all normal variates at once, all uniform ones at once, cut up."""
    out = {}
    total, cuts, gammas = _layout(plan, kind)
    drawn = {"normal": rng.standard_normal(total["normal"]), "uniform": 1.0 - rng.random(total["uniform"])}  # in (0, 1]
    for name, of, first, last, shape in cuts:
        out[name] = drawn[of][first:last].reshape(shape)
    for name, shape, parameter in gammas:
        out[name] = rng.standard_gamma(parameter, shape)
    return out


@lru_cache(maxsize=64)
def _layout(plan: Plan, kind: Kind) -> tuple[dict[str, int], list[Any], list[Any]]:
    """Where each of a sweep's random numbers lies among those drawn together."""
    total, cuts, gammas = {"normal": 0, "uniform": 0}, [], []
    for name, (of, shape, parameter) in plan.noise(kind).items():
        if of == "gamma":
            gammas.append((name, shape, parameter))
            continue
        first = total[of]
        total[of] += math.prod(shape)
        cuts.append((name, of, first, total[of], shape))
    return total, cuts, gammas


_PARTS = {
    name: [(part, f"{name}.{part}") for part in ("high", "low", "u", "v", "g", "z", "value", "mix", "pick")]
    for name in ("sigma", "lam", "tau", "border")
}


def part(noise: dict[str, Array], name: str) -> dict[str, Array]:
    return {short: noise[full] for short, full in _PARTS[name] if full in noise}


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
    """One draw of everything (paper, Algorithm 1, with the moves of `intarsia.server.moves`).

    `kind` says which moves are made (`Plan.kind` has the schedule); `factor` is `factored(…, state)` where it is known.
    """
    if kind == LIGHT and factor is None and plan.small and be.kernels is not None and data.blocks.gram is not None:
        done = _small(be, plan, data, state, tuning, noise)
        if done is not None:
            return done
    xp, alpha = be.xp, plan.model.alpha
    A, B, lam, tau, sigma2 = state
    X, Y = data.X, data.Y
    noise_law = plan.noise_law(data.noise_scale)
    no = xp.zeros(1)
    step_stats, shift, compensate, stretch, globals_ = no, no, no, no, no
    if plan.mixing and kind.collapse and not plan.element:
        B, F, lam, tau, sigma2, step_stats, globals_ = _draw_B(
            be, plan, data, A, lam, tau, sigma2, tuning, noise, noise_law
        )
        s = xp.sqrt(sigma2 / alpha)
    else:
        s = xp.sqrt(sigma2 / alpha)

        def draw(Y: Array, Z: Array, E: Array) -> Array:
            if plan.element:
                return conditionals.draw_B_element(be, X, Y, A, lam, tau, s, Z, E)
            return conditionals.draw_B_row(be, X, Y, A, lam, tau, s, Z, E, factor)

        B = conditionals.relaxed(draw, RELAX if plan.mixing else 0.0, B, Y, noise["Z"], noise["E"])
        F = be.times(X, B)
    A = conditionals.draw_A(be, F, Y, s, noise["A"])
    residual = Y - F @ A.T
    sigma2 = conditionals.draw_sigma2(
        be, sigma2, (residual**2).sum(axis=0) + data.rss0, data.m, alpha, noise_law, part(noise, "sigma")
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
    return State(A, B, lam, tau, sigma2), Stats(single, step_stats, shift, compensate, stretch, globals_)


def _small(
    be: Any, plan: Plan, data: Data, state: State, tuning: Tuning, noise: dict[str, Array]
) -> tuple[State, Stats] | None:
    """A light sweep in two compiled steps; None where the system of B is too stiff for them."""
    kernels, xp, alpha = be.kernels, be.xp, plan.model.alpha
    three = {name: tuple(noise[f"{name}.{part}"] for part in ("high", "low", "u")) for name in ("sigma", "tau", "lam")}
    possible, A, B, lam, tau, sigma2, residual, shift = kernels.light(
        data.X.T, data.Y, data.rss0, data.m, alpha, data.noise_scale, be.stiff, RELAX, *state,
        noise["Z"], noise["E"], noise["A"], three["sigma"], three["tau"], three["lam"],
        (noise["columns.g"], noise["columns.u"]), moves.rescale_shape(plan.Q),
        float(xp.exp(tuning.log_shift) * noise["shift.z"][0]), float(noise["shift.u"][0]),
    )  # fmt: skip
    if not possible:
        return None
    s = xp.sqrt(sigma2 / alpha)
    new, _ = moves.propose_lam(be, lam, tuning.theta, noise["single.z"], plan.local)
    strong, _ = be.compress(tuning.held, tuning.clear)
    A, B, lam, tau, single, compensate, stretch = kernels.finish(
        data.blocks.Xt, data.blocks.gram, data.Y, A, B, lam, tau, residual / s, s, new, -xp.log(noise["single.u"]), strong,
        noise["stretch.v"], xp.exp(tuning.log_stretch) * noise["stretch.z"], xp.log(noise["stretch.u"]),
        xp.exp(tuning.log_compensate) * noise["compensate.z"], xp.log(noise["compensate.u"]),
    )  # fmt: skip
    no = xp.zeros(1)
    stretch = stretch if plan.R == plan.Q else no
    return State(A, B, lam, tau, sigma2), Stats(single, no, xp.asarray(shift), compensate, stretch, no)


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
    noise_law: Any,
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """Row scales: noise level, global scale and borderline features with B integrated out, then B and XB."""
    xp, alpha = be.xp, plan.model.alpha
    X = data.X
    target, XZ, lam, tau, moved = _global_scale(be, plan, data, A, lam, tau, sigma2, tuning, noise, noise_law)
    factor, Yrot = target.factor, target.Yrot
    Z, K = noise["Z"], plan.borderline
    # K features without replacement, weighted by doubt (Gumbel keys): the choice depends on noise alone.
    chosen = be.largest(tuning.doubt - xp.log(-xp.log(noise["border.take"])), K)
    R = plan.R
    columns = X[:, chosen]
    packed = factor.rotate(xp.concatenate([noise["E"], XZ, columns], axis=1))
    E, XZr, Xk = packed[:, :R], packed[:, R : 2 * R], packed[:, 2 * R :]
    steps = xp.exp(tuning.log_steps) * noise["steps.z"]
    sigma2, tau, accepted = moves.collapsed_scales(be, target, sigma2, tau, steps, noise["steps.u"])
    s = xp.sqrt(sigma2 / alpha)
    U, d, Vt = conditionals.whiten(be, A, tau, s)
    Yr = (Yrot / s) @ U
    wanted = xp.stack([(Yr - d * XZr - E).T, Yr.T], axis=2)
    solved = factor.solve(d, xp.concatenate([wanted, xp.broadcast_to(Xk, (R, *Xk.shape))], axis=2))
    W, S = solved[:, :, 0], solved[:, :, 2:]  # (R, m) and (R, m, K)
    inverse = Xk.T @ S
    projected = solved[:, :, 1] @ Xk
    old = lam[chosen]
    new = moves.collapsed_local(be, inverse, projected, d, old, plan.local, part(noise, "border"))
    # The same systems after the borderline scales have moved (Woodbury, size K).
    lam = be.put(lam, chosen, new)
    W = W - d[:, None] * (S @ ((new - old)[:, None] * Z[chosen]).T[:, :, None])[:, :, 0]
    change = d[:, None] ** 2 * (new**2 - old**2)
    small = xp.linalg.solve(xp.eye(K) + change[:, :, None] * inverse, (change * (W @ Xk))[:, :, None])
    W = W - (S @ small)[:, :, 0]
    W = factor.unrotate(W.T) * d
    B = (Z + lam[:, None] * be.cross(X, W)) @ Vt * lam[:, None] * tau

    def known(B: Array) -> Array:
        """XB from products that are there already: X diag(lam) Z + G W, and what the borderline scales changed."""
        del B
        moved = XZ + columns @ ((new - old)[:, None] * Z[chosen] + (new**2 - old**2)[:, None] * (columns.T @ W))
        return (moved + factor.apply(W)) @ Vt * tau

    # Known to rounding times d²G; where that is too much, the product is made.
    F = be.branch((d**2).max() * factor.trace() < 1e5, known, lambda B: be.times(X, B), B)
    return B, F, lam, tau, sigma2, accepted, moved


def _global_scale(
    be: Any,
    plan: Plan,
    data: Data,
    A: Array,
    lam: Array,
    tau: Array,
    sigma2: Array,
    tuning: Tuning,
    noise: dict[str, Array],
    noise_law: Any,
) -> tuple[moves.Collapsed, Array, Array, Array, Array]:
    """tau → c tau with the clear signals' lam divided by c, B integrated out; returns the target that holds after it.

    With G_S the clear signals' part, c² G_N + G_S = c² (G + (c⁻² - 1) G_S): no second product over all features is needed.
    """
    xp = be.xp
    X, Y = data.X, data.Y
    Z = noise["Z"]
    G, XZ = be.weigh(X, lam, Z)
    x = xp.exp(tuning.log_global) * noise["global.z"]
    bound = 1e2 * whiten_top(be, A, tau, xp.sqrt(sigma2 / plan.model.alpha))
    held, is_clear = be.compress(tuning.held, tuning.clear)
    signal_lam = lam[held]
    new_lam = be.put(lam, held, xp.where(is_clear, signal_lam * xp.exp(-x), signal_lam))
    clear = X[:, held] * xp.where(is_clear, signal_lam, 0.0)
    part_G = be.gram(clear)
    log_sigma = xp.log(sigma2) / 2

    def collapsed(G: Array, lam: Array) -> moves.Collapsed:
        factor = be.factor(G, X, lam, bound)
        rotated = factor.rotate(Y)
        return moves.Collapsed(
            be, factor, rotated, A, data.rss0, data.m, plan.model.alpha, plan.global_, noise_law
        )

    old, new = collapsed(G, lam), collapsed(G + xp.expm1(-2 * x) * part_G, new_lam)

    def local(t: Array) -> Array:
        return xp.where(is_clear, plan.local.log_density(xp, t), 0.0).sum()

    ratio = be.difference(new, (log_sigma, xp.log(tau) + x), old, (log_sigma, xp.log(tau)))
    ratio = ratio + local(xp.log(signal_lam) - x) - local(xp.log(signal_lam))
    accept = xp.log(noise["global.u"]) < ratio
    chosen = be.choose(accept, new, old)
    XZ = XZ + xp.where(accept, xp.expm1(-x), 0.0) * (clear @ Z[held])
    lam, tau = xp.where(accept, new_lam, lam), xp.where(accept, tau * xp.exp(x), tau)
    return chosen, XZ, lam, tau, accept


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
