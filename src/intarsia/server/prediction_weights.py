"""What a fit predicts with: its sparse coefficients weighed with a ridge by rows left out, for the estimator and for studies."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from intarsia.server.covariates import Fitted
from intarsia.server.results.draws import Draws
from intarsia.server.results.stacking import FOLDS, MOST_FEATURES_REFITTED, Refit, Weighed, stack
from intarsia.server.sampler.settings import Settings

Array = NDArray[np.float64]

# The length of a refit: it weighs two predictions and is not reported itself.
REFIT_DRAWS, REFIT_WARMUP, REFIT_THIN = 100, 250, 4


def refit_settings(settings: Settings) -> Settings:
    """A short run of one chain in this process, no longer than the fit itself."""
    draws = max(4, min(settings.draws, REFIT_DRAWS))
    warmup = REFIT_WARMUP if settings.warmup is None else min(settings.warmup, REFIT_WARMUP)
    return Settings(draws, warmup, chains=1, thin=REFIT_THIN, seed=settings.seed, workers=1)


def weigh(
    fitted: Fitted, refit: Callable[[Array, Array], Draws], folds: int = FOLDS, stretched: NDArray[np.bool_] | None = None
) -> Weighed | None:
    """Refit without a part of the rows in turn (`refit(X, Y)`, short); None with nothing to weigh or too much to refit.

    `stretched` are the responses whose predictions become probabilities.
    """
    X, Y = fitted.X, fitted.Y
    if not folds or not X.shape[1] or not Y.shape[1] or X.shape[1] > MOST_FEATURES_REFITTED:
        return None

    def again(X: Array, Y: Array) -> Refit:
        draws = refit(X, Y)
        return Refit(draws.whole[0], draws.Sigma[0].mean(axis=0))

    stacked = stack(X, Y, fitted.draws.mean(), again, folds, stretched)
    if stacked is None:
        return None
    left = fitted.share_left()
    effects = fitted.effects_follow(stacked.change)
    r2, alike = (1 - (1 - values) * left for values in (stacked.r2, stacked.alike))
    return Weighed(stacked.change, effects, stacked.spread, r2, stacked.r2_se * left, alike, stacked.rows, stacked.weight)
