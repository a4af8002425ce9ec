"""`ReducedRankHorseshoe`: the model as a scikit-learn estimator, for data that lie in one place.

    model = ReducedRankHorseshoe(random_state=0).fit(X, Y)
    model.coef_, model.interval(0.95), model.selected_, model.diagnosis_.verdict

Columns are centred and scaled inside; every result is in the data's own units.
"""

import secrets
import warnings
from collections.abc import Callable, Sequence
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
from intarsia.server.results.diagnostics import Diagnosis, diagnose
from intarsia.server.results.draws import Draws, diagonal
from intarsia.server.results.posterior import Posterior, square_root
from intarsia.server.results.selection import Selection, select
from intarsia.wire.defaults import CHAINS, DRAWS, THIN, WARMUP
from intarsia.wire.messages import Joined, Sketch, join

Array = NDArray[np.float64]


class ReducedRankHorseshoe(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Bayesian reduced-rank regression with a horseshoe prior: Y = X B Aᵀ + E.

    Parameters
    ----------
    local : "row" (one local scale a feature) or "element" (one a feature and component, the paper's).
    rank : number of components R, at most the number of responses; by default that number.
    noise : "correlated" between responses, "independent", or "jeffreys" (the paper's; improper with no more rows than features).
    sketch : number of sketch rows; the data are then sketched first, under a fresh key that is thrown away.
    draws, warmup, chains, thin : length of the run; each chain keeps `draws` draws after `warmup`, one in `thin`.
    law : the global-local law, "horseshoe" by default.
    power : power of the likelihood (fractional posterior), in (0, 1].
    selection : "bfdr" or "mixture", how `selected_` is found; `fdr` is its rate.
    n_jobs : processes the chains run in; by default as many as pay. The draws do not depend on it.
    random_state : seed of the sampler. (The sketch's key is not a seed: it comes from the operating system.)
    progress : called with the sampler's progress.
    backend : "numpy", or "jax" to sample on an accelerator (`pip install 'intarsia[gpu]'`).

    Attributes
    ----------
    coef_ : posterior means (Q, P), or (P,) when y had one dimension.
    intercept_ : (Q,) or a number.
    selected_ : which features matter (P,); `selection_` has the evidence.
    posterior_ : the draws, labelled, in the data's units.
    diagnosis_ : R̂ and effective sample sizes of every coefficient, and a verdict.
    """

    def __init__(
        self,
        local: str = "row",
        rank: int | None = None,
        noise: str = "correlated",
        sketch: int | None = None,
        draws: int = DRAWS,
        warmup: int = WARMUP,
        chains: int = CHAINS,
        thin: int = THIN,
        law: str = "horseshoe",
        power: float = 1.0,
        selection: str = "bfdr",
        fdr: float = 0.05,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        progress: Callable[..., Any] | None = None,
        backend: str = "numpy",
    ) -> None:
        self.local = local
        self.rank = rank
        self.noise = noise
        self.sketch = sketch
        self.draws = draws
        self.warmup = warmup
        self.chains = chains
        self.thin = thin
        self.law = law
        self.power = power
        self.selection = selection
        self.fdr = fdr
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.progress = progress
        self.backend = backend

    def fit(self, X: Any, y: Any) -> "ReducedRankHorseshoe":
        """Draw the posterior of the coefficients given X (n, P) and y (n,) or (n, Q)."""
        self._check_parameters()
        features = getattr(X, "columns", None)
        responses = getattr(y, "columns", None)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2)
        flat = y.ndim == 1
        Y = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        x_mean, x_scale = _moments(X)
        y_mean, y_scale = _moments(Y)
        p, q = x_scale > 0, y_scale > 0
        Z = (X[:, p] - x_mean[p]) / x_scale[p]
        W = (Y[:, q] - y_mean[q]) / y_scale[q]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self.sketch is not None:
            Z, W = _sketched(Z, W, int(self.sketch))
        draws = _all_columns(self._sample(Z, W, seed), p, q)
        chosen = select(draws.C, method=self.selection, fdr=self.fdr)  # type: ignore[arg-type]
        draws = _original_units(draws, np.where(p, x_scale, 1.0), y_scale)
        intercept = _intercept(draws, x_mean, y_mean, len(X), np.random.default_rng([seed, 1]))
        self._finish(draws, intercept, chosen, features, responses, flat)
        return self

    def fit_sketch(self, joined: Joined) -> "ReducedRankHorseshoe":
        """Fit the sites' joined sketches. Coefficients are per standard deviation; there is no intercept."""
        self._check_parameters()
        if self.sketch is not None:
            raise InputError("These data are sketched already; leave sketch=None.")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        X, Y = np.asarray(joined.X, dtype=np.float64), np.asarray(joined.Y, dtype=np.float64)
        noisy = any(joined.feature_noise) or any(joined.response_noise)
        draws = self._sample_noisy(joined, X, Y, seed) if noisy else self._sample(X, Y, seed)
        chosen = select(draws.C, method=self.selection, fdr=self.fdr)  # type: ignore[arg-type]
        self.n_features_in_ = X.shape[1]
        self.feature_names_in_ = np.asarray(joined.features, dtype=object)
        sites = {"feature_sites": joined.feature_sites, "response_sites": joined.response_sites}
        self._finish(draws, None, chosen, joined.features, joined.responses, False, sites)
        return self

    @classmethod
    def from_sketches(cls, sketches: Sequence[Sketch], **parameters: Any) -> "ReducedRankHorseshoe":
        """An estimator with these parameters, fitted to the sketches of several sites."""
        return cls(**parameters).fit_sketch(join(sketches))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Posterior predictive mean, and with `return_std` its standard deviation, noise included."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        mean = X @ self.coef_.T + self.intercept_
        if not return_std:
            return mean
        sd = self.posterior_.predict(X)[1]
        return mean, sd[:, 0] if mean.ndim == 1 else sd

    def predict_draws(self, X: Any, noise: bool = True, random_state: int | None = None) -> xr.DataArray:
        """Posterior predictive draws (chain, draw, row, response)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self.posterior_.predictive_draws(X, noise=noise, rng=np.random.default_rng(random_state))

    def interval(self, probability: float) -> tuple[Array, Array]:
        """Lower and upper ends of every coefficient's equal-tailed credible interval, shaped as `coef_`."""
        check_is_fitted(self)
        lower, upper = self.posterior_.interval(probability)
        shape = self.coef_.shape
        return lower.values.T.reshape(shape), upper.values.T.reshape(shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.sketch is not None
        return tags

    def _check_parameters(self) -> None:
        for name, least in (("draws", 4), ("warmup", 0), ("chains", 1), ("sketch", 1), ("rank", 1), ("thin", 1)):
            value = getattr(self, name)
            if value is None and name in ("sketch", "rank"):
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise InputError(f"{name}={value!r}; expected a whole number of at least {least}.")

    def _sample(self, X: Array, Y: Array, seed: int) -> Draws:
        from intarsia.server.sampler.sample import sample

        if not X.shape[1] or not Y.shape[1]:  # every column constant: nothing to learn
            empty = np.zeros((self.chains, self.draws, X.shape[1], Y.shape[1]))
            return Draws(empty, diagonal(np.ones((*empty.shape[:2], Y.shape[1]))), np.zeros((*empty.shape[:2], 1)))
        return sample(
            X,
            Y,
            self._model(Y.shape[1]),
            draws=self.draws,
            warmup=self.warmup,
            chains=self.chains,
            seed=seed,
            workers=self.n_jobs,
            progress=self.progress,
            backend=self.backend,
            thin=self.thin,
        )

    def _sample_noisy(self, joined: Joined, X: Array, Y: Array, seed: int) -> Draws:
        """Sketches with privacy noise on their columns: the features are measured with error, of known size."""
        from intarsia.server.sampler.private import sample

        return sample(
            X,
            Y,
            feature_noise=np.asarray(joined.feature_noise),
            response_noise=np.asarray(joined.response_noise),
            n=joined.n,
            model=self._model(Y.shape[1]),
            draws=self.draws,
            warmup=self.warmup,
            chains=self.chains,
            thin=self.thin,
            seed=seed,
            workers=self.n_jobs,
            progress=self.progress,
        )

    def _model(self, Q: int) -> Any:
        from intarsia.server.sampler.model import Model

        rank = None if self.rank is None else min(self.rank, Q)
        return Model(local=self.local, rank=rank, law=self.law, noise=self.noise, power=self.power)

    def _finish(
        self,
        draws: Draws,
        intercept: Array | None,
        chosen: Selection,
        features: Sequence[Any] | None,
        responses: Sequence[Any] | None,
        flat: bool,
        sites: dict[str, Any] | None = None,
    ) -> None:
        names = getattr(self, "feature_names_in_", features)
        self.posterior_ = Posterior.from_draws(draws, features=names, responses=responses, intercept=intercept, **(sites or {}))
        coef = self.posterior_.mean().values.T
        level = np.zeros(draws.Q) if intercept is None else intercept.mean(axis=(0, 1))
        self.coef_ = coef[0] if flat else coef
        self.intercept_ = float(level[0]) if flat else level
        self.selection_ = chosen
        self.selected_ = chosen.selected
        self.diagnosis_: Diagnosis = diagnose(self.posterior_)
        if not self.diagnosis_.converged:
            warnings.warn(self.diagnosis_.verdict, ConvergenceWarning, stacklevel=3)


def _moments(X: Array) -> tuple[Array, Array]:
    """Means and standard deviations; a column that is constant up to rounding has scale 0 and is left out."""
    mean = X.mean(axis=0)
    scale = X.std(axis=0)
    scale[scale <= 10 * np.finfo(float).eps * np.abs(X).max(axis=0)] = 0.0
    return mean, scale


def _sketched(X: Array, Y: Array, m: int) -> tuple[Array, Array]:
    """The orthonormal sketch of columns already scaled, under a key nobody keeps."""
    from intarsia.site.data.table import Table
    from intarsia.site.key import SketchKey
    from intarsia.site.sketch.sketch import sketch

    P = X.shape[1]
    names = [f"x{j}" for j in range(P)] + [f"y{j}" for j in range(Y.shape[1])]
    table = Table.open(np.hstack([X, Y]), names=names, responses=names[P:])
    message = sketch(table, SketchKey.new(), study="local", run=secrets.token_hex(16), m=m, scale=False).message
    return np.asarray(message.X, dtype=np.float64), np.asarray(message.Y, dtype=np.float64)


def _all_columns(draws: Draws, p: NDArray[np.bool_], q: NDArray[np.bool_]) -> Draws:
    """Put back the constant columns: a constant feature's coefficients and a constant response's noise are zero."""
    if p.all() and q.all():
        return draws
    C = np.zeros((*draws.C.shape[:2], len(p), len(q)))
    C[:, :, np.flatnonzero(p)[:, None], np.flatnonzero(q)] = draws.C
    Sigma = np.zeros((*C.shape[:2], len(q), len(q)))
    Sigma[:, :, np.flatnonzero(q)[:, None], np.flatnonzero(q)] = draws.Sigma
    shrinkage = None
    if draws.shrinkage is not None:
        shrinkage = np.ones(len(p))
        shrinkage[p] = draws.shrinkage
    return Draws(C, Sigma, draws.tau, shrinkage, draws.info)


def _original_units(draws: Draws, x_scale: Array, y_scale: Array) -> Draws:
    C = draws.C if draws.C.flags.writeable else np.array(draws.C)
    C *= y_scale / x_scale[:, None]  # in place: the draws may be the largest thing in memory
    return Draws(C, draws.Sigma * np.outer(y_scale, y_scale), draws.tau, draws.shrinkage, draws.info)


def _intercept(draws: Draws, x_mean: Array, y_mean: Array, n: int, rng: np.random.Generator) -> Array:
    """Under a flat prior the intercept given C and σ² is N(ȳ − x̄C, Σ/n)."""
    centre = y_mean - np.einsum("p,cdpq->cdq", x_mean, draws.C, optimize=True)
    noise = square_root(draws.Sigma / n) @ rng.standard_normal((*centre.shape, 1))
    return np.asarray(centre + noise[..., 0])
