"""The file every message travels in: magic, JSON header, raw little-endian arrays, digest. No pickle, no code.

    8 bytes   magic  b"INTARSIA"
    4 bytes   container version, unsigned little-endian
    4 bytes   length H of the JSON part
    H bytes   JSON {"kind", "header", "arrays": [{"name", "dtype", "shape"}, …]}, padded with spaces to 64
    …         each array in that order, C order, little-endian, zero-padded to 64 bytes
    32 bytes  SHA-256 of everything before it

The digest finds accidents, not forgers (signatures are a matter of the federation), so every claim of the header is
checked against the real size before anything is allocated, and what the JSON part will take in memory is bounded before it
is parsed: a reader never needs more than the caller allows (`limit_bytes`), whatever the file says.
"""

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.errors import MessageError, of_the_system
from intarsia.files import OPEN, replace
from intarsia.wire.bounded import LARGEST_BYTES, read_file

MAGIC = b"INTARSIA"
VERSION = 1
MAX_HEADER_BYTES = 64 * 2**20
MAX_BYTES = LARGEST_BYTES
MAX_ARRAYS = 256
ALIGN_BYTES = 64
_PREFIX = struct.Struct("<8sII")
_DIGEST_BYTES = 32
# Python's own cost of a JSON value: no value (an empty object is the dearest) takes more, its text not counted.
_VALUE_BYTES = 128
# A character of text takes up to four bytes, and the parser holds the decoded text and its parts at the same time.
_TEXT_FACTOR = 8
_FINITE_BLOCK = 2**20  # numbers looked at together
_DTYPES = {"f8": "<f8", "f4": "<f4", "i8": "<i8", "i4": "<i4", "u1": "|u1"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

Arrays = dict[str, np.ndarray]


def _padding(size: int) -> int:
    return -size % ALIGN_BYTES


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def pack(kind: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """One message as bytes. `header` is JSON-able, `arrays` are float64/float32/int64/int32/uint8 and finite."""
    if not _NAME.fullmatch(kind):
        raise MessageError(f"{kind!r} is not a message kind: letters, digits, '_', '.' and '-', at most 64.")
    entries, chunks = [], []
    for name, given in arrays.items():
        array = np.asarray(given)
        code = f"{array.dtype.kind}{array.dtype.itemsize}"
        if not _NAME.fullmatch(name) or code not in _DTYPES:
            raise MessageError(f"Array {name!r} of type {array.dtype} cannot be packed: use {', '.join(_DTYPES)}.")
        numbers = np.ascontiguousarray(array, dtype=_DTYPES[code]).reshape(-1)
        if code[0] == "f" and not finite(numbers):
            raise MessageError(f"Array {name!r} holds values that are not finite; a message never does.")
        entries.append({"name": name, "dtype": code, "shape": list(array.shape)})
        chunks += [numbers.view(np.uint8).data, bytes(_padding(numbers.nbytes))]
    try:
        text = json.dumps(
            {"kind": kind, "header": dict(header), "arrays": entries},
            allow_nan=False, ensure_ascii=False, separators=(",", ":"), sort_keys=True,
        ).encode()  # fmt: skip
    except (TypeError, ValueError) as error:
        raise MessageError(f"The header of a {kind!r} message is not plain JSON: {type(error).__name__}.") from None
    text += b" " * _padding(_PREFIX.size + len(text))
    if len(text) > MAX_HEADER_BYTES:
        raise MessageError(f"The header has {len(text):,} bytes, at most {MAX_HEADER_BYTES:,} may be. Shorten the labels.")
    # A large array is copied once, into the message.
    parts: list[Any] = [_PREFIX.pack(MAGIC, VERSION, len(text)), text, *chunks]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def write(path: str | os.PathLike[str], data: bytes, *, mode: int = OPEN) -> None:
    """Write a file whole or not at all: a reader never meets a half-written message."""
    target = Path(path)
    try:
        replace(target, data, mode=mode)
    except OSError as error:
        error.filename = None  # said already
        raise MessageError(f"Cannot write {target}: {of_the_system(error)}") from None


def _read(source: bytes | bytearray | memoryview | str | os.PathLike[str], limit: int) -> tuple[bytes, str]:
    if not isinstance(source, bytes | bytearray | memoryview):
        return read_file(source, limit), str(source)
    size = memoryview(source).nbytes
    if size > limit:
        raise MessageError(f"The message has {size:,} bytes; at most {limit:,} are accepted.")
    return bytes(source), "The message"


def _affordable(text: memoryview, room: int, what: str) -> None:
    """Refuse a JSON part that would take more memory than there is room for, before it is parsed.

    Every value but the first stands after a bracket, a comma or a colon, so these bound the number of values.
    """
    raw = bytes(text)
    values = 1 + sum(raw.count(mark) for mark in (b"[", b"{", b",", b":"))
    need = _TEXT_FACTOR * len(raw) + _VALUE_BYTES * values
    if need > room:
        raise MessageError(f"{what} has a header of up to {values:,} entries, too many for the memory allowed for it. Refused.")


def _parse(data: bytes, what: str, limit: int) -> tuple[str, dict[str, Any], list[Any], int]:
    """Check the frame and the digest; return kind, header, array entries and where the arrays begin."""
    if len(data) < _PREFIX.size + _DIGEST_BYTES:
        raise MessageError(f"{what} has {len(data)} bytes: too short for a message. Ask the sender for it again.")
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise MessageError(f"{what} is not an intarsia message: it does not begin with the mark {MAGIC.decode()}.")
    if version != VERSION:
        raise MessageError(
            f"{what} has container version {version}, this intarsia reads version {VERSION}. Use the same intarsia at all sites."
        )
    start = _PREFIX.size + length
    if length > MAX_HEADER_BYTES or start + _DIGEST_BYTES > len(data):
        raise MessageError(f"{what} is truncated: its header claims {length:,} bytes, the message has {len(data):,}.")
    view = memoryview(data)
    if hashlib.sha256(view[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        raise MessageError(f"{what} is damaged: its digest does not fit its content. Ask the sender for it again.")
    # Few labels always fit: a small limit is about the file, not about its header.
    _affordable(view[_PREFIX.size : start], max(limit - len(data), 2**20), what)
    try:
        content = json.loads(bytes(view[_PREFIX.size : start]).decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError, MemoryError):
        raise MessageError(f"{what} is damaged: its header is not JSON.") from None
    if not isinstance(content, dict) or set(content) != {"kind", "header", "arrays"}:
        raise MessageError(f"{what} is damaged: its header must have exactly kind, header and arrays.")
    kind, header, entries = content["kind"], content["header"], content["arrays"]
    right = isinstance(kind, str) and isinstance(header, dict) and isinstance(entries, list)
    if not right or not _NAME.fullmatch(kind):
        raise MessageError(f"{what} is damaged: kind, header or arrays has the wrong type.")
    return kind, header, entries, start


def _entry(entry: Any, what: str) -> tuple[str, str, tuple[int, ...], int]:
    """One array's claim, checked for form: name, dtype code, shape, bytes."""
    if not isinstance(entry, dict) or set(entry) != {"name", "dtype", "shape"}:
        raise MessageError(f"{what} is damaged: an array entry must have exactly name, dtype and shape.")
    name, code, shape = entry["name"], entry["dtype"], entry["shape"]
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(code, str) or code not in _DTYPES:
        raise MessageError(f"{what} is damaged: an array has a wrong name or type.")
    if not isinstance(shape, list) or len(shape) > 8 or any(type(k) is not int or not 0 <= k < 2**40 for k in shape):
        raise MessageError(f"{what} is damaged: array {name!r} has no usable shape.")
    # An axis of length nothing hides the others from the product, but not from the array library.
    if math.prod(max(k, 1) for k in shape) >= 2**40:
        raise MessageError(f"{what} is damaged: array {name!r} has no usable shape.")
    return name, code, tuple(shape), math.prod(shape) * int(code[1])


def unpack(
    source: bytes | bytearray | memoryview | str | os.PathLike[str], kind: str, *, limit_bytes: int = MAX_BYTES
) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays (read-only views) of a message of this kind; MessageError on anything else.

    `limit_bytes` bounds the memory that reading takes: the file itself, and what its header becomes.

    Float arrays are finite, shapes fit the file exactly. What the header's fields mean is checked by the message types.
    """
    data, what = _read(source, limit_bytes)
    found, header, entries, start = _parse(data, what, limit_bytes)
    if found != kind:
        raise MessageError(f"{what} is a {found!r} message, a {kind!r} message was expected.")
    if len(entries) > MAX_ARRAYS:
        raise MessageError(f"{what} claims {len(entries)} arrays; at most {MAX_ARRAYS} are accepted.")
    claims = [_entry(entry, what) for entry in entries]
    if len({name for name, *_ in claims}) != len(claims):
        raise MessageError(f"{what} is damaged: two arrays have the same name.")
    # All sizes are compared before the first array is touched, so a false claim costs nothing.
    need = start + sum(size + _padding(size) for *_, size in claims) + _DIGEST_BYTES
    if need != len(data):
        raise MessageError(f"{what} has {len(data):,} bytes, its header claims {need:,}: truncated or damaged.")
    arrays: Arrays = {}
    for name, code, shape, size in claims:
        array = np.frombuffer(data, dtype=_DTYPES[code], count=size // int(code[1]), offset=start).reshape(shape)
        if code[0] == "f" and not finite(array):
            raise MessageError(f"{what}: array {name!r} holds values that are not finite. Ask the sender for it again.")
        arrays[name] = array
        start += size + _padding(size)
    return header, arrays


def undamaged(message: bytes) -> bool:
    """Does the digest at a message's end fit what is before it?"""
    return hashlib.sha256(memoryview(message)[:-_DIGEST_BYTES]).digest() == message[-_DIGEST_BYTES:]


def finite(array: np.ndarray) -> bool:
    """Is every number? Block by block: the answer for each number is not held for all of them at once."""
    flat = array.reshape(-1)
    return all(bool(np.isfinite(flat[i : i + _FINITE_BLOCK]).all()) for i in range(0, flat.size, _FINITE_BLOCK))
