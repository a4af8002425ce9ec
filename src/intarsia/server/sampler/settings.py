"""What is asked of a run besides its data and its model: how long, from which seed, on what, and who is told of it."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from intarsia.errors import InputError
from intarsia.server.sampler.stopping import Standing, Until
from intarsia.wire import defaults
from intarsia.wire.defaults import CHAINS, MEMORY

CHECKPOINT_SECONDS = 20.0


class Length(Enum):
    """Draws, warm-up sweeps and sweeps per kept draw unless told otherwise, by what a sweep costs."""

    SMALL = defaults.DRAWS, defaults.WARMUP, defaults.THIN
    SHARED = defaults.SHARED_DRAWS, defaults.SHARED_WARMUP, defaults.SHARED_THIN
    MANY = defaults.MANY_DRAWS, defaults.MANY_WARMUP, defaults.MANY_THIN


@dataclass(frozen=True)
class Progress:
    """Handed to the progress callback a few times per second."""

    sweeps: list[int]
    total: int
    warmup: int
    seconds: float
    seconds_left: float
    rhat: float  # largest over a fixed sample of entries of C and the noise levels; NaN before there are draws
    standing: Standing | None = None  # at the last look, where the run has a target
    until: Until | None = None  # the target
    at_most: float = math.nan  # seconds left should the whole budget be needed


@dataclass(frozen=True)
class Settings:
    """How chains are run. Which draws are made depends on the settings down to `backend`, not on those after it.

    Each chain makes `warmup` sweeps, then `draws` × `thin`, of which every `thin`-th is kept; with a target `until` it ends
    before that, at the first look (100, 150, 200, … draws) at which every coefficient meets it. What is not given is as the
    problem's size asks for (`intarsia.wire.defaults`).

    Where all draws of C would take more than `memory` bytes, those of up to 2,200 features are kept and some whole draws in
    single precision (both together about twice `memory` bytes at most), and moments and diagnostics of every coefficient
    (`Draws.summaries`): the memory then grows with P·Q and no longer with the draws.

    `backend="jax"` runs every chain on an accelerator (or wherever JAX finds itself): the same sampler with random numbers of
    its own, so the same posterior and other draws; `workers` has no meaning there.

    `checkpoint` is a folder: an interrupted run with the same arguments goes on from there, bit for bit; so does a longer one.
    Ctrl-C and SIGTERM write a checkpoint first.
    """

    draws: int | None = None  # kept per chain, at most
    warmup: int | None = None  # sweeps per chain
    chains: int = CHAINS
    thin: int | None = None  # sweeps per kept draw
    seed: int = 0
    until: Until | None = None
    mixing: bool = True  # False: the plain Gibbs sampler, for comparison
    memory: int = MEMORY  # bytes
    backend: str = "numpy"
    workers: int | None = None  # processes; None: as many as pay
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS  # between two checkpoints
    progress: Callable[[Progress], None] | None = None

    def filled(self, size: Length = Length.SMALL, per_draw: int = 0) -> "Settings":
        """The same with a length where none was given, checked. `per_draw` are the bytes of one draw of C: where sweeps share a
        factored system the budget is no larger than what can be kept whole.
        """
        draws, warmup, thin = size.value
        if self.until is None:  # nothing else ends the run
            draws = defaults.DRAWS
        elif size is Length.SHARED and per_draw:
            draws = max(defaults.DRAWS, min(draws, self.memory // (self.chains * per_draw)))
        found = replace(
            self,
            draws=draws if self.draws is None else self.draws,
            warmup=warmup if self.warmup is None else self.warmup,
            thin=thin if self.thin is None else self.thin,
        )
        for name, least in (("draws", 4), ("warmup", 0), ("chains", 1), ("thin", 1)):
            value = getattr(found, name)
            if int(value) != value or value < least:
                raise InputError(f"{name} is {value!r}; expected a whole number of at least {least}.")
        return found
