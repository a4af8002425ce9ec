"""The kept draws of some chains of a run, and running moments of a few of them for the live R̂."""

from typing import Any

import numpy as np

WATCHED = 200  # entries of C whose running moments feed the live R̂


class Record:
    """Kept draws of C (mapped from the run's file), Sigma and tau; one mean shrinkage per feature and chain."""

    def __init__(self, C: Any, R: int) -> None:
        chains, capacity, P, Q = C.shape
        self.C = C
        self._C = np.asarray(C)  # the file's own memory as a plain array: indexing a map costs more than a small draw
        self.Sigma, self.tau = np.zeros((chains, capacity, Q, Q)), np.zeros((chains, capacity, R))
        self.kappa = np.zeros((chains, P))
        self.watched = np.unique(np.linspace(0, P * Q - 1, min(WATCHED, P * Q)).astype(int))
        self.moments = np.zeros((chains, 2, self.watched.size + Q))

    def add(self, at: int, C: Any, Sigma: Any, tau: Any) -> None:
        """Keep draws number at, at + 1, … of every chain: C is (chain, draw, P, Q)."""
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
