"""A screened study by files: what a server asks of a site in one file, and the site's answers in another.

A letter holds the requests that a connected server would have sent, in order; the answers are what the site would have answered.
So a study by letters is the study over the network, message for message.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.errors import MessageError
from intarsia.wire.alignment import checked, is_digest
from intarsia.wire.container import pack, unpack
from intarsia.wire.steps import STEPS

MOST_ENTRIES = 200  # entries with content in one letter: what a message may hold
_SHORT = 64  # bytes up to which an entry stands in the header


@dataclass(frozen=True)
class Request:
    """One step and its entries."""

    step: str
    entries: dict[str, bytes] = field(repr=False)

    @property
    def key(self) -> str:
        """What stands for it: the same request has the same answer."""
        state = hashlib.sha256(self.step.encode())
        for name in sorted(self.entries):
            state.update(f"|{name}|".encode() + hashlib.sha256(self.entries[name]).digest())
        return state.hexdigest()

    @property
    def large(self) -> int:
        return sum(len(raw) > _SHORT for raw in self.entries.values())


@dataclass(frozen=True)
class Letter:
    """Requests to one site, in the order in which they are to be answered; the server's word alone."""

    site: str
    study_hash: str
    requests: tuple[Request, ...] = field(repr=False)

    def to_bytes(self) -> bytes:
        header: dict[str, Any] = {"site": self.site, "study_hash": self.study_hash, "requests": []}
        arrays: dict[str, np.ndarray] = {}
        for one in self.requests:
            said: dict[str, Any] = {"step": one.step, "short": {}, "long": {}}
            for name, raw in one.entries.items():
                if len(raw) <= _SHORT:
                    said["short"][name] = raw.hex()
                else:
                    said["long"][name] = f"a{len(arrays)}"
                    arrays[f"a{len(arrays)}"] = np.frombuffer(raw, dtype=np.uint8)
            header["requests"].append(said)
        return pack("letter", header, arrays)

    @classmethod
    def from_bytes(cls, raw: Any) -> "Letter":
        header, arrays = unpack(raw, "letter")
        site, study_hash = checked(header, "letter", ("requests",))
        try:
            requests = tuple(_request(said, arrays) for said in header["requests"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise MessageError("The letter's requests are not of the expected form: it is damaged or not ours.") from None
        return cls(site, study_hash, requests)


@dataclass(frozen=True)
class Answers:
    """A site's answers to a letter, by the requests' keys: a message, or the fixed words of a refusal."""

    site: str
    study_hash: str
    messages: dict[str, bytes] = field(repr=False)
    refusals: dict[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        keys = list(self.messages)
        header = {"site": self.site, "study_hash": self.study_hash, "keys": keys, "refusals": self.refusals}
        return pack("answers", header, {f"a{k}": np.frombuffer(self.messages[key], np.uint8) for k, key in enumerate(keys)})

    @classmethod
    def from_bytes(cls, raw: Any) -> "Answers":
        header, arrays = unpack(raw, "answers")
        site, study_hash = checked(header, "answers", ("keys", "refusals"))
        keys, refusals = header["keys"], header["refusals"]
        right = isinstance(keys, list) and isinstance(refusals, dict) and set(arrays) == {f"a{k}" for k in range(len(keys))}
        if not right or not all(is_digest(key) for key in (*keys, *refusals)) or len(set(keys)) != len(keys):
            raise MessageError("The answers are not of the expected form: they are damaged or not ours.")
        if any(a.dtype != np.uint8 or a.ndim != 1 for a in arrays.values()):
            raise MessageError("The answers hold arrays of the wrong kind.")
        words = {key: str(text)[:500] for key, text in refusals.items()}
        return cls(site, study_hash, {key: arrays[f"a{k}"].tobytes() for k, key in enumerate(keys)}, words)


def _request(said: dict[str, Any], arrays: dict[str, np.ndarray]) -> Request:
    if set(said) != {"step", "short", "long"} or said["step"] not in STEPS:
        raise MessageError("The letter asks for a step that no site knows.")
    entries = {str(name): bytes.fromhex(text) for name, text in said["short"].items()}
    for name, label in said["long"].items():
        array = arrays[label]
        if array.dtype != np.uint8 or array.ndim != 1:
            raise MessageError("The letter holds arrays of the wrong kind.")
        entries[str(name)] = array.tobytes()
    return Request(said["step"], entries)
