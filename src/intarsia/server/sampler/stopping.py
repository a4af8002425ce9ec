"""When a run may stop: looks at fixed numbers of draws, and the target that all coefficients must meet at one of them.

Whether a run stops at a look depends on its first draws alone, so the same seed stops at the same draw, whatever the workers.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.assess.diagnostics import entries
from intarsia.server.sampler.running import Running, convergence
from intarsia.wire.defaults import ESS, NOISE_ESS, NOISE_RHAT, RHAT, RHAT_FOLDED

Array = NDArray[np.float64]

FIRST = 100  # draws per chain at the first look
WITNESSES = 1_000, 5_000  # entries of C that are looked at before all are: most looks end with the first


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

    def meets(self, until: Until) -> bool:
        return self.rhat <= until.rhat and self.folded <= until.folded and self.ess >= until.ess

    def factor(self, until: Until) -> float:
        """So many times as many draws should meet the target: R̂ − 1 falls as one over them, the ESS grows with them."""
        parts = (self.rhat - 1) / (until.rhat - 1), (self.folded - 1) / (until.folded - 1), until.ess / max(self.ess, 1e-9)
        return max(1.0, *parts)


def looks(budget: int, until: Until | None) -> list[int]:
    """Numbers of draws at which a run is looked at, the budget last: 100, 150, …, 400, 500, …, 800, 1000, …, 1600, 2000, …"""

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


@dataclass(frozen=True)
class Look:
    """The first draws of a run: C (chain, draw, feature, Q) and Sigma (chain, draw, Q, Q); where C has some features only, what
    `running` knows of all.
    """

    draws: int
    C: Array
    Sigma: Array
    running: Running | None = None


def standing(look: Look, until: Until) -> Standing:
    """Where a run stands; more entries are looked at where the first ones meet the target, in the end all."""
    noise = _worst(look.draws, entries(np.diagonal(look.Sigma, axis1=2, axis2=3), workers=1))
    # In units of the coefficients' limits.
    share = (RHAT - 1) / (NOISE_RHAT - 1), (RHAT_FOLDED - 1) / (NOISE_RHAT - 1), ESS / NOISE_ESS
    found = Standing(look.draws, 1 + share[0] * (noise.rhat - 1), 1 + share[1] * (noise.folded - 1), share[2] * noise.ess)
    flat = look.C.reshape(*look.C.shape[:2], -1)
    number = flat.shape[2]
    for size in sorted({min(size, number) for size in (*WITNESSES, number)}):
        some = flat if size == number else flat[:, :, np.linspace(0, number - 1, size).astype(int)]
        found = _together(found, _worst(look.draws, entries(some, workers=2)))
        if not found.meets(until):
            return found
    return found if look.running is None else _together(found, _worst(look.draws, convergence(look.running, look.draws)))


def _worst(draws: int, found: dict[str, Any]) -> Standing:
    """The worst of the diagnosed entries; those that never moved do not count, one that is not finite meets nothing."""
    ess = np.minimum(found["ess_bulk"], found["ess_tail"])
    if not ess.size:
        return Standing(draws, 1.0, 1.0, np.inf)
    if np.isnan(ess).any():
        return Standing(draws, np.inf, np.inf, 0.0)
    rhat, folded = (np.nan_to_num(found[name], nan=1.0).max() for name in ("rhat", "rhat_folded"))
    return Standing(draws, float(rhat), float(folded), float(ess.min()))


def _together(a: Standing, b: Standing) -> Standing:
    return Standing(a.draws, max(a.rhat, b.rhat), max(a.folded, b.folded), min(a.ess, b.ess))
