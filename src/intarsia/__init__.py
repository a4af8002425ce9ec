"""intarsia: Bayesian regression across institutions that may not show each other their data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Public name -> module. Loaded on first use, so that `import intarsia` stays light.
_PUBLIC = {
    "IntarsiaError": "intarsia.errors",
    "check": "intarsia.carriers.all_sites",
    "fit": "intarsia.carriers.in_process",
    "study_for": "intarsia.carriers.in_process",
    "StudyResult": "intarsia.carriers.in_process",
    "compare": "intarsia.server.assess.criticism",
    "Site": "intarsia.site.site",
    "Study": "intarsia.wire.study",
    "join": "intarsia.wire.messages",
    "Sketch": "intarsia.wire.messages",
    "sketch": "intarsia.site.sketch.sketch",
    "SketchTerms": "intarsia.site.sketch.terms",
    "Table": "intarsia.site.data.table",
    "TableRules": "intarsia.site.data.table_rules",
    "SketchKey": "intarsia.site.key",
    "SparseRegression": "intarsia.regression",
    "ReducedRankHorseshoe": "intarsia.regression",
    "Until": "intarsia.server.sampler.settings",
}

__all__ = sorted([*_PUBLIC, "__version__"])
__version__ = "0.2.0.dev0"  # the one place that says it: packages, reports and results read it from here

if TYPE_CHECKING:
    from intarsia.carriers.all_sites import check as check
    from intarsia.carriers.in_process import StudyResult as StudyResult
    from intarsia.carriers.in_process import fit as fit
    from intarsia.carriers.in_process import study_for as study_for
    from intarsia.errors import IntarsiaError as IntarsiaError
    from intarsia.regression import ReducedRankHorseshoe as ReducedRankHorseshoe
    from intarsia.regression import SparseRegression as SparseRegression
    from intarsia.server.assess.criticism import compare as compare
    from intarsia.server.sampler.settings import Until as Until
    from intarsia.site.data.table import Table as Table
    from intarsia.site.data.table_rules import TableRules as TableRules
    from intarsia.site.key import SketchKey as SketchKey
    from intarsia.site.site import Site as Site
    from intarsia.site.sketch.sketch import sketch as sketch
    from intarsia.site.sketch.terms import SketchTerms as SketchTerms
    from intarsia.wire.messages import Sketch as Sketch
    from intarsia.wire.messages import join as join
    from intarsia.wire.study import Study as Study


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'intarsia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
