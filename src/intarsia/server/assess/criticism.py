"""What speaks against a fit, in words: residuals that correlate or are not normal, responses it does not predict; and
which of two fits predicts better.

Everything here comes from the rows of the sketch, which are exchangeable, and costs no privacy.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from intarsia.errors import InputError
from intarsia.server.assess.assessment import Assessment, kept
from intarsia.server.assess.leave_one_out import LeaveOneOut, Rows
from intarsia.server.posterior.posterior import Posterior

Array = NDArray[np.float64]

NORMALITY_LIMIT = 0.01  # p-value, divided by the number of responses
CORRELATION_LIMIT = 0.01  # p-value, divided by the number of pairs


@dataclass(frozen=True)
class Residuals:
    """Rows minus what the other rows predict for them.

    `correlation` (Q, Q) is theirs; `expected` (Q, Q) what the fit's own Σ says it should be, `chance` how far from that
    chance alone takes one of the pairs once in a hundred fits. `normality` (Q,) are p-values of skewness and kurtosis together.
    """

    correlation: Array
    expected: Array
    chance: float
    normality: Array
    independent: bool

    @property
    def worst_pair(self) -> tuple[int, int]:
        """The two responses whose residuals differ most from what the fit expects."""
        off = np.abs(np.triu(self.correlation - self.expected, k=1))
        q, r = np.unravel_index(int(off.argmax()), off.shape)
        return int(q), int(r)

    @property
    def correlated(self) -> bool:
        """Some two responses' residuals correlate more than the fit's Σ and chance allow."""
        off = np.triu(self.correlation - self.expected, k=1)
        return bool(len(off) > 1 and np.abs(off).max() > self.chance)

    @property
    def not_normal(self) -> NDArray[np.bool_]:
        return np.asarray(self.normality < NORMALITY_LIMIT / len(self.normality))


def residuals(posterior: Posterior, rows: Rows, loo: LeaveOneOut) -> Residuals:
    """Check the residuals of rows predicted from the others."""
    left = rows.Y - loo.mean
    m, Q = left.shape
    every = posterior.draws.Sigma
    Sigma = every.mean(axis=(0, 1))
    sd = np.sqrt(np.diag(Sigma))
    scale = np.where(sd > 0, sd, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.asarray(np.nan_to_num(np.corrcoef(left.T)) if Q > 1 else np.ones((1, 1)))
    independent = Q > 1 and not np.any(every[..., ~np.eye(Q, dtype=bool)])
    normality = np.ones(Q)
    for q in np.flatnonzero(sd > 0):
        if m >= 20:  # the test's own limit
            normality[q] = float(stats.normaltest(left[:, q]).pvalue)
    pairs = max(1, Q * (Q - 1) // 2)
    chance = float(stats.norm.isf(CORRELATION_LIMIT / 2 / pairs)) / np.sqrt(m)
    return Residuals(correlation, Sigma / np.outer(scale, scale), chance, normality, independent)


def objections(assessment: Assessment, responses: list[str], found: Residuals | None = None) -> list[str]:
    """What a reader must know before believing the fit, the gravest first; empty when nothing speaks against it."""
    said = []
    if not assessment.diagnosis.converged:
        said.append(f"The fit has not converged, so everything it found is provisional: {assessment.diagnosis.verdict}.")
    loo = assessment.loo
    if loo is not None:
        for q in np.flatnonzero(loo.unpredicted):
            said.append(
                f"{responses[q]} is not predicted beyond chance: out-of-sample R² {_signed(loo.r2[q])} ± {loo.r2_se[q]:.2f}. "
                "What the features explain of it is little or nothing."
            )
        if loo.warning() and assessment.weighed is None:  # else R² comes from refits
            said.append(loo.warning())
    if found is not None:
        if found.correlated:
            one, two = found.worst_pair
            said.append(
                f"The residuals of {responses[one]} and {responses[two]} correlate at "
                f"{_signed(found.correlation[one, two])}, where the fit takes {_signed(found.expected[one, two])}. "
                + (
                    "The noise was taken as independent, so shared noise can pass for an effect: fit again with "
                    'noise = "correlated".'
                    if found.independent
                    else "The covariance of the noise is not settled: take more sketch rows or longer chains."
                )
            )
        for q in np.flatnonzero(found.not_normal):
            said.append(f"The residuals of {responses[q]} are not normal (p = {found.normality[q]:.1g}); intervals may be off.")
    return said


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


@dataclass(frozen=True)
class Comparison:
    """How much better the first of two fits predicts a left-out row set: the difference of elpd and its standard error."""

    difference: float
    se: float
    unreliable: int

    @property
    def words(self) -> str:
        if self.difference == 0:
            return "The two fits predict alike."
        better = "first" if self.difference > 0 else "second"
        size = f"elpd differs by {abs(self.difference):.1f} ± {self.se:.1f}"
        caution = f" (k̂ > 0.7 in {self.unreliable} rows: check by k-fold)" if self.unreliable else ""
        if abs(self.difference) < 2 * self.se or abs(self.difference) < 4:
            return f"Neither fit is clearly better: {size}{caution}."
        return f"The {better} fit predicts better: {size}{caution}."


def compare(a: Posterior | LeaveOneOut, b: Posterior | LeaveOneOut) -> Comparison:
    """Which of two fits to the same rows predicts better, by leave-one-out; positive when the first does.

    The fits may differ in anything but the rows: noise, rank, covariates, features.
    """
    first, second = _loo(a), _loo(b)
    if len(first.elpd) != len(second.elpd):
        raise InputError(
            f"The fits rest on {len(first.elpd)} and {len(second.elpd)} rows; only fits to the same rows can be compared."
        )
    each = first.elpd - second.elpd
    return Comparison(float(each.sum()), float(np.sqrt(len(each) * each.var())), first.unreliable + second.unreliable)


def _loo(fit: Posterior | LeaveOneOut) -> LeaveOneOut:
    if isinstance(fit, LeaveOneOut):
        return fit
    assessment = kept(fit)
    if assessment is None or assessment.loo is None:
        raise InputError(
            "This posterior has no leave-one-out scores. Use keep(posterior, assess(posterior, rows)), or the study's own fit."
        )
    return assessment.loo


def log_mean_exp(each: Array, axis: int = 0) -> Array:
    """log of the mean of exp."""
    return np.asarray(special.logsumexp(each, axis=axis) - np.log(each.shape[axis]))
