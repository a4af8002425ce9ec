"""Every type of message, and study.toml, with entries replaced, removed or added: read, or refused with our error."""

import contextlib
import hashlib
import json
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.federation import frames, sites, study

from intarsia.errors import MessageError, StudyError
from intarsia.site.identity import Identity
from intarsia.site.units import Units
from intarsia.wire import (
    alignment,
    coefficients,
    cohort_groups,
    gram_messages,
    leave,
    letters,
    messages,
    prediction,
    screening,
    signed,
)
from intarsia.wire.announcement import Announcement
from intarsia.wire.container import MAGIC
from intarsia.wire.ring import fraction_bits
from intarsia.wire.study import Study

HASH = "ab" * 32
NUMBERS = np.random.default_rng(0)
BYTES_OF = {"f8": 8, "f4": 4, "i8": 8, "i4": 4, "u1": 1}


def _good() -> dict[str, tuple[bytes, Callable[[Any], Any]]]:
    """One good message of each type, and its reader."""
    six, two = NUMBERS.standard_normal((6, 3)), NUMBERS.standard_normal((6, 2))
    sketch = messages.Sketch(
        "clinic", ("a", "b", "größe"), ("y", "z"), six, two, 40, 6, "orthonormal", "float64", HASH, "cd" * 16, HASH
    )
    tokens = np.sort(NUMBERS.integers(0, 255, (5, 16), dtype=np.uint8), axis=0)
    has = np.ones((5, 2), bool)
    columns = {name: np.ones((3, 2)) for name in ("mean", "sd", "lower", "upper")}
    fitted = coefficients.Coefficients(
        "clinic", HASH, ("a", "b", "c"), ("y", "z"), ("clinic", "mri"), 0.95, **columns, pip=np.ones(3),
        selected=np.ones(3, bool), by_response=np.ones((3, 2), bool), sigma2_mean=np.ones(1),
        draws=np.ones((4, 3, 2)), sigma2=np.ones((4, 1)), fit_parts={"clinic": HASH},
    )  # fmt: skip
    bound: dict[str, Any] = {"site": "clinic", "study_hash": HASH, "request": "june", "fit_digest": HASH, "order_mac": HASH}
    bound |= {"n": 3, "digest": HASH}
    masked = np.zeros((4, 3, 1), np.uint64)
    identity = Identity.new("clinic")
    group = cohort_groups.Group(30, 10, ("y",))
    offer = signed.KeyOffer("clinic", HASH, bytes(1216))
    share = signed.ShareBundle("clinic", HASH, bytes(32), bytes(32), {"mri": b"x"})
    file = signed.FileSignature("clinic", HASH, HASH)
    receipt = signed.Receipt("clinic", HASH, HASH, 3, HASH)
    notice = leave.Leave("clinic", HASH, HASH)

    def by_key(message: Any) -> bytes:
        return bytes(type(message)(**{**vars(message), "signature": identity.sign(message.body())}).to_bytes())

    gram = gram_messages.GramBlock(
        "clinic", HASH, ("a", "b"), ("y",), (), 400, (200, 200), fraction_bits(400), HASH, "cd" * 16, HASH, HASH, (HASH,),
        np.zeros((2, 3, 3), np.uint64), np.zeros((3, 32), np.uint8),
    )  # fmt: skip
    screen = screening.ScreenBlock(
        "clinic", HASH, ("a", "b"), ("y",), (), 400, fraction_bits(400), HASH, "cd" * 16, HASH, HASH, (HASH,), 9,
        np.zeros((3, 32), np.uint8),
    )  # fmt: skip
    mixed = screening.ScreenBlock(
        "clinic", HASH, ("a", "b"), ("y",), (), 400, fraction_bits(400), HASH, "cd" * 16, HASH, HASH, (HASH,), 9,
        np.zeros((0, 32), np.uint8), mixed=hashlib.sha256(sketch.to_bytes()).hexdigest(), sketch=sketch.to_bytes(),
    )  # fmt: skip
    asked = (letters.Request("keep", {"kept": b"x" * 80, "round.number": b"2"}), letters.Request("offer", {}))
    coins, opened = {"clinic": bytes(32), "mri": bytes(32)}, {"1": np.zeros((5, 16), np.uint64)}
    shares, tails = {"0-1": np.zeros((2, 2, 2), np.uint64)}, {"1": np.zeros((2, 16, 16), np.uint64)}
    units = Units(("a", "b"), ("y",), *(np.ones(k) for k in (2, 2, 1, 1)))
    return {
        "sketch": (sketch.to_bytes(), messages.Sketch.load),
        "groups": (cohort_groups.GroupedSketch("clinic", HASH, ("y", "z"), {0: sketch, 1: sketch}).to_bytes(),
                   cohort_groups.GroupedSketch.load),
        "coefficients": (fitted.to_bytes(), coefficients.Coefficients.from_bytes),
        "offer": (by_key(offer), signed.KeyOffer.from_bytes),
        "share": (by_key(share), signed.ShareBundle.from_bytes),
        "file": (by_key(file), signed.FileSignature.from_bytes),
        "receipt": (by_key(receipt), signed.Receipt.from_bytes),
        "leave": (by_key(notice), leave.Leave.from_bytes),
        "confirmation": (signed.Confirmation("clinic", HASH, bytes(32), "cd" * 16).to_bytes(), signed.Confirmation.from_bytes),
        "announcement": (Announcement("clinic", HASH, 5, 6).signed(bytes(32)).to_bytes(), Announcement.from_bytes),
        "alignment": (alignment.AlignmentReport("clinic", HASH, "union", 5, HASH, tokens, ("y", "z"), has).to_bytes(),
                      alignment.AlignmentReport.from_bytes),
        "cohort": (alignment.Cohort("clinic", HASH, "intersect", 3, np.array([1, 1, 0, 1], bool)).to_bytes(),
                   alignment.Cohort.from_bytes),
        "union": (cohort_groups.UnionCohort("clinic", HASH, (group,), 3, np.zeros(30, np.int32)).to_bytes(),
                  cohort_groups.UnionCohort.from_bytes),
        "gram": (by_key(gram), gram_messages.GramBlock.from_bytes),
        "deal": (gram_messages.GramDeal("clinic", HASH, 0, HASH, bytes(32), {1: b"sealed"}).to_bytes(),
                 gram_messages.GramDeal.from_bytes),
        "product": (by_key(gram_messages.GramProduct("clinic", HASH, HASH, 1, bytes(32), coins, opened, shares, tails)),
                    gram_messages.GramProduct.from_bytes),
        "screen": (by_key(screen), screening.ScreenBlock.from_bytes),
        "screen with a sketch": (by_key(mixed), screening.ScreenBlock.from_bytes),
        "kept": (screening.KeptList(HASH, 2, ("a", "b")).to_bytes(), screening.KeptList.from_bytes),
        "look": (screening.Look(HASH, 1, np.ones((4, 2), np.int64)).to_bytes(), screening.Look.from_bytes),
        "sums": (by_key(screening.LookShares("clinic", HASH, HASH, 1, bytes(32), {"0": np.zeros((18, 2), np.uint64)})),
                 screening.LookShares.from_bytes),
        "letter": (letters.Letter("clinic", HASH, asked).to_bytes(), letters.Letter.from_bytes),
        "answers": (letters.Answers("clinic", HASH, {HASH: b"message"}, {"ba" * 32: "refused"}).to_bytes(),
                    letters.Answers.from_bytes),
        "part": (prediction.PredictionPart(**bound, parts={"mri": masked}).to_bytes(), prediction.PredictionPart.from_bytes),
        "sum": (prediction.PredictionSum(**bound, total=masked).to_bytes(), prediction.PredictionSum.from_bytes),
        "units": (units.to_bytes(), Units.from_bytes),
    }  # fmt: skip


GOOD = _good()
WILD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**40, 2**63, -(2**63), 10**30, 10**400, 0.0, 0.5, -1.0, 5e-324, 1e308,
    "", "a", "../x", "\x1b[2J", "=1+1", "\ud800", "²", "x" * 300, HASH, HASH.upper(), "A" * 44, "A" * 43 + "=", "strict", "union",
    "float32", "gram", [], {}, [None], [[]], [1], [0.1], [-1.0], [True], ["a"], ["a", "a"], ["a", "b", "c"], ["\n"],
    {"a": 1}, {"clinic": HASH}, {"mri": 5}, [{"n": 30, "m": 10, "responses": ["y"]}],
    [{"n": 30, "m": 10, "responses": ["y"], "x": 1}],
]  # fmt: skip


def wild(rng: random.Random, depth: int = 0) -> Any:
    chance = rng.random()
    if chance < 0.85 or depth > 2:
        return rng.choice(WILD)
    if chance < 0.93:
        return [wild(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(("a", "n", "clinic", "")): wild(rng, depth + 1) for _ in range(rng.randrange(3))}


def changed(value: Any, rng: random.Random) -> Any:
    """The same with one place of it replaced, removed or added to."""
    places: list[list[Any]] = []

    def walk(inside: Any, path: list[Any]) -> None:
        places.append(path)
        if isinstance(inside, dict):
            for key in inside:
                walk(inside[key], [*path, key])
        elif isinstance(inside, list):
            for k in range(min(len(inside), 4)):
                walk(inside[k], [*path, k])

    walk(value, [])
    value = json.loads(json.dumps(value))
    *above, last = rng.choice(places[1:]) if len(places) > 1 else [None]
    if last is None:
        return wild(rng)
    at = value
    for key in above:
        at = at[key]
    chance = rng.random()
    if chance < 0.12 and isinstance(at, dict):
        del at[last]
    elif chance < 0.2 and isinstance(at, dict):
        at["more"] = wild(rng)
    elif chance < 0.3 and isinstance(at, list):
        at.append(wild(rng))
    else:
        at[last] = wild(rng)
    return value


def text(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def other_arrays(arrays: list[dict[str, Any]], rest: bytes, rng: random.Random) -> tuple[list[dict[str, Any]], bytes]:
    """Claims about arrays that fit the file's size, but not the message."""
    arrays = [dict(entry) for entry in arrays]
    entry, chance = rng.choice(arrays), rng.random()
    if chance < 0.3:
        entry["dtype"] = rng.choice(list(BYTES_OF))
    elif chance < 0.6:
        shapes: list[list[int]] = [[], [0], [1], [3], [1, 1], [0, 5], [2, 3, 4], entry["shape"][::-1], [*entry["shape"], 1]]
        entry["shape"] = rng.choice(shapes)
    elif chance < 0.7:
        entry["name"] = rng.choice(["X", "to.clinic", "to.", "group.9", "group.99999999999999999999", "group.x", "total", "mean"])
    elif chance < 0.8:
        arrays.remove(entry)
    else:
        arrays.append(entry | {"name": rng.choice(["more", "group.5", "to.lab"])})
    sizes = [math.prod(one["shape"]) * BYTES_OF[one["dtype"]] for one in arrays]
    size = sum(k + -k % 64 for k in sizes)
    fill = rng.choice([b"\0", b"\xff", b"\x7f", rng.randbytes(64)]) * (size // 1 + 1)
    return arrays, ((rest if rng.random() < 0.5 else b"") + fill)[:size]


def forged(raw: bytes, rng: random.Random) -> bytes:
    """A message that its sender might have made: whole, with a digest that fits, but not as it should be."""
    if raw[:8] != MAGIC:
        outer = json.loads(raw)
        if "body" in outer and rng.random() < 0.8:
            outer["body"] = text(changed(json.loads(outer["body"]), rng)).decode()
            return text(outer)
        return text(changed(outer, rng))
    size = struct.unpack("<I", raw[12:16])[0]
    content, rest = json.loads(raw[16 : 16 + size]), raw[16 + size : -32]
    chance = rng.random()
    if chance < 0.6 or not content["arrays"]:
        content["header"] = changed(content["header"], rng)
    elif chance < 0.9:
        content["arrays"], rest = other_arrays(content["arrays"], rest, rng)
    else:
        spoilt = bytearray(rest)
        for _ in range(rng.randrange(1, 20)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        rest = bytes(spoilt)
    head = text(content)
    head += b" " * (-(16 + len(head)) % 64)
    body = struct.pack("<8sII", MAGIC, 1, len(head)) + head + rest
    return body + hashlib.sha256(body).digest()


def attempts(kind: str, count: int, seed: int) -> int:
    """How many forged messages were read; anything but a MessageError for the others is a failure of the test."""
    raw, read = GOOD[kind]
    rng, passed = random.Random(seed), 0
    for _ in range(count):
        with contextlib.suppress(MessageError):
            read(forged(raw, rng))
            passed += 1
    return passed


def test_the_messages_that_are_forged_are_good_ones() -> None:
    for raw, read in GOOD.values():
        read(raw)


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_forged_messages_give_our_error_only(kind: str) -> None:
    assert attempts(kind, 500, seed=1) < 350


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(GOOD))
def test_a_million_forged_messages_give_our_error_only(kind: str) -> None:
    """19 types × 53,000."""
    assert attempts(kind, 53_000, seed=2) < 37_000


def test_any_study_file_gives_our_error_only() -> None:
    parties = sites(frames(30), identities=True)
    private = {"privacy": {"epsilon": 1.0, "delta": 1e-6, "row_bound": dict.fromkeys(("clinic", "mri", "lab"), 4.0)}}
    good = [study(parties).to_dict(), study(parties, sketch={"m": 9, "kind": "gaussian"}, **private).to_dict()]
    rng = random.Random(3)
    for k in range(1500):
        content = good[k % 2]
        for _ in range(rng.randrange(1, 3)):
            content = changed(content, rng) if isinstance(content, dict) else content
        if isinstance(content, dict):
            with contextlib.suppress(StudyError):
                assert len(Study.from_dict(content).hash) == 64


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "9" * 5000, "1e400", "-0x" + "f" * 300])
def test_a_number_of_any_length_in_a_study_file_is_our_error(number: str) -> None:
    for line in ("m = ", "schema = ", "warn_ratio = "):
        table = {"m = ": "[sketch]\n", "schema = ": "", "warn_ratio = ": "[privacy]\n"}[line]
        with pytest.raises(StudyError):
            Study.parse(f"{table}{line}{number}\n")


def test_a_list_of_many_equal_labels_is_refused_in_moments() -> None:
    with pytest.raises(StudyError, match="twice"):
        Study.parse("[[site]]\nfeatures = [" + '"a",' * 100_000 + "]\n")
