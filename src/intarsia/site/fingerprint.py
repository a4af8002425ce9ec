"""Whether a column of the table has changed since a run sketched it: a keyed sum over the run's subjects, kept at the site.

The fingerprint of a column is Σ w_i·b_i modulo 2⁶⁴, with b_i the bits of subject i's value and w_i an odd secret weight from the
ledger's key. It does not depend on the order of rows, and one changed value always changes it. It never leaves the site.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import MessageError
from intarsia.privacy.ledger import Ledger
from intarsia.site.data.row_blocks import block_rows
from intarsia.site.data.table import Table
from intarsia.wire.container import pack, unpack

FILE = "columns.fingerprint"


@dataclass(frozen=True)
class Fingerprint:
    """The subjects of a run as the ledger's keyed tokens, and one number per column."""

    tokens: NDArray[np.uint64] = field(repr=False)
    columns: dict[str, int] = field(repr=False)

    @classmethod
    def of(cls, table: Table, ledger: Ledger, rows: NDArray[np.intp] | None = None) -> "Fingerprint":
        """Of these rows of the table; of all without `rows`."""
        weights = ledger.token_of_each(table.id_column)
        inside = np.ones(len(weights), dtype=bool)
        if rows is not None:
            inside[:] = False
            inside[rows] = True
        total, at = np.zeros(len(table.labels), dtype=np.uint64), 0
        for block in table.encoded(block_rows(4 * len(table.labels))):
            here = inside[at : at + len(block)]
            values = np.ascontiguousarray(block[here] + 0.0)  # one kind of zero, and one kind of NaN
            values[np.isnan(values)] = np.nan
            w = weights[at : at + len(block)][here] | np.uint64(1)
            bits = values.view(np.uint64)
            np.multiply(bits, w[:, None], out=bits)
            total += bits.sum(axis=0, dtype=np.uint64)
            at += len(block)
        return cls(np.sort(weights[inside]), dict(zip(table.labels, total.tolist(), strict=True)))

    def again(self, table: Table, ledger: Ledger) -> tuple["Fingerprint", int]:
        """The same subjects in the table as it is now, and how many of them it has no more."""
        now = ledger.token_of_each(table.id_column)
        found = Fingerprint.of(table, ledger, np.flatnonzero(np.isin(now, self.tokens)))
        return found, len(self.tokens) - len(found.tokens)

    def changed(self, now: "Fingerprint") -> Sequence[str]:
        """Columns whose values are other ones, that are new, or that are gone."""
        return [
            label for label in dict.fromkeys([*self.columns, *now.columns]) if self.columns.get(label) != now.columns.get(label)
        ]

    def to_bytes(self) -> bytes:
        values = np.array(list(self.columns.values()), dtype=np.uint64)
        arrays = {"tokens": self.tokens.view(np.int64), "columns": values.view(np.int64)}
        return pack("fingerprint", {"labels": list(self.columns)}, arrays)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Fingerprint":
        header, arrays = unpack(raw, "fingerprint")
        if set(header) != {"labels"} or set(arrays) != {"tokens", "columns"} or len(header["labels"]) != len(arrays["columns"]):
            raise MessageError("The fingerprint of the table's columns is damaged.")
        values = arrays["columns"].view(np.uint64).tolist()
        return cls(arrays["tokens"].view(np.uint64), dict(zip(header["labels"], values, strict=True)))
