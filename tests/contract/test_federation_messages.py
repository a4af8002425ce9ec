"""Messages of the federation from a hostile sender: our errors only, whatever the bytes."""

import contextlib
import hashlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.carriers.flare.pieces import PIECE_BYTES, Assembly, all_pieces, pack_payload, unpack_payload
from intarsia.errors import FederationError, IntarsiaError, MessageError
from intarsia.wire.alignment import AlignmentReport, Cohort
from intarsia.wire.announcement import Announcement
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.container import pack
from intarsia.wire.leave import Leave
from intarsia.wire.prediction import PredictionPart, PredictionSum, add_parts
from intarsia.wire.signed import Confirmation, FileSignature, KeyOffer, Receipt, ShareBundle, Signed

HASH = "ab" * 32


def coefficients() -> Coefficients:
    rng = np.random.default_rng(0)
    return Coefficients(
        "clinic", HASH, ("a", "b"), ("y", "z"), ("clinic", "lab"), 0.95,
        mean=rng.standard_normal((2, 2)), sd=np.ones((2, 2)), lower=-np.ones((2, 2)), upper=np.ones((2, 2)),
        pip=np.ones(2), selected=np.array([True, False]), by_response=np.eye(2, dtype=bool),
        sigma2_mean=np.ones(1), draws=rng.standard_normal((5, 2, 2)), sigma2=np.ones((5, 1)), verdict="fine",
    )  # fmt: skip


MESSAGES = {
    "alignment": (AlignmentReport("clinic", HASH, "intersect", 2, HASH, np.eye(2, 16, dtype=np.uint8)[::-1].copy())),
    "cohort": Cohort("clinic", HASH, "intersect", 2, np.array([True, False, True])),
    "coefficients": coefficients(),
    "announcement": Announcement("clinic", HASH, 30, 4).signed(bytes(32)),
    "part": PredictionPart("clinic", HASH, "june", HASH, HASH, 3, HASH, {"lab": np.ones((2, 3, 1), dtype=np.uint64)}),
    "sum": PredictionSum("lab", HASH, "june", HASH, HASH, 3, HASH, np.ones((2, 3, 1), dtype=np.uint64)),
    "receipt": Receipt("clinic", HASH, HASH, 3, HASH, signature=bytes(64)),
    "leave": Leave("clinic", HASH, HASH, signature=bytes(64)),
    "offer": KeyOffer("clinic", HASH, bytes(1216), signature=bytes(64)),
    "share": ShareBundle("clinic", HASH, bytes(32), bytes(32), {"lab": b"sealed"}, signature=bytes(64)),
    "confirmation": Confirmation("clinic", HASH, bytes(32), "0f" * 16),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(MESSAGES))
def test_messages_survive_the_way(kind: str) -> None:
    message = MESSAGES[kind]
    raw = message.to_bytes()
    assert type(message).from_bytes(raw).to_bytes() == raw


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(MESSAGES)), st.data())
def test_no_bytes_break_a_reader(kind: str, data) -> None:  # type: ignore[no-untyped-def]
    """Bytes changed, cut or inserted; half of the time the digest is made to fit again."""
    message = MESSAGES[kind]
    raw = bytearray(message.to_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    if data.draw(st.booleans()) and len(raw) > 32:
        raw[-32:] = hashlib.sha256(raw[:-32]).digest()
    with contextlib.suppress(IntarsiaError):
        type(message).from_bytes(bytes(raw))


@pytest.mark.parametrize(
    "spoil",
    [
        {"interval": 2.0},
        {"interval": None},
        {"noise_variances": {"y": 0.0}},
        {"noise_variances": {"elsewhere": 1.0}},
        {"noise_variances": [1.0]},
        {"response_sites": ["clinic"]},
        {"features": ["a", "a"]},
        {"study_hash": "zz"},
        {"site": "../clinic"},
    ],
)
def test_coefficients_with_a_false_header(spoil: dict[str, object]) -> None:
    from intarsia.wire.container import unpack

    header, arrays = unpack(coefficients().to_bytes(), "coefficients")
    with pytest.raises(MessageError):
        Coefficients.from_bytes(pack("coefficients", header | spoil, arrays))


def test_coefficients_of_the_wrong_shape() -> None:
    from intarsia.wire.container import unpack

    header, arrays = unpack(coefficients().to_bytes(), "coefficients")
    with pytest.raises(MessageError, match="mean has shape"):
        Coefficients.from_bytes(pack("coefficients", header, arrays | {"mean": np.ones((3, 2))}))


SIGNED = {kind: message for kind, message in MESSAGES.items() if isinstance(message, Signed)} | {
    "file": FileSignature("clinic", HASH, HASH, signature=bytes(64))
}


@pytest.mark.parametrize("kind", list(SIGNED))
def test_a_signed_message_has_one_form_only(kind: str) -> None:
    message = SIGNED[kind]
    outer = json.loads(message.to_bytes())
    for body, words in (
        (outer["body"].replace('"kind":', '"kind" :'), "canonical"),
        (outer["body"].replace(f'"{kind}"', '"foreign"'), "This is not"),
        (outer["body"].replace('"clinic"', '"../clinic"'), "This is not"),
        (outer["body"].replace(HASH, HASH[1:]), "hash"),
        ("\ud800", "readable"),  # half a surrogate pair, which JSON can write and UTF-8 cannot
        (7, "readable"),
    ):
        with pytest.raises(MessageError, match=words):
            type(message).from_bytes(json.dumps(outer | {"body": body}).encode())
    with pytest.raises(MessageError, match="canonical"):
        type(message).from_bytes(message.to_bytes() + b" ")
    unsigned = json.dumps(outer | {"signature": ""}, sort_keys=True, separators=(",", ":")).encode()
    if kind in ("receipt", "leave"):
        assert type(message).from_bytes(unsigned).signature == b""
    else:
        with pytest.raises(MessageError, match="signature"):
            type(message).from_bytes(unsigned)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"order_mac": "cd" * 32}, "different subjects"), ({"fit_digest": "cd" * 32}, "different fits"),
        ({"digest": "cd" * 32}, "other things"), ({"parts": {}}, "no part"),
        ({"parts": {"lab": np.ones((2, 4, 1), dtype=np.uint64)}}, "shape"),
    ],
)  # fmt: skip
def test_only_parts_of_one_request_are_added(change: dict[str, object], words: str) -> None:
    clinic = MESSAGES["part"]
    assert isinstance(clinic, PredictionPart)
    mri = replace(clinic, site="mri")
    assert (add_parts({"clinic": clinic, "mri": mri}, "lab").total == 2).all()  # type: ignore[union-attr]
    with pytest.raises(FederationError, match=words):
        add_parts({"clinic": clinic, "mri": replace(mri, **change)}, "lab")  # type: ignore[arg-type]


def test_pieces_make_the_whole_or_nothing() -> None:
    raw = np.random.default_rng(0).bytes(2 * PIECE_BYTES + 17)
    pieces = list(all_pieces(raw))
    assert len(pieces) == 3
    sink = io.BytesIO()
    assembly = Assembly(sink)
    assert [assembly.add(piece) for piece in pieces] == [False, False, True]
    assert sink.getvalue() == raw
    for spoilt in (
        [pieces[0], pieces[2]],
        [pieces[0], pieces[0]],
        [pieces[0] | {"data": pieces[0]["data"][:-1] + b"x"}],
        [pieces[0] | {"size": 2**60}],
        [pieces[0] | {"size": -1}],
        [pieces[0] | {"data": "text"}],
        [pieces[0] | {"whole": "0" * 64}, *pieces[1:]],
    ):
        with pytest.raises(MessageError):
            list(map(Assembly(io.BytesIO()).add, spoilt))


def test_payloads() -> None:
    payload = {"share:clinic": b"abc", "x": b""}
    assert unpack_payload(pack_payload(payload)) == payload


def test_a_confirmation_that_a_line_spoilt_is_no_confirmation() -> None:
    """The server has no key to try its MAC with. What it once took in it takes from nobody else: the run would be lost."""
    raw = MESSAGES["confirmation"].to_bytes()
    assert Confirmation.from_bytes(raw).to_bytes() == raw
    for at in range(len(raw)):
        for bit in (0, 5):
            with pytest.raises(MessageError):
                Confirmation.from_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
