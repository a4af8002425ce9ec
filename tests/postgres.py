"""A PostgreSQL server of its own for a test: Debian's package, on loopback, as an ordinary user, gone afterwards."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "keeper", "pass word/with:signs@"
_START_SECONDS = 60


def binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    here = shutil.which("initdb")
    return None if here is None else Path(here).parent


def _ordinary_user() -> dict[str, int]:
    """PostgreSQL does not run as root: a test that does takes the package's own user."""
    if os.geteuid() != 0:
        return {}
    try:
        found = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL is there but not its user; `make system-packages` installs both")
    return {"user": found.pw_uid, "group": found.pw_gid}


@contextmanager
def server() -> Iterator[str]:
    """Start a server; gives its address without the password. Skips where PostgreSQL is not installed."""
    place = binaries()
    if place is None:
        pytest.skip("PostgreSQL is not installed; `make system-packages` installs it")
    who = _ordinary_user()
    # A folder of its own: that of the tests is closed to other users.
    with tempfile.TemporaryDirectory(prefix="intarsia-postgres-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        (home / "pw").write_text(PASSWORD + "\n")
        if who:
            for path in (home, home / "pw"):
                os.chown(path, who["user"], who["group"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        made: list[Any] = [place / "initdb", "-D", home / "data", "-U", USER, "--auth=scram-sha-256", f"--pwfile={home / 'pw'}"]
        subprocess.run([*made, "-E", "UTF8", "--no-sync", "--no-locale"], check=True, capture_output=True, cwd=home, **who)  # type: ignore[call-overload]
        settings = ("listen_addresses=127.0.0.1", f"unix_socket_directories={home}", "fsync=off")
        command: list[Any] = [place / "postgres", "-D", home / "data", "-p", str(port)]
        command += [part for setting in settings for part in ("-c", setting)]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home, **who)  # type: ignore[call-overload]
        try:
            ready = [str(place / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            until = time.monotonic() + _START_SECONDS
            while subprocess.run(ready, check=False).returncode:
                if process.poll() is not None or time.monotonic() > until:
                    pytest.fail(f"PostgreSQL did not start: {(home / 'log').read_text()[-2000:]}")
                time.sleep(0.1)
            yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGQUIT)  # stop at once; nothing is to be kept
            process.wait(30)
