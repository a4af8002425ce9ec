"""Tuning in the warm-up: step sizes towards their acceptance rates, and which features are signals or borderline.

Nothing here runs after the warm-up: the kept draws come from one fixed, exactly invariant sweep.
"""

from typing import Any, NamedTuple

import numpy as np

from intarsia.server.sampler import backend
from intarsia.server.sampler.gibbs import FULL, TARGET, Kind, Plan, Stats, Tuning

POWER = 1.0  # of the variance of a feature's strength, in the weights of the borderline move
CLEAR = 4.0  # a feature this many noise units long is held while the null rows follow the global scales


class Memory(NamedTuple):
    """Running averages over the warm-up, a feature each."""

    strength: Any  # mean
    spread: Any  # variance


def start(plan: Plan) -> Memory:
    return Memory(np.zeros(plan.P), np.zeros(plan.P))


def adapt(
    plan: Plan,
    tuning: Tuning,
    memory: Memory,
    stats: Stats,
    strength: Any,
    sweep: Any,
    warmup: int,
    be: Any = backend.NumpyBackend,
    kind: Kind = FULL,
) -> tuple[Tuning, Memory]:
    """After warm-up sweep number `sweep` (from 0); `strength` is `gibbs.strength` of the state it made."""
    if not plan.mixing:
        return tuning, memory
    xp = be.xp
    gain = xp.where(sweep < warmup / 2, 0.3, 0.1)
    if kind.scales:
        tuning = tuning._replace(log_shift=tuning.log_shift + gain * (stats.shift - 0.44))
    if kind.sites:
        theta = xp.clip(tuning.theta * xp.exp(gain * (stats.single - TARGET)), 0.01, xp.pi / 2)
        tuning = tuning._replace(theta=theta)
    if plan.element:
        return tuning, memory

    def nudge(log_step: Any, accepted: Any, rate: float) -> Any:
        return xp.clip(log_step + gain * (accepted - rate), -7, 1)

    if kind.collapse:
        tuning = tuning._replace(log_steps=nudge(tuning.log_steps, stats.steps, 0.44))
    if kind.sites:
        tuning = tuning._replace(
            log_stretch=nudge(tuning.log_stretch, xp.mean(1.0 * stats.stretch), 0.44),
            log_compensate=nudge(tuning.log_compensate, xp.mean(1.0 * stats.compensate), 0.44),
        )
    begun = sweep >= min(20, warmup // 4)
    away = strength - memory.strength
    memory = Memory(
        xp.where(begun, memory.strength + 0.05 * away, memory.strength),
        xp.where(begun, 0.98 * memory.spread + 0.02 * xp.minimum(away**2, 100.0), memory.spread),
    )

    def lists(tuning: Tuning) -> Tuning:
        held = be.largest(memory.strength, tuning.held.shape[0])
        return tuning._replace(held=held, clear=memory.strength[held] > CLEAR, doubt=POWER * xp.log(memory.spread + 1e-3))

    due = begun & ((sweep % 20 == 0) | (sweep == warmup - 1))
    return be.branch(due, lists, lambda tuning: tuning, tuning), memory
