"""Attacks on joint prediction: by the server, by whoever alters sums, by the owner of a response (security, row 1)."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer, best_match, new_subjects
from tests.federation import NAMES

from intarsia.server.study import protocol
from intarsia.site import given_away, joint_prediction
from intarsia.site.masks import from_fixed
from intarsia.site.predict_rules import PredictRules
from intarsia.site.prediction_gate import Leaving
from intarsia.site.run_store import RunStore
from intarsia.wire.coefficients import bind
from intarsia.wire.prediction import PredictionPart, PredictionSum, add_parts
from intarsia.wire.study import Study

JUNE = {"request": b"june"}


@pytest.fixture
def rogue(tmp_path: Path) -> RogueServer:
    return RogueServer.after_fit(tmp_path)


def parts(rogue: RogueServer, new, payload=JUNE) -> dict[str, PredictionPart]:  # type: ignore[no-untyped-def]
    told = {name: rogue.ask(name, "predict", payload, new[name]) for name in NAMES}
    assert not any(t.refused for t in told.values()), [rogue.log(name) for name in NAMES]
    return {name: PredictionPart.from_bytes(t.message) for name, t in told.items()}


def unit(rogue: RogueServer) -> dict[str, dict[str, object]]:
    """Unit matrices as coefficients: a part is then a column of the site."""
    return {name: {"mean": np.eye(6)[:, :3]} for name in NAMES}


def test_an_owner_who_does_not_exist_gets_nothing(rogue: RogueServer) -> None:
    ghost = {name: {"response_sites": ("ghost", "ghost", "ghost"), "sigma2_mean": np.empty(0), "draws": None, "sigma2": None}
             for name in NAMES}  # fmt: skip
    told = rogue.deliver(rogue.forged(ghost))
    assert {t.words for t in told.values()} <= FIXED_WORDS
    new = new_subjects()
    assert all(rogue.ask(name, "predict", JUNE, new[name]).refused for name in NAMES)


def test_another_owner_than_the_study_names_is_refused(rogue: RogueServer) -> None:
    swapped = {"mri": {"response_sites": ("lab", "lab", "clinic")}}
    assert rogue.deliver(rogue.forged(swapped))["mri"].refused


def test_unit_matrices_are_refused_as_one_column(rogue: RogueServer) -> None:
    refuse_one_column(rogue)
    rogue.deliver(rogue.forged(unit(rogue)))
    new = new_subjects()
    told = {name: rogue.ask(name, "predict", JUNE, new[name]) for name in NAMES}
    assert {t.words for t in told.values()} <= FIXED_WORDS
    said = rogue.log("mri")[-1]["text"]
    assert "one of the site's own columns" in said
    assert ": mri_0, mri_1. If" in said  # to the site's own operator: the columns of the clinic's responses, and no other


def test_a_level_is_refused_by_the_name_of_its_column() -> None:
    """A level is a value of the table; the refusal names the column alone, and every column once."""
    labels = ("age", "centre=north", "centre=south", *(f"x{k}" for k in range(9)))
    units = SimpleNamespace(features=labels, covariates=())
    model: Any = SimpleNamespace(units=units)
    empty = np.empty((0, 0))
    column_of = {"centre=north": "centre", "centre=south": "centre"}
    leaving = Leaving(model, empty, empty, empty, None, column_of=column_of)
    near = np.array([label.startswith("centre") for label in labels])
    assert leaving.named(near) == "centre"
    assert leaving.named(~near) == "age, x0, x1, x2, x3, x4, x5, x6 and 2 more"


def test_values_in_other_units_are_refused_by_the_columns_name(rogue: RogueServer) -> None:
    rogue.deliver(rogue.kept("coefficients"))
    new = new_subjects()["mri"].assign(mri_3=1e6)
    told = rogue.ask("mri", "predict", JUNE, new)
    assert told.refused
    assert told.words in FIXED_WORDS
    said = rogue.log("mri")[-1]["text"]
    assert "from the study's mean in mri_3. Check" in said


def test_too_few_subjects_for_the_sums_are_said(rogue: RogueServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No column is named where too few people tell nothing about any; how many are enough is."""
    monkeypatch.setattr(given_away, "SUBJECTS_PER_SUM", 11)
    refuse_one_column(rogue)
    new = new_subjects(20)["mri"]
    rogue.deliver(rogue.forged(unit(rogue)))
    assert rogue.ask("mri", "predict", JUNE, new).refused
    said = rogue.log("mri")[-1]["text"]
    assert "20 subjects are too few" in said
    assert "Predict for" in said
    assert "mri_" not in said


def asking_for(*weights: list[float]) -> dict[str, dict[str, object]]:
    """The imaging centre alone matters, and tells the clinic, which helps the server, these sums, without a spread."""
    mean = np.zeros((6, 3))
    mean[:, : len(weights)] = np.array(weights).T
    found = {}
    for name in NAMES:
        own = mean if name == "mri" else np.zeros((6, 3))
        found[name] = {"mean": own, "to_predict": np.zeros((6, 3)), "draws": np.repeat(own[None], 120, axis=0)}
    return found


SUM, DIFFERENCE, OTHERS = [1.0, 1.0, 0, 0, 0, 0], [1.0, -1.0, 0, 0, 0, 0], [0, 0, 1.0, 1.0, 0, 0]


def refuse_one_column(rogue: RogueServer) -> None:
    for site in rogue.sites.values():
        site.predict_rules = PredictRules()


NEARLY = [1.0, 1.0001, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("second", "digits", "refused"), [(DIFFERENCE, 2, True), (NEARLY, 12, True), (NEARLY, 2, False), (OTHERS, 2, False)]
)
def test_two_sums_that_give_a_column_together_are_refused(
    rogue: RogueServer, second: list[float], digits: int, refused: bool
) -> None:
    """x₁ + x₂ for one response and x₁ − x₂ for another: neither is nearly a column, both together are two of them.

    A difference that the rounding swallows tells nothing.
    """
    rogue.sites["mri"].predict_rules = PredictRules(digits=digits, max_bits=1000)
    rogue.deliver(rogue.forged(asking_for(SUM, second)))
    told = rogue.ask("mri", "predict", JUNE, new_subjects()["mri"])
    assert told.refused == refused
    assert not refused or "one of the site's own columns" in rogue.log("mri")[-1]["text"]


def test_the_spread_of_one_sum_counts_as_that_sum(rogue: RogueServer) -> None:
    """|x₁ − x₂| beside x₁ + x₂ leaves two people's order open, and nothing else."""
    refuse_one_column(rogue)
    changes = asking_for(SUM, SUM)
    changes["mri"]["draws"] += np.linspace(-1, 1, 120)[:, None, None] * np.array(DIFFERENCE)[:, None]
    rogue.deliver(rogue.forged(changes))
    assert rogue.ask("mri", "predict", JUNE, new_subjects()["mri"]).words in FIXED_WORDS
    assert "one of the site's own columns" in rogue.log("mri")[-1]["text"]


def test_what_two_runs_tell_of_the_same_people_is_taken_together(tmp_path: Path) -> None:
    """The same two sums, one in each run, of a server that writes study files on and on; the same people in both tables."""
    rogue = RogueServer.after_fit(tmp_path)
    refuse_one_column(rogue)
    rogue.deliver(rogue.forged(asking_for(SUM, SUM)))
    people = new_subjects()["mri"]
    assert not rogue.ask("mri", "predict", JUNE, people).refused
    again = rogue.study.again()
    second = RogueServer(list(rogue.sites.values()), replace(again, sketch=replace(again.sketch, m=20)), tmp_path / "second")
    protocol.collect(second.folder, second.carry)
    of_this_run = {name: replace(c, study_hash=second.study.hash) for name, c in rogue.coefficients().items()}
    changed = {name: replace(c, **asking_for(DIFFERENCE, DIFFERENCE)[name]) for name, c in of_this_run.items()}
    second.deliver({name: message.to_bytes() for name, message in bind(changed).items()})
    assert second.ask("mri", "predict", JUNE, people).words in FIXED_WORDS
    assert "earlier fits" in second.log("mri")[-1]["text"]
    others = people.assign(id="M" + people["id"])
    assert not second.ask("mri", "predict", {"request": b"others"}, others).refused


def test_an_owner_under_another_name_is_the_same_owner(rogue: RogueServer) -> None:
    """Whoever writes study files can call the clinic otherwise; its pinned key it cannot change without the words changing."""
    plan = rogue.study.to_dict()
    plan["site"][0]["name"] = "hospital"
    renamed = Study.from_dict(plan)
    assert joint_prediction._party(renamed, "hospital") == joint_prediction._party(rogue.study, "clinic")
    assert joint_prediction._party(renamed, "lab") != joint_prediction._party(renamed, "hospital")


def test_so_many_sums_of_so_few_people_cannot_be_judged() -> None:
    """Chance explains columns where sums are as many as people."""
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((60, 400))
    assert given_away.shares(columns, rng.standard_normal((60, 20))).max() < 0.8
    assert given_away.shares(columns, rng.standard_normal((60, 21))).max() == 1.0
    assert given_away.shares(columns, 10 * columns[:, :1]).max() > 0.999  # ten steps of the rounding are enough
    assert given_away.shares(columns, 0.01 * columns[:, :1]).max() < 0.01  # below the last digit that leaves


def test_a_server_alone_learns_nothing_even_where_sites_allow_one_column(rogue: RogueServer) -> None:
    rogue.deliver(rogue.forged(unit(rogue)))
    new = new_subjects()
    found = parts(rogue, new)
    truth = rogue.truth(new)
    everything = [from_fixed(p, 40)[0].T for part in found.values() for p in part.parts.values()]
    everything += [from_fixed(add_parts(found, owner).total, 40)[0].T for owner in ("clinic", "lab")]
    chance = best_match(np.random.default_rng(0).standard_normal((len(everything), 30)), truth)
    assert max(best_match(guess, truth) for guess in everything) < max(0.8, chance + 0.2)
    # The same guess from unmasked values is certain: the test can fail.
    assert best_match(rogue.truth(new)[:, 7], truth) > 0.999


def test_coefficients_are_taken_once(rogue: RogueServer) -> None:
    receipts = rogue.deliver()
    assert not any(t.refused for t in receipts.values())
    assert all(t.refused for t in rogue.deliver(rogue.forged(unit(rogue))).values())
    assert rogue.deliver() == receipts  # the same again: the same receipt, byte for byte


def test_one_name_never_masks_two_things(rogue: RogueServer) -> None:
    rogue.deliver()
    new = new_subjects()
    first = rogue.ask("mri", "predict", JUNE, new["mri"])
    assert rogue.ask("mri", "predict", JUNE, new["mri"]).message == first.message
    assert rogue.ask("mri", "predict", JUNE, new["mri"].assign(mri_0=0.5)).refused
    assert rogue.ask("mri", "predict", JUNE, new_subjects(seed=12)["mri"]).refused


def two_fits(rogue: RogueServer) -> tuple[dict[str, PredictionPart], dict[str, bytes]]:
    """Different fits to different sites; the server then makes the digests look alike."""
    a, b = rogue.kept("coefficients"), rogue.forged(unit(rogue))
    rogue.deliver({"clinic": a["clinic"], "mri": b["mri"], "lab": b["lab"]})
    return parts(rogue, new_subjects()), a


def test_parts_of_two_fits_are_not_added(rogue: RogueServer) -> None:
    found, _ = two_fits(rogue)
    with pytest.raises(Exception, match="from different fits"):
        add_parts(found, "clinic")


def test_a_forged_digest_does_not_help(rogue: RogueServer) -> None:
    found, _ = two_fits(rogue)
    mine = found["clinic"]
    same = {name: replace(part, fit_digest=mine.fit_digest, digest=mine.digest) for name, part in found.items()}
    told = rogue.ask("clinic", "finish", JUNE | {"sum": add_parts(same, "clinic").to_bytes()}, new_subjects()["clinic"])
    assert told.words in FIXED_WORDS
    assert "altered on its way" in rogue.log("clinic")[-1]["text"]


def test_without_the_binding_the_masks_would_repeat(rogue: RogueServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: masks from the request's name alone. Two fits under one name then give the site's column away."""
    monkeypatch.setattr(joint_prediction.Request, "digest", lambda self: "0" * 64)
    rogue.deliver()
    new = new_subjects()
    first = PredictionPart.from_bytes(rogue.ask("mri", "predict", JUNE, new["mri"]).message)
    store = rogue.sites["mri"].run_store(rogue.study)
    honest = rogue.coefficients()["mri"].mean
    for name in ("coefficients", "request-june"):
        store.forget(name)
    rogue.deliver(rogue.forged({"mri": {"mean": honest + np.eye(6)[:, :3]}}))
    second = PredictionPart.from_bytes(rogue.ask("mri", "predict", JUNE, new["mri"]).message)
    column = from_fixed(second.parts["clinic"] - first.parts["clinic"], 40)[0, :, 0]
    assert best_match(column, rogue.truth(new)) > 0.999


def test_with_the_binding_the_same_attack_fails(rogue: RogueServer) -> None:
    """Even a site that lost its own records (a restored backup) masks another fit differently."""
    rogue.deliver()
    new = new_subjects()
    first = PredictionPart.from_bytes(rogue.ask("mri", "predict", JUNE, new["mri"]).message)
    for name in ("coefficients", "request-june"):
        rogue.sites["mri"].run_store(rogue.study).forget(name)
    honest = rogue.coefficients()["mri"].mean
    rogue.deliver(rogue.forged({"mri": {"mean": honest + np.eye(6)[:, :3]}}))
    second = PredictionPart.from_bytes(rogue.ask("mri", "predict", JUNE, new["mri"]).message)
    column = from_fixed(second.parts["clinic"] - first.parts["clinic"], 40)[0, :, 0]
    assert best_match(column, rogue.truth(new)) < 0.9


def test_no_refusal_tells_how_large_a_value_is(rogue: RogueServer) -> None:
    """Coefficients so large that a part overflows for large values only: the refusal would be an answer about them."""
    unit = np.zeros((6, 3))
    unit[:, :2] = [[2.0e6], [1.0], [1.0], [0.0], [0.0], [0.0]]  # 2⁶¹ is reached where the first column is one sd off its mean
    rogue.deliver(rogue.forged({"mri": {"mean": unit}}))
    small = new_subjects()
    large = small["mri"].assign(mri_0=10 + 2 * np.where(np.arange(30) == 4, 3.0, 0.1))
    assert not rogue.ask("mri", "predict", JUNE, small["mri"].assign(mri_0=10.1)).refused
    assert not rogue.ask("mri", "predict", {"request": b"july"}, large).refused
    told = rogue.ask("mri", "predict", {"request": b"august"}, small["mri"].assign(mri_0=1e9))
    assert told.words in FIXED_WORDS  # whatever the coefficients are: the operator gave a table in other units
    assert "other units" in rogue.log("mri")[-1]["text"]


def test_coefficients_that_arrive_twice_at_one_moment_are_taken_once(rogue: RogueServer) -> None:
    """Two jobs of the engine at one site: neither finds coefficients yet, and both write theirs."""
    site, honest = rogue.sites["mri"], rogue.kept("coefficients")["mri"]
    late = RunStore(site.run_store(rogue.study).folder)
    assert late.get("coefficients") is None
    late.get = lambda name: None  # type: ignore[method-assign] # it looked before the other wrote
    assert not rogue.ask("mri", "receive", {"coefficients": honest}).refused
    forged = rogue.forged({"mri": {"mean": np.eye(6)[:, :3]}})["mri"]
    assert late.put("coefficients", forged) == honest
    assert site.run_store(rogue.study).get("coefficients") == honest


def test_few_subjects_are_refused(rogue: RogueServer) -> None:
    rogue.deliver()
    new = new_subjects(19)
    assert rogue.ask("mri", "predict", JUNE, new["mri"]).words in FIXED_WORDS
    assert "19 subjects" in rogue.log("mri")[-1]["text"]


@pytest.mark.parametrize("spoil", ["add", "swap rows", "drop a part", "other request", "part as sum"])
def test_an_altered_sum_is_refused_by_the_owner(rogue: RogueServer, spoil: str) -> None:
    rogue.deliver()
    new = new_subjects()
    found = parts(rogue, new)
    good = add_parts(found, "clinic")
    total = good.total.copy()
    raw = good.to_bytes()
    if spoil == "add":
        total[0, 3, 0] += np.uint64(1 << 40)
    elif spoil == "swap rows":
        total[:, [0, 1]] = total[:, [1, 0]]
    elif spoil == "drop a part":
        total = found["mri"].parts["clinic"]
    if spoil == "other request":
        raw = replace(good, request="july").to_bytes()
    elif spoil == "part as sum":
        raw = found["mri"].to_bytes()
    else:
        raw = replace(good, total=total).to_bytes()
    told = rogue.ask("clinic", "finish", JUNE | {"sum": raw}, new["clinic"])
    assert told.words in FIXED_WORDS
    assert not rogue.ask("clinic", "finish", JUNE | {"sum": good.to_bytes()}, new["clinic"]).refused


def test_no_draw_leaves_a_site_in_a_prediction(rogue: RogueServer) -> None:
    """Mean, spread, and their two tags: with 120 draws kept at the sites, four slices cross."""
    rogue.deliver()
    found = parts(rogue, new_subjects())
    assert {p.shape[0] for part in found.values() for p in part.parts.values()} == {4}


def test_an_owner_with_the_server_cannot_solve_for_another_sites_rows(rogue: RogueServer) -> None:
    """The clinic lends the server its masks. What they have of each person is one mean and one spread per response of the
    clinic's, summed over the other sites: 2 × 2 numbers about 12 unknowns."""
    rogue.deliver()
    new = new_subjects(300)
    found = parts(rogue, new)
    clinic = rogue.sites["clinic"]
    model, total = clinic.model(rogue.study), PredictionSum.from_bytes(add_parts(found, "clinic").to_bytes())
    subjects = joint_prediction._read(clinic, rogue.study, model, "june", new["clinic"], None)
    asked = joint_prediction._request(rogue.study, model, "june", subjects)
    shape = (2, 300, 2)
    others = joint_prediction._others(clinic, rogue.study, asked, total, shape)
    assert others.shape == shape
    # The best linear guess of each column of the imaging centre from all the clinic was told, out of sample.
    A = np.column_stack([np.ones(300), *others.transpose(0, 2, 1).reshape(-1, 300)])
    truth = rogue.truth(new)[:, 6:12]
    fit, test = slice(0, 200), slice(200, 300)
    guess = A[test] @ np.linalg.lstsq(A[fit], truth[fit], rcond=None)[0]
    error = ((guess - truth[test]) ** 2).sum(axis=0) / ((truth[test] - truth[fit].mean(axis=0)) ** 2).sum(axis=0)
    # One strong column of mri is most of its part and is known to leak; the rest are not known.
    assert np.sort(error)[1:].min() > 0.3


def test_the_table_of_new_subjects_belongs_to_one_study(tmp_path: Path) -> None:
    from intarsia.errors import InputError
    from intarsia.site.site_folder import SiteFolder

    folder = SiteFolder.create(tmp_path / "clinic", "clinic")
    rogue = RogueServer.before(tmp_path / "rest")
    other = rogue.study.again()
    where = tmp_path / "clinic" / "predict" / rogue.study.folder_name
    where.mkdir(parents=True)
    (where / "june.csv").write_text("id\nN1\n")
    assert folder.new_subjects(rogue.study, "june").endswith("june.csv")
    with pytest.raises(InputError, match="found 0"):
        folder.new_subjects(other, "june")
    for name in ("../june", "june.csv/../june", ""):
        with pytest.raises(InputError, match="name of a prediction"):
            folder.new_subjects(rogue.study, name)
