"""Prediction from sparse fits and a dense one, weighed by how well each predicts sketch rows it has not seen.

The rows of a sketch are exchangeable, so that leaving some of them out is a fair test of prediction, and costs no privacy. The
sparse model is fitted again with a fifth of the rows left out in turn (short chains), a ridge likewise, and so is
another sparse model where there is one. Then

    prediction = Σ weight_k · sparse_k + (1 − Σ weight_k) · ridge,    weight_k ~ N(0, SHRINK) a priori,  weights and rest ≥ 0,

with the same weights for all responses: the least-squares ones on the rows left out, drawn towards the ridge by the prior. Where
few rows tell the predictions apart the ridge is the safer choice; where many do the prior hardly matters. Selection, coefficients
and their intervals stay with the first sparse model: the weighing serves prediction alone.

The other sparse model is the same with independent noise, where the first one lets the responses' noise correlate. What responses
have in common is signal to the one and noise to the other, and where features are many and rows few nothing but a test on rows
left out can tell which it is. The other model is used where it betters their prediction by more than CLEARLY standard errors:
with few rows and responses that go together it may seem better by chance, and can do much harm.

A mean of predictions varies less than what it predicts calls for. For responses in `stretched` (yes or no, whose predictions
become probabilities) it is multiplied by the slope of the rows left out on their prediction, drawn towards 1 by a prior as above.

Rows may lack responses (NaN in Y): each response is judged by the rows that have it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar, nnls

from intarsia.server.assess.leave_one_out import out_of_sample
from intarsia.server.posterior.draws import Draws

Array = NDArray[np.float64]

FOLDS = 5
CLEARLY = 2.0  # standard errors by which another way to predict rows left out must be better to be taken
SHRINK = 0.03  # prior variance of the weight of a sparse fit, and of the factor of a prediction
MOST_FEATURES_REFITTED = 20_000  # beyond, fitting again costs more than it tells
WIDER = 1.75  # measured: `python -m experiments.outcomes --parts predicted`
FEWEST_ROWS = 10  # below so many sketch rows nothing can be left out
_NOUGHT = 1e-12  # of the largest
# log k of a ridge is searched in overlapping brackets: the evidence may have a local maximum at either end.
_BRACKETS = [(low, low + 6.0) for low in np.arange(-22.0, 6.0, 4.0)]
_GRID = np.arange(-22.0, 8.5, 0.5)  # of log k, where rows are left out


@dataclass(frozen=True)
class Weighed:
    """What is added to the sparse coefficients (P, Q) and to the covariates' effects (c, Q) to predict, and how well that does on
    rows left out.
    """

    coefficients: Annotated[Array, "feature", "response"]
    effects: Annotated[Array, "covariate", "response"]
    spread: Annotated[Array, "response"]  # mean squared error over the variance that the sparse model had foretold
    r2: Annotated[Array, "response"]  # 1 − squared error / squared response
    r2_se: Annotated[Array, "response"]
    alike: Annotated[Array, "response"]  # squared correlation with the prediction; 0 where that goes the wrong way
    rows: Annotated[Array, "response"]  # how many there are
    weight: float  # of the sparse coefficients
    weight_independent: float = 0.0  # of those with independent noise; the ridge has the rest


def fold_of_rows(m: int, folds: int = FOLDS) -> NDArray[np.int64]:
    """Which part each row belongs to: at random, for rows that are not sketched may come in an order, by person or by plate."""
    return np.random.default_rng([m, folds]).permutation(np.arange(m) % folds)


def stack(
    X: Array,
    Y: Array,
    sparse: Array,
    fit: Callable[[Array, Array], Draws],
    other: Callable[[Array, Array], Array] | None = None,
    folds: int = FOLDS,
    stretched: NDArray[np.bool_] | None = None,
) -> Weighed | None:
    """Weigh the sparse fit (its coefficients `sparse` from all rows) with a ridge; None when there are too few rows.

    `fit(X, Y)` fits the sparse model to the rows that are not left out, `other(X, Y)` gives the coefficients of another model.
    No covariates are known here.
    """
    if len(X) < max(FEWEST_ROWS, 2 * folds):
        return None
    ways = [ridge] if other is None else [ridge, other]
    from_sparse, variance, from_others = left_out(X, Y, fit, ways, folds)
    predictions = np.stack([from_others[0], from_sparse, *from_others[1:]])
    weights = best_weights(Y, predictions[:2])
    predicted = np.tensordot(weights, predictions[:2], axes=1)
    if other is not None:
        three = best_weights(Y, predictions)
        better = np.tensordot(three, predictions, axes=1)
        if standard_errors_better(Y, better, predicted) > CLEARLY:
            weights, predicted = three, better
    factor = np.ones(Y.shape[1]) if stretched is None else np.where(stretched, best_factor(Y, predicted), 1.0)
    predicted, there = factor * predicted, ~np.isnan(Y)
    each = [out_of_sample(Y[rows, q], predicted[rows, q]) for q, rows in enumerate(there.T)]
    coefficients = weights[0] * ridge(X, Y) + weights[1] * sparse
    if other is not None and len(weights) > 2:
        coefficients += weights[2] * other(X, Y)
    return Weighed(
        coefficients=factor * coefficients - sparse,
        effects=np.zeros((0, Y.shape[1])),
        spread=np.nansum(np.square(Y - predicted), axis=0) / np.maximum(np.where(there, variance, 0.0).sum(axis=0), 1e-300),
        r2=np.array([r2 for r2, _ in each]),
        r2_se=np.array([se for _, se in each]),
        alike=squared_correlation(np.where(there, Y, 0.0), np.where(there, predicted, 0.0)),
        rows=there.sum(axis=0).astype(np.float64),
        weight=float(weights[1]),
        weight_independent=float(weights[2:].sum()),
    )


def left_out(
    X: Array, Y: Array, fit: Callable[[Array, Array], Draws], ways: Sequence[Callable[[Array, Array], Array]], folds: int = FOLDS
) -> tuple[Array, Array, Array]:
    """Every row predicted from the rows of the other parts: the sparse fit's mean and variance (m×Q), and what the
    coefficients found in each of the other `ways` say (way, m, Q)."""
    part = fold_of_rows(len(X), folds)
    from_sparse, variance, others = np.empty_like(Y), np.empty_like(Y), np.empty((len(ways), *Y.shape))
    for k in range(folds):
        out = part == k
        from_sparse[out], variance[out] = foretold(fit(X[~out], Y[~out]), X[out])
        for other, way in zip(others, ways, strict=True):
            other[out] = X[out] @ way(X[~out], Y[~out])
    return from_sparse, variance, others


def foretold(draws: Draws, X: Array) -> tuple[Array, Array]:
    """Mean and variance of the responses of new rows, noise included."""
    fitted = draws.fitted(X)
    return fitted.mean(axis=0), fitted.var(axis=0) + draws.sigma2.mean(axis=(0, 1))


def squared_correlation(Y: Array, predicted: Array) -> Array:
    """(Q) Of responses with their prediction, both with mean zero as a sketch's rows are; 0 where they go against each other."""
    both = np.square(Y).sum(axis=0) * np.square(predicted).sum(axis=0)
    return np.asarray(np.square(np.maximum((Y * predicted).sum(axis=0), 0.0)) / np.where(both > 0, both, 1.0))


def best_weights(Y: Array, predictions: Array) -> Array:
    """The posterior mode of the weights, given several predictions (way, m, Q) of rows that no fit has seen; the first is the
    ridge's, which has no prior. None is negative and their sum is 1."""
    variance = np.nanmean(np.square(Y - predictions.mean(axis=0)), axis=0)
    sd = np.sqrt(np.maximum(variance, 1e-12 * np.nanmean(np.square(Y)) + 1e-300))
    left, apart = (np.where(np.isnan(Y), 0.0, values) / sd for values in (Y - predictions[0], predictions[1:] - predictions[0]))
    K = len(apart)
    columns = np.vstack([apart.reshape(K, -1).T, np.eye(K) / np.sqrt(SHRINK)])
    target = np.append(left.ravel(), np.zeros(K))
    # The rest is the ridge's: one more number that is not negative, and a last row so heavy that the sum is 1.
    heavy = 1e6 * np.sqrt(1 + np.square(columns).sum() + np.square(target).sum())
    columns = np.vstack([np.hstack([np.zeros((len(columns), 1)), columns]), np.full((1, K + 1), heavy)])
    return np.asarray(nnls(columns, np.append(target, heavy))[0])


def best_factor(Y: Array, predicted: Array) -> Array:
    """(Q) The slope of rows on their prediction from the others, drawn towards 1: above 1 where predictions are too timid."""
    variance = np.nanmean(np.square(Y - predicted), axis=0) + 1e-300
    told = np.square(np.where(np.isnan(Y), 0.0, predicted)).sum(axis=0) / variance
    return np.asarray((np.nansum(Y * predicted, axis=0) / variance + 1 / SHRINK) / (told + 1 / SHRINK))


def from_all_rows(alike: Array, noise: Array, folds: int = FOLDS) -> Array:
    """The share of variance that the fit to all rows explains in new ones, where refits without one part explained `alike`.

    Of 1 − σ², which could be explained, a fit explains x/(1 + x), with x in proportion to its number of rows: in the beginning
    each row adds as much as the one before, and near the end hardly any. So whatever σ² is, a fit to all rows explains at most
    folds/(folds − 1) times as much.
    """
    more = folds / (folds - 1)
    could = np.maximum(1.0 - noise, alike)
    share = np.divide(alike, could, out=np.zeros_like(alike), where=could > 0)
    return np.asarray(more * alike / (1.0 + (more - 1.0) * share))


def interval_of_explained(explained: Array, rows: Array | int, probability: float) -> tuple[Array, Array]:
    """Where the share of variance explained in new subjects lies, by Fisher's transformation of the correlation on so many rows.

    The prediction of a row left out rests on most of the same rows as that of the next one, and the fit to all rows on still
    others: together they make the estimate WIDER times as uncertain as so many independent rows would.
    """
    reach = NormalDist().inv_cdf((1 + probability) / 2) * WIDER / np.sqrt(np.maximum(np.asarray(rows) - 3.0, 1.0))
    z = np.arctanh(np.sqrt(np.clip(explained, 0.0, 1 - 1e-12)))
    low, high = (np.square(np.tanh(np.maximum(z + side * reach, 0.0))) for side in (-1, 1))
    return low, high


def standard_errors_better(Y: Array, one: Array, than: Array) -> float:
    """By how many standard errors the first prediction is the better one, each row (all its responses together) counting once."""
    before, after = np.square(Y - than), np.square(Y - one)
    gain = np.nansum((before - after) / np.maximum(np.nanmean(before, axis=0), 1e-300), axis=1)
    size = float(np.sqrt(np.square(gain).sum()))
    return float(gain.sum() / size) if size > 0 else 0.0


def ridge(X: Array, Y: Array) -> Array:
    """Coefficients (P×Q) of Y on X, both of whose rows are centred or sketched; one penalty per response, in closed form.

    For one response y ~ N(0, σ² (I + k XXᵀ)): the coefficients are N(0, k σ²), σ² is profiled out and k is where the marginal
    likelihood, the evidence, is largest. That is best where all directions of the features matter alike. Where they do not (a few
    leading components carry the signal, as in gene expression, or the small ones do) the evidence answers another question than
    how well new rows are predicted, and the k that predicts each row best from the others is taken: for all responses, if their
    predictions together are clearly better with it. One eigendecomposition serves all of that.
    """
    there = ~np.isnan(Y)
    if not there.all():  # each response over the rows that have it
        return np.hstack([ridge(X[rows], Y[rows, q : q + 1]) for q, rows in enumerate(there.T)])
    size = np.sqrt(np.square(X).sum() / X.shape[1])  # root mean square length of a column: k has no unit then
    X = X / size if size > 0 else X
    system = _System.of(X, Y)
    log_k = np.array([_most_evident(system.values, square) for square in np.square(system.projected).T])
    other = system.best_left_out()
    if standard_errors_better(Y, Y - system.left_out(other), Y - system.left_out(log_k)) > CLEARLY:
        log_k = other
    found = X.T @ system.solved(log_k)
    return found / size if size > 0 else found


def _most_evident(values: Array, square: Array) -> float:
    """log k where the evidence of one response is largest; `square` are its squared coordinates along the eigenvectors."""
    if not square.any():
        return _BRACKETS[0][0]

    def minus_evidence(log_k: float) -> float:
        d = 1 + np.exp(log_k) * values
        return float(0.5 * values.size * np.log((square / d).mean()) + 0.5 * np.log(d).sum())

    found = [minimize_scalar(minus_evidence, bounds=bounds, method="bounded") for bounds in _BRACKETS]
    return float(min(found, key=lambda result: result.fun).x)


class _System(NamedTuple):
    """XXᵀ by its eigenvalues and eigenvectors, and Y's coordinates along these."""

    values: Array
    vectors: Array
    projected: Array
    intercept: Array  # (m) what each row has of the directions that centring has taken away

    @classmethod
    def of(cls, X: Array, Y: Array) -> "_System":
        values, vectors = np.linalg.eigh(X @ X.T)
        values = np.maximum(values, 0.0)
        projected = vectors.T @ Y
        # Centred rows have a direction in which X and Y are nought: no observation. Counted as one it would favour overfitting.
        told = (values > _NOUGHT * values.max()) | (np.square(projected) > _NOUGHT * np.square(Y).sum(axis=0)).any(axis=1)
        return cls(values[told], vectors[:, told], projected[told], np.square(vectors[:, ~told]).sum(axis=1))

    def solved(self, log_k: Array) -> Array:
        """(m×Q) k (I + k XXᵀ)⁻¹ y of each response with its own k."""
        k = np.exp(log_k)
        return self.vectors @ (k * self.projected / (1 + np.outer(self.values, k)))

    def left_out(self, log_k: Array) -> Array:
        """(m×Q) error of each row's prediction from the others, each response with its own k."""
        rest = 1 / (1 + np.outer(self.values, np.exp(log_k)))
        weight = 1 - self.intercept[:, None] - np.square(self.vectors) @ (1 - rest)
        return self.vectors @ (rest * self.projected) / np.maximum(weight, _NOUGHT)

    def best_left_out(self) -> Array:
        """(Q) log k with which each response's rows are predicted best from the others."""
        errors = [np.square(self.left_out(at * np.ones(self.projected.shape[1]))).sum(axis=0) for at in _GRID]
        return np.asarray(_GRID[np.argmin(errors, axis=0)])
