"""What speaks against a fit: residuals that correlate or are not normal, responses it does not predict, another fit that predicts
better, findings that halves of the rows do not find again.

Everything here comes from the rows of the sketch, which are exchangeable, and costs no privacy. k-fold and halves fit again: each
refit is given some of the rows, nothing else changes. That is dearer than leave-one-out, and exact where k̂ says that it is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from intarsia.errors import InputError
from intarsia.server.assess.assessment import Assessment, kept
from intarsia.server.assess.leave_one_out import LeaveOneOut, Rows, log_likelihood, out_of_sample
from intarsia.server.assess.sets import common_weight
from intarsia.server.posterior.posterior import Posterior

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Refit = Callable[[Rows], Posterior]

NORMALITY_LIMIT = 0.01  # p-value, divided by the number of responses
CORRELATION_LIMIT = 0.01  # p-value, divided by the number of pairs
SIGN_PROBABILITY = 0.9  # of the same sign in a half: what replication asks of each


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
    def _off(self) -> Array:
        return np.abs(np.triu(self.correlation - self.expected, k=1))

    @property
    def worst_pair(self) -> tuple[int, int]:
        """The two responses whose residuals differ most from what the fit expects."""
        q, r = np.unravel_index(int(self._off.argmax()), self._off.shape)
        return int(q), int(r)

    @property
    def correlated(self) -> bool:
        """Some two responses' residuals correlate more than the fit's Σ and chance allow."""
        return bool(len(self._off) > 1 and self._off.max() > self.chance)

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
    for q in np.flatnonzero(sd > 0) if m >= 20 else ():  # the test's own limit
        normality[q] = float(stats.normaltest(left[:, q]).pvalue)
    chance = float(stats.norm.isf(CORRELATION_LIMIT / 2 / max(1, Q * (Q - 1) // 2))) / np.sqrt(m)
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
            remedy = (
                'The noise was taken as independent, so shared noise can pass for an effect: fit again with noise = "correlated".'
                if found.independent
                else "The covariance of the noise is not settled: take more sketch rows or longer chains."
            )
            said.append(
                f"The residuals of {responses[one]} and {responses[two]} correlate at {_signed(found.correlation[one, two])}, "
                f"where the fit takes {_signed(found.expected[one, two])}. {remedy}"
            )
        for q in np.flatnonzero(found.not_normal):
            said.append(f"The residuals of {responses[q]} are not normal (p = {found.normality[q]:.1g}); intervals may be off.")
    return said


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


class Comparison(NamedTuple):
    """How much better the first of two fits predicts a left-out row set: the difference of elpd and its standard error."""

    difference: float
    se: float
    unreliable: int

    @property
    def words(self) -> str:
        if self.difference == 0:
            return "The two fits predict alike."
        size = f"elpd differs by {abs(self.difference):.1f} ± {self.se:.1f}"
        if self.unreliable:
            size += f" (k̂ > 0.7 in {self.unreliable} rows: check by k-fold)"
        if abs(self.difference) < 2 * self.se or abs(self.difference) < 4:
            return f"Neither fit is clearly better: {size}."
        return f"The {'first' if self.difference > 0 else 'second'} fit predicts better: {size}."


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


class KFold(NamedTuple):
    """`elpd` (m,) of every row predicted from the folds it is not in; `r2`, `r2_se` (Q,) and `mean` (m, Q) as leave-one-out's."""

    elpd: Array
    r2: Array
    r2_se: Array
    mean: Array

    @property
    def total(self) -> float:
        return float(self.elpd.sum())


def k_fold(refit: Refit, rows: Rows, folds: int = 5, seed: int = 0) -> KFold:
    """Fit `folds` times, each time without one part of the rows, and predict that part."""
    m = len(rows.Y)
    if not 2 <= folds <= m:
        raise InputError(f"{folds} folds of {m} rows; expected at least 2 and at most as many as rows.")
    part = np.random.default_rng([seed, 11]).permutation(np.arange(m) % folds)
    elpd, mean = np.empty(m), np.empty(rows.Y.shape)
    for fold in range(folds):
        out = part == fold
        each, fitted = log_likelihood(refit(rows.take(~out)), rows.take(out))
        elpd[out] = special.logsumexp(each, axis=(0, 1)) - np.log(each[..., 0].size)
        mean[out] = fitted.mean(axis=(0, 1))
    return KFold(elpd, *out_of_sample(rows.Y, mean), mean)


@dataclass(frozen=True)
class Replication:
    """For every finding (places of its features) the probability in each part of the rows (finding, part; mostly two halves) that
    its effect has the sign that the whole fit gives it, at the response where it shows most.
    """

    findings: tuple[Index, ...]
    probability: Array

    @property
    def replicates(self) -> NDArray[np.bool_]:
        """Found again in all parts. A half has half of the evidence: not to be found again is a doubt, not a refutation."""
        return np.asarray((self.probability >= SIGN_PROBABILITY).all(axis=1))

    def to_dict(self, features: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {"features": [features[p] for p in finding], "probability": [float(v) for v in each], "replicates": bool(again)}
            for finding, each, again in zip(self.findings, self.probability, self.replicates, strict=True)
        ]


def split_half(refit: Refit, rows: Rows, posterior: Posterior, findings: Sequence[Index], seed: int = 0) -> Replication:
    """Fit two random halves of the rows and look for every finding in both."""
    m = len(rows.Y)
    half = np.random.default_rng([seed, 12]).permutation(m) < m // 2
    fits = [refit(rows.take(half)), refit(rows.take(~half))] if len(findings) else []
    return found_again(fits, rows.X, posterior, findings)


def found_again(fits: Sequence[Posterior], X: Array, posterior: Posterior, findings: Sequence[Index]) -> Replication:
    """Look for every finding in the fits to two halves, or to another part; X are rows of the whole, or a root of their Gram
    matrix.
    """
    probability = np.zeros((len(findings), len(fits) or 2))
    for i, finding in enumerate(findings):
        whole = common_effect(posterior, X, finding)
        q = int(np.argmax(np.abs(whole.mean(axis=0)) / np.maximum(whole.std(axis=0), np.finfo(float).tiny)))
        sign = np.sign(whole[:, q].mean())
        for h, fit in enumerate(fits):
            probability[i, h] = float((np.sign(common_effect(fit, X, finding)[:, q]) == sign).mean())
    return Replication(tuple(np.asarray(f) for f in findings), probability)


def common_effect(posterior: Posterior, X: Array, members: Index) -> Array:
    """Draws (draw, response) of a set's common effect: the coefficients' sum, signed as the members correlate with the first."""
    C = posterior.draws.effects.dense(np.asarray(members))
    return np.asarray(np.einsum("cdpq,p->cdq", C, common_weight(X, members), optimize=True).reshape(-1, C.shape[3]))
