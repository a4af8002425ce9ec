"""A digest of what a cohort's values are, for the ledger: the same values give the same, however they lie in a file.

A table is read as it lies, because it may be too large to be put into another order in memory. So every row has a digest, and
these are put into the order that the sites agreed on.
"""

import hashlib
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_ROW_BYTES = 16  # of the digest of one row


class State(Protocol):
    """A running digest."""

    def update(self, part: Any, /) -> None: ...


class ContentDigest:
    """Fed blocks of rows as they lie. `order`: the same rows in the agreed order; None where the order tells nothing."""

    def __init__(self, state: State, order: NDArray[np.int64] | None = None):
        self._state, self._order = state, order
        self._rows: list[bytes] = []

    def update(self, block: NDArray[np.float64]) -> None:
        block = np.ascontiguousarray(block)
        if self._order is None:
            self._state.update(block.reshape(-1).view(np.uint8).data)
        else:
            self._rows.append(b"".join(hashlib.blake2b(row.data, digest_size=_ROW_BYTES).digest() for row in block))

    def finish(self) -> None:
        if self._order is None:
            return
        came = np.frombuffer(b"".join(self._rows), dtype=f"V{_ROW_BYTES}")
        self._rows.clear()
        agreed = np.empty_like(came)
        agreed[np.argsort(self._order)] = came
        self._state.update(agreed.view(np.uint8).data)
