"""Certificates and configurations: made by request and approval, hardened before the first start.

A site's private TLS key is made at the site and never leaves it; the server's operator signs a request. After that the
engine's defaults are tightened: a job may name our one class and nothing else, may not bring code, may not run shell
commands, and no log is streamed out.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import intarsia
from intarsia.carriers.flare.hardening import check_version, harden_server, harden_site
from intarsia.carriers.flare.requests import SUFFIX, CertificateRequest, read_request
from intarsia.errors import FederationError, InputError
from intarsia.files import append, json_lines, replace
from intarsia.wire.schema import check_name
from intarsia.wire.words import from_words, to_words

APPROVALS = "approvals.jsonl"
SIGNED = ".signed.zip"  # what an approved request is called, after the site's name
PROJECT = "intarsia"
OPERATOR = "operator@intarsia.local"


def require_engine() -> None:
    check_version()


def server_init(folder: Path, host: str, port: int, admin_port: int, extra_hosts: tuple[str, ...] = ()) -> str:
    """A new federation: its certificate authority, the server's and the operator's kits. Returns the fingerprint."""
    require_engine()
    if (folder / "ca").exists():
        raise FederationError(f"{folder} holds a federation already; its certificates are not made again.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    server = f"{{host: {host}, fed_learn_port: {port}, admin_port: {admin_port}}}"
    profile = f"name: {PROJECT}\nscheme: grpc\nconnection_security: mtls\nserver: {server}\n"
    replace(folder / "profile.yaml", profile.encode())
    _nvflare(folder, "cert", "init", "--profile", "profile.yaml", "-o", "ca")
    names = "".join(f"      - {name}\n" for name in extra_hosts)
    entries = f"    fed_learn_port: {port}\n    admin_port: {admin_port}\n" + (f"    host_names:\n{names}" if names else "")
    digest = ""
    for name, kind, extra in ((host, "server", entries), (OPERATOR, "admin", "    role: lead\n")):
        request = _request(folder, name, kind, extra)
        signed, digest = _sign(folder, request, name)
        package(folder, signed, digest, folder / kind)
    harden_server(folder)
    return digest


def join_request(folder: Path, name: str) -> Path:
    """The site's TLS key (stays here) and the request to send to the server's operator; `read_request` gives its words."""
    require_engine()
    _check_not_joined(folder)
    where = folder / "network-request"
    made = where / "request-client" / f"{name}{SUFFIX}"
    # Asked again, for the words or after a crash: the same request, as long as its key is here.
    again = made.is_file() and (made.parent / f"{name}.key").is_file()
    path = made.resolve() if again else _request(where, name, "client", "")
    read_request(path)
    return path


def join_finish(folder: Path, signed: Path, fingerprint: str) -> Path:
    """From the approved request to a hardened kit in `network/`; the fingerprint must be the one told in person."""
    require_engine()
    _check_not_joined(folder)
    asked = [path.name.removesuffix(SUFFIX) for path in (folder / "network-request" / "request-client").glob(f"*{SUFFIX}")]
    if not asked:
        raise FederationError(f"{folder} has made no request to join yet. Begin with: intarsia site join {folder}")
    if not signed.is_file():
        raise InputError(f"{signed} is not there. Give the file that the server's operator returned: {asked[0]}{SIGNED}")
    if signed.name != f"{asked[0]}{SIGNED}":
        raise InputError(
            f"{signed} is not the approval of this site's request, which is called {asked[0]}{SIGNED}. Give the file that the "
            "server's operator returned, under its own name."
        )
    told = authority(fingerprint)
    try:
        package(folder / "network-request", signed.resolve(), told, folder / "network")
    except FederationError as error:
        if "fingerprint" not in str(error):
            raise
        raise FederationError(
            f"{signed} was not signed by the authority whose words or fingerprint you gave. Compare them with the server's "
            "operator by telephone; if they are the same, somebody else has signed this file."
        ) from None
    harden_site(folder)
    return folder / "network"


def _check_not_joined(folder: Path) -> None:
    if (folder / "network").exists():
        raise FederationError(f"{folder / 'network'} exists already; this site has joined. Move it away to join again.")


def _request(folder: Path, name: str, kind: str, extra: str) -> Path:
    if kind == "client" and not check_name(name):
        raise FederationError("A site name is 1 to 63 letters, digits, '-' or '_'.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    org = name if kind == "client" else "server"
    text = f"name: {PROJECT}\nparticipants:\n  - name: {name}\n    type: {kind}\n    org: {org.replace('-', '_')}\n{extra}"
    replace(folder / f"{kind}.yaml", text.encode())
    _nvflare(folder, "cert", "request", "-p", f"{kind}.yaml", "--out", f"request-{kind}")
    found = list((folder / f"request-{kind}").glob("*.request.zip"))
    if len(found) != 1:
        raise FederationError("The certificate request was not written.")
    return found[0].resolve()


def approve(folder: Path, request: CertificateRequest) -> tuple[Path, str]:
    """The operator has compared the words with the site: sign. Returns the signed file and the authority's fingerprint.

    One certificate per name and per key; a name that differs only in its capitals is the same name.
    """
    require_engine()
    for line in approvals(folder):
        if line["name"].lower() == request.name.lower():
            raise FederationError(
                f"{line['name']} was approved before ({folder / 'approved'}). One certificate per site: send that file again, or "
                "let the site choose another name."
            )
        if line["key_sha256"] == request.key_sha256:
            raise FederationError(f"The key in this request was approved before, for {line['name']}. One key per site. Refused.")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".approving-") as private:
        # The bytes that were read and shown, not the file that may have been changed since.
        copy = Path(private) / f"{request.name}{SUFFIX}"
        copy.write_bytes(request.raw)
        signed, digest = _sign(folder, copy, request.name)
    try:
        _check_signed(signed, request)
    except Exception:
        signed.unlink(missing_ok=True)
        raise
    line = {"name": request.name, "words": request.words, "key_sha256": request.key_sha256}
    append(folder / "approved" / APPROVALS, json.dumps(line).encode())
    return signed, digest


def approvals(folder: Path) -> list[dict[str, str]]:
    """The names and keys this authority has approved; a signed file that is not on the list (the server's, the operator's)
    counts by its name."""
    found: list[dict[str, str]] = json_lines(folder / "approved" / APPROVALS)
    names = {line["name"] for line in found}
    for path in (folder / "approved").glob(f"*{SIGNED}"):
        if (name := path.name.removesuffix(SIGNED)) not in names:
            found.append({"name": name, "words": "", "key_sha256": ""})
    return found


def _check_signed(signed: Path, request: CertificateRequest) -> None:
    """What the tool signed is what was asked: this name, this key, and the role of a client."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from cryptography.x509.oid import NameOID

    with zipfile.ZipFile(signed) as archive:
        certificate = x509.load_pem_x509_certificate(archive.read(f"{request.name}.crt"))
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    found = [
        [str(a.value) for a in certificate.subject.get_attributes_for_oid(oid)]
        for oid in (NameOID.COMMON_NAME, NameOID.UNSTRUCTURED_NAME)
    ]
    if found != [[request.name], ["client"]] or hashlib.sha256(key).hexdigest() != request.key_sha256:
        raise FederationError("The engine's tool signed something else than the request that was shown. The file is deleted.")


def authority(told: str) -> str:
    """The authority's fingerprint as the engine writes it, from what the operator told: words, or SHA256:…"""
    if ":" in told or len(told.strip()) == 64:
        return told
    return "SHA256:" + ":".join(f"{byte:02X}" for byte in from_words(told))


def authority_words(fingerprint: str) -> str:
    return to_words(bytes.fromhex(fingerprint.removeprefix("SHA256:").replace(":", "")))


def _sign(folder: Path, request: Path, name: str) -> tuple[Path, str]:
    """Let the engine's tool sign a request, whatever it holds: for our own two requests and for those read by us."""
    signed = (folder / "approved" / f"{name}{SIGNED}").resolve()
    if signed.exists():
        raise FederationError(f"{name} was approved before ({signed}). One certificate per site; send that file.")
    signed.parent.mkdir(exist_ok=True)
    arguments = (
        "cert",
        "approve",
        str(request.resolve()),
        "-c",
        "ca",
        "--profile",
        "profile.yaml",
        "--out",
        str(signed),
    )
    answer = _nvflare(folder, *arguments)
    return signed, str(answer["rootca_fingerprint_sha256"])


def package(folder: Path, signed: Path, fingerprint: str, target: Path) -> None:
    kind = {"server": "server", "admin": "admin"}.get(target.name, "client")
    work = folder / f"work-{kind}"
    shutil.rmtree(work, ignore_errors=True)
    request = f"request-{kind}"
    options = ("-w", work.name, "--request-dir", request, "--fingerprint", fingerprint)
    answer = _nvflare(folder, "package", str(signed), *options)
    shutil.move(str(answer["output_dir"]), target)
    shutil.rmtree(work, ignore_errors=True)
    # The kit has the private key now; one copy is enough.
    for key in (folder / request).glob("*.key"):
        key.unlink()


def environment(**extra: str) -> dict[str, str]:
    """What an engine process may see of the surroundings."""
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV")
    # With other settings of the linear algebra a process would calculate other last bits.
    found = {k: v for k, v in os.environ.items() if k in kept or k.startswith(("OPENBLAS_", "OMP_", "MKL_"))}
    found |= {"PYTHONDONTWRITEBYTECODE": "1"}
    # An engine process runs the same intarsia as the command that starts it, also when that is not an installed one.
    home = Path(intarsia.__file__).resolve().parents[1]
    if home not in {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}:
        found["PYTHONPATH"] = str(home)
    return found | extra


def _nvflare(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the engine's own certificate tool; its audit records go below the folder, not into the home."""
    command = [sys.executable, "-m", "nvflare.cli", "--format", "json", *arguments]
    home = str(folder.resolve() / "engine-home")
    done = subprocess.run(
        command, cwd=folder, env=environment(HOME=home), capture_output=True, text=True, timeout=120, check=False
    )
    answer = _last_json(done.stdout)
    if done.returncode != 0 or answer.get("status") not in ("ok", None):
        detail = answer.get("message") or answer.get("error_code") or done.stderr.strip()[-300:] or "no reason given"
        raise FederationError(f"The certificate tool refused `{' '.join(arguments[:2])}`: {detail}")
    return dict(answer.get("data") or {})


def _last_json(text: str) -> dict[str, Any]:
    start = text.find("{")
    while start >= 0:
        try:
            value = json.loads(text[start:])
            return value if isinstance(value, dict) else {}
        except ValueError:
            start = text.find("\n{", start)
            start = start + 1 if start >= 0 else -1
    return {}
