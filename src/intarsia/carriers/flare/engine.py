"""Start the engine's processes, and submit the short jobs of a study to it.

The study folder is the truth: a job only fills it, its outcome is a file in it, and whatever the engine believes about
a job after a crash does not matter.
"""

import io
import json
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intarsia.carriers.flare.certificates import OPERATOR, environment, require_engine
from intarsia.carriers.flare.hardening import check_server, check_site
from intarsia.carriers.flare.jobs import ACTIONS, write_job
from intarsia.carriers.flare.tidy import TIDY_SECONDS, tidy
from intarsia.errors import FederationError
from intarsia.server.study.folder import StudyFolder

# Our own ways in: they try the safeguards again, put the guard around the engine, and start it.
_SERVER = "intarsia.carriers.flare.start_server"
_CLIENT = "intarsia.carriers.flare.start_site"


def server_command(folder: Path) -> tuple[list[str], dict[str, str]]:
    """How the server process is started: command and environment."""
    kit = folder.resolve() / "server"
    if not (kit / "startup" / "fed_server.json").is_file():
        raise FederationError(f"{folder} is not a server's folder; make one with `intarsia server init`.")
    check_server(folder)
    options = ["-m", str(kit), "-s", "fed_server.json", "--set", "secure_train=true", "org=server", "config_folder="]
    extra = {"INTARSIA_STUDIES": str(folder.resolve() / "studies"), "HOME": str(folder.resolve() / "engine-home")}
    return [sys.executable, "-u", "-m", _SERVER, *options], environment(**extra)


def site_command(folder: Path, name: str) -> tuple[list[str], dict[str, str]]:
    """How a site's process is started."""
    kit = folder.resolve() / "network"
    if not (kit / "startup" / "fed_client.json").is_file():
        raise FederationError(f"Site {name!r} has not joined a server yet; run `intarsia site join`.")
    check_site(folder)
    org = name.replace("-", "_")
    options = ["-m", str(kit), "-s", "fed_client.json", "--set", "secure_train=true", f"uid={name}", f"org={org}"]
    extra = {"INTARSIA_SITE": str(folder.resolve()), "HOME": str(kit)}
    return [sys.executable, "-u", "-m", _CLIENT, *options, "config_folder="], environment(**extra)


def supervise(
    command: list[str],
    env: dict[str, str],
    log: Path,
    say: Callable[[str], None],
    *,
    site: bool = False,
    patience: float = 0,
) -> int:
    """Run an engine process until it ends or we are asked to stop; its chatter goes to a log file.

    A site says when it is connected. If it is not after `patience` seconds (0: never) it gives up and says why.
    """
    require_engine()
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, cwd=log.parent)
        previous = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, lambda *_: process.terminate())
        try:
            say(f"running (process {process.pid}), log in {log}; stop with Ctrl-C")
            if site:
                _await_registration(process, log, begin, say, patience)
            code = _wait(process, log.parent)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            if process.poll() is None:
                process.kill()
                process.wait()
    # A process that we asked to stop has done its work.
    return 0 if code in (0, -signal.SIGTERM, -signal.SIGINT) else 1


def _wait(process: "subprocess.Popen[bytes]", kit: Path) -> int:
    """Until the process ends; meanwhile whatever the other end makes the engine write stays within bounds."""
    while True:
        try:
            return process.wait(TIDY_SECONDS)
        except subprocess.TimeoutExpired:
            tidy(kit)


def _await_registration(
    process: "subprocess.Popen[bytes]", log: Path, begin: int, say: Callable[[str], None], patience: float
) -> None:
    started, warned = time.monotonic(), False
    while process.poll() is None:
        with log.open("rb") as file:
            file.seek(begin)
            text = file.read()
        if b"Successfully registered client" in text:
            say("connected")
            return
        waited = time.monotonic() - started
        if patience and waited > patience:
            raise FederationError(_refused(text, waited))
        if not warned and waited > 30:
            say(f"not connected yet; still trying. {_refused(text, waited)}")
            warned = True
        time.sleep(0.2)
    with log.open("rb") as file:
        file.seek(begin)
        raise FederationError(_refused(file.read(), time.monotonic() - started))


def _refused(text: bytes, waited: float) -> str:
    words = text.lower()
    if b"refused" in words and b"connection refused" in words:
        return f"The server cannot be reached after {waited:.0f} s: nothing listens at its address."
    return (
        f"The server does not accept this site's certificate under this name, or cannot be reached ({waited:.0f} s). "
        "Join with a request approved by this server's operator, under the name on the certificate."
    )


@contextmanager
def session(folder: Path, wait: float = 60.0) -> Iterator[Any]:
    """A connection of the server's operator, by certificate."""
    require_engine()
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    kit = folder.resolve() / "admin"
    deadline = time.monotonic() + wait
    while True:
        try:
            # The engine greets on the standard output, which belongs to our own answer.
            with redirect_stdout(io.StringIO()):
                opened = new_secure_session(OPERATOR, str(kit), timeout=min(10.0, max(1.0, wait)))
            break
        except Exception as error:
            if time.monotonic() > deadline:
                raise FederationError(
                    f"The server does not answer ({type(error).__name__}). Start it with `intarsia server start`."
                ) from None
            time.sleep(1.0)
    try:
        yield opened
    except Exception as error:
        if not (isinstance(error, ConnectionError) or type(error).__module__.startswith("nvflare.")):
            raise
        raise FederationError(
            f"The connection to the server of {folder} was lost ({type(error).__name__}): it was stopped, or the line is cut. "
            "See that it runs (`intarsia server start`) and give the same command again; what has arrived is kept."
        ) from None
    finally:
        with suppress(Exception):  # of a session that is lost already
            opened.close()


def connected(opened: Any) -> list[str]:
    """Sites that answer now. The engine itself goes on believing in a dead one until its heartbeats are overdue."""
    listed = [client.name for client in opened.get_system_info().client_info]
    if not listed:
        return []
    try:
        rows = opened.check_status("client", listed).get("client_status", [])
    except Exception:  # the engine refuses the question while a site is going away
        return []
    return sorted(str(row["client_name"]) for row in rows if row.get("status") not in (None, "no_reply"))


def wait_for_sites(opened: Any, names: tuple[str, ...], wait: float) -> None:
    """Every site of the roster is connected, or the study fails closed and says who is missing."""
    deadline = time.monotonic() + wait
    while True:
        here = connected(opened)
        missing = [name for name in names if name not in here]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise FederationError(
                f"Not connected: {', '.join(missing)} (connected: {', '.join(here) or 'none'}). A study is not run "
                "without all its sites; start `intarsia site serve` there and run the same command again."
            )
        time.sleep(0.5)


@dataclass(frozen=True)
class Patience:
    """Seconds given to one job, and to the sites to connect before it."""

    job_s: int = 600
    wait_s: float = 60.0


PATIENCE = Patience()


def run_job(opened: Any, folder: StudyFolder, action: str, *, request: str = "", patience: Patience = PATIENCE) -> dict[str, Any]:
    """Submit one short job and wait for its outcome in the study folder."""
    names = folder.names
    if action not in ACTIONS:
        raise FederationError(f"A job is one of {', '.join(ACTIONS)}.")
    wait_for_sites(opened, names, patience.wait_s)
    ticket = uuid.uuid4().hex
    outcome = folder.path / "outcomes" / f"{ticket}.json"
    with tempfile.TemporaryDirectory(prefix="intarsia-job-") as temporary:
        arguments = {"study": folder.path.name, "action": action, "ticket": ticket, "request": request}
        job = write_job(Path(temporary), names, {**arguments, "timeout": patience.job_s})
        number = opened.submit_job(str(job))
    folder.note("job submitted", action=action, job=number)
    # Seven steps at most, each with its own timeout at the server; this is the last resort.
    submitted = time.monotonic()
    deadline = submitted + 8 * patience.job_s + 120
    finished_at: float | None = None
    while not outcome.is_file():
        status = str(opened.get_job_meta(number).get("status", ""))
        if status == "SUBMITTED" and time.monotonic() - submitted > patience.wait_s:
            # A site went away between our look and the engine's: the job would wait for it for ever.
            opened.abort_job(number)
            wait_for_sites(opened, names, 0)
            raise FederationError(f"The engine did not start job {action} within {patience.wait_s:g} s. Run the command again.")
        if status.startswith("FINISHED"):
            # The outcome file is written just before the job ends; give the disk a moment.
            finished_at = finished_at or time.monotonic()
            if time.monotonic() - finished_at > 2:
                raise FederationError(_no_outcome(action, number, status))
        if time.monotonic() > deadline:
            opened.abort_job(number)
            raise FederationError(f"Job {action} ({number}) did not end in time and was aborted. What came is kept.")
        time.sleep(0.3)
    result: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
    if not result["ok"]:
        # The engine would go on waiting for a site that is gone.
        with suppress(Exception):
            opened.abort_job(number)
        raise FederationError(result["error"])
    _settle(opened, number)
    return result


def _no_outcome(action: str, number: str, status: str) -> str:
    return (
        f"Job {action} ({number}) ended as {status} without an outcome: a site or the server refused or lost it. "
        "The sites' and the server's logs say why. What has arrived is kept; run the same command again."
    )


def _settle(opened: Any, number: str, wait: float = 20.0) -> None:
    """Let the engine end the job before the next one is submitted."""
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        if str(opened.get_job_meta(number).get("status", "")).startswith("FINISHED"):
            return
        time.sleep(0.3)
