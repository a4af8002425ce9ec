"""Files are written whole or not at all, also by a process that is killed or finds the disk full, and read only as they were."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intarsia import files
from intarsia.errors import FederationError
from intarsia.files import DamagedFileError

WRITERS: dict[str, Callable[[Path, bytes], None]] = {
    "replace": files.replace,
    "create": files.create,
    "sealed": lambda path, content: _sealed(path, content),
    "arrays": lambda path, content: files.replace_arrays(path, {"a": np.frombuffer(content, dtype=np.uint8)}),
    "json": lambda path, content: files.replace_json(path, {"a": content.hex()}),
}


def _sealed(path: Path, content: bytes) -> None:
    with files.writing(path, sealed=True) as file:
        file.write(content)


def in_a_child(code: str, *args: object, **more: Any) -> "subprocess.Popen[bytes]":
    code = (
        "import sys, time, os, resource\nfrom pathlib import Path\nfrom intarsia import files\npath = Path(sys.argv[1])\n" + code
    )
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


@pytest.mark.parametrize("way", WRITERS)
def test_a_full_disk_leaves_what_was_there_and_names_the_file(way: str, tmp_path: Path) -> None:
    """A limit on the size of a file fails as a full disk does: in the middle of a write."""
    path, old = tmp_path / "x", b"old"
    if way != "create":
        path.write_bytes(old)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            WRITERS[way](path, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(path)
    assert [one.name for one in tmp_path.iterdir()] == ([] if way == "create" else ["x"])
    assert way == "create" or path.read_bytes() == old


def test_a_kill_at_any_moment_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    """A child writes one content after the other without end. What it left half written goes with the next write or a sweep."""
    path = tmp_path / "x"
    files.replace(path, b"0" * 10**6)
    generator = np.random.default_rng(1)
    for _ in range(8):
        child = in_a_child(
            "k = 0\nprint(flush=True)\nwhile True:\n    k += 1\n    files.replace(path, b'%d' % (k % 10) * 10**6)", path
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(generator.uniform(0, 0.05))
        child.kill()
        child.communicate()
        content = path.read_bytes()
        assert len(content) == 10**6
        assert len(set(content)) == 1
    left = len(list(tmp_path.iterdir())) - 1
    assert files.sweep(tmp_path) == left <= 1
    assert [one.name for one in tmp_path.iterdir()] == ["x"]


def test_a_sweep_leaves_what_is_being_written_and_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / ".x.0123abcd.part").touch()
    (tmp_path / "clinic.part").touch()
    with files.writing(tmp_path / "x") as file:
        file.write(b"whole")
        assert files.sweep(tmp_path) == 1
    assert (tmp_path / "x").read_bytes() == b"whole"
    assert (tmp_path / "clinic.part").exists()
    assert files.sweep(tmp_path / "nowhere") == 0


def test_who_writes_a_file_again_deletes_what_was_left_of_it(tmp_path: Path) -> None:
    """Half-files of other names stay, and so does one that is being written now."""
    names = (".x.0123abcd.part", ".y.0123abcd.part", ".x.y.0123abcd.part", ".x.0123abcd.part.txt")
    for name in names:
        (tmp_path / name).touch()
    with files.writing(tmp_path / "x") as first:
        first.write(b"first")
        files.replace(tmp_path / "x", b"second")
        assert (tmp_path / "x").read_bytes() == b"second"
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted((*names[1:], "x"))
    assert (tmp_path / "x").read_bytes() == b"first"


def test_create_never_overwrites_and_modes_are_as_asked(tmp_path: Path) -> None:
    files.create(tmp_path / "x", b"first", mode=files.OWNER_ONLY)
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "x", b"second")
    files.replace(tmp_path / "y", b"open")
    assert (tmp_path / "x").read_bytes() == b"first"
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "xy"] == [0o600, 0o644]
    with pytest.raises(FileNotFoundError) as caught:
        files.replace(tmp_path / "no" / "x", b"")
    assert caught.value.filename == str(tmp_path / "no" / "x")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_block_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    def fail() -> None:
        with files.writing(tmp_path / "x") as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synchronised before it is renamed, the folder after."""
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("renamed"), rename(a, b)))
    files.replace(tmp_path / "x", b"x")
    assert [Path(one).name for one in done[1:]] == ["renamed", tmp_path.name]
    assert done[0].endswith(".part")


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    files.replace(tmp_path / "pipe", b"through")
    assert reader.communicate(timeout=10)[0] == b"through"


SEALED: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "bytes": (
        lambda path: files.replace(path, files.seal(b"thirty-two secret bytes, or so it seems")),
        lambda path: files.unseal(path.read_bytes(), str(path), "Get it again."),
    ),
    "arrays": (
        lambda path: files.replace_arrays(path, {"a": np.arange(20.0), "b": np.array(["x", "y"])}),
        lambda path: {k: v.tolist() for k, v in files.read_arrays(path, "Get it again.").items()},
    ),
    "json": (
        lambda path: files.replace_json(path, {"b": 1.5, "a": [None, float("inf"), "ü"], "c": {"1": True}}),
        lambda path: files.read_json(path, "Get it again."),
    ),
}


@pytest.mark.parametrize("kind", SEALED)
def test_every_flipped_bit_and_every_cut_is_noticed_or_without_effect(kind: str, tmp_path: Path) -> None:
    write, read = SEALED[kind]
    path = tmp_path / "x"
    write(path)
    raw, right = path.read_bytes(), read(path)
    generator = np.random.default_rng(2)
    flips = [(at, int(generator.integers(8))) for at in range(len(raw))]
    variants = [raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :] for at, bit in flips]
    variants += [raw[:at] for at in range(len(raw) - 1)] + [raw + b"x"]
    told = []
    for variant in variants:
        path.write_bytes(variant)
        try:
            found = read(path)
        except DamagedFileError as error:
            told.append(str(error))
        else:  # in JSON a blank may become another, and the digest's entry may get another name
            assert kind == "json"
            assert {k: v for k, v in found.items() if k in right} == right
    assert set(told) == {f"{path} is damaged: its content is not what was written there. Get it again."}
    assert len(told) == len(variants) if kind != "json" else len(told) > 0.8 * len(variants)


def test_arrays_come_back_to_the_bit(tmp_path: Path) -> None:
    arrays = {"x": np.random.default_rng(3).normal(size=(1000, 7)), "n": np.array(3), "empty": np.empty((0, 4), dtype="<f4")}
    files.replace_arrays(tmp_path / "a.npz", arrays)
    found = files.read_arrays(tmp_path / "a.npz", "")
    assert list(found) == list(arrays)
    for name in arrays:
        assert found[name].dtype == arrays[name].dtype
        assert found[name].shape == arrays[name].shape
        assert found[name].tobytes() == arrays[name].tobytes()


def test_json_without_a_digest_need_only_be_whole(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"a": 1}')
    assert files.read_json(tmp_path / "old.json", "") == {"a": 1}
    for torn in ('{"a": 1', "", "[1]", "[" * 10**5, "\xff"):
        (tmp_path / "old.json").write_bytes(torn.encode("latin-1"))
        with pytest.raises(DamagedFileError, match=r"old\.json is damaged"):
            files.read_json(tmp_path / "old.json", "Run the command again.")


def test_a_log_has_whole_lines_only(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for k in range(3):
        files.append(log, json.dumps({"k": k, "long": "x" * 5000 * k}).encode())
    with log.open("ab") as file:
        file.write(b'{"k": 3, "long": "' + b"x" * 9000)
    assert [line["k"] for line in files.json_lines(log)] == [0, 1, 2]
    files.append(log, b'{"k": 4}')
    assert [line["k"] for line in files.json_lines(log)] == [0, 1, 2, 4]
    log.write_bytes(b"torn from the start")
    files.append(log, b'{"k": 5}')
    assert log.read_bytes() == b'{"k": 5}\n'
    assert files.json_lines(tmp_path / "nothing") == []


def test_a_log_on_a_full_disk_keeps_its_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    files.append(log, b'{"k": 0}')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            files.append(log, b'{"k": 1, "more": 0}')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(log)
    assert log.read_bytes() == b'{"k": 0}\n'


def test_a_lock_keeps_others_out_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = in_a_child("with files.locked(path):\n    print(flush=True)\n    time.sleep(600)", path)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(FederationError, match="Somebody is inside"), files.locked(path, busy="Somebody is inside."):
        pass
    child.kill()
    child.communicate()
    with files.locked(path, busy="Somebody is inside."), pytest.raises(FederationError), files.locked(path, busy="So are we."):
        pass
    with files.locked(path):
        pass


def test_a_lock_waits_for_its_turn(tmp_path: Path) -> None:
    """Two processes add to one number, each a hundred times."""
    code = "for _ in range(100):\n    with files.locked(path / 'lock'):\n        n = int((path / 'n').read_text())\n"
    code += "        time.sleep(0.0005)\n        (path / 'n').write_text(str(n + 1))"
    (tmp_path / "n").write_text("0")
    for child in [in_a_child(code, tmp_path) for _ in range(2)]:
        assert child.communicate()[1] == b""
    assert (tmp_path / "n").read_text() == "200"
