"""The model with its sizes filled in, which moves each sweep makes, and the random numbers it asks for."""

import math
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from intarsia.server.sampler import exchange, priors, small_shares
from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.covariance import Covariance, covariance_law
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.moves import Laws, rescale_shape
from intarsia.server.sampler.sparse_start import SparseStart
from intarsia.server.sampler.state import BLOCK, Data, Tuning, has_gram

COSTLY = 2e7  # multiplications of factoring the system of B above which sweeps share it
BORDERLINE = 16, 96  # features in doubt whose scales a full sweep draws with B integrated out: a sixth of all, within these
# Places for them where features are scored (`inclusion`), so many at least and so many per row: with fewer than a few for each
# feature in doubt, one that came in by chance stays for long. And scales that each chooses among there.
MANY_BORDERLINE, BORDERLINE_PER_ROW, MANY_CANDIDATES = 192, 0.75, 24
AT_ONCE = 6  # and where the scales of all features of a block are drawn at once
REACH = 1.0  # of tau's law, in units of its scale, where the number of features that matter is expected because there are many
KNOWN = 1e5  # d²G up to which XB is taken from products that are there; it is known to rounding times d²G
HOLD = 2  # sweeps that share it, the full one among them
RESHAPES, WIDE_RESHAPES = 30, 120  # steps of A with B integrated out per full sweep, or where all are full
RELAX = 0.8  # how far a B that is drawn given all else lies on the other side of its mean
TARGET = 0.4  # acceptance rate the single-site proposals are tuned to
ACCEPT = 0.44  # and that of the proposals of one number at a time
MANY = 20_000  # below so many features every block is visited in every sweep; with row scales as long as their Gram matrices fit
SEARCHED = 1_000  # from so many features on chains start from a sparse solution, and full sweeps look for what it misses
WIDE_FROM = 2_000  # features from which on every sweep is a full one,
LOOKS = 1  # with so many rounds without B before it
PER_ROW = 5  # from so many features per row on (and SEARCHED in all), a number of features that matter is expected


class Kind(NamedTuple):
    """Which moves a sweep makes besides drawing B, A, Sigma and tau."""

    collapse: bool  # the noise's covariance, the global scale and borderline features with B integrated out
    scales: bool  # the local scales; without, the factored system of B stays as it is
    sites: bool  # every local scale on its own, non-centred
    score: bool = False  # how likely each feature is to be in, for the warm-up


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
    candidates: int = 12  # scales that each of them chooses among
    mixing: bool = True
    block: int = BLOCK
    visits: int = 0  # blocks of features that the single-site move visits per sweep; 0: all of them
    length: float = field(default=0.0, compare=False)  # root mean square of the lengths of X's columns
    expected: float | None = None  # features that are expected to matter; None: nothing is assumed
    tau_scale: float = 1.0  # tau_r ~ C⁺(0, tau_scale),
    tau_reach: float = math.inf  # whose tail ends about so many times its scale
    looks: int = 0  # rounds with B integrated out and not drawn (`without_b`) that a sweep begins with
    refreshes: bool = False  # are all scales of a block drawn at once (`moves.refresh`) rather than one after the other?
    lanes: int = 1  # equal parts of the features from each of which a block then has as many
    exchanges: int = 0  # sets of look-alikes (`Data.alike`), some of which a full sweep visits
    compiled: bool = False  # is a sweep made by the compiled twin of the readable one?

    @cached_property
    def element(self) -> bool:
        return self.model.local == "element"

    @cached_property
    def laws(self) -> Laws:
        local = priors.local_law(self.model.law, 1 if self.element else self.R)
        return Laws(local, priors.HalfCauchy(self.tau_scale, self.tau_reach))

    def covariance(self, scale: Array) -> Covariance:
        """The prior of Sigma; `scale` (Q) are the root mean squares of the responses."""
        return covariance_law(self.model.noise, scale, self.Q)

    def expecting(self, number: float | None, level: float) -> "Plan":
        """With the scale of tau's law at which so many features matter (Piironen & Vehtari, 2017); None: C⁺(0, 1).

        A feature with local scale lam keeps the share 1 − kappa = t/(1 + t), t = lam² tau² R ‖x‖²/σ², of its effect. Under
        lam ~ C⁺(0, 1) that share is a/(1 + a) on average, a = tau √R ‖x‖/σ: P a/(1 + a) features in all. σ is taken to be
        `level`. With many features per row the law's tail ends about there (`REACH`).
        """
        if number is None or not self.length > 0 or not level > 0:
            return replace(self, expected=None, tau_scale=1.0, tau_reach=math.inf)
        share = min(number / self.P, 0.5)
        scale = share / (1 - share) * level / (self.length * math.sqrt(self.R))
        return replace(self, expected=number, tau_scale=scale, tau_reach=REACH if many(self.m, self.P) else math.inf)

    @cached_property
    def searches(self) -> bool:
        """Are features scored, so that those which are likely to be in are looked at most (`inclusion`)?"""
        return self.mixing and not self.element and self.P >= SEARCHED

    @cached_property
    def wide(self) -> bool:
        """Is every sweep a full one? With so many features a short one would cost nearly as much."""
        return self.searches and self.P >= WIDE_FROM

    @cached_property
    def single(self) -> bool:
        """Is the design kept in single precision? Products over all features then take half the time and memory."""
        return self.compiled and self.wide

    @cached_property
    def hold(self) -> int:
        """Sweeps that share local scales and so the factored system: several where factoring takes most of the time."""
        costly = self.rows**2 * self.P + 3 * self.rows**3 > COSTLY
        return HOLD if (costly or self.searches) and not self.wide else 1

    @cached_property
    def reshapes(self) -> int:
        """How often A is stretched with B integrated out in a full sweep."""
        if self.wide:
            return WIDE_RESHAPES
        return RESHAPES if self.mixing and not self.element and self.hold > 1 else 0

    @cached_property
    def every(self) -> int:
        """One sweep in so many is full."""
        if not self.mixing or self.element:
            return 2 if self.mixing else 1
        return 1 if self.wide else self.hold if self.hold > 1 else 4

    def kind(self, sweep: int, warmup: int | None = None) -> Kind:
        """What sweep number `sweep` (from 0) is; after the `warmup` features are not scored."""
        if warmup is not None and sweep >= warmup:
            return self.kind(sweep)._replace(score=False)
        if not self.mixing:
            return PLAIN
        place = sweep % self.every
        if self.element:
            return PLAIN if place % 2 else FULL
        if place < self.hold - 1:
            return SHORT  # shares the factored system of B with the full sweep that ends the round
        if self.hold == 1 and not self.wide:  # where the system of B is cheap, so must be the rest
            return DEEP if place == 0 else PLAIN if place % 2 else LIGHT
        return FULL._replace(score=self.searches)

    def noise(self, kind: Kind = FULL) -> dict[str, priors.Noise]:
        """Every random number of a sweep: name -> (kind of variate, shape, parameter)."""
        if kind not in self._needed:
            self._needed[kind] = self._noise(kind)
        return self._needed[kind]

    @cached_property
    def _needed(self) -> dict[Kind, dict[str, priors.Noise]]:
        return {}

    def _noise(self, kind: Kind) -> dict[str, priors.Noise]:
        P, Q, R = self.P, self.Q, self.R
        scales = (P, R) if self.element else (P,)
        spec: dict[str, priors.Noise] = {
            "Z": ("normal", (P, R), 0.0),
            "E": ("normal", (self.rows, Q if self.element else R), 0.0),
            "A": ("normal", (Q, R), 0.0),
        }
        needs = self.covariance(np.ones(Q)).needs(self.model.power * self.m, Q)
        spec |= {f"Sigma.{name}": entry for name, entry in needs.items()}
        laws: dict[str, tuple[priors.Law, float, tuple[int, ...]]] = {"tau": (self.laws.global_, float(P), (R,))}
        if kind.scales:
            laws["lam"] = self.laws.local, 1.0 if self.element else float(R), scales
        for name, (law, k, shape) in laws.items():
            for part, (of, parameter) in law.noise(k).items():
                spec[f"{name}.{part}"] = (of, shape, parameter)
        if self.mixing:
            spec |= {"columns.g": ("gamma", (R,), rescale_shape(Q)), "columns.u": ("uniform", (R,), 0.0)}
        if self.mixing and kind.sites:
            spec["single.u"] = ("uniform", scales, 0.0)
            if self.refreshes:
                spec["single.value"] = ("uniform", (P, AT_ONCE), 0.0)
                spec |= {"single.xi": ("normal", (P, R), 0.0), "single.e": ("normal", (P, R), 0.0)}
            else:
                spec["single.z"] = ("normal", scales, 0.0)
            if self.visits:
                spec["single.start"] = ("uniform", (), 0.0)
        if self.mixing and kind.collapse and not self.element:
            walk = self._walk()
            look = walk | {name: spec[name] for name in spec if name == "A" or name.startswith("Sigma.")}
            look |= {"z": ("normal", (self.rows, R), 0.0), "e": ("normal", (self.rows, R), 0.0)}
            spec |= walk | {f"looks.{name}": (of, (self.looks, *shape), p) for name, (of, shape, p) in look.items() if self.looks}
            if self.searches:
                spec |= small_shares.needs()
            if self.exchanges:
                spec |= exchange.needs(self.exchanges)
        return spec

    def _walk(self) -> dict[str, priors.Noise]:
        """The random numbers of what moves with B integrated out: A, Sigma, tau's common scale, borderline features."""
        P, Q, K, T, N = self.P, self.Q, self.borderline, self.candidates, self.reshapes
        spec: dict[str, priors.Noise] = {
            "steps.v": ("normal", (Q, Q), 0.0),
            "steps.z": ("normal", (Q + 1,), 0.0),
            "steps.u": ("uniform", (Q + 1,), 0.0),
            "border.take": ("uniform", (P,), 0.0),
            "border.value": ("uniform", (K, T), 0.0),
            "border.mix": ("uniform", (K, T), 0.0),
            "border.pick": ("uniform", (K,), 0.0),
        }
        if N:
            spec |= {"shape.w": ("normal", (N, self.R), 0.0), "shape.z": ("normal", (N,), 0.0), "shape.u": ("uniform", (N,), 0.0)}
        return small_shares.stretch_needs(Q) | spec if self.searches else spec


def plan(
    model: Model,
    X: Array,
    Y: Array,
    *,
    mixing: bool = True,
    borderline: int | None = None,
    compiled: bool = True,
    degrees: int | None = None,
) -> Plan:
    """Check the sizes and fix what depends on them. `compiled`: on the CPU, where the compiled sweep knows the model; `degrees`:
    how many rows the noise is counted over, where X and Y are a root of those rows' Gram matrix.
    """
    P, Q = X.shape[1], Y.shape[1]
    m = X.shape[0] if degrees is None else degrees
    R = model.rank_of(Q)
    block, rows = min(BLOCK, P), min(X.shape[0], P)
    places = int(np.clip(P // 6, *BORDERLINE)) if borderline is None else borderline
    # A block costs about 80 µs and its two products, the long product m²P at 40 GFLOP/s: a fifteenth of that is for the blocks.
    visits = int(rows**2 * P / 6e11 / (8e-5 + block * rows * Q / 2e9))
    every_block = P < MANY or (model.local == "row" and has_gram(P, block))
    visits = 0 if visits >= -(-P // block) or every_block else max(1, visits)
    known = model.local == "row" and model.law == "horseshoe" and model.noise != "jeffreys" and mixing
    known = known and not visits and has_gram(P, block)
    made = Plan(
        model, m, P, Q, R, rows, borderline=min(places, P), mixing=mixing, block=block, visits=visits,
        length=math.sqrt(np.einsum("mp,mp->", X, X) / P),
        compiled=compiled and known and os.environ.get("INTARSIA_COMPILED", "1") != "0",
    )  # fmt: skip
    made = made.expecting(model.expected_features, math.sqrt(np.square(Y).sum() / (m * Q)))
    if made.searches:
        places = min(max(MANY_BORDERLINE, int(BORDERLINE_PER_ROW * rows)), P) if borderline is None else made.borderline
        made = replace(made, looks=LOOKS if made.wide else 0, borderline=places, candidates=MANY_CANDIDATES)
    return made


def starts_sparse(model: Model, P: int) -> bool:
    """Do chains start from a sparse solution?"""
    return model.local == "row" and P >= SEARCHED


def with_start(plan: Plan, found: SparseStart) -> Plan:
    """The plan of a run whose chains start from a sparse solution: what it leaves tells the noise's size better than Y."""
    number = expected_features(plan.model, plan.m, plan.P, found)
    plan = plan.expecting(number, math.sqrt(np.trace(found.residual) / plan.Q))
    return replace(plan, exchanges=0 if found.alike is None or not plan.searches else len(found.alike.size))


def expected_features(model: Model, m: int, P: int, found: SparseStart | None) -> float | None:
    """How many features are expected to matter; None: nothing is assumed.

    Unless the user says: with many features per row the small coefficients together are hard to tell from noise, and a law of
    tau that expects nothing lets them take a third of it. Then m/(2 log P) are expected, about as many as m rows can tell from
    the best of P features that do not matter. It is the law of the small coefficients: each feature that the data ask for has a
    scale of its own. Where no feature stands out, signals may be many and small, and nothing is assumed.
    """
    if model.expected_features is None and many(m, P) and found is not None and found.features.size:
        return m / (2 * math.log(P))
    return model.expected_features


def many(m: int, P: int) -> bool:
    """Are there many features per row?"""
    return max(SEARCHED, PER_ROW * m) <= P


class Sweep(NamedTuple):
    """What the steps of one sweep share."""

    be: Backend
    plan: Plan
    data: Data
    tuning: Tuning
    noise: dict[str, Array]
    kind: Kind = FULL  # which moves are made; `Plan.kind` has the schedule
    factor: Any = None  # of B's system, where it is known


def draw_noise(plan: Plan, rng: np.random.Generator, kind: Kind = FULL) -> dict[str, Array]:
    """One sweep's random numbers: all normal variates at once, all uniform ones at once, cut up."""
    spec = plan.noise(kind)
    sizes = {name: math.prod(shape) for name, (_, shape, _) in spec.items()}
    total = {of: sum(sizes[name] for name in spec if spec[name][0] == of) for of in ("normal", "uniform")}
    drawn = {"normal": rng.standard_normal(total["normal"]), "uniform": 1.0 - rng.random(total["uniform"])}  # in (0, 1]
    at = {"normal": 0, "uniform": 0}
    out: dict[str, Array] = {}
    for name, (of, shape, parameter) in spec.items():
        if of == "gamma":
            out[name] = rng.standard_gamma(parameter, shape)
            continue
        out[name] = drawn[of][at[of] : at[of] + sizes[name]].reshape(shape)
        at[of] += sizes[name]
    return out


def part(noise: dict[str, Array], name: str) -> dict[str, Array]:
    """The numbers called `name.…`."""
    return {full[len(name) + 1 :]: value for full, value in noise.items() if full.startswith(f"{name}.")}
