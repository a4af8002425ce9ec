"""The monitor: a read-only page on this machine about the studies in a server's folder.

It keeps nothing: every answer is read from the folder, so it survives reloads and restarts of itself and of the server.
It listens on loopback unless told otherwise, and then asks for a token.
"""

import hmac
import ipaddress
import json
import secrets
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from intarsia.errors import FederationError, InputError, IntarsiaError
from intarsia.report.monitor_page import page
from intarsia.report.monitor_state import find_studies, study_state

_LOCAL = ("localhost", "127.0.0.1", "[::1]")


def loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Monitor:
    """A monitor of a folder; `start()` serves from a thread, `serve()` until interrupted."""

    def __init__(self, folder: str | Path, *, host: str = "127.0.0.1", port: int = 8600, token: str | None = None):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise InputError(f"{folder} is not a folder; give the server's folder or a study's.")
        if not 0 <= port < 65536:
            raise InputError(f"Port {port} is not between 0 and 65535.")
        self.local = loopback(host)
        if token is not None and len(token) < 16:
            raise InputError("A token has at least 16 characters; leave it out and one is made.")
        self.token = token if token is not None or self.local else secrets.token_urlsafe(24)
        self._reports: dict[Path, tuple[float, bytes]] = {}
        self._making = threading.Lock()
        try:
            self.server = ThreadingHTTPServer((host, port), partial(_Handler, self))
        except OSError as error:
            raise FederationError(f"Cannot listen on {host}:{port}: {error.strerror}. Choose another --port.") from None
        self.server.daemon_threads = True

    @property
    def address(self) -> str:
        host, port = self.server.server_address[:2]
        shown = "localhost" if self.local else str(host)
        return f"http://{shown}:{port}/" + (f"?token={self.token}" if self.token else "")

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self.server.serve_forever, name="monitor", daemon=True)
        thread.start()
        return thread

    def serve(self) -> None:
        try:
            self.server.serve_forever()
        finally:
            self.server.server_close()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def study(self, name: str | None) -> Path | None:
        """A study's folder by name: only one that was listed, so no path can be made up."""
        found = find_studies(self.folder)
        if name is None:
            return found[0] if found else None
        return next((path for path in found if path.name == name), None)

    def state(self, name: str | None) -> dict[str, Any]:
        found = find_studies(self.folder)
        chosen = self.study(name)
        return {
            "studies": [path.name for path in found],
            "study": None if chosen is None else study_state(chosen),
        }

    def report(self, path: Path) -> bytes:
        """The study's report, made when first asked for and again when the posterior is a new one."""
        from intarsia.report.page import collect, render

        stamp = (path / "posterior.nc").stat().st_mtime
        with self._making:
            known = self._reports.get(path)
            if known is None or known[0] != stamp:
                known = (stamp, render(collect(path)).encode())
                self._reports[path] = known
        return known[1]


class _Handler(BaseHTTPRequestHandler):
    server_version = "intarsia"
    sys_version = ""

    def __init__(self, monitor: Monitor, *args: Any, **kwargs: Any):
        self.monitor = monitor
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked = {key: values[0] for key, values in parse_qs(address.query).items()}
        if not self._may(asked.get("token")):
            return
        path, name = unquote(address.path), asked.get("study")
        try:
            if path == "/":
                self._send(page(self.monitor.state(name), part="part" in asked).encode(), "text/html; charset=utf-8")
            elif path == "/state.json":
                body = json.dumps(self.monitor.state(name), default=str, allow_nan=False)
                self._send(body.encode(), "application/json")
            elif path == "/report":
                where = self.monitor.study(name)
                if where is None or not (where / "fit.json").is_file():
                    self._refuse(HTTPStatus.NOT_FOUND, "This study is not fitted yet.")
                else:
                    self._send(self.monitor.report(where), "text/html; charset=utf-8")
            else:
                self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")
        except (IntarsiaError, OSError) as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"The study folder cannot be read: {type(error).__name__}.")

    do_HEAD = do_GET

    def _read_only(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "The monitor only shows.")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _read_only

    def _may(self, given: str | None) -> bool:
        host = self.headers.get("Host", "")
        if self.monitor.local and host.rsplit(":", 1)[0] not in _LOCAL:
            # A page elsewhere that points its own name at this machine gets nothing.
            self._refuse(HTTPStatus.FORBIDDEN, "The monitor answers to localhost only.")
            return False
        if self.monitor.token is None:
            return True
        cookie = self.headers.get("Cookie", "")
        known = next((c.strip()[6:] for c in cookie.split(";") if c.strip().startswith("token=")), "")
        for candidate in (given or "", known):
            if hmac.compare_digest(candidate.encode(), self.monitor.token.encode()):
                return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "Open the address with its token, as the server printed it.")
        return False

    def _send(self, body: bytes, kind: str, code: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        if self.monitor.token is not None and code == HTTPStatus.OK:
            self.send_header("Set-Cookie", f"token={self.monitor.token}; HttpOnly; SameSite=Strict; Path=/")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, code: HTTPStatus, words: str) -> None:
        self.close_connection = True
        self._send(f"{words}\n".encode(), "text/plain; charset=utf-8", code)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal belongs to the server."""
