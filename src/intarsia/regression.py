"""`ReducedRankHorseshoe`: the model as a scikit-learn estimator, for data that lie in one place.

    model = ReducedRankHorseshoe(random_state=0).fit(X, Y)
    model.diagnosis_.verdict, model.coef_, model.interval(0.95), model.selected_, model.groups_, model.r2_loo_

Columns are centred and scaled inside; every result is in the data's own units.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from intarsia.errors import InputError
from intarsia.prepared import Prepared, covariate_places
from intarsia.server.covariates import Covariates, Fitted, sample_adjusted
from intarsia.server.results.draws import Draws, diagonal
from intarsia.server.results.judgement import judge
from intarsia.server.results.leave_one_out import Rows
from intarsia.server.results.posterior import CovariateEffects, Posterior
from intarsia.server.results.stacking import FOLDS, MOST_FEATURES_REFITTED, Refit, Stacked, stack
from intarsia.server.results.verdict import Diagnosis
from intarsia.wire.defaults import CHAINS, DRAWS, THIN, WARMUP
from intarsia.wire.messages import Joined, Sketch, join

Array = NDArray[np.float64]


class NotConvergedWarning(ConvergenceWarning):
    """The chains do not agree, or there are too few draws: what was found is provisional."""


class ReducedRankHorseshoe(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Bayesian reduced-rank regression with a horseshoe prior: Y = X B Aᵀ + Z Γ + E.

    Parameters
    ----------
    sketch : number of sketch rows; the data are then sketched first, under a fresh key that is thrown away.
    covariates : names or positions of columns of X to adjust for: no shrinkage, not features.
    noise : "correlated" between the responses (a full Σ), "independent", or "jeffreys" (the paper's; independent, and
        improper with no more rows than features).
    expected_features : how many features you expect to matter; by default nothing is assumed.
    fdr : rate of false discoveries of `selected_` and `groups_`.
    random_state : seed of the sampler and of `sketch` (data in one place need no secret; the sites of a study share a key).
    local : "row" (one local scale per feature) or "element" (one per feature and component, the paper's).
    rank : number of components R, at most the number of responses; by default that number.
    law : the global-local law, "horseshoe" by default.
    power : power of the likelihood (fractional posterior), in (0, 1].
    draws, warmup, chains, thin : length of the run; each chain keeps `draws` draws after `warmup`, one in `thin`.
    selection : "bfdr" or "mixture", how `selected_` is found.
    n_jobs : processes the chains run in; by default as many as pay. The draws do not depend on it.
    progress : called with the sampler's progress; by default a bar is shown on a terminal, with False never.
    backend : "numpy", or "jax" to sample on an accelerator (`pip install 'intarsia[gpu]'`).
    folds : in how many parts rows are left out in turn to judge and weigh predictions; 0: not at all.

    Attributes
    ----------
    diagnosis_ : R̂ and effective sample sizes of every coefficient, and a verdict. Read it first: what follows is
        provisional until the fit has converged.
    coef_ : posterior means (Q, P), or (P,) when y had one dimension; P counts the features, without the covariates.
    covariate_coef_ : the covariates' effects (Q, c), or (c,).
    intercept_ : (Q,) or a number.
    selected_ : which features matter (P,); `selection_` has the evidence.
    groups_ : what was found, a list of index arrays: each selected feature, then each set of interchangeable features one
        of which matters.
    noise_covariance_ : posterior mean of Σ (Q, Q).
    prediction_coef_ : coefficients that `predict` uses, shaped as `coef_`: the sparse ones and a ridge's, weighed by how well
        each predicts rows left out; `stacking_weight_` is the sparse ones' weight.
    r2_loo_ : out-of-sample share of variance explained (Q,), from rows left out (with folds=0: by weighting the draws, which is
        too hopeful when there are more features than rows; `loo_` has more).
    posterior_ : the draws, labelled, in the data's units.
    """

    coef_: Array
    covariate_coef_: Array
    intercept_: Any
    r2_loo_: Array

    def __init__(
        self,
        sketch: int | None = None,
        covariates: Sequence[Any] | None = None,
        noise: str = "correlated",
        expected_features: float | None = None,
        fdr: float = 0.05,
        random_state: int | np.random.RandomState | None = None,
        *,
        local: str = "row",
        rank: int | None = None,
        law: str = "horseshoe",
        power: float = 1.0,
        draws: int = DRAWS,
        warmup: int = WARMUP,
        chains: int = CHAINS,
        thin: int = THIN,
        selection: str = "bfdr",
        n_jobs: int | None = None,
        progress: Callable[..., Any] | bool | None = None,
        backend: str = "numpy",
        folds: int = FOLDS,
    ) -> None:
        self.sketch = sketch
        self.covariates = covariates
        self.noise = noise
        self.expected_features = expected_features
        self.fdr = fdr
        self.random_state = random_state
        self.local = local
        self.rank = rank
        self.law = law
        self.power = power
        self.draws = draws
        self.warmup = warmup
        self.chains = chains
        self.thin = thin
        self.selection = selection
        self.n_jobs = n_jobs
        self.progress = progress
        self.backend = backend
        self.folds = folds

    def fit(self, X: Any, y: Any) -> "ReducedRankHorseshoe":
        """Draw the posterior of the coefficients given X (n, features and covariates) and y (n,) or (n, Q)."""
        self._check_parameters()
        responses = getattr(y, "columns", None)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2)
        names = getattr(self, "feature_names_in_", None)
        self._covariates = covariate_places(self.covariates, X.shape[1], names)
        every = np.arange(X.shape[1]) if names is None else names
        Y = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        features, Z = self._split(X)
        data = Prepared.of(features, Y, Z, None if self.sketch is None else int(self.sketch), seed)
        labels = tuple(str(every[j]) for j in self._covariates)
        fitted = sample_adjusted(
            lambda X, Y: self._sample(X, Y, seed), data.X, data.Y, Covariates(data.Z, labels), seed, self.power
        )
        stacked = self._stack(fitted, seed)
        draws, Gamma = data.all_columns(fitted.draws, fitted.Gamma)
        draws, Gamma = data.own_units(draws, Gamma)
        intercept = data.intercept(draws, Gamma, np.random.default_rng([seed, 1]))
        own = None if names is None else [str(name) for name in np.delete(names, self._covariates)]
        self.posterior_ = Posterior.from_draws(
            draws,
            features=own,
            responses=responses,
            intercept=intercept,
            effects=None if Gamma is None else CovariateEffects(Gamma, labels),
        )
        self._finish(data.rows(), data.x.put_back(fitted.X) * data.x.scale, flat=y.ndim == 1)
        self._keep_stacked(stacked, fitted, data)
        return self

    def fit_sketch(self, joined: Joined) -> "ReducedRankHorseshoe":
        """Fit the sites' joined sketches. Coefficients are per standard deviation; there is no intercept."""
        self._check_parameters()
        if self.sketch is not None or self.covariates is not None:
            raise InputError(
                "These data are sketched already and bring their own covariates; leave sketch=None and covariates=None."
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        covariates = Covariates.of(joined)
        X, Y = (np.asarray(a, dtype=np.float64) for a in (joined.X, joined.Y))
        noisy = any(joined.feature_noise) or any(joined.response_noise)

        def run(X: Array, Y: Array) -> Draws:
            return self._sample_noisy(joined, X, Y, seed) if noisy else self._sample(X, Y, seed)

        fitted = sample_adjusted(run, X, Y, covariates, seed, self.power)
        stacked = None if noisy else self._stack(fitted, seed)
        self._covariates = len(joined.features) + np.arange(len(covariates.names))
        self.n_features_in_ = len(joined.features) + len(self._covariates)
        self.feature_names_in_ = np.asarray([*joined.features, *covariates.names], dtype=object)
        self.posterior_ = Posterior.from_draws(
            fitted.draws,
            features=joined.features,
            responses=joined.responses,
            feature_sites=joined.feature_sites,
            response_sites=joined.response_sites,
            effects=None if fitted.Gamma is None else CovariateEffects(fitted.Gamma, covariates.names, covariates.sites),
        )
        self._finish(Rows(X, Y, covariates.Z), fitted.X, flat=False)
        self._keep_stacked(stacked, fitted)
        return self

    @classmethod
    def from_sketches(cls, sketches: Sequence[Sketch], **parameters: Any) -> "ReducedRankHorseshoe":
        """An estimator with these parameters, fitted to the sketches of several sites."""
        return cls(**parameters).fit_sketch(join(sketches))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predicted responses, and with `return_std` their standard deviations, noise included; X as it was fitted.

        The sparse model's prediction is weighed with a ridge's (`stacking_weight_`), and the standard deviations are those
        of the sparse model, scaled to the errors on rows left out. `predict_draws` is the sparse model's alone.
        """
        check_is_fitted(self)
        features, Z = self._split(validate_data(self, X, dtype=np.float64, reset=False))
        mean = features @ self.prediction_coef_.T + self._prediction_intercept
        if Z.shape[1]:
            mean = mean + Z @ self._prediction_effects.T
        if not return_std:
            return mean
        sd = self.posterior_.predict(features, Z)[1] * np.sqrt(self._prediction_spread)
        return mean, sd[:, 0] if mean.ndim == 1 else sd

    def predict_draws(self, X: Any, noise: bool = True, random_state: int | None = None) -> xr.DataArray:
        """Posterior predictive draws (chain, draw, row, response), joint over the responses."""
        check_is_fitted(self)
        features, Z = self._split(validate_data(self, X, dtype=np.float64, reset=False))
        return self.posterior_.predictive_draws(features, Z, noise=noise, rng=np.random.default_rng(random_state))

    def interval(self, probability: float) -> tuple[Array, Array]:
        """Lower and upper ends of every coefficient's equal-tailed credible interval, shaped as `coef_`."""
        check_is_fitted(self)
        lower, upper = self.posterior_.interval(probability)
        shape = self.coef_.shape
        return lower.values.T.reshape(shape), upper.values.T.reshape(shape)

    def covariate_interval(self, probability: float) -> tuple[Array, Array]:
        """Lower and upper ends of every covariate effect's credible interval, shaped as `covariate_coef_`."""
        check_is_fitted(self)
        found = self.posterior_.covariate_summary(probability)
        shape = self.covariate_coef_.shape
        return found["lower"].T.reshape(shape), found["upper"].T.reshape(shape)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The parameters, and for a fitted model its verdict before anything it found."""
        parameters = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "diagnosis_"):
            return parameters
        fine = self.diagnosis_.converged
        count = f"{int(self.selected_.sum())} of {len(self.selected_)} features selected"
        count += f" and {len(self.selection_.groups)} sets of interchangeable ones" if self.selection_.groups else ""
        return f"{self.diagnosis_.headline}\n{count}{'' if fine else ' (provisional: the fit has not converged)'}\n{parameters}"

    def _check_parameters(self) -> None:
        for name, least in (("draws", 4), ("warmup", 0), ("chains", 1), ("sketch", 1), ("rank", 1), ("thin", 1)):
            value = getattr(self, name)
            if value is None and name in ("sketch", "rank"):
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise InputError(f"{name}={value!r}; expected a whole number of at least {least}.")

    def _split(self, X: Array) -> tuple[Array, Array]:
        """Features and covariates, each in the order of their columns (covariates in the order they were named)."""
        return np.delete(X, self._covariates, axis=1), X[:, self._covariates]

    def _sample(self, X: Array, Y: Array, seed: int) -> Draws:
        from intarsia.server.sampler.sample import sample

        if not X.shape[1] or not Y.shape[1]:  # every column constant: nothing to learn
            empty = np.zeros((self.chains, self.draws, X.shape[1], Y.shape[1]))
            return Draws(empty, diagonal(np.ones((*empty.shape[:2], Y.shape[1]))), np.zeros((*empty.shape[:2], 1)))
        with self._progress() as progress:
            return sample(X, Y, self._model(Y.shape[1]), **self._run(seed, progress), backend=self.backend)

    def _stack(self, fitted: Fitted, seed: int) -> Stacked | None:
        """Weigh the sparse fit with a ridge by rows left out, for prediction; None where it is not asked for or not possible."""
        X, Y = fitted.X, fitted.Y
        if not self.folds or not X.shape[1] or not Y.shape[1] or X.shape[1] > MOST_FEATURES_REFITTED:
            return None
        from intarsia.server.sampler.sample import sample

        short: dict[str, Any] = {"draws": max(4, min(self.draws, 100)), "warmup": min(self.warmup, 250), "thin": 4, "chains": 1}

        def refit(X: Array, Y: Array) -> Refit:
            draws = sample(X, Y, self._model(Y.shape[1]), **short, seed=seed, workers=1)
            return Refit(draws.C[0], draws.Sigma[0].mean(axis=0))

        return stack(X, Y, fitted.draws.C.mean(axis=(0, 1)), refit, self.folds)

    def _keep_stacked(self, stacked: Stacked | None, fitted: Fitted, data: Prepared | None = None) -> None:
        """Coefficients to predict with, in the data's units, under scikit-learn's names."""
        flat = self.coef_.ndim == 1
        coef, effects, level = np.atleast_2d(self.coef_).T, np.atleast_2d(self.covariate_coef_).T, np.atleast_1d(self.intercept_)
        spread = np.ones(coef.shape[1])
        self.stacking_weight_ = 1.0
        if stacked is not None:
            change, follow = stacked.change, fitted.effects_follow(stacked.change)
            r2, more = 1 - (1 - stacked.r2) * fitted.share_left(), stacked.spread
            if data is not None:
                (change, follow), r2, more = data.mean_units(change, follow), data.y.of_all(r2), data.y.of_all(more, 1.0)
                level = level - data.x.mean @ change - data.z.mean @ follow
            coef, effects, spread = coef + change, effects + follow, more
            self.stacking_weight_ = stacked.weight
            self.r2_loo_ = r2
        self.prediction_coef_ = coef[:, 0] if flat else coef.T
        self._prediction_effects = effects[:, 0] if flat else effects.T
        self._prediction_intercept = float(level[0]) if flat else level
        self._prediction_spread = spread

    def _sample_noisy(self, joined: Joined, X: Array, Y: Array, seed: int) -> Draws:
        """Sketches with privacy noise on their columns: the features are measured with error, of known size."""
        from intarsia.server.sampler.private import sample

        noise: dict[str, Any] = {
            "feature_noise": np.asarray(joined.feature_noise),
            "response_noise": np.asarray(joined.response_noise),
        }
        with self._progress() as progress:
            return sample(X, Y, **noise, n=joined.n, model=self._model(Y.shape[1]), **self._run(seed, progress))

    def _run(self, seed: int, progress: Any) -> dict[str, Any]:
        """How long to sample, with what seed."""
        run = {"draws": self.draws, "warmup": self.warmup, "chains": self.chains, "seed": seed, "workers": self.n_jobs}
        return run | {"progress": progress, "thin": self.thin}

    def _progress(self) -> AbstractContextManager[Any]:
        """The bar of a terminal, or the callback that was given."""
        from intarsia.progress import Bar

        if self.progress is None and sys.stderr is not None and sys.stderr.isatty():
            return Bar()
        return nullcontext(self.progress if callable(self.progress) else None)

    def _model(self, Q: int) -> Any:
        from intarsia.server.sampler.model import Model

        rank = None if self.rank is None else min(self.rank, Q)
        return Model(self.local, rank, self.law, self.noise, self.power, self.expected_features)

    def _finish(self, rows: Rows, X: Array, flat: bool) -> None:
        """Judge the posterior given its rows, and X as the sampler saw it; say what was found under scikit-learn's names."""
        method: Any = self.selection
        judgement = judge(self.posterior_, rows, X=X, method=method, fdr=self.fdr)
        self.diagnosis_: Diagnosis = judgement.diagnosis
        self.selection_ = judgement.selection
        self.selected_ = judgement.selection.selected
        self.groups_ = judgement.selection.findings
        self.loo_ = judgement.loo
        self.r2_loo_ = np.zeros(len(self.posterior_.responses)) if self.loo_ is None else self.loo_.r2
        self.noise_covariance_ = self.posterior_.noise_covariance().values
        coef = self.posterior_.mean().values.T
        effects = self.posterior_.covariate_summary()["mean"].T
        level = self.posterior_.intercept().mean(axis=(0, 1))
        self.coef_ = coef[0] if flat else coef
        self.covariate_coef_ = effects[0] if flat else effects
        self.intercept_ = float(level[0]) if flat else level
        if not self.diagnosis_.converged:
            warnings.warn(self.diagnosis_.verdict, NotConvergedWarning, stacklevel=3)
