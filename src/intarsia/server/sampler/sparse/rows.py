"""Chains whose rows are not all known: responses that are missing, features that carry privacy noise.

Before each sweep what is unknown is drawn given the present coefficients; the sweep then goes on with all of it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.server.sampler.errors_in_variables import LEARN, Latent, NoisyFeatures, draw_features, small_side
from intarsia.server.sampler.missing import draw_missing, patterns
from intarsia.server.sampler.sparse.chain import SparseChain
from intarsia.server.sampler.sparse.problem import Prior, Scales, prepare
from intarsia.server.sampler.sparse.state import RATIO, Problem, dense_effects

Array = NDArray[np.float64]


class MissingChain(SparseChain):
    """Y (m, Q), in the units of the sweep, lacks responses (NaN). Given the background, drawn for this step, rows are iid."""

    def __init__(self, problem: Problem, scales: Scales, Y: Array, k: int, seed: int, warmup: int, **how: Any) -> None:
        super().__init__(problem._replace(Y=problem.Y.copy()), k, seed, warmup, **how)
        self.Y, self.W, self.patterns = Y, scales.rotation, patterns(Y)

    def before(self) -> None:
        problem, state, rng = self.problem, self.state, self.rng
        fitted = problem.X.T @ dense_effects(state)
        share = problem.ratios[int(state.scalars[RATIO])] * problem.d
        share = (share / (1 + share))[:, None]  # of a row's residual that is background
        root = np.linalg.cholesky(state.Sigma)
        noise = rng.standard_normal(problem.Y.shape) @ root.T
        around = fitted + share * (problem.Y - fitted) + np.sqrt(share) * noise
        here = around if self.W is None else self.W @ around
        Y = draw_missing(self.Y, here, state.Sigma, self.patterns, rng.standard_normal(self.Y.shape))
        problem.Y[:] = Y if self.W is None else self.W.T @ Y

    def arrays(self) -> dict[str, Any]:
        return super().arrays() | {"Y": self.problem.Y}

    def restore(self, arrays: dict[str, Any]) -> None:
        super().restore(arrays)
        self.problem.Y[:] = arrays["Y"]


class NoisyChain(SparseChain):
    """The features are latent; a sweep has no background, which the noise would drown."""

    def __init__(self, noisy: NoisyFeatures, problem: Problem, Y: Array, k: int, seed: int, warmup: int, **how: Any) -> None:
        own = problem._replace(**{name: getattr(problem, name).copy() for name in ("X", "Y", "squares", "rest")})
        super().__init__(own, k, seed, warmup, **how)
        self.noisy, self.Y = noisy, Y
        self.latent = Latent(noisy.best_guess(), float(len(Y)))

    def before(self) -> None:
        root = np.linalg.cholesky(np.linalg.inv(self.state.Sigma)).T
        learn = self.sweeps % LEARN == 0
        B = dense_effects(self.state)
        self.latent = draw_features(self.noisy, self.latent, self.Y, B, root, self.rng, learn)
        X, Y, rest = small_side(self.latent.X, self.Y)
        self.problem.X[:], self.problem.Y[:], self.problem.rest[:] = X.T, Y, rest
        self.problem.squares[0] = np.square(self.problem.X).sum(axis=1)

    def arrays(self) -> dict[str, Any]:
        return super().arrays() | {"latent": self.latent.X, "strength": np.array(self.latent.strength)}

    def restore(self, arrays: dict[str, Any]) -> None:
        super().restore(arrays)
        self.latent = Latent(arrays["latent"].copy(), float(arrays["strength"]))


def noisy_problem(noisy: NoisyFeatures, Y: Array, prior: Prior) -> Problem:
    """A problem of the right shapes; its numbers are those of the features' best guess. Its columns have their own units."""
    X, Ys, rest = small_side(noisy.best_guess(), Y)
    made, _scales = prepare(X, Ys, prior, rows=float(len(Y)), background=False, every_row=True)
    columns = np.ascontiguousarray(X.T, dtype=np.float32)
    squares = np.square(columns).sum(axis=1)[None]
    return made._replace(X=columns, Y=np.ascontiguousarray(Ys), squares=squares, rest=rest)
