"""What the numbers of a prediction have room for: the owner of a response works with the server and chooses the coefficients."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer, new_subjects
from tests.adversary.test_prediction import DIFFERENCE, JUNE, OTHERS, SUM, asking_for, parts, refuse_one_column
from tests.federation import NAMES, frames

from intarsia.errors import InputError, PrivacyError
from intarsia.server.study import protocol
from intarsia.server.study.fit import fit
from intarsia.site import given_away, joint_prediction, prediction_gate
from intarsia.site.predict_rules import PredictRules, bits, rounded, steps
from intarsia.site.rank_normal import Scores
from intarsia.site.units import Units
from intarsia.wire.coefficients import bind
from intarsia.wire.prediction import add_parts
from intarsia.wire.study import Study

BITS = 24  # columns of two values at the imaging centre
EXACT = {"one_column": "refuse", "digits": 12, "max_bits": 1000}


@pytest.fixture
def rogue(tmp_path: Path) -> RogueServer:
    return RogueServer.after_fit(tmp_path)


def with_bits(tables: dict[str, pd.DataFrame], seed: int) -> dict[str, pd.DataFrame]:
    values = np.random.default_rng(seed).integers(0, 2, (len(tables["mri"]), BITS))
    columns = pd.DataFrame(values, columns=[f"mri_bit{j}" for j in range(BITS)], index=tables["mri"].index)
    return tables | {"mri": pd.concat([tables["mri"], columns], axis=1)}


def told_to_clinic(rogue: RogueServer, people: dict[str, pd.DataFrame], request: str) -> tuple[np.ndarray, Any]:
    """What the clinic has after it lifted its masks, (slice, subject, response), and the subjects' ids in that order."""
    total = add_parts(parts(rogue, people, {"request": request.encode()}), "clinic")
    clinic = rogue.sites["clinic"]
    model = clinic.model(rogue.study)
    new = joint_prediction._read(clinic, rogue.study, model, request, people["clinic"], None)
    asked = joint_prediction._request(rogue.study, model, request, new)
    others = joint_prediction._others(clinic, rogue.study, asked, total, (2, len(people["clinic"]), 2))
    return others, new.table.ids()[new.tokens.rows]


@pytest.fixture(scope="module")
def many_bits(tmp_path_factory: pytest.TempPathFactory) -> RogueServer:
    rogue = RogueServer.after_collect(tmp_path_factory.mktemp("bits"), tables=with_bits(frames(), 1))
    fit(rogue.folder)
    mri = rogue.sites["mri"].run_store(rogue.study)
    units = Units.from_bytes(mri.need("units.secret", ""))
    at = [units.features.index(f"mri_bit{j}") for j in range(BITS)]
    changes: dict[str, dict[str, object]] = {}
    for name, honest in rogue.coefficients().items():
        mean = np.zeros_like(honest.mean)
        if name == "mri":  # the second response asks for the same, a thousand times as large
            mean[at, 0] = units.x_scale[at] * 2.0 ** -np.arange(BITS)
            mean[at, 1] = 1000 * mean[at, 0]
        changes[name] = {"mean": mean, "to_predict": np.zeros_like(mean), "draws": np.repeat(mean[None], 120, axis=0)}
    rogue.deliver(rogue.forged(changes))
    return rogue


@pytest.mark.parametrize(("rules", "least", "most"), [(EXACT, BITS, BITS), ({}, 5, 8), ({"digits": 1}, 2, 5)])
def test_columns_of_two_values_stand_behind_each_other_in_one_sum(
    many_bits: RogueServer, rules: dict[str, Any], least: int, most: int
) -> None:
    """Weights 1, 1/2, 1/4, …: no column is nearly the sum, and each is a digit of it. The sum's room ends it."""
    for site in many_bits.sites.values():
        site.predict_rules = PredictRules(**rules)
    digits = many_bits.sites["mri"].predict_rules.digits
    people = {name: frame.assign(id=f"D{digits}" + frame["id"]) for name, frame in with_bits(new_subjects(60), 2).items()}
    others, ids = told_to_clinic(many_bits, people, f"june{digits}")
    units = Units.from_bytes(many_bits.sites["mri"].run_store(many_bits.study).need("units.secret", ""))
    at = [units.features.index(f"mri_bit{j}") for j in range(BITS)]
    truth = people["mri"].set_index("id").loc[ids, [f"mri_bit{j}" for j in range(BITS)]].to_numpy()
    middle = float(units.x_mean[at] @ 2.0 ** -np.arange(BITS))  # by a server that knows how common each is
    for told, scale in ((others[0, :, 0], 1), (others[0, :, 1], 1000)):
        number = np.rint((told / scale + middle) * 2 ** (BITS - 1)).astype(np.int64)
        guess = (number[:, None] >> np.arange(BITS)[::-1]) & 1
        right = (guess == truth).mean(axis=0) > 0.9
        assert (least if scale == 1 else 0) <= right.sum() <= most


def noted(rogue: RogueServer) -> dict[str, Any]:
    """What the imaging centre noted that it told whom."""
    return dict(json.loads(rogue.sites["mri"].run_store(rogue.study).need("request-june.told.json", "")))


def test_a_number_has_no_more_room_than_is_said() -> None:
    """The entropy of rounded values, whatever their law and however large they are made."""
    rng = np.random.default_rng(0)
    for digits in (1, 2):
        for values in (rng.standard_normal(10**6), rng.uniform(-40, 40, 10**6), 1e3 * rng.laplace(size=10**6)):
            part = values.reshape(1, -1, 1)
            out = rounded(part, steps(part, digits)).ravel()
            share = np.unique(out, return_counts=True)[1] / out.size
            assert -(share * np.log2(share)).sum() <= bits(digits)
            assert np.abs(out - values).max() <= 0.5 * steps(part, digits)[0, 0] * (1 + 1e-9)
    assert bits(2) == pytest.approx(8.69, abs=0.01)
    both = np.abs(rng.standard_normal((2, 100, 3)))
    assert (rounded(both, steps(both, 2))[1] >= both[1]).all()  # of a spread, never less


def spread_of(*sums: tuple[list[float], float]) -> np.ndarray:
    """Draws (draw, column) whose spread is the root of these squares, each sum with its weight."""
    draws = np.zeros((120, 6))
    for k, (weights, size) in enumerate(sums):
        wave = np.sqrt(2 * 119 / 120) * np.cos(2 * np.pi * (k + 1) * np.arange(120) / 120)
        draws += np.sqrt(size) * wave[:, None] * np.array(weights)
    return draws


def test_a_spread_beside_its_own_sum_tells_the_other(rogue: RogueServer) -> None:
    """The laboratory is told x₁ + x₂, and √((x₁ + x₂)² + (x₁ − x₂)²): that leaves open which is which, and nothing else."""
    refuse_one_column(rogue)
    nothing = [0.0] * 6
    changes = asking_for(nothing, nothing, SUM)
    changes["mri"]["draws"][:, :, 2] += spread_of((SUM, 1.0), (DIFFERENCE, 1.0))
    rogue.deliver(rogue.forged(changes))
    assert rogue.ask("mri", "predict", JUNE, new_subjects()["mri"]).words in FIXED_WORDS
    assert "one of the site's own columns" in rogue.log("mri")[-1]["text"]


@pytest.mark.parametrize(("second", "refused"), [(DIFFERENCE, True), (OTHERS, False)])
def test_two_spreads_tell_two_sums(rogue: RogueServer, second: list[float], refused: bool) -> None:
    """a² + b² for one response and a² + 2b² for the other: both sizes can be solved for, and no mean says a word."""
    refuse_one_column(rogue)
    nothing = [0.0] * 6
    changes = asking_for(nothing, nothing)
    changes["mri"]["draws"][:, :, 0] += spread_of((SUM, 1.0), (second, 1.0))
    changes["mri"]["draws"][:, :, 1] += spread_of((SUM, 1.0), (second, 2.0))
    rogue.deliver(rogue.forged(changes))
    assert rogue.ask("mri", "predict", JUNE, new_subjects(40)["mri"]).refused == refused


@pytest.mark.parametrize("size", [0.01, 1.0, 1000.0])
def test_a_spread_hides_behind_no_other(rogue: RogueServer, size: float) -> None:
    """x₁ + x₂ and |x₁ − x₂| for one response; the spread of the other is made of all columns alike and tells nothing."""
    refuse_one_column(rogue)
    changes = asking_for(SUM, [0.0] * 6)
    changes["mri"]["draws"][:, :, 0] += spread_of((DIFFERENCE, 1.0))
    changes["mri"]["draws"][:, :, 1] += size * spread_of(*((list(one), 1.0) for one in np.eye(6)))
    rogue.deliver(rogue.forged(changes))
    assert rogue.ask("mri", "predict", JUNE, new_subjects(40)["mri"]).words in FIXED_WORDS
    assert "one of the site's own columns" in rogue.log("mri")[-1]["text"]


@pytest.mark.parametrize("name", ["mean", "draws", "to_predict"])
def test_coefficients_beyond_all_measure_are_not_taken(rogue: RogueServer, name: str) -> None:
    """Squares of them are no numbers, and whatever is held against no number passes."""
    changes = asking_for(SUM)
    changes["mri"][name] = np.array(changes["mri"][name]) + 1e200
    assert rogue.deliver(rogue.forged(changes))["mri"].words in FIXED_WORDS
    assert "no fit has" in rogue.log("mri")[-1]["text"]


@pytest.mark.parametrize(("second", "refused"), [(DIFFERENCE, True), (OTHERS, False)])
def test_spreads_of_two_fits_tell_two_sums(rogue: RogueServer, tmp_path: Path, second: list[float], refused: bool) -> None:
    """a² + b² in one fit and a² + 2b² in another."""
    refuse_one_column(rogue)
    fits = []
    for size in (1.0, 2.0):
        changes = asking_for([0.0] * 6)
        changes["mri"]["draws"][:, :, 0] += spread_of((SUM, 1.0), (second, size))
        fits.append(changes)
    rogue.deliver(rogue.forged(fits[0]))
    people = new_subjects(40)["mri"]
    assert not rogue.ask("mri", "predict", JUNE, people).refused
    later = another_fit(rogue, tmp_path / "second", fits[1])
    assert later.ask("mri", "predict", JUNE, people).refused == refused
    assert not refused or "one of the site's own columns" in later.reason


def another_fit(rogue: RogueServer, where: Path, changes: dict[str, dict[str, object]]) -> RogueServer:
    """A further run at the same sites, with coefficients of the server's choice in the end."""
    again = rogue.study.again()
    second = RogueServer(list(rogue.sites.values()), replace(again, sketch=replace(again.sketch, m=20)), where)
    protocol.collect(second.folder, second.carry)
    honest = {name: replace(c, study_hash=second.study.hash) for name, c in rogue.coefficients().items()}
    changed = {name: replace(c, **changes[name]) for name, c in honest.items()}
    second.deliver({name: message.to_bytes() for name, message in bind(changed).items()})
    return second


def test_what_several_fits_tell_of_a_person_is_counted(rogue: RogueServer, tmp_path: Path) -> None:
    """Two responses with spreads are 35 bits a fit: of a site that allows 60, one fit about the same people."""
    rogue.sites["mri"].predict_rules = PredictRules(max_bits=60)
    rogue.deliver(rogue.forged(asking_for(SUM, SUM)))
    people = new_subjects()["mri"]
    first = rogue.ask("mri", "predict", JUNE, people)
    assert not first.refused
    assert rogue.ask("mri", "predict", JUNE, people) == first
    assert not rogue.ask("mri", "predict", {"request": b"again"}, people).refused  # the same numbers under another name
    second = another_fit(rogue, tmp_path / "second", asking_for(OTHERS, OTHERS))
    assert second.ask("mri", "predict", JUNE, people.assign(id=" " + people["id"].str.lower())).words in FIXED_WORDS
    assert "up to 70 bits about a subject (35 by this one); this site allows 60" in second.log("mri")[-1]["text"]
    assert not second.ask("mri", "predict", {"request": b"others"}, people.assign(id="M" + people["id"])).refused


def test_a_person_whose_values_changed_is_told_of_anew(rogue: RogueServer) -> None:
    """The same fit, the same people, one value corrected in between: the difference is that one value's."""
    rogue.sites["mri"].predict_rules = PredictRules(max_bits=60)
    rogue.deliver(rogue.forged(asking_for(SUM, SUM)))
    people = new_subjects()["mri"]
    assert not rogue.ask("mri", "predict", JUNE, people).refused
    more = pd.concat([people, people.head(25).assign(id="M" + people["id"].head(25))])
    assert not rogue.ask("mri", "predict", {"request": b"more"}, more).refused  # those known are told of as they were
    corrected = people.assign(mri_0=people["mri_0"] + np.where(people["id"] == people["id"].iloc[7], 1.0, 0.0))
    assert rogue.ask("mri", "predict", {"request": b"corrected"}, corrected).refused
    assert "up to 70 bits" in rogue.reason


def test_more_decimals_of_the_same_fit_are_counted_too(rogue: RogueServer) -> None:
    rogue.sites["mri"].predict_rules = PredictRules(max_bits=60)
    rogue.deliver(rogue.forged(asking_for(SUM, SUM)))
    people = new_subjects()["mri"]
    assert not rogue.ask("mri", "predict", JUNE, people).refused
    rogue.sites["mri"].predict_rules = PredictRules(max_bits=60, digits=1)
    assert not rogue.ask("mri", "predict", {"request": b"coarse"}, people).refused
    rogue.sites["mri"].predict_rules = PredictRules(max_bits=80, digits=3)
    assert rogue.ask("mri", "predict", {"request": b"finer"}, people).refused


def test_without_pinned_keys_all_owners_are_one(tmp_path: Path) -> None:
    """Masks come from a key that every site has, and names from whoever writes the study file."""
    rogue = RogueServer.after_collect(tmp_path, pinned=False)
    fit(rogue.folder)
    plan = rogue.study.to_dict()
    plan["site"][0]["name"] = "hospital"
    assert joint_prediction._party(Study.from_dict(plan), "hospital") == joint_prediction._party(rogue.study, "lab")
    refuse_one_column(rogue)
    nothing = [0.0] * 6
    rogue.deliver(rogue.forged(asking_for(SUM, nothing, DIFFERENCE)))  # one sum to the clinic, one to the laboratory
    assert rogue.ask("mri", "predict", JUNE, new_subjects()["mri"]).words in FIXED_WORDS
    assert "one of the site's own columns" in rogue.log("mri")[-1]["text"]
    for site in rogue.sites.values():
        site.predict_rules = PredictRules(one_column="allow", max_bits=50)
    assert rogue.ask("mri", "predict", JUNE, new_subjects()["mri"]).refused  # three responses with spreads: 52
    assert "up to 52 bits" in rogue.log("mri")[-1]["text"]


def test_two_fits_at_the_same_moment_do_not_both_pass(
    rogue: RogueServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x₁ + x₂ in one run and x₁ − x₂ in another, asked for at once: each would not know of the other."""
    refuse_one_column(rogue)
    rogue.deliver(rogue.forged(asking_for(SUM, SUM)))
    second = another_fit(rogue, tmp_path / "second", asking_for(DIFFERENCE, DIFFERENCE))
    judge = prediction_gate.judge

    def slow(*args: Any) -> Any:
        found = judge(*args)
        time.sleep(0.3)
        return found

    monkeypatch.setattr(prediction_gate, "judge", slow)
    people = new_subjects()["mri"]
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda server: server.ask("mri", "predict", JUNE, people), [rogue, second]))
    assert sorted(one.refused for one in told) == [False, True]


def told(columns: tuple[str, ...], **others: Any) -> given_away.Told:
    """What an earlier fit told an owner of one response: nothing but the parts given."""
    nothing: dict[str, Any] = {"weights": np.zeros((6, 1)), "spreads": np.zeros((1, 6, 8)), "rest": np.zeros(1)}
    nothing |= {"sizes": np.zeros((6, 1)), "centres": np.zeros(6), "steps": np.full((2, 1), 0.01), "bits": 17.4}
    return given_away.Told(columns, **nothing | others)


def test_sizes_of_two_runs_are_taken_together(rogue: RogueServer) -> None:
    """|w₁| + |w₂| as covariates' share of a spread in one run, |w₁| + 2·|w₂| in another."""
    refuse_one_column(rogue)
    rogue.deliver(rogue.forged(asking_for([0.0] * 6)))
    site, step = rogue.sites["mri"], np.full((2, 3), 0.01)
    assert site.folder is not None
    model, people = site.model(rogue.study), np.arange(60, dtype=np.uint64)
    centres, columns = model.units.x_mean, given_away.columns_of(model)
    values = centres + np.random.default_rng(5).standard_normal((60, 6))
    sizes = np.abs(values - centres)
    now = np.zeros((2, 60, 3))
    now[1, :, 2] = sizes[:, 0] + sizes[:, 1]
    leaving = prediction_gate.Leaving(model, values, now, step, people)
    assert prediction_gate.judge(site, rogue.study, leaving, "lab", [2])[1].bits == pytest.approx(2 * bits(2))
    first = told(columns, sizes=np.array([[100.0, 200.0, 0, 0, 0, 0]]).T, centres=centres, steps=step[:, 2:])
    given_away.remember(site.folder, "a" * 64, {"lab": (given_away.People.of(people, now[:, :, 2:]), first)})
    for party, whom in (("clinic", people), ("lab", people + np.uint64(100))):
        prediction_gate.judge(site, rogue.study, replace(leaving, people=whom), party, [2])
    for party in ("lab", given_away.ANYBODY):
        with pytest.raises(PrivacyError, match="one of the site's own columns"):
            prediction_gate.judge(site, rogue.study, leaving, party, [2])


def test_normal_scores_hide_no_sum_of_another_fit(rogue: RogueServer) -> None:
    """x₁ + x₂ in one fit and, of their normal scores, x₁ + x₂/2 in another, whose study file asks for scores. In the first one's
    units, where x₂ is twice as large, both sums have the same weights."""
    refuse_one_column(rogue)
    half = [1.0, 0.5, 0, 0, 0, 0]
    rogue.deliver(rogue.forged(asking_for(half)))
    site, step = rogue.sites["mri"], np.full((2, 3), 0.01)
    assert site.folder is not None
    model, people = site.model(rogue.study), np.arange(60, dtype=np.uint64)
    columns, u = given_away.columns_of(model), model.units
    scores = u.x_mean + u.x_scale * np.random.default_rng(5).standard_normal((60, 6))
    plain = u.x_mean + (scores - u.x_mean) * [1.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    now = prediction_gate.Leaving(model, scores, np.zeros((2, 60, 3)), step, people, plain, "now")
    whom = given_away.People.of(people, now.part[:, :, :1])
    in_units = np.array([half]).T / u.x_scale[:, None] / 0.01
    given_away.remember(site.folder, "a" * 64, {"clinic": (whom, told(columns, weights=in_units, centres=u.x_mean))})
    with pytest.raises(PrivacyError, match="one of the site's own columns"):
        prediction_gate.judge(site, rogue.study, now, "clinic", [0])
    # The other way round: an earlier fit of scores, and this one of plain values.
    given_away.remember(site.folder, "a" * 64, {"lab": (whom, told(columns, weights=in_units, centres=u.x_mean, scores="then"))})
    later = replace(now, columns=plain, plain=None, scores="")
    with pytest.raises(PrivacyError, match="is missing"):
        prediction_gate.judge(site, rogue.study, later, "lab", [0])
    knots = (u.x_mean[1] + np.array([-100.0, 100.0]), u.x_mean[1] + np.array([-50.0, 50.0]))
    (site.folder / "studies" / "then").mkdir()
    (site.folder / "studies" / "then" / "scores.secret").write_bytes(Scores({columns[1]: knots}).to_bytes())
    with pytest.raises(PrivacyError, match="one of the site's own columns"):
        prediction_gate.judge(site, rogue.study, later, "lab", [0])


def test_bits_are_counted_for_each_person(tmp_path: Path) -> None:
    """One fit about many groups of people, one after the other, and about one of the groups twice, as values were corrected."""
    rng = np.random.default_rng(0)
    groups = [np.arange(20 * k, 20 * k + 20, dtype=np.uint64) for k in range(12)]
    columns = tuple(f"mri_{j}" for j in range(6))
    for people in [*groups, groups[3]]:
        numbers = given_away.People.of(people, rng.standard_normal((2, 20, 1)))
        given_away.remember(tmp_path, "a" * 64, {"lab": (numbers, told(columns))})
    steps = np.full((2, 1), 0.01)
    for about, bits_told in ((groups[2], 17.4), (groups[3], 34.8), (np.concatenate(groups), 34.8), (groups[0] + 1000, 0.0)):
        whom = given_away.People.of(about, rng.standard_normal((2, len(about), 1)))
        before = given_away.told_before(tmp_path, "b" * 64, whom, "lab", steps)
        assert before.bits == pytest.approx(bits_told)
        assert len(before.told) == (bits_told > 0)  # the sums are the same ones


def test_what_was_told_is_not_forgotten_with_its_folder(rogue: RogueServer) -> None:
    refuse_one_column(rogue)
    rogue.deliver(rogue.forged(asking_for(SUM, SUM)))
    people, site = new_subjects()["mri"], rogue.sites["mri"]
    assert not rogue.ask("mri", "predict", JUNE, people).refused
    assert site.folder is not None
    (site.folder / given_away.FOLDER).rename(site.folder / "elsewhere")
    assert rogue.ask("mri", "predict", {"request": b"july"}, people).words in FIXED_WORDS
    assert "restore the folder" in rogue.reason
    (site.folder / "elsewhere").rename(site.folder / given_away.FOLDER)
    assert not rogue.ask("mri", "predict", {"request": b"july"}, people).refused


def test_the_sites_choice_is_checked_and_noted(rogue: RogueServer) -> None:
    for wrong in ({"digits": 13}, {"digits": 0}, {"digits": 2.5}, {"max_bits": 0}, {"max_bits": "many"}, {"max_bit": 3}):
        with pytest.raises(InputError, match="max_bits above 0"):
            PredictRules.of(wrong)
    assert PredictRules().loosened == {}
    assert PredictRules(digits=1, max_bits=50).loosened == {}
    assert PredictRules(digits=3, max_bits=500).loosened == {"digits": 3, "max_bits": 500}
    rogue.deliver()
    people = new_subjects()
    for name in NAMES:
        rogue.sites[name].predict_rules = PredictRules(one_column="allow")
        assert not rogue.ask(name, "predict", JUNE, people[name]).refused
    told = noted(rogue)
    assert told["owners"]["clinic"]["bits"] == pytest.approx(4 * bits(2), abs=0.1)
    assert told["owners"]["lab"]["bits"] == pytest.approx(2 * bits(2), abs=0.1)
    assert "one_column" in told["owners"]["clinic"]  # one strong feature
