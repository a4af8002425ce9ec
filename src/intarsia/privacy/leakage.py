"""How many bits a sketch tells about the rows behind it, for a server that does not know Φ and for one that does.

Rows of X (n×c) are taken as iid N(0, Σ); every expression here is free of Σ, so of scale and of correlation.

Gaussian Φ (entries N(0, 1/n)), secret. Given X the rows of ΦX are N(0, XᵀX/n), so h(ΦX | X) is known in closed form.
h(ΦX) is not: it is at most that of N(0, Σ) rows and at least h(ΦX | Φ). With
D(n, k) = Σ_{j≤k} [ln(n/2) − ψ((n−j+1)/2)] this gives, in nats,
`max(0, (m/2)·D(n,c) − (c/2)·D(n,m)) ≤ I(ΦX; X) ≤ (m/2)·D(n,c)`, and ∞ when c > n.

Orthonormal Φ, secret. The rows of ΦX are then exactly N(0, Σ). Write X = U S^½ with U orthonormal: ΦU is an m×c corner
of a Haar matrix, with the matrix Pearson-II density K·det(I − VᵀV)^((ν−m−c−1)/2) and
K = π^(−mc/2)·Π_{j≤c} Γ((ν−j+1)/2)/Γ((ν−m−j+1)/2), so I(ΦX; X) has a closed form (`orthonormal_nats`). It is ∞ when
m + c > ν: the corner then has singular values that are exactly one. Centring (Φ1 = 0) makes ν = n − 1.
"""

from dataclasses import asdict, dataclass
from math import inf, isfinite, log
from typing import Any, Literal

import numpy as np
from scipy.special import gammaln, psi

from intarsia.errors import InputError

Kind = Literal["gaussian", "orthonormal"]
LN2 = log(2.0)


def check_sizes(n: int, m: int, c: int | None = None) -> None:
    """Refuse sizes no sketch can have."""
    if n < 2:
        raise InputError(f"A sketch needs at least 2 subjects; {n} came.")
    if m < 1:
        raise InputError(f"A sketch needs at least one row; m = {m} came. Give m between 1 and n - 1 = {n - 1}.")
    if m > n:
        raise InputError(f"m = {m} sketch rows are more than the n = {n} subjects. Give m below n, best below n/10.")
    if c is not None and c < 1:
        raise InputError(f"A sketch needs at least one column; {c} came.")


def log_det_deficit(n: float, k: int) -> float:
    """D(n, k) = −E ln det(W/n) for a k×k standard Wishart W on n degrees of freedom, in nats; ∞ when k > n."""
    if k > n:
        return inf
    j = np.arange(1, k + 1)
    return float(np.sum(np.log(n / 2) - psi((n - j + 1) / 2)))


def gaussian_nats(n: int, m: int, c: int) -> tuple[float, float]:
    """Lower and upper bound on I(ΦX; X) in nats for a secret gaussian Φ."""
    check_sizes(n, m, c)
    upper = m / 2 * log_det_deficit(n, c)
    if not isfinite(upper):
        return inf, inf
    return max(0.0, upper - c / 2 * log_det_deficit(n, m)), upper


def orthonormal_nats(n: int, m: int, c: int, centred: bool = True) -> float:
    """I(ΦX; X) in nats for a secret orthonormal Φ and Gaussian rows, exactly; ∞ when m + c > ν."""
    check_sizes(n, m, c)
    nu = n - 1 if centred else n
    if m + c > nu:
        return inf
    # Half-degrees of the c Wishart factors before (a) and after (b) the sketch took its m directions away.
    a = (nu - np.arange(c)) / 2
    b = a - m / 2
    terms = m / 2 + gammaln(a) - gammaln(b) - m / 2 * psi(a) + (nu - m - c - 1) / 2 * (psi(b) - psi(a))
    return max(0.0, float(terms.sum()))


@dataclass(frozen=True)
class Leakage:
    """Mutual information of a sketch and its rows, in bits, and what someone who knows Φ can do."""

    kind: str
    n: int
    m: int
    columns: int
    lower_bits: float
    upper_bits: float
    exact: bool
    attacker_r2: float

    @property
    def per_subject(self) -> tuple[float, float]:
        return self.lower_bits / self.n, self.upper_bits / self.n

    @property
    def per_entry(self) -> tuple[float, float]:
        """An average over all n·c entries. It is no statement about any one person."""
        return self.lower_bits / (self.n * self.columns), self.upper_bits / (self.n * self.columns)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"per_subject_bits": self.per_subject, "per_entry_bits": self.per_entry}


def leakage(n: int, m: int, columns: int, kind: Kind = "orthonormal") -> Leakage:
    """Both bounds for one sketch of `columns` columns. For an orthonormal sketch they are one exact number."""
    if kind == "gaussian":
        lower, upper = gaussian_nats(n, m, columns)
    elif kind == "orthonormal":
        lower = upper = orthonormal_nats(n, m, columns)
    else:
        raise InputError(f"Unknown sketch kind {kind!r}. Use 'orthonormal' or 'gaussian'.")
    return Leakage(kind, n, m, columns, lower / LN2, upper / LN2, kind == "orthonormal", attacker_r2=known_phi_r2(n, m, kind))


def known_phi_text(r2: float) -> str:
    """What a party that knows Φ learns, in words."""
    return (
        f"of a continuous column a share of {r2:.3f} of the variance (R²) can be read, to any precision; columns of few values "
        "may be read whole"
    )


def known_phi_r2(n: int, m: int, kind: Kind = "orthonormal") -> float:
    """R² with which a party that knows Φ predicts a Gaussian column: the share of the space the sketch spans.

    An orthonormal sketch spans m of the n − 1 centred directions (the mean is not in it), a gaussian one m of n.
    """
    check_sizes(n, m)
    return min(1.0, m / (n - 1 if kind == "orthonormal" else n))
