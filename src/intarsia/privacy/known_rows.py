"""What a server that already holds some people's rows learns about another site's columns, without knowing Φ.

The sketch Z of the known columns and a known row x_i give an estimate of that person's column of Φ; the sketch y_Φ of
somebody else's column then gives the person's value. Two losses multiply: the estimate of φ_i has R² = c/(n+c), and a
party with the true Φ would still only get R² = m/n. So R² ≈ (m/n)·c/(n+c).

The same algebra shows why Φ must be used once: two sketches under the same Φ, with and without one person, differ by
φ_i x_iᵀ, which is that person's row up to a factor.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.privacy.leakage import check_sizes

Array = NDArray[np.floating[Any]]


def known_rows_r2(n: int, m: int, columns: int) -> float:
    """R² by theory for another site's value of a person whose `columns` other values are known."""
    check_sizes(n, m, columns)
    return m / n * columns / (n + columns)


def estimate_phi(Z: Array, rows: Array, n: int, M: Array) -> Array:
    """Columns of Φ (m×r) for r known rows: the posterior mean under Z = Φ_known·rows + the other people's rows.

    `M` is the inverse covariance of the columns; the other n − r people act as noise of that covariance.
    """
    white = M @ rows.T
    inner = rows @ white
    inner[np.diag_indices_from(inner)] += n - len(rows)
    return Z @ np.linalg.solve(inner, white.T).T


def attack_known_rows(Z: Array, rows: Array, y_sketch: Array, n: int, M: Array, joint: bool = True) -> Array:
    """Estimates of the known people's values of another site's column(s), up to one common factor.

    `joint` uses all known rows at once; otherwise each person is attacked alone, as when only one row is known.
    """
    if joint:
        phi = estimate_phi(Z, rows, n, M)
    else:
        white = rows @ M
        phi = (white @ Z.T / (n - 1 + np.einsum("ij,ij->i", white, rows))[:, None]).T
    return phi.T @ y_sketch
