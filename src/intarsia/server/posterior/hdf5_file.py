"""A file for HDF5 to write to: the disk may fill under it, and the process lives.

HDF5 does not bear an error in the middle of a write: closing what it could not write, it ends the whole process. So the first
error is kept here, everything after it is dropped, and `finish` raises it once HDF5 has let go of the file. Nothing is held in
memory: each piece goes to the disk as it comes.
"""

import io
import os
from typing import Any


class Hdf5File(io.FileIO):
    """What HDF5 sees of a file, given by a descriptor that is open for reading and writing and stays open."""

    def __init__(self, descriptor: int):
        super().__init__(descriptor, "r+b", closefd=False)
        self._error: OSError | None = None

    def finish(self) -> None:
        """All that HDF5 wrote has been taken, or the system's first error is raised."""
        if self._error is not None:
            raise self._error

    def write(self, block: Any) -> int:
        left = whole = memoryview(block).cast("B")
        try:
            while self._error is None and len(left):
                left = left[super().write(left) or 0 :]
        except OSError as error:
            self._keep(error)
        self.seek(len(left), os.SEEK_CUR)
        return len(whole)

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer) or 0
        except OSError as error:
            self._keep(error)
            return 0

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        try:
            return size if self._error else super().truncate(size)
        except OSError as error:
            self._keep(error)
            return size

    def _keep(self, error: OSError) -> None:
        self._error = self._error or OSError(error.errno, os.strerror(error.errno or 0))
