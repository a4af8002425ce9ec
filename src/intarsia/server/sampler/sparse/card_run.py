"""All chains of a run on an accelerator, as the common runner steps them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler.sparse.card import CardChains
from intarsia.server.sampler.sparse.card_problem import from_host
from intarsia.server.sampler.sparse.chain import WRONG, Draw, Made, Packed, packed, unpacked, watched
from intarsia.server.sampler.sparse.state import Problem

Array = NDArray[Any]


class CardRun:
    """The chains 0 … chains − 1 of a run with this seed, side by side (a `run.Chain`)."""

    def __init__(self, problem: Problem, chains: int, seed: int, warmup: int, *, thin: int = 1, rank: int = 0) -> None:
        self.problem, self.k, self.warmup, self.thin, self.sweeps = problem, 0, warmup, thin, 0
        card = from_host(problem)
        rngs = [np.random.default_rng([seed, k]) for k in range(chains)]
        wrong = min(WRONG, len(problem.Y) // 3)
        starts = [card.start(rng, 0 if k % 2 == 0 else wrong, rank) for k, rng in enumerate(rngs)]
        self.card = CardChains(card, seed, range(chains), starts)
        self.draws: list[list[Draw]] = [[] for _ in range(chains)]

    @property
    def device(self) -> str:
        return self.card.device

    @property
    def kept(self) -> int:
        """Draws kept so far, of each chain."""
        return max(0, self.sweeps - self.warmup) // self.thin

    def advance(self, sweeps: int) -> None:
        """Make so many sweeps, a call to the device each."""
        for _ in range(sweeps):
            past = self.sweeps + 1 - self.warmup
            keep = past > 0 and past % self.thin == 0
            ending = 2 * past > -self.warmup and past <= 0  # of the warm-up: summed up to find those near
            (drawn,) = self.card.advance(1, keep or ending)
            if past == 0:
                self.card.find_near()
            if keep:
                for draws, draw in zip(self.draws, drawn, strict=True):
                    draws.append(draw)
            self.sweeps += 1

    def made(self) -> list[Made]:
        """What every chain has made."""
        pips, n = self.card.pip_sums(), self.kept
        each = zip(self.draws, pips[0], pips[1], self.card.all.chains, strict=True)
        return [
            Made(draws[:n], pip, without, sum(draw.scalars[2] == 0 for draw in draws[:n]), chain.pull)
            for draws, pip, without, chain in each
        ]

    def watched(self) -> Array:
        n = self.kept
        nothing = np.zeros(0)
        made = [Made(draws[:n], nothing, nothing, 0, nothing) for draws in self.draws]
        return watched(made, self.problem.Y.shape[1])

    def arrays(self) -> dict[str, Any]:
        """Everything a continuation needs."""
        own = {f"card.{name}": value for name, value in self.card.arrays().items()}
        for k, draws in enumerate(self.draws):
            own |= {f"{k}.draws.{name}": value for name, value in packed(draws)._asdict().items()}
        return own | {"sweeps": np.array(self.sweeps)}

    def restore(self, arrays: dict[str, Any]) -> None:
        self.sweeps = int(arrays["sweeps"])
        self.card.restore({name[5:]: value for name, value in arrays.items() if name.startswith("card.")})
        each = ({name: arrays[f"{k}.draws.{name}"] for name in Packed._fields} for k in range(len(self.draws)))
        self.draws = [unpacked(Packed(**one)) for one in each]
