"""Certificate requests from strangers: one can become the certificate of one new client, and nothing else."""

import contextlib
import io
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("nvflare", reason="the networked carrier needs intarsia[federation]")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from intarsia.carriers.flare import certificates as kit
from intarsia.carriers.flare.requests import read_request
from intarsia.cli import main
from intarsia.errors import FederationError, InputError

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def csr(name: str, role: str = "client", key: rsa.RSAPrivateKey = KEY, *, extra: bool = False) -> bytes:
    attributes = [
        x509.NameAttribute(NameOID.COMMON_NAME, name),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, name.replace("-", "_")),
        x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role),
    ]
    built = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    if extra:
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def request(where: Path, file: str = "clinic", *, name: str = "clinic", inside: bytes | None = None, **meta: object) -> Path:
    """A request as somebody with a text book would write it, every part of its own choosing."""
    described = {"name": name, "kind": "site", "cert_type": "client", "cert_role": None} | meta
    path = where / f"{file}.request.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("request.json", json.dumps(described))
        archive.writestr("site.yaml", "name: intarsia\n")
        archive.writestr(f"{name}.csr", csr(name) if inside is None else inside)
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "user", "cert_type": "lead", "cert_role": "lead"}, "neither the operator's nor the server's"),
        ({"kind": "server", "cert_type": "server"}, "neither the operator's nor the server's"),
        ({"cert_role": "project_admin"}, "neither the operator's nor the server's"),
        ({"inside": csr("clinic", "project_admin")}, "another name or role"),
        ({"inside": csr("clinic", "server")}, "another name or role"),
        ({"inside": csr("operator@intarsia.local", "lead")}, "another name or role"),
        ({"inside": csr("mri")}, "another name or role"),
        ({"inside": csr("clinic", extra=True)}, "extensions"),
        ({"inside": b"nothing"}, "not readable"),
        ({"name": "mri"}, "does not hold exactly"),
        ({"file": "server", "name": "server"}, "meaning of its own"),
        ({"file": "../clinic"}, None),
        ({"file": "clinic (1)"}, "is called NAME"),
    ],
)
def test_a_request_is_for_one_client_under_its_own_name(tmp_path: Path, changes: dict, words: str | None) -> None:  # type: ignore[type-arg]
    read_request(request(tmp_path))  # without the change it is readable: each case below fails for its own reason
    if words is None:
        (tmp_path / "sub").mkdir()
        assert read_request(request(tmp_path / "sub", **changes)).name == "clinic"  # a path is not part of a name
        return
    with pytest.raises(FederationError, match=words):
        read_request(request(tmp_path, **changes))


def test_the_words_are_those_of_the_key(tmp_path: Path) -> None:
    one = read_request(request(tmp_path))
    assert one.words == read_request(request(tmp_path, inside=csr("clinic"))).words
    assert one.words != read_request(request(tmp_path, inside=csr("clinic", key=OTHER))).words
    assert len(one.words.split("-")) == 8


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bytes_break_the_reader(tmp_path_factory, data) -> None:  # type: ignore[no-untyped-def]
    path = request(tmp_path_factory.mktemp("r"))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path.write_bytes(raw)
    with contextlib.suppress(FederationError):
        read_request(path)


def test_large_requests_are_refused_unread(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="more than"):
        read_request(request(tmp_path, padding="x" * 2**20))
    bomb = tmp_path / "clinic.request.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("request.json", "site.yaml", "clinic.csr"):
            archive.writestr(name, bytes(2**24))
    with pytest.raises(FederationError, match="unpacks to more"):
        read_request(bomb)


@pytest.fixture(scope="module")
def server(tmp_path_factory):  # type: ignore[no-untyped-def]
    """An authority, and the genuine request of a clinic."""
    root = tmp_path_factory.mktemp("authority")
    kit.server_init(root / "server", "localhost", 8002, 8003, ("127.0.0.1",))
    kit.join_request(root / "clinic", "clinic")
    return root


def test_the_operator_approves_after_comparing_and_once(server: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    path = server / "clinic" / "network-request" / "request-client" / "clinic.request.zip"
    genuine = read_request(path)
    told = server / "told.txt"
    command = ["server", "approve", str(server / "server"), str(path), "--fingerprints", str(told)]
    # Somebody else's key under the clinic's name: the words differ from those the clinic read out.
    told.write_text(f"clinic {read_request(request(server, inside=csr('clinic'))).words}\n")
    assert main(command) == InputError.exit_code
    told.write_text(f"mri {genuine.words}\n")
    assert main(command) == InputError.exit_code
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    assert main(command[:4]) == InputError.exit_code
    assert not (server / "server" / "approved" / "clinic.signed.zip").exists()
    told.write_text(f"clinic {genuine.words}\n")
    assert main(command) == 0
    assert genuine.name in {line["name"] for line in kit.approvals(server / "server")}
    # A second clinic, with any key and any capitals; the operator's and the server's own names; the same key again.
    for name in ("clinic", "Clinic", "CLINIC", "localhost"):
        again = read_request(request(server, name, name=name))
        with pytest.raises(FederationError, match="was approved before"):
            kit.approve(server / "server", again)
    with zipfile.ZipFile(path) as archive:
        signed_by_clinic = archive.read("clinic.csr")
    stolen = request(server, "lab", name="lab", inside=signed_by_clinic)
    with pytest.raises(FederationError, match="another name or role"):
        read_request(stolen)
    capsys.readouterr()


def test_no_private_key_is_in_a_request(server: Path) -> None:
    """It is made at the site, for its owner alone, and what is sent holds the public half."""
    key = next((server / "clinic").rglob("*.key"))
    assert key.stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(server / "clinic" / "network-request" / "request-client" / "clinic.request.zip") as archive:
        sent = b"".join(archive.read(name) for name in archive.namelist())
    assert b"PRIVATE" not in sent
    assert key.read_bytes().split(b"\n")[1] not in sent


def test_the_authority_can_be_told_in_words(server: Path) -> None:
    digest = json.loads((server / "server" / "ca" / "ca.json").read_text())["rootCA_fingerprint"]
    assert kit.authority(kit.authority_words(digest)) == digest
    assert kit.authority(digest) == digest


def test_a_site_that_asks_again_sends_the_same_request(server: Path) -> None:
    path = server / "clinic" / "network-request" / "request-client" / "clinic.request.zip"
    before = path.read_bytes()
    assert kit.join_request(server / "clinic", "clinic") == path.resolve()
    assert path.read_bytes() == before


def test_what_is_not_this_sites_approval_is_named(server: Path, tmp_path: Path) -> None:
    clinic, told = server / "clinic", kit.authority_words("SHA256:" + ":".join(["AB"] * 32))
    signed = server / "server" / "approved"
    with pytest.raises(FederationError, match="has made no request to join yet"):
        kit.join_finish(tmp_path, signed / "clinic.signed.zip", told)
    with pytest.raises(InputError, match=r"is not there. Give the file .* clinic.signed.zip"):
        kit.join_finish(clinic, tmp_path / "clinic.signed.zip", told)
    with pytest.raises(InputError, match="not the approval of this site's request"):
        kit.join_finish(clinic, signed / "localhost.signed.zip", told)
    if not (signed / "clinic.signed.zip").exists():  # where this test runs alone
        kit.approve(server / "server", read_request(next(clinic.rglob("*.request.zip"))))
    with pytest.raises(FederationError, match="was not signed by the authority whose words"):
        kit.join_finish(clinic, signed / "clinic.signed.zip", told)
    assert not (clinic / "network").exists()


def test_engine_processes_calculate_as_the_command_that_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the linear algebra go along, so that the last bits agree; nothing else that might be secret does."""
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DATABASE_PASSWORD", "xyzzy")
    seen = kit.environment()
    assert (seen["OPENBLAS_CORETYPE"], seen["OMP_NUM_THREADS"]) == ("Haswell", "1")
    assert "xyzzy" not in seen.values()
