"""The study key through a relay: the same at all sites, unknown to the relay, and every interference named."""

import base64
import json
import secrets
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from intarsia.errors import FederationError, KeyFileError, MessageError
from intarsia.site import agreement, hybrid_seal
from intarsia.site.identity import Identity
from intarsia.site.key import SketchKey
from intarsia.site.site import Site
from intarsia.wire.signed import PUBLIC_BYTES, Confirmation, KeyOffer, ShareBundle, encode
from intarsia.wire.study import Study, new_run

NAMES = ("clinic", "lab", "mri")


@pytest.fixture
def ids() -> dict[str, Identity]:
    return {name: Identity.new(name) for name in NAMES}


def study_of(ids: dict[str, Identity], run: str | None = None) -> Study:
    sites = [
        {
            "name": n,
            "features": ["*"],
            "responses": [f"y_{n}"],
            "exchange_key": i.exchange_key,
            "signing_key": i.signing_key,
        }
        for n, i in ids.items()
    ]
    return Study.from_dict({"id": "s", "run": run or new_run(), "sketch": {"m": 5}, "site": sites})


class Relay:
    """One run's agreement, as the server sees it pass: offers, then shares; and what each site keeps to itself."""

    def __init__(self, study: Study, ids: dict[str, Identity]):
        self.study, self.ids = study, ids
        self.run_keys = {name: agreement.new_run_key() for name in NAMES}
        self.secrets = {name: agreement.new_share() for name in NAMES}
        sent = {name: agreement.offer(study, ids[name], self.run_keys[name]).to_bytes() for name in NAMES}
        self.offers = {name: KeyOffer.from_bytes(raw) for name, raw in sent.items()}
        sent = {name: self.share(name).to_bytes() for name in NAMES}
        self.bundles = {name: ShareBundle.from_bytes(raw) for name, raw in sent.items()}
        self.own = dict(self.bundles)

    def share(self, name: str, secret: bytes | None = None) -> ShareBundle:
        return agreement.share(self.study, self.ids[name], secret or self.secrets[name], self.offers)

    def combine(self, name: str, bundles: dict[str, ShareBundle] | None = None) -> tuple[bytes, bytes]:
        opened_by = (self.run_keys[name], self.secrets[name])
        return agreement.combine(self.study, self.ids[name], self.own[name], opened_by, bundles or self.bundles)

    def pairs(self, name: str) -> dict[str, bytes]:
        curves = agreement.curve_secrets(self.study, self.ids[name], self.run_keys[name], self.offers)
        return agreement.pair_secrets(self.study, name, curves, (self.run_keys[name], self.secrets[name]), self.bundles)


@pytest.fixture
def relay(ids: dict[str, Identity]) -> Relay:
    return Relay(study_of(ids), ids)


def test_all_sites_get_the_same_key_and_confirm_it(relay: Relay) -> None:
    keys = {name: relay.combine(name) for name in NAMES}
    assert len(set(keys.values())) == 1
    key, transcript = keys["clinic"]
    assert len(key) == 32
    confirmations = {name: agreement.confirm(relay.study, name, *keys[name]) for name in NAMES}
    agreement.check_confirmations(relay.study, key, transcript, confirmations)


def test_the_relay_sees_no_share_and_no_key(relay: Relay) -> None:
    key, transcript = relay.combine("clinic")
    confirmations = [agreement.confirm(relay.study, name, key, transcript).to_bytes() for name in NAMES]
    messages = [*relay.offers.values(), *relay.bundles.values()]
    seen = b"".join(m.to_bytes() for m in messages) + b"".join(confirmations)
    raw = seen + b"".join(v for b in relay.bundles.values() for v in (*b.sealed.values(), b.commitment, b.signature))
    for secret in (key, *relay.secrets.values(), *relay.run_keys.values()):
        assert secret not in raw
        assert secret.hex().encode() not in raw
        assert base64.b64encode(secret) not in raw


def test_a_stolen_identity_opens_nothing_of_the_past(relay: Relay) -> None:
    """All private identity keys and every message of the run: no sealed share opens, and no pair secret comes out."""
    for name in NAMES:
        stolen = bytes(64) + relay.ids[name].exchange.private_bytes_raw()
        for bundle in relay.bundles.values():
            if name in bundle.sealed:
                with pytest.raises(FederationError, match="cannot be opened"):
                    agreement._open(relay.study, name, stolen, bundle)
                # The same call with the run's key opens it: the test can fail.
                assert agreement._open(relay.study, name, relay.run_keys[name], bundle)[:32] == relay.secrets[bundle.site][:32]
        genuine = agreement.curve_secrets(relay.study, relay.ids[name], relay.run_keys[name], relay.offers)
        thief = agreement.curve_secrets(relay.study, relay.ids[name], stolen, relay.offers)
        assert not set(genuine.values()) & set(thief.values())


def test_pairs_have_the_same_secret_from_both_sides_and_no_other(relay: Relay) -> None:
    pairs = {n: relay.pairs(n) for n in NAMES}
    for a in NAMES:
        for b in set(NAMES) - {a}:
            assert pairs[a][b] == pairs[b][a]
    assert len({secret for row in pairs.values() for secret in row.values()}) == 3


def broken_curve(relay: Relay) -> dict[str, bytes]:
    """What somebody has in twenty years who recorded everything and computes discrete logarithms: all X25519 private halves."""
    return {name: secrets.token_bytes(64) + key[64:] for name, key in relay.run_keys.items()}


def broken_lattice(relay: Relay) -> dict[str, bytes]:
    return {name: key[:64] + X25519PrivateKey.generate().private_bytes_raw() for name, key in relay.run_keys.items()}


@pytest.mark.parametrize("break_half", [broken_curve, broken_lattice])
def test_a_seal_holds_while_one_of_its_halves_does(relay: Relay, break_half: Callable[[Relay], dict[str, bytes]]) -> None:
    """One half of every key of the run, everybody's long-lived keys and all messages: no share, no pair's secret."""
    half = break_half(relay)
    for name in NAMES:
        for peer in set(NAMES) - {name}:
            with pytest.raises(FederationError, match="cannot be opened"):
                agreement._open(relay.study, name, half[name], relay.bundles[peer])
    # The curve alone gives the older half of the pairs' secrets, and these are not what is used.
    curves = {n: agreement.curve_secrets(relay.study, relay.ids[n], broken_curve(relay)[n], relay.offers) for n in NAMES}
    for name in NAMES:
        assert curves[name] == agreement.curve_secrets(relay.study, relay.ids[name], relay.run_keys[name], relay.offers)
        assert not set(curves[name].values()) & set(relay.pairs(name).values())


def test_a_pairs_secret_needs_what_both_sealed_for_it_alone(relay: Relay) -> None:
    """A third site knows all shares; with the curve broken too it lacks what the two sealed to each other."""
    part = agreement._open(relay.study, "clinic", relay.run_keys["clinic"], relay.bundles["mri"])[32:]
    other = agreement._open(relay.study, "lab", relay.run_keys["lab"], relay.bundles["mri"])
    assert part != other[32:]
    assert other[:32] == relay.secrets["mri"][:32]


def test_nobody_talks_two_sites_into_a_weaker_seal(relay: Relay) -> None:
    """An offer without the lattice's half, under any name of a suite, is refused though its site signed it."""
    curve = relay.offers["mri"].public[-32:]
    identity, body = relay.ids["mri"], json.loads(relay.offers["mri"].body())
    short = {"public": encode(curve)}
    for changed in (short | {"suite": "X25519"}, short, {"suite": "X25519"}, {"suite": None}):
        text = json.dumps(body | changed, sort_keys=True, separators=(",", ":"))
        weaker = {"body": text, "signature": encode(identity.sign(text.encode()))}
        with pytest.raises(MessageError):
            KeyOffer.from_bytes(json.dumps(weaker, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(ValueError, match="public key of a run"):
        hybrid_seal.seal(b"share", curve, b"")
    del body["suite"]  # as an earlier version wrote it
    text = json.dumps(body | short, sort_keys=True, separators=(",", ":"))
    old = json.dumps({"body": text, "signature": encode(identity.sign(text.encode()))}, sort_keys=True, separators=(",", ":"))
    with pytest.raises(MessageError, match=r"seals with X25519 alone.*Update intarsia at that site"):
        KeyOffer.from_bytes(old.encode())


def test_a_run_that_an_earlier_version_began_starts_anew(relay: Relay) -> None:
    old = relay.run_keys["lab"][64:]
    with pytest.raises(FederationError, match=r"earlier version of intarsia.*Start a new run"):
        agreement.combine(relay.study, relay.ids["lab"], relay.own["lab"], (old, relay.secrets["lab"]), relay.bundles)


def test_sizes_are_those_of_the_page(relay: Relay) -> None:
    assert {len(offer.public) for offer in relay.offers.values()} == {PUBLIC_BYTES} == {1216}
    assert {len(sealed) for bundle in relay.bundles.values() for sealed in bundle.sealed.values()} == {1200}


def test_every_share_matters(relay: Relay) -> None:
    key, _ = relay.combine("clinic")
    other = {**relay.bundles, "mri": relay.share("mri", agreement.new_share())}
    assert relay.combine("clinic", other)[0] != key


def test_a_missing_message_is_named(relay: Relay) -> None:
    del relay.bundles["lab"]
    with pytest.raises(FederationError, match="lacks the share of lab"):
        relay.combine("clinic")
    del relay.offers["lab"]
    with pytest.raises(FederationError, match="lacks the offer of lab"):
        relay.share("clinic")


def test_a_changed_message_is_named(relay: Relay) -> None:
    sealed = dict(relay.bundles["mri"].sealed)
    sealed["clinic"] = sealed["clinic"][:-1] + bytes([sealed["clinic"][-1] ^ 1])
    relay.bundles["mri"] = replace(relay.bundles["mri"], sealed=sealed)
    with pytest.raises(FederationError, match=r"share of site 'mri' was changed"):
        relay.combine("clinic")


def test_a_server_in_the_middle_is_named(relay: Relay) -> None:
    """The server replaces a site's key of the run by its own: it cannot sign it, and nobody seals to it."""
    mine = agreement.new_run_key()
    public = agreement.offer(relay.study, relay.ids["mri"], mine).public
    relay.offers["mri"] = replace(relay.offers["mri"], public=public)
    with pytest.raises(FederationError, match="offer of site 'mri' was changed on its way, or not made by its key"):
        relay.share("clinic")
    relay.offers["mri"] = replace(relay.offers["lab"], site="mri")
    with pytest.raises(FederationError, match="offer of site 'mri' was changed on its way"):
        relay.share("clinic")


def test_messages_of_another_run_are_named(ids: dict[str, Identity], relay: Relay) -> None:
    before = Relay(study_of(ids), ids)
    relay.bundles["lab"] = before.bundles["lab"]
    with pytest.raises(FederationError, match=r"share of site 'lab' belongs to another study, another run"):
        relay.combine("clinic")
    relay.offers["lab"] = before.offers["lab"]
    with pytest.raises(FederationError, match=r"offer of site 'lab' belongs to another study, another run"):
        relay.share("clinic")


def test_sites_that_were_shown_different_offers_find_out(relay: Relay) -> None:
    """Both offers are genuine (the site lost its folder and offered twice); the shares name what they rest on."""
    second = agreement.offer(relay.study, relay.ids["mri"], agreement.new_run_key())
    other = agreement.share(relay.study, relay.ids["lab"], relay.secrets["lab"], {**relay.offers, "mri": second})
    with pytest.raises(FederationError, match="share of site 'lab' rests on other offers"):
        relay.combine("clinic", {**relay.bundles, "lab": other})


def test_an_old_share_of_the_same_run_is_noticed(relay: Relay) -> None:
    replayed = {**relay.bundles, "mri": relay.share("mri", agreement.new_share())}
    with pytest.raises(FederationError, match="not the one it made"):
        relay.combine("mri", replayed)
    # A relay that shows two sites different (genuine) shares is found by the confirmation.
    key, transcript = relay.combine("clinic")
    key2, transcript2 = relay.combine("lab", replayed)
    confirmations = {name: agreement.confirm(relay.study, name, key, transcript) for name in NAMES}
    confirmations["lab"] = agreement.confirm(relay.study, "lab", key2, transcript2)
    with pytest.raises(FederationError, match="confirmation of lab does not fit"):
        agreement.check_confirmations(relay.study, key, transcript, confirmations)


def test_a_site_that_deals_different_shares_is_named(relay: Relay) -> None:
    crooked = relay.share("mri", agreement.new_share())
    mixed = replace(relay.bundles["mri"], sealed={**relay.bundles["mri"].sealed, "lab": crooked.sealed["lab"]})
    relay.bundles["mri"] = replace(mixed, signature=relay.ids["mri"].sign(mixed.body()))
    relay.combine("clinic")
    with pytest.raises(FederationError, match="'mri' cannot be opened by site 'lab', or differs"):
        relay.combine("lab")


def test_a_site_posing_as_another_is_named(relay: Relay) -> None:
    forged = replace(relay.bundles["mri"], site="lab", sealed={"clinic": b"x" * 80, "mri": b"x" * 80})
    relay.bundles["lab"] = replace(forged, signature=relay.ids["mri"].sign(forged.body()))
    with pytest.raises(FederationError, match="share of site 'lab' was changed on its way, or not made by its key"):
        relay.combine("clinic")


def test_an_unusable_key_is_our_error(relay: Relay) -> None:
    """A malicious site signs a point of small order."""
    bad = KeyOffer("mri", relay.study.hash, bytes(PUBLIC_BYTES))
    relay.offers["mri"] = replace(bad, signature=relay.ids["mri"].sign(bad.body()))
    with pytest.raises(FederationError, match="'mri' offers for this run is not a usable"):
        relay.share("clinic")
    with pytest.raises(FederationError, match="'mri' offers for this run is not a usable"):
        agreement.curve_secrets(relay.study, relay.ids["clinic"], relay.run_keys["clinic"], relay.offers)


def test_missing_and_swapped_confirmations(relay: Relay) -> None:
    key, transcript = relay.combine("clinic")
    confirmations = {name: agreement.confirm(relay.study, name, key, transcript) for name in NAMES}
    swapped = {**confirmations, "mri": replace(confirmations["lab"], site="mri")}
    with pytest.raises(FederationError, match="confirmation of mri"):
        agreement.check_confirmations(relay.study, key, transcript, swapped)
    del confirmations["clinic"]
    with pytest.raises(FederationError, match="not confirmed by clinic"):
        agreement.check_confirmations(relay.study, key, transcript, confirmations)
    assert Confirmation.from_bytes(confirmations["lab"].to_bytes()) == confirmations["lab"]


def test_a_site_keeps_nothing_that_opens_the_agreement_again(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Over the real steps: the same bytes when asked again, and after the seal no key of the run is on disk."""
    ids = {name: Identity.new(name) for name in NAMES}
    study = study_of(ids)
    sites = {name: Site(name, identity=ids[name], folder=tmp_path / name) for name in NAMES}
    offers = {name: site.offer(study) for name, site in sites.items()}
    shares = {name: site.share(study, offers) for name, site in sites.items()}
    confirmations = {name: site.combine(study, shares) for name, site in sites.items()}
    store = sites["lab"].run_store(study)
    run_key = store.get("run-key.secret")
    assert run_key is not None
    for site in sites.values():
        with pytest.raises(KeyFileError, match="not agreed on a key"):
            site.key(study)
        site.seal(study, confirmations)
    assert len({site.key(study) for site in sites.values()}) == 1
    left = b"".join(path.read_bytes() for path in (tmp_path / "lab").rglob("*") if path.is_file())
    assert run_key not in left
    assert run_key.hex().encode() not in left
    assert not [
        name for name in ("run-key.secret", "share.secret", "curves.secret", "pending.secret") if store.get(name) is not None
    ]
    for name, site in sites.items():
        assert site.offer(study) == offers[name]
        assert site.share(study, {}) == shares[name]
        assert site.combine(study, {}) == confirmations[name]


def test_a_key_file_left_behind_is_never_used_where_keys_are_pinned() -> None:
    ids = {name: Identity.new(name) for name in NAMES}
    study = study_of(ids)
    site = Site("lab", identity=ids["lab"], key=SketchKey(bytes(range(32))))
    assert not site.has_key(study)
    with pytest.raises(KeyFileError, match="never from a key file"):
        site.key(study)


def test_keys_that_are_not_pinned_are_refused(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    with pytest.raises(KeyFileError, match="pins other keys"):
        agreement.offer(study, Identity.new("clinic"), agreement.new_run_key())


def test_identity_files_are_the_owners(tmp_path) -> None:  # type: ignore[no-untyped-def]
    identity = Identity.new("clinic")
    path = identity.save(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Identity.load(tmp_path).fingerprint == identity.fingerprint
    assert identity.exchange.private_bytes_raw().hex() not in repr(identity)
    with pytest.raises(KeyFileError, match="not overwritten"):
        Identity.new("clinic").save(tmp_path)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="can be read by others"):
        Identity.load(tmp_path)
