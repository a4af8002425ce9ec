"""Rows of bounded norm, for a sketch with a formal privacy guarantee: one person can then change it only so much."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import InputError

if TYPE_CHECKING:
    from intarsia.site.data.table import Table


@dataclass(frozen=True)
class Bound:
    """Rows centred and scaled by public constants, then shortened to a norm of at most `bound`: for a private sketch.

    `center` and `scale` have one number for each column, features first; a missing or infinite value counts as the public
    centre.
    """

    center: np.ndarray
    scale: np.ndarray
    bound: float

    def __post_init__(self) -> None:
        fine = np.isfinite(self.center).all() and np.isfinite(self.scale).all() and (self.scale > 0).all()
        if not fine or not 0 < self.bound < np.inf:
            raise InputError("A bound needs finite centres, positive scales and a positive row norm.")

    @classmethod
    def of(cls, table: "Table", centers: Mapping[str, float], scales: Mapping[str, float], bound: float) -> "Bound":
        """From the study's public constants by column; a column without one has centre 0 and scale 1."""
        names = table.labels
        center = np.array([float(centers.get(name, 0.0)) for name in names])
        return cls(center, np.array([float(scales.get(name, 1.0)) for name in names]), float(bound))

    def apply(self, Z: np.ndarray) -> np.ndarray:
        if Z.shape[1] != len(self.center) or Z.shape[1] != len(self.scale):
            raise InputError(f"{Z.shape[1]} columns, {len(self.center)} public centres. Give one for each column.")
        out = (Z - self.center) / self.scale
        # Missing or infinite: at the public centre, always. Refusing them would tell that they are there.
        out[~np.isfinite(out)] = 0.0
        largest = np.maximum(np.abs(out).max(axis=1, initial=0.0), 1.0)
        norm = largest * np.sqrt(np.einsum("ij,ij->i", out / largest[:, None], out / largest[:, None]))
        # Below the bound by 1e-12 of it, so that rounding never leaves a row longer than it.
        out *= np.minimum(1.0, self.bound * (1 - 1e-12) / np.maximum(norm, self.bound * (1 - 1e-12)))[:, None]
        return out


@dataclass(frozen=True)
class ClippedNoise:
    """What makes a gaussian sketch differentially private: rows clipped to `clip`, and noise N(0, w²/n) on every entry."""

    clip: Bound
    w: float
