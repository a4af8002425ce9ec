"""Another fit of the sketches that are here: other noise, prior, rank, seed or length, beside the study's own fit.

It tells nobody anything new, so it costs no allowance. The study's own fit and what the sites hold stay as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.errors import StudyError
from intarsia.server.assess.assessment import Assessment, kept
from intarsia.server.assess.criticism import Comparison, compare
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.study.fit import sample, settings_of
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.kept import POSTERIOR, posterior_file
from intarsia.server.study.longer import on_own_backend
from intarsia.wire.plain import some
from intarsia.wire.study import BEFORE_PRIORS, SCHEMA, Study


@dataclass(frozen=True)
class Refitted:
    """The new fit, what is to be thought of it, and how it compares with the study's own (None where rows cannot be left out)."""

    posterior: Posterior
    assessment: Assessment
    comparison: Comparison | None
    before: frozenset[str]  # features that the study's own fit selected
    after: frozenset[str]

    def words(self) -> list[str]:
        """Which of the two predicts better, and on which features they agree."""
        lines = []
        if self.comparison is not None:
            told = self.comparison.words
            lines.append(told.replace("The first fit", "This fit").replace("The second fit", "The study's own fit"))
        for what, names in (
            ("selected by both", self.before & self.after),
            ("by the study's own fit alone", self.before - self.after),
            ("by this one alone", self.after - self.before),
        ):
            lines.append(f"{what}: {some(sorted(names), 12)}")
        return lines


def refit(
    folder: StudyFolder,
    changes: Mapping[str, Any],
    *,
    workers: int | None = None,
    progress: Callable[..., Any] | None = None,
) -> Refitted:
    """Fit the collected sketches again; `changes` are entries of [fit] in study.toml, as they are written there, and
    perhaps the prior."""
    target = folder.path / POSTERIOR
    if not target.is_file():
        raise StudyError(f"{folder.path} has no posterior.nc yet: the study is not fitted. Run `intarsia fit` first.")
    own = Posterior.load(posterior_file(folder.path))
    before = kept(own)
    if before is None:
        raise StudyError(f"{target.name} was made by another version. Fit again.")
    content = folder.study.to_dict()
    changes = dict(changes)
    prior = changes.pop("prior", folder.study.fit.prior)
    if prior == "sparse":
        content |= {"schema": SCHEMA, "model": content.get("model", {}) | {"prior": prior}}
        content["fit"] = {name: value for name, value in content["fit"].items() if name not in ("local", "law")}
    else:
        content = {name: value for name, value in content.items() if name != "model"} | {"schema": BEFORE_PRIORS}
    plan = Study.from_dict(content | {"fit": content["fit"] | changes})
    settings = replace(on_own_backend(folder, settings_of(plan)), workers=workers, progress=progress)
    posterior, assessment = sample(plan, folder.joined(), settings)
    both = assessment.loo is not None and before.loo is not None
    return Refitted(
        posterior, assessment, compare(assessment.loo, before.loo) if both else None,  # type: ignore[arg-type]
        _selected(own, before), _selected(posterior, assessment),
    )  # fmt: skip


def _selected(posterior: Posterior, assessment: Assessment) -> frozenset[str]:
    return frozenset(posterior.features[p] for p in np.flatnonzero(assessment.findings.selected))
