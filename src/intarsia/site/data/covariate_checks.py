"""Covariates are adjusted for exactly, so they must say different things: neither constant nor sums of one another."""

from typing import Any

import numpy as np

from intarsia.errors import InputError
from intarsia.site.data.table import Table

# A column that others explain up to this share of its variance follows from them; rounding in the products is far below it.
_SHARE_OF_VARIANCE = 1e-10


def check_covariates(table: Table, order: Any = None) -> None:
    """Refuse covariates that are constant, or linear combinations of each other and the intercept, over the given rows.

    Names the columns and what to do. One pass over the covariates; their c × c products are all that is held.
    """
    names = list(table.covariates)
    if not names:
        return
    mean: np.ndarray | None = None
    gram, total, n = np.zeros((len(names), len(names))), np.zeros(len(names)), 0
    for *_, Z in table.blocks(order=order):
        mean = Z[0].copy() if mean is None else mean  # counted from the first row, so that a large offset costs no digits
        D = Z - mean
        gram, total, n = gram + D.T @ D, total + D.sum(axis=0), n + len(Z)
    gram -= np.outer(total, total) / n
    scale = np.sqrt(np.maximum(np.diag(gram), 0.0) / n)
    size = np.abs(total / n) + (0.0 if mean is None else np.abs(mean))
    flat = scale <= 1e-13 * np.maximum(size, 1e-300)
    if flat.any() and table.constant != "drop":
        raise InputError(
            f"No variation in {_list(names, np.flatnonzero(flat))} among these {n} subjects: a covariate of one value is the "
            "intercept again. Leave it out, or ask for constant='drop'."
        )
    kept = np.flatnonzero(~flat)
    if len(kept) >= n - 1:
        raise InputError(f"{len(kept)} columns of covariates for {n} subjects: adjusting for them leaves nothing. Bring fewer.")
    if len(kept) < 2:
        return
    at = dependent(gram[np.ix_(kept, kept)] / np.outer(scale[kept], scale[kept]) / n)
    if len(at):
        raise InputError(
            f"Among the covariates {_list(names, kept[at])} follows exactly from the others. Leave it out (a sum and its parts, "
            "the same thing in two units, or a category that two columns code)."
        )


def dependent(correlation: np.ndarray) -> np.ndarray:
    """Which columns of a correlation matrix follow from the columns before them; earlier columns are kept."""
    from scipy.linalg import solve_triangular

    c = len(correlation)
    L, basis, out = np.zeros((c, c)), list[int](), list[int]()
    for j in range(c):
        k = len(basis)
        v = solve_triangular(L[:k, :k], correlation[basis, j], lower=True) if k else np.empty(0)
        left = correlation[j, j] - v @ v
        if left <= _SHARE_OF_VARIANCE:
            out.append(j)
            continue
        L[k, :k], L[k, k] = v, np.sqrt(left)
        basis.append(j)
    return np.array(out, dtype=np.int64)


def _list(names: list[str], at: np.ndarray) -> str:
    said = [names[j] for j in at[:10]]
    return ("column " if len(said) == 1 else f"{len(at)} columns: ") + ", ".join(said) + (", …" if len(at) > 10 else "")
