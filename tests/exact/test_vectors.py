"""The test vectors are what this program makes: whoever writes a site from them gets on with ours.

The files are read, not made anew, so a change of the protocol that nobody meant is found here. `python -m tests.vectors` writes
them again after one that was meant.
"""

import json

import numpy as np
import pytest
from tests import vectors
from tests.vectors import MADE, NAMES, Parties, key_agreement, read

from intarsia.errors import MessageError
from intarsia.site import agreement
from intarsia.wire.announcement import Announcement
from intarsia.wire.container import unpack
from intarsia.wire.signed import Confirmation, FileSignature, KeyOffer, Receipt, ShareBundle, verify
from intarsia.wire.study import Study


def alike(made: object, kept: object) -> bool:
    """The same, but for the last bits of numbers that are sums over subjects."""
    if isinstance(made, dict) and isinstance(kept, dict):
        return made.keys() == kept.keys() and all(alike(made[key], kept[key]) for key in made)
    if isinstance(made, list) and isinstance(kept, list):
        return len(made) == len(kept) and all(map(alike, made, kept))
    if isinstance(made, float) and isinstance(kept, float):
        return bool(np.isclose(made, kept, rtol=1e-12, atol=1e-12))
    return made == kept


@pytest.mark.parametrize("name", MADE)
def test_the_program_makes_what_the_vectors_say(name: str) -> None:
    made = json.loads(json.dumps(MADE[name]()))
    assert alike(made, read(name))


def test_sealed_shares_of_the_vectors_open_and_give_the_key() -> None:
    """Seals have fresh randomness; those in the file are opened with the secrets that stand beside them."""
    kept = read("agreement")
    again = key_agreement(kept)
    assert again["shares"] == kept["shares"]
    assert alike(again, kept)
    parties = Parties(kept)
    for name in NAMES:
        key, transcript = parties.key(name, parties.bundles)
        assert (key.hex(), transcript.hex()) == (kept["key"], kept["transcript"])
        read_back = {n: Confirmation.from_bytes(raw.encode()) for n, raw in kept["confirmations"].items()}
        agreement.check_confirmations(parties.study, key, transcript, read_back)
        for raw, kind in ((kept["offers"][name], KeyOffer), (kept["shares"][name], ShareBundle)):
            message = kind.from_bytes(raw.encode())
            assert verify(parties.ids[name].signing_key, message.signature, message.body())
    assert kept["pairs"]["clinic"]["lab"] == kept["pairs"]["lab"]["clinic"]


def test_messages_of_the_vectors_are_read_and_those_to_refuse_are_refused() -> None:
    kept, told = read("container"), read("container")["announcement"]
    _, arrays = unpack(bytes.fromhex(kept["good"]["bytes"]), "example")
    assert arrays["values"].tolist() == kept["good"]["values"]
    assert arrays["counts"].tolist() == kept["good"]["counts"]
    announced = Announcement.from_bytes(bytes.fromhex(told["bytes"]))
    assert announced == announced.signed(bytes.fromhex(told["key"]))
    assert (announced.n, announced.columns, announced.covariates, announced.ledger) == (40, 4, 1, 2)
    for how, raw in kept["refused"].items():
        with pytest.raises(MessageError):
            unpack(bytes.fromhex(raw), "example")
        assert how
    messages = read("signed")["messages"]
    for kind in (FileSignature, Receipt):
        message = kind.from_bytes(messages[kind.kind].encode())
        assert verify(read("signed")["signing_key"], message.signature, message.body())


def test_the_study_of_the_vectors_has_that_hash_in_any_layout() -> None:
    kept = read("study")
    text = "# a comment\n" + kept["toml"].replace("m = 12", "m=12\nkind = 'orthonormal'")
    assert Study.parse(text).hash == kept["hash"]
    assert Study.parse(text.replace("m=12", "m=13")).hash != kept["hash"]


def test_a_change_of_one_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: another label of the sub-key of tokens."""
    kept = read("tokens")
    real = vectors.KEY
    monkeypatch.setattr(vectors, "KEY", type(real)(bytes(31) + b"\1"))
    assert not alike(vectors.tokens(), kept)
    assert not alike([0.1], [0.1 + 1e-9])
