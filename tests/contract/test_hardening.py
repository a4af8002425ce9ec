"""The engine's safeguards: in force before anything starts, and nothing starts if they are not."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="the networked carrier needs intarsia[federation]")

from intarsia.carriers.flare import hardening
from intarsia.carriers.flare.engine import server_command, site_command
from intarsia.carriers.flare.jobs import CLIENT_CONFIG, strange, write_job
from intarsia.errors import FederationError

NUMBER = "11c733f0-e4de-4ebd-8883-4e08404408ee"


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """A server's and a site's kit as the engine's tool makes them (the parts that we change and look at), hardened."""
    launchers = {
        "network": "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher",
        "server": "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher",
    }
    for kit, launcher in launchers.items():
        local, startup = tmp_path / kit / "local", tmp_path / kit / "startup"
        local.mkdir(parents=True)
        startup.mkdir()
        components = [{"id": "process_launcher", "path": launcher, "args": {}}]
        components += [{"id": "site_log_streamer", "path": "x.y"}, {"id": "log_receiver", "path": "x.y"}]
        components += [{"id": "job_manager", "path": "x.y", "args": {}}]
        resources = {"format_version": 2, "class_allow_list": ["nvflare."], "components": components, "servers": [{}]}
        resources |= {"client": {}, "snapshot_persistor": {"args": {"storage": {"args": {}}}}}
        (local / "resources.json.default").write_text(json.dumps(resources))
        (local / "authorization.json.default").write_text("{}")
        ends = {"connection_security": "mtls"}
        (startup / "fed_client.json").write_text(json.dumps({"servers": [{}], "client": ends}))
        (startup / "fed_server.json").write_text(json.dumps({"servers": [ends]}))
    hardening.harden_site(tmp_path)
    hardening.harden_server(tmp_path)
    return tmp_path


def change(path: Path, **entries: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_the_servers_store_lies_in_its_own_folder(kits: Path) -> None:
    """The engine's defaults lie in the temporary folder, where others may read."""
    resources = json.loads((kits / "server" / "local" / "resources.json").read_text())
    places = [resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"]]
    places += [c["args"]["uri_root"] for c in resources["components"] if c["id"] == "job_manager"]
    assert places == [str(kits.resolve() / "engine" / "snapshots"), str(kits.resolve() / "engine" / "jobs")]
    assert (kits / "engine").stat().st_mode & 0o077 == 0


def test_a_hardened_kit_starts(kits: Path) -> None:
    command, _ = site_command(kits, "clinic")
    assert "intarsia.carriers.flare.start_site" in command
    command, _ = server_command(kits)
    assert "intarsia.carriers.flare.start_server" in command


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"class_allow_list": ["*"]}, "only our class"),
        ({"class_allow_list": [hardening.EXECUTOR, "nvflare."]}, "only our class"),
        ({"class_list_enforcement_mode": "warn"}, "enforced"),
        ({"allow_log_streaming": True}, "no log leaves"),
        ({"allow_log_streaming": None}, "no log leaves"),
        ({"components": [{"id": "process_launcher", "path": "nvflare.x.Launcher"}]}, "behind our guard"),
        ({"components": [{"id": "site_log_streamer", "path": "x"}]}, "streams logs"),
    ],
)
def test_a_loosened_site_does_not_start(kits: Path, entries: dict, words: str) -> None:  # type: ignore[type-arg]
    change(kits / "network" / "local" / "resources.json", **entries)
    with pytest.raises(FederationError, match=f"not started.*{words}"):
        site_command(kits, "clinic")


def test_a_kit_without_its_settings_does_not_start(kits: Path) -> None:
    for kit, start in (("network", lambda: site_command(kits, "clinic")), ("server", lambda: server_command(kits))):
        for name in ("resources.json", "authorization.json"):
            path = kits / kit / "local" / name
            kept = path.read_text()
            path.unlink()
            with pytest.raises(FederationError, match="not all in force"):
                start()
            path.write_text(kept)
        (kits / kit / "local" / "custom").mkdir()
        with pytest.raises(FederationError, match="no code lies among the settings"):
            start()
    anything = {"permissions": dict.fromkeys(hardening.ROLES, "any")}
    (kits / "network" / "local" / "custom").rmdir()
    change(kits / "network" / "local" / "authorization.json", **anything)
    with pytest.raises(FederationError, match="the rights are ours; the engine refuses code and commands"):
        site_command(kits, "clinic")


def test_an_engine_that_no_longer_knows_a_setting_does_not_start(kits: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """As if a later version had renamed it: the file is as we wrote it, and the engine passes it over."""
    from nvflare.app_common.widgets import component_path_authorizer
    from nvflare.security.security import FLAuthorizer

    with monkeypatch.context() as patched:
        patched.setattr(component_path_authorizer, "CLASS_ALLOW_LIST", "allowed_classes")
        with pytest.raises(FederationError, match="the engine refuses other classes"):
            site_command(kits, "clinic")
    with monkeypatch.context() as patched:
        patched.setattr(FLAuthorizer, "authorize", lambda self, ctx: (True, ""))
        with pytest.raises(FederationError, match="the engine refuses code and commands"):
            server_command(kits)
    site_command(kits, "clinic")


@pytest.mark.parametrize("found", ["2.8.1", "2.10.0", "3.0.0", "x"])
def test_other_versions_of_the_engine_are_refused(monkeypatch, found: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(hardening, "version", lambda name: found)
    with pytest.raises(FederationError, match=r"2\.9 up to, not including, 2\.10"):
        hardening.check_version()


def test_the_bounds_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    low, high = (".".join(map(str, bound)) for bound in (hardening.ENGINE_FROM, hardening.ENGINE_BELOW))
    assert f'federation = ["nvflare>={low},<{high}"]' in text


def archive(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
    return out.getvalue()


def test_only_our_own_job_is_a_job(tmp_path: Path) -> None:
    job = write_job(tmp_path, ("clinic",), {"study": "x", "action": "collect", "ticket": "t"})
    ours = {str(path.relative_to(job / "app")): path.read_text() for path in sorted((job / "app").rglob("*")) if path.is_file()}
    assert strange(NUMBER, archive(ours)) == ""
    assert strange(NUMBER, archive(ours | {"config/.__nvfl_sig.json": "{}", ".__nvfl_submitter.crt": ""})) == ""
    for number in ("local", "startup", "..", "", "site.toml", NUMBER.upper(), NUMBER + "/..", None, 7):
        assert "number" in strange(number, archive(ours))
    config = "config/config_fed_client.json"
    for changed in (
        {"custom/evil.py": "x"},
        {"evil.py": "x"},
        {"config/custom/evil.py": "x"},
        {"custom/": ""},
        {"../startup/": ""},
        {"config/../custom/": ""},
        {"config/config_fed_client.conf": "x"},
        {"config/config_fed_client.json.default": "x"},
        {config: json.dumps(CLIENT_CONFIG | {"components": [{"id": "x", "path": hardening.EXECUTOR}]})},
        {config: json.dumps(CLIENT_CONFIG | {"executors": []})},
        {config: "{"},
    ):
        assert strange(NUMBER, archive(ours | changed)), changed
    del ours[config]
    assert strange(NUMBER, archive(ours))
    assert strange(NUMBER, b"PK")
    assert strange(NUMBER, bytes(2**21))


GUARDED = """
from types import SimpleNamespace
from intarsia.carriers.flare.guard import guard_site
from nvflare.private.admin_defs import Message
from nvflare.private.defs import new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor

def ask(topic):
    processor = ShellCommandProcessor()
    agent = SimpleNamespace(auditor=None, processors={topic: processor},
                            app_ctx=SimpleNamespace(new_context=lambda: __import__("contextlib").nullcontext()))
    request = new_cell_message({}, Message(topic=topic, body="pwd"))
    return FedAdminAgent._dispatch_request(agent, request).payload.body

before = ask("sys.shell")
guard_site()
print(before.strip() + "|" + ask("sys.shell") + "|" + str(ask("train.deploy")).strip())
"""


def guarded(text: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own: the guard changes the engine's classes for good."""
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


def test_the_guard_answers_only_what_a_study_needs(tmp_path: Path) -> None:
    done = guarded(GUARDED)
    assert done.returncode == 0, done.stderr
    before, after, needed = done.stdout.strip().split("|")
    # Without the guard the engine runs the command without asking anybody; a topic that studies need still gets through.
    assert before == needed == str(Path.cwd())
    assert "does not take that command" in after


def test_a_guard_that_does_not_hold_stops_everything() -> None:
    """An engine whose modules go another way than those the guard stands in."""
    planted = "import nvflare.private.fed.client.client_engine as e\nclass Other: pass\ne.Workspace = Other\n"
    done = guarded(planted + "from intarsia.carriers.flare.guard import guard_site\nguard_site()\n")
    assert done.returncode != 0
    assert "guard around the engine does not hold" in done.stderr
    gone = "import nvflare.private.fed.client.admin as a\ndel a.FedAdminAgent._dispatch_request\n"
    done = guarded(gone + "from intarsia.carriers.flare.guard import guard_site\nguard_site()\nprint('started')\n")
    assert done.returncode != 0
    assert "started" not in done.stdout


def test_a_job_works_in_the_checked_folder_only(tmp_path: Path) -> None:
    from intarsia.carriers.flare.start_job import check_words

    (tmp_path / "network").mkdir()
    right = ["-m", str(tmp_path / "network"), "-w", str(tmp_path / "network" / "startup"), "-n", NUMBER, "-c", "clinic"]
    right += ["-p", "tcp://localhost:1", "-g", "here:1", "-scheme", "grpc", "-s", "fed_client.json", "--set", "print_conf=True"]
    check_words(right, tmp_path / "network")
    for more in (
        ["-m", str(tmp_path)],
        [f"-m{tmp_path}"],
        ["--workspace", str(tmp_path)],
        [f"--work={tmp_path}"],
        ["-w", str(tmp_path)],
        ["--startup", str(tmp_path)],
        ["--st", "x"],
        ["-s", "other.json"],
        ["--set", "x=1"],
    ):
        with pytest.raises(FederationError, match="another folder"):
            check_words([*right, *more], tmp_path / "network")
    with pytest.raises(FederationError, match="another folder"):
        check_words(["-m", str(tmp_path), "-n", NUMBER], tmp_path / "network")
    for place, other in ((3, str(tmp_path)), (right.index("-s") + 1, "x.json")):
        with pytest.raises(FederationError, match="another folder"):
            check_words([*right[:place], other, *right[place + 1 :]], tmp_path / "network")
