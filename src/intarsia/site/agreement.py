"""The study key, agreed by the sites through a server that learns nothing.

Each site draws a 32-byte share and seals it (HPKE: X25519, HKDF-SHA256, ChaCha20-Poly1305) to every peer's key in
study.toml, commits to it, and signs the bundle with its pinned Ed25519 key. The server only relays bundles.
K = HKDF(all shares, salt = hash of all bundles), and every site proves by a MAC that it holds the same K and saw the
same bundles. The study hash, which covers the run nonce and the pinned keys, is inside every seal and signature, so a
share of another study, run or site does not fit.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from intarsia.errors import FederationError, KeyFileError
from intarsia.site.identity import Identity
from intarsia.wire.signed import Confirmation, ShareBundle, verify
from intarsia.wire.study import Study

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def new_share() -> bytes:
    """A site's secret contribution; kept until the agreement is confirmed, so that a repeated step sends the same."""
    return secrets.token_bytes(32)


def offer(study: Study, identity: Identity, share: bytes) -> ShareBundle:
    """The share of this site, sealed to every peer and signed."""
    _own(study, identity)
    sealed = {}
    for entry in study.sites:
        if entry.name != identity.name:
            key = X25519PublicKey.from_public_bytes(base64.b64decode(_pinned(entry.name, entry.exchange_key)))
            sealed[entry.name] = _SUITE.encrypt(share, key, _context(study, identity.name, entry.name))
    bundle = ShareBundle(identity.name, study.hash, _commit(study, identity.name, share), sealed)
    return ShareBundle(bundle.site, bundle.study_hash, bundle.commitment, sealed, identity.sign(bundle.body()))


def combine(study: Study, identity: Identity, share: bytes, bundles: Mapping[str, ShareBundle]) -> tuple[bytes, bytes]:
    """The study key (32 bytes) and the transcript's hash; names the site whose share is missing or does not hold."""
    _own(study, identity)
    missing = [name for name in study.names if name not in bundles]
    if missing:
        raise FederationError(
            f"The key agreement of study {study.id!r} lacks the share of {', '.join(missing)}. "
            "No key is made without all sites; ask them to offer theirs."
        )
    shares, transcript = [], hashlib.sha256(b"intarsia transcript 1|" + study.hash.encode())
    for entry in study.sites:
        bundle = bundles[entry.name]
        check(study, entry.name, bundle)
        if entry.name == identity.name:
            if not hmac.compare_digest(bundle.commitment, _commit(study, identity.name, share)):
                raise FederationError(
                    f"The relayed share of this site ({identity.name!r}) is not the one it offered: an old offer was "
                    "replayed. Start a new run of the study."
                )
            shares.append(share)
        else:
            shares.append(_open(study, identity, bundle))
        transcript.update(hashlib.sha256(bundle.to_bytes()).digest())
    digest = transcript.digest()
    key = HKDF(SHA256(), 32, salt=digest, info=b"intarsia study key 1|" + study.hash.encode()).derive(b"".join(shares))
    return key, digest


def check(study: Study, name: str, bundle: ShareBundle) -> None:
    """Whether a bundle is this site's, for this study and run, whole and signed; the server can check this too."""
    if bundle.site != name:
        raise FederationError(f"The share handed over for site {name!r} says it comes from {bundle.site!r}. Refused.")
    if bundle.study_hash != study.hash:
        raise FederationError(
            f"The share of site {name!r} belongs to another study, another run or another text of this study "
            f"(hash {bundle.study_hash[:12]}…, expected {study.hash[:12]}…). Replayed or outdated: refused."
        )
    signing_key = _pinned(name, study.site(name).signing_key)
    if not verify(signing_key, bundle.signature, bundle.body()):
        raise FederationError(
            f"The share of site {name!r} was changed on its way, or not made by its key in study.toml. Refused."
        )
    expected = {other for other in study.names if other != name}
    if set(bundle.sealed) != expected:
        raise FederationError(f"The share of site {name!r} is not sealed to exactly the other sites of the roster.")


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
    return f"intarsia share 1|{study.hash}|{sender}|{receiver}".encode()


def _commit(study: Study, name: str, share: bytes) -> bytes:
    return hmac.digest(share, f"intarsia commitment 1|{study.hash}|{name}".encode(), "sha256")


def _mac(study: Study, name: str, key: bytes, transcript: bytes) -> bytes:
    confirm_key = HKDF(SHA256(), 32, salt=transcript, info=b"intarsia confirm 1").derive(key)
    return hmac.digest(confirm_key, f"{study.hash}|{name}".encode(), "sha256")


def _open(study: Study, identity: Identity, bundle: ShareBundle) -> bytes:
    try:
        share = _SUITE.decrypt(bundle.sealed[identity.name], identity.exchange, _context(study, bundle.site, identity.name))
    except (InvalidTag, ValueError):
        share = b""
    if len(share) != 32 or not hmac.compare_digest(bundle.commitment, _commit(study, bundle.site, share)):
        raise FederationError(
            f"The share of site {bundle.site!r} cannot be opened by site {identity.name!r}, or differs from the one it "
            "committed to. Refused; ask that site to start again with a new run."
        )
    return bytes(share)
