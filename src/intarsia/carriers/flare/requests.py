"""A site's certificate request, read and judged by us before the authority's key touches it.

The engine's tool signs whatever role and name a request holds. Here a request can only become the certificate of a client
that is not there yet: its type, its common name, its file's name and the name on the roster must be one thing.
"""

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from intarsia.errors import FederationError
from intarsia.wire.plain import one_line
from intarsia.wire.schema import check_name
from intarsia.wire.words import to_words

SUFFIX = ".request.zip"
LIMIT_BYTES = 64 * 2**10
# Names that mean something to the engine or to us; compared without regard to case.
RESERVED = frozenset({"server", "admin", "operator", "client", "root", "ca", "local", "startup", "all"})


@dataclass(frozen=True)
class CertificateRequest:
    """What a request asks for: the certificate of client `name` for the key with these words. `raw` is what gets signed."""

    name: str
    words: str
    key_sha256: str
    raw: bytes = field(repr=False)


def read_request(path: Path) -> CertificateRequest:
    """The request in this file; FederationError unless it asks for an ordinary client's certificate under the file's name."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise FederationError(f"Cannot read the request {path}: {error.strerror}.") from None
    if len(raw) > LIMIT_BYTES:
        raise FederationError(f"{path} has more than {LIMIT_BYTES:,} bytes: it is no certificate request of ours.")
    name = path.name.removesuffix(SUFFIX)
    if not path.name.endswith(SUFFIX) or not check_name(name):
        raise FederationError(f"A request's file is called NAME{SUFFIX}, where NAME is the site's name on the roster.")
    if name.lower() in RESERVED:
        raise FederationError(f"{name!r} cannot be a site's name: it has a meaning of its own in the engine.")
    members = _members(raw, name)
    _metadata(members["request.json"], name)
    csr = _csr(members[f"{name}.csr"], name)
    digest = hashlib.sha256(csr.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    return CertificateRequest(name, to_words(digest[:16]), digest.hex(), raw)


def _members(raw: bytes, name: str) -> dict[str, bytes]:
    expected = {"request.json", "site.yaml", f"{name}.csr"}
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            entries = archive.infolist()
            if len(entries) != len(expected) or {entry.filename for entry in entries} != expected:
                raise FederationError(
                    f"The request does not hold exactly {', '.join(sorted(expected))}: it is for another name than its file's, "
                    "or was not made by `intarsia site join`. Refused."
                )
            if any(entry.file_size > LIMIT_BYTES for entry in entries):
                raise FederationError("The request unpacks to more than a request holds. Refused.")
            return {entry.filename: archive.read(entry) for entry in entries}
    except FederationError:
        raise
    except Exception:  # the archive is a stranger's; whatever its reader stumbles over, it is not a request
        raise FederationError("The request is not a readable archive; ask the site for it again.") from None


def _metadata(raw: bytes, name: str) -> None:
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        raise FederationError("The request's description is not readable; ask the site for it again.")
    asked = {key: meta.get(key) for key in ("kind", "cert_type")}
    if asked != {"kind": "site", "cert_type": "client"} or meta.get("cert_role") is not None:
        raise FederationError(
            f"The request does not ask for a site's certificate but for {one_line(repr(asked))[:120]}. A site's request can "
            "become neither the operator's nor the server's certificate. Refused; ask the site what this is."
        )
    if meta.get("name") != name:
        raise FederationError("The request is for another name than its file's. Refused.")


def _csr(raw: bytes, name: str) -> x509.CertificateSigningRequest:
    try:
        csr = x509.load_pem_x509_csr(raw)
        sound = csr.is_signature_valid
        subject = [(attribute.oid, attribute.value) for attribute in csr.subject]
        extensions = list(csr.extensions)
    except Exception:  # as above: a stranger's bytes
        raise FederationError("The certificate request inside is not readable; ask the site for it again.") from None
    if not sound:
        raise FederationError("The certificate request is not signed by the key it carries. Refused.")
    roles = [value for oid, value in subject if oid == NameOID.UNSTRUCTURED_NAME]
    if [value for oid, value in subject if oid == NameOID.COMMON_NAME] != [name] or roles != ["client"]:
        raise FederationError("The certificate request is for another name or role than that of this site. Refused.")
    if extensions:
        raise FederationError("The certificate request asks for extensions, which a site does not need. Refused.")
    return csr
