"""What an experiment is, and the columns of its results."""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from experiments.paper.methods import SKETCHED, Effort, Row
from experiments.paper.simulate import Scenario

SIZES = ("smoke", "quick", "full")

# A row is one fit on one data set. These columns say which; `KEY` alone decides whether it is already done.
KEY = ("cell", "replicate", "method", "m")
WHICH = ("experiment", "size", "cell", "design", "rho", "s", "replicate", "seed", "method", "m")
MEASURES = (
    "seconds", "mse", "mse_nz", "coverage", "coverage_nz", "width", "width_nz",
    "fdr", "power", "selected", "fdr_mclust", "power_mclust", "fdr_eii", "power_eii",
    "acc_paper_nz", "acc_paper_z", "acc_gauss_nz", "acc_gauss_z", "acc_draws_nz", "acc_draws_z",
    "ess_coda", "ess_arviz", "efficiency", "efficiency_arviz", "sampling_seconds", "rhat_99", "sigma2", "sigma2_min",
    "mse_y", "r2",
)  # fmt: skip
# How long the chains ran, chains × (warm-up + sweeps), on what processor (times compare only within one), by which version
# (empty: 0.1.0).
ORIGIN = ("sweeps", "machine", "version")
COLUMNS = WHICH + MEASURES + ORIGIN


@dataclass(frozen=True)
class Cell:
    """One setting: a scenario (or a real data set), and the sketch sizes to try on it."""

    label: str
    scenario: Scenario | None
    m: tuple[int, ...]

    def columns(self) -> Row:
        scenario = self.scenario
        if scenario is None:
            return {"cell": self.label}
        return {"cell": self.label, "design": scenario.design, "rho": scenario.rho, "s": scenario.s}


# cell, seed, wanted (method, m) pairs, settings, options -> rows without the WHICH columns except method and m
Run = Callable[[Cell, int, Collection[tuple[str, int | None]], Effort, dict[str, Any]], list[Row]]


@dataclass(frozen=True)
class Experiment:
    """Cells × replicates × methods; `settings` and `replicates` by size."""

    name: str
    title: str
    cells: dict[str, tuple[Cell, ...]]
    methods: tuple[str, ...]
    replicates: dict[str, int]
    settings: dict[str, Effort]
    run: Run

    def fits(self, cell: Cell, methods: Collection[str]) -> list[tuple[str, int | None]]:
        """The (method, m) pairs of one data set; unsketched methods have m = None."""
        pairs: list[tuple[str, int | None]] = []
        for method in methods:
            pairs += [(method, m) for m in cell.m] if method in SKETCHED else [(method, None)]
        return pairs

    def seed(self, cell: Cell, replicate: int) -> int:
        """The seed of a data set: from its names alone, so that it never depends on what else was run."""
        text = f"{self.name}|{cell.label}|{replicate}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
