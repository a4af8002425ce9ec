"""How many rows are read at a time, and in what order they are agreed to stand."""

from typing import Any

import numpy as np

from intarsia.errors import InputError

BLOCK_VALUES = 1 << 22  # about 32 MB of float64 per block


def block_rows(columns: int) -> int:
    """Rows per block, so that a block of this many columns has about 32 MB."""
    return int(np.clip(BLOCK_VALUES // max(columns, 1), 64, 16384))


def check_order(order: Any, n: int) -> np.ndarray:
    """Row numbers in the agreed order, as an integer array: each row of the table at most once."""
    chosen = np.asarray(order)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not len(chosen):
        raise InputError("The order must be a list of row numbers, counted from 0.")
    chosen = chosen.astype(np.int64)
    if chosen.min() < 0 or chosen.max() >= n:
        raise InputError(f"The order names a row beyond the table, which has {n} rows. Align again with this table.")
    named = np.zeros(n, dtype=bool)
    named[chosen] = True
    if named.sum() != len(chosen):
        raise InputError("The order names a row twice. Each subject has one place.")
    return chosen
