"""What a fit predicts with: its sparse coefficients, those with independent noise and a ridge's, weighed by rows left out.

The estimator and studies predict in the same way.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from intarsia.server.assess.stacking import FOLDS, MOST_FEATURES_REFITTED, Weighed, stack
from intarsia.server.covariates import Fitted
from intarsia.server.posterior.draws import Draws
from intarsia.server.sampler.sample import AnyModel
from intarsia.server.sampler.settings import Length, Settings

Array = NDArray[np.float64]
Run = Callable[[Array, Array, AnyModel, Settings], Draws]

BEYOND_CHANCE = 2.0  # times the mean squared correlation of so many rows of independent noise, 1/m


def refit_settings(settings: Settings, length: Length) -> Settings:
    """A short run of one chain, no longer than the fit itself."""
    return Settings(
        draws=length.draws if settings.draws is None else max(4, min(settings.draws, length.draws)),
        warmup=length.warmup if settings.warmup is None else min(settings.warmup, length.warmup),
        chains=1,
        thin=length.thin,
        seed=settings.seed,
        workers=1,
    )


def weigh(
    fitted: Fitted,
    run: Run,
    model: AnyModel,
    settings: Settings,
    folds: int = FOLDS,
    stretched: NDArray[np.bool_] | None = None,
) -> Weighed | None:
    """Refit without a part of the rows in turn (`run`, short); None with nothing to weigh or too much to refit.

    `stretched` are the responses whose predictions become probabilities.
    """
    X, Y = fitted.X, fitted.Y
    if not folds or not X.shape[1] or not Y.shape[1] or X.shape[1] > MOST_FEATURES_REFITTED:
        return None

    short, model = refit_settings(settings, model.REFIT), model.for_refit()

    def again(X: Array, Y: Array) -> Draws:
        return run(X, Y, model, short)

    def independent(X: Array, Y: Array) -> Array:
        return run(X, Y, replace(model, noise="independent"), short).prediction_mean()

    other = independent if model.noise == "correlated" and shares_noise(fitted.draws, len(Y)) else None
    stacked = stack(X, Y, fitted.draws.prediction_mean(), again, other, folds, stretched)
    if stacked is None:
        return None
    left = fitted.share_left()
    r2, alike = (1 - (1 - values) * left for values in (stacked.r2, stacked.alike))
    effects = fitted.effects_follow(stacked.coefficients)
    return replace(stacked, effects=effects, r2=r2, r2_se=stacked.r2_se * left, alike=alike)


def shares_noise(draws: Draws, rows: int) -> bool:
    """Does the responses' noise correlate beyond chance? Where it does not, independent noise makes the same fit once more."""
    Sigma = draws.Sigma.mean(axis=(0, 1))
    sd = np.sqrt(np.diagonal(Sigma))
    correlations = (Sigma / np.outer(sd, sd))[np.triu_indices(len(Sigma), 1)]
    return rows * float(np.square(correlations).sum()) > BEYOND_CHANCE * correlations.size
