"""A posterior as an `xarray.DataTree`, and as a file: netCDF or zarr, which ArviZ opens.

Groups: `posterior` (what has a chain and a draw), `sparse_effects` and `inclusion` (draws of C of which most rows are zero, as
lists), `sample_stats`, `constant_data`, and what others keep with the draws. Format 2 had dense draws of C alone.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from intarsia.errors import InputError, MessageError, of_the_system
from intarsia.files import writing
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.hdf5_file import Hdf5File
from intarsia.server.posterior.posterior import CovariateEffects, Group, Names, Posterior, effective_rank
from intarsia.server.posterior.sparse import Inclusion, SparseEffects

FORMAT = 3
WORDS = "words"  # the variable of a group that is JSON text
COMPRESSED_FROM = LABELLED = 100_000  # numbers in an array; features that each group names
_OWN = ("posterior", "sparse_effects", "inclusion", "sample_stats", "constant_data")
_SPARSE = {"offsets": ("bound",), "features": ("entry",), "effects": ("entry", "response")}
_INCLUSION = {
    "pip": ("chain", "feature"), "offsets": ("bound",), "features": ("entry",), "probability": ("entry",),
    "expected": ("entry", "response"), "pip_without": ("feature",),
}  # fmt: skip
_NO_PARAMETERS = ("C", "Sigma", "sigma2", "Gamma", "intercept")


def feature_coords(names: Names, places: Any = None) -> dict[str, Any]:
    """The coordinates feature and response, and the sites that hold them."""
    out: dict[str, Any] = {}
    for dim, site, labels, sites in (
        ("feature", "site", names.features, names.feature_sites),
        ("response", "response_site", names.responses, names.response_sites),
    ):
        at = slice(None) if places is None or dim == "response" else places
        out[dim] = np.asarray(labels, dtype=object)[at]
        if sites is not None:
            out[site] = (dim, np.asarray(sites, dtype=object)[at])
    return out


def to_tree(posterior: Posterior) -> xr.DataTree:
    d = posterior.draws
    arrays: dict[str, Any] = {
        "Sigma": (("chain", "draw", "response", "response2"), d.Sigma),
        "sigma2": (("chain", "draw", "response"), d.sigma2),
    }
    if not isinstance(d.C, SparseEffects):
        arrays["C"] = (("chain", "draw", "feature", "response"), d.C)
    for name, values in d.parameters.items():
        own = ("component",) if name == "tau" else tuple(f"{name}_{k}" for k in range(values.ndim - 2))
        arrays[name] = (("chain", "draw", *own), values)
    if posterior.intercept_draws is not None:
        arrays["intercept"] = (("chain", "draw", "response"), posterior.intercept_draws)
    if posterior.effects is not None:
        arrays["Gamma"] = (("chain", "draw", "covariate", "response"), posterior.effects.Gamma)
    values = posterior.singular_values
    groups = {
        "posterior": arrays,
        "sample_stats": {
            "effective_rank": (("chain", "draw"), effective_rank(values)),
            "singular_value": (("chain", "draw", "component"), values),
        },
    }
    if isinstance(d.C, SparseEffects):
        groups["sparse_effects"] = {name: (dims, getattr(d.C, name)) for name, dims in _SPARSE.items()}
    if d.inclusion is not None:
        groups["inclusion"] = _there(d.inclusion, _INCLUSION)
    constant = _there(d, {"shrinkage": ("feature",), "background": ("feature", "response")})
    if constant:
        groups["constant_data"] = constant
    coords = _coords(posterior)
    groups |= {
        name: {**group.arrays, **({WORDS: ((), np.asarray(json.dumps(group.words), dtype=object))} if group.words else {})}
        for name, group in posterior.groups.items()
    }
    # Every dimension that a group has is labelled there; very many features once, beside the draws.
    few = coords if d.P <= LABELLED else {name: one for name, one in coords.items() if name not in ("feature", "site")}
    sets = {f"/{name}": _dataset(found, few) for name, found in groups.items()}
    always = {name: coords[name] for name in ("feature", "site") if name in coords}
    sets["/posterior"] = sets["/posterior"].assign_coords(always)
    tree = xr.DataTree.from_dict(sets)
    tree.attrs.update({"intarsia_format": FORMAT, **_flat(posterior.attrs)})
    return tree


def _there(of: Any, dims: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    return {name: (own, getattr(of, name)) for name, own in dims.items() if getattr(of, name) is not None}


def _coords(posterior: Posterior) -> dict[str, Any]:
    d = posterior.draws
    coords = feature_coords(posterior.names) | {"chain": np.arange(d.chains), "draw": np.arange(d.draws)}
    coords["response2"] = coords["response"]
    if posterior.effects is not None:
        coords["covariate"] = np.asarray(posterior.covariates, dtype=object)
        if posterior.effects.sites is not None:
            coords["covariate_site"] = ("covariate", np.asarray(posterior.covariate_sites, dtype=object))
    return coords


def _dataset(arrays: Mapping[str, Any], coords: Mapping[str, Any]) -> xr.Dataset:
    """The arrays, with the coordinates of the dimensions that they have; draws may have been thinned."""
    sizes = {dim: size for dims, values in arrays.values() for dim, size in zip(dims, np.shape(values), strict=True)}
    own = {name: one for name, one in coords.items() if (one[0] if isinstance(one, tuple) else name) in sizes}
    if "draw" in own and sizes["draw"] != len(own["draw"]):
        own["draw"] = np.arange(sizes["draw"])
    return xr.Dataset(dict(arrays), coords=own)


def save(posterior: Posterior, where: Path) -> Path:
    tree = posterior.tree
    if where.suffix == ".zarr":
        tree.to_zarr(where, mode="w", consolidated=False)
        return where
    packed = {"zlib": True, "complevel": 1, "shuffle": True}
    encoding = {
        path: {str(name): packed for name, one in node.dataset.data_vars.items() if one.size >= COMPRESSED_FROM and name != "C"}
        for path, node in ((node.path, node) for node in tree.subtree)
    }
    with writing(where) as file:
        written = Hdf5File(file.fileno())
        try:
            tree.to_netcdf(written, engine="h5netcdf", encoding={path: one for path, one in encoding.items() if one})
        finally:
            written.finish()  # what HDF5 makes of a full disk later is no news
    return where


def load(where: Path) -> Posterior:
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
    version = tree.attrs.get("intarsia_format")
    if version not in (2, FORMAT):
        raise MessageError(f"{where.name} is not a posterior of format 2 or {FORMAT}. Fit again with this version.")
    if "every_feature" in tree.children:
        raise MessageError(f"{where.name} has the draws of some features alone, as no version makes them any more. Fit again.")
    try:
        return _from_tree(tree)
    except (KeyError, TypeError, ValueError, IndexError, InputError):
        raise MessageError(
            f"{where.name} lacks draws of C or Sigma with their coordinates, or these do not go together. Fit again."
        ) from None


def _from_tree(tree: xr.DataTree) -> Posterior:
    attrs = {str(key): unpacked(value) for key, value in tree.attrs.items() if key != "intarsia_format"}
    here = tree.children["posterior"].dataset
    coords: dict[str, Any] = {str(name): one.values for name, one in here.coords.items()}
    names = Names(*(coords.get(name) for name in ("feature", "response", "site", "response_site")))
    names = names.filled(len(coords["feature"]), len(coords["response"]))
    Sigma = _values(here, "Sigma", ("chain", "draw", "response", "response2"))
    parameters = {str(name): one.values for name, one in here.data_vars.items() if name not in _NO_PARAMETERS}
    shape = (*Sigma.shape[:2], len(names.features or ()), Sigma.shape[2])
    constant, inclusion = _arrays(tree, "constant_data"), None
    if "inclusion" in tree.children:
        inclusion = Inclusion(**_arrays(tree, "inclusion"))
    sparse = "sparse_effects" in tree.children
    C = (
        SparseEffects(shape, **_arrays(tree, "sparse_effects"))
        if sparse
        else _values(here, "C", ("chain", "draw", "feature", "response"))
    )
    draws = Draws(
        C, Sigma, parameters, constant.get("shrinkage"), inclusion=inclusion, background=constant.get("background")
    )  # fmt: skip
    effects = None
    if "Gamma" in here:
        own = coords.get("covariate_site")
        effects = CovariateEffects(
            here["Gamma"].values, tuple(coords["covariate"].tolist()), None if own is None else tuple(own.tolist())
        )
    groups = {str(name): _group(node.dataset) for name, node in tree.children.items() if name not in _OWN}
    found = Posterior(draws, names, attrs, here["intercept"].values if "intercept" in here else None, effects, groups)
    stats = _arrays(tree, "sample_stats")
    if "singular_value" in stats:
        found.__dict__["singular_values"] = stats["singular_value"]  # as they were worked out when it was saved
    return found


def _group(found: xr.Dataset) -> Group:
    arrays = {str(k): (tuple(map(str, v.dims)), v.values) for k, v in found.data_vars.items() if k != WORDS}
    return Group(arrays, json.loads(str(found[WORDS].item())) if WORDS in found else {})


def _values(of: xr.Dataset, name: str, dims: tuple[str, ...]) -> Any:
    if of[name].dims != dims:
        raise ValueError(name)
    return of[name].values


def _arrays(tree: xr.DataTree, group: str) -> dict[str, Any]:
    child = tree.children.get(group)
    return {} if child is None else {str(name): one.values for name, one in child.dataset.data_vars.items()}


def unpacked(value: Any) -> Any:
    """Attributes that netCDF could only hold as JSON text."""
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value.item() if hasattr(value, "item") and getattr(value, "size", 2) == 1 else value


def _flat(info: Mapping[str, Any]) -> dict[str, Any]:
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
