"""Simulation 1 (effect of privacy, §3.1) and Simulation 2 (against competitors, §3.2)."""

from collections.abc import Collection
from typing import Any

import numpy as np

from experiments.paper.designs.design import Cell, Experiment
from experiments.paper.methods import Effort, Row, accuracy_measures, fit
from experiments.paper.simulate import Scenario, simulate
from experiments.rivals.horseshoe import Posterior

SPARSITIES = (10, 30, 50)
CORRELATIONS = (0.0, 0.5, 0.7)
BASELINE_OF = {"horseshoe": "centralized", "BayesVFLReg": "centralized-paper"}

SMOKE = Effort(draws=60, warmup=40, chains=2, bootstrap=10)
QUICK = Effort(draws=250, warmup=250, chains=2, bootstrap=50)
# Two chains of 300 + 1000 where the paper has five of 200 + 1000; a comparison gives every sampled fit the same.
FULL = Effort(draws=1000, warmup=300, chains=2, bootstrap=100)
# A thousand coefficients more: every second sweep is kept. Nine cells of fifty data sets stay under an hour on two cores.
FULL_WIDE = Effort(draws=500, warmup=300, chains=2, thin=2, bootstrap=100)


def _run_sim1(
    cell: Cell, seed: int, wanted: Collection[tuple[str, int | None]], settings: Effort, options: dict[str, Any]
) -> list[Row]:
    """Each sketched posterior beside the centralized one of the same model."""
    assert cell.scenario is not None
    data = simulate(cell.scenario, np.random.default_rng(seed))
    base: dict[str, Posterior] = {}
    rows = []
    needed = {BASELINE_OF[method] for method, _ in wanted if method in BASELINE_OF}
    for method in sorted(needed | {method for method, _ in wanted if method in BASELINE_OF.values()}):
        model, row = fit(method, data, settings, seed=seed)
        assert isinstance(model, Posterior)
        base[method] = model
        if (method, None) in wanted:
            rows.append(row)
    for method, m in wanted:
        if method in BASELINE_OF:
            model, row = fit(method, data, settings, m, seed)
            assert isinstance(model, Posterior)
            rows.append(row | accuracy_measures(model, base[BASELINE_OF[method]], data.C, seed))
        elif method not in base:
            rows.append(fit(method, data, settings, m, seed)[1])
    return rows


def run_fits(
    cell: Cell, seed: int, wanted: Collection[tuple[str, int | None]], settings: Effort, options: dict[str, Any]
) -> list[Row]:
    """Every wanted method on the same data set."""
    assert cell.scenario is not None
    data = simulate(cell.scenario, np.random.default_rng(seed))
    return [fit(method, data, settings, m, seed)[1] for method, m in wanted]


def _sim1_cells(**changes: Any) -> tuple[Cell, ...]:
    m = changes.pop("m", (50, 100, 250))
    sparsities = changes.pop("s", SPARSITIES)
    scenario = Scenario(n=500, P=300, Q=5, rho=0.5, K=1).with_(**changes)
    return tuple(Cell(f"s={s}", scenario.with_(s=s), m) for s in sparsities)


def _sim2_cells(m: int = 200, **changes: Any) -> tuple[Cell, ...]:
    scenario = Scenario().with_(**changes)
    cells = []
    for design in ("stated", "as-run"):
        for rho in CORRELATIONS:
            # Without correlation the two designs are the same one.
            if rho == 0 and design == "as-run":
                continue
            for s in SPARSITIES:
                cells.append(Cell(f"{design} rho={rho} s={s}", scenario.with_(design=design, rho=rho, s=s), (m,)))
    return tuple(cells)


SIM1 = Experiment(
    name="sim1",
    title="Simulation 1: the effect of privacy (n=500, P=300, Q=5, rho=.5)",
    cells={
        "smoke": _sim1_cells(n=80, P=30, Q=3, s=(4,), m=(20, 40)),
        "quick": _sim1_cells(),
        "full": _sim1_cells(),
    },
    methods=("intarsia", "centralized", "horseshoe", "centralized-paper", "BayesVFLReg", "MBSP"),
    replicates={"smoke": 1, "quick": 3, "full": 50},
    settings={"smoke": SMOKE, "quick": QUICK, "full": FULL},
    run=_run_sim1,
)

SIM2 = Experiment(
    name="sim2",
    title="Simulation 2: global sketch against competitors (n=P=1000, Q=5, m=200, K=3)",
    cells={
        "smoke": tuple(Cell(f"stated rho=0.5 s={s}", Scenario(n=100, P=40, Q=3, s=s), (40,)) for s in (4,)),
        "quick": _sim2_cells(),
        "full": _sim2_cells(),
    },
    methods=("intarsia", "horseshoe", "BayesVFLReg", "dRidge", "locus", "srrr", "ridge", "elasticnet", "MBSP"),
    replicates={"smoke": 1, "quick": 2, "full": 50},
    settings={"smoke": SMOKE, "quick": QUICK, "full": FULL_WIDE},
    run=run_fits,
)
