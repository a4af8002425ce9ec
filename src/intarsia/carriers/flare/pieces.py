"""Large messages travel in pieces of at most 32 MB, each with its digest, and the whole with its own."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from intarsia.errors import MessageError
from intarsia.wire.container import pack, unpack

PIECE_BYTES = 32 * 2**20
LIMIT_BYTES = 16 * 2**30


def pack_payload(payload: Mapping[str, bytes | Path]) -> bytes:
    """Named byte strings as one message."""
    names = list(payload)
    raws = [v.read_bytes() if isinstance(v, Path) else v for v in payload.values()]
    return pack("payload", {"names": names}, {f"a{i}": np.frombuffer(raw, np.uint8) for i, raw in enumerate(raws)})


def unpack_payload(raw: bytes, limit_bytes: int = LIMIT_BYTES) -> dict[str, bytes]:
    header, arrays = unpack(raw, "payload", limit_bytes=limit_bytes)
    names = header.get("names")
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
        raise MessageError("The server's message is damaged: its parts have no names.")
    if set(arrays) != {f"a{i}" for i in range(len(names))} or any(a.dtype != np.uint8 for a in arrays.values()):
        raise MessageError("The server's message is damaged: its parts are not those it names.")
    return {name: arrays[f"a{i}"].tobytes() for i, name in enumerate(names)}


def count(size: int) -> int:
    return max(1, -(-size // PIECE_BYTES))


def cut(raw: bytes, index: int) -> dict[str, Any]:
    """Piece `index` of a message, as the engine carries it."""
    data = raw[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
    return {
        "index": index,
        "size": len(raw),
        "data": data,
        "sha256": hashlib.sha256(data).hexdigest(),
        "whole": hashlib.sha256(raw).hexdigest() if index == 0 else "",
    }


def all_pieces(raw: bytes) -> Iterator[dict[str, Any]]:
    for index in range(count(len(raw))):
        yield cut(raw, index)


@dataclass
class Assembly:
    """Puts pieces together, in order, into a file or memory; refuses anything that does not fit."""

    sink: IO[bytes]
    limit_bytes: int = LIMIT_BYTES
    size: int = -1
    whole: str = ""
    received: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, piece: Mapping[str, Any] | Any) -> bool:
        """Take the next piece; True when the message is complete and whole."""
        if not isinstance(piece, Mapping):
            raise MessageError("A piece of a message is missing.")
        index, size, data = piece.get("index"), piece.get("size"), piece.get("data")
        if type(index) is not int or type(size) is not int or not isinstance(data, bytes | bytearray):
            raise MessageError("A piece of a message has entries of the wrong kind.")
        if self.size < 0:
            whole = piece.get("whole")
            if not 0 <= size <= self.limit_bytes or not isinstance(whole, str):
                raise MessageError(f"A message of {size:,} bytes is announced; at most {self.limit_bytes:,} are accepted.")
            self.size, self.whole = size, whole
        expected = min(PIECE_BYTES, self.size - self.received)
        if size != self.size or index * PIECE_BYTES != self.received or len(data) != expected:
            raise MessageError("A piece of a message is out of turn or has the wrong length.")
        if hashlib.sha256(data).hexdigest() != piece.get("sha256"):
            raise MessageError("A piece of a message was damaged on its way.")
        self.sink.write(data)
        self.digest.update(data)
        self.received += len(data)
        if self.received < self.size:
            return False
        if self.digest.hexdigest() != self.whole:
            raise MessageError("A message was damaged on its way: its pieces do not make the whole.")
        return True
