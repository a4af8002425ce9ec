"""Untrusted files: whatever is done to one, reading it gives a message or a MessageError, in bounded memory."""

import contextlib
import hashlib
import io
import json
import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.carriers.flare.pieces import Assembly, cut, unpack_payload
from intarsia.errors import MessageError
from intarsia.wire.cohort_groups import GroupedSketch
from intarsia.wire.container import MAGIC, pack, unpack, write
from intarsia.wire.messages import SCHEMA, Sketch

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
GOOD_HEADER, GOOD_ARRAYS = unpack(a_sketch().to_bytes(), "sketch")
FIELDS = sorted(GOOD_HEADER)


def with_header(header: dict[str, object]) -> bytes:
    """A sketch message with this header and intact arrays."""
    arrays = [{"name": name, "dtype": "f8", "shape": list(value.shape)} for name, value in GOOD_ARRAYS.items()]
    rest = b"".join(value.tobytes() + bytes(-value.nbytes % 64) for value in GOOD_ARRAYS.values())
    return framed({"kind": "sketch", "header": header, "arrays": arrays}, rest)


def test_the_header_that_is_mutated_is_a_good_one() -> None:
    assert len(FIELDS) > 10
    assert attempt(with_header(dict(GOOD_HEADER)))


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(FIELDS), JSON, st.booleans())
def test_any_json_in_any_field_gives_our_error_only(name: str, value: object, remove: bool) -> None:
    header = {**GOOD_HEADER, name: value}
    if remove:
        del header[name]
    attempt(with_header(header))


@settings(max_examples=400, deadline=None)
@given(JSON, st.binary(max_size=300))
def test_any_json_as_header_gives_our_error_only(content: object, rest: bytes) -> None:
    for value in (content, {"kind": "sketch", "header": {}, "arrays": content}):
        assert not attempt(framed(value, rest))


@pytest.mark.parametrize(
    "shape",
    [
        [10**15],
        [10**12, 10**12],
        [2**39] * 8,
        [2**63],
        [-1],
        [1.5],
        ["3"],
        [True],
        None,
        5,
        [[1]],
        [0, 10**15],
        [0, 2**39, 2**39],
        [2**39, 0, 2**39, 2**39],
        [1, 2**40 - 1, 1, 2],
    ],
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": ("age", "bmi", "weight")}, "different columns in different groups"),
        ({"site": "lab"}, "do not belong together"), ({"study_hash": "cd" * 32}, "do not belong together"),
        ({"responses": ("z",)}, "do not belong together"),
    ],
)  # fmt: skip
def test_the_sketches_of_a_site_s_groups_belong_together(change: dict[str, object], words: str) -> None:
    parts = {0: a_sketch(), 1: a_sketch()}
    again = GroupedSketch.load(GroupedSketch("clinic", "ab" * 32, ("y",), parts).to_bytes())
    np.testing.assert_array_equal(again.parts[1].X, parts[1].X)
    with pytest.raises(MessageError, match=words):
        GroupedSketch.load(GroupedSketch("clinic", "ab" * 32, ("y",), parts | {1: a_sketch(**change)}).to_bytes())
    with pytest.raises(MessageError, match="no sketch of any group"):
        GroupedSketch.load(GroupedSketch("clinic", "ab" * 32, ("y",), {}).to_bytes())


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
        (pack("sketch", {"schema": SCHEMA - 1}, {}), "another schema"),
        (pack("sketch", {"schema": SCHEMA}, {}), "exactly the fields"),
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


FILLINGS = [b"[],", b"{},", b'{"":{}},', b'"\xf0\x9f\x99\x82ab",', b"1,", b"[[]],", b'{"a":1,"b":[]},', b"1e5,"]
FILLINGS.append(b'"' + 4000 * b"x" + "\U0001f642".encode() + b'",')  # one wide character makes all of them wide


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize(("size", "limit"), [(2**21, 8 * 2**20), (2**18, 5 * 2**19)])  # the text alone is too much, or fits
def test_a_header_takes_no_more_memory_than_the_caller_allows(filling: bytes, size: int, limit: int) -> None:
    """A megabyte of empty brackets becomes thirty in Python; the limit is on what it becomes."""
    inside = b'{"arrays":[],"header":{"a":[' + filling * (size // len(filling)) + b'0]},"kind":"sketch"}'
    bad = framed(inside)
    tracemalloc.start()
    with contextlib.suppress(MessageError):
        unpack(bad, "sketch", limit_bytes=limit)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= limit


def test_a_header_of_many_labels_still_fits() -> None:
    labels = [f"feature-{j:06d}" for j in range(100_000)]
    raw = pack("trial", {"features": labels}, {})
    assert unpack(raw, "trial", limit_bytes=len(raw) + 64 * 2**20)[0]["features"] == labels


DTYPES = ["f8", "f4", "i8", "i4", "u1"]
ENTRY = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["X", "Y", "a.b", "", "1", "X" * 65]) | JSON,
        "dtype": st.sampled_from([*DTYPES, "O8", "f2", "V4"]) | JSON,
        "shape": st.lists(st.integers(0, 4) | st.sampled_from([-1, 2**39, 2**40, 2**63, True, 1.0, None]), max_size=9) | JSON,
    }
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file built the way a forger would: a right frame and digest around claims that are right, nearly right or wild."""
    entries = draw(st.lists(ENTRY, max_size=4))
    content = {"kind": draw(st.sampled_from(["sketch", "payload", "x", ""]) | JSON), "header": draw(JSON), "arrays": entries}
    if draw(st.integers(0, 9)) == 0:
        content[draw(st.text(max_size=5))] = draw(JSON)
    text = json.dumps(content).encode()
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.binary(max_size=6)) + text[at + draw(st.integers(0, 6)) :]
    text += b" " * (-(16 + len(text)) % 64 if draw(st.booleans()) else draw(st.integers(0, 70)))
    rest = b"" if draw(st.booleans()) else _rest(entries)
    head = struct.pack("<8sII", MAGIC, draw(st.sampled_from([1, 1, 1, 0, 2**32 - 1])), draw(lengths(len(text))))
    body = head + text + rest + draw(st.binary(max_size=80))
    return sealed(body) if draw(st.integers(0, 5)) else body + bytes(32)


def lengths(right: int) -> st.SearchStrategy[int]:
    return st.sampled_from([right, right, right, right, 0, right + 1, 2**31, 2**32 - 1])


def _rest(entries: list[dict[str, object]]) -> bytes:
    """Zeros of the size that the claims add up to, where that is small."""
    out = 0
    for entry in entries:
        shape, dtype = entry["shape"], entry["dtype"]
        if isinstance(shape, list) and all(isinstance(k, int) and 0 <= k < 9 for k in shape) and dtype in DTYPES:
            size = math.prod(shape) * int(str(dtype)[1])
            out += size + -size % 64
    return bytes(min(out, 2**16))


def any_reader(data: bytes) -> None:
    readers = (
        lambda: unpack(data, "sketch", limit_bytes=2**20), lambda: Sketch.load(data),
        lambda: unpack_payload(data, 2**20),
    )  # fmt: skip
    for read in readers:
        with contextlib.suppress(MessageError):
            read()


def forged(data: bytes, seed: int, changes: int) -> None:
    """A forged file, and so many more with bytes changed, cut or inserted and a digest that fits again."""
    any_reader(data)
    rng = np.random.default_rng(seed)
    for _ in range(changes):
        any_reader(sealed(mutate(data[:-32], rng)))


@settings(max_examples=400, deadline=None)
@given(files(), st.integers(0, 2**32))
def test_forged_files_give_our_error_only(data: bytes, seed: int) -> None:
    """400 files × 11: some thousands."""
    forged(data, seed, 10)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(files(), st.integers(0, 2**32))
def test_a_million_forged_files_give_our_error_only(data: bytes, seed: int) -> None:
    """2,000 files × 501."""
    forged(data, seed, 500)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["index", "size", "data", "sha256", "whole", "x"]), JSON | st.binary(max_size=9)) | JSON)
def test_any_piece_gives_our_error_only(piece: object) -> None:
    """Missing, strange and wrong entries of a piece, each alone and together."""
    with contextlib.suppress(MessageError):
        Assembly(io.BytesIO(), 100).add(piece)


def test_a_piece_that_lacks_any_entry_is_our_error() -> None:
    whole = cut(b"abc", 0)
    assert Assembly(io.BytesIO()).add(whole)
    for name in whole:
        with pytest.raises(MessageError):
            Assembly(io.BytesIO()).add({k: v for k, v in whole.items() if k != name})
    with pytest.raises(MessageError, match="at most 2 are accepted"):
        Assembly(io.BytesIO(), 2).add(whole)


def test_a_payload_whose_parts_are_named_otherwise_is_our_error() -> None:
    part = np.zeros(3, np.uint8)
    for names, arrays in ((["x"], {"b0": part}), (["x", "y"], {"a0": part}), (["x", "x"], {"a0": part, "a1": part}),
                          ([1], {"a0": part}), (["x"], {"a0": np.zeros(3)}), (None, {})):  # fmt: skip
        with pytest.raises(MessageError):
            unpack_payload(pack("payload", {"names": names}, arrays))
