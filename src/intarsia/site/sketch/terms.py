"""What a sketch is made by: the terms all sites share, how columns are scaled, and how the pass over the rows is done."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from intarsia.site.key import SketchKey
from intarsia.site.sketch.partial import Design
from intarsia.wire.study import Study

Columns = Literal["standardised", "centred", "plain"]
COLUMNS: tuple[Columns, ...] = ("standardised", "centred", "plain")


@dataclass(frozen=True)
class SketchTerms:
    """The terms of one site's sketch in one run of a study.

    Φ depends on `study`, `run`, `m`, `kind` and the cohort (`order_mac`), never on the site. `hash` is the
    study's or, for a sketch made without a study.toml, a digest of the terms: equal where they are equal.
    """

    study: str
    run: str
    m: int
    kind: str = "orthonormal"
    precision: str = "float64"
    site: str = "site"
    order_mac: str = ""
    study_hash: str = ""

    @property
    def hash(self) -> str:
        words = ["intarsia/1 terms", self.study, self.run, self.m, self.kind, self.precision]
        return self.study_hash or hashlib.sha256(json.dumps(words).encode()).hexdigest()

    @classmethod
    def of(cls, study: Study, site: str, order_mac: str = "") -> "SketchTerms":
        """From the study file."""
        own = study.sketch
        return cls(study.id, study.run, own.m, own.mixing, own.precision, site, order_mac, study.hash)

    def design(self, key: SketchKey, n: int) -> Design:
        """The Φ of these terms over n subjects. Change study, run, cohort, n, m or kind and Φ is unrelated: one-time."""
        context = json.dumps([int(n), int(self.m), self.kind, self.order_mac])
        return Design(key.derive("sketch", self.study, self.run, context=context), int(self.m), int(n), self.kind)


@dataclass(frozen=True)
class Work:
    """How the pass over the rows is done: rows per block, threads, and whom to tell. The sketch does not depend on it."""

    rows: int | None = None
    threads: int | None = None
    progress: Callable[[int, int], None] | None = None
