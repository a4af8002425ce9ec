"""`SketchKey`: the 32 secret bytes the sites share and the server never sees.

A key is not a seed. It comes from the operating system, is kept in a file only its owner can read, shows a
fingerprint and nothing else, and is used only through sub-keys bound to one purpose, one study and one run.
"""

import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import NoReturn

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from intarsia.errors import KeyFileError
from intarsia.files import OWNER_ONLY, create, replace

_HEAD = "intarsia sketch key, version 1. Secret: whoever has it can undo the sketch."
_BYTES = 32


def _info(*parts: str) -> bytes:
    """Parts, each with its length before it, so that no two lists of parts give the same bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


class SketchKey:
    """A shared secret of 32 bytes. `repr` and `str` show its fingerprint only; it cannot be pickled."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes | bytearray) or len(secret) != _BYTES:
            raise KeyFileError(f"A sketch key has {_BYTES} bytes; make one with `intarsia key new`.")
        self._secret = bytes(secret)

    @classmethod
    def new(cls) -> "SketchKey":
        """A fresh key from the operating system's generator."""
        return cls(secrets.token_bytes(_BYTES))

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that name the key file to those who have it; they are never sent."""
        return self._expand(_info("intarsia/1", "fingerprint"))[:16].hex()

    def study_fingerprint(self, study_hash: str) -> str:
        """32 hexadecimal digits that name the key within one study: messages of two studies with one key do not tell so."""
        return self._expand(_info("intarsia/1", "fingerprint", study_hash))[:16].hex()

    def derive(self, label: str, study: str, run: str, *, context: str = "") -> bytes:
        """The 32-byte sub-key for one purpose (`label`), one study, one run and, if given, one context.

        HKDF-SHA256; any other study, run or purpose gives an unrelated sub-key, so Φ is never used twice.
        """
        for name, value in (("label", label), ("study", study), ("run", run)):
            if not isinstance(value, str) or not value:
                raise KeyFileError(f"A sub-key needs a {name}: give non-empty text.")
        return self._expand(_info("intarsia/1", "derive", label, study, run, context))

    def _expand(self, info: bytes) -> bytes:
        return HKDF(algorithm=SHA256(), length=_BYTES, salt=b"intarsia sketch key", info=info).derive(self._secret)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the key to a file only its owner may read; an existing file is kept unless `overwrite`."""
        target = Path(path)
        text = f"{_HEAD}\nfingerprint {self.fingerprint}\nsecret {self._secret.hex()}\n"
        try:
            (replace if overwrite else create)(target, text.encode(), mode=OWNER_ONLY)
        except FileExistsError:
            raise KeyFileError(
                f"{target} exists already and is kept: a lost key cannot be made again. Choose another name or ask to overwrite."
            ) from None
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise KeyFileError(f"Cannot write the key file {target}: {why}. Nothing is left of it.") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "SketchKey":
        """Read a key file; one that others can read or write is refused."""
        source = Path(path)
        try:
            with source.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                data = file.read(4096)
        except FileNotFoundError:
            raise KeyFileError(f"There is no key file {source}. Make one: `intarsia key new -o {source}`.") from None
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise KeyFileError(f"Cannot read the key file {source}: {why}.") from None
        if os.name == "posix" and mode & 0o077:
            raise KeyFileError(
                f"Others than the owner may open the key file {source} (its mode is {mode:o}, expected 600). "
                f"Run `chmod 600 {source}`, and make a new key if somebody may have read it."
            )
        try:
            head, named, secret = data.decode("ascii").splitlines()
            key = cls(bytes.fromhex(secret.removeprefix("secret ")))
            if head != _HEAD or not hmac.compare_digest(named, f"fingerprint {key.fingerprint}"):
                raise ValueError
        except (ValueError, KeyFileError):
            # `from None`: the decoder's own error would quote the file's content.
            raise KeyFileError(f"{source} is not an intact intarsia key file (version 1). Get it again.") from None
        return key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SketchKey) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"SketchKey(fingerprint={self.fingerprint})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A SketchKey is not pickled: save it to a key file, or send sub-keys.")
