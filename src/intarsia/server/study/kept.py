"""What a study folder keeps, by digest: a file that the disk damaged is not taken for what a site sent or what was fitted.

`digests.json` has the SHA-256 of every message as it arrived, and of the posterior as it was written. An entry is written before
its file. So a digest without its file stands for a message that may come again, and only with these bytes.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from intarsia.files import damaged, digest_of, move, read_json, replace_json

FILE, FIT, POSTERIOR = "digests.json", "fit.json", "posterior.nc"


def item(kind: str, site: str) -> str:
    """The name under which the digest of a site's message is kept."""
    return f"{kind}/{site}.{kind}"


def sent_again(kind: str, site: str) -> str:
    """What helps where the disk changed a message that had arrived."""
    return (
        f"Site {site!r} sent it whole and has nothing to mend: it gives the same {kind} again, as a file or over the network. "
        "Give the command again, by files with that file."
    )


def remember(folder: Path, name: str, digest: str) -> None:
    """The file of this name (below the folder) has this digest from now on."""
    known = _known(folder)
    if known.get(name) != digest:
        replace_json(folder / FILE, known | {name: digest}, indent=None)


def remembered(folder: Path, name: str) -> str | None:
    return _known(folder).get(name)


def forget(folder: Path, chosen: Callable[[str], bool]) -> None:
    """Drop the digests of files that are deleted."""
    known = _known(folder)
    left = {name: digest for name, digest in known.items() if not chosen(name)}
    if left != known:
        replace_json(folder / FILE, left, indent=None)


def intact(folder: Path, name: str) -> bool:
    """Is the file as it was written? One of an earlier version, whose digest was not kept, is looked at when it is read."""
    digest = remembered(folder, name)
    return digest is None or digest == digest_of(folder / name)


def _known(folder: Path) -> dict[str, str]:
    path = folder / FILE
    try:
        found = path.stat()
    except FileNotFoundError:
        return {}
    return _read(path, (found.st_mtime_ns, found.st_ino, found.st_size))


@lru_cache(maxsize=8)
def _read(path: Path, _as_of: tuple[int, int, int]) -> dict[str, str]:
    """Asked for with every message of every site: read once for as long as it stays the same file. Not to be changed."""
    return read_json(path, "Delete it: messages then count as they lie there, and are checked by the digests inside them.")


def posterior_file(folder: Path) -> Path:
    """The study's posterior, found to be what was written; the caller has seen that it is there."""
    if not intact(folder, POSTERIOR):
        remedy = "Delete it and give the command that fitted the study again: the fit is made again from the sketches."
        raise damaged(folder / POSTERIOR, remedy)
    return folder / POSTERIOR


def keep_posterior(folder: Path, written: Path) -> None:
    """A posterior that was written beside its place takes it."""
    remember(folder, POSTERIOR, digest_of(written))
    move(written, folder / POSTERIOR)


def keep_fit(folder: Path, summary: dict[str, Any]) -> None:
    """The summary comes last, and says that the fit is done."""
    replace_json(folder / FIT, summary)


def read_fit(folder: Path) -> dict[str, Any]:
    """The summary of a fit."""
    return read_json(folder / FIT, "Delete it and give the command that fitted the study again: it is made from posterior.nc.")


def finished_fit(folder: Path) -> dict[str, Any] | None:
    """The summary of a fit whose posterior is there, whole; None where there is still something to do."""
    if not (folder / FIT).is_file() or not (folder / POSTERIOR).is_file():
        return None
    posterior_file(folder)
    return read_fit(folder)
