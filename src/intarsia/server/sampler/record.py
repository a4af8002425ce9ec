"""The kept draws of some chains of a run, and running moments of a few of them for the live R̂."""

from typing import Any

import numpy as np

from intarsia.server.sampler import backends
from intarsia.server.sampler.keeping import Keeping
from intarsia.server.sampler.mapped import let_go
from intarsia.server.sampler.running import Mark, Running, add, as_first, blank, marks, of_chain

WATCHED = 200  # entries of C whose running moments feed the live R̂


class Record:
    """Kept draws of C (mapped from the run's file), Sigma and tau; one mean shrinkage per feature (P of them) and chain."""

    running: Running | None = None  # of every coefficient, the chains first, where not all draws are kept

    def __init__(self, C: Any, R: int, P: int) -> None:
        chains, capacity, features, Q = C.shape
        self.C = C
        self._C = np.asarray(C)  # the file's own memory as a plain array: indexing a map costs more than a small draw
        self.Sigma, self.tau = np.zeros((chains, capacity, Q, Q)), np.zeros((chains, capacity, R))
        self.kappa = np.zeros((chains, P))
        self.watched = np.unique(np.linspace(0, features * Q - 1, min(WATCHED, features * Q)).astype(int))
        self.moments = np.zeros((chains, 2, self.watched.size + Q))

    def keep(self, at: int, C: Any, Sigma: Any, tau: Any) -> None:
        """Keep one draw, number `at`, of one chain."""
        self.add(at, C[None, None], Sigma[None, None], tau[None, None])

    def add(self, at: int, C: Any, Sigma: Any, tau: Any) -> None:
        """Keep draws number at, at + 1, … of every chain; C (chain, draw, feature, Q) has the features whose draws are kept."""
        where = slice(at, at + C.shape[1])
        self._C[:, where], self.Sigma[:, where], self.tau[:, where] = C, Sigma, tau
        flat, levels = C.reshape(*C.shape[:2], -1)[..., self.watched], np.log(np.diagonal(Sigma, axis1=2, axis2=3))
        x = np.concatenate([flat, levels], axis=2)
        for i in range(x.shape[1]):
            away = x[:, i] - self.moments[:, 0]
            self.moments[:, 0] += away / (at + i + 1)
            self.moments[:, 1] += away * (x[:, i] - self.moments[:, 0])

    def arrays(self, kept: int) -> dict[str, Any]:
        """What a checkpoint holds besides C."""
        if isinstance(self.C, np.memmap):
            self.C.flush()
        return {
            "Sigma": self.Sigma[:, :kept], "tau": self.tau[:, :kept], "kappa": self.kappa, "moments": self.moments,
        }  # fmt: skip

    def restore(self, stored: dict[str, Any]) -> None:
        kept = stored["Sigma"].shape[1]
        self.Sigma[:, :kept], self.tau[:, :kept] = stored["Sigma"], stored["tau"]
        self.kappa, self.moments = stored["kappa"], stored["moments"]


class BoundedRecord(Record):
    """The draws of some features, some whole draws of C (chain, draw, P, Q; mapped, in single precision), and of every
    coefficient what `running` knows.
    """

    def __init__(self, C: Any, R: int, keeping: Keeping, whole: Any) -> None:
        super().__init__(C, R, whole.shape[2])
        self.keeping, self.whole = keeping, whole

    def keep(self, at: int, C: Any, Sigma: Any, tau: Any) -> None:
        if self.running is None:
            self.running = as_first(blank(np, self.whole.shape[2:]))
        mark = Mark(*(value[0] for value in marks(at, at + 1)))
        one = add(backends.get("numpy"), of_chain(self.running, 0), C, mark)
        self.running = as_first(one)
        self.put_whole(at, C[None, None])
        super().keep(at, C[self.keeping.features], Sigma, tau)

    def put_whole(self, at: int, C: Any) -> None:
        """Store those of the draws number at, at + 1, … (chain, draw, P, Q) that are kept whole."""
        for slot in self.slots(at, at + C.shape[1]):
            self.store_whole(slot, C[:, self.keeping.whole[slot] - at])

    def store_whole(self, slot: int, C: Any) -> None:
        """One whole draw of every chain."""
        self.whole[:, slot] = C
        let_go(self.whole)

    def add(self, at: int, C: Any, Sigma: Any, tau: Any) -> None:
        super().add(at, C, Sigma, tau)
        let_go(self.C)

    def slots(self, first: int, last: int) -> Any:
        """Places among the whole draws of those of draws number first … last − 1."""
        return np.flatnonzero((self.keeping.whole >= first) & (self.keeping.whole < last))

    def arrays(self, kept: int) -> dict[str, Any]:
        if isinstance(self.whole, np.memmap):
            self.whole.flush()
        known = {} if self.running is None else self.running._asdict()  # nothing before the first draw
        return super().arrays(kept) | {f"running.{name}": value for name, value in known.items()}

    def restore(self, stored: dict[str, Any]) -> None:
        super().restore(stored)
        if "running.mean" in stored:
            self.running = Running(*(stored[f"running.{name}"] for name in Running._fields))
