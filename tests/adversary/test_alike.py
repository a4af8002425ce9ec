"""Things made to look alike by whoever writes study files: hashes that begin alike, one key in two spellings."""

import base64
from pathlib import Path

import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer
from tests.federation import frames, sites, study

from intarsia.errors import StudyError
from intarsia.privacy.subject_ids import canonical_id
from intarsia.server.study.folder import dump
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def test_two_studies_whose_hashes_begin_alike_share_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen digits of a hash are in the names of folders; whoever tries four thousand million run numbers finds two alike."""
    monkeypatch.setattr(Study, "folder_name", property(lambda self: "liver-0123456789abcdef"))
    rogue = RogueServer.after_collect(tmp_path)
    second = rogue.another_run(tmp_path / "second")
    for site in second.sites.values():
        site._stores = {}  # as after a restart
    for step in ("offer", "share", "sketch", "receive"):
        told = second.ask("mri", step)
        assert told.words in FIXED_WORDS
        assert told.message is None
    assert "whose hash begins alike" in second.reason
    folder = SiteFolder.create(tmp_path / "site", "clinic")
    parties = sites(frames(40), identities=True)
    parties[0].identity = folder.identity()
    for k, plan in enumerate((study(parties), study(parties).again())):
        (tmp_path / f"{k}.toml").write_text(dump(plan))
    first = folder.accept(tmp_path / "0.toml")
    with pytest.raises(StudyError, match="whose hash begins alike"):
        folder.accept(tmp_path / "1.toml")
    assert folder.accepted(first.hash).run == first.run
    assert folder.accept(tmp_path / "0.toml") == first  # the same again is no other


@pytest.mark.parametrize("written", ["P0042", " p42", "P-０４２", "P٠٠٤٢", "p۴۲"])
def test_an_id_in_other_digits_is_the_same_person(written: str) -> None:
    """Full-width, Arabic and Persian digits: an export of another program must not start the count of what was told anew."""
    assert canonical_id(written) == canonical_id("P42")
    assert canonical_id("٤٢.0") == "42"


def test_a_key_has_one_spelling() -> None:
    """The last two bits of a key in base64 mean nothing: four texts, one key. What is counted for a key would start anew."""
    parties = sites(frames(40), identities=True)
    plan = study(parties).to_dict()
    key = plan["site"][2]["signing_key"]
    for change in (1, 2, 3):
        other = key[:42] + ALPHABET[ALPHABET.index(key[42]) ^ change] + "="
        assert base64.b64decode(other, validate=True) == base64.b64decode(key)
        plan["site"][2]["signing_key"] = other
        with pytest.raises(StudyError, match="signing_key must be 32 bytes in base64"):
            Study.from_dict(plan)
        plan["site"][1]["signing_key"], plan["site"][2]["signing_key"] = key, other
        with pytest.raises(StudyError):
            Study.from_dict(plan)
