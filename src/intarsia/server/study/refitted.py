"""Another fit of the sketches that are here: other noise, prior, rank, seed or length, beside the study's own fit.

It tells nobody anything new, so it costs no allowance. The study's own fit and what the sites hold stay as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.errors import StudyError
from intarsia.server.results.criticism import Comparison, compare
from intarsia.server.results.judgement import Judgement, kept
from intarsia.server.results.posterior import Posterior
from intarsia.server.study.fit import sample, settings_of
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.kept import POSTERIOR, posterior_file
from intarsia.server.study.longer import on_own_backend
from intarsia.wire.plain import some
from intarsia.wire.study import Study


@dataclass(frozen=True)
class Refitted:
    """The new fit, what is to be thought of it, and how it compares with the study's own (None where rows cannot be left out)."""

    posterior: Posterior
    judgement: Judgement
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
    """Fit the collected sketches again; `changes` are entries of [fit] in study.toml, as they are written there."""
    target = folder.path / POSTERIOR
    if not target.is_file():
        raise StudyError(f"{folder.path} has no posterior.nc yet: the study is not fitted. Run `intarsia fit` first.")
    own = Posterior.load(posterior_file(folder.path))
    before = kept(own)
    if before is None:
        raise StudyError(f"{target.name} was made by another version. Fit again.")
    content = folder.study.to_dict()
    plan = Study.from_dict(content | {"fit": content.get("fit", {}) | dict(changes)})
    settings = replace(on_own_backend(folder, settings_of(plan)), workers=workers, progress=progress)
    posterior, judgement = sample(plan, folder.joined(), settings)
    both = judgement.loo is not None and before.loo is not None
    return Refitted(
        posterior, judgement, compare(judgement.loo, before.loo) if both else None,  # type: ignore[arg-type]
        _selected(own, before), _selected(posterior, judgement),
    )  # fmt: skip


def _selected(posterior: Posterior, judgement: Judgement) -> frozenset[str]:
    return frozenset(posterior.features[p] for p in np.flatnonzero(judgement.selection.selected))
