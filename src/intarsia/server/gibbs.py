"""Algorithm 1: the model, the state and one sweep (paper, §2.2).

`sweep(be, data, state, tuning, noise) -> (state, stats)` is a pure function: same noise in, same state out, on every backend.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import qr

from intarsia.errors import InputError
from intarsia.server import conditionals, moves, priors

Array = Any
BLOCK = 64  # features decided together in the single-site move


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
    gram: Array


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
    signal: Array  # (P) bool: clear signals, whose scales compensate the global scale
    borderline: Array  # (K) indices of the features between in and out
    log_steps: Array  # (Q+1) proposals of log sigma_q and of log tau, B integrated out
    log_shift: Array  # () or (R) proposals of (lam/c, c tau)
    log_compensate: Array  # ()


class Stats(NamedTuple):
    single: Array
    steps: Array
    shift: Array
    compensate: Array
    inside: Array  # (P) is the feature's coefficient resolved by the data?
    strength: Array  # (P) size of the coefficients in units of their noise


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

    def noise(self) -> dict[str, tuple[str, tuple[int, ...], float]]:
        """Every random number of a sweep: name -> (kind, shape, parameter)."""
        P, Q, R, K, T = self.P, self.Q, self.R, self.borderline, self.candidates
        scales = (P, R) if self.element else (P,)
        spec: dict[str, tuple[str, tuple[int, ...], float]] = {
            "Z": ("normal", (P, R), 0.0),
            "E": ("normal", (self.rows, Q if self.element else R), 0.0),
            "A": ("normal", (Q, R), 0.0),
        }
        laws = {
            "sigma": (self.noise_law(1.0), self.model.alpha * self.m, (Q,)),
            "lam": (self.local, 1.0 if self.element else float(R), scales),
            "tau": (self.global_, float(P), (R,)),
        }
        for name, (law, k, shape) in laws.items():
            for part, (kind, parameter) in law.noise(k).items():
                spec[f"{name}.{part}"] = (kind, shape, parameter)
        if self.mixing:
            shift = (2, R) if self.element else (2,)
            spec |= {
                "columns.g": ("gamma", (R,), moves.rescale_shape(Q)),
                "columns.u": ("uniform", (R,), 0.0),
                "shift.z": ("normal", shift, 0.0),
                "shift.u": ("uniform", shift, 0.0),
                "single.z": ("normal", scales, 0.0),
                "single.u": ("uniform", scales, 0.0),
            }
            if not self.element:
                spec |= {
                    "steps.z": ("normal", (Q + 1,), 0.0),
                    "steps.u": ("uniform", (Q + 1,), 0.0),
                    "border.value": ("uniform", (K, T), 0.0),
                    "border.mix": ("uniform", (K, T), 0.0),
                    "border.pick": ("uniform", (K,), 0.0),
                    "compensate.z": ("normal", (3,), 0.0),
                    "compensate.u": ("uniform", (3,), 0.0),
                }
        return spec


def plan(model: Model, X: Array, Y: Array, *, mixing: bool = True, borderline: int = 16) -> Plan:
    """Check the sizes and fix what depends on them."""
    m, P = X.shape
    Q = Y.shape[1]
    R = Q if model.rank is None else model.rank
    if not 1 <= R <= Q:
        raise InputError(f"Rank {R} does not fit {Q} response(s); expected 1 ≤ rank ≤ {Q}.")
    return Plan(model, m, P, Q, R, min(m, P), borderline=min(borderline, P), mixing=mixing)


def prepare(be: Any, X: Any, Y: Any) -> Data:
    """Check X (m×P) and Y (m×Q), rotate to the small side, precompute what never changes."""
    X, Y = np.asarray(X, dtype=float), np.asarray(Y, dtype=float)
    if X.ndim != 2 or Y.ndim != 2:
        raise InputError(f"X and Y must be matrices; got {X.ndim} and {Y.ndim} dimensions.")
    if X.shape[0] != Y.shape[0]:
        raise InputError(f"X has {X.shape[0]} rows and Y has {Y.shape[0]}; they must be sketches of the same subjects.")
    if X.shape[0] < 2 or X.shape[1] < 1 or Y.shape[1] < 1:
        raise InputError(f"X is {X.shape} and Y is {Y.shape}; expected at least 2 rows, 1 feature and 1 response.")
    if not (np.isfinite(X).all() and np.isfinite(Y).all()):
        raise InputError("X or Y holds NaN or infinite values; expected finite numbers.")
    m, P = X.shape
    total = (Y**2).sum(axis=0)
    scale = np.sqrt(total / m)
    rss0 = np.zeros(Y.shape[1])
    if m > P:
        q, X, _ = qr(X, mode="economic", pivoting=False) + (None,)
        Y = q.T @ Y
        rss0 = np.maximum(total - (Y**2).sum(axis=0), 0.0)
    nb = -(-P // BLOCK)
    k = min(BLOCK, P)
    nb = -(-P // k)
    Xt = np.zeros((nb * k, X.shape[0]))
    Xt[:P] = X.T
    Xt = Xt.reshape(nb, k, -1)
    return Data(
        be.asarray(X),
        be.asarray(Y),
        be.asarray(rss0),
        float(m),
        be.asarray((X**2).sum(axis=0)),
        be.asarray(np.where(scale > 0, scale, 1.0)),
        Blocks(be.asarray(Xt), be.asarray(Xt @ Xt.transpose(0, 2, 1))),
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
        signal=np.zeros(plan.P, dtype=bool),
        borderline=np.arange(plan.borderline),
        log_steps=np.log(np.r_[np.full(plan.Q, np.sqrt(2.0 / plan.m)), 0.3]),
        log_shift=np.full((plan.R,) if plan.element else (), np.log(2.4 / np.sqrt(plan.P / 2))),
        log_compensate=np.array(np.log(0.2)),
    )


def draw_noise(plan: Plan, rng: np.random.Generator) -> dict[str, Array]:
    """One sweep's random numbers."""
    out = {}
    for name, (kind, shape, parameter) in plan.noise().items():
        if kind == "normal":
            out[name] = rng.standard_normal(shape)
        elif kind == "uniform":
            out[name] = 1.0 - rng.random(shape)  # in (0, 1]: its logarithm is finite
        else:
            out[name] = rng.standard_gamma(parameter, shape)
    return out


def part(noise: dict[str, Array], name: str) -> dict[str, Array]:
    return {key.split(".", 1)[1]: value for key, value in noise.items() if key.startswith(name + ".")}


def sweep(be: Any, plan: Plan, data: Data, state: State, tuning: Tuning, noise: dict[str, Array]) -> tuple[State, Stats]:
    """One draw of everything (paper, Algorithm 1, with the moves of `intarsia.server.moves`)."""
    xp, alpha = be.xp, plan.model.alpha
    A, _, lam, tau, sigma2 = state
    X, Y = data.X, data.Y
    noise_law = plan.noise_law(data.noise_scale)
    no = xp.zeros(1)
    step_stats, border, compensate = no, None, no
    if plan.element:
        s = xp.sqrt(sigma2 / alpha)
        B = conditionals.draw_B_element(be, X, Y, A, lam, tau, s, noise["Z"], noise["E"])
    else:
        B, lam, tau, sigma2, step_stats = _draw_B(be, plan, data, A, lam, tau, sigma2, tuning, noise, noise_law)
        s = xp.sqrt(sigma2 / alpha)
    F = X @ B
    A = conditionals.draw_A(be, F, Y, s, noise["A"])
    residual = Y - F @ A.T
    sigma2 = conditionals.draw_sigma2(
        be, sigma2, (residual**2).sum(axis=0) + data.rss0, data.m, alpha, noise_law, part(noise, "sigma")
    )
    sigma2 = xp.maximum(sigma2, 1e-24 * data.noise_scale**2)
    if plan.mixing:
        A, B, tau = moves.rescale_columns(be, A, B, tau, plan.global_, noise["columns.g"], noise["columns.u"])
    lam = conditionals.draw_lam(be, lam, B, tau, plan.local, part(noise, "lam"))
    tau = conditionals.draw_tau(be, tau, B, lam, plan.global_, part(noise, "tau"))
    tau = xp.clip(tau, 1e-15, 1e15)
    shift = no
    single = xp.zeros(lam.shape)
    if plan.mixing:
        for i in range(2):
            step = xp.exp(tuning.log_shift) * noise["shift.z"][i]
            lam, tau, shift = moves.shift_scales(be, lam, tau, plan.local, plan.global_, step, noise["shift.u"][i])
        s = xp.sqrt(sigma2 / alpha)
        if plan.element:
            B, lam, single = _single_element(be, plan, data, A, B, lam, residual / s, s, tuning, noise)
        else:
            B, lam, tau, single, compensate = _finish_row(
                be, plan, data, A, B, lam, tau, residual / s, s, tuning, noise
            )
    del border
    spread = xp.sqrt(((A * tau) ** 2 / sigma2[:, None]).sum(axis=0).max())
    rows = lam.max(axis=1) if plan.element else lam
    size = xp.sqrt(data.norm2 * ((B @ A.T) ** 2 / sigma2).sum(axis=1))
    stats = Stats(single, step_stats, shift, compensate, data.norm2 * (rows * spread) ** 2 > 1, size)
    return State(A, B, lam, tau, sigma2), stats


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
) -> tuple[Array, Array, Array, Array, Array]:
    """Row scales: noise level, global scale and borderline features with B integrated out, then B, from one factorisation."""
    xp, alpha = be.xp, plan.model.alpha
    X, Y = data.X, data.Y
    s = xp.sqrt(sigma2 / alpha)
    if not plan.mixing:
        B = conditionals.draw_B_row(be, X, Y, A, lam, tau, s, noise["Z"], noise["E"])
        return B, lam, tau, sigma2, xp.zeros(1)
    Xl = X * lam
    Z, K = noise["Z"], plan.borderline
    Xk = X[:, tuning.borderline]
    factor = be.factor(Xl, 10 * (whiten_top(be, A, tau, s)))
    packed = factor.rotate(xp.concatenate([Y, noise["E"], Xl @ Z, Xk], axis=1))
    Q, R = plan.Q, plan.R
    Yrot, E, XZ, Xk = packed[:, :Q], packed[:, Q : Q + R], packed[:, Q + R : Q + 2 * R], packed[:, Q + 2 * R :]
    sigma2, tau, accepted = moves.collapsed_scales(
        be,
        factor,
        Yrot,
        A,
        tau,
        sigma2,
        data.rss0,
        data.m,
        alpha,
        plan.global_,
        noise_law,
        xp.exp(tuning.log_steps) * noise["steps.z"],
        noise["steps.u"],
    )
    s = xp.sqrt(sigma2 / alpha)
    U, d, Vt = conditionals.whiten(be, A, tau, s)
    Yr = (Yrot / s) @ U
    wanted = xp.stack([(Yr - d * XZ - E).T, Yr.T], axis=2)
    solved = factor.solve(d, xp.concatenate([wanted, xp.broadcast_to(Xk, (R, *Xk.shape))], axis=2))
    W, S = solved[:, :, 0], solved[:, :, 2:]  # (R, m) and (R, m, K)
    inverse = xp.einsum("mk,rml->rkl", Xk, S)
    projected = xp.einsum("mk,rm->rk", Xk, solved[:, :, 1])
    old = lam[tuning.borderline]
    new = moves.collapsed_local(be, inverse, projected, d, old, plan.local, part(noise, "border"))
    # The same systems after the borderline scales have moved (Woodbury, size K).
    lam = be.put(lam, tuning.borderline, new)
    W = W - d[:, None] * xp.einsum("rmk,kr->rm", S, (new - old)[:, None] * Z[tuning.borderline])
    change = d[:, None] ** 2 * (new**2 - old**2)
    small = xp.linalg.solve(
        xp.eye(K) + change[:, :, None] * inverse, (change * xp.einsum("mk,rm->rk", Xk, W))[:, :, None]
    )
    W = W - xp.einsum("rmk,rk->rm", S, small[:, :, 0])
    Xl = X * lam
    B = (Z + Xl.T @ (factor.unrotate(W.T) * d)) @ Vt * lam[:, None] * tau
    return B, lam, tau, sigma2, accepted


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
) -> tuple[Array, Array, Array, Array, Array]:
    """Non-centred moves: every local scale on its own, then the global scale with the signals compensating."""
    xp = be.xp
    unit = B / lam[:, None]
    D = unit @ (A / s[:, None]).T
    new, log_prior = moves.propose_lam(be, lam, tuning.theta, noise["single.z"], plan.local)
    single, W = moves.single_site(be, data.blocks, W, (new - lam)[:, None] * D, log_prior, noise["single.u"])
    lam = xp.where(single, new, lam)
    fit = data.X @ xp.where(tuning.signal[:, None], 0.0, lam[:, None] * D)
    log_c, compensate = moves.compensated_scale(
        be,
        fit,
        W,
        lam,
        tau,
        tuning.signal,
        plan.local,
        plan.global_,
        xp.exp(tuning.log_compensate) * noise["compensate.z"],
        noise["compensate.u"],
    )
    c = xp.exp(log_c)
    B = unit * (lam * xp.where(tuning.signal, 1.0, c))[:, None]
    return B, xp.where(tuning.signal, lam / c, lam), tau * c, single, compensate


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
    accepted = []
    for r in range(plan.R):
        delta = ((new[:, r] - lam[:, r]) * unit[:, r])[:, None] * (A[:, r] / s)
        accept, W = moves.single_site(be, data.blocks, W, delta, log_prior[:, r], noise["single.u"][:, r])
        accepted.append(accept)
    single = xp.stack(accepted, axis=1)
    lam = xp.where(single, new, lam)
    return unit * lam, lam, single
