"""The same demonstration over the federated engine: certificates by request, mutual TLS on loopback, four processes."""

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from intarsia.demo.hospitals import SITES, write_regions
from intarsia.demo.processes import Options, finish, prepare
from intarsia.errors import FederationError
from intarsia.server.study.folder import StudyFolder


def run(out: Path, options: Options) -> dict[str, Any]:
    """Set up a federation, start server and hospitals, run the study, stop everything."""
    from intarsia.carriers.flare import certificates as kit
    from intarsia.carriers.flare.engine import Patience
    from intarsia.carriers.flare.network_study import run_study, study_folder

    kit.require_engine()
    began, say = time.perf_counter(), options.say
    data, study = prepare(out, options)
    server = out / "server"
    say("Certificates: the server's authority signs each hospital's request; private keys never travel")
    port, admin = _free_ports(2)
    digest = kit.server_init(server, "localhost", port, admin, ("127.0.0.1",))
    for name in SITES:
        request = kit.join_request(out / "sites" / name, name)
        signed, _ = kit.approve(server, kit.read_request(request))
        kit.join_finish(out / "sites" / name, signed, digest)
    processes = [_start("server", "start", server, out / "server.log")]
    processes += [_start("site", "serve", out / "sites" / name, out / f"{name}.log") for name in SITES]
    try:
        say(f"Server and three hospitals are up (mutual TLS, port {port})")
        began_study = time.perf_counter()
        patience = Patience(wait_s=options.patience_s)
        run_study(out / "study.toml", server, patience=patience, until="collect", say=lambda text: say(f"  {text}"))
        folder = StudyFolder.open(study_folder(server, study))
        write_regions(folder.path / "regions.csv", data.regions)
        for name in SITES:
            sent = folder.file("sketch", name).stat().st_size
            say(f"  {name:<11} sketch of {sent / 1e6:.2f} MB received, checked and kept")
        say(f"  collected in {time.perf_counter() - began_study:.0f} s")

        def deliver() -> None:
            run_study(out / "study.toml", server, patience=patience, until="provisional", say=lambda text: None)

        return finish(out, folder, data, deliver, options) | {"seconds": round(time.perf_counter() - began, 1)}
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def _start(group: str, action: str, folder: Path, log: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "intarsia", group, action, str(folder), *(["--yes"] if group == "site" else [])]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    time.sleep(0.3)
    if process.poll() is not None:
        raise FederationError(f"The {group} process ended at once; its log is {log}.")
    return process


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in sockets]
    finally:
        for s in sockets:
            s.close()
