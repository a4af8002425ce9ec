"""Alignment messages and the server's part of the alignment, which works on opaque tokens only."""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import AlignmentError, MessageError
from intarsia.wire.container import pack, unpack
from intarsia.wire.messages import check_labels
from intarsia.wire.schema import check_name

TOKEN_BYTES = 16
MUCH_LOST = 0.2  # share of the shortest list: above it the ids are probably not written alike
ALIKE = (
    '1, 001 and 1.0 are three ids, which [alignment] canonical = ["strip", "integer"] in study.toml makes one '
    '("lower": A1 and a1).'
)
MODES = ("strict", "intersect", "union")
_HEX64 = re.compile(r"[0-9a-f]{64}")


def halves(tokens: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The tokens as two unsigned numbers, whose order is the order of the bytes."""
    words = np.ascontiguousarray(tokens).view(">u8").astype(np.uint64)
    return words[:, 0], words[:, 1]


@dataclass(frozen=True)
class AlignmentReport:
    """A site's cohort: its size, a keyed digest of it, and unless the mode is `strict` the sorted tokens.

    In `union` mode also its responses, and which of them each subject has (n, Q).
    """

    site: str
    study_hash: str
    mode: str
    n: int
    mac: str
    tokens: NDArray[np.uint8] | None = field(default=None, repr=False)
    responses: tuple[str, ...] = ()
    has: NDArray[np.bool_] | None = field(default=None, repr=False)

    def to_bytes(self) -> bytes:
        header: dict[str, Any] = {"site": self.site, "study_hash": self.study_hash, "mode": self.mode, "n": self.n}
        header["mac"] = self.mac
        arrays = {} if self.tokens is None else {"tokens": self.tokens}
        if self.mode == "union":
            header["responses"] = list(self.responses)
            arrays["has"] = np.packbits(np.empty(0, bool) if self.has is None else self.has)
        return pack("alignment", header, arrays)

    @classmethod
    def from_bytes(cls, raw: Any) -> "AlignmentReport":
        header, arrays = unpack(raw, "alignment")
        union = header.get("mode") == "union"
        site, study_hash = checked(header, "alignment", ("mode", "n", "mac", *(("responses",) if union else ())))
        mode, n, mac = header["mode"], header["n"], header["mac"]
        if mode not in MODES or type(n) is not int or not 0 < n < 2**40 or not is_digest(mac):
            raise MessageError(f"The alignment report of site {site!r} has entries of the wrong kind.")
        if set(arrays) != {"strict": set(), "intersect": {"tokens"}, "union": {"tokens", "has"}}[mode]:
            raise MessageError(f"The alignment report of site {site!r} does not fit its mode {mode!r}.")
        tokens = arrays.get("tokens")
        if tokens is not None:
            if tokens.dtype != np.uint8 or tokens.shape != (n, TOKEN_BYTES):
                raise MessageError(f"The tokens of site {site!r} must be {n} × {TOKEN_BYTES} bytes.")
            high, low = halves(tokens)
            ascending = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
            if not ascending.all():
                raise MessageError(f"The tokens of site {site!r} are not ascending without repetition.")
        if not union:
            return cls(site, study_hash, mode, n, mac, tokens)
        responses, bits = check_labels(header["responses"], "response"), arrays["has"]
        size = n * len(responses)
        if bits.dtype != np.uint8 or bits.shape != ((size + 7) // 8,):
            raise MessageError(f"Site {site!r} must say for {n} subjects which of {len(responses)} responses they have.")
        has = np.unpackbits(bits, count=size).astype(bool).reshape(n, len(responses))
        return cls(site, study_hash, mode, n, mac, tokens, responses, has)


@dataclass(frozen=True)
class Cohort:
    """The server's answer to one site: which of its tokens, in their order, belong to the common cohort."""

    site: str
    study_hash: str
    mode: str
    n: int
    keep: NDArray[np.bool_] | None = field(default=None, repr=False)

    def to_bytes(self) -> bytes:
        header = {"site": self.site, "study_hash": self.study_hash, "mode": self.mode, "n": self.n}
        if self.keep is None:
            return pack("cohort", header | {"of": self.n}, {})
        return pack("cohort", header | {"of": len(self.keep)}, {"keep": np.packbits(self.keep)})

    @classmethod
    def from_bytes(cls, raw: Any) -> "Cohort":
        header, arrays = unpack(raw, "cohort")
        site, study_hash = checked(header, "cohort", ("mode", "n", "of"))
        mode, n, of = header["mode"], header["n"], header["of"]
        if mode not in MODES or type(n) is not int or type(of) is not int or not 0 < n <= of < 2**40:
            raise MessageError("The agreed cohort has entries of the wrong kind.")
        if mode == "strict":
            if arrays or n != of:
                raise MessageError("A strict alignment has no selection of subjects.")
            return cls(site, study_hash, mode, n)
        bits = arrays.get("keep")
        if bits is None or set(arrays) != {"keep"} or bits.dtype != np.uint8 or bits.shape != ((of + 7) // 8,):
            raise MessageError("The agreed cohort's selection has the wrong length.")
        keep = np.unpackbits(bits, count=of).astype(bool)
        if int(keep.sum()) != n:
            raise MessageError("The agreed cohort's selection does not have the size it states.")
        return cls(site, study_hash, mode, n, keep)


def intersect(reports: Mapping[str, AlignmentReport]) -> dict[str, Cohort]:
    """The common cohort of all sites, an answer for each; AlignmentError if there is none."""
    first = next(iter(reports.values()))
    if first.mode == "strict":
        return _strict(reports)
    site = np.concatenate([np.full(r.n, k, dtype=np.int32) for k, r in enumerate(reports.values())])
    high, low = halves(np.concatenate([r.tokens for r in reports.values() if r.tokens is not None]))
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    starts = np.flatnonzero(np.r_[True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])])
    lengths = np.diff(np.r_[starts, len(high)])
    everywhere = np.zeros(len(high), dtype=bool)
    everywhere[order] = np.repeat(lengths == len(reports), lengths)
    common = int((lengths == len(reports)).sum())
    if not common:
        sizes = ", ".join(f"{name!r} {r.n}" for name, r in reports.items())
        raise AlignmentError(
            f"No subject is at all sites (subjects: {sizes}). Check that all sites use the same kind of id and that "
            "[alignment] canonical in study.toml fits it."
        )
    return {
        name: Cohort(name, report.study_hash, report.mode, common, everywhere[site == k])
        for k, (name, report) in enumerate(reports.items())
    }


def who_is_common(n: int, listed: Mapping[str, int]) -> list[str]:
    """What an intersection keeps and loses, in words, for those who can still stop: `listed` counts each site's list."""
    lost = {name: count - n for name, count in listed.items() if count > n}
    said = [f"{n:,} subjects are at all sites"]
    if lost:
        each = ", ".join(f"{lost[name]:,} of {listed[name]:,} at {name}" for name in lost)
        said.append(f"  not at all sites, so left out: {each}")
    shortest = min(listed.values(), default=n)
    if shortest - n > MUCH_LOST * shortest:
        said += [
            f"  ATTENTION: that is {1 - n / shortest:.0%} of even the shortest list. Are ids written alike everywhere?",
            f"  {ALIKE}",
            "  A corrected study.toml is a new text: all sites accept it again.",
        ]
    return said


def _strict(reports: Mapping[str, AlignmentReport]) -> dict[str, Cohort]:
    groups: dict[str, list[str]] = {}
    for name, report in reports.items():
        groups.setdefault(report.mac, []).append(name)
    if len(groups) > 1:
        sizes = ", ".join(f"{name!r} has {report.n}" for name, report in reports.items())
        largest = max(groups.values(), key=len)
        differing = [name for name in reports if name not in largest] if len(largest) > 1 else list(reports)
        sizes_of = [{reports[name].n for name in names} for names in groups.values()]
        written = ""
        if any(a & b for a, b in combinations(sizes_of, 2)):
            written = f"Where numbers agree, the ids may only be written differently: {ALIKE} "
        raise AlignmentError(
            f"The sites do not hold the same subjects: {sizes} subjects; the cohorts of {', '.join(differing)} differ. {written}"
            'Make them equal (whoever withdrew at one site, at all), or set [alignment] mode = "intersect" in study.toml.'
        )
    return {name: Cohort(name, r.study_hash, r.mode, r.n) for name, r in reports.items()}


def other_subjects(a: str, of_a: int, b: str, of_b: int) -> str:
    """Two sites' messages rest on other subjects, found when both had left: what it means and how it goes on."""
    why = ALIKE if of_a == of_b else 'Where not all sites have everybody, say [alignment] mode = "intersect" in study.toml.'
    return (
        f"Sites {a!r} ({of_a:,} subjects) and {b!r} ({of_b:,} subjects) do not prove the same subjects in the same order. {why} "
        "The sites then accept the corrected study.toml and send anew; what has left stays counted in their ledgers. To have "
        "subjects compared before anything leaves: intarsia site announce, site align, server align."
    )


def checked(header: Mapping[str, Any], kind: str, extra: tuple[str, ...]) -> tuple[str, str]:
    """Site and study hash of a header that has exactly the entries it should."""
    if set(header) != {"site", "study_hash", *extra}:
        raise MessageError(f"The {kind} message does not have the expected entries.")
    site, study_hash = header["site"], header["study_hash"]
    if not check_name(site) or not is_digest(study_hash):
        raise MessageError(f"The {kind} message carries no valid site name or study hash.")
    return site, study_hash


def is_digest(value: object) -> bool:
    return isinstance(value, str) and _HEX64.fullmatch(value) is not None


def same(a: str, b: str) -> bool:
    return hmac.compare_digest(a, b)
