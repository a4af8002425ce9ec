"""The labelled posterior: C = BAᵀ with its features, responses and sites, as an ArviZ-compatible `xarray.DataTree`.

Summaries and predictions are computed in chunks and never copy the draws, so a posterior whose draws are memory-mapped
from disk costs no more memory than one that is small.

A run too large for all its draws leaves those of some features in C, and of all features summaries and some whole draws (group
`every_feature`). Everything here but `C` speaks of all features either way.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from intarsia.errors import InputError, MessageError, of_the_system
from intarsia.server.results.draws import Draws, plain, square_root
from intarsia.server.results.fitted import fitted
from intarsia.server.results.mapped import let_go
from intarsia.server.results.summaries import ARRAYS, PER_FEATURE, Summaries

Array = NDArray[np.float64]

FORMAT = 2
_CHUNK = 8_000_000  # numbers in memory at once
_EVERY = "every_feature"
_NAMES = {"features": "with_draws", "at": "whole_at", "total": "draws"}  # what the file calls the fields of `Summaries`


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
        return cls(joined.features, joined.responses, joined.feature_sites, joined.response_sites)


class Posterior:
    """Draws of C (chain, draw, feature, response), Σ and τ under their names; `.tree` is the whole of it."""

    def __init__(self, tree: xr.DataTree) -> None:
        self.tree = tree

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
        """Label draws; nothing is copied. Sites become the coordinates `site`, `response_site` and `covariate_site`.

        `intercept` (chain, draw, response) is for data in their own units; a sketch has none. `effects` are those of the
        covariates, if there were any.
        """
        names = names or Names()
        features = _names(names.features, draws.P, "feature", "x")
        responses = _names(names.responses, draws.Q, "response", "y")
        known = draws.summaries
        every: dict[str, Any] = {
            "feature": np.asarray(features, dtype=object),
            "response": np.asarray(responses, dtype=object),
        }
        of_columns = (("site", "feature", names.feature_sites), ("response_site", "response", names.response_sites))
        for name, dim, sites in of_columns:
            if sites is not None:
                labels = _names(sites, len(every[dim]), name, "", unique=False)
                every[name] = (dim, np.asarray(labels, dtype=object))
        coords: dict[str, Any] = {
            "chain": np.arange(draws.chains),
            "draw": np.arange(draws.draws),
            "response2": every["response"],
            "component": np.arange(draws.tau.shape[2]),
            **(every if known is None else _of(every, known.features)),
        }
        posterior = xr.Dataset(
            {
                "C": (("chain", "draw", "feature", "response"), draws.C),
                "Sigma": (("chain", "draw", "response", "response2"), draws.Sigma),
                "sigma2": (("chain", "draw", "response"), draws.sigma2),
                "tau": (("chain", "draw", "component"), draws.tau),
            },
            coords=coords,
        )
        joint = "draw" if known is None else "whole"  # draws of what needs the whole of C
        if known is not None:
            posterior.coords["whole"] = known.at
        if intercept is not None:
            posterior["intercept"] = (("chain", joint, "response"), intercept)
        if effects is not None and effects.names:
            posterior.coords["covariate"] = np.asarray(effects.names, dtype=object)
            if effects.sites is not None:
                posterior.coords["covariate_site"] = ("covariate", np.asarray(effects.sites, dtype=object))
            posterior["Gamma"] = (("chain", joint, "covariate", "response"), effects.Gamma)
        values = singular_values(draws.whole)
        stats = xr.Dataset(
            {
                "effective_rank": (("chain", "draw"), effective_rank(values)),
                "singular_value": (("chain", "draw", "component"), values),
            },
            coords={"chain": coords["chain"], "draw": draws.whole_at, "component": np.arange(values.shape[2])},
        )
        groups = {"/posterior": posterior, "/sample_stats": stats}
        if known is not None:
            groups[f"/{_EVERY}"] = _every_feature(known, every)
        if draws.shrinkage is not None:
            groups["/constant_data"] = xr.Dataset(
                {"shrinkage": ("feature", draws.shrinkage)}, coords={"feature": every["feature"]}
            )
        tree = xr.DataTree.from_dict(groups)
        info = plain({**draws.info, **(attrs or {})})
        if "starts" in info:  # features by their names here, as everywhere
            info["starts"] = [[str(every["feature"][p]) for p in chain] for chain in info["starts"]]
        tree.attrs.update({"intarsia_format": FORMAT, **_flat(info)})
        return cls(tree)

    @property
    def C(self) -> xr.DataArray:
        """Draws of the coefficients (chain, draw, feature, response): of every feature, or of those whose draws were kept."""
        return self._group("posterior")["C"]

    @cached_property
    def summaries(self) -> Summaries | None:
        """What is known of every feature where C has some of them; None where it has all."""
        group = self.tree.children.get(_EVERY)
        if group is None:
            return None
        arrays: dict[str, Any] = {name: group.dataset[_NAMES.get(name, name)].values for name in ARRAYS}
        return Summaries(**arrays | {"total": int(arrays["total"])})

    @property
    def with_draws(self) -> NDArray[np.int64]:
        """Places of the features that C has."""
        return np.arange(self.C.shape[2]) if self.summaries is None else self.summaries.features

    @property
    def whole(self) -> NDArray[Any]:
        """Draws of all of C (chain, t, feature, response): every draw, or those that a large run kept whole."""
        return self.C.values if self.summaries is None else self.summaries.whole

    @property
    def whole_at(self) -> NDArray[np.int64]:
        """Which draws those are (t,)."""
        return np.arange(self.C.shape[1]) if self.summaries is None else self.summaries.at

    @property
    def whole_Sigma(self) -> Array:
        """Covariance of the noise in the same draws (chain, t, response, response)."""
        Sigma = np.asarray(self.Sigma.values)
        return Sigma if self.summaries is None else Sigma[:, self.summaries.at]

    def draws_of(self, places: NDArray[Any]) -> NDArray[Any]:
        """Draws (chain, draw, place, response) of features: all of them, or the whole draws where one's own were not kept."""
        if self.summaries is not None and not np.isin(places, self.with_draws).all():
            return self.summaries.whole_of(places).astype(np.float64)
        return np.asarray(self.C.values[:, :, np.searchsorted(self.with_draws, places)])

    @property
    def Sigma(self) -> xr.DataArray:
        """Covariance of the noise (chain, draw, response, response2)."""
        return self._group("posterior")["Sigma"]

    @property
    def sigma2(self) -> xr.DataArray:
        return self._group("posterior")["sigma2"]

    @property
    def Gamma(self) -> xr.DataArray | None:
        """Effects of the covariates (chain, draw, covariate, response); None when there were none."""
        return self._group("posterior").get("Gamma")

    @property
    def tau(self) -> xr.DataArray:
        return self._group("posterior")["tau"]

    @property
    def features(self) -> list[str]:
        return [str(name) for name in self.columns["feature"].values]

    @property
    def responses(self) -> list[str]:
        return [str(name) for name in self.columns["response"].values]

    @property
    def columns(self) -> Mapping[Any, xr.DataArray]:
        """The coordinates feature and response, and site and response_site where there are sites."""
        return self._one().coords

    @property
    def covariates(self) -> list[str]:
        Gamma = self.Gamma
        return [] if Gamma is None else [str(name) for name in Gamma.coords["covariate"].values]

    @property
    def most_told(self) -> dict[str, int]:
        """How many effects another site may be told in full, by the site whose features it is for."""
        return {str(site): int(most) for site, most in json.loads(self.tree.attrs.get("most_told", "{}")).items()}

    @property
    def response_scales(self) -> dict[str, float]:
        """The responses' standard deviations in their units, where their owners share them; else empty."""
        shared = json.loads(self.tree.attrs.get("response_scales", "[]"))
        return dict(zip(self.responses, map(float, shared), strict=True)) if shared else {}

    def noise_covariance(self) -> xr.DataArray:
        """Posterior mean of Σ (response, response2)."""
        return self.Sigma.mean(("chain", "draw"))

    def covariate_summary(self, probability: float = 0.95) -> dict[str, Array]:
        """Mean, sd and interval of every covariate's effect, each (covariate, response); empty without covariates."""
        Gamma, Q = self.Gamma, len(self.responses)
        flat = np.empty((1, 0, Q)) if Gamma is None else np.asarray(Gamma.values).reshape(-1, *Gamma.shape[2:])
        lower, upper = np.quantile(flat, [(1 - _probability(probability)) / 2, (1 + probability) / 2], axis=0)
        sd = flat.std(axis=0, ddof=1 if len(flat) > 1 else 0)
        return {"mean": flat.mean(axis=0), "sd": sd, "lower": lower, "upper": upper}

    def mean(self) -> xr.DataArray:
        """Posterior mean of C (feature, response)."""
        if self.summaries is not None:
            return self._like(self.summaries.mean)
        return self._like(np.concatenate([x.mean(axis=0) for _part, x in self._chunks()]))

    def sd(self) -> xr.DataArray:
        """Posterior standard deviation of C (feature, response)."""
        if self.summaries is not None:
            return self._like(self.summaries.sd)
        return self._like(np.concatenate([x.std(axis=0, ddof=1 if len(x) > 1 else 0) for _part, x in self._chunks()]))

    def interval(self, probability: float) -> tuple[xr.DataArray, xr.DataArray]:
        """Equal-tailed credible interval of every coefficient (see `quantile`)."""
        lower, upper = self.quantile([(1 - _probability(probability)) / 2, (1 + probability) / 2])
        for side in (lower, upper):
            side.attrs["probability"] = probability
        return lower, upper

    def quantile(self, q: Sequence[float], places: NDArray[Any] | None = None) -> list[xr.DataArray]:
        """The named quantiles of every coefficient, or of those of the features at some `places`.

        Quantiles of all draws; of features whose draws were not kept, those of the whole draws brought to the mean and sd of all.
        """
        one, known = self._one(), self.summaries
        places = np.arange(len(one)) if places is None else np.asarray(places)
        out = np.empty((len(q), len(places), one.shape[1]))
        kept = np.isin(places, self.with_draws)
        for part in _some_at_a_time(np.flatnonzero(kept), self.C.size // max(1, self.C.shape[2])):
            x = self.draws_of(places[part])
            out[:, part] = np.quantile(x.reshape(-1, *x.shape[2:]), list(q), axis=0)
        if known is not None:
            for part in _some_at_a_time(np.flatnonzero(~kept), self.whole.size // max(1, len(one))):
                out[:, part] = known.quantiles(places[part], list(q))
        return [one[places].copy(data=values) for values in out]

    def rank_summary(self, probability: float = 0.95) -> dict[str, Any]:
        """The effective rank of C, and each singular value's mean and interval."""
        stats = self._group("sample_stats")
        values = stats["singular_value"].values.reshape(-1, stats["singular_value"].shape[2])
        rank = stats["effective_rank"].values.ravel()
        ends = [(1 - _probability(probability)) / 2, (1 + probability) / 2]
        share = (values**2).mean(axis=0)
        return {
            "effective_rank": float(rank.mean()),
            "effective_rank_interval": [float(v) for v in np.quantile(rank, ends)],
            "singular_values": values.mean(axis=0).tolist(),
            "singular_value_intervals": np.quantile(values, ends, axis=0).T.tolist(),
            "share": (share / max(share.sum(), np.finfo(float).tiny)).tolist(),
        }

    def predictive_draws(
        self,
        X: NDArray[Any],
        Z: NDArray[Any] | None = None,
        *,
        noise: bool = True,
        rng: np.random.Generator | None = None,
        thin: int = 1,
    ) -> xr.DataArray:
        """Draws of the responses for new rows X (row, feature): X C, plus noise N(0, Σ) unless `noise=False`.

        Z (row, covariate) are the new rows' covariates, if the fit had any: Z Γ is added. So is the `intercept` of an
        estimator's posterior. The draws are joint over the responses. Every `thin`-th draw is used.
        """
        X, Z = self._rows(X, Z)
        C = self.whole[:, ::thin]
        out = fitted(X, C).reshape(*C.shape[:2], len(X), C.shape[3])
        if self.Gamma is not None:
            out += np.einsum("ij,cdjq->cdiq", Z, self.Gamma.values[:, ::thin])
        out += self.intercept()[:, ::thin, None, :]
        if noise:
            rng = np.random.default_rng() if rng is None else rng
            root = square_root(self.whole_Sigma[:, ::thin])
            out += rng.standard_normal(out.shape) @ root
        coords = {"chain": self.C.coords["chain"], "draw": self.whole_at[::thin], "response": self.responses}
        return xr.DataArray(out, dims=("chain", "draw", "row", "response"), coords=coords, name="Y")

    def predict(self, X: NDArray[Any], Z: NDArray[Any] | None = None) -> tuple[Array, Array]:
        """Mean and standard deviation (row, response) of the responses at new rows, noise included."""
        X, Z = self._rows(X, Z)
        chains, draws, _P, Q = self.whole.shape
        noise = self.sigma2.values.mean(axis=(0, 1))
        intercept = self.intercept().reshape(chains * draws, 1, Q)
        mean = np.empty((len(X), Q))
        variance = np.empty((len(X), Q))
        step = max(1, _CHUNK // (chains * draws * Q))
        for start in range(0, len(X), step):
            rows = X[start : start + step]
            block = fitted(rows, self.whole) + intercept
            if self.Gamma is not None:
                block += np.concatenate([Z[start : start + step] @ chain for chain in self.Gamma.values])
            mean[start : start + step] = block.mean(axis=0)
            variance[start : start + step] = block.var(axis=0, ddof=1 if len(block) > 1 else 0)
        return mean, np.sqrt(variance + noise)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write netCDF (.nc, readable by `arviz.from_netcdf`) or, with the zarr library, a .zarr folder."""
        where = Path(path)
        if where.suffix == ".zarr":
            self.tree.to_zarr(where, mode="w", consolidated=False)
            return where
        part = where.with_name(where.name + ".part")
        try:
            self.tree.to_netcdf(part, engine="h5netcdf")
            os.replace(part, where)
        except OSError as error:
            part.unlink(missing_ok=True)
            if error.errno is not None:
                raise OSError(error.errno, os.strerror(error.errno), str(where)) from None
            raise
        finally:
            let_go(self.whole)
        return where

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Posterior":
        """Open a saved posterior into memory."""
        where = Path(path)
        how: dict[str, Any] = {"engine": "zarr", "consolidated": False} if where.suffix == ".zarr" else {"engine": "h5netcdf"}
        if not where.exists():
            raise MessageError(f"There is no posterior at {where}. Give a study folder, or a posterior.nc.")
        try:
            with xr.open_datatree(where, **how) as opened:
                tree = opened.load()
        except PermissionError as error:
            raise InputError(of_the_system(error)) from None
        except Exception:  # HDF5 and zarr raise whatever the spoilt bytes lead to
            raise MessageError(f"{where.name} cannot be read as a posterior; expected netCDF-4 or zarr.") from None
        if tree.attrs.get("intarsia_format") != FORMAT:
            raise MessageError(f"{where.name} is not a posterior of format {FORMAT}. Fit again with this version.")
        try:
            C, Sigma, tau = (tree.children["posterior"].dataset[name] for name in ("C", "Sigma", "tau"))
            fine = C.dims == ("chain", "draw", "feature", "response")
            fine = (
                fine
                and Sigma.dims == ("chain", "draw", "response", "response2")
                and "sigma2" in tree.children["posterior"].dataset
            )
            fine = fine and tau.dims[:2] == ("chain", "draw") and {"feature", "response"} <= set(C.coords)
        except KeyError:
            fine = False
        if not fine:
            raise MessageError(f"{where.name} lacks C, Sigma, sigma2 or tau with their coordinates. Fit again.")
        return cls(tree)

    def _group(self, name: str) -> xr.Dataset:
        return self.tree.children[name].dataset

    def _chunks(self) -> Iterator[tuple[slice, Array]]:
        """Features in chunks, as (all draws, feature, response)."""
        C = self.C.values
        chains, draws, P, Q = C.shape
        step = max(1, _CHUNK // (chains * draws * Q))
        for start in range(0, P, step):
            part = slice(start, min(P, start + step))
            yield part, np.asarray(C[:, :, part]).reshape(chains * draws, -1, Q)

    def _one(self) -> xr.DataArray:
        """Some number for every coefficient (feature, response), with its labels."""
        known = self.tree.children.get(_EVERY)
        return self.C.isel(chain=0, draw=0, drop=True) if known is None else known.dataset["mean"]

    def _like(self, values: Array) -> xr.DataArray:
        one = self._one()
        return xr.DataArray(values, dims=one.dims, coords=one.coords)

    def intercept(self) -> Array:
        """Draws of the intercept (chain, draw, response); zero for a sketch, which has none."""
        posterior = self._group("posterior")
        if "intercept" in posterior:
            return np.asarray(posterior["intercept"].values)
        return np.zeros((self.C.shape[0], len(self.whole_at), len(self.responses)))

    def _rows(self, X: NDArray[Any], Z: NDArray[Any] | None) -> tuple[Array, Array]:
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.whole.shape[2]:
            raise InputError(f"X has shape {X.shape}; expected (rows, {self.whole.shape[2]}), one column per feature.")
        c = len(self.covariates)
        Z = np.empty((len(X), 0)) if Z is None else np.asarray(Z, dtype=np.float64)
        if Z.shape != (len(X), c):
            raise InputError(
                f"The covariates Z have shape {Z.shape}; expected {(len(X), c)}: one row per row of X, one column each for "
                f"{', '.join(self.covariates[:8]) or 'none'}."
            )
        return X, Z


def _of(every: dict[str, Any], features: NDArray[Any]) -> dict[str, Any]:
    """The coordinates of some of the features."""
    some = {name: (dim[0], dim[1][features]) for name, dim in every.items() if isinstance(dim, tuple) and dim[0] == "feature"}
    return every | {"feature": every["feature"][features]} | some


def _every_feature(known: Summaries, coords: dict[str, Any]) -> xr.Dataset:
    dims: dict[str, Any] = dict.fromkeys(PER_FEATURE, ("feature", "response"))
    dims |= {"features": ("kept",), "whole": ("chain", "whole_draw", "feature", "response"), "at": ("whole_draw",), "total": ()}
    return xr.Dataset({_NAMES.get(name, name): (dims[name], getattr(known, name)) for name in ARRAYS}, coords=coords)


def _some_at_a_time(places: NDArray[Any], numbers: int) -> Iterator[NDArray[Any]]:
    """Parts of the places, where each has so many numbers to work on."""
    step = max(1, _CHUNK // max(1, numbers))
    return (places[start : start + step] for start in range(0, len(places), step))


def singular_values(C: NDArray[Any]) -> Array:
    """Singular values of every draw of C (chain, draw, P, Q), largest first; NaN for a draw that is not finite."""
    chains, draws, P, Q = C.shape
    values = np.empty((chains, draws, min(P, Q)))
    step = max(1, _CHUNK // (P * Q))
    for chain in range(chains):
        for start in range(0, draws, step):
            x = np.asarray(C[chain, start : start + step], dtype=np.float64)
            bad = np.asarray(~np.isfinite(x).all(axis=(1, 2)))
            if bad.any():
                x = np.where(bad[:, None, None], 0.0, x)
            if C.dtype == np.float32:  # whole draws of a large run: their Gram matrix is as accurate as they are
                found = np.sqrt(np.maximum(np.linalg.eigvalsh(x.transpose(0, 2, 1) @ x)[:, ::-1], 0.0))[:, : min(P, Q)]
            else:
                found = np.linalg.svd(np.linalg.qr(x, mode="r"), compute_uv=False)
            found[bad] = np.nan
            values[chain, start : start + step] = found
            let_go(C)
    return values


def effective_rank(values: Array) -> Array:
    """exp of the entropy of the singular values' shares (Roy & Vetterli 2007): R equal ones give R."""
    share = values / np.maximum(values.sum(axis=-1, keepdims=True), np.finfo(float).tiny)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(share == 0, 0.0, share * np.log(share)).sum(axis=-1)
    return np.exp(entropy)


def _names(given: Sequence[str] | None, count: int, what: str, prefix: str, unique: bool = True) -> list[str]:
    names = [f"{prefix}{i}" for i in range(count)] if given is None else [str(name) for name in given]
    if len(names) != count:
        raise InputError(f"{len(names)} {what} names for {count} in the draws; expected one each.")
    if unique and len(set(names)) != count:
        raise InputError(f"The {what} names are not unique; {count - len(set(names))} repeat. Rename them.")
    return names


def _probability(probability: float) -> float:
    if not 0 < probability < 1:
        raise InputError(f"The interval's probability is {probability}; expected a number between 0 and 1, such as 0.95.")
    return probability


def _flat(info: dict[str, Any]) -> dict[str, Any]:
    """Attributes as netCDF can hold them: numbers and text; the rest as JSON text."""
    flat: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, bool):
            flat[key] = int(value)
        elif isinstance(value, int | float | str):
            flat[key] = value
        elif value is not None:
            flat[key] = json.dumps(value, sort_keys=True)
    return flat
