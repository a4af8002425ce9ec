"""The labelled posterior: draws with the names of features, responses and sites.

Numbers come from `draws`, as plain arrays; `mean`, `sd` and `interval` put the labels on them. `tree` is the whole of
it as an ArviZ-compatible `xarray.DataTree`, and `save` writes that. xarray is imported when it is asked for.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.posterior.draws import Draws, square_root
from intarsia.server.posterior.sparse import parts

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

CHUNK = 8_000_000  # numbers in memory at once
DIMS = {
    "C": ("chain", "draw", "feature", "response"),
    "Sigma": ("chain", "draw", "response", "response2"),
    "sigma2": ("chain", "draw", "response"),
    "tau": ("chain", "draw", "component"),
    "intercept": ("chain", "draw", "response"),
    "Gamma": ("chain", "draw", "covariate", "response"),
}
HELD_BY = ("site", "response_site", "covariate_site")  # coordinates that say whose a feature, response or covariate is


@dataclass(frozen=True)
class CovariateEffects:
    """Draws of the covariates' effects Γ (chain, draw, covariate, response), and whose they are."""

    Gamma: Array
    names: tuple[str, ...]
    sites: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Names:
    """Labels of the columns and the sites that hold them; None: x1, x2, … and y1, y2, …, and no sites."""

    features: Sequence[str] | None = None
    responses: Sequence[str] | None = None
    feature_sites: Sequence[str] | None = None
    response_sites: Sequence[str] | None = None

    @classmethod
    def of(cls, joined: Any) -> "Names":
        """Those of joined sketches."""
        return cls(*(getattr(joined, one.name) for one in fields(cls)))

    def filled(self, P: int, Q: int) -> "Names":
        """The same for P features and Q responses, with names for columns that have none."""
        return Names(
            _labels(self.features, P, "feature", "x"),
            _labels(self.responses, Q, "response", "y"),
            _labels(self.feature_sites, P, "site"),
            _labels(self.response_sites, Q, "response site"),
        )


class Group(NamedTuple):
    """What else is kept with the draws, under a name: arrays with their dimensions, and words."""

    arrays: dict[str, tuple[tuple[str, ...], NDArray[Any]]]
    words: dict[str, Any]


@dataclass
class Posterior:
    """Draws under their names. `intercept_draws` (chain, draw, response) are of data in their own units, a sketch has none;
    `effects` those of the covariates; `attrs` say how the fit was made; `groups` is what others keep with the draws.
    """

    draws: Draws
    names: Names
    attrs: dict[str, Any] = field(default_factory=dict)
    intercept_draws: Array | None = None
    effects: CovariateEffects | None = None
    groups: dict[str, Group] = field(default_factory=dict)

    @classmethod
    def from_draws(
        cls,
        draws: Draws,
        names: Names | None = None,
        *,
        attrs: dict[str, Any] | None = None,
        intercept: Array | None = None,
        effects: CovariateEffects | None = None,
    ) -> "Posterior":
        """Label draws; nothing is copied."""
        names = (names or Names()).filled(draws.P, draws.Q)
        info = json.loads(json.dumps({**draws.info, **(attrs or {})}, default=_plain), parse_constant=lambda _: None)
        if "starts" in info:  # features by their names here, as everywhere
            info["starts"] = [[names.features[p] for p in chain] for chain in info["starts"]]  # type: ignore[index]
        there = effects if effects is not None and effects.names else None
        return cls(draws, names, info, intercept, there)

    @property
    def features(self) -> list[str]:
        return list(self.names.features or ())

    @property
    def responses(self) -> list[str]:
        return list(self.names.responses or ())

    @property
    def feature_sites(self) -> list[str]:
        """Whose each feature is; empty where there are no sites."""
        return list(self.names.feature_sites or ())

    @property
    def response_sites(self) -> list[str]:
        return list(self.names.response_sites or ())

    @property
    def covariates(self) -> list[str]:
        return [] if self.effects is None else list(self.effects.names)

    @property
    def covariate_sites(self) -> list[str]:
        return [] if self.effects is None else list(self.effects.sites or ())

    @property
    def most_told(self) -> dict[str, int]:
        """How many effects another site may be told in full, by the site whose features it is for."""
        return {str(site): int(most) for site, most in self.attrs.get("most_told", {}).items()}

    @property
    def response_scales(self) -> dict[str, float]:
        """The responses' standard deviations in their units, where their owners share them; else empty."""
        shared = self.attrs.get("response_scales") or []
        return dict(zip(self.responses, map(float, shared), strict=True)) if shared else {}

    @property
    def tree(self) -> "xr.DataTree":
        """Everything under its labels, in ArviZ's groups. Draws that are sparse stay so: `dense` has those of single features."""
        from intarsia.server.posterior.netcdf import to_tree

        return to_tree(self)

    def dense(self, features: Sequence[Any] | None = None) -> "xr.DataArray":
        """Draws of the coefficients (chain, draw, feature, response): of all features, or of those named or placed."""
        at = None if features is None else self._places(features)
        return self.labelled(self.draws.effects.dense(at), DIMS["C"], at)

    @property
    def C(self) -> "xr.DataArray":
        """Draws of all coefficients (see `dense`)."""
        return self.dense()

    @property
    def Sigma(self) -> "xr.DataArray":
        """Covariance of the noise (chain, draw, response, response2)."""
        return self.labelled(self.draws.Sigma, DIMS["Sigma"])

    @property
    def sigma2(self) -> "xr.DataArray":
        """Variances of the noise (chain, draw, response)."""
        return self.labelled(self.draws.sigma2, DIMS["sigma2"])

    @property
    def tau(self) -> "xr.DataArray":
        """The horseshoe's global scales (chain, draw, component)."""
        return self.labelled(self.draws.tau, DIMS["tau"])

    @property
    def Gamma(self) -> "xr.DataArray | None":
        """Effects of the covariates (chain, draw, covariate, response); None when there were none."""
        return None if self.effects is None else self.labelled(self.effects.Gamma, DIMS["Gamma"])

    def intercept(self) -> Array:
        """Draws of the intercept (chain, draw, response); zero for a sketch, which has none."""
        d = self.draws
        return np.zeros((d.chains, d.draws, d.Q)) if self.intercept_draws is None else self.intercept_draws

    def mean(self) -> "xr.DataArray":
        """Posterior mean of C (feature, response)."""
        return self.labelled(self.draws.mean(), ("feature", "response"))

    def sd(self) -> "xr.DataArray":
        """Posterior standard deviation of C (feature, response)."""
        return self.labelled(self.draws.sd(), ("feature", "response"))

    def interval(self, probability: float) -> "tuple[xr.DataArray, xr.DataArray]":
        """Equal-tailed credible interval of every coefficient."""
        lower, upper = (self.labelled(side, ("feature", "response")) for side in self.draws.quantile(ends(probability)))
        for side in (lower, upper):
            side.attrs["probability"] = probability
        return lower, upper

    def covariate_summary(self, probability: float = 0.95) -> dict[str, Array]:
        """Mean, sd and interval of every covariate's effect, each (covariate, response); empty without covariates."""
        Q = self.draws.Q
        flat = np.empty((1, 0, Q)) if self.effects is None else self.effects.Gamma.reshape(self.draws.number, -1, Q)
        lower, upper = np.quantile(flat, ends(probability), axis=0)
        sd = flat.std(axis=0, ddof=1 if len(flat) > 1 else 0)
        return {"mean": flat.mean(axis=0), "sd": sd, "lower": lower, "upper": upper}

    @cached_property
    def singular_values(self) -> Array:
        """Of C in every draw (chain, draw, component), largest first."""
        return self.draws.effects.singular_values()

    def rank_summary(self, probability: float = 0.95) -> dict[str, Any]:
        """The effective rank of C, and each singular value's mean and interval."""
        values = self.singular_values.reshape(self.draws.number, -1)
        rank, share = effective_rank(values), (values**2).mean(axis=0)
        return {
            "effective_rank": float(rank.mean()),
            "effective_rank_interval": [float(v) for v in np.quantile(rank, ends(probability))],
            "singular_values": values.mean(axis=0).tolist(),
            "singular_value_intervals": np.quantile(values, ends(probability), axis=0).T.tolist(),
            "share": (share / max(share.sum(), np.finfo(float).tiny)).tolist(),
        }

    def fitted(self, X: NDArray[Any], Z: NDArray[Any] | None = None, at: NDArray[np.int64] | None = None) -> Array:
        """Means of the responses (draw, row, response) of centred rows, in draws of all chains in a row or those number `at`."""
        out = self.draws.fitted(X, at)
        if self.effects is not None and Z is not None:
            Gamma = self.effects.Gamma.reshape(self.draws.number, -1, self.draws.Q)
            out += np.einsum("ij,djq->diq", Z, Gamma if at is None else Gamma[at])
        return out

    def predictive_draws(
        self,
        X: NDArray[Any],
        Z: NDArray[Any] | None = None,
        *,
        noise: bool = True,
        rng: np.random.Generator | None = None,
        thin: int = 1,
    ) -> "xr.DataArray":
        """Draws of the responses for new rows X (row, feature): X C, plus noise N(0, Σ) unless `noise=False`.

        Z (row, covariate) are the new rows' covariates, if the fit had any: Z Γ is added. So are a background's coefficients and
        the intercept of an estimator's posterior. The draws are joint over the responses. Every `thin`-th draw is used.
        """
        X, Z = self._rows(X, Z)
        at = np.arange(self.draws.number).reshape(self.draws.chains, -1)[:, ::thin]
        out = self.fitted(X, Z, at.ravel()) + self.intercept()[:, ::thin].reshape(at.size, 1, -1)
        if noise:
            rng = np.random.default_rng() if rng is None else rng
            out += rng.standard_normal(out.shape) @ square_root(self.draws.flat_Sigma[at.ravel()])
        labelled = self.labelled(out.reshape(*at.shape, *out.shape[1:]), ("chain", "draw", "row", "response"))
        return labelled.assign_coords(draw=at[0]).rename("Y")

    def predict(self, X: NDArray[Any], Z: NDArray[Any] | None = None) -> tuple[Array, Array]:
        """Mean and standard deviation (row, response) of the responses at new rows, noise included."""
        X, Z = self._rows(X, Z)
        mean, variance = np.empty((len(X), self.draws.Q)), np.empty((len(X), self.draws.Q))
        for rows in parts(len(X), self.draws.number * self.draws.Q, CHUNK):
            block = self.fitted(X[rows], Z[rows]) + self.intercept().reshape(self.draws.number, 1, -1)
            mean[rows], variance[rows] = block.mean(axis=0), block.var(axis=0, ddof=1 if len(block) > 1 else 0)
        return mean, np.sqrt(variance + self.draws.sigma2.mean(axis=(0, 1)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write netCDF (.nc, readable by `arviz.from_netcdf`) or, with the zarr library, a .zarr folder."""
        from intarsia.server.posterior.netcdf import save

        return save(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Posterior":
        """Open a saved posterior into memory."""
        from intarsia.server.posterior.netcdf import load

        return load(Path(path))

    def _places(self, features: Sequence[Any]) -> NDArray[np.intp]:
        known = {name: place for place, name in enumerate(self.features)}
        missing = [one for one in features if isinstance(one, str) and one not in known]
        if missing:
            raise InputError(f"{len(missing)} of the features asked for are not in this posterior; the first is {missing[0]!r}.")
        return np.array([known[one] if isinstance(one, str) else int(one) for one in features], dtype=np.intp)

    def labelled(self, values: NDArray[Any], dims: tuple[str, ...], places: Any = None) -> "xr.DataArray":
        """Values under the labels of their dimensions; features are those at some places, or all."""
        import xarray

        sizes = dict(zip(dims, values.shape, strict=True))
        return xarray.DataArray(values, dims=dims, coords=self.coords(sizes, places))

    def coords(self, sizes: Mapping[str, int], places: Any = None) -> dict[str, Any]:
        """The labels of those of these dimensions that have some, and the sites that hold them; draws may have been thinned."""
        n, covariates = self.names, self.effects
        named: list[tuple[str, Any, str, Any]] = [
            ("feature", n.features, "site", n.feature_sites),
            ("response", n.responses, "response_site", n.response_sites),
            ("response2", n.responses, "", None),
        ]
        if covariates is not None:
            named += [("covariate", covariates.names, "covariate_site", covariates.sites)]
        found: dict[str, Any] = {dim: np.arange(sizes[dim]) for dim in ("chain", "draw") if dim in sizes}
        for dim, labels, site, held in (one for one in named if one[0] in sizes):
            at = slice(None) if places is None or dim != "feature" else places
            found[dim] = np.asarray(labels, dtype=object)[at]
            if held is not None:
                found[site] = (dim, np.asarray(held, dtype=object)[at])
        return found

    def _rows(self, X: NDArray[Any], Z: NDArray[Any] | None) -> tuple[Array, Array]:
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.draws.P:
            raise InputError(f"X has shape {X.shape}; expected (rows, {self.draws.P}), one column per feature.")
        c = len(self.covariates)
        Z = np.empty((len(X), 0)) if Z is None else np.asarray(Z, dtype=np.float64)
        if Z.shape != (len(X), c):
            raise InputError(
                f"The covariates Z have shape {Z.shape}; expected {(len(X), c)}: one row per row of X, one column each for "
                f"{', '.join(self.covariates[:8]) or 'none'}."
            )
        return X, Z


def _plain(value: Any) -> Any:
    """What JSON does not know as what it does."""
    return value.tolist() if hasattr(value, "tolist") else dict(value) if isinstance(value, Mapping) else str(value)


def effective_rank(values: Array) -> Array:
    """exp of the entropy of the singular values' shares (Roy & Vetterli 2007): R equal ones give R."""
    share = values / np.maximum(values.sum(axis=-1, keepdims=True), np.finfo(float).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(share == 0, 0.0, share * np.log(share)).sum(axis=-1)
    return np.exp(entropy)


def ends(probability: float) -> list[float]:
    """The two quantiles between which an equal-tailed interval of this probability lies."""
    if not 0 < probability < 1:
        raise InputError(f"The interval's probability is {probability}; expected a number between 0 and 1, such as 0.95.")
    return [(1 - probability) / 2, (1 + probability) / 2]


def _labels(given: Sequence[str] | None, count: int, what: str, prefix: str = "") -> list[str] | None:
    """The labels as text; those with a prefix are unique, and made up where none are given."""
    if given is None and not prefix:
        return None
    names = [f"{prefix}{i}" for i in range(count)] if given is None else [str(name) for name in given]
    if len(names) != count:
        raise InputError(f"{len(names)} {what} names for {count} in the draws; expected one each.")
    if prefix and len(set(names)) != count:
        raise InputError(f"The {what} names are not unique; {count - len(set(names))} repeat. Rename them.")
    return names
