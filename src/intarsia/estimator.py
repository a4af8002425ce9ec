"""What the scikit-learn estimators of `regression` have in common: data made ready, chains run, results under their names."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from intarsia.errors import InputError
from intarsia.prepared import Prepared, covariate_places
from intarsia.server.assess.assessment import assess, keep
from intarsia.server.assess.convergence import Diagnosis, warn_unless
from intarsia.server.assess.convergence import NotConvergedWarning as NotConvergedWarning
from intarsia.server.assess.effects import effects_of
from intarsia.server.assess.leave_one_out import Rows
from intarsia.server.assess.stacking import Weighed
from intarsia.server.covariates import Covariates, Fitted, sample_adjusted
from intarsia.server.posterior.draws import Draws, diagonal
from intarsia.server.posterior.posterior import CovariateEffects, Names, Posterior, ends
from intarsia.server.prediction_weights import weigh
from intarsia.server.pseudo_rows import check_rows, whole_rows
from intarsia.server.sampler.settings import Settings, Until
from intarsia.wire.defaults import DRAWS
from intarsia.wire.messages import Joined, Sketch, join
from intarsia.wire.result_table import frame, from_own_units, table_columns
from intarsia.wire.study_parts import GRAM

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


class Regression(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """A Bayesian regression. A subclass has the parameters, and says which model they make."""

    sketch: int | None
    covariates: Sequence[Any] | None
    power: float
    draws: int | None
    warmup: int | None
    chains: int
    thin: int | None
    until: Any
    fdr: float
    folds: int
    n_jobs: int | None
    backend: str
    progress: Any
    random_state: Any
    coef_: Array
    covariate_coef_: Array
    intercept_: Any
    r2_loo_: Array
    _scales: tuple[Array, Array, Array] | None  # of features, responses and covariates, where the fit saw them

    def _model(self, Q: int) -> Any:
        """The model of so many responses."""
        raise NotImplementedError

    def _selection(self) -> Any:
        """How features are chosen."""
        return "bfdr"

    def _looked_at(self) -> int | None:
        """How many features the prior counts, where that is more than came."""
        return None

    def fit(self, X: Any, y: Any) -> "Regression":
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
        # Rows that were centred are worth one fewer; a sketch leaves the mean out by itself. Each covariate uses up one more.
        degrees = max(2, len(X) - 1 - len(labels)) if self.sketch is None else None
        fitted = sample_adjusted(
            lambda X, Y: self._sample(X, Y, seed, degrees), data.X, data.Y, Covariates(data.Z, labels), seed, self.power
        )
        weighed = data.weighed(self._weigh(fitted, seed))
        draws, Gamma = data.all_columns(fitted.draws, fitted.Gamma)
        draws, Gamma = data.own_units(draws, Gamma)
        intercept = data.intercept(draws, Gamma, np.random.default_rng([seed, 1]))
        own = None if names is None else [str(name) for name in np.delete(names, self._covariates)]
        self.posterior_ = Posterior.from_draws(
            draws,
            Names(own, responses),
            intercept=intercept,
            effects=None if Gamma is None else CovariateEffects(Gamma, labels),
        )
        self._scales = (data.x.or_one(), data.y.or_one(), data.z.or_one())
        X_seen, Y_seen = data.x.put_back(fitted.X) * data.x.scale, data.y.put_back(fitted.Y) * data.y.scale
        means = (data.x.mean, data.z.mean)
        self._finish(data.rows(), X_seen, Y_seen, weighed, flat=y.ndim == 1, means=means)
        return self

    def fit_sketch(self, joined: Joined) -> "Regression":
        """Fit the sites' joined sketches, or the root of their joint Gram matrix: its draws are those of the pooled rows.

        Coefficients are per standard deviation; there is no intercept. `StudyFolder.joined` gives either.
        """
        self._check_parameters()
        if self.sketch is not None or self.covariates is not None:
            raise InputError(
                "These data are sketched already and bring their own covariates; leave sketch=None and covariates=None."
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        covariates = Covariates.of(joined)
        X, Y = (np.asarray(a, dtype=np.float64) for a in (joined.X, joined.Y))
        noisy = any(joined.feature_noise) or any(joined.response_noise)

        # A root stands for the n − 1 rows of the centred data, of which each covariate uses up one.
        degrees = joined.m - len(covariates.names) if joined.kind == GRAM else None

        def run(X: Array, Y: Array) -> Draws:
            return self._sample_noisy(joined, X, Y, seed) if noisy else self._sample(X, Y, seed, degrees, joined.looked_at)

        fitted = sample_adjusted(run, X, Y, covariates, seed, self.power)
        exchangeable = whole_rows(joined, fitted)
        weighed = None if noisy or exchangeable is None else self._weigh(exchangeable, seed, joined.looked_at)
        self._covariates = len(joined.features) + np.arange(len(covariates.names))
        self.n_features_in_ = len(joined.features) + len(self._covariates)
        self.feature_names_in_ = np.asarray([*joined.features, *covariates.names], dtype=object)
        self.posterior_ = Posterior.from_draws(
            fitted.draws,
            Names.of(joined),
            effects=None if fitted.Gamma is None else CovariateEffects(fitted.Gamma, covariates.names, covariates.sites),
        )
        self._scales = None
        self._finish(check_rows(joined), fitted.X, None if noisy else fitted.Y, weighed, flat=False)
        return self

    @classmethod
    def from_sketches(cls, sketches: Sequence[Sketch], **parameters: Any) -> "Regression":
        """An estimator with these parameters, fitted to the sketches of several sites."""
        return cls(**parameters).fit_sketch(join(sketches))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predicted responses, and with `return_std` their standard deviations, noise included; X as it was fitted.

        The sparse model's prediction is weighed with others (`prediction_coef_`), and the standard deviations are those of the
        sparse model, scaled to the errors on rows left out. `predict_draws` is the sparse model's alone.
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

    def predict_draws(self, X: Any, noise: bool = True, random_state: int | None = None) -> "xr.DataArray":
        """Posterior predictive draws (chain, draw, row, response), joint over the responses."""
        check_is_fitted(self)
        features, Z = self._split(validate_data(self, X, dtype=np.float64, reset=False))
        return self.posterior_.predictive_draws(features, Z, noise=noise, rng=np.random.default_rng(random_state))

    def interval(self, probability: float) -> tuple[Array, Array]:
        """Lower and upper ends of every coefficient's equal-tailed credible interval, shaped as `coef_`."""
        check_is_fitted(self)
        lower, upper = self.posterior_.draws.quantile(ends(probability))
        shape = self.coef_.shape
        return lower.T.reshape(shape), upper.T.reshape(shape)

    def covariate_interval(self, probability: float) -> tuple[Array, Array]:
        """Lower and upper ends of every covariate effect's credible interval, shaped as `covariate_coef_`."""
        check_is_fitted(self)
        found = self.posterior_.covariate_summary(probability)
        shape = self.covariate_coef_.shape
        return found["lower"].T.reshape(shape), found["upper"].T.reshape(shape)

    def table(self, probability: float = 0.95) -> Any:
        """All coefficients as a pandas DataFrame: effect, interval, unit, posterior sd, local fdr, selection, set.

        `intarsia.wire.result_table.COLUMNS` says what each column holds.
        """
        check_is_fitted(self)
        parts = effects_of(self.posterior_, self._assessment, probability)
        if self._scales is not None:
            x, y, z = self._scales
            responses = dict(zip(self.posterior_.responses, y.tolist(), strict=True))
            parts = [from_own_units(part, responses, scale) for part, scale in zip(parts, (x, z), strict=True)]
        return frame(table_columns(parts))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The parameters, and for a fitted model its verdict before anything it found."""
        parameters = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "diagnosis_"):
            return parameters
        fine = self.diagnosis_.converged
        count = f"{int(self.selected_.sum())} of {len(self.selected_):,} features selected"
        count += f" and {len(self.selection_.sets)} sets of interchangeable ones" if self.selection_.sets else ""
        return f"{self.diagnosis_.headline}\n{count}{'' if fine else ' (provisional: the fit has not converged)'}\n{parameters}"

    def _check_parameters(self) -> None:
        for name, least in (("draws", 4), ("warmup", 0), ("chains", 1), ("sketch", 1), ("rank", 1), ("thin", 1)):
            value = getattr(self, name)
            if value is None and name in ("sketch", "rank", "draws", "warmup", "thin"):
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise InputError(f"{name}={value!r}; expected a whole number of at least {least}.")
        # What is asked of the draws is checked before they are made.
        if not isinstance(self.folds, Integral) or isinstance(self.folds, bool) or self.folds < 0 or self.folds == 1:
            raise InputError(f"folds={self.folds!r}; expected a whole number of at least 2, or 0 for none.")
        if not isinstance(self.fdr, Real) or not 0 < self.fdr < 1:
            raise InputError(f"fdr={self.fdr!r}; expected a rate between 0 and 1, such as 0.05.")

    def _split(self, X: Array) -> tuple[Array, Array]:
        """Features and covariates, each in the order of their columns (covariates in the order they were named)."""
        return np.delete(X, self._covariates, axis=1), X[:, self._covariates]

    def _sample(self, X: Array, Y: Array, seed: int, degrees: int | None = None, looked_at: int | None = None) -> Draws:
        from intarsia.server.sampler.sample import sample

        if not X.shape[1] or not Y.shape[1]:  # every column constant: nothing to learn
            empty = np.zeros((self.chains, self.draws or DRAWS, X.shape[1], Y.shape[1]))
            return Draws(empty, diagonal(np.ones((*empty.shape[:2], Y.shape[1]))), {"tau": np.zeros((*empty.shape[:2], 1))})
        with self._progress() as progress:
            settings = replace(self._settings(seed), progress=progress)
            return sample(X, Y, self._model(Y.shape[1]), settings, degrees=degrees, looked_at=looked_at or self._looked_at())

    def _weigh(self, fitted: Fitted, seed: int, looked_at: int | None = None) -> Weighed | None:
        """Weigh the sparse fit with others by rows left out, for prediction."""
        from intarsia.server.sampler.sample import sample

        refit = partial(sample, looked_at=looked_at or self._looked_at())
        return weigh(fitted, refit, self._model(fitted.Y.shape[1]), self._settings(seed), self.folds)

    def _sample_noisy(self, joined: Joined, X: Array, Y: Array, seed: int) -> Draws:
        """Sketches with privacy noise on their columns: the features are measured with error, of known size."""
        from intarsia.server.sampler.errors_in_variables import PrivacyNoise
        from intarsia.server.sampler.sample import sample_noisy as sample

        noise = PrivacyNoise(joined.n, joined.feature_noise, joined.response_noise)
        with self._progress() as progress:
            return sample(X, Y, noise, self._model(Y.shape[1]), replace(self._settings(seed), progress=progress))

    def _settings(self, seed: int) -> Settings:
        """How long to sample, with what seed, on what."""
        length = Settings(self.draws, self.warmup, self.chains, self.thin, seed, self._until())
        return replace(length, backend=self.backend, workers=self.n_jobs)

    def _until(self) -> Until | None:
        """The target of a run, or None."""
        if self.until is None or isinstance(self.until, Until):
            return self.until
        if self.until != "converged":
            raise InputError(f"until={self.until!r}; expected 'converged', None or an Until.")
        return Until()

    def _progress(self) -> AbstractContextManager[Any]:
        """The bar, or the callback that was given."""
        from intarsia.progress import shown

        return shown(self.progress)

    def _finish(
        self,
        rows: Rows | None,
        X: Array,
        Y: Array | None,
        weighed: Weighed | None,
        flat: bool,
        means: tuple[Array, Array] | None = None,
    ) -> None:
        """Assess the posterior; say what was found under scikit-learn's names. `means` are those of features and covariates."""
        posterior = self.posterior_
        made = assess(posterior, rows, X=X, Y=Y, method=self._selection(), fdr=self.fdr, weighed=weighed)
        keep(posterior, made)
        self._assessment = made
        self.diagnosis_: Diagnosis = made.diagnosis
        self.selection_ = made.findings
        self.selected_ = made.findings.selected
        self.groups_, self.sets_ = made.findings.findings, list(made.findings.sets)
        self.loo_ = made.loo
        self.r2_loo_ = weighed.r2 if weighed is not None else np.zeros(posterior.draws.Q) if made.loo is None else made.loo.r2
        self.noise_covariance_ = posterior.draws.Sigma.mean(axis=(0, 1))

        def named(values: NDArray[Any]) -> Any:
            """One row per response, or that of the only one."""
            return values[..., 0].T if flat else values.T

        coef, effects = posterior.draws.mean(), posterior.covariate_summary()["mean"]
        level, sparse = posterior.intercept().mean(axis=(0, 1)), posterior.draws.prediction_mean()
        self.coef_, self.covariate_coef_ = named(coef), named(effects)
        self.pip_, self.lfsr_ = made.findings.pip, named(made.findings.lfsr)
        self.selected_by_response_ = named(made.findings.by_response)
        self.intercept_ = float(level[0]) if flat else level
        self.stacking_weight_, self.stacking_weight_independent_, self._prediction_spread = 1.0, 0.0, np.ones(len(level))
        if weighed is not None:
            sparse, effects = sparse + weighed.coefficients, effects + weighed.effects
            if means is not None:
                level = level - means[0] @ weighed.coefficients - means[1] @ weighed.effects
            self.stacking_weight_, self.stacking_weight_independent_ = weighed.weight, weighed.weight_independent
            self._prediction_spread = weighed.spread
        self.prediction_coef_, self._prediction_effects = named(sparse), named(effects)
        self._prediction_intercept = float(level[0]) if flat else level
        warn_unless(self.diagnosis_.converged, self.diagnosis_.verdict, stacklevel=3)
