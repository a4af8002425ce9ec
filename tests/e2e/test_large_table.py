"""A table larger than memory: the sketch holds a block at a time, whatever the file's length."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.faults.studies import run
from tests.federation import KEY, RUN, fingerprints

PROGRAM = """
import json, sys
from experiments.sketch import high_mb
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


COMMAND = """
import sys
from experiments.sketch import high_mb
from intarsia.cli import main
code = main(sys.argv[1:])
print("peak", high_mb())
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's highest memory from /proc")
def test_a_million_subjects_with_ids_in_600_megabytes(tmp_path: Path) -> None:
    """The whole command: ids, gate, ledger, Φ of 500 rows. The table has 1.6 GB."""
    names, rows, rng = [f"a{j:03d}" for j in range(200)], 1_000_000, np.random.default_rng(0)
    schema = pa.schema([("id", pa.string()), *((name, pa.float64()) for name in names), ("y", pa.float64())])
    with pq.ParquetWriter(tmp_path / "t.parquet", schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, 16_384):
            size = min(16_384, rows - start)
            ids = pa.array([f"P{i:08d}" for i in range(start, start + size)])
            writer.write_batch(pa.record_batch([ids, *rng.standard_normal((201, size))], schema=schema))
    KEY.save(tmp_path / "study.key")
    told = ("--table", tmp_path / "t.parquet", "--id", "id", "--responses", "y")
    run("site", "init", tmp_path / "clinic", "--name", "clinic", *told)
    toml = (tmp_path / "clinic" / "site.toml").read_text().replace('# key = "study.key"', 'key = "../study.key"')
    (tmp_path / "clinic" / "site.toml").write_text(toml)
    sites = '[[site]]\nname = "clinic"\nfeatures = ["a*"]\nresponses = ["y"]\n[[site]]\nname = "lab"\nfeatures = ["b"]\n'
    (tmp_path / "study.toml").write_text(f'id = "large"\nrun = "{RUN}"\n[sketch]\nm = 500\n{sites}')
    compared = fingerprints(tmp_path / "clinic", tmp_path / "study.toml")
    run("site", "accept", tmp_path / "clinic", tmp_path / "study.toml", "--fingerprints", compared)
    words = ["site", "sketch", str(tmp_path / "clinic"), "--yes", "-o", str(tmp_path / "clinic.sketch")]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 600
