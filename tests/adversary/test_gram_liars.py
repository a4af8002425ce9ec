"""More lies in a Gram study: columns of another length, messages of another run, an opening that is made to fit."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.adversary.kit import RogueServer
from tests.federation import fixed_identity, frames, gram_sites, gram_study

from intarsia.errors import FederationError
from intarsia.server.study import gram, kept, protocol
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.protocol import Payload, Reply
from intarsia.site.gram import encode
from intarsia.wire.gram_messages import BLOCK, GramBlock, GramDeal, GramProduct


def rogue(where: Path, run: str = "a" * 32) -> RogueServer:
    parties = gram_sites(frames())
    for site in parties:
        site.folder = where / site.name
        site.folder.mkdir(parents=True)
    return RogueServer(parties, gram_study(parties, run=run), where / "server")


def signed(message, name):  # type: ignore[no-untyped-def]
    """As the site itself would sign it: a liar has its own keys."""
    bare = replace(message, signature=b"")
    return replace(bare, signature=fixed_identity(name).sign(bare.body())).to_bytes()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of the same sites over the same people, both whole and honest."""
    out = []
    for run in ("a" * 32, "b" * 32):
        server = rogue(tmp_path_factory.mktemp("run"), run)
        protocol.collect(server.folder, noting(server))
        out.append(server)
    return out


def noting(server: RogueServer) -> protocol.Ask:
    """The honest protocol by a server that keeps the first deals: in `server.dealt`."""
    server.dealt = {}  # type: ignore[attr-defined]

    def ask(step: str, payloads: dict[str, Payload]) -> dict[str, Reply]:
        replies = server.carry(step, payloads)
        if step == "deal":
            server.dealt = server.dealt or {name: reply.message for name, reply in replies.items()}  # type: ignore[attr-defined]
        return replies

    return ask  # type: ignore[return-value]


def taken_in(server: RogueServer, where: Path, liar: str, message: bytes) -> StudyFolder:
    """The first run in which one site sent another product."""
    shutil.copytree(server.folder.path, where / "server")
    folder = StudyFolder.open(where / "server")
    folder.file("product", liar).unlink()
    kept.forget(folder.path, lambda item: item == kept.item("product", liar))
    folder.accept("product", liar, message)
    return folder


@pytest.mark.parametrize("factor", [0.5, 1.05])
def test_a_site_whose_columns_have_another_length_is_refused_by_all(tmp_path, monkeypatch, factor):
    """A site that halves its columns, or blows them up within the ring: its own block, shares and checks all fit together, but a
    column of another length than all others is shrunk otherwise than theirs."""
    honest = encode.encode

    def scaled(values, bits, uniform):  # type: ignore[no-untyped-def]
        return honest(values * (factor if values.shape[1] == 7 else 1.0), bits, uniform)  # the laboratory's columns

    monkeypatch.setattr(encode, "encode", scaled)
    server = rogue(tmp_path)
    with pytest.raises(FederationError, match="gram: the columns of site 'lab' are not standardised"):
        protocol.collect(server.folder, server.carry)
    # A server that lets it pass: the other sites hand out nothing.
    block = server.sites["lab"].run_store(server.study).need("sketch", "it was made")
    blocks = {name: server.folder.read("sketch", name) for name in ("clinic", "mri")} | {"lab": block}
    told = server.ask("mri", "deal", {BLOCK: b"0", **blocks})
    assert told.refused
    assert "not standardised" in server.log("mri")[-1]["text"]


def test_products_of_another_run_are_found(runs, tmp_path):
    """A holder that sends its shares of an earlier run of the same people, under the name of this one."""
    now, then = (GramProduct.from_bytes(server.folder.read("product", "mri")) for server in runs)
    with pytest.raises(FederationError, match="made for another study, run"):
        taken_in(runs[0], tmp_path / "as it was", "mri", then.to_bytes())
    mine = replace(now, products=then.products)  # its seed, coins and openings are this run's, or it would be found at once
    folder = taken_in(runs[0], tmp_path, "mri", signed(mine, "mri"))
    with pytest.raises(FederationError, match="multiply: the products between sites"):
        gram.joint(folder)


def test_shares_of_another_run_are_refused_by_the_receiver(runs, tmp_path):
    """A site that hands out the shares of an earlier run, under the name of this one: they are sealed for that one."""
    old = GramDeal.from_bytes(runs[1].dealt["mri"])
    server = rogue(tmp_path)

    def ask(step: str, payloads: dict[str, Payload]) -> dict[str, Reply]:
        replies = server.carry(step, payloads)
        if step == "deal" and replies["mri"].message is not None:
            replies["mri"] = Reply(replace(GramDeal.from_bytes(replies["mri"].message), sealed=old.sealed).to_bytes())
        return replies

    with pytest.raises(FederationError, match="No progress-0 from clinic"):
        protocol.collect(server.folder, ask)
    assert "changed on their way, or not made for this site, run and cohort" in server.log("clinic")[-1]["text"]


def test_an_own_block_of_another_run_is_refused(runs):
    """Its commitments are to the shares of that run; the signature names the run it was made for."""
    then = GramBlock.from_bytes(runs[1].folder.read("sketch", "mri"))
    with pytest.raises(FederationError, match="made for another study, run"):
        gram.check_block(runs[0].folder, "mri", then.to_bytes())


def test_an_opening_that_is_made_to_fit_by_all_that_the_liar_knows_is_found(runs, tmp_path):
    """A holder adds δ to what it opens of a site and takes from its share of the tail what it can work out of (w + δ)ᵀ(w + δ) −
    wᵀw: of w it knows its own part alone."""
    found = GramProduct.from_bytes(runs[0].folder.read("product", "clinic"))
    opened, tails = ({k: part.copy() for k, part in parts.items()} for parts in (found.opened, found.tails))
    w, delta = opened["1"], np.zeros(opened["1"].shape, dtype=np.uint64)
    delta[0, 3] = 1
    crossed = delta.T @ w
    tails["1"][-1] += crossed + crossed.T + delta.T @ delta
    folder = taken_in(
        runs[0], tmp_path, "clinic", signed(replace(found, opened={**opened, "1": w + delta}, tails=tails), "clinic")
    )
    (folder.path / "opened" / "3.npz").unlink()
    with pytest.raises(FederationError, match="open: the own block of site 'mri'"):
        gram.joint(folder)


def test_the_attacks_above_start_from_runs_that_are_sound(runs):
    first, second = (gram.joint(server.folder) for server in runs)
    np.testing.assert_array_equal(first, second)
