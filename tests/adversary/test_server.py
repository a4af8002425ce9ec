"""A malicious server at every other step: no second sketch, no second cohort, no word that tells anything (rows 5, 6, 8, 9)."""

import contextlib
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.adversary.kit import FIXED_WORDS, LyingSite, RogueServer
from tests.federation import KEY, NAMES, frames, study

from intarsia.errors import FederationError, KeyFileError
from intarsia.privacy.ledger import Ledger
from intarsia.server.study.folder import StudyFolder
from intarsia.site.answer import REFUSALS, scrub
from intarsia.site.data.table_rules import TableRules
from intarsia.site.site import Site
from intarsia.site.site_ledger import FOLDER
from intarsia.wire.alignment import Cohort
from intarsia.wire.announcement import Announcement
from intarsia.wire.messages import Sketch
from intarsia.wire.steps import STEPS
from intarsia.wire.study import Study

CANARY = "VERY-RARE-DISEASE"


# One way out of a site, and one sketch through it.


def test_a_corrected_table_gives_no_second_sketch(tmp_path: Path) -> None:
    """Φ twice over tables that differ in one person would give that person's row."""
    rogue = RogueServer.after_collect(tmp_path)
    first = rogue.kept("sketch")["mri"]
    site = rogue.sites["mri"]
    site.data = site.data.assign(mri_0=site.data["mri_0"] + 1.0)
    site._table = None
    site._tokens = {}
    cohort = rogue.folder.cohorts()["mri"].to_bytes()
    assert rogue.ask("mri", "sketch", {"cohort": cohort}).message == first
    # Even after the run folder lost the sketch, the ledger knows the run: other content is refused.
    site.run_store(rogue.study).forget("sketch")
    assert rogue.ask("mri", "sketch", {"cohort": cohort}).words in FIXED_WORDS


def test_one_cohort_per_run_also_when_the_first_was_refused(tmp_path: Path) -> None:
    """Cohorts of the server's choosing would turn the gate's refusals into answers about single people."""
    rogue = RogueServer.before(tmp_path, alignment={"mode": "intersect"}, m=150)  # the gate refuses m/n above .25
    steps_until(rogue, "align")
    assert ask_cohort(rogue, "mri", range(400)).words in FIXED_WORDS
    assert "refuses this sketch" in rogue.log("mri")[-1]["text"]
    told = {ask_cohort(rogue, "mri", [i for i in range(400) if i != left]).words for left in (0, 1, 2)}
    assert told == {REFUSALS[FederationError]}
    assert "Another cohort" in rogue.log("mri")[-1]["text"]


def ask_cohort(rogue: RogueServer, site: str, rows):  # type: ignore[no-untyped-def]
    keep = np.zeros(400, bool)
    keep[list(rows)] = True
    return rogue.ask(site, "sketch", {"cohort": Cohort(site, rogue.study.hash, "intersect", int(keep.sum()), keep).to_bytes()})


def steps_until(rogue: RogueServer, last: str) -> dict[str, dict[str, bytes]]:
    """The honest steps before sketching, message by message."""
    found: dict[str, dict[str, bytes]] = {}
    before: dict[str, bytes] = {}
    for step in ("offer", "share", "combine", "announce", "align"):
        told = {name: rogue.ask(name, step, before) for name in NAMES}
        assert not any(t.refused for t in told.values()), (step, [rogue.log(name) for name in NAMES])
        before = found[step] = {name: t.message for name, t in told.items()}
        if step == last:
            return found
    return found


def private_plan() -> dict[str, Any]:
    public = {name: {"*": 0.0} for name in NAMES}
    privacy = {"epsilon": 8.0, "delta": 1e-6, "row_bound": dict.fromkeys(NAMES, 4.0), "centres": public}
    privacy["scales"] = {name: {"*": 10.0} for name in NAMES}
    return {"sketch": {"m": 20, "kind": "gaussian", "precision": "float32"}, "privacy": privacy}


def test_private_noise_is_drawn_once(tmp_path: Path) -> None:
    rogue = RogueServer.before(tmp_path, **private_plan())
    steps_until(rogue, "align")
    asked = {rogue.ask("mri", "sketch").message for _ in range(4)}
    assert len(asked) == 1
    assert Sketch.load(asked.pop()).noise > 0


@pytest.mark.parametrize("spoil", ["ids alike after the study's rules", "a level outside the operator's list"])
def test_under_differential_privacy_a_table_is_refused_before_the_first_message(tmp_path: Path, spoil: str) -> None:
    """Later, a refusal would be an answer about the table that no ε covers."""
    tables = frames()
    tables["mri"]["mri_0"] = np.where(np.arange(400) % 2, "a", "b")
    if spoil.startswith("ids"):
        tables["mri"].loc[0, "id"] = tables["mri"].loc[1, "id"].lower()
    else:
        tables["mri"].loc[7, "mri_0"] = "c"
    plan = private_plan() | {"alignment": {"canonical": ["lower"]}}
    rogue = RogueServer.before(tmp_path, tables=tables, **plan)
    site = rogue.sites["mri"]
    site.rules = TableRules.of("error", "error", {"columns": {"mri_0": {"levels": ["a", "b"]}}})
    assert rogue.ask("mri", "offer").words in FIXED_WORDS
    assert site.run_store(rogue.study).log == []
    assert not rogue.ask("lab", "offer").refused  # whose table is in order


def test_a_refused_step_asked_again_and_again_writes_one_line(tmp_path: Path) -> None:
    """A server could fill a site's disk, and bury what the ledger says, with refusals it provokes."""
    rogue = RogueServer.before(tmp_path, m=150)  # the gate refuses m/n above .25
    steps_until(rogue, "align")
    for _ in range(4):
        assert rogue.ask("mri", "sketch").words in FIXED_WORDS
    assert [entry.state for entry in Ledger(tmp_path / "mri" / FOLDER).entries()] == ["tried", "refused"]


# Words that tell nothing.


def test_no_step_in_any_order_says_more_than_the_fixed_words(tmp_path: Path) -> None:
    """Every step with every kind of payload, before anything was done: a message that may leave or fixed words, logged once."""
    rogue = RogueServer.before(tmp_path)
    payloads = [
        {},
        {"cohort": b"x"},
        {"coefficients": b""},
        {"request": b"june"},
        {"request": b"\xff", "sum": b"y"},
        {"mri": b"z"},
    ]
    for step, payload in itertools.product([*STEPS, "shell", ""], payloads):
        before = rogue.refusals("mri")
        told = rogue.ask("mri", step, payload)
        assert not told.refused or told.words in FIXED_WORDS
        assert rogue.refusals("mri") == before + told.refused


def test_a_category_of_a_column_outside_the_study_stays_at_the_site(tmp_path: Path) -> None:
    tables = frames()
    tables["mri"]["diagnosis"] = [CANARY, *["a", "b", "c"] * 133]
    rogue = RogueServer.before(tmp_path, tables=tables)
    steps_until(rogue, "align")
    told = rogue.ask("mri", "sketch")
    assert told.words in FIXED_WORDS
    assert "'diagnosis'" in rogue.log("mri")[-1]["text"]  # the operator sees which column; the category's text is nowhere
    assert CANARY not in str(rogue.log("mri"))
    assert not any(CANARY.encode() in seen for seen in rogue.seen)


def test_duplicate_ids_and_missing_values_look_the_same_to_the_server(tmp_path: Path) -> None:
    words = set()
    for name, spoil in (("ids", {"id": ["S0001"] * 2}), ("missing", {"mri_0": [np.nan] * 2})):
        tables = frames()
        for column, values in spoil.items():
            tables["mri"].loc[:1, column] = values
        rogue = RogueServer.before(tmp_path / name, tables=tables, pinned=False)
        for site in rogue.sites.values():
            site._key = KEY
        announced = {name: rogue.ask(name, "announce") for name in NAMES}
        if not announced["mri"].refused:
            rogue.ask("mri", "align", {name: told.message for name, told in announced.items()})
        words.add(announced["mri"].words or rogue.ask("mri", "sketch").words)
    assert len(words) == 1
    assert words <= FIXED_WORDS


def test_an_unexpected_error_tells_nothing_of_itself(tmp_path: Path) -> None:
    rogue = RogueServer.before(tmp_path)

    def broken() -> None:
        raise ValueError(f"could not convert {CANARY!r}")

    rogue.sites["mri"].table = broken  # type: ignore[method-assign]
    assert rogue.ask("mri", "announce").words in FIXED_WORDS
    site = rogue.sites["mri"]
    error = ValueError(CANARY)
    assert CANARY not in scrub(site, rogue.study, error)
    assert CANARY not in str(rogue.log("mri"))


def test_an_unknown_study_gets_one_answer_whatever_was_accepted(tmp_path: Path) -> None:
    from intarsia.errors import StudyError
    from intarsia.server.study.folder import dump
    from intarsia.site.site_folder import SiteFolder

    answers = set()
    for name, accept in (("with", True), ("without", False)):
        folder = SiteFolder.create(tmp_path / name, "clinic")
        if accept:
            (tmp_path / "study.toml").write_text(dump(study()))
            folder.accept(tmp_path / "study.toml")
        with pytest.raises(StudyError) as caught:
            folder.accepted("ab" * 32)
        answers.add(scrub(folder.site(), None, caught.value))
    assert answers == {REFUSALS[StudyError]}


# Old keys.


def test_a_key_file_left_behind_is_not_used_where_keys_are_pinned(tmp_path: Path) -> None:
    rogue = RogueServer.before(tmp_path)
    site = rogue.sites["clinic"]
    site._key = KEY  # the server has this old one
    with pytest.raises(KeyFileError, match="never from a key file"):
        site.key(rogue.study)
    assert rogue.ask("clinic", "announce").words in FIXED_WORDS
    assert rogue.ask("clinic", "sketch").words in FIXED_WORDS


# Lists of subjects.


def test_no_tokens_leave_before_all_lists_are_announced(tmp_path: Path) -> None:
    rogue = RogueServer.before(tmp_path, alignment={"mode": "intersect"})
    announced = steps_until(rogue, "announce")["announce"]
    assert rogue.ask("clinic", "align").words in FIXED_WORDS
    assert rogue.ask("clinic", "align", {"clinic": announced["clinic"]}).words in FIXED_WORDS
    assert not rogue.ask("clinic", "align", announced).refused


@pytest.mark.parametrize(("pinned", "mode"), [(True, "strict"), (False, "strict"), (True, "intersect")])
def test_a_server_that_keeps_the_others_counts_back_gets_no_sketch(tmp_path: Path, pinned: bool, mode: str) -> None:
    """All sites' skewed columns together give Φ away, those of one site do not: a gate that hears of nobody else would pass."""
    tables = frames()
    for frame in tables.values():
        frame[frame.columns[1:7]] = np.exp(frame[frame.columns[1:7]] / frame[frame.columns[1:7]].std())
    rogue = RogueServer.before(tmp_path, tables=tables, pinned=pinned, alignment={"mode": mode}, privacy={"max_blind": 0.016})
    announced = (
        steps_until(rogue, "announce")["announce"] if pinned else {name: rogue.ask(name, "announce").message for name in NAMES}
    )
    rogue.ask("mri", "align")
    everybody = Cohort("mri", rogue.study.hash, mode, 400, None if mode == "strict" else np.ones(400, dtype=bool)).to_bytes()
    for payload in ({}, {"cohort": everybody}):
        assert rogue.ask("mri", "sketch", payload).words in FIXED_WORDS
        assert "before every site has announced" in rogue.reason
    assert not rogue.ask("mri", "align", announced).refused
    assert rogue.ask("mri", "sketch", {"cohort": everybody}).words in FIXED_WORDS
    assert "blind: 21 columns of this shape give columns of Φ away" in rogue.reason


@pytest.mark.parametrize(("cap", "population"), [({"max_subjects": 500}, 600), ({}, 4100)])
def test_whoever_lists_a_population_is_refused_before_tokens_leave(tmp_path: Path, cap, population: int) -> None:  # type: ignore[no-untyped-def]
    tables = frames()
    more = population - 400
    extra = pd.DataFrame(
        {"id": [f"X{i}" for i in range(more)]} | {f"mri_{j}": np.random.default_rng(j).normal(size=more) for j in range(6)}
    )
    tables["mri"] = pd.concat([tables["mri"], extra], ignore_index=True)
    rogue = RogueServer.before(tmp_path, tables=tables, alignment={"mode": "intersect", **cap})
    announced = steps_until(rogue, "announce")["announce"]
    assert rogue.ask("clinic", "align", announced).words in FIXED_WORDS
    assert "longer than" in rogue.log("clinic")[-1]["text"]
    # A smaller number put in the list's place by the server does not pass either.
    told = Announcement.from_bytes(announced["mri"])
    for mac in (told.mac, told.signed(bytes(32)).mac):
        small = Announcement("mri", told.study_hash, 400, told.columns, mac).to_bytes()
        assert rogue.ask("clinic", "align", announced | {"mri": small}).words in FIXED_WORDS
    assert rogue.log("clinic")[-1]["code"] == "FederationError"


def test_a_site_cannot_align_more_than_it_announced(tmp_path: Path) -> None:
    """A lying site announces 400 and lists 600; the server, which is honest here, refuses."""
    rogue = RogueServer.before(tmp_path, alignment={"mode": "intersect"})
    found = steps_until(rogue, "align")
    folder = StudyFolder.create(tmp_path / "honest", rogue.study)
    folder.accept("announcement", "mri", found["announce"]["mri"])
    liar = LyingSite(
        "mri", pd.concat([rogue.sites["mri"].data, rogue.sites["mri"].data.assign(id=lambda f: "X" + f["id"])]), id="id"
    )
    liar.set_key(rogue.study, rogue.sites["mri"].key(rogue.study))
    liar.pretend(heard=lambda _study: {"mri": {}})
    with pytest.raises(FederationError, match="another number of subjects than it announced"):
        folder.accept("alignment", "mri", liar.align(rogue.study))


@pytest.mark.parametrize("counts", [{"columns": 5}, {"covariates": 0}])
def test_a_site_cannot_send_more_columns_than_it_announced(tmp_path: Path, counts: dict[str, int]) -> None:
    """Then the other sites' cards would show figures made of too few columns. The server, which is honest here, refuses."""
    rogue = RogueServer.before(tmp_path, sketch={"m": 60})
    rogue.sites["mri"].roles["covariates"] = ["mri_5"]
    plan = rogue.study.to_dict()
    plan["site"][1] |= {"features": ["mri_0", "mri_1", "mri_2", "mri_3", "mri_4"], "covariates": ["mri_5"]}
    rogue = RogueServer(list(rogue.sites.values()), Study.from_dict(plan), tmp_path / "plan")
    mri = rogue.sites["mri"]
    steps_until(rogue, "combine")
    for name in NAMES:
        rogue.ask(name, "announce", {other: rogue.sites[other].run_store(rogue.study).get("confirmation") for other in NAMES})
    key = mri.key(rogue.study).derive("announce", rogue.study.id, rogue.study.run)
    truth = Announcement("mri", rogue.study.hash, 400, 6, covariates=1)
    for told, refused in ((truth, False), (replace(truth, **counts), True)):
        folder = StudyFolder.create(tmp_path / f"honest-{refused}", rogue.study)
        folder.accept("announcement", "mri", told.signed(key).to_bytes())
        with pytest.raises(FederationError, match="more columns than it announced") if refused else contextlib.nullcontext():
            folder.accept("sketch", "mri", mri.sketch(rogue.study))


def test_other_counts_later_in_the_run_are_refused(tmp_path: Path) -> None:
    rogue = RogueServer.before(tmp_path, alignment={"mode": "intersect"})
    announced = steps_until(rogue, "align")["announce"]
    other = Site("mri", frames()["mri"].head(300), id="id")
    other.set_key(rogue.study, rogue.sites["mri"].key(rogue.study))
    assert rogue.ask("clinic", "align", announced | {"mri": other.announce(rogue.study)}).words in FIXED_WORDS


def test_the_card_says_how_long_the_lists_were_and_what_an_intersection_and_a_prediction_tell(tmp_path: Path) -> None:
    rogue = RogueServer.after_collect(tmp_path, alignment={"mode": "intersect"})
    card = json.loads(rogue.sites["lab"].run_store(rogue.study).get("card.json"))["card"]
    assert card["subjects_listed"] == dict.fromkeys(NAMES, 400)
    said = " ".join(card["not_claimed"])
    assert "finds out which of them are at all sites" in said
    assert "chooses the coefficients" in said
    assert "Subjects listed" in rogue.sites["lab"].run_store(rogue.study).get("card.html").decode()
