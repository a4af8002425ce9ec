"""Checks of a Gram study from the Gram matrices of its folds: fits without some people, held against these people.

The rows are those of all sites, standardised over the whole cohort. A fold's Gram matrix has all that is needed of them: with
v = (−C; −Γ; 1), the squares of what a fit leaves of the fold's responses are vᵀGv.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import StudyError
from intarsia.server.assess.criticism import Replication, found_again
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.pseudo_rows import root
from intarsia.server.sampler.settings import Settings
from intarsia.server.study import gram
from intarsia.server.study.fit import posterior_of
from intarsia.server.study.folder import StudyFolder

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FoldChecks:
    """Of every fold, predicted by the fit to the others: the responses' squares and what is left of them (fold × response), and
    the log density of the fold's responses.
    """

    squares: Array
    left: Array
    elpd: Array

    @property
    def r2(self) -> Array:
        return np.asarray(1 - self.left.sum(axis=0) / self.squares.sum(axis=0))

    @property
    def r2_se(self) -> Array:
        """From how the folds differ: each fold's gain in squares, less what the mean R² gives it."""
        gain = self.squares - self.left - self.r2 * self.squares
        return np.asarray(np.sqrt(len(gain)) * gain.std(axis=0, ddof=1) / self.squares.sum(axis=0))


def check_folds(folder: StudyFolder, folds: int, settings: Settings) -> FoldChecks:
    """Fit once without each fold, and predict it."""
    matrices, sizes, refit = gram.by_fold(folder), _sizes(folder), _refit(folder, settings)
    if folds != len(matrices):
        raise StudyError(
            f"The sites split the subjects of this study into {len(matrices)} folds; ask for --folds {len(matrices)}."
        )
    total, places = matrices.sum(axis=0), _places(folder)
    each = [score(refit(total - G, sum(sizes) - n), G[np.ix_(places, places)], n) for G, n in zip(matrices, sizes, strict=True)]
    squares, left, elpd = (np.array(found) for found in zip(*each, strict=True))
    return FoldChecks(squares, left, elpd)


def replicate(folder: StudyFolder, settings: Settings, posterior: Posterior, findings: Sequence[Any]) -> Replication:
    """Fit the first half of the folds and the rest, and look for every finding in both."""
    matrices, sizes, refit = gram.by_fold(folder), _sizes(folder), _refit(folder, settings)
    half = len(matrices) // 2
    parts = ((matrices[:half].sum(axis=0), sum(sizes[:half])), (matrices[half:].sum(axis=0), sum(sizes[half:])))
    fits = [refit(G, n) for G, n in parts] if len(findings) else []
    return found_again(fits, gram.joined(folder).X, posterior, findings)


def score(posterior: Posterior, G: Array, n: int) -> tuple[Array, Array, float]:
    """A fit held against the Gram matrix (features, covariates, responses) of n people it has not seen.

    The squares of their responses, those of what the mean prediction leaves, and the log density of their responses under a
    normal law: the mean prediction, and as covariance the mean Σ plus the mean over these people of what is uncertain in it.
    """
    d = posterior.draws
    mean, Q = np.concatenate([d.prediction_mean(), posterior.covariate_summary()["mean"]]), d.Q
    p = len(mean)
    v = np.concatenate([-mean, np.eye(Q)])
    left = v.T @ G @ v
    # What is uncertain in the prediction of these people, from a root of their Gram matrix: rows with the same products.
    rows = root(G[:p, :p])
    each = posterior.fitted(rows[:, : d.P], rows[:, d.P :])
    apart = each - each.mean(axis=0)
    V = d.Sigma.mean(axis=(0, 1)) + np.einsum("smq,smt->qt", apart, apart, optimize=True) / d.number / n
    density = -0.5 * (n * np.linalg.slogdet(2 * np.pi * V)[1] + np.trace(np.linalg.solve(V, left)))
    return np.diagonal(G)[p:].copy(), np.diagonal(left).copy(), float(density)


def _sizes(folder: StudyFolder) -> tuple[int, ...]:
    return next(iter(gram.own_blocks(folder).values())).folds


def _places(folder: StudyFolder) -> list[int]:
    """Columns of the joint matrix in the order features, covariates, responses."""
    at, roles = 0, {"features": list[int](), "covariates": list[int](), "responses": list[int]()}
    for block in gram.own_blocks(folder).values():
        for role in ("features", "responses", "covariates"):
            number = len(getattr(block, role))
            roles[role] += range(at, at + number)
            at += number
    return [place for found in roles.values() for place in found]


def _refit(folder: StudyFolder, settings: Settings) -> Callable[[Array, int], Posterior]:
    return lambda G, rows: posterior_of(folder.study, gram.joined(folder, G, rows), settings)[0]
