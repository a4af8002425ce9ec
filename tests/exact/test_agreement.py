"""The study key through a relay: the same at all sites, unknown to the relay, and every interference named."""

from dataclasses import replace

import pytest

from intarsia.errors import FederationError, KeyFileError
from intarsia.site import agreement
from intarsia.site.identity import Identity
from intarsia.wire.signed import Confirmation, ShareBundle
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


def offers(study: Study, ids: dict[str, Identity]) -> tuple[dict[str, bytes], dict[str, ShareBundle]]:
    shares = {name: agreement.new_share() for name in NAMES}
    sent = {name: agreement.offer(study, ids[name], shares[name]).to_bytes() for name in NAMES}
    return shares, {name: ShareBundle.from_bytes(raw) for name, raw in sent.items()}


def test_all_sites_get_the_same_key_and_confirm_it(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    shares, bundles = offers(study, ids)
    keys = {name: agreement.combine(study, ids[name], shares[name], bundles) for name in NAMES}
    assert len(set(keys.values())) == 1
    key, transcript = keys["clinic"]
    assert len(key) == 32
    confirmations = {name: agreement.confirm(study, name, *keys[name]) for name in NAMES}
    agreement.check_confirmations(study, key, transcript, confirmations)


def test_the_relay_sees_no_share_and_no_key(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    shares, bundles = offers(study, ids)
    key, transcript = agreement.combine(study, ids["clinic"], shares["clinic"], bundles)
    confirmations = [agreement.confirm(study, name, key, transcript).to_bytes() for name in NAMES]
    seen = b"".join(b.to_bytes() for b in bundles.values()) + b"".join(confirmations)
    raw = seen + b"".join(v for b in bundles.values() for v in (*b.sealed.values(), b.commitment, b.signature))
    for secret in (key, *shares.values()):
        assert secret not in raw
        assert secret.hex().encode() not in raw
    # A party that is not addressed, with keys of its own, opens nothing of the transcript.
    for eve in (Identity.new("clinic"), Identity.new("lab"), Identity.new("mri")):
        for bundle in bundles.values():
            if eve.name in bundle.sealed:
                with pytest.raises(FederationError, match="cannot be opened"):
                    agreement._open(study, eve, bundle)


def test_every_share_matters(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    shares, bundles = offers(study, ids)
    key, _ = agreement.combine(study, ids["clinic"], shares["clinic"], bundles)
    shares2, other = dict(shares), dict(bundles)
    shares2["mri"] = agreement.new_share()
    other["mri"] = agreement.offer(study, ids["mri"], shares2["mri"])
    assert agreement.combine(study, ids["clinic"], shares["clinic"], other)[0] != key


def test_a_missing_share_is_named(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    shares, bundles = offers(study, ids)
    del bundles["lab"]
    with pytest.raises(FederationError, match="lacks the share of lab"):
        agreement.combine(study, ids["clinic"], shares["clinic"], bundles)


def test_a_tampered_share_is_named(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    shares, bundles = offers(study, ids)
    sealed = dict(bundles["mri"].sealed)
    sealed["clinic"] = sealed["clinic"][:-1] + bytes([sealed["clinic"][-1] ^ 1])
    bundles["mri"] = replace(bundles["mri"], sealed=sealed)
    with pytest.raises(FederationError, match=r"share of site 'mri' was changed"):
        agreement.combine(study, ids["clinic"], shares["clinic"], bundles)


def test_a_share_of_another_run_is_named(ids: dict[str, Identity]) -> None:
    old, study = study_of(ids), study_of(ids)
    _, before = offers(old, ids)
    shares, bundles = offers(study, ids)
    bundles["lab"] = before["lab"]
    with pytest.raises(FederationError, match=r"share of site 'lab' belongs to another study, another run"):
        agreement.combine(study, ids["clinic"], shares["clinic"], bundles)


def test_an_old_offer_of_the_same_run_is_noticed(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    shares, bundles = offers(study, ids)
    replayed = dict(bundles)
    replayed["mri"] = agreement.offer(study, ids["mri"], agreement.new_share())
    with pytest.raises(FederationError, match="not the one it offered"):
        agreement.combine(study, ids["mri"], shares["mri"], replayed)
    # A relay that shows two sites different (genuine) offers is found by the confirmation.
    key, transcript = agreement.combine(study, ids["clinic"], shares["clinic"], bundles)
    key2, transcript2 = agreement.combine(study, ids["lab"], shares["lab"], replayed)
    confirmations = {name: agreement.confirm(study, name, key, transcript) for name in NAMES}
    confirmations["lab"] = agreement.confirm(study, "lab", key2, transcript2)
    with pytest.raises(FederationError, match="confirmation of lab does not fit"):
        agreement.check_confirmations(study, key, transcript, confirmations)


def test_a_site_that_deals_different_shares_is_named(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    shares, bundles = offers(study, ids)
    crooked = agreement.offer(study, ids["mri"], agreement.new_share())
    mixed = replace(bundles["mri"], sealed={**bundles["mri"].sealed, "lab": crooked.sealed["lab"]})
    bundles["mri"] = replace(mixed, signature=ids["mri"].sign(mixed.body()))
    agreement.combine(study, ids["clinic"], shares["clinic"], bundles)
    with pytest.raises(FederationError, match="'mri' cannot be opened by site 'lab', or differs"):
        agreement.combine(study, ids["lab"], shares["lab"], bundles)


def test_a_site_posing_as_another_is_named(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    shares, bundles = offers(study, ids)
    forged = replace(bundles["mri"], site="lab", sealed={"clinic": b"x" * 80, "mri": b"x" * 80})
    bundles["lab"] = replace(forged, signature=ids["mri"].sign(forged.body()))
    with pytest.raises(FederationError, match="share of site 'lab' was changed on its way, or not made by its key"):
        agreement.combine(study, ids["clinic"], shares["clinic"], bundles)


def test_missing_and_swapped_confirmations(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    shares, bundles = offers(study, ids)
    key, transcript = agreement.combine(study, ids["clinic"], shares["clinic"], bundles)
    confirmations = {name: agreement.confirm(study, name, key, transcript) for name in NAMES}
    swapped = {**confirmations, "mri": replace(confirmations["lab"], site="mri")}
    with pytest.raises(FederationError, match="confirmation of mri"):
        agreement.check_confirmations(study, key, transcript, swapped)
    del confirmations["clinic"]
    with pytest.raises(FederationError, match="not confirmed by clinic"):
        agreement.check_confirmations(study, key, transcript, confirmations)
    assert Confirmation.from_bytes(confirmations["lab"].to_bytes()) == confirmations["lab"]


def test_keys_that_are_not_pinned_are_refused(ids: dict[str, Identity]) -> None:
    study = study_of(ids)
    with pytest.raises(KeyFileError, match="pins other keys"):
        agreement.offer(study, Identity.new("clinic"), agreement.new_share())


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
