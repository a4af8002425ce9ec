"""What a liar of a Gram study could do, done to the features of a screened one: wrong check columns, other numbers or seeds than
were committed to, messages of another run; and what the server has where it holds shares.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.adversary.kit import RogueServer
from tests.adversary.test_screened import EXCUSED, lying, rogue, signed
from tests.federation import gram_parties, screened_study_of

from intarsia.errors import FederationError
from intarsia.server.study import protocol, screened
from intarsia.site.gram import gram_steps
from intarsia.site.gram.shares import Splitting
from intarsia.site.screened.screen_steps import _desk as desk_of
from intarsia.wire.gram_messages import GramDeal
from intarsia.wire.gram_sharing import CHECKS
from intarsia.wire.held_shares import unpacked
from intarsia.wire.screening import LookShares, ScreenBlock, feature_cuts
from intarsia.wire.study_parts import SERVER


def with_folders(parties, study, where) -> RogueServer:  # type: ignore[no-untyped-def]
    for site in parties:
        site.policy = {"overrides": EXCUSED}
        site.folder = where / site.name
        site.folder.mkdir(parents=True)
    return RogueServer(parties, study, where / "server")


def test_a_site_that_shares_wrong_check_columns_of_its_features_is_found(tmp_path, monkeypatch):
    """It commits to what it shares, but its check columns are not its weighted features."""
    honest = Splitting.wide

    def wrong(self: Splitting, columns: np.ndarray) -> np.ndarray:
        wide = honest(self, columns)
        if self.site == "mri" and columns.shape[1] == 6:  # all of its features
            wide[:, -1] += np.uint64(1)
        return wide

    monkeypatch.setattr(Splitting, "wide", wrong)
    server = rogue(tmp_path)
    with pytest.raises(FederationError, match=r"look: the sums over the features of site 'mri'.*site shared wrong check columns"):
        protocol.collect(server.folder, server.carry)


def test_a_site_that_deals_other_features_than_it_committed_to_is_refused_by_the_holder(tmp_path):
    """It has the keys to seal anything; its commitment is what binds it."""
    server = rogue(tmp_path)

    def redeal(raw: bytes) -> bytes:
        found, liar = GramDeal.from_bytes(raw), server.sites["mri"]
        desk, own = desk_of(liar, server.study, 0), ScreenBlock.from_bytes(server.kept("sketch")["mri"])
        rows = feature_cuts(own.n, server.study.sketch.rows)[found.block].rows
        packet = desk.splitting.packet("clinic", np.zeros((rows, own.columns + CHECKS), dtype=np.uint64), None, opens=False)
        sealed = gram_steps.circle_of(desk, found.order_mac).seal("clinic", found.block, packet)
        return replace(found, sealed={**found.sealed, 0: sealed}).to_bytes()

    with pytest.raises(FederationError, match="No held-0 from clinic"):
        protocol.collect(server.folder, lying(server, "deal", "mri", redeal))
    assert "not the one it committed to" in server.log("clinic")[-1]["text"]


def test_two_holders_that_were_given_different_seeds_of_features_find_out(tmp_path):
    parties, _ = gram_parties(4)
    study = screened_study_of(parties, ["site0", "site1", "site2"])
    server = with_folders(parties, study, tmp_path)

    def reseed(raw: bytes) -> bytes:
        found, desk = GramDeal.from_bytes(raw), desk_of(server.sites["site3"], study, 0)
        packet = desk.splitting.packet("site0", np.zeros((0, 0), dtype=np.uint64), None, opens=False)
        other = replace(packet, seeds=dict.fromkeys(packet.seeds, b"x" * 32))
        sealed = gram_steps.circle_of(desk, found.order_mac).seal("site0", found.block, other)
        return replace(found, sealed={**found.sealed, 0: sealed}).to_bytes()

    with pytest.raises(FederationError, match="No held-0 from site0"):
        protocol.collect(server.folder, lying(server, "deal", "site3", reseed))
    assert "not the one it committed to" in server.log("site0")[-1]["text"]


def test_sums_of_another_run_are_refused_and_signed_anew_do_not_add_up(tmp_path):
    """The same people and columns, shared with other secrets."""
    earlier = rogue(tmp_path / "earlier")
    protocol.collect(earlier.folder, earlier.carry)
    old = LookShares.from_bytes(earlier.folder.read("look-1", "clinic"))

    def as_it_was(raw: bytes) -> bytes:
        return signed(replace(old, study_hash="0" * 64), "clinic")

    def anew(raw: bytes) -> bytes:
        return signed(replace(LookShares.from_bytes(raw), sums=old.sums), "clinic")

    server = rogue(tmp_path / "now")
    with pytest.raises(FederationError, match="was made for another study, run or text"):
        protocol.collect(server.folder, lying(server, "look", "clinic", as_it_was))
    with pytest.raises(FederationError, match="look: the sums over the features of site"):
        protocol.collect(server.folder, lying(server, "look", "clinic", anew))
    assert not server.folder.collected


def test_a_server_that_holds_shares_has_numbers_under_a_mask_it_has_no_seed_of(tmp_path):
    """Two sites and the server: of each site's features it has one share, which is the columns less a stream of a secret seed."""
    parties, _ = gram_parties(2)
    study = screened_study_of(parties, ["site0", "site1", SERVER])
    server = with_folders(parties, study, tmp_path)
    protocol.collect(server.folder, server.carry)
    packets = unpacked((server.folder.path / "holder" / "features-0.bin").read_bytes())
    for site in parties:
        own, desk = screened.stated(server.folder)[site.name], desk_of(site, study, 0)
        split, cut = desk.splitting, feature_cuts(own.n, study.sketch.rows)[0]
        shares = split.shares(0, split.wide(desk.columns(own.n, own.columns).rows(cut)))
        held = packets[site.name].shares(split.sharing, site.name, 0, (cut.rows, own.columns + CHECKS))
        assert all(np.array_equal(share, shares[place]) for place, share in held.items())
        unknown = set(shares) - set(held)
        assert len(held) == len(unknown) == 1
        # Either it has the stream alone, which knows nothing of the columns, or the columns less a stream it cannot make.
        assert set(packets[site.name].seeds) == set(held) or unknown <= set(split.seeds)
        assert not {seed for place, seed in split.seeds.items() if place in unknown} & set(packets[site.name].seeds.values())
