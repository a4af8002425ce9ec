"""Checks that fit again: k-fold over the rows of the sketch, and replication of what was found in two halves of them.

Dearer than leave-one-out, and exact where k̂ says that leave-one-out is not. Each refit is given some of the rows, nothing
else changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.assess.criticism import log_mean_exp
from intarsia.server.assess.leave_one_out import log_likelihood
from intarsia.server.assess.rows import Rows, out_of_sample
from intarsia.server.posterior.posterior import Posterior

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Refit = Callable[[Rows], Posterior]

SIGN_PROBABILITY = 0.9  # of the same sign in a half: what replication asks of each


@dataclass(frozen=True)
class KFold:
    """`elpd` (m,) of every row predicted from the folds it is not in; `r2`, `r2_se` (Q,) and `mean` (m, Q) as leave-one-out's."""

    elpd: Array
    r2: Array
    r2_se: Array
    mean: Array
    folds: int

    @property
    def total(self) -> float:
        return float(self.elpd.sum())


def k_fold(refit: Refit, rows: Rows, folds: int = 5, seed: int = 0) -> KFold:
    """Fit `folds` times, each time without one part of the rows, and predict that part."""
    m = len(rows.Y)
    if not 2 <= folds <= m:
        raise InputError(f"{folds} folds of {m} rows; expected at least 2 and at most as many as rows.")
    part = np.random.default_rng([seed, 11]).permutation(np.arange(m) % folds)
    elpd, mean = np.empty(m), np.empty(rows.Y.shape)
    for fold in range(folds):
        out = part == fold
        each, fitted = log_likelihood(refit(rows.take(~out)), rows.take(out))
        elpd[out] = log_mean_exp(each.reshape(-1, int(out.sum())))
        mean[out] = fitted.mean(axis=(0, 1))
    return KFold(elpd, *out_of_sample(rows.Y, mean), mean, folds)


@dataclass(frozen=True)
class Replication:
    """For every finding (places of its features) the probability in each part of the rows (finding, part; mostly two halves) that
    its effect has the sign that the whole fit gives it, at the response where it shows most.
    """

    findings: tuple[Index, ...]
    probability: Array

    @property
    def replicates(self) -> NDArray[np.bool_]:
        """Found again in all parts. A half has half of the evidence: not to be found again is a doubt, not a refutation."""
        return np.asarray((self.probability >= SIGN_PROBABILITY).all(axis=1))

    def to_dict(self, features: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {"features": [features[p] for p in finding], "probability": [float(v) for v in self.probability[i]],
             "replicates": bool(self.replicates[i])} for i, finding in enumerate(self.findings)
        ]  # fmt: skip


def split_half(refit: Refit, rows: Rows, posterior: Posterior, findings: Sequence[Index], seed: int = 0) -> Replication:
    """Fit two random halves of the rows and look for every finding in both."""
    m = len(rows.Y)
    half = np.random.default_rng([seed, 12]).permutation(m) < m // 2
    fits = [refit(rows.take(half)), refit(rows.take(~half))] if len(findings) else []
    return found_again(fits, rows.X, posterior, findings)


def found_again(fits: Sequence[Posterior], X: Array, posterior: Posterior, findings: Sequence[Index]) -> Replication:
    """Look for every finding in the fits to two halves, or to another part; X are rows of the whole, or a root of their Gram
    matrix.
    """
    probability = np.zeros((len(findings), len(fits)))
    for i, finding in enumerate(findings):
        whole = common_effect(posterior, X, finding)
        q = int(np.argmax(np.abs(whole.mean(axis=0)) / np.maximum(whole.std(axis=0), np.finfo(float).tiny)))
        sign = np.sign(whole[:, q].mean())
        for h, fit in enumerate(fits):
            probability[i, h] = float((np.sign(common_effect(fit, X, finding)[:, q]) == sign).mean())
    return Replication(tuple(np.asarray(f) for f in findings), probability)


def common_effect(posterior: Posterior, X: Array, members: Index) -> Array:
    """Draws (draw, response) of a set's common effect: the coefficients' sum, signed as the members correlate with the first."""
    columns = X[:, members]
    weight = np.where(columns[:, 0] @ columns < 0, -1.0, 1.0) * np.sqrt((columns**2).mean(axis=0))
    C = posterior.draws_of(members)
    return np.asarray(np.einsum("cdpq,p->cdq", C, weight, optimize=True).reshape(-1, C.shape[3]))
