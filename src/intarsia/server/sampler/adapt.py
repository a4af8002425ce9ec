"""Tuning in the warm-up: step sizes towards their acceptance rates, and which features are borderline.

Nothing here runs after the warm-up: the kept draws come from one fixed, exactly invariant sweep.
"""

from typing import Any, NamedTuple

import numpy as np

from intarsia.server.sampler.backends.protocol import Backend
from intarsia.server.sampler.schedule import ACCEPT, TARGET, Kind, Plan
from intarsia.server.sampler.state import Stats, Tuning

LEAST = 1e-3  # added to the variance of a feature's strength, so that every feature has its chance
FLOOR = 0.1  # of the mean probability to be in, added to each feature's when it says how often to take it
SEEN = 0.1  # least probability with which a feature that is in is taken
SHARE = 0.7  # of the borderline move's places that are filled on average
OFTEN = 8.0  # at most: factor on the probability of the other state, which says how often a feature is taken
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
        number = xp.minimum(memory.scored + 1, SCORES)
        likely = memory.likely + (stats.scored.likely - memory.likely) / number
        memory = memory._replace(likely=likely, scored=number)
        tuning = tuning._replace(limit=tuning.limit + (stats.scored.limit - tuning.limit) / number)

    likely = be.over_chains(memory.likely)  # what one chain has seen helps the others to look

    def weights(tuning: Tuning) -> Tuning:
        if plan.searches:
            # About `room` times as many places as features that are in without being needed always. Those are taken too.
            room = SHARE * plan.borderline / xp.maximum((likely * (1 - likely)).sum(), 1e-300)
            often = xp.minimum(xp.maximum(room - 1, room / 2), OFTEN)
            out = xp.clip(often * (likely + FLOOR * likely.mean()), 1e-12, 1.0)
            rate, clear = xp.log(xp.clip(often * (1 - likely), SEEN, 1.0)), likely > CLEAR
            return tuning._replace(doubt=xp.log(out), rate=rate, clear=clear & (clear.sum() <= plan.rows))
        return tuning._replace(doubt=xp.log(memory.spread + LEAST))

    due = begun & ((sweep % 20 == 0) | (sweep == warmup - 1))
    return be.branch(due, weights, lambda tuning: tuning, tuning), memory
