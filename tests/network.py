"""A real server and three real site processes on loopback, started by our own commands."""

import contextlib
import io
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from tests.federation import KEY, RESPONSES

from intarsia.carriers.flare.engine import server_command
from intarsia.cli import main
from intarsia.server.study.folder import dump
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study

REPOSITORY = Path(__file__).parents[1]
PATIENCE_S = 180.0  # for what takes seconds: a busy machine is no error
# Below those that the system gives to outgoing connections, of which one could take the port before its server starts.
PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports at which nothing listens; chosen at random, so that two runs of the tests do not choose the same."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            s = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                s.bind(("127.0.0.1", random.SystemRandom().choice(PORTS)))
                found.append(s.getsockname()[1])
        return found


class Network:
    """Provisioned once; processes are started, killed and started again by the tests."""

    def __init__(
        self,
        root: Path,
        tables: dict[str, pd.DataFrame],
        responses: Mapping[str, Sequence[str]] = RESPONSES,
        *,
        preshared: bool = True,
    ):
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.names = root, tuple(tables)
        self.server = root / "server"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        port, admin = free_ports(2)
        self.here("server", "init", self.server, "--port", port, "--admin-port", admin)
        KEY.save(root / "study.key")
        for name in self.names:
            where = root / name
            tables[name].to_csv(root / f"{name}.csv", index=False)
            words = ("--name", name, "--table", root / f"{name}.csv", "--id", "id")
            self.here("site", "init", where, *words, "--responses", ",".join(responses[name]))
            if preshared:
                toml = (where / "site.toml").read_text().replace('# key = "', 'key = "../')
                (where / "site.toml").write_text(toml.replace('one_column = "refuse"', 'one_column = "allow"'))
            told = self.here("site", "join", where).stdout  # the site reads its words out to the operator
            request = where / "network-request" / "request-client" / f"{name}.request.zip"
            words = next(line for line in told.splitlines() if line.strip().startswith(f"{name} "))
            (root / "told.txt").write_text(words.strip() + "\n")
            self.here("server", "approve", self.server, request, "--fingerprints", root / "told.txt")
            fingerprint = _fingerprint(self.server)
            signed = self.server / "approved" / f"{name}.signed.zip"
            self.here("site", "join", where, "--approved", signed, "--fingerprint", fingerprint)

    def here(self, *words: Any, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A short command, in this process: a start of Python takes longer than most."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*map(str, words)])
        return _checked(words, subprocess.CompletedProcess([], code, out.getvalue(), err.getvalue()), check)

    def command(self, *words: Any, check: bool = True, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        if words[:2] == ("study", "run") and "--wait" not in words:
            words = (*words, "--wait", PATIENCE_S)
        if words[:2] == ("study", "run"):  # the tests' chains are short: they do not converge
            words = (*words, "--provisional")
        done = subprocess.run(
            [sys.executable, "-m", "intarsia", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return _checked(words, done, check)

    def background(self, *words: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "intarsia", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self, *names: str) -> None:
        for name in names or ("server", *self.names):
            words = ("server", "start", self.server) if name == "server" else ("site", "serve", self.root / name, "--yes")
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "intarsia", *map(str, words)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def take_over(self) -> None:
        """Start the server as an attacker who operates it would: the bare engine, any class allowed, any right granted."""
        command, env = server_command(self.server)
        ours, engine = "intarsia.carriers.flare.start_server", "nvflare.private.fed.app.server.server_train"
        env["PYTHONPATH"] = f"{REPOSITORY}:{env.get('PYTHONPATH', '')}"
        local = self.server / "server" / "local"
        resources = json.loads((local / "resources.json").read_text())
        (local / "resources.json").write_text(json.dumps(resources | {"class_allow_list": ["*"]}))
        anything = {"format_version": "1.0", "permissions": dict.fromkeys(("lead", "project_admin"), "any")}
        (local / "authorization.json").write_text(json.dumps(anything))
        with (self.root / "taken-over.log").open("wb") as log:
            self.processes["server"] = subprocess.Popen(
                [engine if word == ours else word for word in command], env=env, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, *names: str) -> None:
        """kill -9 a party with everything it started."""
        for name in names:
            process = self.processes.pop(name)
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(signal.SIGKILL)
            process.wait(timeout=20)

    def stop(self) -> None:
        for name in list(self.processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.kill(name)

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """For a while without the key that the sites had before: a study that pins keys agrees on one of its own."""
        files = {name: self.root / name / "site.toml" for name in self.names}
        before = {name: file.read_text() for name, file in files.items()}
        try:
            for name, file in files.items():
                file.write_text(before[name].replace('\nkey = "', '\n# key = "'))
            yield
        finally:
            for name, file in files.items():
                file.write_text(before[name])

    def accept(self, study: Study) -> Path:
        path = self.root / f"{study.id}-{study.hash[:8]}.toml"
        path.write_text(dump(study))
        for name in study.names:
            SiteFolder.load(self.root / name).accept(path)
        return path

    def folder(self, study: Study) -> Path:
        return self.server / "studies" / study.folder_name


def _checked(words: Any, done: subprocess.CompletedProcess[str], check: bool) -> subprocess.CompletedProcess[str]:
    if check and done.returncode != 0:
        raise AssertionError(f"intarsia {' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}")
    return done


def _fingerprint(server: Path) -> str:
    return str(json.loads((server / "ca" / "ca.json").read_text())["rootCA_fingerprint"])


def wait_until(condition: Any, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.05)


def server_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]
