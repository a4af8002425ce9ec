"""deploy/: image, compose file and units run nothing as root, write nowhere but to their data, and name commands that exist."""

import configparser
import re
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from intarsia.cli import build_parser

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
HEALTH = runpy.run_path(str(DEPLOY / "health.py"))["healthy"]


def services() -> dict[str, dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="needs intarsia[docs]")
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"])


def parsed(words: list[str]) -> Any:
    return build_parser(words[0]).parse_args(words)


def test_services_are_closed() -> None:
    found = services()
    assert set(found) == {"server", "site"}
    for name, one in found.items():
        assert one["user"] == "10001:10001", name
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert [mount.split(":")[0] for mount in one["tmpfs"]] == ["/tmp"]
        assert "privileged" not in one
        where = [volume.split(":")[-2] if volume.endswith(":ro") else volume.split(":")[-1] for volume in one["volumes"]]
        assert set(where) <= {"/data", "/tables"}
    assert found["server"]["ports"] == ["8002:8002"]
    assert "ports" not in found["site"]
    assert any(volume.endswith(":/tables:ro") for volume in found["site"]["volumes"])


def test_commands_of_compose_and_units_exist() -> None:
    given = [[re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in one["command"]] for one in services().values()]
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=/usr/local/intarsia/bin/intarsia (.*)$", unit.read_text(encoding="utf-8"), re.M)
        given.append(line.split())
    assert len(given) == 4
    for words in given:
        assert callable(parsed(words).run)
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    for line in re.findall(r"^# .* (?:run --rm (?:server|site)) (.*)$", text, re.M):
        assert callable(parsed(line.split()).run)
    for one in services().values():
        assert one["healthcheck"]["test"][:3] == ["CMD", "python", "/opt/intarsia/health.py"]


def test_units_are_closed_and_leave_room_for_compiled_loops() -> None:
    assert [unit.name for unit in UNITS] == ["intarsia-server.service", "intarsia-site@.service"]
    for unit in UNITS:
        settings = configparser.RawConfigParser(strict=False)
        settings.optionxform = str  # type: ignore[assignment,method-assign]
        settings.read_string(unit.read_text(encoding="utf-8"))
        service = settings["Service"]
        wanted = dict.fromkeys(("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices"), "yes")
        wanted |= {"User": "intarsia", "ProtectSystem": "strict", "UMask": "0077"}
        wanted |= {"CapabilityBoundingSet": "", "StateDirectory": "intarsia"}
        assert {name: service[name] for name in wanted} == wanted
        assert "MemoryDenyWriteExecute" not in service
        assert "/var/lib/intarsia/" in service["ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there (make system-packages)")
def test_systemd_reads_the_units(tmp_path: Path) -> None:
    """It complains of a program or an account that is not there, so the copy names ones that are."""
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8").replace("/usr/local/intarsia/bin/intarsia", "/bin/true")
        text = re.sub(r"^(User|Group)=.*$", r"\1=root", text, flags=re.M)
        copy = tmp_path / unit.name.replace("@.", "@clinic.")
        copy.write_text(text, encoding="utf-8")
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
        assert [line for line in done.stderr.splitlines() if copy.name in line or str(copy) in line] == []


def test_the_image_is_built_from_what_is_locked_and_ends_without_root() -> None:
    assert "--require-hashes -r requirements/deploy.txt" in CONTAINERFILE
    assert CONTAINERFILE.rindex("\nUSER 10001:10001\n") > CONTAINERFILE.rindex("\nRUN ")
    assert "intarsia.server.sampler.precompile" in CONTAINERFILE
    assert not re.search(r"curl|wget|apt-get|git clone", CONTAINERFILE)
    sources = re.findall(r"^COPY (?!--from)(\S+)", CONTAINERFILE, re.M)
    ignored = (ROOT / ".containerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert ignored[0] == "*"  # tables and keys that lie about do not come into an image
    assert set(sources) - {"."} <= kept
    assert all((ROOT / path).exists() for path in kept)


def test_health_looks_at_the_table_of_connections(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue\n"
    rows = {
        "listens": "   0: 00000000:1F42 00000000:0000 0A 00000000:00000000\n",
        "connected": "   1: 0100007F:D2F0 0200007F:1F42 01 00000000:00000000\n",
        "waiting": "   1: 0100007F:D2F0 0200007F:1F42 02 00000000:00000000\n",
        "other": "   1: 0100007F:1F42 0200007F:D2F0 01 00000000:00000000\n",
    }
    for name, row in rows.items():
        (tmp_path / name).write_text(head + row, encoding="ascii")
        tables = (str(tmp_path / "absent"), str(tmp_path / name))
        assert HEALTH("server", 8002, tables) is (name == "listens"), name
        assert HEALTH("site", 8002, tables) is (name == "connected"), name
    assert not HEALTH("server", 8003, (str(tmp_path / "listens"),))


@pytest.mark.skipif(sys.platform != "linux", reason="sys.platform: /proc is Linux's")
def test_health_of_this_machine() -> None:
    def asked(role: str, port: int) -> int:
        return subprocess.run([sys.executable, DEPLOY / "health.py", role, str(port)]).returncode

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert (asked("server", port), asked("site", port)) == (0, 1)
        with socket.create_connection(("127.0.0.1", port)):
            assert asked("site", port) == 0
    assert asked("server", port) == 1
    assert subprocess.run([sys.executable, DEPLOY / "health.py", "cook", "1"], capture_output=True).returncode == 1
