"""A site's encoded columns lie in a file that may be larger than its memory: what was read or written of it is let go."""

import sys
from pathlib import Path

import numpy as np
from tests.federation import frames

from intarsia.site.data.table import Table
from intarsia.site.gram.desk import Columns
from intarsia.site.gram.encode import FILE, encode_table, opened
from intarsia.site.run_store import RunStore
from intarsia.site.screened.kept_gate import largest_leverage
from intarsia.wire.gram_sharing import Cut


def in_memory_kb(path: Path) -> int:
    """How much of a mapped file lies in this process's memory; 0 where nobody can say."""
    if sys.platform != "linux":
        return 0
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            here = line.endswith(str(path))
        elif here and first == "Rss:":
            found += int(line.split()[1])
    return found


def test_columns_that_were_read_do_not_stay_in_memory(tmp_path):
    store = RunStore(tmp_path / "run")
    path, n, c = store.path(FILE), 20_000, 60
    assert path is not None
    values = np.random.default_rng(0).integers(-(2**20), 2**20, (n, c)).view(np.uint64)
    values.tofile(path)
    every = opened(store, n, c)
    assert np.array_equal(np.asarray(every), values)
    assert sys.platform != "linux" or in_memory_kb(path) > 8000  # or the rest of this test says nothing
    for columns, at in ((Columns(every), slice(None)), (Columns(every, [3, 1]), [3, 1])):
        for start in range(0, n, 5000):
            rows = columns.rows(Cut(0, start, start + 5000))
            assert np.array_equal(rows, values[start : start + 5000][:, at])
            assert not isinstance(rows, np.memmap)
        assert in_memory_kb(path) == 0
    largest_leverage(every, [0, 5, 7])
    assert in_memory_kb(path) == 0


def test_encoded_columns_are_the_same_on_disk_and_in_memory(tmp_path):
    """Letting go of what was written loses nothing of it."""
    table = Table.open(frames()["mri"], id="id")
    order = np.random.default_rng(1).permutation(table.n)
    kept = [encode_table(table, order, RunStore(where), b"s" * 32).columns for where in (tmp_path / "run", None)]
    assert np.array_equal(np.asarray(kept[0]), kept[1])
