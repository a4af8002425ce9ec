"""PLINK 1 genotypes (.bed with .bim and .fam beside it): two bits per genotype on disk, one byte until they are sketched.

A column is a variant, named by its id in the .bim file; its values are 0, 1 or 2 copies of the allele that file lists first (A1).
The subjects are the rows of the .fam file, their ids the column `iid` (or `fid` and `iid` joined, where iid alone is not
unique). The file is variant by variant; row blocks are cut from stretches of rows that are held packed, so that one pass over the
file serves many blocks.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from intarsia.errors import InputError
from intarsia.site.data.moments import MISSING_BYTE, as_numbers
from intarsia.site.data.sources import LEVEL, NUMBER, Batch, to_text

_MAGIC = b"\x6c\x1b\x01"
_PACKED_BYTES = 1 << 28  # held at once: 256 MB, over a thousand rows of a million variants
# Bits of a genotype from the lowest pair on: 00 two copies of A1, 01 missing, 10 one copy, 11 none.
_DOSAGE = np.array([2, MISSING_BYTE, 1, 0], dtype=np.uint8)
_UNPACK = _DOSAGE[(np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3]  # a byte of the file → four subjects
ID = "iid"


class GenotypeBatch:
    """Some subjects' genotypes as bytes, subjects in rows."""

    def __init__(self, dosage: np.ndarray, names: tuple[str, ...], ids: Sequence[str]) -> None:
        self.dosage, self.names, self.ids, self.rows = dosage, names, ids, len(ids)

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        if not names:
            return np.empty((self.rows, 0))
        return as_numbers(self.bytes(names))

    def bytes(self, names: Sequence[str]) -> np.ndarray:
        """The same, a byte each, for whoever can do with that."""
        if tuple(names) == self.names:
            return self.dosage
        index = {name: j for j, name in enumerate(self.names)}
        return self.dosage[:, [index[name] for name in names]]

    def text(self, name: str) -> pa.Array:
        if name == ID:
            return pa.array(self.ids, pa.string())
        return to_text(pa.array(self.matrix([name])[:, 0]))


class PlinkSource:
    """A .bed file and the two text files beside it."""

    packed = True  # its batches can give bytes

    def __init__(self, path: Path) -> None:
        self.path = path
        bim, fam = path.with_suffix(".bim"), path.with_suffix(".fam")
        for beside in (bim, fam):
            if not beside.exists():
                raise InputError(f"{path} needs {beside.name} beside it: PLINK writes three files.")
        self.variants = _fields(bim, 6, 1)
        family, within = _fields(fam, 6, 0), _fields(fam, 6, 1)
        self.ids = one_name_each(family, within)
        self.n = len(self.ids)
        self._width = -(-self.n // 4)
        if ID in self.variants:
            raise InputError(f"{bim}: a variant is called {ID!r}, which is the name of the id column. Rename it.")
        self.names = [ID, *self.variants]
        self.kinds = {ID: LEVEL, **dict.fromkeys(self.variants, NUMBER)}
        with path.open("rb") as file:
            if file.read(3) != _MAGIC:
                raise InputError(f"{path} is not a PLINK 1 .bed file ordered by variant. Make one with: plink --make-bed")
        expected = 3 + self._width * len(self.variants)
        if path.stat().st_size != expected:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes; {self.n:,} subjects and {len(self.variants):,} variants need "
                f"{expected:,}. The three files do not belong together, or one was cut off."
            )
        self._index = {name: j for j, name in enumerate(self.variants)}

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[Batch]:
        wanted = tuple(name for name in columns if name != ID)
        at = np.array([self._index[name] for name in wanted], dtype=np.int64)
        every = len(at) == len(self.variants) and bool((at == np.arange(len(at))).all())
        packed = np.memmap(self.path, np.uint8, "r", offset=3, shape=(len(self.variants), self._width)) if len(at) else None
        # Whole bytes of four subjects, as many as fit into memory.
        stretch = int(np.clip(_PACKED_BYTES // max(len(at), 1), 1, self._width))
        for first in range(0, self._width, stretch):
            last = min(first + stretch, self._width)
            held = np.empty((0, last - first), np.uint8)
            if packed is not None:
                held = np.array(packed[:, first:last] if every else packed[at, first:last])
            yield from self._cut(held, first * 4, min(last * 4, self.n), rows, wanted)

    def _cut(self, held: np.ndarray, start: int, stop: int, rows: int, names: tuple[str, ...]) -> Iterator[Batch]:
        for a in range(start, stop, rows):
            b = min(a + rows, stop)
            low, high = (a - start) // 4, -(-(b - start) // 4)
            dosage = _UNPACK[held[:, low:high]].reshape(len(held), 4 * (high - low))
            skip = (a - start) - 4 * low
            yield GenotypeBatch(np.ascontiguousarray(dosage[:, skip : skip + b - a].T), names, self.ids[a:b])


def one_name_each(family: Sequence[str] | None, within: Sequence[str]) -> list[str]:
    """Subjects' ids: their own where no two are the same, else with the family before them."""
    if family is None or len(set(within)) == len(within):
        return list(within)
    return [f"{f}:{i}" for f, i in zip(family, within)]


def _fields(path: Path, columns: int, which: int) -> list[str]:
    out = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            parts = line.split()
            if len(parts) != columns:
                raise InputError(f"{path}, line {number}: {len(parts)} fields; a line of this file has {columns}.")
            out.append(parts[which])
    if not out:
        raise InputError(f"{path} is empty.")
    return out
