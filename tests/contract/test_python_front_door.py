"""Python's front door: everything is told of all sites at once, what was begun goes on, and the words are public."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import intarsia
from intarsia.carriers.go_on import beside
from intarsia.errors import InputError, IntarsiaError, PrivacyError, StudyError
from intarsia.server.study.folder import StudyFolder

N = 300
FIT = {"draws": 40, "warmup": 40, "chains": 2, "thin": 1, "seed": 3}


def tables(n: int = N) -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(0)
    people = [f"P{i:03d}" for i in range(n)]
    dose, weight = rng.normal(5, 2, n), rng.normal(3.4, 0.5, n)
    weight[7] = 3400  # in grams, among kilograms
    return {
        "ward": {"id": people, "dose": dose, "weight": weight, "effect": dose + rng.normal(size=n)},
        "lab": {"id": people[::-1], **{f"marker{j}": rng.normal(size=n) for j in range(4)}},
    }


def sites(found: dict[str, dict[str, Any]] | None = None, **more: Any) -> list[intarsia.Site]:
    found = found or tables()
    ward = intarsia.Site("ward", found["ward"], id="id", features=["dose"], responses=["effect"], **more)
    return [ward, intarsia.Site("lab", found["lab"], id="id")]


def run(parties: list[intarsia.Site], folder: Path | None, **how: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return intarsia.fit(parties, folder=folder, progress=False, **how)


def test_a_wrong_column_is_told_where_it_is_named() -> None:
    with pytest.raises(InputError, match=r"Site 'ward': No column 'patent' for the role id; did you mean 'patient'\?"):
        intarsia.Site("ward", {"patient": [1, 2], "dose": [0.5, 1.5]}, id="patent")
    with pytest.raises(InputError, match="No column 'fev' for the role response"):
        intarsia.Site("ward", {"patient": [1, 2], "dose": [0.5, 1.5]}, id="patient", responses=["fev"])
    with pytest.raises(InputError, match=r"There is no file .*nowhere\.csv"):
        intarsia.Site("ward", "nowhere.csv", id="patient").table()


def test_what_is_wrong_at_every_site_is_told_at_once() -> None:
    found = tables()
    found["ward"]["id"] = ["P000"] * N
    found["lab"]["flat"] = [1.0] * N
    del found["ward"]["weight"]
    said = intarsia.check(sites(found), m=40)
    assert not said.ok
    text = "\n".join(said.refusals)
    assert "Site 'ward': 299 rows repeat the id of another row" in text
    assert "Site 'lab': constant: flat has one value only" in text
    assert repr(said).endswith("\n".join(f"- {refusal}" for refusal in said.refusals))
    found["ward"]["dose"] = ["much", "little", "none"] * (N // 3)
    found["lab"]["marker1"] = [None, *found["lab"]["marker1"][1:]]
    found["ward"]["effect"] = [None, *found["ward"]["effect"][1:]]
    both = "\n".join(intarsia.check(sites(found), m=40).refusals)
    assert "Site 'ward'" in both
    assert "Site 'lab'" in both


def test_a_column_in_other_units_shows_in_its_range() -> None:
    found = tables()
    ward = intarsia.Site("ward", found["ward"], id="id", features=["dose", "weight"], responses=["effect"])
    said = intarsia.check([ward, sites(found)[1]], m=40)
    assert re.search(r"weight; [\d.]+ to 3400, median 3\.\d+", repr(said))
    assert re.search(r"<td [^>]*>[\d.]+ to 3400, median 3\.\d+</td>", said._repr_html_())
    assert not said.ok  # one person carries the column
    assert "dominant" in "\n".join(said.refusals)


def test_a_study_that_can_run_is_said_to_and_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parties = sites()
    said = intarsia.check(parties, m=40)
    assert said.ok, said
    assert said.headline == "300 subjects at all sites (ward 300, lab 300); m = 40 (m/n = 0.13); 5 features, 1 response"
    assert "sd of the response per sd of the feature" in said.could_find
    assert "Nothing stands in the way" in repr(said)
    assert list(tmp_path.iterdir()) == []
    assert all(site.identity is None and not site._stores for site in parties)
    assert intarsia.check(parties, kind="gram").ok
    assert all(site.identity is None for site in parties)


def test_too_large_a_sketch_and_the_largest_that_passes() -> None:
    said = intarsia.check(sites(), m=200)
    assert "ratio: Σm/n = 0.667" in said.refusals[0]
    passes = re.search(r"m = (\d+) is the largest that would pass", "\n".join(said.refusals))
    assert passes is not None
    assert 60 <= int(passes[1]) <= 75  # a quarter of 300
    assert intarsia.check(sites(), m=int(passes[1])).ok
    assert "m must be well below n" in "\n".join(intarsia.check(sites(), m=300).refusals)


def test_sites_with_other_people_are_told_whom_they_share() -> None:
    found = tables()
    found["lab"] = {name: values[:200] for name, values in found["lab"].items()}
    said = intarsia.check(sites(found), m=40)
    assert said.common == 200
    assert 'alignment={"mode": "intersect"}' in said.refusals[0]
    parties = sites(found)
    assert intarsia.check(parties, intarsia.study_for(parties, 40, alignment={"mode": "intersect"})).ok
    found["lab"]["id"] = [f"p-{i}" for i in range(200)]
    assert "No subject is at all sites" in intarsia.check(sites(found), m=40).refusals[0]


def test_a_fit_refused_at_two_sites_names_both() -> None:
    found = tables()
    found["ward"]["dose"] = np.r_[1e6, found["ward"]["dose"][1:]]
    found["lab"]["flat"] = np.r_[1.0, np.zeros(N - 1)]
    with pytest.raises(PrivacyError) as refused:
        run(sites(found), None, study=None, m=40)
    assert "2 sites cannot take part" in str(refused.value)
    assert "Site 'ward'" in str(refused.value)
    assert "Site 'lab'" in str(refused.value)


@pytest.mark.parametrize("stops", ["before the fit", "in the fit", "after it"])
def test_fit_goes_on_where_it_stopped(stops: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New objects, as another process has them; the first run is cut off, and the second sends and fits nothing twice."""
    from intarsia.carriers import in_process

    folder = tmp_path / "study"
    study = intarsia.study_for(sites(), 40, fit=FIT)
    where = {"before the fit": "run_fit", "in the fit": "warn_unless", "after it": ""}[stops]
    with monkeypatch.context() as cut:
        if where:
            cut.setattr(in_process, where, _stop)
            with pytest.raises(KeyboardInterrupt):
                run(sites(), folder, study=study)
        else:
            run(sites(), folder, study=study)
    sent = {path: path.read_bytes() for path in sorted((folder / "sketch").glob("*.sketch"))}
    begun = StudyFolder.open(folder).study
    again = intarsia.study_for(sites(), 40, fit=FIT)
    assert again.run != begun.run
    result = run(sites(), folder, study=again)
    assert len(sent) == 2
    assert {path: path.read_bytes() for path in sent} == sent
    assert result.study.hash == begun.hash
    assert len(result.table()) == 5
    assert not list(folder.rglob("*.secret"))  # the key lies beside the server's folder, never in it
    assert (beside(folder) / "ward").is_dir()


def _stop(*_args: Any, **_more: Any) -> None:
    raise KeyboardInterrupt


def test_exact_products_go_on_too(tmp_path: Path) -> None:
    """The sites' keys are made anew with every study_for: the second run takes those that the first one kept."""
    parties, others = sites(), sites()
    first = run(parties, tmp_path / "study", study=intarsia.study_for(parties, kind="gram", fit=FIT))
    second = run(others, tmp_path / "study", study=intarsia.study_for(others, kind="gram", fit=FIT))
    assert first.study.hash == second.study.hash


def test_other_data_do_not_go_on(tmp_path: Path) -> None:
    found = tables()
    study = intarsia.study_for(sites(found), 40, fit=FIT)
    run(sites(found), tmp_path / "study", study=study)
    found["lab"]["marker2"][5] += 1e-9
    with pytest.raises(StudyError, match="The table of site 'lab' is not the one with which the study in this folder began"):
        run(sites(found), tmp_path / "study", study=study)


def test_a_run_that_sent_nothing_does_not_block_its_folder(tmp_path: Path) -> None:
    folder, found = tmp_path / "study", tables()
    found["ward"]["dose"] = np.r_[1e6, found["ward"]["dose"][1:]]
    with pytest.raises(PrivacyError):
        run(sites(found), folder, m=40)
    (folder / "mine.txt").write_text("notes")
    found = tables()
    result = run(sites(found), folder, study=intarsia.study_for(sites(found), 50, id="other", fit=FIT))
    assert result.study.id == "other"
    assert (folder / "mine.txt").read_text() == "notes"
    with pytest.raises(StudyError, match=r"holds another study or run.*It differs in sketch\.m\. Give another folder"):
        run(sites(found), folder, study=intarsia.study_for(sites(found), 60, id="other", fit=FIT))
    with pytest.raises(StudyError, match="It is a new run of it"):
        run(sites(found), folder, study=result.study.again())


def test_a_folder_that_other_parties_sent_into_is_never_cleared(tmp_path: Path) -> None:
    """A study by files whose sketches have come in part: only this process's own half-done runs give way."""
    parties = sites()
    study = intarsia.study_for(parties, 40)
    folder = StudyFolder.create(tmp_path / "study", study)
    (folder.path / "sketch").mkdir()
    (folder.path / "sketch" / "ward.sketch").write_bytes(b"theirs")
    with pytest.raises(StudyError, match="holds another study or run"):
        run(parties, folder.path, m=50)
    assert (folder.path / "sketch" / "ward.sketch").read_bytes() == b"theirs"


def test_a_result_shows_itself_in_a_notebook() -> None:
    found = tables()
    found["lab"]["<b>marker</b>"] = found["ward"]["dose"][::-1] + np.random.default_rng(2).normal(size=N)
    parties = sites(found)
    result = run(parties, None, study=intarsia.study_for(parties, 60, fit={**FIT, "draws": 150, "warmup": 150}))
    shown = result._repr_html_()
    assert "<table>" in shown or "No feature was selected" in shown
    assert ("✓ Converged" in shown) == result.converged
    assert "<b>" not in shown
    assert "<b>" not in intarsia.check(parties, m=60)._repr_html_()


def test_docs_import_public_names_only() -> None:
    """What a page tells to import from `intarsia` is public; deeper modules are for pages about the code."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    wrong = []
    for page in pages:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            for module, names in re.findall(r"^from (intarsia[\w.]*) import ([\w, ]+)", block, re.M):
                for name in (one.strip() for one in names.split(",")):
                    if module == "intarsia" and (name in intarsia.__all__ or name == "report"):
                        continue
                    wrong.append(f"{page.name}: from {module} import {name}")
    assert [line for line in wrong if line not in DEEPER] == []
    assert set(DEEPER) <= set(wrong), "a name that became public needs no exception"


# Simulated data for examples, and the pieces of a sketch for those who build a store of their own.
DEEPER = {
    "howto-neuroimaging.md: from intarsia.demo.connectome import simulate_connectome",
    "sketch.md: from intarsia.site.sketch.sketch import finish",
    "sketch.md: from intarsia.site.sketch.sketch import partial",
    "criticism.md: from intarsia.server.assess.leave_one_out import to_arviz",
    "criticism.md: from intarsia.server.assess.leave_one_out import Rows",
    "criticism.md: from intarsia.server.assess.criticism import k_fold",
    "criticism.md: from intarsia.server.assess.criticism import split_half",
    "selection.md: from intarsia.server.assess.findings import select",
}


def test_errors_of_the_front_door_are_ours() -> None:
    assert issubclass(StudyError, IntarsiaError)
