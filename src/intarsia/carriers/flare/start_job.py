"""The way into the process of one job at a site: safeguards tried out, guard in place, then the engine."""

import os
import runpy
import sys
from itertools import pairwise
from pathlib import Path

from intarsia.carriers.flare.guard import guard_site, start
from intarsia.carriers.flare.hardening import check_site
from intarsia.errors import FederationError

# Of the engine's command, each once: folder, startup kit, settings, job, client, tokens, addresses, security, further settings.
_OPTIONS = {"-m", "-w", "-s", "-n", "-c", "-t", "-ts", "-d", "-p", "-g", "-scheme", "--parent_conn_sec", "--set"}


def check_words(words: list[str], kit: Path) -> None:
    """The process works in the folder whose settings were checked: part of its command line comes from the server."""
    options = [word for word in words if word.startswith("-")]
    value = dict(pairwise(words))
    known = set(options) <= _OPTIONS and len(set(options)) == len(options) and {"-m", "-w", "-s"} <= set(options)
    places = known and Path(value["-m"]).resolve() == kit.resolve() and Path(value["-w"]).resolve() == (kit / "startup").resolve()
    if not places or value["-s"] != "fed_client.json":
        raise FederationError("The job's process was to work in another folder than this site's. Nothing is started.")


def main() -> None:
    folder = Path(os.environ["INTARSIA_SITE"])
    check_words(sys.argv[1:], folder / "network")
    check_site(folder)
    guard_site()
    runpy.run_module("nvflare.private.fed.app.client.worker_process", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    start(main)
