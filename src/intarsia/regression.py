"""The models as scikit-learn estimators, for data that lie in one place.

    model = SparseRegression(random_state=0).fit(X, Y)
    model.diagnosis_.verdict, model.pip_, model.selected_, model.sets_, model.coef_, model.interval(0.95), model.r2_loo_

`ReducedRankHorseshoe` has the prior of the paper. Columns are centred and scaled inside; every result is in the data's own units.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.estimator import Regression
from intarsia.server.assess.convergence import NotConvergedWarning as NotConvergedWarning
from intarsia.server.assess.findings import METHODS
from intarsia.server.assess.stacking import FOLDS
from intarsia.server.sampler.settings import Settings
from intarsia.wire.defaults import CHAINS, MEMORY

Array = NDArray[np.float64]


class SparseRegression(Regression):
    """Bayesian regression with sparse effects on a dense background: Y = X (B + D) + Z Γ + E.

    A feature is in or out: rows of B are exactly zero, but for those of the features that matter. A feature that is in acts on
    all responses or on some. The many effects too small to name make up D, whose ratio to the noise is learned and may be zero.

    Parameters
    ----------
    sketch : number of sketch rows; the data are then sketched first, under a fresh key that is thrown away.
    covariates : names or positions of columns of X to adjust for: no shrinkage, not features.
    noise : "correlated" between the responses (a full Σ) or "independent".
    expected_features : how many features the prior expects to matter.
    fdr : rate of false discoveries of `selected_` and `sets_`, and of each column of `selected_by_response_`.
    random_state : seed of the sampler and of `sketch` (data in one place need no secret; the sites of a study share a key).
    rank : rank of what the effects of a feature on the responses have in common; by default it is not limited.
    background : False leaves D out.
    looked_at : number of features that were looked at, where X has those that were kept of them: the prior counts all,
        and D is left out.
    power : power of the likelihood (fractional posterior), in (0, 1].
    draws, warmup, chains, thin : length of the run; each chain makes `warmup` sweeps and then keeps one in `thin`, at most
        `draws` of them (by default 4,000, 100 and 1).
    until : "converged": the run ends before its budget of draws is spent, as soon as the chains agree (R̂ ≤ 1.01, folded R̂ ≤ 1.02
        and 400 effective samples of every feature that comes into play; or what an `intarsia.Until` says); None: never.
    n_jobs : threads the chains run in; by default one per core. The draws do not depend on it.
    progress : called with the sampler's progress; by default a bar is shown on a terminal and elsewhere a line from time to
        time, with False nothing.
    backend : "numpy", or "jax" to sample on an accelerator (`pip install 'intarsia[gpu]'`).
    folds : in how many parts rows are left out in turn to judge and weigh predictions; 0: not at all.

    Attributes
    ----------
    diagnosis_ : R̂ and effective sample sizes, and a verdict. Read it first: what follows is provisional until the fit has
        converged.
    pip_ : posterior inclusion probability of each feature (P,), without the covariates.
    lfsr_ : local false sign rate of each coefficient (Q, P), or (P,) when y had one dimension.
    selected_ : which features matter (P,); `selection_` has the evidence, and whether each stands without a background too.
    selected_by_response_ : which coefficients (Q, P).
    sets_ : sets of interchangeable features, one of which matters: `members`, `coverage`, `purity`, `log_bf`.
    groups_ : everything that was found, a list of index arrays: each selected feature, then each set.
    coef_ : posterior means of B (Q, P); covariate_coef_ : the covariates' effects (Q, c); intercept_ : (Q,).
    noise_covariance_ : posterior mean of Σ (Q, Q).
    prediction_coef_ : coefficients that `predict` uses, shaped as `coef_`: B and D, weighed with a ridge by how well each
        predicts rows left out.
    r2_loo_ : out-of-sample share of variance explained (Q,), from rows left out.
    posterior_ : the draws, labelled, in the data's units.
    """

    pip_: Array
    lfsr_: Array
    selected_by_response_: NDArray[np.bool_]

    def __init__(
        self,
        sketch: int | None = None,
        covariates: Sequence[Any] | None = None,
        noise: str = "correlated",
        expected_features: float = 3.0,
        fdr: float = 0.05,
        random_state: int | np.random.RandomState | None = None,
        *,
        rank: int | None = None,
        background: bool = True,
        looked_at: int | None = None,
        power: float = 1.0,
        draws: int | None = None,
        warmup: int | None = None,
        chains: int = CHAINS,
        thin: int | None = None,
        until: Any = "converged",
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
        self.rank = rank
        self.background = background
        self.looked_at = looked_at
        self.power = power
        self.draws = draws
        self.warmup = warmup
        self.chains = chains
        self.thin = thin
        self.until = until
        self.n_jobs = n_jobs
        self.progress = progress
        self.backend = backend
        self.folds = folds

    def _model(self, Q: int) -> Any:
        from intarsia.server.sampler.sparse.sample import SparseModel

        rank = None if self.rank is None else min(self.rank, Q)
        return SparseModel(rank, self.noise, self.power, self.expected_features, self.background)

    def _looked_at(self) -> int | None:
        return self.looked_at


class ReducedRankHorseshoe(Regression):
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
        (or what an `intarsia.Until` says); None: `draws` draws in any case.
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

    def _model(self, Q: int) -> Any:
        from intarsia.server.sampler.horseshoe.model import Model

        rank = None if self.rank is None else min(self.rank, Q)
        return Model(self.local, rank, self.law, self.noise, self.power, self.expected_features)

    def _selection(self) -> Any:
        return self.selection

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.selection not in METHODS:
            raise InputError(f"selection={self.selection!r}; expected one of {', '.join(METHODS)}.")

    def _settings(self, seed: int) -> Settings:
        return replace(super()._settings(seed), memory=self.memory)
