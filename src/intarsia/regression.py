"""`ReducedRankHorseshoe`: the model as a scikit-learn estimator, for data that lie in one place.

    model = ReducedRankHorseshoe(random_state=0).fit(X, Y)
    model.diagnosis_.verdict, model.coef_, model.interval(0.95), model.selected_, model.groups_, model.r2_loo_

Columns are centred and scaled inside; every result is in the data's own units.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from intarsia.errors import InputError
from intarsia.prepared import Prepared, covariate_places
from intarsia.server.covariates import Covariates, Fitted, sample_adjusted
from intarsia.server.prediction_weights import weigh
from intarsia.server.pseudo_rows import check_rows, whole_rows
from intarsia.server.results.draws import Draws, diagonal
from intarsia.server.results.effects import effects_of
from intarsia.server.results.judgement import judge, keep
from intarsia.server.results.leave_one_out import Rows
from intarsia.server.results.not_converged import NotConvergedWarning as NotConvergedWarning
from intarsia.server.results.not_converged import warn_unless
from intarsia.server.results.posterior import CovariateEffects, Names, Posterior
from intarsia.server.results.selection import METHODS
from intarsia.server.results.stacking import FOLDS, Weighed
from intarsia.server.results.unshrunk import unshrunk_of
from intarsia.server.results.verdict import Diagnosis
from intarsia.server.sampler.horseshoe.settings import Settings, Until
from intarsia.wire.defaults import CHAINS, DRAWS, MEMORY
from intarsia.wire.messages import Joined, Sketch, join
from intarsia.wire.result_table import frame, from_own_units, table_columns
from intarsia.wire.study_parts import GRAM

Array = NDArray[np.float64]


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
    draws, warmup, chains, thin : length of the run; each chain makes `warmup` sweeps and then keeps one in `thin`, at most
        `draws` of them. By default 1,000 draws, 500 and 10 in small problems; 4,000, 400 and 4 in large ones, whose
        sweeps share their algebra.
    until : "converged": the run ends before its budget of draws is spent, as soon as every coefficient has
        R̂ ≤ 1.01, folded R̂ ≤ 1.02 and 400 effective samples; of a noise variance 1.05 and 100 are asked
        (or what an `intarsia.server.sampler.horseshoe.settings.Until` says); None: `draws` draws in any case.
    selection : "bfdr" or "mixture", how `selected_` is found.
    n_jobs : threads the chains run in; by default as many as pay. The draws do not depend on it.
    progress : called with the sampler's progress; by default a bar is shown on a terminal and elsewhere a line from time to
        time, with False nothing.
    backend : "numpy"; this prior is fitted on the CPU.
    memory : bytes that the draws of the coefficients may take; a run that would need more is refused.
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
    prediction_coef_ : coefficients that `predict` uses, shaped as `coef_`: the sparse ones, those of the same model with
        independent noise and a ridge's, weighed by how well each predicts rows left out; `stacking_weight_` is the sparse
        ones' weight, `stacking_weight_independent_` that of the second.
    r2_loo_ : out-of-sample share of variance explained (Q,), from rows left out (with folds=0: by weighting the draws, which is
        too hopeful when there are more features than rows; `loo_` has more).
    posterior_ : the draws, labelled, in the data's units.
    """

    coef_: Array
    covariate_coef_: Array
    intercept_: Any
    r2_loo_: Array
    _scales: tuple[Array, Array, Array] | None  # of features, responses and covariates, where the fit saw them

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
        draws: int | None = None,
        warmup: int | None = None,
        chains: int = CHAINS,
        thin: int | None = None,
        until: Any = "converged",
        selection: str = "bfdr",
        n_jobs: int | None = None,
        progress: Callable[..., Any] | bool | None = None,
        backend: str = "numpy",
        memory: int = MEMORY,
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
        self.until = until
        self.selection = selection
        self.n_jobs = n_jobs
        self.progress = progress
        self.backend = backend
        self.memory = memory
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
        # Rows that were centred are worth one fewer; a sketch leaves the mean out by itself. Each covariate uses up one more.
        degrees = max(2, len(X) - 1 - len(labels)) if self.sketch is None else None
        fitted = sample_adjusted(
            lambda X, Y: self._sample(X, Y, seed, degrees), data.X, data.Y, Covariates(data.Z, labels), seed, self.power
        )
        weighed = self._weigh(fitted, seed)
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
        seen = (data.x.put_back(fitted.X) * data.x.scale, data.y.put_back(fitted.Y) * data.y.scale)
        self._finish(data.rows(), seen, flat=y.ndim == 1)
        self._keep_weighed(weighed, data)
        return self

    def fit_sketch(self, joined: Joined) -> "ReducedRankHorseshoe":
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
            return self._sample_noisy(joined, X, Y, seed) if noisy else self._sample(X, Y, seed, degrees)

        fitted = sample_adjusted(run, X, Y, covariates, seed, self.power)
        exchangeable = whole_rows(joined, fitted)
        weighed = None if noisy or exchangeable is None else self._weigh(exchangeable, seed)
        self._covariates = len(joined.features) + np.arange(len(covariates.names))
        self.n_features_in_ = len(joined.features) + len(self._covariates)
        self.feature_names_in_ = np.asarray([*joined.features, *covariates.names], dtype=object)
        self.posterior_ = Posterior.from_draws(
            fitted.draws,
            Names.of(joined),
            effects=None if fitted.Gamma is None else CovariateEffects(fitted.Gamma, covariates.names, covariates.sites),
        )
        self._scales = None
        self._finish(check_rows(joined), (fitted.X, None if noisy else fitted.Y), flat=False)
        self._keep_weighed(weighed)
        return self

    @classmethod
    def from_sketches(cls, sketches: Sequence[Sketch], **parameters: Any) -> "ReducedRankHorseshoe":
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

    def table(self, probability: float = 0.95) -> Any:
        """All coefficients as a pandas DataFrame: effect, interval, unit, posterior sd, local fdr, selection, set.

        `intarsia.wire.result_table.COLUMNS` says what each column holds.
        """
        check_is_fitted(self)
        parts = effects_of(self.posterior_, self._judgement, probability)
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
        count += f" and {len(self.selection_.groups)} sets of interchangeable ones" if self.selection_.groups else ""
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
        if self.selection not in METHODS:
            raise InputError(f"selection={self.selection!r}; expected one of {', '.join(METHODS)}.")

    def _split(self, X: Array) -> tuple[Array, Array]:
        """Features and covariates, each in the order of their columns (covariates in the order they were named)."""
        return np.delete(X, self._covariates, axis=1), X[:, self._covariates]

    def _sample(self, X: Array, Y: Array, seed: int, degrees: int | None = None) -> Draws:
        from intarsia.server.sampler.horseshoe.sample import sample

        if not X.shape[1] or not Y.shape[1]:  # every column constant: nothing to learn
            empty = np.zeros((self.chains, self.draws or DRAWS, X.shape[1], Y.shape[1]))
            return Draws(empty, diagonal(np.ones((*empty.shape[:2], Y.shape[1]))), np.zeros((*empty.shape[:2], 1)))
        with self._progress() as progress:
            return sample(X, Y, self._model(Y.shape[1]), replace(self._settings(seed), progress=progress), degrees=degrees)

    def _weigh(self, fitted: Fitted, seed: int) -> Weighed | None:
        """Weigh the sparse fit with others by rows left out, for prediction."""
        from intarsia.server.sampler.horseshoe.sample import sample

        return weigh(fitted, sample, self._model(fitted.Y.shape[1]), self._settings(seed), self.folds)

    def _keep_weighed(self, weighed: Weighed | None, data: Prepared | None = None) -> None:
        """Coefficients to predict with, in the data's units, under scikit-learn's names."""
        flat = self.coef_.ndim == 1
        coef, effects, level = np.atleast_2d(self.coef_).T, np.atleast_2d(self.covariate_coef_).T, np.atleast_1d(self.intercept_)
        spread = np.ones(coef.shape[1])
        self.stacking_weight_, self.stacking_weight_independent_ = 1.0, 0.0
        if weighed is not None:
            if data is not None:
                change, follow = data.mean_units(weighed.coefficients, weighed.effects)
                told: dict[str, Any] = {name: data.y.of_all(getattr(weighed, name)) for name in ("r2", "r2_se", "alike", "rows")}
                spread = data.y.of_all(weighed.spread, 1.0)
                weighed = replace(weighed, coefficients=change, effects=follow, spread=spread, **told)
                level = level - data.x.mean @ change - data.z.mean @ follow
            coef, effects, spread = coef + weighed.coefficients, effects + weighed.effects, weighed.spread
            self.stacking_weight_, self.stacking_weight_independent_ = weighed.weight, weighed.weight_independent
            self.r2_loo_ = weighed.r2
            self.loo_ = keep(self.posterior_, self._judgement.with_weights(weighed)).loo
        self.prediction_coef_ = coef[:, 0] if flat else coef.T
        self._prediction_effects = effects[:, 0] if flat else effects.T
        self._prediction_intercept = float(level[0]) if flat else level
        self._prediction_spread = spread

    def _sample_noisy(self, joined: Joined, X: Array, Y: Array, seed: int) -> Draws:
        """Sketches with privacy noise on their columns: the features are measured with error, of known size."""
        from intarsia.server.sampler.horseshoe.errors_in_variables import PrivacyNoise
        from intarsia.server.sampler.horseshoe.sample import sample_noisy as sample

        noise = PrivacyNoise(joined.n, joined.feature_noise, joined.response_noise)
        with self._progress() as progress:
            return sample(X, Y, noise, self._model(Y.shape[1]), replace(self._settings(seed), progress=progress))

    def _settings(self, seed: int) -> Settings:
        """How long to sample, with what seed, on what."""
        length = Settings(self.draws, self.warmup, self.chains, self.thin, seed, self._until())
        return replace(length, memory=self.memory, backend=self.backend, workers=self.n_jobs)

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

    def _model(self, Q: int) -> Any:
        from intarsia.server.sampler.horseshoe.model import Model

        rank = None if self.rank is None else min(self.rank, Q)
        return Model(self.local, rank, self.law, self.noise, self.power, self.expected_features)

    def _finish(self, rows: Rows | None, seen: tuple[Array, Array | None], flat: bool) -> None:
        """Judge the posterior given its rows, and X and Y as the sampler saw them (Y: None under privacy noise); say what was
        found under scikit-learn's names."""
        (X, Y), method = seen, cast(Any, self.selection)
        judgement = judge(self.posterior_, rows, X=X, method=method, fdr=self.fdr)
        if Y is not None:
            judgement = replace(judgement, unshrunk=unshrunk_of(self.posterior_, X, Y))
        judgement = keep(self.posterior_, judgement)
        self._judgement = judgement
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
        warn_unless(self.diagnosis_.converged, self.diagnosis_.verdict, stacklevel=3)
