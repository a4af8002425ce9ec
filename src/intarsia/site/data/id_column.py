"""The subjects' ids as text, read block by block and as often as they are asked for: a million of them are never held at once."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from intarsia.errors import InputError
from intarsia.site.data.sources import LEVEL, NUMBER, Source, to_text
from intarsia.wire.plain import plural

BLOCK_ROWS = 1 << 16


class IdColumn:
    """The ids of a source: a column of it, or as many ids beside it. Its length is known, its texts are read."""

    def __init__(self, source: Source, id: str | np.ndarray | None) -> None:
        if id is None:
            raise InputError("The table has no id column. Say which it is: id='…', or --id on the command line.")
        if isinstance(id, str) and source.kinds[id] not in (NUMBER, LEVEL):
            raise InputError(f"The id column {id!r} holds {source.kinds[id]}. Ids are text or whole numbers.")
        self._source, self._id = source, id
        self._good = False

    def __len__(self) -> int:
        return self._source.n

    def arrays(self) -> Iterator[pa.Array]:
        """Blocks of text, with nulls where ids are missing."""
        if not isinstance(self._id, str):
            for a in range(0, len(self._id), BLOCK_ROWS):
                some = self._id[a : a + BLOCK_ROWS]
                yield to_text(pa.array(some if some.dtype != object else some.tolist()))
            return
        try:
            for batch in self._source.batches([self._id], BLOCK_ROWS):
                yield batch.text(self._id)
        except (pa.ArrowException, OSError) as error:
            # The library's own words may quote a cell.
            raise InputError(f"Reading the table failed ({type(error).__name__}). Is the file whole?") from None

    def blocks(self) -> Iterator[list[str]]:
        """Every subject's id, in the table's order; missing or repeated ids are refused (by count) before the first."""
        self.check()
        for array in self.arrays():
            yield array.to_pylist()

    def __iter__(self) -> Iterator[str]:
        for block in self.blocks():
            yield from block

    def check(self) -> None:
        """Refuse missing and repeated ids; looked for once."""
        if self._good:
            return
        short, at, missing = np.empty(len(self), dtype=np.uint64), 0, 0
        for array in self.arrays():
            missing += array.null_count
            raw = b"".join(hashlib.blake2b((text or "").encode(), digest_size=8).digest() for text in array.to_pylist())
            short[at : at + len(array)] = np.frombuffer(raw, dtype="<u8")
            at += len(array)
        if missing:
            raise InputError(f"{plural(missing, 'subject')} {'has' if missing == 1 else 'have'} no id. Give every subject one.")
        short.sort()
        if (short[1:] == short[:-1]).any():  # digests so short may agree by chance
            self._refuse_repeated()
        self._good = True

    def _refuse_repeated(self) -> None:
        texts = [text for array in self.arrays() for text in array.to_pylist()]
        if extra := len(texts) - len(set(texts)):
            rows = f"{plural(extra, 'row')} {'repeats' if extra == 1 else 'repeat'}"
            raise InputError(f"{rows} the id of another row. One row per subject: merge or remove them.")

    def array(self) -> np.ndarray:
        """All of them at once."""
        found: list[Any] = []
        for block in self.blocks():
            found += block
        return np.array(found, dtype=object)
