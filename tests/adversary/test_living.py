"""Liars in a study that goes on: faked departures, fits replayed, runs repeated to tell two cohorts apart."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer, new_subjects
from tests.federation import NAMES, frames, sites, study

from intarsia.carriers.in_process import carrier
from intarsia.errors import FederationError, MessageError, PrivacyError
from intarsia.server.study import protocol
from intarsia.server.study.departure import leave
from intarsia.server.study.folder import StudyFolder
from intarsia.site.identity import Identity
from intarsia.site.site import Site
from intarsia.site.withdrawal import FILE
from intarsia.wire.coefficients import bind
from intarsia.wire.leave import ENTRY, Leave, check_leave
from intarsia.wire.study import Study

STAY = ("clinic", "lab")


@pytest.fixture
def rogue(tmp_path: Path) -> RogueServer:
    made = RogueServer.after_fit(tmp_path / "study")
    made.deliver()
    return made


def without_mri(rogue: RogueServer, **changes: object) -> dict[str, bytes]:
    """Coefficients for the two others, with digests that fit: what a server can always make up."""
    honest = rogue.coefficients()
    cut = {name: replace(honest[name], **changes) for name in STAY}
    return {name: message.to_bytes() for name, message in bind(cut).items()}


def show(rogue: RogueServer, site: str, raw: bytes, notice: bytes, of: str = "mri"):  # type: ignore[no-untyped-def]
    return rogue.ask(site, "receive", {"coefficients": raw, ENTRY + of: notice})


TRICKS = ["no notice", "server's key", "other key", "another site's", "other run", "signature only", "one's own"]


@pytest.mark.parametrize("trick", TRICKS)
def test_a_server_cannot_make_a_site_leave(rogue: RogueServer, trick: str) -> None:
    """A faked departure would let it hand out a second fit of the same run, with coefficients of its choice."""
    plan, mri, fit = rogue.study, rogue.sites["mri"], without_mri(rogue)
    genuine = Leave.from_bytes(mri.leave(plan))
    held = rogue.sites["clinic"].model(plan).coefficients.fit_digest
    stranger, of = Identity.new("mri"), "mri"
    if trick == "no notice":
        told = rogue.ask("clinic", "receive", {"coefficients": fit["clinic"]})
        assert told.words in FIXED_WORDS
        return
    false = genuine
    if trick == "server's key":
        blank = Leave("mri", plan.hash).proved(bytes(32))
        false = replace(blank, signature=stranger.sign(blank.body()))
    elif trick == "other key":
        false = replace(genuine, signature=stranger.sign(genuine.body()))
    elif trick == "another site's":
        of = "lab"
    elif trick == "other run":
        moved = replace(genuine, study_hash=plan.again().hash)
        false = replace(moved, signature=mri.identity.sign(moved.body()))
    elif trick == "signature only":  # who stole the identity, but has not the study key
        blank = Leave("mri", plan.hash).proved(bytes(32))
        false = replace(blank, signature=mri.identity.sign(blank.body()))
    elif trick == "one's own":
        of = "clinic"
    assert show(rogue, "clinic", fit["clinic"], false.to_bytes(), of).words in FIXED_WORDS
    assert rogue.sites["clinic"].model(plan).coefficients.fit_digest == held
    assert rogue.sites["clinic"].remaining(plan) == NAMES


def test_an_honest_server_refuses_a_notice_somebody_else_made(rogue: RogueServer) -> None:
    genuine = Leave.from_bytes(rogue.sites["mri"].leave(rogue.study))
    for false in (replace(genuine, signature=b""), replace(genuine, signature=Identity.new("mri").sign(genuine.body()))):
        with pytest.raises(FederationError, match="Nobody else can make a site leave"):
            leave(rogue.folder, false.to_bytes())
    assert rogue.folder.left == ()
    with pytest.raises(MessageError):
        Leave.from_bytes(genuine.to_bytes() + b" ")


def test_one_fit_for_each_site_that_left_and_none_of_them_twice(rogue: RogueServer) -> None:
    """After a genuine departure the server has one more fit to give, not two, and the old one does not come back."""
    plan, clinic = rogue.study, rogue.sites["clinic"]
    notice, old = rogue.sites["mri"].leave(plan), rogue.kept("coefficients")
    first, second = without_mri(rogue), without_mri(rogue, interval=0.9)
    assert not show(rogue, "clinic", first["clinic"], notice).refused
    held = clinic.model(plan).coefficients
    assert set(held.fit_parts) == set(STAY)
    assert show(rogue, "clinic", second["clinic"], notice).words in FIXED_WORDS
    for raw in (old["clinic"], second["clinic"]):
        assert rogue.ask("clinic", "receive", {"coefficients": raw}).words in FIXED_WORDS
    assert clinic.model(plan).coefficients.fit_digest == held.fit_digest
    # Without the notice the other site still holds the fit of all: nothing is predicted from two fits.
    new = new_subjects()
    parts = {name: rogue.ask(name, "predict", {"request": b"june"}, new[name]).message for name in STAY}
    (rogue.folder.path / "predictions" / "june").mkdir(parents=True)
    for name, raw in parts.items():
        (rogue.folder.path / "predictions" / "june" / f"{name}.part").write_bytes(raw)
    rogue.folder.file("leave", "mri").parent.mkdir()
    rogue.folder.file("leave", "mri").write_bytes(notice)
    with pytest.raises(FederationError, match="from different fits"):
        protocol.collect_parts(rogue.folder, "june", rogue.carry)


def test_a_site_that_left_answers_nothing_and_is_not_heard(rogue: RogueServer) -> None:
    plan = rogue.study
    sketch = rogue.folder.file("sketch", "mri").read_bytes()
    notice = rogue.sites["mri"].leave(plan)
    for step in ("offer", "announce", "align", "sketch", "receive", "predict"):
        assert rogue.ask("mri", step, {"request": b"june"}).words in FIXED_WORDS
    assert rogue.sites["mri"].leave(plan) == notice
    rogue.folder.file("leave", "mri").parent.mkdir()
    rogue.folder.file("leave", "mri").write_bytes(notice)
    with pytest.raises(FederationError, match="has left this run"):
        rogue.folder.accept("sketch", "mri", sketch)


def test_where_no_keys_are_pinned_the_sites_know_a_false_notice(tmp_path: Path) -> None:
    """There the server cannot check a notice, but it cannot make one either: it has not the study key."""
    parties = sites(frames())
    plan = study()
    genuine, false = Leave("mri", plan.hash), Leave("mri", plan.hash).proved(bytes(32))
    key = parties[0].key(plan).derive("leave", plan.id, plan.run)
    check_leave(plan, genuine.proved(key).to_bytes(), key)
    check_leave(plan, false.to_bytes(), None)
    with pytest.raises(FederationError, match="not made by a site of this run"):
        check_leave(plan, false.to_bytes(), key)


# Runs repeated.


def sites_with_folders(where: Path) -> list[Site]:
    """Sites that keep a ledger, and attack themselves briefly."""
    parties = sites(frames())
    for site in parties:
        site.folder = where / site.name
        site.folder.mkdir()
        site.policy = {"attack_seconds": 0.2}
    return parties


def again(where: Path, parties: list[Site], plan: Study, number: int) -> Study:
    """One more run of the study at the same sites."""
    following = plan if number == 0 else plan.again(reason="withdrawal")
    folder = StudyFolder.create(where / f"server-{number}", following)
    protocol.collect(folder, carrier(parties, following))
    return following


def test_withdrawing_one_subject_after_the_other_is_stopped_by_what_was_told_of_the_rest(tmp_path: Path) -> None:
    """A site that drops one person per run would collect sketches that differ in one person each."""
    parties = sites_with_folders(tmp_path)
    plan = study(alignment={"mode": "intersect"})
    again(tmp_path, parties, plan, 0)
    liar = parties[1]
    (tmp_path / "mri" / FILE).write_text("S0001\n")
    liar._table, liar._tokens = None, {}
    with pytest.raises(PrivacyError, match=r"Site 'clinic'(?s:.*)ratio"):  # 2·60/399 > .25
        again(tmp_path, parties, plan, 1)


def test_a_forged_replaces_buys_no_budget(tmp_path: Path) -> None:
    """What a run says it replaces is for people to read: the ledger counts every sketch of a person."""
    parties = sites_with_folders(tmp_path)
    again(tmp_path, parties, study(), 0)
    for lie in ("ab" * 32, study().hash):
        plan = replace(study().again(), replaces=lie, reason="correction")
        folder = StudyFolder.create(tmp_path / lie[:4], plan)
        with pytest.raises(PrivacyError, match="ratio"):
            protocol.collect(folder, carrier(parties, plan))


def test_a_replaces_that_hides_changes_is_told(tmp_path: Path) -> None:
    old = study()
    content = old.again(reason="correction").to_dict()
    content["sketch"]["m"] = 90
    content["site"][1]["features"] = ["mri_*", "genome_*"]
    told = old.differences(Study.from_dict(content))
    assert told == ["sketch.m: 60 → 90", 'site mri.features: ["mri_*"] → ["mri_*", "genome_*"]']
    assert old.differences(old.again()) == []
