"""What a private study tells beside its sketch (labels, counts, scales, predictions) must not rest on one person's values."""

from pathlib import Path

import numpy as np
import pytest
from tests.adversary.kit import RogueServer, new_subjects
from tests.e2e.test_private_study import KEY, parties, study
from tests.federation import frames

from intarsia.errors import InputError, PrivacyError
from intarsia.site import prediction_gate
from intarsia.site.site import Site
from intarsia.wire.messages import Sketch
from intarsia.wire.study import Study

WARDS = ["north", "south", "west"]


def with_wards(rare: str | None, **options: object) -> tuple[Site, Study]:
    sites, _, who = parties(400)
    wards = np.where(np.arange(400) % 2, "north", "south").astype(object)
    if rare is not None:
        wards[7] = rare  # one person
    sites[1].data["b_ward"] = wards
    return Site("right", sites[1].data, id="id", key=KEY, identity=who["right"], **options), study(60, 8.0, who, pinned=False)  # type: ignore[arg-type]


def test_categories_that_were_read_from_the_table_do_not_leave_as_labels() -> None:
    """Whether anybody is in ward west: the label is there or not, whatever ε says."""
    site, plan = with_wards("west")
    with pytest.raises(InputError, match="categories that were read from the table"):
        site.announce(plan)
    assert site.run_store(plan).log == []  # nothing has left


def test_with_stated_levels_the_labels_are_the_same_whoever_is_there() -> None:
    sent = []
    for rare in ("west", None):
        site, plan = with_wards(rare, options={"columns": {"b_ward": {"levels": WARDS}}})
        told = (site.announce(plan), Sketch.load(site.sketch(plan)))
        sent.append((told[0], told[1].features, told[1].X.shape))
    assert sent[0] == sent[1]


def test_shared_scales_of_a_private_study_are_the_public_ones() -> None:
    sites, _, who = parties(400)
    plan = study(60, 8.0, who, pinned=False)
    shared = Study.from_dict(plan.to_dict() | {"deliver": {"share_scales": True}})
    sites[0].data["y"] = 100 + 50 * sites[0].data["y"]
    assert Sketch.load(sites[0].sketch(shared)).response_scales == (1.0,)


def test_people_of_the_study_are_not_predicted_in_a_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is a sum over a person's row without noise. Of new people that is the site's choice; of the cohort, ε is void."""
    sites, _, who = parties(400)
    plan = study(60, 8.0, who)
    sites[1].data["id"] = np.char.upper(sites[1].data["id"])
    prediction_gate.check_new(sites[1], plan, [f"new{i}" for i in range(40)])
    for ids, count in (([" s1 ", "new2"], 1), (sites[1].data["id"][:40], 40)):
        with pytest.raises(PrivacyError, match=f"{count} of these subjects are in the study itself"):
            prediction_gate.check_new(sites[1], plan, ids)
    # And every part goes through it.
    rogue, seen = RogueServer.after_fit(tmp_path), []
    prediction_gate.check_new(rogue.sites["mri"], rogue.study, frames()["mri"]["id"])  # no ε, no such promise
    rogue.deliver()
    monkeypatch.setattr(prediction_gate, "check_new", lambda site, plan, ids: seen.append(len(ids)))
    assert not rogue.ask("mri", "predict", {"request": b"june"}, new_subjects()["mri"]).refused
    assert seen == [30]


def test_people_who_are_no_longer_in_the_table_are_still_covered(tmp_path: Path) -> None:
    """A newer table without forty people of the study: what was promised to them does not end with their rows."""
    sites, _, who = parties(400, tmp_path)
    plan = study(60, 8.0, who, pinned=False)
    right = sites[1]
    right.sketch(plan)
    fewer = {name: values[40:] for name, values in right.data.items()}
    later = Site("right", fewer, id="id", key=KEY, identity=who["right"], folder=right.folder)
    gone = right.data["id"][:40]
    with pytest.raises(PrivacyError, match="40 of these subjects are in the study itself or in another"):
        prediction_gate.check_new(later, plan, np.char.add(gone, " "))
    with pytest.raises(PrivacyError, match="40 of these subjects"):
        prediction_gate.check_new(later, plan.again(), [*gone, "new1"])  # in the next run too
    prediction_gate.check_new(later, plan, [f"new{i}" for i in range(40)])
