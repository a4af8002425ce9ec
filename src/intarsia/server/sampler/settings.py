"""What is asked of a run besides its data and its model: how long, to which target, from which seed, and who is told of it.

A run with a target is looked at after fixed numbers of draws. Whether it stops there depends on its first draws alone, so the
same seed stops at the same draw, whatever the workers.
"""

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from intarsia.errors import InputError
from intarsia.wire.defaults import CHAINS, ESS, MEMORY, NOISE_ESS, NOISE_RHAT, RHAT, RHAT_FOLDED

ACCELERATORS = ("jax",)  # backends that need the library of their name
BACKENDS = ("numpy", *ACCELERATORS)
CHECKPOINT_SECONDS = 20.0
FIRST = 50  # draws per chain at the first look


@dataclass(frozen=True)
class Until:
    """The target: every coefficient has R̂ ≤ rhat, folded R̂ ≤ folded and ESS (bulk and tail) ≥ ess; every noise variance has R̂
    five times as far from one and a quarter of the ESS.
    """

    rhat: float = RHAT
    folded: float = RHAT_FOLDED
    ess: float = ESS

    def __post_init__(self) -> None:
        if not (self.rhat > 1 and self.folded > 1 and self.ess > 0):
            raise InputError(f"The target is {asdict(self)}; expected rhat and folded above 1 and ess above 0.")


@dataclass(frozen=True)
class Standing:
    """How far a run is from its target, after so many draws per chain: the worst entries of those looked at."""

    draws: int
    rhat: float
    folded: float
    ess: float

    @classmethod
    def of(cls, draws: int, found: dict[str, Any]) -> "Standing":
        """The worst of the diagnosed numbers; those that never moved do not count, one that is not finite meets nothing."""
        ess = np.minimum(found["ess_bulk"], found["ess_tail"])
        if not ess.size:
            return cls(draws, 1.0, 1.0, np.inf)
        if np.isnan(ess).any():
            return cls(draws, np.inf, np.inf, 0.0)
        rhat, folded = (np.nan_to_num(found[name], nan=1.0).max() for name in ("rhat", "rhat_folded"))
        return cls(draws, float(rhat), float(folded), float(ess.min()))

    def meets(self, until: Until) -> bool:
        return self.rhat <= until.rhat and self.folded <= until.folded and self.ess >= until.ess

    def factor(self, until: Until) -> float:
        """So many times as many draws should meet the target: R̂ − 1 falls as one over them, the ESS grows with them."""
        parts = (self.rhat - 1) / (until.rhat - 1), (self.folded - 1) / (until.folded - 1), until.ess / max(self.ess, 1e-9)
        return max(1.0, *parts)

    def of_parameters(self) -> "Standing":
        """Where noise and prior stand, on the scale of coefficients: of them less is asked."""
        rhat, folded = (RHAT - 1) / (NOISE_RHAT - 1), (RHAT_FOLDED - 1) / (NOISE_RHAT - 1)
        return Standing(self.draws, 1 + rhat * (self.rhat - 1), 1 + folded * (self.folded - 1), ESS / NOISE_ESS * self.ess)

    def beside(self, other: "Standing") -> "Standing":
        return Standing(self.draws, max(self.rhat, other.rhat), max(self.folded, other.folded), min(self.ess, other.ess))


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


class Length(NamedTuple):
    """How long a run is unless told otherwise."""

    draws: int  # kept per chain, at most
    warmup: int  # sweeps per chain
    thin: int  # sweeps per kept draw
    usual: int  # draws after which most runs have met the default target, as said before the first look


@dataclass(frozen=True)
class Settings:
    """How chains are run. Which draws are made depends on the settings down to `mixing`, not on those after it.

    Each chain makes `warmup` sweeps, then `draws` × `thin`, of which every `thin`-th is kept; with a target `until` it ends
    before that, at the first look (50, 100, 150, 200, … draws) at which every coefficient meets it. What is not given is as the
    problem's size asks for (`intarsia.wire.defaults`).

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
    memory: int = MEMORY  # bytes that the draws of C may take
    backend: str = "numpy"
    workers: int | None = None  # threads; None: as many as pay
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS  # between two checkpoints
    progress: Callable[[Progress], None] | None = None
    usual: int = 700  # see `Length`

    def filled(self, length: Length) -> "Settings":
        """The same with a length where none was given, checked."""
        found = replace(
            self,
            draws=length.draws if self.draws is None else self.draws,
            warmup=length.warmup if self.warmup is None else self.warmup,
            thin=length.thin if self.thin is None else self.thin,
            usual=length.usual,
        )
        for name, least in (("draws", 4), ("warmup", 0), ("chains", 1), ("thin", 1)):
            value = getattr(found, name)
            if int(value) != value or value < least:
                raise InputError(f"{name} is {value!r}; expected a whole number of at least {least}.")
        if found.workers is not None and found.workers < 1:
            raise InputError(f"workers is {found.workers}; expected at least 1.")
        return found


def looks(budget: int, until: Until | None) -> list[int]:
    """Numbers of draws at which a run is looked at, the budget last: 50, 75, …, 200, 250, …, 400, 500, …, 800, 1000, …"""

    def every() -> Iterator[int]:
        draws = FIRST
        while True:
            yield draws
            # A quarter more at most, in steps that double: halves of the first look's draws up to four times as many.
            draws += max(FIRST // 2, 2 ** math.floor(math.log2(draws / FIRST)) * FIRST // 4)

    out = []
    if until is not None:
        for draws in every():
            if draws >= budget:
                break
            out.append(draws)
    return [*out, budget]


def check_backend(name: str, prior: str = "sparse") -> None:
    """Refuse what the chains of a prior cannot run on here."""
    if name not in BACKENDS:
        raise InputError(f"Backend {name!r} is not known; expected one of {', '.join(BACKENDS)}.")
    if name in ACCELERATORS and prior == "horseshoe":
        raise InputError(f"The horseshoe prior is fitted on the CPU; backend {name!r} came. Leave it at 'numpy'.")
    if name in ACCELERATORS and importlib.util.find_spec(name) is None:
        raise InputError(f"The backend {name!r} needs {name.upper()}, which is not installed: pip install 'intarsia[gpu]'.")
