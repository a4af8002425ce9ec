"""Data that lie in one place, made ready for the sampler, and the way back to their units.

Columns are centred and scaled, the covariates' columns set apart, constant columns left out, the rest sketched if asked.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.assess.leave_one_out import Rows
from intarsia.server.assess.stacking import Weighed
from intarsia.server.posterior.draws import Draws, square_root

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Columns:
    """Mean and scale of some columns; a constant one has scale 0 and is left out (`kept` is False)."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, X: Array) -> "Columns":
        mean, scale = X.mean(axis=0), X.std(axis=0)
        # Constant up to rounding is constant.
        scale[scale <= 10 * np.finfo(float).eps * np.abs(X).max(axis=0, initial=0.0)] = 0.0
        return cls(mean, scale)

    @property
    def kept(self) -> Bool:
        return np.asarray(self.scale > 0)

    def or_one(self) -> Array:
        """The scales, with 1 for a constant column."""
        return np.where(self.kept, self.scale, 1.0)

    def put_back(self, X: Array) -> Array:
        """Columns of zeros where constant ones were left out."""
        out = np.zeros((len(X), len(self.scale)))
        out[:, self.kept] = X
        return out

    def of_all(self, values: Array, constant: float = 0.0) -> Array:
        """One value per column, from one per column that is kept."""
        out = np.full(len(self.scale), constant)
        out[self.kept] = values
        return out

    def standardise(self, X: Array) -> Array:
        return np.asarray((X[:, self.kept] - self.mean[self.kept]) / self.scale[self.kept])


@dataclass(frozen=True)
class Prepared:
    """Standardised (and perhaps sketched) rows X, Y and Z, and the columns' means and scales; n rows came."""

    X: Array
    Y: Array
    Z: Array
    x: Columns
    y: Columns
    z: Columns
    n: int

    @classmethod
    def of(cls, X: Array, Y: Array, Z: Array, sketch: int | None, seed: int = 0) -> "Prepared":
        x, y, z = Columns.of(X), Columns.of(Y), Columns.of(Z)
        parts = (x.standardise(X), y.standardise(Y), z.put_back(z.standardise(Z)))
        if sketch is not None:
            parts = _sketched(parts, sketch, seed)
        X_ready, Y_ready, Z_ready = parts
        return cls(X_ready, Y_ready, Z_ready, x, y, z, len(X))

    def all_columns(self, draws: Draws, Gamma: Array | None) -> tuple[Draws, Array | None]:
        """Put back the constant columns: a constant feature's coefficients and a constant response's noise are zero."""
        p, q = self.x.kept, self.y.kept
        if p.all() and q.all():
            return draws, Gamma
        if Gamma is not None:
            whole = np.zeros((*Gamma.shape[:3], len(q)))
            whole[..., np.flatnonzero(q)] = Gamma
            Gamma = whole
        return draws.spread_out(p, q), Gamma

    def own_units(self, draws: Draws, Gamma: Array | None) -> tuple[Draws, Array | None]:
        """The draws of all columns in the data's units."""
        y = self.y.scale
        if Gamma is not None:
            Gamma = Gamma * (y / self.z.scale[:, None])
        return draws.scaled(self.x.or_one(), y), Gamma

    def weighed(self, found: Weighed | None) -> Weighed | None:
        """What refits of the standardised rows say of prediction, for all columns in the data's units."""
        if found is None:
            return None
        y = self.y.scale[self.y.kept]
        whole, effects = np.zeros((len(self.x.scale), len(self.y.scale))), np.zeros((len(found.effects), len(self.y.scale)))
        whole[np.ix_(self.x.kept, self.y.kept)] = found.coefficients * y / self.x.scale[self.x.kept][:, None]
        effects[:, self.y.kept] = found.effects * y / self.z.scale[:, None]
        told: dict[str, Any] = {name: self.y.of_all(getattr(found, name)) for name in ("r2", "r2_se", "alike", "rows")}
        return replace(found, coefficients=whole, effects=effects, spread=self.y.of_all(found.spread, 1.0), **told)

    def rows(self) -> Rows:
        """The standardised (and perhaps sketched) rows of all columns, in the data's units (centred)."""
        return Rows(self.x.put_back(self.X) * self.x.scale, self.y.put_back(self.Y) * self.y.scale, self.Z * self.z.scale)

    def intercept(self, draws: Draws, Gamma: Array | None, rng: np.random.Generator) -> Array:
        """Under a flat prior the intercept given C, Γ and Σ is N(ȳ − x̄C − z̄Γ, Σ/n)."""
        centre = self.y.mean - draws.times(self.x.mean[None])[:, :, 0]
        if Gamma is not None:
            centre = centre - np.einsum("j,cdjq->cdq", self.z.mean, Gamma, optimize=True)
        noise = square_root(draws.Sigma / self.n) @ rng.standard_normal((*centre.shape, 1))
        return np.asarray(centre + noise[..., 0])


def covariate_places(covariates: Sequence[Any] | None, P: int, names: Sequence[Any] | None) -> NDArray[np.intp]:
    """Where the covariates are among the columns of X, given by their names or by their positions."""
    wanted = [] if covariates is None else [covariates] if isinstance(covariates, str) else list(covariates)
    known = {} if names is None else {name: i for i, name in enumerate(names)}
    places = []
    for one in wanted:
        if isinstance(one, Integral) and not isinstance(one, bool) and one not in known:
            place = int(one) + (P if one < 0 else 0)
            if not 0 <= place < P:
                raise InputError(f"covariates names column {int(one)}; X has {P} columns, 0 to {P - 1}.")
        elif one in known:
            place = known[one]
        else:
            told = "X has no column names; give positions" if names is None else "no column of X has that name"
            raise InputError(f"covariates names {one!r}: {told}.")
        places.append(place)
    if len(set(places)) != len(places):
        raise InputError("covariates names a column twice; name each once.")
    if len(places) == P and P:
        raise InputError("Every column of X is a covariate; at least one feature is needed.")
    return np.array(places, dtype=np.intp)


def _sketched(parts: tuple[Array, Array, Array], m: int, seed: int) -> tuple[Array, Array, Array]:
    """The orthonormal sketch of columns already scaled. Nothing leaves this process, so the key may come from a seed."""
    from intarsia.site.data.table import Table
    from intarsia.site.data.table_rules import TableRules
    from intarsia.site.key import SketchKey
    from intarsia.site.sketch.sketch import SketchTerms, sketch

    X, Y, Z = parts
    P, c = X.shape[1], Z.shape[1]
    names = [f"x{j}" for j in range(P + c)] + [f"y{j}" for j in range(Y.shape[1])]
    table = Table.open(np.hstack([X, Z, Y]), responses=names[P + c :], rules=TableRules(names=names))
    key = SketchKey(hashlib.sha256(f"intarsia local sketch {seed}".encode()).digest())
    message = sketch(table, key, SketchTerms("local", "local", m), columns="centred").message
    S = np.asarray(message.X, dtype=np.float64)
    return S[:, :P], np.asarray(message.Y, dtype=np.float64), S[:, P:]
