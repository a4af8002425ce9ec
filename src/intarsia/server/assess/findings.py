"""Which features matter, how sure that is, and how many of the chosen ones to expect wrong.

What the evidence of each feature and coefficient is, `local_fdr` says. The chosen set is the largest, surest first, whose mean
local false discovery rate stays at or below `fdr`, and nothing is chosen that is more likely wrong than right.

`mixture` is the paper's Algorithm 3 on the posterior mean, kept for comparison.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.assess.local_fdr import counted, fit_mixture, judged
from intarsia.server.assess.sets import FeatureSet, of_dense, of_sparse
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.sparse import SparseEffects
from intarsia.wire.coefficients import STANDS

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]

METHODS = ("bfdr", "mixture")
MOST_LOCAL_FDR = 0.5  # of what is chosen from counted inclusion, however much room surer findings leave
MOST_JUDGED = 0.1  # of what is chosen from draws that are never zero: with a half a stated 5 % comes out at 13
NOT_FINITE = "Some draws are not finite; a selection from them would mean nothing. Look at the diagnosis."
_NEITHER, BEYOND, WITHOUT, BOTH = STANDS


@dataclass(frozen=True)
class Findings:
    """The chosen features and the evidence for each.

    `pip` (P,) is the probability that a feature matters, `lfsr` (P, Q) the local false sign rate of each coefficient, and
    `local_fdr_by_response` (P, Q) the probability that choosing the coefficient is wrong. `sign_by_response` has the signs.
    `sets` are sets of interchangeable features. `expected_fdr` is the share of `findings` (selected features and sets) to expect
    wrong, `expected_fdr_by_response` (Q,) that of each column of `by_response`. Where a background was fitted, all this is
    beyond it; `pip_without` (P,) and `without` (P,) are the inclusion probability and the choice without one.
    """

    pip: Annotated[Array, "feature"]
    lfsr: Annotated[Array, "feature", "response"]
    local_fdr_by_response: Annotated[Array, "feature", "response"]
    selected: Annotated[Bool, "feature"]
    by_response: Annotated[Bool, "feature", "response"]
    sign_by_response: Annotated[NDArray[np.int8], "feature", "response"]
    expected_fdr: float
    expected_fdr_by_response: Annotated[Array, "response"]
    method: str
    fdr: float
    draws: int  # what the probabilities are counted from
    sets: tuple[FeatureSet, ...] = ()
    pip_without: Annotated[Array | None, "feature"] = None
    without: Annotated[Bool | None, "feature"] = None
    counted: bool = False  # inclusion is counted, not judged by the distance from zero

    @property
    def findings(self) -> list[NDArray[np.intp]]:
        """What was found, each an array of places: first every selected feature, then every set of interchangeable ones."""
        singles = [np.array([p]) for p in self.order if self.selected[p]]
        return singles + [one.members for one in self.sets]

    @property
    def local_fdr(self) -> Array:
        """The probability (P,) that choosing a feature is wrong."""
        return 1.0 - self.pip

    @property
    def sign(self) -> NDArray[np.int8]:
        """The sign (P,) at the response where the feature shows most."""
        return np.asarray(self.sign_by_response[np.arange(len(self.pip)), self.local_fdr_by_response.argmin(axis=1)])

    @property
    def order(self) -> NDArray[np.intp]:
        """The features, most evidence first."""
        return np.argsort(-self.pip, kind="stable")

    def stands(self, p: int) -> str:
        """How a feature that was found stands: beyond a background, without one, or both; empty where none was fitted."""
        if self.without is None:
            return _NEITHER
        both = bool(self.selected[p]) and bool(self.without[p])
        return BOTH if both else BEYOND if self.selected[p] else WITHOUT if self.without[p] else _NEITHER


def select(
    draws: Any,
    method: str = "bfdr",
    fdr: float = 0.05,
    *,
    X: Array | None = None,
    max_local_fdr: float | None = None,
    covariance: str = "mclust",
) -> Findings:
    """Choose features from draws of C: an array (chain, draw, P, Q), a `Draws` or a `Posterior`.

    With X (m, P), the rows the sampler saw, sets of interchangeable features are looked for too (bfdr only).
    `max_local_fdr` keeps out features that are individually doubtful, however much room surer ones leave in the mean.
    `covariance` is that of the mixture (`local_fdr.MODELS`); "mclust" chooses among all by BIC, as that package does.
    """
    found = Draws.of(draws)
    if max_local_fdr is None:
        max_local_fdr = MOST_LOCAL_FDR if found.sparse else MOST_JUDGED
    if not 0 < fdr < 1:
        raise InputError(f"fdr is {fdr}; expected a rate between 0 and 1, such as 0.05.")
    if method not in METHODS:
        raise InputError(f"Unknown selection {method!r}; expected 'bfdr' or 'mixture'.")
    if not found.effects.finite():
        raise InputError(NOT_FINITE)
    mean, known = found.mean(), found.inclusion
    without = None if known is None or method == "mixture" else known.pip_without
    if method == "mixture":
        size = np.abs(mean)
        row = fit_mixture(size, covariance).low
        entry = np.column_stack([fit_mixture(size[:, q : q + 1], covariance).low for q in range(size.shape[1])])
        selected, by_response = row < fdr, entry < fdr
    else:
        row, entry = counted(found, C) if isinstance(C := found.effects, SparseEffects) else judged(C)
        selected, by_response = bayesian_fdr(row, fdr, max_local_fdr), np.zeros(entry.shape, dtype=bool)
        for q in range(entry.shape[1]):
            by_response[:, q] = bayesian_fdr(entry[:, q], fdr, max_local_fdr)
    above, below = found.effects.signs()
    wrong, counts = np.minimum(found.number - above, found.number - below), by_response.sum(axis=0)
    out = Findings(
        pip=1.0 - row,
        lfsr=(wrong + 0.5) / (found.number + 1),
        local_fdr_by_response=entry,
        selected=selected,
        by_response=by_response,
        sign_by_response=np.sign(mean).astype(np.int8),
        expected_fdr=float(row[selected].mean()) if selected.any() else 0.0,
        expected_fdr_by_response=np.where(by_response, entry, 0.0).sum(axis=0) / np.maximum(counts, 1),
        method=method,
        fdr=fdr,
        draws=found.number,
        pip_without=without,
        without=None if without is None else bayesian_fdr(1 - without, fdr, max_local_fdr),
        counted=found.sparse,
    )
    return out if X is None or method == "mixture" else with_sets(out, found, X, max_local_fdr)


def bayesian_fdr(local: Array, fdr: float, max_local_fdr: float = MOST_LOCAL_FDR) -> Bool:
    """The largest set, surest first, whose mean local fdr is at most fdr (Müller, Parmigiani & Rice 2007)."""
    order = np.argsort(local, kind="stable")
    ranked = local[order]
    fits = (np.cumsum(ranked) <= fdr * np.arange(1, len(local) + 1)) & (ranked <= max_local_fdr)
    chosen = np.zeros(len(local), dtype=bool)
    if fits.any():
        chosen[order[: np.flatnonzero(fits)[-1] + 1]] = True
    return chosen


def with_sets(found: Findings, draws: Draws, X: Array, max_local_fdr: float = MOST_LOCAL_FDR) -> Findings:
    """Add sets of interchangeable features; a doubtful single feature inside one is named by its set alone.

    Features outside of sets and the sets together are then chosen at the rate, as features are.
    """
    if isinstance(draws.C, SparseEffects):
        told = of_sparse(draws, X, found.pip, found.fdr)
    else:
        told = of_dense(draws, X, found.local_fdr, found.selected, found.fdr)
    while True:
        inside = np.zeros(len(found.pip), dtype=bool)
        for one in told:
            inside[one.members] = True
        alone = np.flatnonzero(~inside)
        local = np.concatenate([found.local_fdr[alone], [one.local_fdr for one in told]])
        chosen = bayesian_fdr(local, found.fdr, max_local_fdr)
        kept = [one for one, fits in zip(told, chosen[len(alone) :], strict=True) if fits]
        if len(kept) == len(told):
            break
        told = kept  # a set that is not sure enough hides no feature
    selected = np.zeros(len(inside), dtype=bool)
    selected[alone[chosen[: len(alone)]]] = True
    expected = float(local[chosen].mean()) if chosen.any() else 0.0
    return replace(found, selected=selected, sets=tuple(kept), expected_fdr=expected)
