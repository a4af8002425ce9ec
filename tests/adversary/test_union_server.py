"""A server that chooses the groups in `union` mode."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer, Told
from tests.federation import NAMES, frames

from intarsia.cli.study import explain
from intarsia.errors import FederationError
from intarsia.privacy.ledger import Ledger
from intarsia.site.answer import REFUSALS
from intarsia.site.data.table import Table
from intarsia.site.dry_groups import judge_groups
from intarsia.site.preflight import SiteRules
from intarsia.site.site_ledger import FOLDER, open_ledger
from intarsia.wire.alignment import AlignmentReport
from intarsia.wire.cohort_groups import NOWHERE, Group, GroupedSketch, UnionCohort, rows_of, unite


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


BOTH, ALL = ("alt", "ast"), ("alt", "ast", "hdl")


def told_to_clinic(rogue: RogueServer, groups: dict[tuple[str, ...], np.ndarray]) -> Told:
    """The clinic, which has both its responses of everybody, is told of groups of the server's choosing: responses and places."""
    before: dict[str, bytes] = {}
    for step in ("offer", "share", "combine", "announce", "align"):
        before = {name: rogue.ask(name, step, before).message or b"" for name in NAMES}
    member = np.full(400, NOWHERE, dtype=np.int32)
    for number, places in enumerate(groups.values()):
        member[places] = number
    sizes = [len(places) for places in groups.values()]
    rows = rows_of(sizes, rogue.study.sketch.m)
    found = tuple(Group(n, m, tuple(r.strip() for r in labels)) for n, m, labels in zip(sizes, rows, groups, strict=True))
    cohort = UnionCohort("clinic", rogue.study.hash, found, 0, member)
    return rogue.ask("clinic", "sketch", {"cohort": cohort.to_bytes()})


def shared(tmp_path: Path) -> RogueServer:
    return RogueServer.before(tmp_path / "first", alignment={"mode": "union"}, deliver={"share_scales": True}, m=24)


@pytest.mark.parametrize("judged_together", [True, False])
def test_scales_over_all_groups_do_not_tell_one_persons_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged_together: bool
) -> None:
    """Each group differs from the first run's cohort in many people; all groups together differ from it in one."""
    if not judged_together:
        alone = "intarsia.site.union._own_rules"
        monkeypatch.setattr(alone, lambda site, study, ledger, portions, tables: SiteRules(site.policy, ledger, {}))
    first = shared(tmp_path)
    told = told_to_clinic(first, {BOTH: np.arange(400)})
    assert not told.refused, first.log("clinic")
    second = first.another_run(tmp_path / "second")
    again = told_to_clinic(second, {ALL: np.arange(1, 200), BOTH: np.arange(200, 400)})
    if judged_together:
        assert again.words in FIXED_WORDS
        assert "scales: " in second.log("clinic")[-1]["text"]
        return
    s, t = (GroupedSketch.load(one.message).parts[0].response_scales[0] for one in (told, again))
    distance = ((400 - 1) - (400 - 2) * (t / s) ** 2) * (400 - 1) / 400  # squared, in units of the variance
    site = second.sites["clinic"]
    values = site.data["alt"].to_numpy()
    truth = (values[site.tokens(second.study).rows[0]] - values.mean()) ** 2 / values.var(ddof=1)
    assert abs(distance - truth) < 1e-9  # the attack works where groups are judged one by one


def test_a_correction_is_not_told_by_new_groups_of_the_same_people(tmp_path: Path) -> None:
    first = shared(tmp_path)
    assert not told_to_clinic(first, {BOTH: np.arange(400)}).refused
    regrouped = first.another_run(tmp_path / "second")
    halves = {ALL: np.arange(200), BOTH: np.arange(200, 400)}
    assert not told_to_clinic(regrouped, halves).refused, regrouped.log("clinic")  # the same people and values: the same scales
    site = first.sites["clinic"]
    site.data = site.data.assign(alt=site.data["alt"] + np.eye(1, len(site.data))[0])
    site._table, site._tokens = None, {}
    third = first.another_run(tmp_path / "third")
    assert told_to_clinic(third, halves).refused
    assert "other values of these very people" in third.log("clinic")[-1]["text"]


def dry_refusals(rogue: RogueServer) -> set[str]:
    """What `site check` says of the run to the clinic's operator, who has since lost a subject and half of one response."""
    site = rogue.sites["clinic"]
    partly = site.data.assign(ast=site.data["ast"].where(np.arange(400) % 2 > 0)).iloc[1:]
    assert site.folder is not None
    own = SiteRules(site.policy, open_ledger(site.folder), dry=True)
    checks, _ = judge_groups("clinic", Table.open(partly, **site.roles), rogue.study, own)
    assert len(checks) == 2
    return {finding.rule for check in checks.values() for finding in check.verdict.refused}


def test_the_dry_run_judges_scales_as_the_study_will(tmp_path: Path) -> None:
    """`site check` before another run without one person: each group differs in many, all groups with a response in that one."""
    first = shared(tmp_path)
    assert not told_to_clinic(first, {ALL: np.arange(200), BOTH: np.arange(200, 400)}).refused
    assert dry_refusals(first.another_run(tmp_path / "second")) == {"scales"}
    assert dry_refusals(first) == set()  # this run's own scales are no earlier run's


def test_a_site_learns_who_of_its_own_subjects_has_which_response_and_is_told_so(tmp_path: Path) -> None:
    """A curious site and nobody else: it reads the groups it was told. No rule can end that, so the card says it."""
    tables = frames()
    tables["lab"].loc[:149, "hdl"] = np.nan  # these people are not in the laboratory's registry
    absent = set(tables["lab"]["id"][:150])
    rogue = RogueServer.before(tmp_path, tables=tables, alignment={"mode": "union"}, m=40)
    before: dict[str, bytes] = {}
    for step in ("offer", "share", "combine", "announce", "align"):
        before = {name: rogue.ask(name, step, before).message or b"" for name in NAMES}
    told = unite({name: AlignmentReport.from_bytes(raw) for name, raw in before.items()}, rogue.study)["mri"]
    mri = rogue.sites["mri"]
    assert not rogue.ask("mri", "sketch", {"cohort": told.to_bytes()}).refused
    without_hdl = [number for number, group in enumerate(told.groups) if "hdl" not in group.responses]
    rows = mri.tokens(rogue.study).rows[np.isin(told.member, without_hdl)]
    assert set(mri.table().ids()[rows]) == absent
    for name in ("card.json", "card-2.json"):
        assert "responses of the other sites that person has" in mri.run_store(rogue.study).need(name, "").decode()
    assert "other sites they have" in " ".join(explain(rogue.study))


def test_subjects_with_the_same_responses_are_one_group(tmp_path: Path) -> None:
    rogue = shared(tmp_path)
    told = told_to_clinic(rogue, {BOTH: np.arange(200), ("alt", "ast "): np.arange(200, 400)})
    assert told.words in FIXED_WORDS
    assert "they are one" in rogue.log("clinic")[-1]["text"]
