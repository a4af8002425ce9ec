"""Tuning in the warm-up: step sizes towards their acceptance rates, and which features are signals or borderline.

Nothing here runs after the warm-up: the kept draws come from one fixed, exactly invariant sweep.
"""

from typing import Any, NamedTuple

import numpy as np

from intarsia.server.gibbs import Plan, Stats, Tuning

POWER = 2.0
CLEAR = 4.0  # a feature this many noise units long is held while the null rows follow the global scales


class Memory(NamedTuple):
    """Running averages over the warm-up, a feature each."""

    inside: Any
    strength: Any


def start(plan: Plan) -> Memory:
    return Memory(np.full(plan.P, 0.01), np.zeros(plan.P))


def adapt(plan: Plan, tuning: Tuning, memory: Memory, stats: Stats, sweep: int, warmup: int) -> tuple[Tuning, Memory]:
    """After warm-up sweep number `sweep` (from 0)."""
    if not plan.mixing:
        return tuning, memory
    gain = 0.3 if sweep < warmup / 2 else 0.1
    theta = np.clip(tuning.theta * np.exp(gain * (np.asarray(stats.single) - 0.4)), 0.01, np.pi / 2)
    tuning = tuning._replace(theta=theta, log_shift=tuning.log_shift + gain * (np.asarray(stats.shift) - 0.44))
    if plan.element:
        return tuning, memory
    tuning = tuning._replace(
        log_steps=np.clip(tuning.log_steps + gain * (np.asarray(stats.steps) - 0.44), -7, 1),
        log_global=np.clip(tuning.log_global + gain * (np.asarray(stats.globals) - 0.4), -7, 1),
        log_stretch=np.clip(tuning.log_stretch + gain * (np.asarray(stats.stretch).mean() - 0.44), -7, 1),
        log_compensate=np.clip(tuning.log_compensate + gain * (np.asarray(stats.compensate).mean() - 0.44), -7, 1),
    )
    if sweep >= min(20, warmup // 4):
        memory = Memory(
            0.98 * memory.inside + 0.02 * np.asarray(stats.inside),
            0.95 * memory.strength + 0.05 * np.asarray(stats.strength),
        )
        if sweep % 20 == 0 or sweep == warmup - 1:
            doubt = memory.inside * (1 - memory.inside)
            held = np.sort(np.argsort(-memory.strength, kind="stable")[: tuning.held.size])
            tuning = tuning._replace(
                held=held,
                clear=memory.strength[held] > CLEAR,
                doubt=POWER * np.log(np.maximum(doubt, 1e-3)),
            )
    return tuning, memory
