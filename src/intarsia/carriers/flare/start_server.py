"""The way into the server's process: safeguards tried out, guard in place, then the engine."""

import os
import runpy
from pathlib import Path

from intarsia.carriers.flare.guard import guard_jobs, start
from intarsia.carriers.flare.hardening import check_server


def main() -> None:
    check_server(Path(os.environ["INTARSIA_STUDIES"]).parent)
    guard_jobs()
    runpy.run_module("nvflare.private.fed.app.server.server_train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    start(main)
