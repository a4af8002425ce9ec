"""The sampler of `sweep` on an accelerator: the same law, chains side by side.

The card holds X, once for all chains, and does what takes all features (`card_device`). The host draws what takes only those that
may change, and all that is small, in double precision and by the functions of the CPU's engine (`card_chain`). `card_scan` is how
the two take turns.

A design past the card's memory stays on the host and is sent window by window, once per sweep; effects then move within windows.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from intarsia.errors import ConvergenceError, InputError
from intarsia.server.sampler.sparse import card_device
from intarsia.server.sampler.sparse.card_chain import Chain
from intarsia.server.sampler.sparse.card_problem import CardProblem
from intarsia.server.sampler.sparse.card_scan import LISTED, Together, likely_places, place, scan
from intarsia.server.sampler.sparse.chain import Draw
from intarsia.server.sampler.sparse.state import NEAR, State
from intarsia.server.sampler.sparse.sweep import MOST_MOVES

LIKELY_PLACES = 16  # of an effect and a window, that may be near
OF_CHAIN = (
    "ids",
    "acts",
    "effect",
    "Sigma",
    "V",
    "loadings",
    "rho",
    "scalars",
    "pull",
    "near",
)  # what a continuation needs of each


class CardChains:
    """Chains number `numbers` of a run with this seed, at their starts. Continued, they are what they would have been."""

    def __init__(self, made: CardProblem, seed: int, numbers: Sequence[int], starts: Sequence[State]) -> None:
        if len(numbers) != len(starts) or not numbers:
            raise InputError(
                f"{len(numbers)} chains and {len(starts)} starts came; expected one chain or more, and a start for each."
            )
        self.made = made
        rngs = [np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(n,)))) for n in numbers]
        keys = np.stack([rng.integers(2**32, size=2, dtype=np.uint32) for rng in rngs])
        rows = [made.columns(state.feature[: int(state.count[0])]) for state in starts]
        chains = [Chain(made.problem, *of_chain) for of_chain in zip(rngs, starts, rows, strict=True)]
        room = min(made.features, max(64, 2 * len(made.problem.Y)))
        threads = ThreadPoolExecutor(min(len(numbers), os.cpu_count() or 1))
        self.all = Together(made, chains, threads, room, keys, 0, LISTED)
        self._begin_sums()
        if made.features <= NEAR:
            every = np.arange(made.features)
            for chain in chains:
                chain.know(every, made.columns(every))

    def _begin_sums(self) -> None:
        shape = 2, len(self.all.chains), self.made.width
        self.kept, self.sums = 0, [self._sent(np.zeros(shape, np.float32)) for _ in self.made.windows]

    @property
    def device(self) -> str:
        return str(jax.devices()[0].device_kind)

    def advance(self, sweeps: int, keep: bool = True) -> list[list[Draw]]:
        """So many sweeps, a call to the card each; a draw of every chain (second index) of each. `keep`: they count for PIPs."""
        with threadpool_limits(1):  # each chain has a thread of its own
            return [self._sweep(keep) for _ in range(sweeps)]

    def find_near(self) -> None:
        """The sweeps summed up so far end the warm-up, and the sums begin anew. From now on those likeliest to be in, or to be
        where one that is in could sit instead, are near.
        """
        if self.made.features > NEAR:
            self.all.begin()
            best = [jax.device_get(card_device.largest(part[0], most=NEAR)) for part in self.sums]
            places_of = likely_places(self.all, MOST_MOVES, LIKELY_PLACES)
            for c, (chain, likely) in enumerate(zip(self.all.chains, places_of, strict=True)):
                for w, (values, places) in enumerate(best):
                    for p, value in zip(places[c] + self.made.span(w)[0], values[c], strict=True):
                        likely[int(p)] = likely.get(int(p), 0.0) + float(value) / max(1, self.kept)
                those = sorted((p for p in likely if p < self.made.features), key=lambda p: -likely[p])
                near = np.sort(np.array(those[:NEAR], np.int64))
                chain.know(near, self.made.columns(near))
        self._begin_sums()
        for chain in self.all.chains:
            chain.pull[:] = 0.0

    def pip_sums(self) -> NDArray[np.float64]:
        """P(in | rest) (2, chain, P), summed over the sweeps that were kept, and over those of them without a background."""
        sums = np.concatenate([np.asarray(part, dtype=np.float64) for part in self.sums], axis=2)
        return sums[:, :, : self.made.features]

    def pip(self) -> NDArray[np.float64]:
        """P(in | rest) (chain, P), averaged over the sweeps that were kept."""
        return self.pip_sums()[0] / max(1, self.kept)

    def _sweep(self, keep: bool) -> list[Draw]:
        self.all.begin()
        for w, X in enumerate(self.made.sent()):
            self.sums[w] = self._sent(scan(self.all, w, X, self.sums[w], keep))
            if not self.made.resident:
                place(self.all, [w], [X])
        if self.made.resident:
            place(self.all, list(range(len(self.made.windows))), self.made.windows)
        self.all.sweep, self.kept = self.all.sweep + 1, self.kept + int(keep)
        return self.all.each(lambda c, chain: self._drawn(c, chain, keep))

    def _drawn(self, c: int, chain: Chain, keep: bool) -> Draw:
        """Everything but inclusion, and what is kept of the sweep."""
        chain.laws(self.all.room)
        if not (np.isfinite(chain.effect).all() and np.isfinite(chain.Sigma).all()):
            raise ConvergenceError(f"Chain {c + 1}, sweep {self.all.sweep}: it left the range of double precision.")
        return chain.draw(keep)

    def _sent(self, sums: Any) -> Any:
        """To where the design is."""
        if not self.made.resident:
            return np.asarray(sums)
        return jax.device_put(sums) if isinstance(sums, np.ndarray) else sums

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything a continuation needs."""
        numbers = np.array([self.all.sweep, self.kept, self.all.listed])
        out: dict[str, NDArray[Any]] = {"keys": self.all.keys.copy(), "numbers": numbers}
        out["sums"] = np.concatenate([np.asarray(part) for part in self.sums], axis=2)
        for c, chain in enumerate(self.all.chains):
            out |= {f"{c}.{name}": getattr(chain, name).copy() for name in OF_CHAIN}
            out[f"{c}.generator"] = np.frombuffer(json.dumps(chain.rng.bit_generator.state).encode(), dtype=np.uint8)
        return out

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from where `arrays` were taken, bit for bit on a device of the same kind."""
        self.all.keys = np.array(arrays["keys"])
        self.all.sweep, self.kept, self.all.listed = (int(value) for value in arrays["numbers"])
        parts = np.split(np.asarray(arrays["sums"]), len(self.made.windows), axis=2)
        self.sums = [self._sent(part.copy()) for part in parts]
        for c, chain in enumerate(self.all.chains):
            for name in OF_CHAIN:
                setattr(chain, name, np.array(arrays[f"{c}.{name}"]))
            chain.rows = self.made.columns(chain.ids)
            chain.know(chain.near, self.made.columns(chain.near))
            chain.rng.bit_generator.state = json.loads(arrays[f"{c}.generator"].tobytes().decode())
