"""Files that somebody else made, read whole or not at all, and never more of them than the reader allows."""

import os
import stat
from pathlib import Path

from intarsia.errors import MessageError, of_the_system

LARGEST_BYTES = 16 * 2**30  # of any message
_PIECE_BYTES = 2**20  # read of a pipe at a time


def read_file(path: str | os.PathLike[str], limit_bytes: int = LARGEST_BYTES) -> bytes:
    """MessageError where the file is larger than the limit or cannot be read."""
    try:
        with Path(path).open("rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_ISREG(found.st_mode):
                data = file.read(min(found.st_size, limit_bytes) + 1) if found.st_size <= limit_bytes else b""
                size = max(found.st_size, len(data))
            else:  # a pipe or a device has no size, and may go on for ever
                parts, size = [], 0
                while size <= limit_bytes and (more := file.read(_PIECE_BYTES)):
                    parts.append(more)
                    size += len(more)
                data = b"".join(parts)
    except OSError as error:
        error.filename = None  # said already
        raise MessageError(f"Cannot read {path}: {of_the_system(error)}") from None
    if size > limit_bytes:
        raise MessageError(f"{path} has {size:,} bytes or more; at most {limit_bytes:,} are accepted.")
    return data
