"""The study key, agreed by the sites through a server that learns nothing, and closed for ever once it is agreed.

1. `offer`: each site draws a key for this run alone (X25519 and ML-KEM-768 together) and signs its public half with its pinned
   Ed25519 key.
2. `share`: each site draws 32 bytes, commits to them, and seals them to every peer's key of this run (`hybrid_seal`), beside 32
   more that are for this pair alone. The signed bundle names the digest of all the offers it rests on.
3. `combine`: K = HKDF(all shares, salt = hash of all bundles); every site proves by a MAC that it holds the same K and
   saw the same bundles.

The server only relays. The study hash, which covers the run nonce and the pinned keys, is inside every seal and
signature, so a message of another study, run or site does not fit. The keys of the run are deleted when the study key is
confirmed: whoever steals a site's identity later, with everything the server ever relayed, opens nothing of the past. Nor does
whoever breaks X25519 later, or ML-KEM-768: both would have to fall.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import replace

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from intarsia.errors import FederationError, KeyFileError
from intarsia.site.hybrid_seal import curve_secret, new_run_key, opened, public_half, seal
from intarsia.site.identity import Identity
from intarsia.wire.signed import Confirmation, KeyOffer, ShareBundle, verify
from intarsia.wire.study import Study

__all__ = [
    "check", "check_confirmations", "check_offers", "combine", "confirm", "curve_secrets", "new_run_key", "new_share", "offer",
    "pair_secrets", "public_half", "share",
]  # fmt: skip
_SHARE = 32  # bytes of a share of the study key, and of what two sites have for themselves


def new_share() -> bytes:
    """A site's secrets of the agreement: its share of the study key, and what its parts for each pair are made from. Kept until
    the agreement is confirmed, so that a repeated step sends the same."""
    return secrets.token_bytes(2 * _SHARE)


def offer(study: Study, identity: Identity, run_key: bytes) -> KeyOffer:
    """The public half of this site's key for this run, signed by its pinned key."""
    _own(study, identity)
    unsigned = KeyOffer(identity.name, study.hash, public_half(run_key))
    return replace(unsigned, signature=identity.sign(unsigned.body()))


def check_offers(study: Study, offers: Mapping[str, KeyOffer]) -> bytes:
    """Every site's offer is there, is for this run and is signed by its pinned key; returns the digest of them all."""
    _all_here(study, "offer", offers)
    digest = hashlib.sha256(b"intarsia offers 2|" + study.hash.encode())
    for name in study.names:
        found = offers[name]
        _genuine(study, name, "offer", found)
        digest.update(hashlib.sha256(found.body()).digest())
    if len({found.public for found in offers.values()}) != len(offers):
        raise FederationError("Two sites offer the same key for this run: an offer was copied. Start a new run of the study.")
    return digest.digest()


def share(study: Study, identity: Identity, secret: bytes, offers: Mapping[str, KeyOffer]) -> ShareBundle:
    """The share of this site, sealed to every peer's key of this run, and signed."""
    _own(study, identity)
    digest = check_offers(study, offers)
    sealed = {}
    for name in study.names:
        if name != identity.name:
            content = secret[:_SHARE] + _for_the_pair(study, secret, name)
            try:
                sealed[name] = seal(content, offers[name].public, _context(study, identity.name, name))
            except ValueError:
                raise _unusable(name) from None
    unsigned = ShareBundle(identity.name, study.hash, _commit(study, identity.name, secret[:_SHARE]), digest, sealed)
    return replace(unsigned, signature=identity.sign(unsigned.body()))


def curve_secrets(study: Study, identity: Identity, run_key: bytes, offers: Mapping[str, KeyOffer]) -> dict[str, bytes]:
    """For every peer, what X25519 makes of both sites' keys of the run and pinned keys: the older half of the pair's secret.

    Whoever steals the pinned keys later lacks the run's; a run key that was badly drawn is still covered by the pinned.
    """
    digest = check_offers(study, offers)
    out = {}
    for entry in study.sites:
        if entry.name == identity.name:
            continue
        pair = "|".join(sorted((identity.name, entry.name)))
        context = f"run|{study.hash}|{digest.hex()}|{pair}".encode()
        pinned = identity.pair_secret(_pinned(entry.name, entry.exchange_key), context)
        try:
            fresh = curve_secret(run_key, offers[entry.name].public)
        except ValueError:
            raise _unusable(entry.name) from None
        out[entry.name] = HKDF(SHA256(), 32, salt=pinned, info=b"intarsia pair 2|" + context).derive(fresh)
    return out


def pair_secrets(
    study: Study, name: str, curve: Mapping[str, bytes], opened_by: tuple[bytes, bytes], bundles: Mapping[str, ShareBundle]
) -> dict[str, bytes]:
    """For every peer, a secret only it and this site can compute: from the curve's (`curve_secrets`) and from what the two sealed
    to each other beside their shares. The bundles have passed `combine`."""
    run_key, secret = opened_by
    out = {}
    for peer, salt in curve.items():
        parts = {name: _for_the_pair(study, secret, peer), peer: _open(study, name, run_key, bundles[peer])[_SHARE:]}
        first, second = sorted(parts)
        info = f"intarsia pair 3|{study.hash}|{first}|{second}".encode()
        out[peer] = HKDF(SHA256(), 32, salt=salt, info=info).derive(parts[first] + parts[second])
    return out


def combine(
    study: Study, identity: Identity, own: ShareBundle, opened_by: tuple[bytes, bytes], bundles: Mapping[str, ShareBundle]
) -> tuple[bytes, bytes]:
    """The study key (32 bytes) and the transcript's hash; names the site whose share is missing or does not hold.

    `own` is the bundle this site made, `opened_by` its run key and its own share.
    """
    _own(study, identity)
    _all_here(study, "share", bundles)
    run_key, secret = opened_by
    shares, transcript = [], hashlib.sha256(b"intarsia transcript 3|" + study.hash.encode())
    for name in study.names:
        bundle = bundles[name]
        check(study, name, bundle)
        if not hmac.compare_digest(bundle.offers, own.offers):
            raise FederationError(
                f"The share of site {name!r} rests on other offers than this site ({identity.name!r}) was shown: somebody on "
                "the way showed the sites different keys. Start a new run of the study."
            )
        if name == identity.name:
            if bundle != own:
                raise FederationError(
                    f"The relayed share of this site ({identity.name!r}) is not the one it made: an old share was "
                    "replayed. Start a new run of the study."
                )
            shares.append(secret[:_SHARE])
        else:
            shares.append(_open(study, identity.name, run_key, bundle)[:_SHARE])
        transcript.update(hashlib.sha256(bundle.to_bytes()).digest())
    digest = transcript.digest()
    key = HKDF(SHA256(), 32, salt=digest, info=b"intarsia study key 3|" + study.hash.encode()).derive(b"".join(shares))
    return key, digest


def check(study: Study, name: str, bundle: ShareBundle) -> None:
    """Whether a bundle is this site's, for this study and run, whole and signed; the server can check this too."""
    _genuine(study, name, "share", bundle)
    expected = {other for other in study.names if other != name}
    if set(bundle.sealed) != expected:
        raise FederationError(f"The share of site {name!r} is not sealed to exactly the other sites of the roster.")


def _unusable(name: str) -> FederationError:
    return FederationError(f"The key that site {name!r} offers for this run is not a usable key. Refused.")


def _all_here(study: Study, what: str, found: Mapping[str, object]) -> None:
    missing = [name for name in study.names if name not in found]
    if missing:
        raise FederationError(
            f"The key agreement of study {study.id!r} lacks the {what} of {', '.join(missing)}. "
            "No key is made without all sites; ask them to send theirs."
        )


def _genuine(study: Study, name: str, what: str, found: KeyOffer | ShareBundle) -> None:
    if found.site != name:
        raise FederationError(f"The {what} handed over for site {name!r} says it comes from {found.site!r}. Refused.")
    if found.study_hash != study.hash:
        raise FederationError(
            f"The {what} of site {name!r} belongs to another study, another run or another text of this study "
            f"(hash {found.study_hash[:12]}…, expected {study.hash[:12]}…). Replayed or outdated: refused."
        )
    if not verify(_pinned(name, study.site(name).signing_key), found.signature, found.body()):
        raise FederationError(
            f"The {what} of site {name!r} was changed on its way, or not made by its key in study.toml. Refused."
        )


def confirm(study: Study, name: str, key: bytes, transcript: bytes, fingerprint: str = "") -> Confirmation:
    """This site's proof that it holds the key."""
    return Confirmation(name, study.hash, _mac(study, name, key, transcript), fingerprint)


def check_confirmations(study: Study, key: bytes, transcript: bytes, confirmations: Mapping[str, Confirmation]) -> None:
    """Every site holds the same key and saw the same bundles; names those that do not."""
    missing = [name for name in study.names if name not in confirmations]
    if missing:
        raise FederationError(f"The study key is not confirmed by {', '.join(missing)}. It is not used before all did.")
    wrong = [
        name
        for name in study.names
        if confirmations[name].site != name
        or confirmations[name].study_hash != study.hash
        or not hmac.compare_digest(confirmations[name].mac, _mac(study, name, key, transcript))
    ]
    if wrong:
        raise FederationError(
            f"The confirmation of {', '.join(wrong)} does not fit this site's key: the sites were shown different "
            "shares, or a confirmation was changed. The key is not used. Start a new run of the study."
        )


def _own(study: Study, identity: Identity) -> None:
    entry = study.site(identity.name)
    if (entry.exchange_key, entry.signing_key) != (identity.exchange_key, identity.signing_key):
        raise KeyFileError(
            f"study.toml pins other keys for site {identity.name!r} than this site's identity "
            f"({identity.fingerprint}). Send the lines `intarsia site show` prints to whoever writes study.toml."
        )


def _pinned(name: str, key: str | None) -> str:
    if key is None:
        raise KeyFileError(f"study.toml pins no keys for site {name!r}; agree on a key by file, or add its public keys.")
    return key


def _context(study: Study, sender: str, receiver: str) -> bytes:
    return f"intarsia share 3|{study.hash}|{sender}|{receiver}".encode()


def _commit(study: Study, name: str, share: bytes) -> bytes:
    return hmac.digest(share, f"intarsia commitment 3|{study.hash}|{name}".encode(), "sha256")


def _mac(study: Study, name: str, key: bytes, transcript: bytes) -> bytes:
    confirm_key = HKDF(SHA256(), 32, salt=transcript, info=b"intarsia confirm 3").derive(key)
    return hmac.digest(confirm_key, f"{study.hash}|{name}".encode(), "sha256")


def _for_the_pair(study: Study, secret: bytes, peer: str) -> bytes:
    """What this site alone knows, and tells this peer alone."""
    return hmac.digest(secret[_SHARE:], f"intarsia pair part 1|{study.hash}|{peer}".encode(), "sha256")


def _open(study: Study, receiver: str, run_key: bytes, bundle: ShareBundle) -> bytes:
    """A peer's share and, behind it, its part of the pair's secret."""
    content = opened(bundle.sealed[receiver], run_key, _context(study, bundle.site, receiver)) or b""
    if len(content) != 2 * _SHARE or not hmac.compare_digest(bundle.commitment, _commit(study, bundle.site, content[:_SHARE])):
        raise FederationError(
            f"The share of site {bundle.site!r} cannot be opened by site {receiver!r}, or differs from the one it "
            "committed to. Refused; ask that site to start again with a new run."
        )
    return content
