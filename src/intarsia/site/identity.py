"""A site's identity: an X25519 key to receive sealed shares and an Ed25519 key to sign its own.

The private halves stay in one owner-only file at the site; the public halves are pinned in study.toml.
"""

import base64
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from intarsia.errors import KeyFileError
from intarsia.files import OWNER_ONLY, create, seal_json, unseal_json
from intarsia.wire.schema import check_name
from intarsia.wire.words import to_words

FILE = "identity.key"


@dataclass(frozen=True)
class Identity:
    """A site's private keys; its repr shows the fingerprint of the public halves only."""

    name: str
    exchange: X25519PrivateKey = field(repr=False)
    signing: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def new(cls, name: str) -> "Identity":
        if not check_name(name):
            raise KeyFileError("A site name is 1 to 63 letters, digits, '-' or '_'.")
        return cls(name, X25519PrivateKey.generate(), Ed25519PrivateKey.generate())

    @property
    def exchange_key(self) -> str:
        """The public X25519 key in base64, as study.toml pins it."""
        return base64.b64encode(self.exchange.public_key().public_bytes_raw()).decode()

    @property
    def signing_key(self) -> str:
        """The public Ed25519 key in base64, as study.toml pins it."""
        return base64.b64encode(self.signing.public_key().public_bytes_raw()).decode()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.exchange_key, self.signing_key)

    @property
    def words(self) -> str:
        """The fingerprint as eight words to read out."""
        return fingerprint_words(self.exchange_key, self.signing_key)

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, fingerprint={self.fingerprint!r})"

    def sign(self, body: bytes) -> bytes:
        return self.signing.sign(body)

    def pair_secret(self, peer_exchange_key: str, context: bytes) -> bytes:
        """A secret only this site and the peer can compute, bound to the context; the same from both sides."""
        public = X25519PublicKey.from_public_bytes(base64.b64decode(peer_exchange_key))
        try:
            shared = self.exchange.exchange(public)
        except ValueError:
            raise KeyFileError("A peer's exchange key in study.toml is not a usable X25519 key.") from None
        return HKDF(SHA256(), 32, salt=None, info=b"intarsia pair 1|" + context).derive(shared)

    def toml(self) -> str:
        """The lines that go into study.toml."""
        return f'name = "{self.name}"\nexchange_key = "{self.exchange_key}"\nsigning_key = "{self.signing_key}"\n'

    def save(self, folder: str | Path) -> Path:
        """Write `identity.key`, readable by its owner only; an existing identity is never overwritten."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "kind": "intarsia identity",
            "schema": 1,
            "name": self.name,
            "exchange": base64.b64encode(self.exchange.private_bytes_raw()).decode(),
            "signing": base64.b64encode(self.signing.private_bytes_raw()).decode(),
        }
        path = folder / FILE
        write_secret(path, seal_json(content))
        return path

    @classmethod
    def load(cls, folder: str | Path) -> "Identity":
        path = Path(folder)
        path = path / FILE if path.is_dir() else path
        raw = read_secret(path)
        try:
            content = unseal_json(raw, path, "Restore it from a backup of the site's folder: it is in no other place.")
            if content["kind"] != "intarsia identity" or content["schema"] != 1 or not check_name(content["name"]):
                raise ValueError
            exchange = X25519PrivateKey.from_private_bytes(base64.b64decode(content["exchange"], validate=True))
            signing = Ed25519PrivateKey.from_private_bytes(base64.b64decode(content["signing"], validate=True))
        except (ValueError, KeyError, TypeError):
            raise KeyFileError(f"{path} is not an identity made by `intarsia site init`.") from None
        return cls(content["name"], exchange, signing)


def _digest(exchange_key: str, signing_key: str) -> bytes:
    return hashlib.sha256(b"intarsia identity 1|" + f"{exchange_key}|{signing_key}".encode()).digest()[:16]


def fingerprint(exchange_key: str, signing_key: str) -> str:
    """The first 16 bytes of the keys' digest: 8 groups of 4 hexadecimal digits."""
    digest = _digest(exchange_key, signing_key).hex()
    return "-".join(digest[i : i + 4] for i in range(0, 32, 4))


def fingerprint_words(exchange_key: str, signing_key: str) -> str:
    """The same 16 bytes as eight words two people can compare by telephone."""
    return to_words(_digest(exchange_key, signing_key))


def write_secret(path: Path, content: bytes) -> None:
    """Create an owner-only file in one step; never overwrite one."""
    try:
        create(path, content, mode=OWNER_ONLY)
    except FileExistsError:
        raise KeyFileError(f"{path} exists already; it is not overwritten. Move it away first.") from None


def read_secret(path: Path) -> bytes:
    """Read an owner-only file; refuse one that others can read."""
    try:
        mode = path.stat().st_mode
        raw = path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"Cannot read {path}: {error.strerror}.") from None
    if os.name == "posix" and mode & 0o077:
        raise KeyFileError(f"{path} can be read by others (mode {mode & 0o777:o}). Run `chmod 600 {path}`.")
    return raw
