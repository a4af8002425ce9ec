"""What is thought of a fit, worked out once: its convergence, its findings, and how it predicts rows it has not seen.

It is kept with the draws (group `assessment` of the posterior), so that the report and whoever opens the file later read the same
numbers and compute nothing again. There it lies by its fields: arrays become variables named by their path (`findings.pip`), with
the dimensions of the field's type, `Annotated[Array, "feature", "response"]`; all else is words. Arrays within a tuple of
dataclasses are few numbers, and stay among the words.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from intarsia.server.assess.convergence import Diagnosis, diagnose
from intarsia.server.assess.effects import unshrunk
from intarsia.server.assess.findings import Findings, select
from intarsia.server.assess.knockoffs import Knockoffs
from intarsia.server.assess.leave_one_out import LeaveOneOut, Rows, leave_one_out
from intarsia.server.assess.stacking import Weighed, from_all_rows, interval_of_explained
from intarsia.server.posterior.posterior import Group, Posterior

Array = NDArray[np.float64]

GROUP = "assessment"
_ARRAY, _LIST = "@array", "@list"


@dataclass(frozen=True)
class Flat:
    """Effects under a flat prior of their own (`unshrunk`)."""

    mean: Annotated[Array, "feature", "response"]
    sd: Annotated[Array, "feature", "response"]


@dataclass(frozen=True)
class Assessment:
    """Convergence, findings and, where the rows were at hand, leave-one-out, what to predict with and effects unshrunk.

    `knockoffs` is a second opinion on the findings, from the sums of all columns.
    """

    diagnosis: Diagnosis
    findings: Findings
    loo: LeaveOneOut | None = None
    weighed: Weighed | None = None
    flat: Flat | None = None
    knockoffs: Knockoffs | None = None

    @property
    def unshrunk(self) -> tuple[Array, Array] | None:
        """Mean and sd (feature, response) of the effects under a flat prior of their own."""
        return None if self.flat is None else (self.flat.mean, self.flat.sd)

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
        if self.knockoffs is not None:
            found["knockoffs"] = {
                "copies": self.knockoffs.copies,
                "q_value": {features[p]: round(float(self.knockoffs.q_value[p]), 4) for p in self.knockoffs.named},
            }
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
    method: str = "bfdr",
    fdr: float = 0.05,
    weighed: Weighed | None = None,
) -> Assessment:
    """Diagnose, select and leave one out; `keep` puts the assessment with the draws.

    `rows` are those that can be left out, in the posterior's units; X and Y those that the sampler saw (covariates projected
    out). Y is None where effects under a flat prior are not to be had: privacy noise would draw them towards zero. `weighed` is
    what refits say of prediction. Their R² takes the place of leave-one-out's: weighting the draws is too hopeful when there are
    more features than rows.
    """
    flat = None if X is None or Y is None else Flat(*unshrunk(X, Y, posterior.draws))
    loo = None if rows is None else leave_one_out(posterior, rows)
    if loo is not None and weighed is not None:
        loo = replace(loo, r2=weighed.r2, r2_se=weighed.r2_se)
    return Assessment(diagnose(posterior), select(posterior, method=method, fdr=fdr, X=X), loo, weighed, flat)


def keep(posterior: Posterior, assessment: Assessment) -> Assessment:
    """Put the assessment with the draws, and return it."""
    # Labels are the posterior's.
    bare = replace(assessment, diagnosis=replace(assessment.diagnosis, features=None, responses=None))
    posterior.groups[GROUP] = _stored(bare)
    return assessment


def kept(posterior: Posterior) -> Assessment | None:
    """The assessment that was kept with the draws; None when there is none."""
    group = posterior.groups.get(GROUP)
    if group is None:
        return None
    found: Assessment = _restored(Assessment, group, group.words)
    labelled = replace(found.diagnosis, features=posterior.features, responses=posterior.responses)
    return replace(found, diagnosis=labelled)


def _stored(value: Any) -> Group:
    """The arrays within a dataclass, and all else as JSON knows it."""
    arrays: dict[str, tuple[tuple[str, ...], Any]] = {}

    def words(one: Any, hint: Any, name: str | None) -> Any:
        """What a value is in words; its arrays go under its name, or into the words where it has none."""
        if isinstance(one, np.ndarray) and name is None:
            return {_LIST: one.tolist(), "type": str(one.dtype)}
        if isinstance(one, np.ndarray):
            dims = hint.__metadata__ if get_origin(hint) is Annotated else tuple(f"{name}_{k}" for k in range(one.ndim))
            arrays[str(name)] = (dims, one.astype(np.int8) if one.dtype == bool else one)
            return {_ARRAY: name}
        if is_dataclass(one):
            hints = get_type_hints(type(one), include_extras=True)
            own = {f.name: None if name is None else f"{name}.{f.name}".lstrip(".") for f in fields(one)}
            return {field: words(getattr(one, field), hints[field], path) for field, path in own.items()}
        if isinstance(one, tuple | list):
            return [words(each, None, None) for each in one]
        return one.item() if isinstance(one, np.generic) else one

    return Group(arrays, words(value, None, ""))


def _restored(hint: Any, group: Group, words: Any) -> Any:
    """The value again; the types of the fields say what the words stand for."""
    if isinstance(words, dict) and _ARRAY in words:
        values = group.arrays[words[_ARRAY]][1]
        return values.astype(bool) if np.bool_ in _types(hint) else values
    if isinstance(words, dict) and _LIST in words:
        return np.asarray(words[_LIST], dtype=words["type"])
    of: Any = next((one for one in _types(hint) if isinstance(one, type) and is_dataclass(one)), None)
    if isinstance(words, list):
        back = [_restored(of, group, each) for each in words]
        return tuple(back) if get_origin(hint) is tuple else back
    if of is None or words is None:
        return words
    hints = get_type_hints(of, include_extras=True)
    return of(**{f.name: _restored(hints[f.name], group, words[f.name]) for f in fields(of) if f.name in words})


def _types(hint: Any) -> Iterator[Any]:
    """Every type that a hint is made of."""
    yield hint
    for one in get_args(hint):
        yield from _types(one)
