"""Knockoffs of a fixed design from sums (`intarsia.server.assess.knockoffs`), five for each feature where the rows allow it."""

import numpy as np

from experiments.rivals.answer import Answer, Array
from intarsia.server.assess.knockoffs import knockoffs


def answer(X: Array, Y: Array, seed: int) -> Answer:
    found = knockoffs(X, Y, np.random.default_rng([seed, 5]), len(X) - 1)
    if found is None:  # fewer than two rows for each feature
        nothing = np.zeros(X.shape[1])
        return Answer(nothing, nothing > 0, notes={"none": True})
    return Answer(1 - found.q_value, found.selected(0.05))
