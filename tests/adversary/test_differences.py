"""Two runs whose cohorts differ in a few people: what is exact in both must not be compared (a malicious server alone)."""

from pathlib import Path

import numpy as np
import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer, Told
from tests.federation import KEY, NAMES

from intarsia.privacy.facts import Facts
from intarsia.privacy.gram_leakage import differencing
from intarsia.privacy.ledger import Ledger
from intarsia.privacy.policy import Policy
from intarsia.site.site_ledger import FOLDER
from intarsia.wire.messages import Sketch

SHARED = {"alignment": {"mode": "intersect"}, "deliver": {"share_scales": True}, "m": 30}


def distance_from_mean(first: Told, second: Told) -> float:
    """How far the one person who was left out lies from the mean of the first response, squared, in units of the variance: by the
    two runs' exact scales. Squared, because people close to the mean have no digits to compare otherwise."""
    assert first.message is not None
    assert second.message is not None
    one, other = Sketch.load(first.message), Sketch.load(second.message)
    n, s, t = one.n, one.response_scales[0], other.response_scales[0]
    return float(((n - 1) - (n - 2) * (t / s) ** 2) * (n - 1) / n)


def truth(rogue: RogueServer) -> float:
    site = rogue.sites["clinic"]
    left_out = site.tokens(rogue.study).rows[0]
    values = site.data["alt"].to_numpy()
    return float((values[left_out] - values.mean()) ** 2 / values.var(ddof=1))


def test_scales_of_two_cohorts_do_not_tell_one_persons_response(tmp_path: Path) -> None:
    rogue = RogueServer.before(tmp_path / "first", **SHARED)
    assert not any(told.refused for told in rogue.sketch_without(0).values())
    second = rogue.another_run(tmp_path / "second")
    told = second.sketch_without(1)
    assert told["clinic"].words in FIXED_WORDS
    assert "scales: " in second.log("clinic")[-1]["text"]
    assert not told["mri"].refused  # a site without responses shares no scale


def test_without_the_ledger_the_scales_would_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack works where the ledger does not look for it."""
    monkeypatch.setattr(Ledger, "scales_single_out", lambda *_: None)
    rogue = RogueServer.before(tmp_path / "first", **SHARED)
    first = rogue.sketch_without(0)
    second = rogue.another_run(tmp_path / "second")
    told = second.sketch_without(1)
    assert abs(distance_from_mean(first["clinic"], told["clinic"]) - truth(second)) < 1e-9


def test_the_same_people_and_responses_again_share_the_same_scales(tmp_path: Path) -> None:
    """A repeat tells nothing new; one corrected response would be told by how much."""
    rogue = RogueServer.before(tmp_path / "first", **SHARED)
    assert not rogue.sketch_without(0)["clinic"].refused
    assert not rogue.another_run(tmp_path / "second").sketch_without(0)["clinic"].refused
    site = rogue.sites["clinic"]
    site.data = site.data.assign(alt=site.data["alt"] + np.eye(1, len(site.data))[0])
    site._table, site._tokens = None, {}
    third = rogue.another_run(tmp_path / "third")
    assert third.sketch_without(0)["clinic"].refused
    assert "other values of these very people" in third.log("clinic")[-1]["text"]


def test_a_cohort_that_differs_in_enough_people_may_share_scales(tmp_path: Path) -> None:
    rogue = RogueServer.before(tmp_path / "first", **SHARED)
    assert not rogue.sketch_without(0)["clinic"].refused
    assert not rogue.another_run(tmp_path / "second").sketch_without(10)["clinic"].refused


def test_a_refusal_after_the_release_does_not_free_the_run(tmp_path: Path) -> None:
    """A run folder was deleted; the table is refused, then repaired: the run's Φ stays used, and Σm stays counted."""
    rogue = RogueServer.before(tmp_path, pinned=False)
    for site in rogue.sites.values():
        site._key = KEY
    site = rogue.sites["mri"]
    rogue.ask("mri", "align", {name: rogue.ask(name, "announce").message or b"" for name in NAMES})
    assert not rogue.ask("mri", "sketch").refused
    ledger = Ledger(tmp_path / "mri" / FOLDER)
    people = ledger.tokens(site.table().ids())
    assert ledger.history(people) == 60

    site.run_store(rogue.study).forget("sketch")
    good = site.data
    for values in (np.arange(len(good)) < 3, good["mri_0"] + np.eye(1, len(good))[0]):  # a rare level; then one changed value
        site.data = good.assign(mri_0=values.astype(float))
        site._table = None
        assert rogue.ask("mri", "sketch").words in FIXED_WORDS
        assert ledger.history(people) == 60
    assert [entry.state for entry in ledger.entries()][:4] == ["tried", "reserved", "released", "refused"]


@pytest.mark.parametrize(("known", "level"), [(True, "ok"), (False, "refuse")])
def test_two_gram_matrices_are_judged_by_the_columns_of_all_sites(known: bool, level: str) -> None:
    """Thirty people are enough for ten columns in all; where the others' are not counted, they may be three hundred."""
    facts = Facts(n=900, m=0, kind="gram", columns=10, columns_known=known, singled_out=30)
    assert [one.level for one in differencing(facts, Policy())] == [level]
