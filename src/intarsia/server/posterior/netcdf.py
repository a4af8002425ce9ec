"""A posterior as an `xarray.DataTree`, and as a file: netCDF or zarr, which ArviZ opens.

Groups: `posterior` (what has a chain and a draw), `sparse_effects` and `inclusion` (draws of C of which most rows are zero, as
lists), `sample_stats`, `constant_data`, and what others keep with the draws. Format 2 had dense draws of C alone.

The sites of features and responses are coordinates of `constant_data`: ArviZ's summary wants none in `posterior` but the labels.
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
from intarsia.server.posterior.posterior import DIMS, HELD_BY, CovariateEffects, Group, Names, Posterior, effective_rank
from intarsia.server.posterior.sparse import Inclusion, SparseEffects

FORMAT = 3
WORDS = "words"  # the variable of a group that is JSON text
COMPRESSED_FROM = LABELLED = 100_000  # numbers in an array; features that each group names
LIKELIHOOD = "log_likelihood"  # ArviZ takes each of its variables for a likelihood, so its words are attributes
_OWN = ("posterior", "sparse_effects", "inclusion", "sample_stats", "constant_data")
_ONE_AT_A_TIME = "arviz.summary of version 1.3 mixes up the labels of Gamma unless it is asked for alone: var_names=['Gamma']."
_WHERE_C_IS = (
    "Most effects C are zero in a draw and lie in the group sparse_effects as lists: a summary of this group has none of them. "
    "intarsia.server.assess.leave_one_out.to_arviz(intarsia.server.posterior.posterior.Posterior.load(file), features) adds C."
)
_SPARSE = {"offsets": ("bound",), "features": ("entry",), "effects": ("entry", "response")}
_INCLUSION = {
    "pip": ("chain", "feature"), "offsets": ("bound",), "features": ("entry",), "probability": ("entry",),
    "expected": ("entry", "response"), "pip_without": ("feature",),
}  # fmt: skip


def to_tree(posterior: Posterior) -> xr.DataTree:
    d, effects = posterior.draws, posterior.effects
    own = {"Sigma": d.Sigma, "sigma2": d.sigma2, "C": None if isinstance(d.C, SparseEffects) else d.C, **d.parameters}
    own |= {"intercept": posterior.intercept_draws, "Gamma": None if effects is None else effects.Gamma}
    groups: dict[str, dict[str, Any]] = {
        "posterior": {name: (_dims(name, values), values) for name, values in own.items() if values is not None},
        "sparse_effects": _there(d.C, _SPARSE) if isinstance(d.C, SparseEffects) else {},
        "inclusion": _there(d.inclusion, _INCLUSION),
        "sample_stats": {
            "effective_rank": (("chain", "draw"), effective_rank(posterior.singular_values)),
            "singular_value": (("chain", "draw", "component"), posterior.singular_values),
        },
        "constant_data": _there(d, {"shrinkage": ("feature",), "background": ("feature", "response")}),
    }
    for name, group in posterior.groups.items():
        words = {WORDS: ((), np.asarray(json.dumps(group.words), dtype=object))} if group.words and name != LIKELIHOOD else {}
        groups[name] = {**group.arrays, **words}
    sets = {f"/{name}": _dataset(posterior, found) for name, found in groups.items() if found or name == "constant_data"}
    if LIKELIHOOD in posterior.groups:
        sets[f"/{LIKELIHOOD}"].attrs.update(posterior.groups[LIKELIHOOD].words)
    _label(posterior, sets)
    tree = xr.DataTree.from_dict(sets)
    tree.attrs.update({"intarsia_format": FORMAT, **_flat(posterior.attrs)})
    return tree


def _label(posterior: Posterior, sets: dict[str, xr.Dataset]) -> None:
    """All features, responses and covariates named in `posterior`, the sites that hold them in `constant_data`."""
    d = posterior.draws
    labels = posterior.coords({"feature": d.P, "response": d.Q, "covariate": len(posterior.covariates)})
    held = {name: labels.pop(name) for name in HELD_BY if name in labels}
    if not posterior.covariates:
        labels.pop("covariate", None)
    sets["/posterior"] = in_order(sets["/posterior"].drop_vars(HELD_BY, errors="ignore").assign_coords(labels))
    sets["/constant_data"] = sets["/constant_data"].assign_coords(held)
    if d.sparse:
        sets["/posterior"].attrs["comment"] = _WHERE_C_IS


def in_order(found: xr.Dataset) -> xr.Dataset:
    """The coefficients before all else.

    The summary of ArviZ 1.3 puts labels to values by the order in which dimensions first come up in any variable. Where a
    variable has another order, it gives the label of one coefficient to the value of another.
    """
    first = [name for name in ("C", "Gamma") if name in found]
    if len(first) == 2:
        found.attrs["comment_on_covariates"] = _ONE_AT_A_TIME
    names = [*first, *(name for name in found.data_vars if name not in first)]
    return xr.Dataset({name: found[name] for name in names}, coords=found.coords, attrs=found.attrs)


def _dims(name: str, values: Any) -> tuple[str, ...]:
    return DIMS.get(name) or ("chain", "draw", *(f"{name}_{k}" for k in range(values.ndim - 2)))


def _there(of: Any, dims: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    found = {name: (own, getattr(of, name, None)) for name, own in dims.items()}
    return {name: one for name, one in found.items() if one[1] is not None}


def _dataset(posterior: Posterior, arrays: Mapping[str, Any]) -> xr.Dataset:
    """The arrays with the labels of their dimensions; those of very many features are told once, beside the draws."""
    sizes = {dim: size for dims, values in arrays.values() for dim, size in zip(dims, np.shape(values), strict=True)}
    if posterior.draws.P > LABELLED:
        sizes.pop("feature", None)
    return xr.Dataset(dict(arrays), coords=posterior.coords(sizes))


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
    here = _arrays(tree, "posterior")
    labelled = [tree.children[name].dataset.coords for name in ("constant_data", "posterior") if name in tree.children]
    coords = {str(name): one.values.tolist() for found in labelled for name, one in found.items()}
    names = Names(*(coords.get(name) for name in ("feature", "response", "site", "response_site")))
    names = names.filled(len(coords["feature"]), len(coords["response"]))
    for name in {"C", "Sigma"} & set(here):
        if tree.children["posterior"].dataset[name].dims != DIMS[name]:
            raise ValueError(name)
    Sigma, constant = here["Sigma"], _arrays(tree, "constant_data")
    draws = Draws(
        SparseEffects((*Sigma.shape[:2], len(coords["feature"]), Sigma.shape[2]), **_arrays(tree, "sparse_effects"))
        if "sparse_effects" in tree.children
        else here["C"],
        Sigma,
        {name: values for name, values in here.items() if name == "tau" or name not in DIMS},
        constant.get("shrinkage"),
        inclusion=Inclusion(**_arrays(tree, "inclusion")) if "inclusion" in tree.children else None,
        background=constant.get("background"),
    )
    effects = None
    if "Gamma" in here:
        own = coords.get("covariate_site")
        effects = CovariateEffects(here["Gamma"], tuple(coords["covariate"]), None if own is None else tuple(own))
    groups = {str(name): _group(node.dataset) for name, node in tree.children.items() if name not in _OWN}
    found = Posterior(draws, names, attrs, here.get("intercept"), effects, groups)
    if (singular_values := _arrays(tree, "sample_stats").get("singular_value")) is not None:
        found.__dict__["singular_values"] = singular_values  # as they were worked out when it was saved
    return found


def _group(found: xr.Dataset) -> Group:
    arrays = {str(k): (tuple(map(str, v.dims)), v.values) for k, v in found.data_vars.items() if k != WORDS}
    words = json.loads(str(found[WORDS].item())) if WORDS in found else {str(k): unpacked(v) for k, v in found.attrs.items()}
    return Group(arrays, words)


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
    here = {key: int(value) if isinstance(value, bool) else value for key, value in info.items() if value is not None}
    return {
        key: value if isinstance(value, int | float | str) else json.dumps(value, sort_keys=True) for key, value in here.items()
    }
