"""What a sampler run leaves: draws of C, of the noise's covariance and of the prior's parameters."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.posterior.dense import DenseEffects
from intarsia.server.posterior.sparse import Inclusion, SparseEffects

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass
class Draws:
    """Draws after warm-up and thinning.

    `C` is dense (chain, draw, P, Q), or sparse where most rows are exactly zero; Sigma (chain, draw, Q, Q) is the noise's
    covariance; `parameters` are the prior's, each (chain, draw, …): of the horseshoe "tau", of the sparse model "included",
    "prior_inclusion", "slab", "background_ratio" and "rho". `shrinkage` (P,) is the horseshoe's mean factor kappa of each
    feature. `inclusion` is the sparse model's. `background` (P, Q) is the mean of a dense background's coefficients: predictions
    use C + background, effects are C alone. `info` says how the run went (seconds, warmup, thin, seed, model, …).
    """

    C: NDArray[np.float64] | SparseEffects
    Sigma: Array
    parameters: dict[str, Array] = field(default_factory=dict)
    shrinkage: Array | None = None
    info: dict[str, Any] = field(default_factory=dict)
    inclusion: Inclusion | None = None
    background: Array | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def sparse(self) -> bool:
        return isinstance(self.C, SparseEffects)

    @property
    def effects(self) -> DenseEffects | SparseEffects:
        """C with its means, quantiles and products, however it is kept."""
        return self.C if isinstance(self.C, SparseEffects) else DenseEffects(self.C)

    @property
    def sigma2(self) -> Array:
        """The noise variances (chain, draw, Q): the diagonal of Sigma, read-only."""
        return np.diagonal(self.Sigma, axis1=2, axis2=3)

    @property
    def tau(self) -> Array:
        """The horseshoe's global scales (chain, draw, component)."""
        return self.parameters["tau"]

    @property
    def flat_Sigma(self) -> Array:
        """Sigma of all chains' draws in a row (draw, Q, Q)."""
        return self.Sigma.reshape(-1, *self.Sigma.shape[2:])

    @property
    def chains(self) -> int:
        return self.C.shape[0]

    @property
    def draws(self) -> int:
        """Draws per chain."""
        return self.C.shape[1]

    @property
    def number(self) -> int:
        """Draws of all chains."""
        return self.chains * self.draws

    @property
    def P(self) -> int:
        return self.C.shape[2]

    @property
    def Q(self) -> int:
        return self.C.shape[3]

    def mean(self) -> Array:
        """Posterior mean of C (P, Q), without the background."""
        return self.effects.mean()

    def sd(self) -> Array:
        """Posterior standard deviation of C (P, Q)."""
        return self.effects.sd()

    def quantile(self, q: Sequence[float], places: Any = None) -> Array:
        """Quantiles (q, place, Q) of the coefficients of features at some places, or of all."""
        return self.effects.quantile(q, places)

    def of(self, places: Any) -> NDArray[Any]:
        """Draws (chain, draw, place, Q) of the coefficients of features at some places."""
        return self.effects.dense(np.asarray(places))

    def prediction_mean(self) -> Array:
        """The mean coefficients (P, Q) that predict: the background's added."""
        return self.mean() if self.background is None else self.mean() + self.background

    def fitted(self, X: NDArray[Any], at: Index | None = None) -> Array:
        """X (C + background), (draw, rows, Q), of all draws in a row or of those number `at`."""
        out = self.effects.times(X, at)
        if self.background is not None:
            out += X @ self.background
        return out

    def times(self, X: NDArray[Any]) -> Array:
        """X (C + background), (chain, draw, rows, Q)."""
        return self.fitted(X).reshape(self.chains, self.draws, len(X), self.Q)

    def thinned(self, most: float) -> Index:
        """Numbers of at most so many draws, evenly spread over the chains."""
        return np.unique(np.linspace(0, self.number - 1, min(self.number, max(1, int(most)))).round().astype(np.int64))

    def scaled(self, features: Array, responses: Array) -> "Draws":
        """Of columns in other units: effects on a response times `responses` (Q), of a feature over `features` (P)."""
        factor = responses / features[:, None]
        return replace(
            self,
            C=self.effects.scaled(factor),
            Sigma=self.Sigma * np.outer(responses, responses),
            inclusion=None if self.inclusion is None else self.inclusion.scaled(factor),
            background=None if self.background is None else self.background * factor,
        )

    def spread_out(self, features: NDArray[np.bool_], responses: NDArray[np.bool_]) -> "Draws":
        """Among more columns, of which those with True are these: constant ones have no effect and no noise."""
        p, q = np.flatnonzero(features), np.flatnonzero(responses)
        Sigma = np.zeros((self.chains, self.draws, len(responses), len(responses)))
        Sigma[:, :, q[:, None], q] = self.Sigma
        shrinkage, background = None, None
        if self.shrinkage is not None:
            shrinkage = np.ones(len(features))
            shrinkage[p] = self.shrinkage
        if self.background is not None:
            background = np.zeros((len(features), len(responses)))
            background[p[:, None], q] = self.background
        return replace(
            self,
            C=self.effects.spread_out(features, responses),
            Sigma=Sigma,
            shrinkage=shrinkage,
            inclusion=None if self.inclusion is None else self.inclusion.spread_out(features, responses),
            background=background,
        )


def diagonal(sigma2: NDArray[Any]) -> Array:
    """Covariances (…, Q, Q) of independent noise with the variances sigma2 (…, Q)."""
    sigma2 = np.asarray(sigma2, dtype=np.float64)
    Sigma = np.zeros((*sigma2.shape, sigma2.shape[-1]))
    at = np.arange(sigma2.shape[-1])
    Sigma[..., at, at] = sigma2
    return Sigma


def square_root(Sigma: NDArray[Any]) -> Array:
    """The symmetric square roots of covariances (…, Q, Q); a singular one (a constant response) is no obstacle."""
    size, U = np.linalg.eigh(np.asarray(Sigma, dtype=np.float64))
    return np.asarray((U * np.sqrt(np.maximum(size, 0.0))[..., None, :]) @ np.swapaxes(U, -1, -2))


def plain(value: Any) -> Any:
    """The same value in what JSON knows; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _check(found: Draws) -> None:
    if len(found.C.shape) != 4:
        raise InputError(f"C has {len(found.C.shape)} dimensions; expected 4: (chain, draw, feature, response).")
    chains, draws, P, Q = found.C.shape
    if found.Sigma.shape != (chains, draws, Q, Q):
        raise InputError(f"Sigma has shape {found.Sigma.shape}; expected {(chains, draws, Q, Q)} to go with C {found.C.shape}.")
    for name, values in found.parameters.items():
        if values.shape[:2] != (chains, draws):
            raise InputError(f"{name} has shape {values.shape}; expected ({chains}, {draws}, …) to go with C {found.C.shape}.")
    if found.shrinkage is not None and found.shrinkage.shape != (P,):
        raise InputError(f"shrinkage has shape {found.shrinkage.shape}; expected {(P,)}, one per feature.")
    if found.background is not None and found.background.shape != (P, Q):
        raise InputError(f"The background has shape {found.background.shape}; expected {(P, Q)} to go with C {found.C.shape}.")
    known = found.inclusion
    if known is not None and (known.pip.shape != (chains, P) or len(known.offsets) != chains * draws + 1):
        raise InputError(f"The inclusion probabilities have shape {known.pip.shape}; expected {(chains, P)}, and as many draws.")
