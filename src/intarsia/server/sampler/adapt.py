"""Tuning in the warm-up: step sizes towards their acceptance rates, and which features are borderline.

Nothing here runs after the warm-up: the kept draws come from one fixed, exactly invariant sweep.
"""

from typing import Any, NamedTuple

import numpy as np

from intarsia.server.sampler.backends.protocol import Backend
from intarsia.server.sampler.schedule import ACCEPT, TARGET, Kind, Plan
from intarsia.server.sampler.state import Stats, Tuning

LEAST = 1e-3  # added to the variance of a feature's strength, so that every feature has its chance
SHARE = 0.8  # of the borderline move's places that may be filled on average,
EVERYBODY = 0.2  # and of these with features taken whatever their scores say
SEEN = 0.1  # least probability with which a feature that is in is taken
OFTEN = 6.0  # at most: factor on the probability of the other state, which says how often a feature is taken
LEAST_WEIGHT = 0.25  # of a feature that is clearly in or out, where places are short; 1 for one that is in half of the time
HALVINGS = 30  # of the interval in which the factor is looked for that fills the places
CLEAR = 0.95  # probability to be in above which a feature counts as clearly needed
SCORES = 100  # sweeps after which older scores fade


class Memory(NamedTuple):
    """Running averages over the warm-up, one per feature: of its strength, or where there are many, how likely it is to be in."""

    strength: Any  # mean
    spread: Any  # variance
    likely: Any
    scored: Any  # sweeps that `likely` is over


def start(plan: Plan) -> Memory:
    """Before the warm-up."""
    zero, none = np.zeros(plan.P), np.zeros(0)
    return Memory(none, none, zero, np.zeros(())) if plan.searches else Memory(zero, zero, none, np.zeros(()))


class Seen(NamedTuple):
    """What a warm-up sweep showed: its number (from 0), of how many, its kind, what was accepted, the features' strength."""

    sweep: Any
    warmup: int
    kind: Kind
    stats: Stats
    strength: Any


def adapt(be: Backend, plan: Plan, tuning: Tuning, memory: Memory, seen: Seen) -> tuple[Tuning, Memory]:
    """Tuning and memory after a warm-up sweep."""
    sweep, warmup, kind, stats, strength = seen
    if not plan.mixing:
        return tuning, memory
    xp = be.xp
    gain = xp.where(sweep < warmup / 2, 0.3, 0.1)
    if kind.sites:
        theta = xp.clip(tuning.theta * xp.exp(gain * (stats.single - TARGET)), 0.01, xp.pi / 2)
        tuning = tuning._replace(theta=theta)
    if plan.element:
        return tuning, memory

    if kind.collapse:
        accepted = xp.stack([xp.mean(1.0 * stats.steps[:-1]), 1.0 * stats.steps[-1]])
        tuning = tuning._replace(log_steps=xp.clip(tuning.log_steps + gain * (accepted - ACCEPT), -7, 1))
    begun = sweep >= min(20, warmup // 4)
    away = strength - memory.strength
    memory = memory._replace(
        strength=xp.where(begun, memory.strength + 0.05 * away, memory.strength),
        spread=xp.where(begun, 0.98 * memory.spread + 0.02 * xp.minimum(away**2, 100.0), memory.spread),
    )
    if kind.score:
        # Later sweeps, nearer to the posterior, count the more.
        scored = memory.scored + 1
        number = xp.minimum((scored + 1) / 2, SCORES)
        likely = memory.likely + (stats.scored.likely - memory.likely) / number
        memory = memory._replace(likely=likely, scored=scored)
        tuning = tuning._replace(limit=tuning.limit + (stats.scored.limit - tuning.limit) / number)

    likely = be.over_chains(memory.likely)  # what one chain has seen helps the others to look

    def weights(tuning: Tuning) -> Tuning:
        if plan.searches:
            # A feature that is in counts as one: of a probability p that does not change the mean is p + (1 - p) p.
            out, inside = taken_by(be, 1 - xp.sqrt(xp.maximum(1 - likely, 0.0)), SHARE * plan.borderline, fill=not plan.compiled)
            clear = likely > CLEAR
            clear = clear & (clear.sum() <= plan.rows)
            return tuning._replace(doubt=xp.log(out), rate=xp.log(inside), clear=clear)
        return tuning._replace(doubt=xp.log(memory.spread + LEAST))

    due = begun & ((sweep % 20 == 0) | (sweep == warmup - 1))
    return be.branch(due, weights, lambda tuning: tuning, tuning), memory


def taken_by(be: Backend, likely: Any, places: float, fill: bool = False) -> tuple[Any, Any]:
    """Probabilities (P) with which each feature is taken for the borderline move when it is out and when it is in.

    In the state that is its rarer one always, in the other one by a factor times the probability of the rarer. Where the places
    do not suffice the factors are small, and those of features that are in half of the time, whose coefficients take longest to
    settle, the largest. Some places are for everybody, because scores may be wrong; to `fill`, all that are left: on a device an
    empty place costs as much.
    """
    xp = be.xp
    rare = xp.minimum(likely, 1 - likely)
    weight = LEAST_WEIGHT + (1 - LEAST_WEIGHT) * 4 * likely * (1 - likely)

    def rates(log_factor: Any) -> tuple[Any, Any]:
        factor = xp.minimum(xp.exp(log_factor) * weight, OFTEN)
        rarely, mostly = xp.minimum(factor, 1.0), xp.minimum(factor * rare, 1.0)
        return xp.where(likely > 0.5, rarely, mostly), xp.maximum(xp.where(likely > 0.5, mostly, rarely), SEEN)

    def filled(log_factor: Any) -> Any:
        out, inside = rates(log_factor)
        return ((1 - likely) * out + likely * inside).sum()

    def halve(ends: Any, x: Any) -> Any:
        middle = (ends[0] + ends[1]) / 2
        fits = filled(middle) <= (1 - EVERYBODY) * places
        return (xp.where(fits, middle, ends[0]), xp.where(fits, ends[1], middle)), None

    (low, _), _ = be.scan(halve, (xp.asarray(-10.0), xp.asarray(40.0)), (xp.arange(HALVINGS),))
    out, inside = rates(low)
    rest = (places - filled(low) if fill else EVERYBODY * places) / likely.shape[0]
    return xp.clip(out + rest, 1e-12, 1.0), inside
