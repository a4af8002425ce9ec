"""What a site keeps of its own sketch: the means and scales that map coefficients back to its own units."""

import os
from dataclasses import dataclass, field

import numpy as np

from intarsia.errors import MessageError
from intarsia.wire.container import pack, unpack, write
from intarsia.wire.messages import check_labels

_LOCAL_ARRAYS = ("x_mean", "x_scale", "y_mean", "y_scale")


@dataclass(frozen=True)
class Local:
    """What the site keeps to map coefficients back to its own units; it never leaves the site.

    `features`, `responses` are the columns' own names; `labels` says under which label each travels.
    """

    site: str
    features: tuple[str, ...]
    responses: tuple[str, ...]
    x_mean: np.ndarray = field(repr=False)
    x_scale: np.ndarray = field(repr=False)
    y_mean: np.ndarray = field(repr=False)
    y_scale: np.ndarray = field(repr=False)
    labels: dict[str, str] = field(repr=False)
    dropped: tuple[str, ...]
    n: int
    study_hash: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file only its owner may read."""
        names = ("site", "features", "responses", "labels", "dropped", "n", "study_hash")
        header = {"schema": 1, **{name: getattr(self, name) for name in names}}
        arrays = {name: getattr(self, name) for name in _LOCAL_ARRAYS}
        write(path, pack("local", header, arrays), mode=0o600)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Local":
        header, arrays = unpack(path, "local")
        try:
            features = check_labels(header["features"], "feature")
            responses = check_labels(header["responses"], "response")
            for name in _LOCAL_ARRAYS:
                if arrays[name].shape != (len(features if name.startswith("x") else responses),):
                    raise ValueError
            if header["schema"] != 1 or set(header["labels"]) != {*features, *responses}:
                raise ValueError
            return cls(site=header["site"], features=features, responses=responses, labels=header["labels"],
                       dropped=tuple(header["dropped"]), n=header["n"], study_hash=header["study_hash"],
                       **arrays)  # fmt: skip
        except (KeyError, TypeError, ValueError):
            raise MessageError(f"{path} is not an intact file of a site's scales. Sketch again to make it.") from None
