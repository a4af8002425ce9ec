"""Prediction from a sparse and a dense fit, weighed by how well each predicts sketch rows it has not seen.

The rows of a sketch are exchangeable, so that leaving some of them out is a fair test of prediction, and costs no privacy. The
sparse model is fitted again with a fifth of the rows left out in turn (short chains), the ridge of `ridge` likewise. Then

    prediction = weight · sparse + (1 − weight) · ridge,    weight ~ N(0, SHRINK) a priori,  0 ≤ weight ≤ 1,

with one weight for all responses: the least-squares one on the rows left out, drawn towards the ridge by the prior. Where few
rows tell the two apart the ridge is the safer choice; where many do the prior hardly matters. Selection, coefficients and their
intervals stay with the sparse model: the weighing serves prediction alone.

A mean of two predictions varies less than what it predicts calls for. For responses in `stretched` (yes or no, whose predictions
become probabilities) it is multiplied by the slope of the rows left out on their prediction, drawn towards 1 by a prior as above.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from intarsia.server.results.ridge import ridge
from intarsia.server.results.rows import out_of_sample

Array = NDArray[np.float64]

FOLDS = 5
SHRINK = 0.03  # prior variance of the weight of the sparse fit, and of the factor of a prediction
MOST_FEATURES_REFITTED = 20_000  # beyond, fitting again costs more than it tells
FEWEST_ROWS = 10  # below so many sketch rows nothing can be left out


@dataclass(frozen=True)
class Refit:
    """The sparse model fitted to some of the rows: draws of C (draw, P, Q) and the posterior mean of Sigma (Q, Q)."""

    C: Array
    Sigma: Array

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Mean and variance of the responses of new rows, noise included."""
        fitted = np.einsum("mp,spq->smq", X, self.C, optimize=True)
        return fitted.mean(axis=0), fitted.var(axis=0) + np.diagonal(self.Sigma)


@dataclass(frozen=True)
class Stacked:
    """What the rows left out say, and the way to the coefficients to predict with."""

    change: Array  # (P, Q): what takes the sparse coefficients to those that predict
    weight: float
    r2: Array  # (Q) 1 − squared error / squared response, on rows left out, of the weighed prediction
    r2_se: Array  # its standard error
    spread: Array  # (Q) mean squared error over the variance that the sparse model had foretold


@dataclass(frozen=True)
class Weighed:
    """What is added to the sparse coefficients (P, Q) and to the covariates' effects (c, Q) to predict, and how well it does."""

    coefficients: Array
    effects: Array
    spread: Array  # (Q) mean squared error on rows left out, over the variance that the sparse model had foretold
    r2: Array  # (Q) share of variance explained on rows left out
    r2_se: Array
    weight: float  # of the sparse coefficients


def fold_of_rows(m: int, folds: int = FOLDS) -> NDArray[np.int64]:
    """Which part each row belongs to: at random, for rows that are not sketched may come in an order, by person or by plate."""
    return np.random.default_rng([m, folds]).permutation(np.arange(m) % folds)


def stack(
    X: Array,
    Y: Array,
    sparse: Array,
    fit: Callable[[Array, Array], Refit],
    folds: int = FOLDS,
    stretched: NDArray[np.bool_] | None = None,
) -> Stacked | None:
    """Weigh the sparse fit (its coefficients `sparse` from all rows) with a ridge; None when there are too few rows.

    `fit(X, Y)` fits the sparse model to the rows that are not left out.
    """
    m = len(X)
    if m < max(FEWEST_ROWS, 2 * folds):
        return None
    part = fold_of_rows(m, folds)
    from_sparse, variance, from_ridge = np.empty_like(Y), np.empty_like(Y), np.empty_like(Y)
    for k in range(folds):
        out = part == k
        from_sparse[out], variance[out] = fit(X[~out], Y[~out]).predict(X[out])
        from_ridge[out] = X[out] @ ridge(X[~out], Y[~out])
    weight = best_weight(Y, from_sparse, from_ridge)
    predicted = weight * from_sparse + (1 - weight) * from_ridge
    factor = np.ones(Y.shape[1]) if stretched is None else np.where(stretched, best_factor(Y, predicted), 1.0)
    predicted = factor * predicted
    r2, r2_se = out_of_sample(Y, predicted)
    return Stacked(
        change=factor * (sparse + (1 - weight) * (ridge(X, Y) - sparse)) - sparse,
        weight=weight,
        r2=r2,
        r2_se=r2_se,
        spread=np.square(Y - predicted).mean(axis=0) / np.maximum(variance.mean(axis=0), 1e-300),
    )


def best_weight(Y: Array, from_sparse: Array, from_ridge: Array) -> float:
    """The posterior mode of the weight, given both predictions (m×Q) of rows neither fit has seen."""
    variance = np.square(Y - (from_sparse + from_ridge) / 2).mean(axis=0)
    variance = np.maximum(variance, 1e-12 * np.square(Y).mean() + 1e-300)
    apart = from_sparse - from_ridge
    pull = ((Y - from_ridge) * apart / variance).sum()
    return float(np.clip(pull / (np.square(apart / np.sqrt(variance)).sum() + 1 / SHRINK), 0.0, 1.0))


def best_factor(Y: Array, predicted: Array) -> Array:
    """(Q) The slope of rows on their prediction from the others, drawn towards 1: above 1 where predictions are too timid."""
    variance = np.square(Y - predicted).mean(axis=0) + 1e-300
    told = np.square(predicted).sum(axis=0) / variance
    return np.asarray(((Y * predicted).sum(axis=0) / variance + 1 / SHRINK) / (told + 1 / SHRINK))


def from_all_rows(r2: Array, noise: Array, folds: int = FOLDS) -> Array:
    """The share of variance that the fit to all rows explains in new ones, where refits without one part in turn explained r2.

    What a fit lacks of 1 − σ², which could be explained, goes about like one over its number of rows: the rows that the refits
    did not have make up 1/folds of it.
    """
    return np.asarray(r2 + np.maximum(1.0 - noise - r2, 0.0) / folds)
