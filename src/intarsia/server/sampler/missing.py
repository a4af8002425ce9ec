"""Responses that some rows do not have: in every sweep they are drawn given what the row has, and the sweep goes on with all.

Where subjects differ in which responses they have, each group of them is sketched on its own and the groups' rows are stacked
(`wire.cohort_groups`). Rows are iid N(x C, Sigma), so that with C and Sigma the missing part M of a row has, given its
observed part O,

    y_M | y_O ~ N(x C_M + (y_O − x C_O) W,  Sigma_MM − Sigma_MO W),   W = Sigma_OO⁻¹ Sigma_OM.

A sweep given the completed rows then leaves the joint posterior of C, Sigma and the missing responses as it is. Nothing has to be
kept between sweeps: the missing responses are drawn anew from C and Sigma.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, cholesky

from intarsia.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pattern:
    """Rows that have the same responses."""

    rows: NDArray[np.intp]
    has: NDArray[np.bool_]


def patterns(Y: Array) -> list[Pattern]:
    """The rows of Y (missing: NaN) by what they have; each row has something, and each response is in some row."""
    absent = np.isnan(Y)
    if absent.all(axis=0).any() or absent.all(axis=1).any():
        raise InputError("A response is in no row of the sketch, or a row has no response. Leave such responses and groups out.")
    kinds, which = np.unique(absent, axis=0, return_inverse=True)
    return [Pattern(np.flatnonzero(which.ravel() == k), ~kind) for k, kind in enumerate(kinds)]


def draw_missing(Y: Array, fitted: Array, Sigma: Array, found: list[Pattern], normal: Array) -> Array:
    """Y completed: the missing responses given the others, `fitted` = XC and Sigma; `normal` (m, Q) are standard numbers."""
    out = Y.copy()
    for pattern in found:
        has, rows = pattern.has, pattern.rows
        lacks = ~has
        if not lacks.any():
            continue
        beside = Sigma[np.ix_(has, lacks)]
        W = cho_solve(cho_factor(Sigma[np.ix_(has, has)], lower=True), beside)
        left = Sigma[np.ix_(lacks, lacks)] - beside.T @ W
        spread = cholesky((left + left.T) / 2, lower=True)
        away = Y[np.ix_(rows, has)] - fitted[np.ix_(rows, has)]
        out[np.ix_(rows, lacks)] = fitted[np.ix_(rows, lacks)] + away @ W + normal[np.ix_(rows, lacks)] @ spread.T
    return out
