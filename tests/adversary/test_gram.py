"""Lying parties in a Gram study: a site that computes, deals or states wrongly, a server that alters, swaps and asks out of
turn.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.adversary.kit import FIXED_WORDS, RogueServer
from tests.federation import NAMES, fixed_identity, frames, gram_parties, gram_sites, gram_study, gram_study_of

from intarsia.errors import FederationError
from intarsia.server.study import gram, kept, protocol
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.protocol import Payload, Reply
from intarsia.site.answer import REFUSALS
from intarsia.site.gram.desk import Desk
from intarsia.site.gram.encode import opened
from intarsia.site.gram.shares import Splitting
from intarsia.wire.gram_messages import BLOCK, GramBlock, GramDeal, GramProduct
from intarsia.wire.gram_sharing import CHECKS, Sharing, check_weights
from intarsia.wire.study_parts import SERVER


def rogue(where: Path, tables=None) -> RogueServer:  # type: ignore[no-untyped-def]
    parties = gram_sites(tables or frames())
    for site in parties:
        site.folder = where / site.name
        site.folder.mkdir(parents=True)
    return RogueServer(parties, gram_study(parties), where / "server")


def signed(message, name):  # type: ignore[no-untyped-def]
    """As the site itself would sign it: a liar has its own keys."""
    bare = replace(message, signature=b"")
    return replace(bare, signature=fixed_identity(name).sign(bare.body())).to_bytes()


def lying(server: RogueServer, step: str, liar: str, change: Callable[[bytes], bytes]) -> protocol.Ask:
    """The honest protocol, but what one site answers at one step is changed by that site."""

    def ask(asked: str, payloads: dict[str, Payload]) -> dict[str, Reply]:
        replies = server.carry(asked, payloads)
        if asked == step and liar in replies and replies[liar].message is not None:
            replies[liar] = Reply(change(replies[liar].message))  # type: ignore[arg-type]
        return replies

    return ask  # type: ignore[return-value]


def wrong_share(pair: str, at: tuple[int, int], by: int, consistent: bool = False) -> Callable[[bytes], bytes]:
    """Another share of one product; `consistent`: with its own check row made to fit, by weights the liar knows."""

    def change(raw: bytes) -> bytes:
        found = GramProduct.from_bytes(raw)
        if not found.final:
            return raw
        shares = {name: share.copy() for name, share in found.products.items()}
        shares[pair][0, at[0], [at[1]]] += np.uint64(by)
        if consistent:
            rows = shares[pair].shape[1] - CHECKS
            shares[pair][0, rows:, at[1]] += check_weights(found.seed, rows)[at[0]] * np.uint64(by)
        return signed(replace(found, products=shares), found.site)

    return change


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """A server that has everything, from honest sites."""
    server = rogue(tmp_path_factory.mktemp("collected"))
    protocol.collect(server.folder, server.carry)
    return server


def again(server: RogueServer, where: Path, liar: str, change: Callable[[bytes], bytes]) -> StudyFolder:
    """The same study in which one site sent other products, as the server takes them in."""
    shutil.copytree(server.folder.path, where / "server")
    folder = StudyFolder.open(where / "server")
    folder.file("product", liar).unlink()
    kept.forget(folder.path, lambda item: item == kept.item("product", liar))
    folder.accept("product", liar, change(server.folder.read("product", liar)))
    return folder


@pytest.mark.parametrize(
    ("liar", "pair", "by", "consistent"),
    [
        ("clinic", "0-1", 2**50, False),
        ("clinic", "0-1", 2**50, True),  # its own weights are no help: the other site's do not fit
        ("clinic", "1-2", 1, False),  # a pair it is no part of, the smallest error there is
        ("lab", "0-2", 2**63, False),  # half the ring
        ("mri", "1-2", 2**60, False),
    ],
)
def test_a_wrong_share_is_found_and_the_pair_named(collected, tmp_path, liar, pair, by, consistent):
    folder = again(collected, tmp_path, liar, wrong_share(pair, (1, 2), by, consistent))
    first, second = (NAMES[int(k)] for k in pair.split("-"))
    with pytest.raises(FederationError, match=rf"multiply: the products between sites '{first}' and '{second}'"):
        gram.joint(folder)


def test_an_own_block_of_other_columns_is_found(tmp_path):
    """A site that states smaller products than its columns have, or one that is off by as little as can be."""

    def shrink(raw: bytes) -> bytes:
        found = GramBlock.from_bytes(raw)
        G = (found.G.view(np.int64) // 16).view(np.uint64)
        at = np.arange(found.columns)
        G[:, at, at] = found.G[:, at, at]  # the lengths: others are refused at once
        return signed(replace(found, G=G), found.site)

    def by_one(raw: bytes) -> bytes:
        found = GramBlock.from_bytes(raw)
        G = found.G.copy()
        G[0, 0, 1] += np.uint64(1)
        G[0, 1, 0] += np.uint64(1)
        return signed(replace(found, G=G), found.site)

    for k, change in enumerate((shrink, by_one)):
        server = rogue(tmp_path / str(k))

        def ask(step, payloads, server=server, change=change):  # type: ignore[no-untyped-def]
            replies = server.carry(step, payloads)
            if step == "sketch":
                changed = change(replies["clinic"].message)
                # The liar keeps what it said, or it would refuse its own relayed block.
                server.sites["clinic"].run_store(server.study).replace("sketch", changed)
                replies["clinic"] = Reply(changed)
            return replies

        protocol.collect(server.folder, ask)
        with pytest.raises(FederationError, match="open: the own block of site 'clinic'"):
            server.folder.joined()


def test_a_holder_that_opens_wrongly_is_found(collected, tmp_path):
    def other(raw: bytes) -> bytes:
        found = GramProduct.from_bytes(raw)
        opened = {k: part.copy() for k, part in found.opened.items()}
        opened["1"][0, [3]] += np.uint64(1)
        return signed(replace(found, opened=opened), found.site)

    folder = again(collected, tmp_path, "clinic", other)
    (folder.path / "opened" / "3.npz").unlink()
    with pytest.raises(FederationError, match=r"open: the own block of site 'mri' .* 'lab' or 'clinic' opened wrongly"):
        gram.joint(folder)


def test_a_site_that_shares_wrong_check_columns_is_found_and_its_pair_named(tmp_path, monkeypatch):
    """A lying input: it commits to what it shares, but its check columns are not the weighted columns."""
    honest = Splitting.wide

    def wrong(self: Splitting, columns: np.ndarray) -> np.ndarray:
        wide = honest(self, columns)
        if self.site == "mri":
            wide[:, -1] += np.uint64(1)
        return wide

    monkeypatch.setattr(Splitting, "wide", wrong)
    server = rogue(tmp_path)
    protocol.collect(server.folder, server.carry)
    with pytest.raises(FederationError, match=r"multiply: the products between sites 'clinic' and 'mri'.*two sites shared wrong"):
        gram.joint(server.folder)


def test_a_site_whose_products_with_its_masks_are_wrong_is_found(tmp_path, monkeypatch):
    """Its way to hide a wrong own block: state other a and b. They are fixed before the weights are known."""
    honest = Splitting.tail_sent

    def wrong(self: Splitting, tail: np.ndarray) -> np.ndarray:
        return honest(self, tail + np.uint64(self.site == "lab"))

    monkeypatch.setattr(Splitting, "tail_sent", wrong)
    server = rogue(tmp_path)
    protocol.collect(server.folder, server.carry)
    with pytest.raises(FederationError, match="open: the own block of site 'lab'"):
        gram.joint(server.folder)


def at_desk(site, study):  # type: ignore[no-untyped-def]
    return Desk(site, study, site.run_store(study))


def test_two_holders_that_were_given_different_seeds_find_out(tmp_path):
    """A site that holds no shares gives one holder another seed than the other: its commitment binds it."""
    from intarsia.site.gram.gram_steps import circle_of

    parties, _ = gram_parties(4)
    study = gram_study_of(parties, ["site0", "site1", "site2"])
    for site in parties:
        site.folder = tmp_path / site.name
        site.folder.mkdir()
    server = RogueServer(parties, study, tmp_path / "server")

    def reseed(raw: bytes) -> bytes:
        found, liar = GramDeal.from_bytes(raw), server.sites["site3"]
        packet = at_desk(liar, study).splitting.packet("site0", np.zeros((0, 0), dtype=np.uint64), None)
        other = replace(packet, seeds=dict.fromkeys(packet.seeds, b"x" * 32))
        sealed = circle_of(at_desk(liar, study), found.order_mac).seal("site0", found.block, other)
        return replace(found, sealed={**found.sealed, 0: sealed}).to_bytes()

    with pytest.raises(FederationError, match="No progress-0 from site0"):
        protocol.collect(server.folder, lying(server, "deal", "site3", reseed))
    assert "not the one it committed to" in server.log("site0")[-1]["text"]


def test_what_the_server_holds_is_uniform_whatever_the_columns(tmp_path):
    """Two sites and the server: its view of the shares has one law for data that could not differ more, and it cannot be given
    more: shares of the same columns under another seed would need another commitment.
    """
    split = Splitting(Sharing(("a", "b"), ("a", "b", SERVER)), "a", b"s" * 32)
    other = replace(split, secret=b"t" * 32)
    zero, large = np.zeros((2000, 4), dtype=np.uint64), np.full((2000, 4), 2**30, dtype=np.uint64)
    seen = [split.shares(0, zero)[0], other.shares(0, large)[0]]
    assert set(split.packet(SERVER, seen[0], None).seeds) == set()  # of `a` the server has numbers, and no seed
    for view in seen:
        assert stats.kstest(view.ravel() / 2.0**64, "uniform").pvalue > 1e-3
    assert stats.ks_2samp(seen[0].ravel() / 2.0**64, seen[1].ravel() / 2.0**64).pvalue > 1e-3


def test_a_server_that_holds_shares_gains_nothing_by_lying(tmp_path):
    """It alters what a site sealed to the other, sends it twice, or asks for its own part again: refused, or the same bytes."""
    parties, _ = gram_parties(2)
    study = gram_study_of(parties, ["site0", "site1", SERVER])
    for site in parties:
        site.folder = tmp_path / site.name
        site.folder.mkdir()
    server = RogueServer(parties, study, tmp_path / "server")
    deals: dict[str, bytes] = {}

    def ask(step, payloads):  # type: ignore[no-untyped-def]
        replies = {} if step == "multiply" else server.carry(step, payloads)
        if step == "deal" and not deals:
            deals.update({name: reply.message for name, reply in replies.items()})
        return replies

    with pytest.raises(FederationError, match="lacks the progress-0"):
        protocol.collect(server.folder, ask)
    found = GramDeal.from_bytes(deals["site1"])
    # The server's own packet is no use at the other site, nor is a packet it makes itself.
    for sealed in ({0: found.sealed[2]}, {0: bytes(len(found.sealed[0]))}, {}):
        told_site0 = server.ask("site0", "multiply", {BLOCK: b"0", "site1": replace(found, sealed=sealed).to_bytes()})
        assert told_site0.refused
    first = server.ask("site0", "multiply", {BLOCK: b"0", "site1": deals["site1"]}).message
    assert first == server.ask("site0", "multiply", {BLOCK: b"0", "site1": deals["site1"]}).message
    assert server.ask("site0", "multiply", {BLOCK: b"2", "site1": deals["site1"]}).refused
    assert GramProduct.from_bytes(first).products == {}  # nothing of the products before all subjects are in


def test_a_seed_it_had_not_committed_to_is_refused(collected, tmp_path):
    def other_seed(raw: bytes) -> bytes:
        return signed(replace(GramProduct.from_bytes(raw), seed=b"x" * 32), "mri")

    with pytest.raises(FederationError, match="check weights of site 'mri' are not those it committed to"):
        again(collected, tmp_path, "mri", other_seed)


def test_products_that_the_site_did_not_sign_are_refused(collected, tmp_path):
    with pytest.raises(FederationError, match="not signed with its key"):
        again(collected, tmp_path, "mri", lambda raw: replace(GramProduct.from_bytes(raw), signature=b"s" * 64).to_bytes())


def test_a_site_that_deals_other_columns_than_it_committed_to_is_refused_by_the_receiver(tmp_path):
    """It has the keys to seal anything; its commitment is what binds it."""
    server = rogue(tmp_path)

    def redeal(raw: bytes) -> bytes:
        from intarsia.site.gram.gram_steps import circle_of

        found = GramDeal.from_bytes(raw)
        desk = at_desk(server.sites["mri"], server.study)
        circle = circle_of(desk, found.order_mac)
        split, own = desk.splitting, GramBlock.from_bytes(server.kept("sketch")["mri"])
        other = np.zeros((128, own.columns + CHECKS), dtype=np.uint64)
        packet = split.packet("clinic", other, None)
        return replace(found, sealed={**found.sealed, 0: circle.seal("clinic", found.block, packet)}).to_bytes()

    with pytest.raises(FederationError, match="No progress-0 from clinic"):
        protocol.collect(server.folder, lying(server, "deal", "mri", redeal))
    assert "not the one it committed to" in server.log("clinic")[-1]["text"]


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """A server that has every own block and the first block of masked columns."""
    server = rogue(tmp_path_factory.mktemp("dealt"))

    def until_multiply(step, payloads):  # type: ignore[no-untyped-def]
        return {} if step == "multiply" else server.carry(step, payloads)

    with pytest.raises(FederationError, match="lacks the progress-0"):
        protocol.collect(server.folder, until_multiply)
    return server


def told(server: RogueServer, site: str, step: str, **payload: bytes) -> str:
    """The words of a refusal, and the site's own reason."""
    found = server.ask(site, step, {BLOCK if key == "block" else key: value for key, value in payload.items()})
    assert found.refused, (site, step)
    assert found.words in FIXED_WORDS
    return server.reason


def test_altered_swapped_and_early_blocks_are_refused(dealt):
    deals = {name: dealt.folder.read("deal-0", name) for name in NAMES}
    found, lab = GramDeal.from_bytes(deals["mri"]), deals["lab"]
    altered = replace(found, sealed={0: found.sealed[0][:-1] + bytes([found.sealed[0][-1] ^ 1])}).to_bytes()
    assert "changed on their way" in told(dealt, "clinic", "multiply", block=b"0", mri=altered, lab=lab)
    assert "not block 0 of site 'mri'" in told(dealt, "clinic", "multiply", block=b"0", mri=lab, lab=lab)
    renamed = replace(GramDeal.from_bytes(lab), site="mri").to_bytes()
    assert "changed on their way" in told(dealt, "clinic", "multiply", block=b"0", mri=renamed, lab=lab)
    for_lab = replace(found, sealed={0: found.sealed[2]}).to_bytes()  # what mri sealed to another holder
    assert "changed on their way" in told(dealt, "clinic", "multiply", block=b"0", mri=for_lab, lab=lab)
    other_coin = replace(found, coin=b"c" * 32).to_bytes()  # weights of the server's choosing
    assert "not the one it committed to" in told(dealt, "clinic", "multiply", block=b"0", mri=other_coin, lab=lab)
    assert "Send block 0 first" in told(dealt, "clinic", "multiply", block=b"2", mri=deals["mri"], lab=lab)
    assert "missing" in told(dealt, "clinic", "multiply", block=b"0", mri=deals["mri"])
    for number in (b"4", b"-1", b"x", b""):
        assert "names no block" in told(dealt, "clinic", "multiply", block=number, mri=deals["mri"], lab=lab)


def test_other_blocks_than_the_first_shown_are_refused(dealt):
    """A server that shows one site another own block of a peer: not signed, or not the first."""
    blocks = dealt.kept("sketch")
    found = GramBlock.from_bytes(blocks["lab"])
    forged = replace(found, commitments=found.commitments[::-1].copy()).to_bytes()
    assert "not signed with its key" in told(dealt, "mri", "deal", block=b"0", **(blocks | {"lab": forged}))
    second = signed(replace(found, commitments=found.commitments[::-1].copy()), "lab")  # lab itself lies
    assert "Other Gram blocks were shown before" in told(dealt, "mri", "deal", block=b"0", **(blocks | {"lab": second}))
    assert "missing" in told(dealt, "mri", "deal", block=b"0", clinic=blocks["clinic"])


def test_a_lying_peer_cannot_bring_columns_of_others(dealt):
    blocks = dealt.kept("sketch")
    found = GramBlock.from_bytes(blocks["lab"])
    taken = signed(replace(found, features=("alt", *found.features[1:])), "lab")
    assert "does not list for it" in told(dealt, "mri", "deal", block=b"0", **(blocks | {"lab": taken}))


def test_no_step_before_its_time_and_no_words_about_data(tmp_path):
    server = rogue(tmp_path)
    for step in ("deal", "multiply"):
        found = server.ask("mri", step, {BLOCK: b"0"})
        assert found.words == REFUSALS[FederationError]


def test_what_passes_through_the_server_holds_no_value_of_a_column(dealt):
    """Sizes are those of the labels; no encoded value stands in any sealed block, in the clear or at any place."""
    for name, own, to in (("mri", 6, 0), ("lab", 7, 1)):
        parts = GramDeal.from_bytes(dealt.folder.read("deal-0", name)).sealed
        sealed = parts[to]
        assert len(sealed) == 32 + 128 * (own + CHECKS) * 8 + 16
        assert sorted(map(len, parts.values()))[0] == 2 * 32 + 16  # the next holder makes its share from a seed
        store = dealt.sites[name].run_store(dealt.study)
        columns = opened(store, 400, own)
        words = {sealed[k : k + 8] for k in range(len(sealed) - 7)}
        assert not words & {value.tobytes() for value in np.asarray(columns[:128]).ravel()}


def test_everything_that_left_a_site_is_in_its_log(collected):
    studies = collected.folder.path.parent / "mri" / "studies"
    lines = (next(studies.iterdir()) / "sent.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps[-8:] == [f"{what} {block}" for block in range(4) for what in ("deal", "product")]
    assert collected.folder.collected
