"""Untrusted files: whatever is done to one, reading it gives a message or a MessageError, in bounded memory."""

import hashlib
import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import MessageError
from intarsia.wire.container import MAGIC, kind_of, pack, unpack, write
from intarsia.wire.messages import Sketch

M, N = 6, 40


def a_sketch(**change: object) -> Sketch:
    rng = np.random.default_rng(0)
    fields = {
        "site": "clinic", "features": ("age", "bmi", "größe"), "responses": ("y",), "X": rng.standard_normal((M, 3)),
        "Y": rng.standard_normal((M, 1)), "n": N, "m": M, "kind": "orthonormal", "precision": "float64",
        "study_hash": "ab" * 32, "key_fingerprint": "cd" * 16, "order_mac": "ef" * 32,
    }  # fmt: skip
    return Sketch(**{**fields, **change})  # type: ignore[arg-type]


def sealed(body: bytes) -> bytes:
    """The body with a digest that fits: damage must also be found by those who can compute a digest."""
    return body + hashlib.sha256(body).digest()


def framed(content: object, rest: bytes = b"") -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    text += b" " * (-(16 + len(text)) % 64)
    return sealed(struct.pack("<8sII", MAGIC, 1, len(text)) + text + rest)


def attempt(data: bytes) -> bool:
    """True if it was read, False if refused; anything but MessageError is a failure of the test."""
    try:
        found = Sketch.load(data)
    except MessageError:
        return False
    assert np.isfinite(found.X).all()
    assert found.X.shape == (found.m, len(found.features))
    return True


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    raw = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(0, max(len(raw), 1)))
        size = int(rng.integers(1, 40))
        match int(rng.integers(0, 7)):
            case 0 if raw:
                raw[at % len(raw)] ^= 1 << int(rng.integers(0, 8))
            case 1 if raw:
                raw[at % len(raw)] = int(rng.integers(0, 256))
            case 2:
                del raw[at:]
            case 3:
                del raw[at : at + size]
            case 4:
                raw[at:at] = rng.bytes(size)
            case 5:
                raw[at : at + size] = raw[: min(size, len(raw))]
            case _:
                raw[at : at + 8] = struct.pack("<d", float(rng.choice([np.nan, np.inf, 1e308, -0.0])))
    return bytes(raw)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("reseal", [False, True])
def test_thousands_of_mutated_files_give_our_error_only(reseal: bool, precision: str) -> None:
    rng = np.random.default_rng(7)
    good = a_sketch(precision=precision).to_bytes()
    read = 0
    for _ in range(4000):
        bad = mutate(good[:-32] if reseal else good, rng)
        bad = sealed(bad) if reseal else bad
        read += bad != good and attempt(bad)
    # Without a fitting digest nothing is read; with one, only files whose numbers or names were changed harmlessly.
    assert read == 0 if not reseal else 0 < read < 3000


def test_every_truncation_is_refused() -> None:
    good = a_sketch().to_bytes()
    assert attempt(good)
    assert not any(attempt(good[:size]) for size in range(len(good)))
    assert not any(attempt(sealed(good[:size])) for size in range(len(good) - 32))
    assert not attempt(good + b"\0")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
FIELDS = ["schema", "site", "features", "responses", "n", "m", "kind", "precision", "study_hash", "key_fingerprint",
          "order_mac", "noise"]  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(FIELDS), JSON, st.booleans())
def test_any_json_in_any_field_gives_our_error_only(name: str, value: object, remove: bool) -> None:
    good = a_sketch()
    header = {"schema": 1, **{k: getattr(good, k) for k in FIELDS if k != "schema"}}
    header[name] = value
    if remove:
        del header[name]
    arrays = [{"name": "X", "dtype": "f8", "shape": [M, 3]}, {"name": "Y", "dtype": "f8", "shape": [M, 1]}]
    rest = good.X.tobytes() + bytes(-good.X.nbytes % 64) + good.Y.tobytes() + bytes(-good.Y.nbytes % 64)
    attempt(framed({"kind": "sketch", "header": header, "arrays": arrays}, rest))


@settings(max_examples=400, deadline=None)
@given(JSON, st.binary(max_size=300))
def test_any_json_as_header_gives_our_error_only(content: object, rest: bytes) -> None:
    for value in (content, {"kind": "sketch", "header": {}, "arrays": content}):
        assert not attempt(framed(value, rest))


@pytest.mark.parametrize(
    "shape",
    [[10**15], [10**12, 10**12], [2**39] * 8, [2**63], [-1], [1.5], ["3"], [True], None, 5, [[1]], [0, 10**15]],
)
def test_false_sizes_are_refused_before_anything_is_allocated(shape: object) -> None:
    tracemalloc.start()
    bad = framed({"kind": "sketch", "header": {}, "arrays": [{"name": "X", "dtype": "f8", "shape": shape}]})
    with pytest.raises(MessageError):
        unpack(bad, "sketch")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_deep_and_odd_json_is_refused() -> None:
    for text in (b"[" * 100_000, b'{"a":' * 50_000, b"NaN", b"\xff\xfe", b"9" * 10_000, b'"\\ud800"', b""):
        assert not attempt(framed(text))


def test_an_oversized_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.sketch"
    with path.open("wb") as file:
        file.truncate(50 * 2**30)  # sparse: no disk is used
    tracemalloc.start()
    with pytest.raises(MessageError, match="at most"):
        Sketch.load(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    write(path, a_sketch().to_bytes())
    with pytest.raises(MessageError, match="at most 100 are accepted"):
        Sketch.load(path, limit=100)


def test_what_is_wrong_is_said() -> None:
    good = a_sketch().to_bytes()
    for data, words in (
        (b"PK\3\4" + bytes(100), "not an intarsia message"),
        (good[:8] + struct.pack("<I", 2) + good[12:], "container version 2"),
        (good[:10], "too short"),
        (good[:-1] + bytes([good[-1] ^ 1]), "digest"),
        (pack("tokens", {}, {}), "'tokens' message, a 'sketch' message"),
        (pack("sketch", {"schema": 2}, {}), "another schema"),
        (pack("sketch", {"schema": 1}, {}), "exactly the fields"),
    ):
        with pytest.raises(MessageError, match=words):
            Sketch.load(data)


def test_numbers_that_are_not_finite_are_refused_on_both_sides() -> None:
    with pytest.raises(MessageError, match="not finite"):
        pack("sketch", {}, {"X": np.array([1.0, np.nan])})
    good = a_sketch()
    raw = good.to_bytes()[:-32]
    at = raw.index(good.X.tobytes())
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(MessageError, match="not finite"):
            Sketch.load(sealed(raw[:at] + struct.pack("<d", value) + raw[at + 8 :]))


def test_a_container_holds_what_was_put_in(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(12, dtype=np.int64).reshape(3, 4), "b": np.asfortranarray(np.linspace(0, 1, 15).reshape(5, 3)),
        "c": np.zeros((0, 7), np.float32), "d": np.array([1, 2], ">i4"), "e": np.frombuffer(b"xyz", np.uint8),
    }  # fmt: skip
    header = {"text": "größe", "list": [1, None, {"x": 2.5}]}
    path = tmp_path / "m.bin"
    write(path, pack("trial", header, arrays), mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["m.bin"]
    found, back = unpack(path, "trial")
    assert found == header
    assert kind_of(path) == "trial"
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert not back[name].flags.writeable


@pytest.mark.parametrize("bad", [np.array(["a"]), np.array([object()]), np.array([1 + 2j]), np.ones(1, np.float16)])
def test_arrays_of_other_types_are_not_packed(bad: np.ndarray) -> None:
    with pytest.raises(MessageError, match="cannot be packed"):
        pack("trial", {}, {"a": bad})


def test_files_that_cannot_be_read_or_written_are_our_error(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match="Cannot read"):
        unpack(tmp_path / "none", "sketch")
    with pytest.raises(MessageError, match="Cannot read"):
        unpack(tmp_path, "sketch")
    with pytest.raises(MessageError, match="Cannot write"):
        write(tmp_path / "no" / "such" / "folder", b"")
