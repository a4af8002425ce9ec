"""The Bayesian fits under comparison: our default, the paper's prior in our package, and BayesVFLReg as the paper states it.

Each on a sketch or on all the data.

The last two run on the same sampler, so that what differs is the statistics: the sketch, the local scales, the noise prior and
the selection. `PaperVFL` uses the corrected full conditionals; those printed in the paper do not have its posterior as
their law (see the errata).
"""

import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.paper.sketching import Owners, Sketched, federated_sketch
from experiments.rivals.baseline import Array, Baseline
from intarsia.server.assess.local_fdr import algorithm3


class Posterior(Baseline):
    """A posterior of C on an m-row sketch, or on the centred data when m is None.

    After `fit`: `C_` draws (chain, draw, P, Q) in the data's own units, `seconds_` of sampling, `info_` of the sampler.
    """

    seconds_: float | None = None  # none where the chains of many data sets ran side by side

    name = "posterior"
    kind = "orthonormal"
    scale = True
    mixing = True
    model: dict[str, Any] = {}  # noqa: RUF012 - read only, one for each class

    def __init__(
        self,
        m: int | None = None,
        draws: int = 500,
        warmup: int = 500,
        chains: int = 4,
        thin: int = 1,
        seed: int = 0,
        response_sites: NDArray[np.int64] | None = None,
        **model: Any,
    ) -> None:
        self.m, self.draws, self.warmup, self.chains, self.thin, self.seed = m, draws, warmup, chains, thin, seed
        self.response_sites = response_sites
        self.model = {**type(self).model, **model}

    def fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None = None) -> "Posterior":
        """Sketch and sample. The intercept comes from the means, which each site keeps for its own columns."""
        self._sample(self.sketch(np.asarray(X, dtype=float), np.asarray(Y, dtype=float), sites))
        self.intercept_ = Y.mean(axis=0) - self.coef_ @ X.mean(axis=0)
        return self

    def _fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> None:
        raise NotImplementedError  # fit does it: sketches centre by themselves

    def sketch(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> Sketched:
        if self.m is not None:
            owners = Owners(sites, self.response_sites)
            return federated_sketch(X, Y, self.m, kind=self.kind, scale=self.scale, owners=owners, seed=self.seed)
        x_scale = X.std(axis=0, ddof=1) if self.scale else np.ones(X.shape[1])
        y_scale = Y.std(axis=0, ddof=1) if self.scale else np.ones(Y.shape[1])
        return Sketched((X - X.mean(axis=0)) / x_scale, (Y - Y.mean(axis=0)) / y_scale, x_scale, y_scale)

    def _sample(self, data: Sketched) -> None:
        from intarsia.server.sampler.horseshoe.model import Model
        from intarsia.server.sampler.horseshoe.sample import sample
        from intarsia.server.sampler.settings import Settings

        start = time.process_time()
        with warnings.catch_warnings():
            # Jeffreys with P ≥ m warns that the posterior is improper; here that is the point of the comparison.
            warnings.simplefilter("ignore")
            length = Settings(self.draws, self.warmup, self.chains, self.thin, self.seed, mixing=self.mixing, workers=1)
            result = sample(data.X, data.Y, Model(**self.model), length)
        self.seconds_ = time.process_time() - start
        self.info_ = result.info
        self.take(result.effects.dense(), result.sigma2, data)

    def take(self, C: Array, sigma2: Array, data: Sketched) -> None:
        """Take the draws of C (chain, draw, P, Q) and of the noise, made on the sketches, back to the data's units."""
        self.C_ = C * data.back
        self.sigma2_ = sigma2 * data.y_scale**2
        self.coef_ = self.C_.mean(axis=(0, 1)).T
        self.selected_ = self._select()

    def _select(self) -> NDArray[np.bool_]:
        from intarsia.server.assess.findings import select

        return np.asarray(select(self.C_).selected)

    def interval(self, p: float) -> tuple[Array, Array]:
        flat = self.C_.reshape(-1, *self.C_.shape[2:])
        lower, upper = np.quantile(flat, [(1 - p) / 2, (1 + p) / 2], axis=0)
        return lower.T, upper.T


class Horseshoe(Posterior):
    """The paper's prior in our package: orthonormal sketch, a scale per feature, half-Cauchy noise, Bayesian FDR."""

    name = "horseshoe"


class PaperVFL(Posterior):
    """BayesVFLReg: Φ of iid N(0, 1/n) on plain columns, a local scale per entry, Jeffreys' prior, Algorithm 3."""

    name = "BayesVFLReg"
    kind = "gaussian"
    scale = False
    mixing = False  # Algorithm 1 alone, without the moves that help our chains along
    model = {"local": "element", "noise": "jeffreys"}  # noqa: RUF012

    def _select(self) -> NDArray[np.bool_]:
        return algorithm3(self.C_.mean(axis=(0, 1)))


class Default(Baseline):
    """The product's default: an orthonormal sketch, sparse effects on a dense background, the default stopping rule."""

    name = "intarsia"

    def __init__(self, m: int | None = None, seed: int = 0, response_sites: NDArray[np.int64] | None = None) -> None:
        self.m, self.seed, self.response_sites = m, seed, response_sites

    def fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None = None) -> "Default":
        from intarsia.server.assess.findings import select
        from intarsia.server.sampler.settings import Settings, Until
        from intarsia.server.sampler.sparse.sample import SparseModel, sample

        data = Horseshoe(self.m, seed=self.seed, response_sites=self.response_sites).sketch(X, Y, sites)
        draws = sample(data.X, data.Y, SparseModel(compare=False), Settings(until=Until(), seed=self.seed, workers=1))
        self._draws, self._back = draws, data.back
        self.coef_ = (draws.mean() * data.back).T
        self.selected_ = np.asarray(select(draws, X=data.X).selected)
        self.intercept_ = Y.mean(axis=0) - self.coef_ @ X.mean(axis=0)
        return self

    def _fit(self, X: Array, Y: Array, sites: NDArray[np.int64] | None) -> None:
        raise NotImplementedError  # fit does it: sketches centre by themselves

    def interval(self, p: float) -> tuple[Array, Array]:
        lower, upper = self._draws.quantile([(1 - p) / 2, (1 + p) / 2]) * self._back
        return lower.T, upper.T
