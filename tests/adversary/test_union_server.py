"""A server that asks again in `union` mode, with other groups than before."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.adversary.kit import RogueServer
from tests.federation import NAMES, frames

from intarsia.errors import FederationError
from intarsia.privacy.ledger import Ledger
from intarsia.site.answer import REFUSALS
from intarsia.site.site_ledger import FOLDER
from intarsia.wire.alignment import AlignmentReport
from intarsia.wire.cohort_groups import NOWHERE, UnionCohort, rows_of, unite


def test_one_set_of_groups_per_run_also_when_the_first_was_refused(tmp_path: Path) -> None:
    """Groups of the server's choosing would turn the gate's refusals into answers about the person who is left out."""
    tables = frames()
    tables["lab"].loc[:149, "hdl"] = np.nan
    rogue = RogueServer.before(tmp_path, tables=tables, alignment={"mode": "union"}, m=150)  # the gate refuses m/n above .25
    before: dict[str, bytes] = {}
    for step in ("offer", "share", "combine", "announce", "align"):
        before = {name: rogue.ask(name, step, before).message or b"" for name in NAMES}
    honest = unite({name: AlignmentReport.from_bytes(raw) for name, raw in before.items()}, rogue.study)["mri"]
    assert len(honest.groups) == 2
    assert rogue.ask("mri", "sketch", {"cohort": honest.to_bytes()}).refused
    assert "refuses this sketch" in rogue.log("mri")[-1]["text"]
    booked = len(Ledger(tmp_path / "mri" / FOLDER).entries())
    for left_out in (0, 1):
        told = rogue.ask("mri", "sketch", {"cohort": without(honest, left_out, rogue.study.sketch.m).to_bytes()})
        assert told.words == REFUSALS[FederationError]
        assert "Another cohort" in rogue.log("mri")[-1]["text"]
    assert len(Ledger(tmp_path / "mri" / FOLDER).entries()) == booked  # no value was looked at


def without(cohort: UnionCohort, left_out: int, m: int) -> UnionCohort:
    """The same groups without one person of the first."""
    member = cohort.member.copy()
    member[np.flatnonzero(member == 0)[left_out]] = NOWHERE
    sizes = [int((member == number).sum()) for number in range(len(cohort.groups))]
    groups = tuple(replace(g, n=n, m=k) for g, n, k in zip(cohort.groups, sizes, rows_of(sizes, m), strict=True))
    return replace(cohort, groups=groups, member=member)
