"""The experiments by name. Each is a list of cells, a list of methods and a function that runs one replicate."""

from experiments.paper.designs.design import Cell, Experiment
from experiments.paper.designs.harder import HARDER
from experiments.paper.designs.real import BRAIN, REAL
from experiments.paper.designs.simulations import SIM1, SIM2
from intarsia.errors import InputError

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (SIM1, SIM2, HARDER, BRAIN, REAL)}

__all__ = ["EXPERIMENTS", "Cell", "Experiment", "find"]


def find(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise InputError(f"Experiment {name!r} is not known; use one of {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]
