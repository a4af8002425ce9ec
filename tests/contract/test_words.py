"""Where trust begins: fingerprints in words, compared by a person or with a list, before anything is accepted."""

import io
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federation import NAMES, fingerprints, frames, sites, study

from intarsia.cli import main
from intarsia.errors import InputError, StudyError
from intarsia.privacy.policy import Policy
from intarsia.server.study.folder import dump
from intarsia.site.identity import Identity, fingerprint_words
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study
from intarsia.wire.words import from_words, same_words, split_words, to_words


@given(st.binary(max_size=64).filter(lambda raw: len(raw) % 2 == 0))
def test_words_are_the_whole_digest(raw: bytes) -> None:
    words = to_words(raw)
    assert from_words(words) == raw
    assert from_words(words.upper().replace("-", "  ")) == raw
    assert len(split_words(words)) == len(raw) // 2


def test_the_words_are_those_of_the_published_rule() -> None:
    # 127.0.0.1 and 63.84.220.193 in the paper that proposes the rule.
    assert to_words(bytes([127, 0, 0, 1])) == "lusab-babad"
    assert to_words(bytes([63, 84, 220, 193])) == "gutih-tugad"
    for bad in ("lusab-babax", "lusa", "lusab babadd", "lösab"):
        with pytest.raises(InputError, match="not a fingerprint in words"):
            from_words(bad)
    assert same_words("lusab-babad", " LUSAB  babad")
    assert not same_words("lusab-babad", "lusab")


class Clinic:
    """The clinic's folder and a study file with three pinned sites, honest unless a test changes it."""

    def __init__(self, root: Path):
        self.parties = sites(frames(40), identities=True)
        frames(40)["clinic"].to_csv(root / "clinic.csv", index=False)
        self.folder = root / "clinic"
        main(["site", "init", str(self.folder), "--name", "clinic", "--table", str(root / "clinic.csv"), "--id", "id"])
        self.parties[0].identity = Identity.load(self.folder)
        self.source = root / "study.toml"
        self.write()

    def write(self) -> None:
        self.source.write_text(dump(study(self.parties)), encoding="utf-8")

    def accept(self, *more: object) -> int:
        return main(["site", "accept", str(self.folder), str(self.source), *map(str, more)])

    def accepted(self) -> list[Path]:
        return list((self.folder / "accepted").glob("*.toml"))


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


def test_everything_is_shown_and_kept_as_it_was_checked(clinic: Clinic, capsys) -> None:  # type: ignore[no-untyped-def]
    capsys.readouterr()
    assert clinic.accept("--fingerprints", fingerprints(clinic.folder, clinic.source)) == 0
    out, told = capsys.readouterr()
    s = study(clinic.parties)
    assert s.hash in out
    for word in split_words(to_words(bytes.fromhex(s.hash))):
        assert word in told
    assert "40 subjects" in told
    assert "clinic_0" in told
    assert [path.read_bytes() for path in clinic.accepted()] == [clinic.source.read_bytes()]


def test_looser_limits_are_listed_and_count_for_nothing(clinic: Clinic, capsys) -> None:  # type: ignore[no-untyped-def]
    clinic.source.write_text(dump(study(clinic.parties, privacy={"max_ratio": 0.9, "min_level": 20})), encoding="utf-8")
    capsys.readouterr()
    assert clinic.accept("--fingerprints", fingerprints(clinic.folder, clinic.source)) == 0
    looser = [line for line in capsys.readouterr().err.splitlines() if line.startswith("LOOSER")]
    assert len(looser) == 1  # min_level is stricter
    assert "max_ratio" in looser[0]
    accepted = Policy.of_study(Study.parse(clinic.accepted()[0].read_text()).privacy)
    assert (accepted.max_ratio, accepted.min_level) == (0.25, 20)


def test_a_key_put_in_the_middle_is_found(clinic: Clinic, capsys) -> None:  # type: ignore[no-untyped-def]
    """Whoever writes study.toml pins a key of its own as the laboratory's; the list was made by telephone."""
    by_telephone = fingerprints(clinic.folder, clinic.source)
    clinic.parties[2].identity = Identity.new("lab")
    clinic.write()
    assert clinic.accept("--fingerprints", by_telephone) == InputError.exit_code
    told = capsys.readouterr().err
    assert "The fingerprint of lab, study.toml is not the one in" in told
    assert not clinic.accepted()


def test_words_of_another_text_of_the_file_are_not_called_another_key(clinic: Clinic, capsys) -> None:  # type: ignore[no-untyped-def]
    of_an_earlier_text = fingerprints(clinic.folder, clinic.source)
    clinic.source.write_text(dump(study(clinic.parties, fit={"seed": 99})), encoding="utf-8")
    assert clinic.accept("--fingerprints", of_an_earlier_text) == InputError.exit_code
    told = capsys.readouterr().err
    assert "The words of study.toml are not those in" in told
    assert "another run or an earlier text" in told
    assert "put another key" not in told
    assert not clinic.accepted()


def test_every_peer_must_be_on_the_list(clinic: Clinic, capsys) -> None:  # type: ignore[no-untyped-def]
    listed = fingerprints(clinic.folder, clinic.source)
    listed.write_text("".join(line for line in listed.read_text().splitlines(True) if not line.startswith("mri")))
    assert clinic.accept("--fingerprints", listed) == InputError.exit_code
    assert "no line for mri" in capsys.readouterr().err
    listed.write_text("mri lusab\nmri lusab\n")
    assert clinic.accept("--fingerprints", listed) == InputError.exit_code
    assert not clinic.accepted()


def test_a_person_types_the_last_word_of_each(clinic: Clinic, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    found = SiteFolder.load(clinic.folder).review(clinic.source).to_compare
    assert list(found) == ["mri", "lab", "study.toml"]
    lab = clinic.parties[2].identity
    assert lab is not None
    assert found["lab"] == lab.words == fingerprint_words(lab.exchange_key, lab.signing_key)
    last = [split_words(words)[-1] for words in found.values()]
    for typed, code in ((["yes"], 2), ([last[0], "no"], 2), ([], 2), (last, 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{word}\n" for word in typed)))
        assert clinic.accept() == code
        assert bool(clinic.accepted()) == (code == 0)
    told = capsys.readouterr().err
    assert all(word in told for words in found.values() for word in split_words(words))


def test_the_file_is_read_once(clinic: Clinic, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Swapped while a person compares: what is kept is what was shown."""
    shown = clinic.source.read_bytes()
    review = SiteFolder.load(clinic.folder).review(clinic.source)
    clinic.source.write_text(clinic.source.read_text().replace("m = 60", "m = 300"))
    assert clinic.source.read_bytes() != shown
    SiteFolder.load(clinic.folder).accept(review)
    assert [path.read_bytes() for path in clinic.accepted()] == [shown]
    # A fifo can be read only once: a second reading would hang or find nothing.
    fifo = clinic.source.with_name("fifo.toml")
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(shown,))
    writer.start()
    SiteFolder.load(clinic.folder).accept(fifo)
    writer.join(timeout=20)
    assert [path.read_bytes() for path in clinic.accepted()] == [shown]


def test_a_key_file_left_in_site_toml_is_refused(clinic: Clinic) -> None:
    toml = (clinic.folder / "site.toml").read_text().replace("# key =", "key =")
    (clinic.folder / "site.toml").write_text(toml)
    with pytest.raises(StudyError, match=r"still names a key file\. Take the line"):
        SiteFolder.load(clinic.folder).review(clinic.source)


def test_an_unknown_hash_gets_the_same_answer_whatever_was_accepted(clinic: Clinic) -> None:
    told = []
    for _ in range(2):
        with pytest.raises(StudyError) as caught:
            SiteFolder.load(clinic.folder).accepted("ab" * 32)
        told.append(str(caught.value))
        SiteFolder.load(clinic.folder).accept(clinic.source)
    assert told[0] == told[1]
    assert not [name for name in (*NAMES, "liver", "abab") if name in told[0]]
