"""What is thought of a fit, worked out once: its convergence, its findings, and how it predicts rows it has not seen.

It is kept with the draws (group `assessment` of the posterior), so that the report and whoever opens the file later read the same
numbers and compute nothing again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.server.assess.convergence import Diagnosis, diagnose
from intarsia.server.assess.findings import Findings, select
from intarsia.server.assess.leave_one_out import LeaveOneOut, Rows, leave_one_out
from intarsia.server.assess.stacking import Weighed, from_all_rows, interval_of_explained
from intarsia.server.assess.stored import restored, stored
from intarsia.server.assess.unshrunk import unshrunk
from intarsia.server.posterior.posterior import Group, Posterior

Array = NDArray[np.float64]

GROUP = "assessment"


@dataclass(frozen=True)
class Flat:
    """Effects under a flat prior of their own (`unshrunk`)."""

    mean: Annotated[Array, "feature", "response"]
    sd: Annotated[Array, "feature", "response"]


@dataclass(frozen=True)
class Assessment:
    """Convergence, findings and, where the rows were at hand, leave-one-out, what to predict with and effects unshrunk."""

    diagnosis: Diagnosis
    findings: Findings
    loo: LeaveOneOut | None = None
    weighed: Weighed | None = None
    flat: Flat | None = None

    @property
    def unshrunk(self) -> tuple[Array, Array] | None:
        """Mean and sd (feature, response) of the effects under a flat prior of their own."""
        return None if self.flat is None else (self.flat.mean, self.flat.sd)

    def with_weights(self, weighed: Weighed | None) -> "Assessment":
        """With what refits say of prediction.

        Their R² takes the place of leave-one-out's: weighting the draws is too hopeful when there are more features than rows.
        """
        if weighed is None:
            return self
        loo = None if self.loo is None else replace(self.loo, r2=weighed.r2, r2_se=weighed.r2_se)
        return replace(self, loo=loo, weighed=weighed)

    def expected_r2(self, noise: Array, probability: float) -> tuple[Array, Array, Array] | None:
        """The share of variance (Q) that predictions for new subjects explain, and the ends of its interval; None where no row
        was left out, or only by weighting the draws where there are more features than rows. `noise` (Q) are the noise
        variances, of standardised responses.
        """
        if self.weighed is not None:
            found, rows = from_all_rows(self.weighed.alike, noise), self.weighed.rows
        elif self.loo is not None and len(self.loo.elpd) >= len(self.findings.selected):
            found, rows = self.loo.r2, np.full(len(noise), len(self.loo.elpd))
        else:
            return None
        found = np.clip(found, 0.0, 1.0)  # predictions that do worse than the mean explain nothing; they do not explain less
        return found, *interval_of_explained(found, rows, probability)

    def summary(self, features: list[str], responses: list[str]) -> dict[str, Any]:
        """For fit.json and `--json`: the verdict first, then what was found, called provisional unless converged."""
        f, d = self.findings, self.diagnosis
        found: dict[str, Any] = {
            "converged": bool(d.converged),
            "verdict": str(d.verdict),
            "provisional": not d.converged,
            "selected": [features[p] for p in np.flatnonzero(f.selected)],
            "sets": [one.to_dict(features) for one in f.sets],
            "expected_fdr": f.expected_fdr,
            "features": len(features),
            "responses": responses,
        }
        if f.without is not None:
            found["stands"] = {features[p]: f.stands(int(p)) for p in np.flatnonzero(f.selected | f.without)}
        if self.loo is not None:
            found |= {
                "r2_loo": [round(float(v), 4) for v in self.loo.r2],
                "not_predicted": [responses[q] for q in np.flatnonzero(self.loo.unpredicted)],
                "elpd_loo": self.loo.total,
                "weight_of_sparse_prediction": None if self.weighed is None else round(self.weighed.weight, 4),
                "weight_with_independent_noise": None if self.weighed is None else round(self.weighed.weight_independent, 4),
                "unreliable_rows": self.loo.unreliable,
            }
        return found


def assess(
    posterior: Posterior,
    rows: Rows | None = None,
    *,
    X: Array | None = None,
    Y: Array | None = None,
    method: Literal["bfdr", "mixture"] = "bfdr",
    fdr: float = 0.05,
) -> Assessment:
    """Diagnose, select and leave one out; `keep` puts the assessment with the draws.

    `rows` are the rows in the posterior's units; X and Y those that the sampler saw (covariates projected out), Y only where
    effects without the sparse prior are to be had.
    """
    flat = None if X is None or Y is None else Flat(**dict(zip(("mean", "sd"), unshrunk(X, Y, posterior.draws), strict=True)))
    loo = None if rows is None else leave_one_out(posterior, rows)
    return Assessment(diagnose(posterior), select(posterior, method=method, fdr=fdr, X=X), loo, None, flat)


@dataclass(frozen=True)
class Seen:
    """The rows as the sampler saw them, without what covariates explain; Y is None under privacy noise, which would draw effects
    under a flat prior towards zero. `rows` are those that can be left out, in the posterior's units.
    """

    X: Array
    Y: Array | None
    rows: Rows | None = None


def finish(
    posterior: Posterior,
    seen: Seen,
    how: tuple[Any, float],
    weighed: Weighed | None = None,
    rounded: Callable[[Assessment], Assessment] | None = None,
) -> Assessment:
    """The end of every fit: what is to be thought of it, kept beside the draws.

    `how` is by which method findings are chosen and at what rate, `weighed` what refits say of prediction, `rounded` what is done
    to results before others are told.
    """
    made = assess(posterior, seen.rows, X=seen.X, Y=seen.Y, method=how[0], fdr=how[1]).with_weights(weighed)
    return keep(posterior, made if rounded is None else rounded(made))


def keep(posterior: Posterior, assessment: Assessment) -> Assessment:
    """Put the assessment with the draws, and return it."""
    d = assessment.diagnosis
    # Labels are the posterior's.
    bare = replace(assessment, diagnosis=replace(d, features=None, responses=None))
    posterior.groups[GROUP] = Group(*stored(bare))
    return assessment


def kept(posterior: Posterior) -> Assessment | None:
    """The assessment that was kept with the draws; None when there is none."""
    group = posterior.groups.get(GROUP)
    if group is None:
        return None
    found: Assessment = restored(Assessment, group.arrays, group.words)
    labelled = replace(found.diagnosis, features=posterior.features, responses=posterior.responses)
    return replace(found, diagnosis=labelled)
