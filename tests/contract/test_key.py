"""The key: secret on disk, on screen and in logs; sub-keys bound to their purpose."""

import copy
import pickle
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from intarsia.errors import KeyFileError
from intarsia.site.key import SketchKey
from intarsia.site.site import Site

SECRET = bytes(range(1, 33))
KEY = SketchKey(SECRET)


def test_keys_are_saved_for_their_owner_only(tmp_path: Path) -> None:
    key = SketchKey.new()
    key.save(tmp_path / "a.key")
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600
    assert SketchKey.load(tmp_path / "a.key") == key
    assert SketchKey.new() != key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    KEY.save(tmp_path / "a.key")
    (tmp_path / "a.key").chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        SketchKey.load(tmp_path / "a.key")


def test_an_existing_key_is_kept(tmp_path: Path) -> None:
    KEY.save(tmp_path / "a.key")
    with pytest.raises(KeyFileError, match="exists already"):
        SketchKey.new().save(tmp_path / "a.key")
    assert SketchKey.load(tmp_path / "a.key") == KEY
    other = SketchKey.new()
    other.save(tmp_path / "a.key", overwrite=True)
    assert SketchKey.load(tmp_path / "a.key") == other


def test_damaged_files_are_refused_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    KEY.save(path)
    good = path.read_text()
    secret = SECRET.hex()
    for bad in (good.replace(secret, secret[:-1] + "f"), good.replace(secret, secret[:-2]), good[:40], "", "\xff" * 99,
                good.replace("version 1", "version 2"), good + "more\n", good.replace(secret, "z" * 64)):  # fmt: skip
        path.write_text(bad, encoding="latin-1")
        with pytest.raises(KeyFileError) as caught:
            SketchKey.load(path)
        assert secret[:16] not in str(caught.value)
        assert caught.value.__cause__ is None
    with pytest.raises(KeyFileError, match="intarsia key new"):
        SketchKey.load(tmp_path / "none.key")


def test_nothing_shows_the_secret() -> None:
    shown = [repr(KEY), str(KEY), f"{KEY}", repr([KEY]), repr({"key": KEY})]
    assert all(SECRET.hex()[:8] not in text and repr(SECRET)[2:8] not in text for text in shown)
    assert all(KEY.fingerprint in text for text in shown)
    assert not hasattr(KEY, "__dict__")
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            attempt(KEY)


def test_a_site_with_its_rows_and_ids_is_not_pickled() -> None:
    site = Site("clinic", {"id": ["P1", "P2"], "x": [1.0, 2.0]}, id="id", key=KEY)
    assert copy.copy(site).table().labels == ["x"]
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            attempt(site)


def test_sub_keys_are_hkdf_bound_to_label_study_run_and_context() -> None:
    def part(text: str) -> bytes:
        return len(text.encode()).to_bytes(4, "big") + text.encode()

    info = b"".join(map(part, ("intarsia/1", "derive", "sketch", "trial", "r1", "")))
    expected = HKDF(algorithm=SHA256(), length=32, salt=b"intarsia sketch key", info=info).derive(SECRET)
    assert KEY.derive("sketch", "trial", "r1") == expected
    # Pinned: another version of intarsia must derive the same.
    assert expected.hex() == "5a70d36926be828d8d60a1aaf0b45d6cabb60314a7a5b3341afb6a1f8528ad3e"
    assert KEY.fingerprint == "76aa0f344280d554a070731a386cb526"
    # What messages carry does not tell that two studies share a key.
    marks = {KEY.fingerprint, KEY.study_fingerprint("ab" * 32), KEY.study_fingerprint("cd" * 32)}
    assert len(marks) == 3
    assert SketchKey(bytes(SECRET)).study_fingerprint("ab" * 32) in marks
    seen = {
        KEY.derive(*terms, context=context)
        for terms in (("sketch", "trial", "r1"), ("align", "trial", "r1"), ("sketch", "trial", "r2"),
                      ("sketch", "trialr", "1"), ("sketcht", "rial", "r1"), ("sketch", "Trial", "r1"))
        for context in ("", "x")
    }  # fmt: skip
    assert len(seen) == 12
    assert KEY.fingerprint not in {sub.hex()[:32] for sub in seen}


@pytest.mark.parametrize("terms", [("", "s", "r"), ("l", "", "r"), ("l", "s", ""), ("l", "s", None)])
def test_sub_keys_need_all_terms(terms: tuple[str, str, str]) -> None:
    with pytest.raises(KeyFileError):
        KEY.derive(*terms)


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), "x" * 32, None])
def test_a_key_has_32_bytes(secret: bytes) -> None:
    with pytest.raises(KeyFileError, match="32 bytes"):
        SketchKey(secret)
