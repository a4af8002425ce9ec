"""Harder than the paper: correlation of other shapes, low rank, entry-wise sparsity, weak signals, heavy tails,
correlated noise, wide."""

from experiments.paper.designs.design import Cell, Experiment
from experiments.paper.designs.simulations import FULL_WIDE, QUICK, SMOKE, run_fits
from experiments.paper.simulate import Scenario

BASE = Scenario(s=30)
CELLS = (
    Cell("ar1", BASE.with_(design="ar1", rho=0.9), (200,)),
    Cell("block", BASE.with_(design="block", rho=0.8), (200,)),
    Cell("low-rank", BASE.with_(rank=2), (200,)),
    Cell("entry-sparse", BASE.with_(sparsity="entry"), (200,)),
    Cell("weak", BASE.with_(signal=0.1), (200,)),
    Cell("heavy-tails", BASE.with_(noise="t3"), (200,)),
    Cell("responses-spread", BASE.with_(layout="spread"), (200,)),
    Cell("responses-only-site", BASE.with_(layout="responses-only"), (200,)),
    Cell("correlated-noise", BASE.with_(noise="correlated"), (200,)),
    Cell("wide", BASE.with_(P=5000), (200,)),
)

HARDER = Experiment(
    name="harder",
    title="Harder designs (n=1000, Q=5, s=30, m=200, K=3)",
    cells={
        "smoke": tuple(Cell(cell.label, cell.scenario.with_(n=80, P=30, Q=3, s=4), (30,)) for cell in CELLS[:3] if cell.scenario),
        "quick": CELLS,
        "full": CELLS,
    },
    methods=("intarsia", "horseshoe", "BayesVFLReg", "dRidge", "locus", "srrr", "ridge", "elasticnet", "MBSP"),
    replicates={"smoke": 1, "quick": 1, "full": 20},
    settings={"smoke": SMOKE, "quick": QUICK, "full": FULL_WIDE},
    run=run_fits,
)
