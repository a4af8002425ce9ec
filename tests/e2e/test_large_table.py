"""A table larger than memory: the sketch holds a block at a time, whatever the file's length."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PROGRAM = """
import json, sys
from benchmarks.sketch import high_mb
from intarsia import SketchKey, SketchTerms, Table, sketch
from intarsia.site.sketch import stream
from intarsia.site.sketch.sketch import Work
import pyarrow.parquet
stream._compiled()  # what is compiled counts as an import
table = Table.open(sys.argv[1], responses="c000")
before = high_mb()
message = sketch(table, SketchKey(bytes(32)), SketchTerms("s", "r", int(sys.argv[2])), work=Work(threads=2)).message
lengths = float((message.X ** 2).sum(axis=0).mean())
print(json.dumps({"before": before, "peak": high_mb(), "n": message.n, "lengths": lengths}))
"""


def sketch_file(path: Path, rows: int, columns: int, m: int) -> dict[str, float]:
    """Write a Parquet file of this size, group by group, and sketch it in a process of its own."""
    names = [f"c{j:03d}" for j in range(columns)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    rng, group = np.random.default_rng(0), 8192
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False, write_statistics=False) as writer:
        for start in range(0, rows, group):
            block = rng.standard_normal((columns, min(group, rows - start)))
            writer.write_batch(pa.record_batch(list(block), schema=schema))
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path), str(m)], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's highest memory from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Twice the rows, the same memory (the allocators reach their level after some 300,000 rows)."""
    short, long = (sketch_file(tmp_path / "t.parquet", rows, 100, 30) for rows in (400_000, 800_000))
    assert long["n"] == 800_000
    assert abs(long["lengths"] / 30 - 1) < 0.1
    assert long["peak"] - long["before"] < 250  # the table has 610 MB
    assert long["peak"] - short["peak"] < 40


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's highest memory from /proc")
def test_four_gigabytes_of_values_in_well_under_one_of_memory(tmp_path: Path) -> None:
    found = sketch_file(tmp_path / "t.parquet", 1_074_000, 500, 100)  # 500 columns × 8 bytes: 4.0 GiB
    print(found)
    assert found["n"] == 1_074_000
    assert found["peak"] < 700
