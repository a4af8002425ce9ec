"""`intarsia study new` with the outcomes and cohorts people have: kinds, unions and shared scales from the command line."""

from pathlib import Path

import pytest

from intarsia.cli import main
from intarsia.wire.study import Study

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


def test_without_them_the_file_is_as_ever(tmp_path: Path) -> None:
    assert new(tmp_path / "study.toml") == 0
    study = Study.load(tmp_path / "study.toml")
    assert (study.kinds, study.alignment.mode, study.deliver.share_scales) == ({}, "strict", False)


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
