"""What the engine leaves on the disk of a site or the server, kept within bounds: the other end decides how much is logged and
how many jobs there are. Our own records (`sent.jsonl`, `problems.jsonl`, the ledger) are elsewhere and are not touched.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from intarsia.carriers.flare.jobs import JOB_ID

TIDY_SECONDS = 5.0
MOST_LOG_BYTES = 16 * 2**20  # below the size at which the engine starts a further file of its own
MOST_JOBS = 20  # whose folders are kept, the latest
_LOGS = (".log", ".txt", ".json")


def tidy(kit: Path) -> None:
    """Delete the folders of old jobs; of a log that has become long keep one copy (`NAME.before`) and begin again."""
    with suppress(OSError):  # the engine deletes too
        jobs = [path for path in kit.iterdir() if JOB_ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
        jobs.sort(key=lambda path: path.stat().st_mtime)
        for job in jobs[:-MOST_JOBS]:
            shutil.rmtree(job, ignore_errors=True)
        for folder in (kit, *jobs[-MOST_JOBS:]):
            for path in folder.iterdir():
                if path.suffix in _LOGS and path.is_file() and not path.is_symlink() and path.stat().st_size > MOST_LOG_BYTES:
                    _cut(path)


def _cut(path: Path) -> None:
    """The engine writes at the end of what is there, so it goes on at the beginning."""
    before = path.with_name(f"{path.name}.before")
    before.unlink(missing_ok=True)
    shutil.copyfile(path, before)
    before.chmod(0o600)
    os.truncate(path, 0)
