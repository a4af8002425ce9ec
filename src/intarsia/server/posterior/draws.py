"""What a sampler run leaves: draws of C, of the noise's covariance and of the prior's parameters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.posterior.sparse import CHUNK, Inclusion, SparseEffects, among, parts

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Bool = NDArray[np.bool_]

NUMBERS = 2**24  # of X, and of the draws' coefficients, that are worked on at once


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
        if len(self.C.shape) != 4:
            raise InputError(f"C has {len(self.C.shape)} dimensions; expected 4: (chain, draw, feature, response).")
        chains, draws, P, Q = self.C.shape
        wanted: list[tuple[str, Any, tuple[int, ...]]] = [(name, one, (chains, draws)) for name, one in self.parameters.items()]
        wanted += [("Sigma", self.Sigma, (chains, draws, Q, Q)), ("shrinkage", self.shrinkage, (P,))]
        wanted += [("background", self.background, (P, Q))]
        if self.inclusion is not None:
            wanted += [("inclusion", self.inclusion.pip, (chains, P)), ("offsets", self.inclusion.offsets, (chains * draws + 1,))]
        for name, values, expected in wanted:
            shape = None if values is None else values.shape[:2] if name in self.parameters else values.shape
            if shape is not None and shape != expected:
                raise InputError(f"{name} has shape {values.shape}; expected {expected} to go with C {self.C.shape}.")

    @classmethod
    def of(cls, draws: Any) -> "Draws":
        """Those of a `Posterior`, or themselves; a bare array of draws (chain, draw, P, Q) gets noise of variance one."""
        found = draws if isinstance(draws, Draws) else getattr(draws, "draws", draws)
        if isinstance(found, Draws):
            return found
        C = np.asanyarray(found)
        if C.ndim != 4:
            raise InputError(f"The draws have {C.ndim} dimensions; expected 4: (chain, draw, feature, response).")
        return cls(C, np.broadcast_to(np.eye(C.shape[3]), (*C.shape[:2], C.shape[3], C.shape[3])))

    @property
    def sparse(self) -> bool:
        return isinstance(self.C, SparseEffects)

    @property
    def effects(self) -> "DenseEffects | SparseEffects":
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

    def spread_out(self, features: Bool, responses: Bool) -> "Draws":
        """Among more columns, of which those with True are these: constant ones have no effect and no noise."""
        return replace(
            self,
            C=self.effects.spread_out(features, responses),
            Sigma=among(self.Sigma, responses, responses),
            shrinkage=None if self.shrinkage is None else among(self.shrinkage, features, other=1.0),
            inclusion=None if self.inclusion is None else self.inclusion.spread_out(features, responses),
            background=None if self.background is None else among(self.background, features, responses),
        )


@dataclass(frozen=True)
class DenseEffects:
    """Draws `C` (chain, draw, P, Q) as one array, with the methods of `SparseEffects`, a block of features at a time.

    Among many features X is the largest thing in memory. A product for each draw would read all of it each time; here it is
    read once.
    """

    C: NDArray[Any]

    @property
    def number(self) -> int:
        return self.C.shape[0] * self.C.shape[1]

    def finite(self) -> bool:
        return bool(np.isfinite(self.C).all())

    def dense(self, places: Any = None) -> NDArray[Any]:
        return self.C if places is None else np.asarray(self.C[:, :, places])

    def times(self, X: NDArray[Any], at: Index | None = None) -> Array:
        """X C (draw, m, Q) of all draws, or of those number `at`."""
        at = np.arange(self.number) if at is None else at
        m, (P, Q) = len(X), self.C.shape[2:]
        out = np.zeros((m, len(at) * Q))
        for part in parts(P, m + len(at) * Q, NUMBERS):
            c = np.ascontiguousarray(self.some(np.arange(P)[part], at).swapaxes(0, 1))
            out += X[:, part] @ c.reshape(len(c), -1)
        return out.reshape(m, len(at), Q).swapaxes(0, 1)

    def some(self, places: Index, at: Index) -> Array:
        """The coefficients (draw, place, Q) of features at some places in the draws number `at`."""
        chain, draw = np.unravel_index(at, self.C.shape[:2])
        return np.asarray(self.C[chain[:, None], draw[:, None], places], dtype=np.float64)

    def mean(self) -> Array:
        return np.asarray(self.C.mean(axis=(0, 1)), dtype=np.float64)

    def sd(self) -> Array:
        found = [x.std(axis=0, ddof=1 if len(x) > 1 else 0) for x in self._blocks()]
        return np.concatenate(found).astype(np.float64) if found else np.zeros(self.C.shape[2:])

    def signs(self) -> tuple[Array, Array]:
        """In how many draws each coefficient (P, Q) is above zero, and below."""
        above, below = (side.sum(axis=(0, 1)).astype(np.float64) for side in (self.C > 0, self.C < 0))
        return above, below

    def quantile(self, q: Sequence[float], places: Any = None) -> Array:
        """Quantiles (q, place, Q)."""
        places = np.arange(self.C.shape[2]) if places is None else np.asarray(places)
        found = [np.quantile(x, list(q), axis=0) for x in self._blocks(places)]
        return np.concatenate(found, axis=1) if found else np.empty((len(q), 0, self.C.shape[3]))

    def scaled(self, factor: Array) -> NDArray[Any]:
        """Of coefficients multiplied by `factor` (P, Q): in place where that is possible, for draws may be large."""
        C = self.C if self.C.flags.writeable else np.array(self.C)
        C *= factor
        return C

    def spread_out(self, features: Bool, responses: Bool) -> Array:
        """Among more columns, of which those with True are these; the coefficients of the others are zero."""
        return among(self.C, features, responses)

    def singular_values(self) -> Array:
        """Of every draw (chain, draw, min(P, Q)), largest first; NaN for a draw that is not finite."""
        chains, draws, P, Q = self.C.shape
        values = np.empty((chains, draws, min(P, Q)))
        for chain in range(chains):
            for part in parts(draws, P * Q, CHUNK):
                x = np.asarray(self.C[chain, part], dtype=np.float64)
                bad = np.asarray(~np.isfinite(x).all(axis=(1, 2)))
                x = np.where(bad[:, None, None], 0.0, x) if bad.any() else x
                found = np.linalg.svd(np.linalg.qr(x, mode="r"), compute_uv=False)
                found[bad] = np.nan
                values[chain, part] = found
        return values

    def _blocks(self, places: Any = None) -> Iterator[Array]:
        """The draws (draw, place, response) of some features, or of all, a block of features at a time."""
        Q = self.C.shape[3]
        for part in parts(self.C.shape[2] if places is None else len(places), self.number * Q, CHUNK):
            yield np.asarray(self.C[:, :, part if places is None else places[part]]).reshape(self.number, -1, Q)


def diagonal(sigma2: NDArray[Any]) -> Array:
    """Covariances (…, Q, Q) of independent noise with the variances sigma2 (…, Q)."""
    sigma2 = np.asarray(sigma2, dtype=np.float64)
    return np.where(np.eye(sigma2.shape[-1], dtype=bool), sigma2[..., None], 0.0)


def square_root(Sigma: NDArray[Any]) -> Array:
    """The symmetric square roots of covariances (…, Q, Q); a singular one (a constant response) is no obstacle."""
    size, U = np.linalg.eigh(np.asarray(Sigma, dtype=np.float64))
    return np.asarray((U * np.sqrt(np.maximum(size, 0.0))[..., None, :]) @ np.swapaxes(U, -1, -2))
