"""Lying parties in a screened study: a holder, a site that shows other columns than it shared, a server that chooses lists and
weights to read a person, a site that works with the server.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.adversary.kit import FIXED_WORDS, RogueServer
from tests.federation import NAMES, fixed_identity, frames, gram_sites, screened_study

from intarsia.errors import FederationError
from intarsia.server.study import protocol, screened
from intarsia.site.gram import encode, gram_steps
from intarsia.site.gram.desk import Columns
from intarsia.site.screened import screen_steps
from intarsia.wire.gram_messages import BLOCK, GramBlock
from intarsia.wire.screening import LARGEST, ROUND, KeptList, Look, LookShares, ScreenBlock

EXCUSED = [{"rule": "membership", "reason": "a test of the protocol, with few people"}]


def rogue(where: Path, tables=None, overrides=(), **sketch) -> RogueServer:  # type: ignore[no-untyped-def]
    parties = gram_sites(tables or frames())
    for site in parties:
        site.policy = {"overrides": [*EXCUSED, *overrides]}
        site.folder = where / site.name
        site.folder.mkdir(parents=True)
    return RogueServer(parties, screened_study(parties, **sketch), where / "server")


def until(server: RogueServer, step: str, at: int) -> dict[str, dict[str, bytes]]:
    """Honest up to a step of a round, which is not asked: what it would have been asked with."""
    stopped: dict[str, dict[str, bytes]] = {}

    def ask(asked, payloads):  # type: ignore[no-untyped-def]
        number = next((p.get(ROUND) for p in payloads.values()), None)
        if asked == step and number in (None, str(at).encode()):
            raw = {k: {e: v if isinstance(v, bytes) else v.read_bytes() for e, v in p.items()} for k, p in payloads.items()}
            stopped.update(raw)
            return {}
        return server.carry(asked, payloads)

    with pytest.raises(FederationError, match="lacks"):
        protocol.collect(server.folder, ask)
    return stopped


def lying(server: RogueServer, step: str, site: str, change, at: int = 0) -> protocol.Ask:  # type: ignore[no-untyped-def]
    def ask(asked, payloads):  # type: ignore[no-untyped-def]
        replies = server.carry(asked, payloads)
        if asked == step and site in replies and (not at or payloads[site].get(ROUND) == str(at).encode()):
            replies[site] = replace(replies[site], message=change(replies[site].message))
        return replies

    return ask


def signed(message, name):  # type: ignore[no-untyped-def]
    """As the site itself would sign it: a liar has its own keys."""
    bare = replace(message, signature=b"")
    return replace(bare, signature=fixed_identity(name).sign(bare.body())).to_bytes()


@pytest.mark.parametrize("by", [1, 2**63])
def test_a_holder_that_computes_a_look_wrongly_is_found(tmp_path, by):
    """One number of one sum, by the smallest and by the largest step of the ring."""
    server = rogue(tmp_path)

    def wrong(raw: bytes) -> bytes:
        found = LookShares.from_bytes(raw)
        sums = {name: share.copy() for name, share in found.sums.items()}
        sums["1"][2, 0] += np.uint64(by)
        return signed(replace(found, sums=sums), "clinic")

    with pytest.raises(FederationError, match="look: the sums over the features of site 'mri' were not computed"):
        protocol.collect(server.folder, lying(server, "look", "clinic", wrong))
    assert not server.folder.collected


@pytest.mark.parametrize("seed", ["other", "none"])
def test_check_weights_that_were_not_committed_to_are_refused(tmp_path, seed):
    server = rogue(tmp_path)

    def other(raw: bytes) -> bytes:
        found = LookShares.from_bytes(raw)
        return signed(replace(found, seed=b"x" * 32), "mri") if seed == "other" else signed(replace(found, sums={}), "mri")

    with pytest.raises(FederationError, match=r"not those it committed to|lack a part"):
        protocol.collect(server.folder, lying(server, "look", "mri", other))


def test_a_site_that_keeps_other_columns_than_were_screened_is_found(tmp_path, monkeypatch):
    """It shares columns that are sure to be kept, and brings other ones of that name to the round."""
    honest = Columns.rows

    def other(self, cut):  # type: ignore[no-untyped-def]
        found = honest(self, cut)
        few = self.chosen is not None and len(self.chosen) < 9 and self.all.shape[1] == 7  # the laboratory's, in a round
        return np.ascontiguousarray(np.roll(found, 1, axis=0)) if few and not isinstance(self.chosen, range) else found

    monkeypatch.setattr(Columns, "rows", other)
    server = rogue(tmp_path)
    with pytest.raises(FederationError, match="keep: site 'lab' stated other columns in round 2 than it shared"):
        protocol.collect(server.folder, server.carry)


def test_a_site_that_blows_its_features_up_to_be_kept_is_found(tmp_path, monkeypatch):
    """A column of another length is found when it is kept, if not by a sum that is larger than it can be."""
    honest = encode.encode

    def blown(values, bits, uniform):  # type: ignore[no-untyped-def]
        by = np.where(np.arange(values.shape[1]) < 6, 8.0, 1.0) if values.shape[1] == 7 else 1.0  # the laboratory's features
        return honest(values * by, bits, uniform)

    monkeypatch.setattr(encode, "encode", blown)
    server = rogue(tmp_path, again=1)
    with pytest.raises(FederationError, match=r"look: a sum is larger|the columns of site 'lab' are not standardised"):
        protocol.collect(server.folder, server.carry)


def test_a_server_that_shows_different_lists_gets_nothing(tmp_path):
    server = rogue(tmp_path)
    asked = until(server, "keep", 2)
    honest = KeptList.from_bytes(asked["mri"]["kept"])
    labels = [x for b in screened.stated(server.folder).values() for x in b.features]
    other = replace(honest, features=tuple(x for x in labels if x.endswith(("_3", "_4")))[:5])
    blocks = {name: server.ask(name, "keep", asked[name]).message for name in ("clinic", "lab")}
    blocks["mri"] = server.ask("mri", "keep", asked["mri"] | {"kept": other.to_bytes()}).message
    assert all(blocks.values())
    for name in NAMES:
        told = server.ask(name, "deal", {BLOCK: b"0", ROUND: b"2", **blocks})
        assert told.refused
        assert told.words in FIXED_WORDS


def test_a_server_that_shows_holders_different_weights_gets_uniform_numbers(tmp_path):
    """Masks are bound to the weights: shares under different ones do not add up to anything, and are refused as a wrong share."""
    server = rogue(tmp_path, again=1)
    asked = until(server, "look", 1)
    # The first look is asked outside of any round; it is the first `look` of all.
    honest = Look.from_bytes(asked["clinic"]["look"])
    told = {}
    for name in NAMES:
        weights = honest.weights.copy()
        if name == "lab":
            weights[0, 0] = 7
            with pytest.raises(FederationError, match="changes the responses"):
                replace(honest, weights=weights).check(
                    {k: GramBlock.from_bytes(screened.round_path(server.folder, 1) / "sketch" / f"{k}.sketch") for k in NAMES}, 12
                )
            assert server.ask(name, "look", {"look": replace(honest, weights=weights).to_bytes()}).refused
        told[name] = server.ask(name, "look", {"look": honest.to_bytes()})
    assert not any(one.refused for one in told.values())
    other = replace(honest, weights=-honest.weights)
    assert all(server.ask(name, "look", {"look": other.to_bytes()}).refused for name in NAMES)  # once per round


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A server that is about to ask for the second look, of five kept columns, and may ask for other ones."""
    server = rogue(tmp_path_factory.mktemp("second"), again=1)

    def ask(step, payloads):  # type: ignore[no-untyped-def]
        if step == "look" and (screened.round_path(server.folder, 2) / "asked.look").is_file():
            return {}
        return server.carry(step, payloads)

    with pytest.raises(FederationError, match="lacks the look-2"):
        protocol.collect(server.folder, ask)
    return server, Look.from_bytes((screened.round_path(server.folder, 2) / "asked.look").read_bytes())


def test_weights_larger_than_an_effect_are_refused(second):
    """A server cannot make the holders multiply with one kept column alone, many times over."""
    server, honest = second
    blocks = [GramBlock.from_bytes(screened.round_path(server.folder, 2) / "sketch" / f"{name}.sketch") for name in NAMES]
    at = next(k for k, block in enumerate(blocks) if block.features)
    row = sum(block.columns for block in blocks[:at])
    for value in ((LARGEST << 12) + 1, -(LARGEST << 12) - 1, 2**62):
        weights = honest.weights.copy()
        weights[row, 0] = value
        told = server.ask("clinic", "look", {"look": replace(honest, weights=weights).to_bytes()})
        assert told.refused
        assert "more than an effect" in server.log("clinic")[-1]["text"]


def test_two_looks_with_different_weights_are_one_too_many(second):
    server, honest = second
    weights = honest.weights.copy()
    weights[weights < 0] //= 2
    assert not server.ask("mri", "look", {"look": honest.to_bytes()}).refused
    assert server.ask("mri", "look", {"look": replace(honest, weights=weights).to_bytes()}).refused
    assert "Other weights were shown" in server.log("mri")[-1]["text"]
    once = server.ask("mri", "look", {"look": honest.to_bytes()})
    assert once.message == server.ask("mri", "look", {"look": honest.to_bytes()}).message


def test_shares_under_different_weights_do_not_add_up(second):
    """Were a holder made to look with other weights all the same: its masks are bound to them, so nothing cancels."""
    server, honest = second
    other = replace(honest, weights=np.where(honest.weights < 0, honest.weights // 2, honest.weights))

    def total(*asked: Look) -> np.ndarray:
        shares = [
            screen_steps._looked(server.sites[name], server.study, one).sums["0"] for name, one in zip(NAMES, asked, strict=True)
        ]
        return np.asarray(sum(shares[1:], shares[0]))

    macs = {screen_steps._looked(server.sites["mri"], server.study, one).order_mac for one in (honest, other)}
    circles = [
        gram_steps.circle_of(screen_steps._desk(server.sites[name], server.study, 0), mac)
        for name, mac in zip(NAMES, (min(macs), min(macs), max(macs)), strict=True)
    ]
    assert np.asarray(sum(circle.zero(0, (5, 2)) for circle in circles)).all()  # what each adds would be zero in sum
    size = np.abs(total(honest, honest, honest)[:6].view(np.int64).astype(float)).max()
    mixed = np.abs(total(honest, honest, other)[:6].view(np.int64).astype(float))
    assert size < 2.0**61
    assert 0.3 < np.median(mixed) / 2.0**62 < 1.7  # uniform over the ring: half of the sizes are above 2⁶²


@pytest.fixture(scope="module")
def about_to_keep(tmp_path_factory):
    server = rogue(tmp_path_factory.mktemp("keep"), keep=4)
    return server, until(server, "keep", 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, _: (*x, "mri_4", "mri_5"), "agrees to at most 4|another order"),
        (lambda _, every: tuple(every), "agrees to at most 4"),
        (lambda x, _: tuple(reversed(x)), "another order"),
        (lambda x, _: ("alt", *x[1:]), "no site brings"),
    ],
    ids=["more", "all", "order", "response"],
)
def test_lists_that_are_no_lists_of_the_study_are_refused_and_leave_no_trace(about_to_keep, change, said):
    server, asked = about_to_keep
    honest = KeptList.from_bytes(asked["clinic"]["kept"])
    every = [x for b in screened.stated(server.folder).values() for x in b.features]
    bad = replace(honest, features=change(honest.features, every))
    told = server.ask("clinic", "keep", asked["clinic"] | {"kept": bad.to_bytes()})
    assert told.refused
    assert re.search(said, server.reason), server.reason
    assert server.sites["clinic"].run_store(server.study).get("round-2.kept") is None


def test_rounds_cannot_be_asked_for_out_of_turn_nor_the_list_shrink(about_to_keep, tmp_path):
    server, asked = about_to_keep
    honest = KeptList.from_bytes(asked["clinic"]["kept"])
    ahead = replace(honest, round=3)
    assert server.ask("clinic", "keep", {"kept": ahead.to_bytes(), ROUND: b"3"}).refused
    blocks = screened.stated(server.folder)
    from intarsia.site.screened.kept_gate import check_list

    with pytest.raises(FederationError, match="leaves out a feature that was kept before"):
        check_list(server.study, blocks, honest, ("clinic_3", *honest.features), 99)
    with pytest.raises(FederationError, match="first round keeps no feature"):
        check_list(server.study, blocks, replace(honest, round=1), (), 99)


def one_person_apart() -> dict[str, object]:
    """Two features of the imaging centre that are the same but for one person, whom their difference is made of."""
    tables = frames(n=600)
    mri = tables["mri"].set_index("id")
    mri["mri_3"] = mri["mri_2"]
    mri.loc["S0007", "mri_3"] += 3.0
    tables["mri"] = mri.reset_index()
    return tables  # type: ignore[return-value]


def test_a_server_that_names_columns_to_read_one_person_is_refused(tmp_path):
    """The gate finds such a pair before anything leaves; a site that overrides this rule is still asked about each list."""
    strict = rogue(tmp_path / "gate", one_person_apart())
    with pytest.raises(FederationError, match="mri"):
        protocol.collect(strict.folder, strict.carry)
    assert "near-duplicate" in strict.log("mri")[-1]["text"]
    lax = {"rule": "near-duplicate", "reason": "two scanners, compared on purpose"}
    server = rogue(tmp_path / "lax", one_person_apart(), [lax])
    asked = until(server, "keep", 2)
    honest = KeptList.from_bytes(asked["mri"]["kept"])
    chosen = replace(honest, features=("mri_2", "mri_3"))
    told = server.ask("mri", "keep", asked["mri"] | {"kept": chosen.to_bytes()})
    assert told.refused
    assert "one subject carries 100%" in server.reason
    # The first list holds, refused or not: another try would be another answer.
    assert server.ask("mri", "keep", asked["mri"]).refused
    assert "Another list was shown" in server.reason


def test_without_that_rule_the_server_would_have_read_the_person(tmp_path):
    """What the refusal is worth: the difference of two kept columns gives that person's responses and covariates."""
    tables = one_person_apart()
    X = {name: frame.set_index("id").sort_index() for name, frame in tables.items()}  # type: ignore[union-attr]
    standard = lambda c: (c - c.mean()) / c.std(ddof=1)  # noqa: E731
    a, b, y = (standard(X[site][c]) for site, c in (("mri", "mri_2"), ("mri", "mri_3"), ("clinic", "alt")))
    r = float(a @ b / (len(a) - 1))
    read = float((b - r * a) @ y) / float(np.linalg.norm(b - r * a))
    assert abs(read - y["S0007"]) < 0.05


def test_a_site_that_works_with_the_server_solves_responses_from_as_many_sums_as_people(tmp_path):
    """Exact sums of p known columns with a response are p equations for n values. The gate refuses beyond n/3."""
    rng = np.random.default_rng(0)
    n, y = 90, rng.standard_normal(90)
    for p, left in ((30, 0.6), (90, 1e-9)):
        X = rng.standard_normal((n, p))
        solved = np.linalg.lstsq(X.T, X.T @ y, rcond=None)[0]
        assert (np.square(solved - y).sum() / np.square(y).sum() < left) or p == 30
        assert abs(1 - np.square(solved - y).sum() / np.square(y).sum() - p / n) < 0.12
    tables = frames(n=300)
    more = pd.DataFrame(rng.standard_normal((300, 124)), columns=[f"mri_{j}" for j in range(6, 130)])
    wide = pd.concat([tables["mri"], more], axis=1)
    server = rogue(tmp_path, {**tables, "mri": wide})
    with pytest.raises(FederationError, match="clinic"):
        protocol.collect(server.folder, server.carry)
    assert "exact sums over each of this site's responses" in server.log("clinic")[-1]["text"]
    assert "What would pass: at most 100 columns of one site" in server.log("clinic")[-1]["text"]


def test_columns_that_a_site_states_otherwise_than_it_announced_are_refused(tmp_path):
    """The other sites' gates counted what was announced."""
    server = rogue(tmp_path)

    def more(raw: bytes) -> bytes:
        found = ScreenBlock.from_bytes(raw)
        return signed(replace(found, features=(*found.features, "mri_6")), "mri")

    with pytest.raises(FederationError, match="more columns than it announced"):
        protocol.collect(server.folder, lying(server, "sketch", "mri", more))


def test_a_response_that_marks_one_person_makes_the_list_name_what_is_extreme_in_that_person(tmp_path):
    """What a lying site learns without the server's help, as the card says; the gate of an honest site refuses such a column."""
    tables = frames(n=400)
    clinic = tables["clinic"].set_index("id")
    clinic["alt"], clinic["ast"] = 0.0, 0.0
    clinic.loc["S0011", "alt"], clinic.loc["S0012", "ast"] = 1.0, 1.0
    tables["clinic"] = clinic.reset_index()
    server = rogue(tmp_path / "honest", tables)
    with pytest.raises(FederationError, match="clinic"):
        protocol.collect(server.folder, server.carry)
    assert "dominant" in server.log("clinic")[-1]["text"] or "rare-level" in server.log("clinic")[-1]["text"]
    lax = [
        {"rule": rule, "reason": "a site that lies has no gate"}
        for rule in ("dominant", "rare-level", "readable-response", "leverage")
    ]
    parties = gram_sites(tables)
    for site in parties:
        site.policy = {"overrides": [*EXCUSED, *lax]}
    liar = RogueServer(parties, screened_study(parties, keep=3), tmp_path / "server")
    protocol.collect(liar.folder, liar.carry)
    mri = tables["mri"].set_index("id")
    z = (mri - mri.mean()) / mri.std(ddof=1)
    rows = {row["feature"]: row["r"]["alt"] for row in screened.table(liar.folder)}
    assert np.allclose([rows[c] * np.sqrt(399) for c in z], z.loc["S0011"], atol=0.1)  # with the server: every value
    kept = KeptList.from_bytes((screened.round_path(liar.folder, 2) / "kept.list").read_bytes()).features
    largest = max(z, key=lambda c: max(abs(z.loc["S0011", c]), abs(z.loc["S0012", c])))
    assert largest in kept or abs(z.loc["S0011", largest]) < 2  # without: those in which these people are extreme
