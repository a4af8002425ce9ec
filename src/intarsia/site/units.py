"""Centre and scale of each of a site's own columns: they map coefficients back to its units and never leave the site."""

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import MessageError
from intarsia.wire.container import pack, unpack, write
from intarsia.wire.messages import check_labels

Array = NDArray[np.float64]
_ROLES = {"features": ("x_mean", "x_scale"), "responses": ("y_mean", "y_scale"), "covariates": ("z_mean", "z_scale")}


def _none() -> Array:
    return np.empty(0)


@dataclass(frozen=True)
class Units:
    """Means and scales by role, in the order of the labels; `dropped` are constant columns that were left out."""

    features: tuple[str, ...]
    responses: tuple[str, ...]
    x_mean: Array = field(repr=False)
    x_scale: Array = field(repr=False)
    y_mean: Array = field(repr=False)
    y_scale: Array = field(repr=False)
    covariates: tuple[str, ...] = ()
    z_mean: Array = field(default_factory=_none, repr=False)
    z_scale: Array = field(default_factory=_none, repr=False)
    dropped: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        header = {name: list(getattr(self, name)) for name in (*_ROLES, "dropped")}
        return pack("units", header, {name: getattr(self, name) for names in _ROLES.values() for name in names})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file only its owner may read."""
        write(path, self.to_bytes(), mode=0o600)

    @classmethod
    def from_bytes(cls, raw: Any) -> "Units":
        """From bytes or a file; MessageError when it is not intact."""
        header, arrays = unpack(raw, "units")
        damaged = MessageError("The file of this site's means and scales is damaged. Sketch again to make it.")
        try:
            labels = {role: check_labels(header[role], role[:-1]) for role in _ROLES}
            fields: dict[str, Any] = {**labels, **arrays}
            units = cls(**fields, dropped=tuple(header["dropped"]))
        except (KeyError, TypeError, MessageError):
            raise damaged from None
        for role, names in _ROLES.items():
            if any(getattr(units, name).shape != (len(labels[role]),) for name in names):
                raise damaged
        return units
