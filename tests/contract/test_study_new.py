"""`intarsia study new` with the outcomes and cohorts people have: kinds, unions and shared scales from the command line."""

import tomllib
from pathlib import Path

import pytest

from intarsia.cli import main
from intarsia.errors import InputError
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study
from intarsia.wire.words import to_words

BASE = ["--id", "lungs", "--m", "300", "--site", "clinic", "--site", "lab", "--responses", "clinic=asthma,months,stage"]


def new(path: Path, *words: str) -> int:
    return main(["study", "new", str(path), *BASE, *words])


def test_kinds_union_and_scales_stand_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.toml"
    kinds = ["asthma=binary", "months=time,horizon=24,unit=months", "stage=ordinal,order=none/mild/severe,scores=0/1/3"]
    options = [word for kind in kinds for word in ("--kind", kind)]
    assert new(path, *options, "--union", "--min-group", "60", "--share-scales") == 0
    study = Study.load(path)
    assert study.kinds == {
        "asthma": {"kind": "binary"},
        "months": {"kind": "time", "horizon": 24.0, "unit": "months"},
        "stage": {"kind": "ordinal", "order": ["none", "mild", "severe"], "scores": [0.0, 1.0, 3.0]},
    }
    assert (study.alignment.mode, study.alignment.min_group, study.deliver.share_scales) == ("union", 60, True)
    capsys.readouterr()
    assert main(["study", "check", str(path)]) == 0
    said = capsys.readouterr().out
    assert "Response months: a time to an event up to 24 months; its effects are told as difference in mean survival time" in said
    assert "Response stage: grades in order (none < mild < severe)" in said
    assert "grouped by the responses they have" in said


def test_how_long_chains_run_is_not_foretold_where_the_sampler_chooses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,000 draws are the budget of some problems only."""
    assert new(tmp_path / "study.toml") == 0
    assert "\n# draws = …" in (tmp_path / "study.toml").read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["study", "new", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "draws kept per chain, at most (default: the sampler's own choice)" in said


def test_without_them_the_file_is_as_ever(tmp_path: Path) -> None:
    assert new(tmp_path / "study.toml") == 0
    study = Study.load(tmp_path / "study.toml")
    assert (study.kinds, study.alignment.mode, study.deliver.share_scales) == ({}, "strict", False)


def test_how_long_chains_run_is_left_to_the_sampler_unless_asked_for(tmp_path: Path) -> None:
    """A number in the file would take the place of the sampler's own choice, which goes by the size of the problem."""
    assert new(tmp_path / "study.toml") == 0
    said = tomllib.loads((tmp_path / "study.toml").read_text(encoding="utf-8"))["fit"]
    assert not {"draws", "chains", "warmup", "thin"} & set(said)
    fit = Study.load(tmp_path / "study.toml").fit
    assert (fit.warmup, fit.thin) == (None, None)
    assert new(tmp_path / "short.toml", "--draws", "40", "--chains", "2", "--warmup", "30", "--thin", "3") == 0
    fit = Study.load(tmp_path / "short.toml").fit
    assert (fit.draws, fit.chains, fit.warmup, fit.thin) == (40, 2, 30, 3)


def test_a_site_may_bring_responses_alone(tmp_path: Path) -> None:
    """In a union such a site need not know a subject; with features = ["*"] it would have to."""
    path = tmp_path / "study.toml"
    assert new(path, "--union", "--features", "clinic=") == 0
    assert Study.load(path).site("clinic").features == ()
    assert Study.load(path).site("lab").features == ("*",)


WRONG = [
    (["--kind", "eczema=binary"], "'eczema', which is not among the responses"),
    (["--kind", "asthma"], "has no '='"),
    (["--kind", "asthma=logistic"], "--kind asthma: a response has a kind, one of"),
    (["--kind", "months=time,horizon=soon"], "--kind months: horizon of a response of kind 'time' must be a number above 0"),
    (["--kind", "months=time,24"], "options are written NAME=VALUE"),
    (["--kind", "months=time,event=died"], "said by the site that owns the response"),
    (["--min-group", "60"], "--min-group belongs to --union"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_what_cannot_be_is_refused_and_no_file_is_written(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new(tmp_path / "study.toml", *words) != 0
    assert said in capsys.readouterr().err
    assert not (tmp_path / "study.toml").exists()


def test_the_words_of_the_hash_follow_the_hash_also_where_a_run_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new(tmp_path / "study.toml") == 0
    assert main(["study", "again", str(tmp_path / "study.toml"), "-o", str(tmp_path / "study-2.toml")]) == 0
    capsys.readouterr()
    assert main(["study", "check", str(tmp_path / "study-2.toml")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("in words:")
    assert [len(line.split()) for line in said[1:3]] == [8, 8]
    assert said[3].startswith("It replaces the run with hash")


def test_a_site_that_accepts_hears_of_a_column_that_the_study_does_not_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before keys are agreed on and not at its sketch."""
    people = "\n".join(f"p{i},{i % 7},{i % 5},{i % 3}" for i in range(40))
    (tmp_path / "visits.csv").write_text(f"id,age,bmi,asthma\n{people}\n")
    init = ["site", "init", str(tmp_path / "clinic"), "--name", "clinic", "--table", str(tmp_path / "visits.csv"), "--id", "id"]
    assert main([*init, "--responses", "asthma", "--covariates", "age"]) == 0
    for listed in ((), ("--covariates", "clinic=age")):
        assert new(tmp_path / "study.toml", *listed) == 0
        words = to_words(bytes.fromhex(Study.load(tmp_path / "study.toml").hash))
        (tmp_path / "words.txt").write_text(f"study.toml {words}\n")
        capsys.readouterr()
        accept = ["site", "accept", str(tmp_path / "clinic"), str(tmp_path / "study.toml")]
        code = main([*accept, "--fingerprints", str(tmp_path / "words.txt")])
        last = capsys.readouterr().out.splitlines()[-1]
        assert ("would send nothing: study.toml does not list the covariate 'age'" in last) == (not listed)
        assert code == (0 if listed else InputError.exit_code)
        (tmp_path / "study.toml").unlink()


def test_a_column_of_categories_that_the_study_lists_by_its_name_is_told_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = "\n".join(f"p{i},{'fm'[i % 2]},{i % 5}" for i in range(40))
    (tmp_path / "visits.csv").write_text(f"id,sex,asthma\n{people}\n")
    init = ["site", "init", str(tmp_path / "clinic"), "--name", "clinic", "--table", str(tmp_path / "visits.csv"), "--id", "id"]
    assert main([*init, "--responses", "asthma", "--covariates", "sex"]) == 0
    site, table = SiteFolder.load(tmp_path / "clinic").site(), tmp_path / "study.toml"
    assert new(table, "--covariates", "clinic=sex") == 0
    with pytest.raises(InputError, match=r"each leaves as a column of its own, sex=…: list 'sex=\*' in study.toml"):
        site.claimed(Study.load(table), site.table())
    table.unlink()
    assert new(table, "--covariates", "clinic=sex=*") == 0
    site.claimed(Study.load(table), site.table())
