"""Simulated columns sketched as in a study: each site's columns, one key, messages, joined at the server."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sketched:
    """X_Φ, Y_Φ in the columns' original order, and what undoes the sites' scaling of coefficients."""

    X: Array
    Y: Array
    x_scale: Array
    y_scale: Array

    @property
    def back(self) -> Array:
        """Factor (P, Q) from coefficients of scaled columns to coefficients of the original ones."""
        return self.y_scale[None, :] / self.x_scale[:, None]


@dataclass(frozen=True)
class Owners:
    """Which site holds each feature and each response, as numbers; None: all are at site 0."""

    features: NDArray[np.int64] | None = None
    responses: NDArray[np.int64] | None = None


def federated_sketch(
    X: Array,
    Y: Array,
    m: int,
    *,
    kind: str = "orthonormal",
    scale: bool = True,
    owners: Owners | None = None,
    seed: int = 0,
) -> Sketched:
    """Sketch each site's columns with a key made from the seed (an experiment must repeat; a study's key must not).

    `scale=False` is the paper's plain ΦX, neither centred nor scaled (for the orthonormal kind centring is part of Φ).
    The columns are arrays already: their sums are taken as a site takes them of its table, without a table.
    """
    from intarsia.site.key import SketchKey
    from intarsia.site.sketch.partial import accumulate
    from intarsia.site.sketch.sketch import SketchTerms, finish
    from intarsia.wire.messages import join

    P, Q = X.shape[1], Y.shape[1]
    owners = owners or Owners()
    at_x = np.zeros(P, dtype=int) if owners.features is None else owners.features
    at_y = np.zeros(Q, dtype=int) if owners.responses is None else owners.responses
    key = SketchKey(hashlib.sha256(f"lab {seed}".encode()).digest())
    x_scale, y_scale, messages = np.empty(P), np.empty(Q), []
    place_x, place_y = {f"x{p}": p for p in range(P)}, {f"y{q}": q for q in range(Q)}
    for site in np.unique(np.concatenate([at_x, at_y])):
        own_x, own_y = np.flatnonzero(at_x == site), np.flatnonzero(at_y == site)
        names_x, names_y = [f"x{p}" for p in own_x], [f"y{q}" for q in own_y]
        rows = [(np.hstack([X[:, own_x], Y[:, own_y]]), range(len(X)))]
        terms = SketchTerms(study="lab", run="0" * 16, m=m, kind=kind, site=f"site{site}")
        sums = accumulate(rows, terms.design(key, len(X)), (tuple(names_x), tuple(names_y), ()), threads=1)
        result = finish(sums, key, terms, columns="standardised" if scale else "plain")
        messages.append(result.message)
        x_scale[own_x], y_scale[own_y] = result.units.x_scale, result.units.y_scale
    joined = join(messages)
    order_x = [place_x[label] for label in joined.features]
    order_y = [place_y[label] for label in joined.responses]
    X_Phi, Y_Phi = np.empty((m, P)), np.empty((m, Q))
    X_Phi[:, order_x], Y_Phi[:, order_y] = joined.X, joined.Y
    return Sketched(X_Phi, Y_Phi, x_scale, y_scale)
