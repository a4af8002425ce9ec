"""Certificates and configurations: made by request and approval, hardened before the first start.

A site's private TLS key is made at the site and never leaves it; the server's operator signs a request. After that the
engine's defaults are tightened: a job may name our one class and nothing else, may not bring code, may not run shell
commands, and no log is streamed out.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from intarsia.errors import FederationError
from intarsia.wire.schema import check_name

PROJECT = "intarsia"
OPERATOR = "operator@intarsia.local"
EXECUTOR = "intarsia.carriers.flare.site_side.StudyExecutor"
CONTROLLER = "intarsia.carriers.flare.server_side.StudyController"

# Whoever asks: look at the state, submit jobs without code. The rest is nobody's right.
_RIGHTS = {
    "submit_job": "any",
    "clone_job": "none",
    "manage_job": "any",
    "download_job": "none",
    "view": "any",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}


def require_engine() -> None:
    try:
        import nvflare  # noqa: F401
    except ImportError:
        raise FederationError(
            "The networked carrier needs NVIDIA FLARE: pip install 'intarsia[federation]'. Studies by files do not."
        ) from None


def server_init(folder: Path, host: str, port: int, admin_port: int, extra_hosts: tuple[str, ...] = ()) -> str:
    """A new federation: its certificate authority, the server's and the operator's kits. Returns the fingerprint."""
    require_engine()
    if (folder / "ca").exists():
        raise FederationError(f"{folder} holds a federation already; its certificates are not made again.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    server = f"{{host: {host}, fed_learn_port: {port}, admin_port: {admin_port}}}"
    profile = f"name: {PROJECT}\nscheme: grpc\nconnection_security: mtls\nserver: {server}\n"
    (folder / "profile.yaml").write_text(profile, encoding="utf-8")
    _nvflare(folder, "cert", "init", "--profile", "profile.yaml", "-o", "ca")
    names = "".join(f"      - {name}\n" for name in extra_hosts)
    entries = f"    fed_learn_port: {port}\n    admin_port: {admin_port}\n" + (f"    host_names:\n{names}" if names else "")
    digest = ""
    for name, kind, extra in ((host, "server", entries), (OPERATOR, "admin", "    role: lead\n")):
        request = _request(folder, name, kind, extra)
        signed, digest = approve(folder, request)
        package(folder, signed, digest, folder / kind)
    harden_server(folder)
    return digest


def join_request(folder: Path, name: str) -> Path:
    """The site's TLS key (stays here) and the request to send to the server's operator."""
    require_engine()
    return _request(folder / "network-request", name, "client", "")


def join_finish(folder: Path, signed: Path, fingerprint: str) -> Path:
    """From the approved request to a hardened kit in `network/`; the fingerprint must be the one told in person."""
    require_engine()
    if (folder / "network").exists():
        raise FederationError(f"{folder / 'network'} exists already; this site has joined. Move it away to join again.")
    package(folder / "network-request", signed.resolve(), fingerprint, folder / "network")
    harden_site(folder)
    return folder / "network"


def _request(folder: Path, name: str, kind: str, extra: str) -> Path:
    if kind == "client" and not check_name(name):
        raise FederationError("A site name is 1 to 63 letters, digits, '-' or '_'.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    org = name if kind == "client" else "server"
    text = f"name: {PROJECT}\nparticipants:\n  - name: {name}\n    type: {kind}\n    org: {org.replace('-', '_')}\n{extra}"
    (folder / f"{kind}.yaml").write_text(text, encoding="utf-8")
    _nvflare(folder, "cert", "request", "-p", f"{kind}.yaml", "--out", f"request-{kind}")
    found = list((folder / f"request-{kind}").glob("*.request.zip"))
    if len(found) != 1:
        raise FederationError("The certificate request was not written.")
    return found[0].resolve()


def approve(folder: Path, request: Path) -> tuple[Path, str]:
    """The operator's step: sign a request. Returns the signed file and the authority's fingerprint."""
    require_engine()
    name = request.name.removesuffix(".request.zip")
    signed = (folder / "approved" / f"{name}.signed.zip").resolve()
    if signed.exists():
        raise FederationError(f"{name} was approved before ({signed}). One certificate a site; send that file.")
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


def harden_site(folder: Path) -> None:
    local = folder / "network" / "local"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [EXECUTOR]
    resources["allow_log_streaming"] = False
    # Sketches are noise to a compressor.
    resources["client"]["compression"] = "None"
    resources["components"] = [c for c in resources["components"] if "log_streamer" not in c["id"]]
    _write(local / "resources.json", resources)
    _write(local / "authorization.json", _authorization())


def harden_server(folder: Path) -> None:
    local = folder / "server" / "local"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [CONTROLLER]
    # The engine's defaults lie in the temporary folder, where others may read and a restart may delete.
    storage = folder.resolve() / "engine"
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(storage / "jobs")
    resources["components"] = [c for c in resources["components"] if c["id"] != "log_receiver"]
    resources["servers"][0]["heart_beat_timeout"] = 30
    _write(local / "resources.json", resources)
    _write(local / "authorization.json", _authorization())
    storage.mkdir(mode=0o700, exist_ok=True)
    (folder / "studies").mkdir(exist_ok=True)


def _authorization() -> dict[str, Any]:
    return {
        "format_version": "1.0",
        "permissions": {role: dict(_RIGHTS) for role in ("project_admin", "org_admin", "lead", "member")},
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def environment(**extra: str) -> dict[str, str]:
    """What an engine process may see of the surroundings."""
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VIRTUAL_ENV")
    return {k: os.environ[k] for k in kept if k in os.environ} | {"PYTHONDONTWRITEBYTECODE": "1"} | extra


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
