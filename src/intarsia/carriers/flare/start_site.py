"""The way into a site's process: safeguards tried out, guard in place, then the engine."""

import os
import runpy
from pathlib import Path

from intarsia.carriers.flare.guard import guard_site, start
from intarsia.carriers.flare.hardening import check_site


def main() -> None:
    check_site(Path(os.environ["INTARSIA_SITE"]))
    guard_site()
    runpy.run_module("nvflare.private.fed.app.client.client_train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    start(main)
