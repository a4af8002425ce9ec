"""A listener in the middle of a site's connection that has both ends' keys: it records what TLS hides from others."""

import contextlib
import socket
import ssl
import threading
from pathlib import Path


class Tap:
    """Accepts the site as the server would, connects to the server as the site would, and keeps every byte."""

    def __init__(self, server_kit: Path, site_kit: Path, target: int):
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        self.target = target
        self.as_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.as_server.load_cert_chain(server_kit / "server.crt", server_kit / "server.key")
        self.as_server.load_verify_locations(server_kit / "rootCA.pem")
        self.as_server.verify_mode = ssl.CERT_REQUIRED
        self.as_site = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.as_site.load_cert_chain(site_kit / "client.crt", site_kit / "client.key")
        self.as_site.load_verify_locations(site_kit / "rootCA.pem")
        self.as_site.check_hostname = False
        for context in (self.as_server, self.as_site):
            context.set_alpn_protocols(["h2"])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            site = self.as_server.wrap_socket(plain, server_side=True)
            server = self.as_site.wrap_socket(socket.create_connection(("127.0.0.1", self.target)))
            for source, sink, kept in ((site, server, self.up), (server, site, self.down)):
                threading.Thread(target=_pump, args=(source, sink, kept), daemon=True).start()

    def close(self) -> None:
        self.listener.close()


def _pump(source: ssl.SSLSocket, sink: ssl.SSLSocket, kept: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(1 << 16):
            kept.append(chunk)
            sink.sendall(chunk)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
