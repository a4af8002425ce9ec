"""The rows that a posterior was fitted to, and how well predictions of rows left out do."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError

Array = NDArray[np.float64]

_LEAST_ROWS = 20  # with every response, to judge by
CLEARLY = 2.0  # standard errors by which another way to predict rows left out must be better to be taken


@dataclass(frozen=True)
class Rows:
    """The rows a posterior was fitted to: X (m × P), Y (m × Q) and the covariates Z (m × c), in the posterior's units."""

    X: Array
    Y: Array
    Z: Array

    @classmethod
    def of(cls, X: Any, Y: Any, Z: Any = None) -> "Rows":
        """The same from whatever arrays come; without Z there are no covariates."""
        X, Y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
        Z = np.empty((len(Y), 0)) if Z is None else np.asarray(Z, dtype=np.float64)
        if not len(X) == len(Y) == len(Z):
            raise InputError(f"X, Y and Z have {len(X)}, {len(Y)} and {len(Z)} rows; expected as many each.")
        return cls(X, Y, Z)

    @property
    def Q(self) -> int:
        return self.Y.shape[1]

    def complete(self) -> "Rows | None":
        """The rows that have every response; None where they are too few to judge by."""
        whole = ~np.isnan(self.Y).any(axis=1)
        if whole.all():
            return self
        return self.take(whole) if whole.sum() >= _LEAST_ROWS else None

    def take(self, which: Any) -> "Rows":
        """Some of the rows."""
        return Rows(self.X[which], self.Y[which], self.Z[which])


def out_of_sample(Y: Array, predicted: Array) -> tuple[Array, Array]:
    """R² of each response and its standard error: 1 − Σ(y − ŷ)²/Σy². A sketch's rows have mean zero, so nothing is centred."""
    total = (Y**2).sum(axis=0)
    total = np.where(total > 0, total, np.inf)
    gain = Y**2 - (Y - predicted) ** 2
    return gain.sum(axis=0) / total, np.sqrt(len(Y)) * gain.std(axis=0) / total


def standard_errors_better(Y: Array, one: Array, than: Array) -> float:
    """By how many standard errors the first prediction is the better one, each row (all its responses together) counting once."""
    before, after = np.square(Y - than), np.square(Y - one)
    gain = np.nansum((before - after) / np.maximum(np.nanmean(before, axis=0), 1e-300), axis=1)
    size = float(np.sqrt(np.square(gain).sum()))
    return float(gain.sum() / size) if size > 0 else 0.0
