"""intarsia's default fit, to rows that lie in one place or to a sketch; and the paper's prior in the same package."""

import warnings
from typing import Any

import numpy as np

from experiments.rivals.answer import Answer, Array
from intarsia.server.assess.findings import select
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample as sample_horseshoe
from intarsia.server.sampler.settings import Settings, Until
from intarsia.server.sampler.sparse.sample import SparseModel, sample


def answer(X: Array, Y: Array, seed: int, degrees: int | None = None) -> Answer:
    """The default prior and stopping rule; `degrees` where X and Y are a root of a Gram matrix of so many rows."""
    return _told(X, sample(X, Y, SparseModel(compare=False), Settings(until=Until(), seed=seed, workers=1), degrees=degrees))


def paper(X: Array, Y: Array, seed: int) -> Answer:
    """`ReducedRankHorseshoe`: the prior of BayesVFLReg, with a scale per feature and correlated noise."""
    return _told(X, sample_horseshoe(X, Y, Model(), Settings(draws=300, warmup=300, chains=2, thin=2, seed=seed, workers=1)))


def _told(X: Array, draws: Any) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = select(draws, X=X)
    lower, upper = draws.quantile([0.025, 0.975])
    sets = [one.members for one in found.sets]
    return Answer(np.asarray(found.pip), found.selected, draws.mean(), sets, lower, upper)
