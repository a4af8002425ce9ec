"""Messages as files at a site's end: read with the file's name in every complaint, written whole or not at all."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from intarsia.errors import InputError, MessageError
from intarsia.wire.bounded import read_file
from intarsia.wire.steps import most_bytes


def from_sites(paths: Sequence[Path] | None, read: Callable[[bytes], Any], what: str, *, step: str) -> dict[str, bytes]:
    """Messages of one kind (`read` reads it, `what` names it) by the site that each says it is from; they are for this step."""
    found: dict[str, bytes] = {}
    for path in paths or ():
        raw, message = one(path, read, what, step=step)
        if found.setdefault(message.site, raw) != raw:
            raise InputError(f"{path} is a second {what} of site {message.site!r}, and a different one. Give one file per site.")
    return found


def one(path: Path, read: Callable[[bytes], Any], what: str, *, step: str) -> tuple[bytes, Any]:
    """The bytes of a file, no more than the step allows, and the message they are."""
    raw = read_file(path, most_bytes(step))
    try:
        return raw, read(raw)
    except MessageError as error:
        raise MessageError(f"{path} is not the {what} of a site: {error}") from None


def write_signed(path: Path, site: Any, study: Any, raw: bytes) -> None:
    """A message and, for a site with an identity, its signature beside it: both are sent. The signature is there first, for
    somebody who waits for the message."""
    signature = site.signature(study, raw)
    if signature is not None:
        write_file(path.with_name(path.name + ".sig"), signature)
    write_file(path, raw)


def write_file(path: Path, raw: bytes) -> None:
    """One message in a file, whole or not at all."""
    from intarsia.wire.container import write

    write(path, raw)
    print(f"wrote {path} ({len(raw):,} bytes)")
