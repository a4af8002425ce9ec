"""Errors say what is wrong, not something near it: one case for each that once misled somebody."""

import errno
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.federation import KEY, NAMES, sites, study

from intarsia.carriers.files import carrier, check_signature
from intarsia.cli import _of_the_system, main
from intarsia.cli.fit import found
from intarsia.cli.site import _is
from intarsia.errors import AlignmentError, FederationError, MessageError
from intarsia.server.study.folder import StudyFolder
from intarsia.site.align import report, tokenise
from intarsia.site.answer import REFUSED
from intarsia.wire.alignment import AlignmentReport, intersect
from intarsia.wire.signed import FileSignature
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
    with pytest.raises(FederationError, match="made by somebody else"):
        check_signature(foreign, "clinic", b"some message", path)


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


def test_a_missing_file_and_a_full_disk_are_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "clinic.offer"
    assert main(["site", "share", str(tmp_path), str(missing), "-o", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert str(missing) in told
    assert "unexpected" not in told
    full = OSError(errno.ENOSPC, "No space left on device", "server/posterior.nc")
    assert _of_the_system(full).startswith("No space left on device: server/posterior.nc. Free some space")


def test_a_refusal_names_the_log_that_there_is() -> None:
    assert "problems.jsonl" in REFUSED


def test_a_repeated_study_is_found_by_the_name_that_is_printed() -> None:
    first = study()
    again = first.again("ab" * 16)
    assert _is(first, "liver")
    assert _is(again, "liver")
    for name in (first.folder_name, f"liver-{first.hash[:8]}", first.hash[:8]):
        assert _is(first, name)
        assert not _is(again, name)
    assert not _is(first, "live")
