"""The estimator's fit from its parts, so that it runs where NumPy, SciPy, numba and scikit-learn are all there is.

The steps are those of `intarsia.regression`; the sketch is orthonormal and centred, from NumPy's generator (nothing is secret
here), the diagnosis and the labelled posterior are left out.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.prepared import Prepared
from intarsia.server.assess.convergence import diagnose
from intarsia.server.assess.findings import Findings, select
from intarsia.server.assess.stacking import Weighed
from intarsia.server.covariates import Covariates, Fitted, sample_adjusted
from intarsia.server.prediction_weights import weigh
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings

Array = NDArray[np.float64]


def orthonormal(m: int, n: int, rng: np.random.Generator) -> Array:
    """Φ (m×n) with ΦΦᵀ = I and Φ1 = 0."""
    G = rng.standard_normal((m, n))
    return np.asarray(np.linalg.qr((G - G.mean(axis=1, keepdims=True)).T)[0].T)


def prepared(X: Array, Y: Array, m: int | None, seed: int, Z: Array | None = None) -> Prepared:
    """Standardised columns, sketched to m rows unless m is None."""
    data = Prepared.of(X, Y, np.empty((len(X), 0)) if Z is None else Z, None)
    if m is None:
        return data
    Phi = orthonormal(m, len(X), np.random.default_rng([seed, 17]))
    return replace(data, X=Phi @ data.X, Y=Phi @ data.Y, Z=Phi @ data.Z)


@dataclass(frozen=True)
class LocalFit:
    """A fit to standardised (and perhaps sketched) rows `data`, and what was said while it was made."""

    data: Prepared
    fitted: Fitted
    findings: Findings
    said: tuple[str, ...]
    weighed: Weighed | None = None

    @property
    def back(self) -> Array:
        """(P, Q) factor from standardised coefficients to those in the data's units."""
        return self.data.y.or_one() / self.data.x.or_one()[:, None]

    def draws(self) -> Array:
        """(draw, P, Q) of C in the data's units; constant columns have none."""
        C = self.data.all_columns(self.fitted.draws, None)[0].effects.dense()
        return np.asarray(C.reshape(-1, *C.shape[2:]) * self.back)

    def rhat(self) -> float:
        return float(np.nanmax(diagnose(self.fitted.draws.effects.dense(), workers=1).rhat))

    def noise(self) -> Array:
        """(Q, Q) posterior mean of Sigma in the data's units, of the responses that vary."""
        y = self.data.y.scale[self.data.y.kept]
        return np.asarray(self.fitted.draws.Sigma.mean(axis=(0, 1)) * np.outer(y, y))

    def predict_with(self, C: Array, new: Array) -> Array:
        """What standardised coefficients (P, Q) say of new rows, in the data's units."""
        return np.asarray(self.data.x.standardise(new) @ C * self.data.y.scale + self.data.y.mean)

    def predict(self, new: Array) -> tuple[Array, Array]:
        """Weighed means and standard deviations of the responses at new rows, without covariates."""
        assert self.weighed is not None
        draws, data = self.fitted.draws, self.data
        X, y = data.x.standardise(new), data.y.scale
        each = draws.fitted(X)
        noise = np.diagonal(draws.Sigma.mean(axis=(0, 1)))
        sd = np.sqrt((each.var(axis=0, ddof=1) + noise * (1 + 1 / data.n)) * self.weighed.spread)
        return self.predict_with(draws.prediction_mean() + self.weighed.coefficients, new), sd * y


def local_fit(
    X: Array, Y: Array, settings: Settings, model: Model | None = None, *, m: int | None = None, Z: Any = None, folds: int = 0
) -> LocalFit:
    """Standardise, sketch to m rows if asked, adjust for Z, sample, select; with `folds` weigh with a ridge."""
    model = model or Model()
    data = prepared(X, Y, m, settings.seed, Z)
    covariates = Covariates(data.Z, tuple(f"z{j}" for j in range(data.Z.shape[1])))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        degrees = max(2, len(X) - 1 - data.Z.shape[1]) if m is None else None
        fitted = sample_adjusted(
            lambda X, Y: sample(X, Y, model, settings, degrees=degrees), data.X, data.Y, covariates, settings.seed
        )
        weighed = weigh(fitted, sample, model, settings, folds)
        seen = data.x.put_back(fitted.X) * data.x.scale
        C = data.all_columns(fitted.draws, None)[0].effects.dense() * (data.y.or_one() / data.x.or_one()[:, None])
        findings = select(C, X=seen)
    return LocalFit(data, fitted, findings, tuple(str(one.message) for one in said), weighed)
