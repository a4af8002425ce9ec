"""study.toml: what is wrong is said with its line; the hash is of the content."""

import base64
import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.cli import main
from intarsia.errors import StudyError
from intarsia.server.study.folder import dump
from intarsia.site.key import SketchKey
from intarsia.site.site import Site
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.next_run import next_run, without_site
from intarsia.wire.study import Study
from intarsia.wire.study_parts import Delivery, Fit, Predict, Privacy

TEXT = """\
id = "liver"
run = "0123456789abcdef0123456789abcdef"

[sketch]
m = 30

[fit]
draws = 50

[[site]]
name = "clinic"
features = ["age", "lab_*"]
responses = ["alt"]

[[site]]
name = "mri"
features = ["*"]
"""


def test_the_keys_of_every_site_are_pinned_or_of_none(tmp_path: Path) -> None:
    """One site pinned and another not: the sites would fall back to a key file, and nobody's messages would be sealed."""
    keys = [base64.b64encode(bytes([k]) * 32).decode() for k in range(4)]
    one = TEXT.replace('name = "mri"', f'name = "mri"\nexchange_key = "{keys[0]}"\nsigning_key = "{keys[1]}"')
    with pytest.raises(StudyError, match="pins the keys of some sites and not those of clinic"):
        Site("clinic", key=SketchKey(bytes(32))).key(Study.parse(one))
    (tmp_path / "study.toml").write_text(one, encoding="utf-8")
    folder = SiteFolder.create(tmp_path / "clinic", "clinic")
    with pytest.raises(StudyError, match="or of none"):
        folder.accept(tmp_path / "study.toml")
    assert not list((tmp_path / "clinic").glob("accepted/*"))
    both = one.replace('name = "clinic"', f'name = "clinic"\nexchange_key = "{keys[2]}"\nsigning_key = "{keys[3]}"')
    Study.parse(both).check_pins()


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("m = 30", "m = 1", 5, "out of range"),
        ("m = 30", 'm = "many"', 5, "whole number"),
        ("m = 30", "m = 30\nknd = 'x'", 6, "did you mean 'kind'"),
        ("draws = 50", "draws = 0", 8, "out of range"),
        ('name = "mri"', 'name = "clinic"', 16, "same name"),
        ('name = "mri"', 'name = "m r i"', 16, "letters"),
        ('responses = ["alt"]', 'responses = ["alt", "alt"]', 13, "twice"),
        ('features = ["*"]', 'features = ["age"]', 17, "claimed by site 1"),
        ('features = ["*"]', 'features = ["*"]\nexchange_key = "AAAA"\nsigning_key = "AAAA"', 18, "32 bytes"),
        ('features = ["*"]', "", 15, "brings nothing"),
        ('run = "0123', 'run = "xyz', 2, "hexadecimal"),
        ("[fit]", "[fit]\nnoise = 'loud'", 8, "not one of"),
        ("[fit]", "[privacy]\nepsilon = 1.0\n[fit]", 8, "together"),
    ],
)
def test_every_complaint_names_its_line(old: str, new: str, line: int, words: str) -> None:
    changed = TEXT.replace(old, new, 1)
    assert changed != TEXT
    with pytest.raises(StudyError) as caught:
        Study.parse(changed)
    assert re.search(rf"line {line}\b[^\n]*{re.escape(words)}", str(caught.value)), str(caught.value)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(StudyError, match="2 problems"):
        Study.parse(TEXT.replace("m = 30", "m = 1").replace("draws = 50", "draws = -3"))


def test_syntax_errors_have_a_line_too() -> None:
    with pytest.raises(StudyError, match="line 5"):
        Study.parse(TEXT.replace("m = 30", "m = = 30"))


def test_hash_is_of_the_content() -> None:
    study = Study.parse(TEXT)
    commented = TEXT.replace("m = 30", "m  =  30  # rows").replace('id = "liver"', '# hello\nid = "liver"')
    assert Study.parse(commented).hash == study.hash
    for old, new in (("m = 30", "m = 31"), ("[ef0", "[ef1"), ("age", "Age"), ("draws = 50", "draws = 51")):
        if old in TEXT:
            assert Study.parse(TEXT.replace(old, new)).hash != study.hash
    assert study.again().hash != study.hash


def test_a_study_survives_being_written() -> None:
    text = TEXT + "\n[privacy]\nepsilon = 1.0\ndelta = 1e-6\n[privacy.row_bound]\nclinic = 5.0\nmri = 4\n"
    text += '[privacy.centres.clinic]\n"alt" = 20.0\n"*" = 0.0\n'
    study = Study.parse(text.replace("m = 30", 'm = 30\nkind = "gaussian"'))
    again = Study.parse(dump(study))
    assert again == study
    assert again.hash == study.hash
    assert again.privacy.row_bound == {"clinic": 5.0, "mri": 4.0}


def test_differential_privacy_needs_its_constants() -> None:
    text = TEXT + "\n[privacy]\nepsilon = 1.0\ndelta = 1e-6\n"
    with pytest.raises(StudyError, match=r"(?s)gaussian.*row_bound for clinic, mri"):
        Study.parse(text)


def test_a_response_is_not_a_feature_by_pattern() -> None:
    entry = Study.parse(TEXT.replace('features = ["age", "lab_*"]', 'features = ["*"]')).site("clinic")
    assert entry.claims_response("alt")
    assert not entry.claims_feature("alt")
    assert entry.claims_feature("age")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(TEXT) - 1), st.text(max_size=6), st.integers(0, 12))
def test_no_text_breaks_the_parser(at: int, put: str, cut: int) -> None:
    # Any other exception fails the test.
    with contextlib.suppress(StudyError):
        Study.parse(TEXT[:at] + put + TEXT[at + cut :])


def with_sites(**tables):  # type: ignore[no-untyped-def]
    roster = [
        {"name": "clinic", "features": ["*"], "responses": ["alt"], "covariates": ["age", "centre=*"]},
        {"name": "mri", "features": ["roi*"]},
    ]
    return Study.from_dict({"id": "liver", "run": "ab" * 16, "sketch": {"m": 40}, "site": roster} | tables)


def test_a_column_has_one_role() -> None:
    entry = with_sites().site("clinic")
    assert entry.claims_covariate("centre=b")
    assert not entry.claims_feature("centre=b")
    assert not entry.claims_feature("age")
    assert not entry.claims_feature("alt")
    assert entry.claims_feature("bmi")
    assert entry.foreign(["bmi"], ["alt"], ["age"]) is None
    assert entry.foreign(["age"], [], []) == ("feature", ["age"])


def test_owners_are_named_not_matched() -> None:
    assert with_sites().owner("alt") == "clinic"
    wide = [{"name": "clinic", "features": ["*"], "responses": ["a*"]}, {"name": "mri", "features": ["roi*"]}]
    with pytest.raises(StudyError, match="without patterns"):
        with_sites(site=wide).owner("alt")


def test_limits_of_prediction_may_only_be_tightened() -> None:
    assert with_sites(predict={"min_subjects": 50}).predict.min_subjects == 50
    for loose in ({"min_subjects": 5}, {"max_column_share": 0.99}):
        with pytest.raises(StudyError, match="out of range"):
            with_sites(predict=loose)


def test_covariates_and_differential_privacy_exclude_each_other() -> None:
    with pytest.raises(StudyError, match="does not cover covariates"):
        with_sites(sketch={"m": 40, "kind": "gaussian"}, privacy=PRIVATE)


PRIVATE = {"epsilon": 1.0, "delta": 1e-6, "row_bound": {"clinic": 3.0, "mri": 3.0}}


@pytest.mark.parametrize(
    ("clinic", "words"),
    [
        ({"kinds": {"alt": "binary"}}, "does not cover kinds of responses"),
        ({"transform": "rank-normal"}, "does not cover transform"),
        ({}, None),
        ({"kinds": {"alt": "continuous"}}, None),  # a plain measurement, said in so many words
    ],
)
def test_what_differential_privacy_does_not_cover_is_refused(clinic: dict[str, object], words: str | None) -> None:
    roster = [{"name": "clinic", "features": ["bmi"], "responses": ["alt"]} | clinic, {"name": "mri", "features": ["roi*"]}]
    given = {"site": roster, "sketch": {"m": 40, "kind": "gaussian"}, "privacy": PRIVATE}
    if words is None:
        assert with_sites(**given).privacy.epsilon == 1.0
    else:
        with pytest.raises(StudyError, match=words):
            with_sites(**given)


def test_the_smallest_values_that_make_sense_are_taken() -> None:
    fit = {"draws": 1, "chains": 1, "thin": 1, "warmup": 0}
    study = with_sites(sketch={"m": 2}, fit=fit)
    assert (study.sketch.m, {name: getattr(study.fit, name) for name in fit}) == (2, fit)


def test_server_and_sites_call_a_study_s_folder_the_same() -> None:
    study = with_sites()
    assert study.folder_name == f"liver-{study.hash[:16]}"


def test_the_text_of_a_new_run_keeps_everything_else() -> None:
    text = '''# ours
schema = 1
id = "liver"   # short
run = "0123456789abcdef"  # once
reason = "join"
replaces = "''' + "ab" * 32 + '''"

[sketch]
m = 20   # rows
[[site]]
name = "clinic"
features = ["*"]
responses = ["alt"]
'''  # fmt: skip
    old = Study.parse(text)
    assert (old.reason, old.replaces) == ("join", "ab" * 32)
    changed, new = next_run(text, "study.toml", "correction", '[[site]]\nname = "lab"\nfeatures = ["g*"]\n')
    assert (new.replaces, new.reason, new.names) == (old.hash, "correction", ("clinic", "lab"))
    assert new.run != old.run
    assert "m = 20   # rows" in changed
    assert changed.count("replaces") == changed.count("reason") == 1
    again, _ = next_run(changed, "study.toml", "repeat")
    assert Study.parse(again).replaces == new.hash
    with pytest.raises(StudyError, match=r"run nonce of study\.toml was not found"):
        next_run(text.replace("run = ", '"run" = '), "study.toml", "repeat")


def test_a_run_without_a_site_forgets_its_constants() -> None:
    content = {
        "id": "liver", "run": "0" * 32, "sketch": {"m": 20, "kind": "gaussian"},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "row_bound": {"a": 1.0, "b": 2.0},
                    "centres": {"a": {"*": 0.0}, "b": {"*": 0.0}}, "scales": {"a": {"*": 1.0}, "b": {"*": 1.0}}},
        "site": [{"name": "a", "features": ["x*"], "responses": ["y"]}, {"name": "b", "features": ["g*"]}],
    }  # fmt: skip
    old = Study.from_dict(content)
    new = without_site(old, "b")
    assert (new.names, new.replaces, new.reason) == (("a",), old.hash, "leave")
    assert set(new.privacy.row_bound) == {"a"}
    with pytest.raises(StudyError, match="'c' is not on the roster"):
        without_site(old, "c")


@pytest.mark.parametrize(
    ("name", "value", "why"), [("replaces", "abc", "64 hexadecimal digits"), ("reason", "fun", "is not one of")]
)
def test_what_a_run_replaces_must_be_a_hash_and_have_a_reason_we_know(name: str, value: str, why: str) -> None:
    content = {"id": "a", "run": "0" * 16, "sketch": {"m": 20}, "site": [{"name": "a", "features": ["x"], "responses": ["y"]}]}
    with pytest.raises(StudyError, match=why):
        Study.from_dict(content | {name: value})


def test_a_new_study_file_has_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Above all no length of warm-up and thinning: with many features the sampler chooses other ones."""
    path = tmp_path / "study.toml"
    assert main(["study", "new", str(path), "--id", "liver", "--m", "30", "--site", "clinic", "--responses", "clinic=alt"]) == 0
    made = Study.load(path)
    assert (made.fit, made.deliver, made.predict, made.privacy) == (Fit(), Delivery(), Predict(), Privacy())
    capsys.readouterr()
