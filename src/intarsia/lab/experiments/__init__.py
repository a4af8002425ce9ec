"""The experiments by name. Each is a list of cells, a list of methods and a function that runs one replicate."""

from intarsia.errors import InputError
from intarsia.lab.experiments.experiment import Cell, Experiment
from intarsia.lab.experiments.harder import HARDER
from intarsia.lab.experiments.real import BRAIN, REAL
from intarsia.lab.experiments.simulations import SIM1, SIM2

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (SIM1, SIM2, HARDER, BRAIN, REAL)}

__all__ = ["EXPERIMENTS", "Cell", "Experiment", "find"]


def find(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise InputError(f"Experiment {name!r} is not known; use one of {', '.join(EXPERIMENTS)}.")
    return EXPERIMENTS[name]
