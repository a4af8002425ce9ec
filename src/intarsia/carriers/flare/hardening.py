"""The engine's settings, tightened when a kit is made and tried out before every start.

A setting that is merely written down may be renamed in a later version of the engine and then do nothing. So the engine's
own classes are asked, on the very files they will read, whether they refuse what must be refused; if not, nothing starts.
"""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from intarsia.errors import FederationError
from intarsia.files import replace

EXECUTOR = "intarsia.carriers.flare.site_side.StudyExecutor"
CONTROLLER = "intarsia.carriers.flare.server_side.StudyController"
LAUNCHER = "intarsia.carriers.flare.launcher.GuardedLauncher"
# As in pyproject.toml: the versions whose behaviour the tests have seen.
ENGINE_FROM, ENGINE_BELOW = (2, 9), (2, 10)
ROLES = ("project_admin", "org_admin", "lead", "member")

# Whoever asks: look at the state, submit jobs without code. The rest is nobody's right.
_RIGHTS = {
    "submit_job": "any",
    "clone_job": "none",
    "manage_job": "any",
    "delete_workspace": "none",
    "configure_job_log": "none",
    "download_job": "none",
    "view": "any",
    "operate": "none",
    "shell_commands": "none",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}


_NEVER = ("delete_workspace", "configure_job_log", "configure_site_log", "restart", "shutdown", "call", "download_job")


def check_version() -> None:
    """The engine is installed, and is one whose behaviour we know."""
    try:
        found = version("nvflare")
        import nvflare  # noqa: F401
    except (PackageNotFoundError, ImportError):
        raise FederationError(
            "The networked carrier needs NVIDIA FLARE: pip install 'intarsia[federation]'. Studies by files do not."
        ) from None
    number = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if not ENGINE_FROM <= number < ENGINE_BELOW:
        raise FederationError(
            f"NVIDIA FLARE {found} is installed; this intarsia knows the versions from {_dotted(ENGINE_FROM)} up to, not "
            f"including, {_dotted(ENGINE_BELOW)}, and starts no other. Run: pip install 'intarsia[federation]'."
        )


def _dotted(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))


def harden_site(folder: Path) -> None:
    local = folder / "network" / "local"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [EXECUTOR]
    resources["allow_log_streaming"] = False
    # Sketches are noise to a compressor.
    resources["client"]["compression"] = "None"
    resources["components"] = [c for c in resources["components"] if "log_streamer" not in c["id"]]
    for component in resources["components"]:
        if component["id"] == "process_launcher":
            component["path"] = LAUNCHER
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
        "permissions": {role: dict(_RIGHTS) for role in ROLES},
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    replace(path, json.dumps(content, indent=2).encode() + b"\n")


def check_site(folder: Path) -> None:
    """A site's kit is hardened and the engine obeys it; FederationError otherwise, and nothing is started."""
    check_version()
    kit = folder / "network"
    resources = _read(kit / "local" / "resources.json")
    launchers = [c.get("path") for c in resources.get("components", []) if c.get("id") == "process_launcher"]
    facts = {
        "only our class may be named by a job": resources.get("class_allow_list") == [EXECUTOR],
        "the list of classes is enforced": resources.get("class_list_enforcement_mode") == "enforce",
        "no log leaves": resources.get("allow_log_streaming") is False,
        "no component streams logs": "log_streamer" not in json.dumps(resources.get("components", [])).lower(),
        "jobs start behind our guard": launchers == [LAUNCHER],
    }
    _demand(kit, "site", facts | _common(kit, "fed_client.json", EXECUTOR))


def check_server(folder: Path) -> None:
    """The same for the server's kit."""
    check_version()
    kit = folder / "server"
    resources = _read(kit / "local" / "resources.json")
    facts = {
        "only our class may be named by a job": resources.get("class_allow_list") == [CONTROLLER],
        "the list of classes is enforced": resources.get("class_list_enforcement_mode") == "enforce",
        "no log is taken": "log_receiver" not in json.dumps(resources.get("components", [])).lower(),
    }
    _demand(kit, "server", facts | _common(kit, "fed_server.json", CONTROLLER))


def _common(kit: Path, startup: str, ours: str) -> dict[str, bool]:
    """What holds at both ends: the policy file, mutual TLS, no code beside the settings, and the engine's own refusals."""
    content = _read(kit / "startup" / startup)
    ends = [content["client"]] if "client" in content else content.get("servers") or [{}]
    return {
        "the rights are ours": _read(kit / "local" / "authorization.json") == _authorization(),
        "both ends show certificates": all(end.get("connection_security") == "mtls" for end in ends),
        "no code lies among the settings": not (kit / "local" / "custom").exists(),
        "the engine refuses other classes": _refuses_classes(kit, ours),
        "the engine refuses code and commands": _refuses_rights(kit),
    }


def _refuses_classes(kit: Path, ours: str) -> bool:
    try:
        from nvflare.apis.fl_exception import UnsafeComponentError
        from nvflare.apis.workspace import Workspace
        from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

        authorizer, workspace = ComponentPathAuthorizer(), Workspace(root_dir=str(kit), site_name="check")
        authorizer.authorize_component_config({"path": ours}, workspace=workspace)
        for other in ("nvflare.app_common.np.np_trainer.NPTrainer", "subprocess.Popen", f"{ours}Not"):
            try:
                authorizer.authorize_component_config({"path": other}, workspace=workspace)
                return False
            except UnsafeComponentError:
                pass
    except Exception:  # whatever fails here, the engine is not the one we know
        return False
    return True


def _refuses_rights(kit: Path) -> bool:
    try:
        from nvflare.apis.workspace import Workspace
        from nvflare.fuel.sec.authz import AuthzContext, Person
        from nvflare.security.security import FLAuthorizer

        path = Workspace(root_dir=str(kit), site_name="check").get_authorization_file_path()
        authorizer = FLAuthorizer("check", _read(Path(path)))
        for role in ROLES:
            person = Person("somebody", "check", role)
            for right in ("byoc", "shell_commands", "operate", "cat", "head", "ls", *_NEVER):
                if authorizer.authorize(AuthzContext(user=person, submitter=person, right=right))[0]:
                    return False
    except Exception:  # as above
        return False
    return True


def _demand(kit: Path, whose: str, facts: dict[str, bool]) -> None:
    broken = [text for text, holds in facts.items() if not holds]
    if broken:
        remedy = "join again (`intarsia site join`)" if whose == "site" else "make the server anew (`intarsia server init`)"
        raise FederationError(
            f"The engine's safeguards are not all in force at this {whose}, so it is not started. Does not hold: "
            f"{'; '.join(broken)}. Settings in {kit / 'local'} were changed, or the engine behaves differently: "
            f"move {kit} away and {remedy}."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    return found if isinstance(found, dict) else {}
