"""Lying parties where a sketch screens: a site that shares other columns than it sketched, a server that relays sketches or asks
for more than the kept columns, whoever alters a sketch on its way.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer
from tests.adversary.test_screened import EXCUSED, lying, signed, until
from tests.federation import NAMES, frames, gram_sites, screened_study

from intarsia.errors import FederationError
from intarsia.server.study import protocol, screened
from intarsia.site.sketch import sketch as sketching
from intarsia.wire.gram_messages import BLOCK
from intarsia.wire.messages import Sketch
from intarsia.wire.screening import ROUND, KeptList, ScreenBlock

N, M = 400, 60


def rogue(where: Path, tables=None, overrides=(), keep: int = 4) -> RogueServer:  # type: ignore[no-untyped-def]
    parties = gram_sites(tables or frames(N))
    for site in parties:
        site.policy = {"overrides": [*EXCUSED, *overrides], "attack_seconds": 0.2}
        site.folder = where / site.name
        site.folder.mkdir(parents=True)
    return RogueServer(parties, screened_study(parties, keep=keep, m=M), where / "server")


@pytest.fixture(scope="module")
def about_to_keep(tmp_path_factory):
    server = rogue(tmp_path_factory.mktemp("keep"))
    return server, until(server, "keep", 1)


def test_a_site_that_shares_other_columns_than_it_sketched_is_found(tmp_path, monkeypatch):
    """It sketches columns that are sure to be kept, and brings other ones of that name to the round: their correlations are far
    from those in the sketch."""
    honest = sketching.finish

    def better(sums, key, terms, **more):  # type: ignore[no-untyped-def]
        found = honest(sums, key, terms, **more)
        if terms.site != "lab":
            return found
        X = found.message.X.copy()
        X[:, 5] = found.message.Y[:, 0]  # in the sketch, this feature is its response
        return replace(found, message=replace(found.message, X=X))

    monkeypatch.setattr(sketching, "finish", better)
    server = rogue(tmp_path)
    with pytest.raises(FederationError, match="kept columns do not belong to the columns that were sketched"):
        protocol.collect(server.folder, server.carry)
    assert "lab_5" in screened.kept(screened.round_path(server.folder, 1)).features  # the lie had worked so far
    assert not server.folder.collected


def test_a_column_that_is_longer_in_the_sketch_than_it_is_is_found(tmp_path, monkeypatch):
    honest = sketching.finish

    def louder(sums, key, terms, **more):  # type: ignore[no-untyped-def]
        found = honest(sums, key, terms, **more)
        by = 4.0 if terms.site == "lab" else 1.0
        return replace(found, message=replace(found.message, X=by * found.message.X))

    monkeypatch.setattr(sketching, "finish", louder)
    server = rogue(tmp_path)
    with pytest.raises(FederationError, match="do not belong to the columns that were sketched"):
        protocol.collect(server.folder, server.carry)


@pytest.mark.parametrize("what", ["m", "labels", "cohort", "noise", "key"])
def test_a_sketch_that_is_not_of_what_the_site_states_is_refused(tmp_path, what):
    server = rogue(tmp_path)

    def other(raw: bytes) -> bytes:
        found = ScreenBlock.from_bytes(raw)
        own = Sketch.load(found.sketch)
        changed = {
            "m": lambda: replace(own, X=own.X[:-1], Y=own.Y[:-1], Z=own.Z[:-1], m=own.m - 1),
            "labels": lambda: replace(own, features=("mri_9", *own.features[1:])),
            "cohort": lambda: replace(own, order_mac="ab" * 32),
            "noise": lambda: replace(own, noise=1.0),
            "key": lambda: replace(own, key_fingerprint="ab" * 16),
        }[what]().to_bytes()
        return signed(replace(found, sketch=changed, mixed=hashlib.sha256(changed).hexdigest()), "mri")

    with pytest.raises(FederationError, match=r"The sketch of site 'mri' is (of another size|not of the columns)"):
        protocol.collect(server.folder, lying(server, "sketch", "mri", other))


def test_a_sketch_changed_on_its_way_is_refused(tmp_path):
    """The site signs the digest of its sketch; nobody else can make one that fits."""
    server = rogue(tmp_path)

    def other(raw: bytes) -> bytes:
        found = ScreenBlock.from_bytes(raw)
        changed = bytearray(found.sketch)
        changed[-40] ^= 1
        return replace(found, sketch=bytes(changed)).to_bytes()

    with pytest.raises(FederationError, match="is refused: The sketch of site 'mri' is not the one it states"):
        protocol.collect(server.folder, lying(server, "sketch", "mri", other))

    def signed_by_nobody(raw: bytes) -> bytes:
        found = ScreenBlock.from_bytes(raw)
        return replace(found, mixed="", sketch=b"", commitments=np.zeros((1, 32), np.uint8)).to_bytes()

    with pytest.raises(FederationError, match="is not signed with its key"):
        protocol.collect(server.folder, lying(server, "sketch", "mri", signed_by_nobody))


def test_sites_are_shown_no_sketch_and_take_none(about_to_keep):
    """They know Φ. What the server relays has no sketch; one that relays it all the same is refused."""
    server, asked = about_to_keep
    for payload in asked.values():
        for name in NAMES:
            assert not ScreenBlock.from_bytes(payload[name]).sketch
    with_sketch = (server.folder.path / "sketch" / "lab.sketch").read_bytes()
    assert ScreenBlock.from_bytes(with_sketch).sketch
    told = server.ask("clinic", "keep", asked["clinic"] | {"lab": with_sketch})
    assert told.refused
    assert "it is the server's alone" in server.reason


def test_nothing_but_kept_columns_is_ever_shared(about_to_keep):
    """No step hands out the features that were screened out, nor looks at them."""
    server, asked = about_to_keep
    for step, payload in (
        ("deal", {BLOCK: b"0", ROUND: b"0"}),
        ("deal", {BLOCK: b"0", ROUND: b"0", **{name: asked["clinic"][name] for name in NAMES}}),
        ("hold", {BLOCK: b"0", ROUND: b"0"}),
        ("multiply", {BLOCK: b"0", ROUND: b"0"}),
        ("look", {"look": b""}),
        ("keep", asked["clinic"] | {ROUND: b"2"}),
    ):
        told = server.ask("clinic", step, payload)
        assert told.refused, step
        assert told.words in FIXED_WORDS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, every: tuple(every), "agrees to at most 4"),
        (lambda x, _: tuple(reversed(x)), "another order"),
        (lambda x, _: ("alt", *x[1:]), "no site brings"),
    ],
    ids=["all", "order", "response"],
)
def test_lists_that_are_no_lists_of_the_study_are_refused(about_to_keep, change, said):
    server, asked = about_to_keep
    honest = KeptList.from_bytes(asked["mri"]["kept"])
    every = [x for b in screened.stated(server.folder).values() for x in b.features]
    bad = replace(honest, features=change(honest.features, every))
    assert server.ask("mri", "keep", asked["mri"] | {"kept": bad.to_bytes()}).refused
    assert said in server.reason
    assert server.sites["mri"].run_store(server.study).get("round-1.kept") is None


def test_a_list_that_singles_a_person_out_is_refused(tmp_path):
    """As where exact sums screen: two kept columns whose difference is one person."""
    tables = frames(600)
    mri = tables["mri"].set_index("id")
    mri["mri_3"] = mri["mri_2"]
    mri.loc["S0007", "mri_3"] += 3.0
    tables["mri"] = mri.reset_index()
    lax = [{"rule": rule, "reason": "two scanners, compared on purpose"} for rule in ("near-duplicate", "blind")]
    server = rogue(tmp_path, tables, lax)
    asked = until(server, "keep", 1)
    chosen = replace(KeptList.from_bytes(asked["mri"]["kept"]), features=("mri_2", "mri_3"))
    assert server.ask("mri", "keep", asked["mri"] | {"kept": chosen.to_bytes()}).refused
    assert "one subject carries 100%" in server.reason
    assert server.ask("mri", "keep", asked["mri"]).refused  # the first list holds, refused or not
    assert "Another list was shown" in server.reason
