"""A hospital in a process of its own: it answers a study's steps on its standard input and output, and nothing else.

A frame is four bytes of length, a JSON header with the parts' names and sizes, then the parts. The parent never sees
the hospital's folder through this; errors come back as the short text a site would let cross its wall.
"""

import json
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from intarsia.server.study.protocol import Payload, Reply


def send(stream: BinaryIO, header: dict[str, Any], parts: Mapping[str, bytes]) -> None:
    head = json.dumps({**header, "parts": [[name, len(raw)] for name, raw in parts.items()]}).encode()
    stream.write(struct.pack("<I", len(head)) + head)
    for raw in parts.values():
        stream.write(raw)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """A frame, or None at the end."""
    size = stream.read(4)
    if len(size) < 4:
        return None
    header = json.loads(stream.read(struct.unpack("<I", size)[0]))
    return header, {name: stream.read(length) for name, length in header.pop("parts")}


class Hospital:
    """The demo's end of the line to one hospital."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        command = [sys.executable, "-m", "intarsia.carriers.pipes", str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def post(self, step: str, study_hash: str, payload: Payload) -> None:
        raw = {key: v.read_bytes() if isinstance(v, Path) else v for key, v in payload.items()}
        assert self.process.stdin is not None
        send(self.process.stdin, {"step": step, "study": study_hash}, raw)  # type: ignore[arg-type]

    def reply(self) -> Reply:
        assert self.process.stdout is not None
        frame = receive(self.process.stdout)  # type: ignore[arg-type]
        if frame is None:
            return Reply(error="the hospital's process ended")
        header, parts = frame
        return Reply(parts.get("message"), header.get("error"))

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout=30)


def main(folder: str) -> int:
    from intarsia.site.answer import answer, scrub
    from intarsia.site.site_folder import SiteFolder

    site_folder = SiteFolder.load(folder)
    site, line_in, line_out = site_folder.site(), sys.stdin.buffer, sys.stdout.buffer
    while (frame := receive(line_in)) is not None:
        header, payload = frame
        study = None
        try:
            study = site_folder.accepted(header["study"])
            send(line_out, {}, {"message": answer(site, study, header["step"], payload, site_folder.new_subjects)})
        except Exception as error:  # everything that crosses is scrubbed
            send(line_out, {"error": scrub(site, study, error)}, {})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
