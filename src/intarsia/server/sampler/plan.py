"""What a sweep is given: the model, the sizes that follow from it, the schedule of moves, the state, the random numbers."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import qr

from intarsia.errors import InputError
from intarsia.server.sampler import moves, priors

Array = Any
HELD = 128  # at most so many features count as clear signals
BLOCK = 64  # features decided together in the single-site move
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


class Stats(NamedTuple):
    """What the moves accepted."""

    single: Array
    steps: Array
    shift: Array
    compensate: Array
    stretch: Array


class Kind(NamedTuple):
    """Which moves a sweep makes besides drawing B, A, sigma2 and tau."""

    collapse: bool  # noise level, global scale and borderline features with B integrated out
    scales: bool  # the local scales; without, the factored system of B stays as it is
    sites: bool  # the non-centred moves


FULL, DEEP = Kind(True, True, True), Kind(True, True, False)
LIGHT, PLAIN, SHORT = Kind(False, True, True), Kind(False, True, False), Kind(False, False, False)


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

    @cached_property
    def element(self) -> bool:
        return self.model.local == "element"

    def noise_law(self, scale: Array) -> priors.Law:
        return priors.noise_law(self.model.noise, scale)

    @cached_property
    def hold(self) -> int:
        """Light sweeps that share local scales and so the factored system: three where factoring takes most of the time."""
        return 3 if self.rows**2 * self.P + 3 * self.rows**3 > COSTLY else 1

    @cached_property
    def compiled(self) -> bool:
        """May what follows the draw of B be made in whole compiled steps? (Row scales, half-Cauchy laws, all blocks visited.)"""
        laws = self.model.law == "horseshoe" and self.model.noise == "half-cauchy" and self.model.alpha * self.m > 1
        return laws and self.mixing and not (self.element or self.visits) and min(self.R, self.P) > 1

    @cached_property
    def every(self) -> int:
        """One sweep in so many is full."""
        return 1 if not self.mixing else 2 if self.element else 4 if self.hold == 1 else 7

    def kind(self, sweep: int) -> Kind:
        """What sweep number `sweep` (from 0) is."""
        if not self.mixing:
            return PLAIN
        place = sweep % self.every
        if self.element:
            return PLAIN if place % 2 else FULL
        if self.hold == 1:  # where the system of B is cheap, so must be the rest
            return DEEP if place == 0 else PLAIN if place % 2 else LIGHT
        if place == 0:
            return FULL
        return LIGHT if place % self.hold == 0 else SHORT

    def layout(self, kind: Kind) -> tuple[dict[str, int], list[Any], list[Any]]:
        """Where each of a sweep's random numbers lies among those drawn together."""
        if kind not in self._layouts:
            total, cuts, gammas = {"normal": 0, "uniform": 0}, [], []
            for name, (of, shape, parameter) in self.noise(kind).items():
                if of == "gamma":
                    gammas.append((name, shape, parameter))
                    continue
                first = total[of]
                total[of] += math.prod(shape)
                cuts.append((name, of, first, total[of], shape))
            self._layouts[kind] = total, cuts, gammas
        return self._layouts[kind]

    @cached_property
    def _layouts(self) -> dict[Kind, tuple[dict[str, int], list[Any], list[Any]]]:
        return {}

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
    )


def draw_noise(plan: Plan, rng: np.random.Generator, kind: Kind = FULL) -> dict[str, Array]:
    """One sweep's random numbers: all normal variates at once, all uniform ones at once, cut up."""
    out = {}
    total, cuts, gammas = plan.layout(kind)
    drawn = {"normal": rng.standard_normal(total["normal"]), "uniform": 1.0 - rng.random(total["uniform"])}  # in (0, 1]
    for name, of, first, last, shape in cuts:
        piece = drawn[of][first:last]
        out[name] = piece if len(shape) == 1 else piece.reshape(shape)
    for name, shape, parameter in gammas:
        out[name] = rng.standard_gamma(parameter, shape)
    return out


_PARTS = {
    name: [(part, f"{name}.{part}") for part in ("low", "u", "v", "g", "z", "value", "mix", "pick")]
    for name in ("sigma", "lam", "tau", "border")
}


def part(noise: dict[str, Array], name: str) -> dict[str, Array]:
    return {short: noise[full] for short, full in _PARTS[name] if full in noise}
