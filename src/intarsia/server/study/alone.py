"""One command at a time on a study's folder: two that fit into one checkpoint would each find the other's pieces."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from intarsia.errors import FederationError
from intarsia.server.study.folder import StudyFolder


@contextmanager
def alone(folder: StudyFolder) -> Iterator[None]:
    """One command per study at a time; the lock dies with the process that holds it."""
    import fcntl

    where = folder.path / ".lock"
    descriptor = os.open(where, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise FederationError(f"Another command is working on {folder.path}. Wait for it, or stop it.") from None
    try:
        yield
    finally:
        os.close(descriptor)
