"""Errors say what is wrong, not something near it: one case for each that once misled somebody."""

import errno
import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.federation import KEY, NAMES, frames, sites, study
from tests.reports import made_up

import intarsia
from intarsia.carriers.files import carrier, check_signature
from intarsia.cli import main
from intarsia.cli.accepted import is_called
from intarsia.cli.fit import found
from intarsia.errors import AlignmentError, FederationError, InputError, KeyFileError, MessageError, StudyError, of_the_system
from intarsia.report.gather import read_cards
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.study.folder import StudyFolder
from intarsia.site.align import report, tokenise
from intarsia.site.answer import REFUSED
from intarsia.site.data.table import Table
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.alignment import AlignmentReport, intersect, who_is_common
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.signed import FileSignature, KeyOffer
from intarsia.wire.study import Study


def signed(tmp_path: Path, change: Any = None, other: Study | None = None) -> tuple[Study, bytes, Path]:
    """A file of the clinic with its signature, made for `other` if given, altered by `change` after signing."""
    parties = sites(dict.fromkeys(NAMES), identities=True)
    here = study(parties)
    path, raw = tmp_path / "clinic.sketch", b"some message"
    made = other or here
    unsigned = FileSignature("clinic", made.hash, hashlib.sha256(raw).hexdigest())
    identity = parties[0].identity
    assert identity is not None
    (tmp_path / "clinic.sketch.sig").write_bytes(replace(unsigned, signature=identity.sign(unsigned.body())).to_bytes())
    return here, change(raw) if change else raw, path


def test_an_edited_study_file_is_called_that(tmp_path: Path) -> None:
    here, raw, path = signed(tmp_path, other=study(m=61))
    with pytest.raises(FederationError, match="made for another study, run or text") as error:
        check_signature(here, "clinic", raw, path)
    assert "somebody else" not in str(error.value)


def test_a_damaged_file_and_a_foreign_one_are_told_apart(tmp_path: Path) -> None:
    here, raw, path = signed(tmp_path, change=lambda raw: raw + b"!")
    with pytest.raises(FederationError, match="changed or damaged on its way"):
        check_signature(here, "clinic", raw, path)
    foreign = study(sites(dict.fromkeys(NAMES), identities=True))
    with pytest.raises(FederationError, match=r"made by somebody else, or clinic\.sketch\.sig was damaged on its way"):
        check_signature(foreign, "clinic", b"some message", path)


def test_a_file_beside_another_sites_signature_is_called_mixed_up(tmp_path: Path) -> None:
    here, raw, path = signed(tmp_path)
    with pytest.raises(FederationError, match="is a signature of site 'clinic': two sites' files were mixed up"):
        check_signature(here, "mri", raw, path)


def test_a_signed_message_in_a_sketchs_place_is_called_what_it_is(tmp_path: Path) -> None:
    _here, _raw, path = signed(tmp_path)
    beside = path.with_name(path.name + ".sig")
    with pytest.raises(MessageError, match=r"\.sig is not the sketch of a site, but a signature of a file\. Give the file"):
        carrier(study(), [beside])("sketch", {"mri": {}})
    offer = tmp_path / "mri.offer"
    offer.write_bytes(KeyOffer("mri", "ab" * 32, bytes(1216), signature=bytes(64)).to_bytes())
    with pytest.raises(MessageError, match=r"mri\.offer is not the sketch of a site, but an offer of a key for one run"):
        carrier(study(), [offer])("sketch", {"mri": {}})


def test_coefficients_of_another_site_or_run_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = sites(frames())
    plan = study(parties)
    mri = next(site for site in parties if site.name == "mri")
    for site, of, words in (
        ("clinic", plan.hash, r"are for site 'clinic', not for 'mri'\. Ask the server for the file of mri"),
        ("mri", plan.again().hash, "are of another study, run or text of"),
    ):
        came = SimpleNamespace(site=site, study_hash=of)
        monkeypatch.setattr(Coefficients, "from_bytes", lambda _raw, came=came: came)
        with pytest.raises(MessageError, match=words):
            mri.receive(plan, b"")


def test_a_sites_folder_is_not_made_the_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site.toml").write_text('name = "clinic"\n')
    assert main(["fit", "clinic.sketch", "--study", str(tmp_path / "study.toml"), "-o", str(tmp_path)]) == StudyError.exit_code
    assert "is a site's folder. Give the server a folder of its own" in capsys.readouterr().err


def test_a_second_command_on_the_same_study_is_told_of_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two fits into one checkpoint ended one of them with an error of no meaning; two that note what came lost a note."""
    folder = StudyFolder.create(tmp_path / "liver", study())
    here, toml = str(folder.path), str(folder.path / "study.toml")
    commands = (
        ["fit", "-o", here],
        ["check", here, "--halves"],
        ["deliver", "receipts", here, "clinic.receipt"],
        ["server", "align", "clinic.alignment", "--study", toml, "-o", here],
        ["predict", "sum", here, "june", __file__, "-o", str(tmp_path)],
    )
    with folder.locked():
        for words in commands:
            assert main(words) == FederationError.exit_code, words
            assert f"Another command is working on {folder.path}. Wait for it, or stop it." in capsys.readouterr().err
        with pytest.raises(FederationError, match="Another command is working on"):
            intarsia.fit(sites(frames(40)), study(), folder=folder.path, progress=False)
    assert main(["fit", "-o", str(folder.path)]) != 0
    assert "lacks the sketch" in capsys.readouterr().err


def test_a_corrupt_sketch_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mri.sketch"
    path.write_bytes(b"not a sketch at all")
    with pytest.raises(MessageError, match=r"mri\.sketch"):
        carrier(study(), [path])("sketch", {"mri": {}})


def test_ids_written_differently_point_to_canonical() -> None:
    strict = study()
    lists = {"clinic": ["1", "2"], "mri": ["01", "02"]}
    reports = {name: report(name, strict, tokenise(ids, KEY, strict)) for name, ids in lists.items()}
    with pytest.raises(AlignmentError, match="canonical"):
        intersect(reports)


def test_subjects_that_an_intersection_loses_are_counted(tmp_path: Path) -> None:
    meeting = study(alignment={"mode": "intersect"})
    folder = StudyFolder.create(tmp_path / "s", meeting)
    lists = {"clinic": ["a", "b", "c"], "mri": ["a", "b", "C"], "lab": ["a", "b"]}
    for name, ids in lists.items():
        message: AlignmentReport = report(name, meeting, tokenise(ids, KEY, meeting))
        (folder.path / "alignment").mkdir(exist_ok=True)
        folder.file("alignment", name).write_bytes(message.to_bytes())
    assert folder.left_out() == {"clinic": 1, "mri": 1}
    summary = {"converged": True, "verdict": "fine", "selected": [], "features": 3, "subjects": 2, "left_out": folder.left_out()}
    assert any("rests on 2 subjects" in line and "1 of clinic, 1 of mri" in line for line in found(summary))


def test_an_intersection_that_loses_subjects_says_so_while_it_can_be_stopped() -> None:
    few = who_is_common(1241, {"air": 1301, "blood": 1241})
    assert few == ["1,241 subjects are at all sites", "  not at all sites, so left out: 60 of 1,301 at air"]
    said = "\n".join(who_is_common(292, {"air": 1301, "blood": 1241}))
    assert "1,009 of 1,301 at air, 949 of 1,241 at blood" in said
    assert "ATTENTION: that is 76% of even the shortest list" in said
    assert "[alignment] canonical" in said


def test_a_missing_file_and_a_full_disk_are_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "clinic.offer"
    assert main(["site", "share", str(tmp_path), str(missing), "-o", str(tmp_path / "out")]) == MessageError.exit_code
    told = capsys.readouterr().err
    assert str(missing) in told
    assert "unexpected" not in told
    full = OSError(errno.ENOSPC, "No space left on device", "server/posterior.nc")
    assert of_the_system(full).startswith("No space left on device: server/posterior.nc. Free some space")


def test_a_refusal_names_the_log_that_there_is() -> None:
    assert "problems.jsonl" in REFUSED


def test_a_repeated_study_is_found_by_the_name_that_is_printed() -> None:
    first = study()
    again = first.again("ab" * 16)
    assert is_called(first, "liver")
    assert is_called(again, "liver")
    for name in (first.folder_name, f"liver-{first.hash[:8]}", first.hash[:8]):
        assert is_called(first, name)
        assert not is_called(again, name)
    assert not is_called(first, "live")


FULL = OSError(errno.ENOSPC, "file write failed: time = noon, buf = 0x561b6141edb8, errno = 28")  # as HDF5 says it


def test_a_full_disk_leaves_no_half_file_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty study.toml or key would be "exists already" when the command is given again, as the message says to do."""
    new = ["study", "new", str(tmp_path / "study.toml"), "--id", "x", "--site", "a", "--responses", "a=b"]

    def fails(*_given: Any, **_named: Any) -> Any:
        raise FULL

    with monkeypatch.context() as full:
        full.setattr("intarsia.files.os.replace", fails)
        assert main(new) == MessageError.exit_code
        told = capsys.readouterr().err
        assert "study.toml: No space left on device. Free some space and give the same command again" in told
        full.setattr("intarsia.files.os.fsync", fails)
        with pytest.raises(KeyFileError, match="Nothing is left of it"):
            KEY.save(tmp_path / "study.key")
        posterior, _, _ = made_up(P=4, Q=2, draws=20)
        full.setattr(type(posterior.tree), "to_netcdf", fails)
        with pytest.raises(OSError, match="No space left on device") as error:
            posterior.save(tmp_path / "posterior.nc")
        assert of_the_system(error.value).startswith(f"No space left on device: {tmp_path / 'posterior.nc'}. Free some")
    assert list(tmp_path.iterdir()) == []
    assert main(new) == 0
    KEY.save(tmp_path / "study.key")


def test_a_wrong_file_is_named_with_what_was_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data.csv").write_text("id,a,b\n" + "\n".join(f"{i},{i % 5},{i % 3}" for i in range(30)))
    table = ["--table", str(tmp_path / "data.csv"), "--id", "id"]
    assert main(["site", "init", str(tmp_path / "clinic"), "--name", "clinic", *table]) == 0
    assert main(["site", "init", str(tmp_path / "lab"), "--name", "lab", *table, "--responses", "b"]) == 0
    study_file, offer = tmp_path / "study.toml", str(tmp_path / "clinic.offer")
    assert main(["study", "new", str(study_file), "--id", "x", "--site", str(tmp_path / "clinic" / "clinic.toml"),
                 "--site", str(tmp_path / "lab" / "lab.toml"), "--responses", "lab=b"]) == 0  # fmt: skip
    capsys.readouterr()
    for wrong, said in (
        (["site", "offer", str(tmp_path / "clinic"), "-o", offer], "has accepted no study yet. Begin with: intarsia site accept"),
        (["site", "check", str(tmp_path)], "is not a site's folder: it has no site.toml. A new site is made by"),
        (["study", "check", str(tmp_path / "clinic" / "site.toml")], "not a study file but a site's own settings"),
        (["study", "check", str(tmp_path / "clinic" / "clinic.toml")], "not a study file but a site's public file"),
        (["study", "status", str(tmp_path / "clinic")], "is not a study folder: it is a site's folder"),
        (["study", "status", str(tmp_path / "nowhere")], "is not a study folder: there is nothing"),
        (["fit", "--study", str(study_file), "-o", str(tmp_path / "data.csv")], "is a file; what the server keeps"),
        (["report", str(tmp_path / "nowhere")], "There is no posterior at"),
    ):
        assert main(wrong) != 0
        assert said in capsys.readouterr().err, wrong
    SiteFolder.load(tmp_path / "clinic").accept(study_file)
    assert main(["site", "share", str(tmp_path / "clinic"), str(study_file), "-o", offer]) == MessageError.exit_code
    assert "study.toml is not the offer of a site" in capsys.readouterr().err
    folder = StudyFolder.create(tmp_path / "server", study())
    assert main(["study", "leave", str(folder.path), str(study_file)]) == MessageError.exit_code
    assert "study.toml is not the notice of leaving of a site" in capsys.readouterr().err
    with pytest.raises(MessageError, match=r"study\.toml: This is not the card of a site of this study"):
        read_cards([study_file], folder.study)
    with pytest.raises(MessageError, match=r"study\.toml is not the receipt of a site"):
        carrier(folder.study, [study_file])("receive", {"mri": {}})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('id = "id"', 'id = "Id"', "No column 'Id' for the role id; did you mean 'id'?"),
        ("responses = []", 'responses = ["fev"]', "No column 'fev' for the role response; did you mean 'fev1'?"),
        ("[policy]", "[policy]\nmax_rato = 0.1", "unknown entry 'max_rato'; did you mean 'max_ratio'?\n"),
        ("[predict]", "[predict]\nmin_subject = 30", "unknown entry 'min_subject'; did you mean 'min_subjects'?\n"),
        ("visits.csv", "visit.csv", "In site.toml a relative path counts from the site's folder."),
        ('constant = "error"', 'constant = "error"\nseparator = ";"', "1 column (one only: say the separator?)"),
    ],
)
def test_a_slip_in_site_toml_is_named(old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "visits.csv").write_text("id,age,fev1\n" + "\n".join(f"p{i},{i % 9},{i % 7}" for i in range(40)) + "\n")
    site = tmp_path / "clinic"
    assert main(["site", "init", str(site), "--name", "clinic", "--table", "../visits.csv", "--id", "id"]) == 0
    text = (site / "site.toml").read_text()
    assert old in text
    (site / "site.toml").write_text(text.replace(old, new, 1))
    capsys.readouterr()
    assert main(["site", "check", str(site)]) != 0
    assert said in capsys.readouterr().err


def test_what_may_not_be_read_is_not_called_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may be allowed to read everything: the refusal is planted."""
    table = tmp_path / "visits.csv"
    table.write_text("id,age\n1,2\n")
    opened = Path.open

    def refuse(path: Path, *given: Any, **named: Any) -> Any:
        if path == table:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"^Permission denied: .*visits\.csv\. Check who may read and write it\.$"):
        Table.open(table, id="id")
    posterior, _, _ = made_up(P=4, Q=2, draws=20)
    file = posterior.save(tmp_path / "posterior.nc")

    def refused(where: Path, **_named: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(where))

    monkeypatch.setattr("xarray.open_datatree", refused)
    with pytest.raises(InputError, match=r"^Permission denied: .*posterior\.nc\. Check who"):
        Posterior.load(file)
