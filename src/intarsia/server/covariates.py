"""Covariates: adjusted for with a flat prior, for every response, and never shrunk.

With Z (m × c) their sketched columns and N an orthonormal basis of the complement of Z's columns, the posterior of C and Σ
is exactly that of NᵀX, NᵀY: the covariates' effects Γ are integrated out and the sampler needs to know nothing of them.
Afterwards, for every draw,  Γ | C, Σ ~ MN((ZᵀZ)⁻¹Zᵀ(Y − XC), (ZᵀZ)⁻¹, Σ).

Where rows lack responses (NaN in Y), Z is projected out of the rows of each pattern on their own, so that covariates may act
otherwise in another group; each pattern then pays c rows. One effect per covariate and response is told: least squares over all
rows that have the response.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from intarsia.errors import InputError
from intarsia.server.posterior.draws import Draws, square_root
from intarsia.wire.defaults import MOST_SHARE_OF_ROWS
from intarsia.wire.plain import some

Array = NDArray[np.float64]

AT_ONCE = 100  # draws whose rows are worked out together
_STREAM = 8  # of the seed: the draws of Γ use no number that the sampler has used
_RANK_TOLERANCE = 1e-8  # of a column of length one: less is left of it once the others are projected out


@dataclass(frozen=True)
class Covariates:
    """Sketched covariates Z (m × c) under their names, and whose they are."""

    Z: Array
    names: tuple[str, ...] = ()
    sites: tuple[str, ...] | None = None

    @classmethod
    def of(cls, joined: Any) -> "Covariates":
        """Those of the joined sketches; refused where a site has added privacy noise to them.

        A covariate measured with error is adjusted for in part only, and the projection would not know it.
        """
        names = tuple(joined.covariates)
        if not names:
            return cls(np.empty((len(joined.Y), 0)))
        if any(joined.feature_noise) or any(joined.response_noise):
            raise InputError(
                f"The sketches carry privacy noise and there are covariates ({some(names)}); adjusting for them would "
                "not be exact. Let the study take them as features, or leave the noise out."
            )
        return cls(np.asarray(joined.Z, dtype=np.float64), names, tuple(joined.covariate_sites))


@dataclass(frozen=True)
class Fitted:
    """Draws, the covariates' effects Γ (chain, draw, c, Q) if there are covariates, and the rows X and Y that the sampler saw."""

    draws: Draws
    Gamma: Array | None
    X: Array
    Y: Array
    adjusted: "Adjusted | AdjustedInParts | None" = None

    def share_left(self) -> Array:
        """(Q) the part of each response's mean square that the covariates do not explain."""
        if self.adjusted is None:
            return np.ones(self.Y.shape[1])
        left, whole = np.nanmean(np.square(self.Y), axis=0), self.adjusted.mean_squares(len(self.Y))
        return np.asarray(np.where(whole > 0, left / np.where(whole > 0, whole, 1.0), 1.0))

    def effects_follow(self, change: Array) -> Array:
        """How the mean of Γ (c, Q) changes when C is changed by so much: −(ZᵀZ)⁻¹ZᵀX times it."""
        return np.zeros((0, change.shape[1])) if self.adjusted is None else self.adjusted.effects_follow(change)


@dataclass(frozen=True)
class Adjusted:
    """X (m × P) and Y (m × Q) beside the covariates Z (m × c), and what is left of both once Z is projected out.

    `X_left` and `Y_left` have m − c rows: NᵀX and NᵀY; `X_taken` and `Y_taken` are QᵀX and QᵀY with Z = QR.
    """

    X_left: Array
    Y_left: Array
    X_taken: Array
    Y_taken: Array
    R: Array

    @property
    def c(self) -> int:
        return len(self.R)

    def mean_squares(self, rows: int) -> Array:
        """(Q) of the responses before Z was projected out; what is left stands for so many rows."""
        total = np.square(self.Y_left).sum(axis=0) + np.square(self.Y_taken).sum(axis=0)
        return np.asarray(total / (rows + self.c))

    def effects_follow(self, change: Array) -> Array:
        return np.asarray(-linalg.solve_triangular(self.R, self.X_taken @ change))

    def draw_effects(self, draws: Draws, rng: np.random.Generator, power: float = 1.0) -> Array:
        """One draw of Γ (chain, draw, c, Q) for every draw of C and Σ; `power` is the likelihood's."""
        noise = rng.standard_normal((draws.chains, draws.draws, self.c, draws.Q))
        around = self.Y_taken - draws.times(self.X_taken) + noise @ square_root(draws.Sigma / power)
        sides = np.moveaxis(around, 2, 0).reshape(self.c, -1)  # one triangle for all draws
        return np.moveaxis(linalg.solve_triangular(self.R, sides).reshape(self.c, *around.shape[:2], -1), 0, 2)


def adjust(Z: Any, X: Any, Y: Any, names: Sequence[str]) -> Adjusted:
    """Project the covariates out of X and Y; refuse columns that are constant or say the same as others."""
    Z, X, Y = (np.asarray(a, dtype=np.float64) for a in (Z, X, Y))
    check(Z, names)
    c = Z.shape[1]
    (qr, reflectors), R = linalg.qr(Z, mode="raw")
    # The reflections are applied as they are: the m × m matrix of all of them is never formed.
    taken_X, taken_Y = (_rotate(qr, reflectors, a) for a in (X, Y))
    return Adjusted(taken_X[c:], taken_Y[c:], taken_X[:c], taken_Y[:c], R[:c, :c])


def check(Z: Array, names: Sequence[str]) -> None:
    """Refuse covariates that are too many, constant, or combinations of the others; the error names them."""
    m, c = Z.shape
    names = [str(name) for name in names]
    if len(names) != c:
        raise InputError(f"{len(names)} names for {c} covariates; expected one each.")
    most = int(MOST_SHARE_OF_ROWS * m)
    if c > most:
        raise InputError(
            f"{c} covariate columns beside {m} rows; at most {most} (a third) can be adjusted for, because each uses up a "
            "row. Take more sketch rows, or fewer covariates."
        )
    length = np.sqrt((Z**2).sum(axis=0))
    constant = length <= 1e-10 * max(1.0, float(length.max(initial=0.0)))
    if constant.any():
        raise InputError(
            f"Constant covariates: {_listed(names, constant)}. The intercept takes their part already; leave them out."
        )
    _Q, R, order = linalg.qr(Z / length, mode="economic", pivoting=True)
    left = np.abs(np.diag(R)) <= _RANK_TOLERANCE * np.sqrt(c)
    if left.any():
        spare = np.zeros(c, dtype=bool)
        spare[order[left]] = True
        involved = spare | (np.abs(_combination(Z / length, spare)) > 1e-6).any(axis=1)
        raise InputError(
            f"Covariates that say the same: {_listed(names, involved)}. "
            f"{int(spare.sum())} of them can be computed from the others, so their effects cannot be told apart; leave out "
            f"{_listed(names, spare)}."
        )


def _combination(Z: Array, spare: NDArray[np.bool_]) -> Array:
    """How the spare columns are made of the others, (c, spare); rows of the spare ones are zero."""
    out = np.zeros((Z.shape[1], int(spare.sum())))
    out[~spare] = np.linalg.lstsq(Z[:, ~spare], Z[:, spare], rcond=None)[0]
    return out


def _rotate(qr: Array, reflectors: Array, a: Array) -> Array:
    """Qᵀa for the whole orthogonal Q of a raw QR factorisation."""
    a = np.asfortranarray(a)
    if not a.shape[1]:
        return np.array(a)
    size = int(linalg.lapack.dormqr("L", "T", qr, reflectors, a, lwork=-1)[1][0])
    out, _work, info = linalg.lapack.dormqr("L", "T", qr, reflectors, a, lwork=size)
    if info != 0:
        raise InputError("The covariates could not be projected out; look for values that are not finite.")
    return np.ascontiguousarray(out)


def _listed(names: Sequence[str], which: NDArray[np.bool_]) -> str:
    return some([name for name, listed in zip(names, which, strict=True) if listed])


@dataclass(frozen=True)
class AdjustedInParts:
    """X, Y and Z where rows lack responses: what is left of each pattern's rows, below each other."""

    X: Array
    Y: Array
    Z: Array
    X_left: Array
    Y_left: Array

    def mean_squares(self, rows: int) -> Array:
        """(Q) of the responses before Z was projected out."""
        return np.asarray(np.nanmean(np.square(self.Y), axis=0))

    def effects_follow(self, change: Array) -> Array:
        each = zip((~np.isnan(self.Y)).T, change.T, strict=True)
        return np.stack([-np.linalg.pinv(self.Z[rows]) @ (self.X[rows] @ of) for rows, of in each], axis=1)

    def draw_effects(self, draws: Draws, rng: np.random.Generator) -> Array:
        """One draw of Γ (chain, draw, c, Q) for every draw of C and Σ: for each response least squares of Y − XC, with noise of
        covariance Σ added to the rows, over the rows that have it.
        """
        there = ~np.isnan(self.Y)
        solve = [np.linalg.pinv(self.Z[rows]) for rows in there.T]
        root = square_root(draws.flat_Sigma)
        out = np.empty((draws.number, self.Z.shape[1], draws.Q))
        for start in range(0, draws.number, AT_ONCE):
            at = np.arange(start, min(start + AT_ONCE, draws.number))
            noise = np.stack([rng.standard_normal(self.Y.shape) for _ in at]) @ root[at]
            around = self.Y - draws.fitted(self.X, at) + noise
            for q, rows in enumerate(there.T):
                out[at, :, q] = around[:, rows, q] @ solve[q].T
        return out.reshape(draws.chains, draws.draws, *out.shape[1:])


def adjust_in_parts(Z: Any, X: Any, Y: Any, names: Sequence[str]) -> AdjustedInParts:
    """Project the covariates out of the rows of each pattern of responses."""
    Z, X, Y = (np.asarray(a, dtype=np.float64) for a in (Z, X, Y))
    left_X, left_Y = [], []
    kinds, which = np.unique(np.isnan(Y), axis=0, return_inverse=True)
    for k, absent in enumerate(kinds):
        rows = which.ravel() == k
        try:
            part = adjust(Z[rows], X[rows], Y[rows][:, ~absent], names)
        except InputError as error:
            raise InputError(f"Among the subjects who have {int((~absent).sum())} of {len(absent)} responses: {error}") from None
        whole = np.full((len(part.Y_left), len(absent)), np.nan)
        whole[:, ~absent] = part.Y_left
        left_X.append(part.X_left)
        left_Y.append(whole)
    return AdjustedInParts(X, Y, Z, np.concatenate(left_X), np.concatenate(left_Y))


def sample_adjusted(
    run: Callable[[Array, Array], Draws], X: Array, Y: Array, covariates: Covariates, seed: int, power: float = 1.0
) -> Fitted:
    """`run(X, Y)` on what the covariates leave of X and Y, then the covariates' effects; `power` is the likelihood's."""
    if not covariates.names:
        return Fitted(run(X, Y), None, X, Y)
    if np.isnan(Y).any():
        parts = adjust_in_parts(covariates.Z, X, Y, covariates.names)
        draws = run(parts.X_left, parts.Y_left)
        effects = parts.draw_effects(draws, np.random.default_rng([seed, _STREAM]))
        return Fitted(draws, effects, parts.X_left, parts.Y_left, parts)
    adjusted = adjust(covariates.Z, X, Y, covariates.names)
    draws = run(adjusted.X_left, adjusted.Y_left)
    Gamma = adjusted.draw_effects(draws, np.random.default_rng([seed, _STREAM]), power)
    return Fitted(draws, Gamma, adjusted.X_left, adjusted.Y_left, adjusted)
