"""What a sampler run leaves: draws of C, Σ and τ, in memory or memory-mapped from a folder.

Where all draws of C would be too large, C has those of some features, and `summaries` what is known of all.

The folder holds one .npy file per array and `draws.json`. The .npy files are plain little-endian arrays without objects,
so opening them never runs code, and a posterior larger than the memory can be summarised in chunks from disk.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError, MessageError
from intarsia.server.results.summaries import PER_FEATURE, Summaries

FORMAT = 2
_JSON = "draws.json"
_ARRAYS = {"C": 4, "Sigma": 4, "tau": 3, "shrinkage": 1}  # name -> number of dimensions
_SUMMARIES = dict.fromkeys(PER_FEATURE, 2) | {"features": 1, "whole": 4, "at": 1, "total": 0}
_DIMENSIONS = _ARRAYS | {f"summaries.{name}": number for name, number in _SUMMARIES.items()}
_TYPES = {"positive": "<i8", "features": "<i8", "at": "<i8", "total": "<i8", "whole": "<f4"}  # the others are "<f8"


@dataclass
class Draws:
    """Draws after warm-up and thinning.

    C (chain, draw, P, Q), Sigma (chain, draw, Q, Q) the noise's covariance, tau (chain, draw, R); `shrinkage` (P,) is the
    posterior mean of each feature's shrinkage factor kappa, or None; `info` says how the run went (seconds, warmup, thin,
    seed, model, …). With `summaries` C has their `features` alone.
    """

    C: NDArray[np.float64]
    Sigma: NDArray[np.float64]
    tau: NDArray[np.float64]
    shrinkage: NDArray[np.float64] | None = None
    info: dict[str, Any] = field(default_factory=dict)
    summaries: Summaries | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def sigma2(self) -> NDArray[np.float64]:
        """The noise variances (chain, draw, Q): the diagonal of Sigma, read-only."""
        return np.diagonal(self.Sigma, axis1=2, axis2=3)

    @property
    def chains(self) -> int:
        return self.C.shape[0]

    @property
    def draws(self) -> int:
        """Draws per chain."""
        return self.C.shape[1]

    @property
    def P(self) -> int:
        """Features, with draws in C or without."""
        return self.C.shape[2] if self.summaries is None else len(self.summaries.mean)

    @property
    def Q(self) -> int:
        return self.C.shape[3]

    def mean(self) -> NDArray[np.float64]:
        """Posterior mean of C (P, Q)."""
        return self.C.mean(axis=(0, 1)) if self.summaries is None else self.summaries.mean

    @property
    def whole(self) -> NDArray[Any]:
        """Draws of all of C (chain, t, P, Q), those number `whole_at`: every draw, or those that a large run kept whole."""
        return self.C if self.summaries is None else self.summaries.whole

    @property
    def whole_at(self) -> NDArray[np.int64]:
        return np.arange(self.draws) if self.summaries is None else self.summaries.at

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the folder, array by array; `draws.json` last, so that a half-written folder is recognised as such."""
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        arrays = {name: getattr(self, name) for name in _ARRAYS if getattr(self, name) is not None}
        if self.summaries is not None:
            arrays |= {f"summaries.{name}": getattr(self.summaries, name) for name in _SUMMARIES}
        for name, source in arrays.items():
            target = where / f"{name}.npy"
            if isinstance(source, np.memmap) and target.exists() and os.path.samefile(str(source.filename), target):
                source.flush()
                continue
            np.save(target, np.asarray(source, dtype=_type(name)), allow_pickle=False)
        write_header(where, self.info, list(arrays))
        return where

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, mmap: bool = True) -> "Draws":
        """Open a saved folder; C, the large array, stays on disk unless `mmap=False`."""
        where = Path(folder)
        header = _header(where)
        arrays: dict[str, NDArray[np.float64]] = {}
        for name in header["arrays"]:
            arrays[name] = _array(where / f"{name}.npy", name, mmap=mmap and name in ("C", "summaries.whole"))
        missing = {"C", "Sigma", "tau"} - set(arrays)
        if missing:
            raise MessageError(f"The draws folder lacks {', '.join(sorted(missing))}; expected C, Sigma and tau. Save it again.")
        known: dict[str, Any] = {name: arrays[f"summaries.{name}"] for name in _SUMMARIES if f"summaries.{name}" in arrays}
        try:
            summaries = Summaries(**known | {"total": int(known["total"])}) if known else None
            return cls(arrays["C"], arrays["Sigma"], arrays["tau"], arrays.get("shrinkage"), header["info"], summaries)
        except (KeyError, TypeError, InputError) as error:
            raise MessageError(f"The arrays of the draws folder do not go together: {error}") from None


def diagonal(sigma2: NDArray[Any]) -> NDArray[np.float64]:
    """Covariances (…, Q, Q) of independent noise with the variances sigma2 (…, Q)."""
    sigma2 = np.asarray(sigma2, dtype=np.float64)
    Sigma = np.zeros((*sigma2.shape, sigma2.shape[-1]))
    at = np.arange(sigma2.shape[-1])
    Sigma[..., at, at] = sigma2
    return Sigma


def create(folder: str | os.PathLike[str], chains: int, draws: int, P: int, Q: int) -> "np.memmap[Any, np.dtype[np.float64]]":
    """A memory-mapped C to be filled by the sampler; `Draws(...).save(folder)` then only adds the rest."""
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    return np.lib.format.open_memmap(where / "C.npy", mode="w+", dtype="<f8", shape=(chains, draws, P, Q))


def write_header(folder: Path, info: Mapping[str, Any], arrays: list[str]) -> None:
    """Write `draws.json` in one move."""
    text = json.dumps({"format": FORMAT, "arrays": arrays, "info": plain(info)}, indent=1, sort_keys=True)
    part = folder / f"{_JSON}.part"
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, folder / _JSON)


def _header(where: Path) -> dict[str, Any]:
    try:
        header = json.loads((where / _JSON).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MessageError(f"No {_JSON} in {where}: not a folder of draws, or a run that has not finished.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        raise MessageError(f"{_JSON} in {where} cannot be read as JSON; expected the file a finished run writes.") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else None
        raise MessageError(f"Draws format {found!r} in {where}; this version reads format {FORMAT}.")
    names, info = header.get("arrays"), header.get("info")
    if not isinstance(names, list) or any(name not in _DIMENSIONS for name in names) or not isinstance(info, dict):
        raise MessageError(f"{_JSON} in {where} names arrays this version does not know; expected {', '.join(_ARRAYS)}.")
    return header


def _array(path: Path, name: str, *, mmap: bool) -> NDArray[np.float64]:
    try:
        array = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise MessageError(f"{path.name} is missing, truncated or not a plain .npy array.") from None
    if not isinstance(array, np.ndarray) or array.dtype != _type(name) or array.ndim != _DIMENSIONS[name]:
        raise MessageError(f"{path.name} must be a {_type(name)} array of {_DIMENSIONS[name]} dimensions.")
    return array


def _type(name: str) -> np.dtype[Any]:
    return np.dtype(_TYPES.get(name.removeprefix("summaries."), "<f8"))


def _check(found: Draws) -> None:
    C, Sigma, tau, shrinkage, known = found.C, found.Sigma, found.tau, found.shrinkage, found.summaries
    if C.ndim != 4:
        raise InputError(f"C has {C.ndim} dimensions; expected 4: (chain, draw, feature, response).")
    chains, draws, features, Q = C.shape
    if Sigma.shape != (chains, draws, Q, Q):
        raise InputError(f"Sigma has shape {Sigma.shape}; expected {(chains, draws, Q, Q)} to go with C {C.shape}.")
    if tau.ndim != 3 or tau.shape[:2] != (chains, draws):
        raise InputError(f"tau has shape {tau.shape}; expected ({chains}, {draws}, R) to go with C {C.shape}.")
    if shrinkage is not None and shrinkage.shape != (found.P,):
        raise InputError(f"shrinkage has shape {shrinkage.shape}; expected {(found.P,)}, one per feature.")
    if known is not None:
        expected = (features,), (found.P, Q), (chains, len(known.at), found.P, Q)
        shapes = known.features.shape, known.sd.shape, known.whole.shape
        if shapes != expected:
            raise InputError(f"The summaries have shapes {shapes}; expected {expected} to go with C {C.shape}.")


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


def square_root(Sigma: NDArray[Any]) -> NDArray[np.float64]:
    """The symmetric square roots of covariances (…, Q, Q); a singular one (a constant response) is no obstacle."""
    size, U = np.linalg.eigh(np.asarray(Sigma, dtype=np.float64))
    return np.asarray((U * np.sqrt(np.maximum(size, 0.0))[..., None, :]) @ np.swapaxes(U, -1, -2))
