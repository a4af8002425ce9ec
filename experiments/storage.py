"""Sketching tables that do not fit in memory: Parquet against the disk, the keyed stream against the product, Dask by workers.

    make bench-storage                            # a 2 GiB Parquet file, 1 and 2 Dask workers: about four minutes on two cores
    python -m experiments.storage --gib 0.1        # a look, nothing kept

`stream`: millions of the key's normals per second by threads, NumPy's generator beside it, and the seconds that the plain product
of the same columns of Φ with P columns of data takes. `parquet`: a file dropped from the system's cache, then read plainly, read
into arrays by pyarrow, and sketched for several m. `dask`: the same sketch of a Dask array and of a Dask dataframe with 1 and 2
worker processes of one thread. Medians of several rounds. The last line is one JSON object; it goes to results/storage.json.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from experiments.growth import cpu
from experiments.kept import keep
from experiments.sketch import KEY, TERMS
from intarsia.site.sketch import sketch as site_sketch
from intarsia.site.sketch.partial import default_threads
from intarsia.site.sketch.stream import fill, stride
from intarsia.site.sketch.terms import SketchTerms

RESULT = Path(__file__).parent / "results" / "storage.json"
SIZE = {"Q": 0, "ms_per_sweep": None}  # no sampling here


def seconds(function: Callable[[], object], rounds: int, before: Callable[[], object] = lambda: None) -> float:
    times = []
    for _ in range(rounds):
        before()
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return median(times)


def stream(threads: int, P: int, m: int = 500, columns: int = 24_000, rounds: int = 3) -> dict[str, Any]:
    """The keyed normals of `columns` subjects, in pieces over threads, beside the product they are for."""
    out = np.empty((columns, stride(m)))
    subkey = SketchTerms(m=m, **TERMS).design(KEY, 10 * columns).subkey
    pieces = [range(a, min(a + 512, columns)) for a in range(0, columns, 512)]
    with ThreadPoolExecutor(threads) as pool, threadpool_limits(threads):
        keyed = seconds(lambda: list(pool.map(lambda p: fill(subkey, m, p, out[p.start : p.stop]), pieces)), rounds)
        rng, Z = np.random.default_rng(0), np.random.default_rng(1).standard_normal((columns, P))
        plain = seconds(lambda: rng.standard_normal(out=out), rounds)
        product = seconds(lambda: out[:, :m].T @ Z, rounds)
    return {
        "what": "stream", "m": m, "P": P, "n": columns, "device": f"cpu: {threads} threads", **SIZE,
        "million_normals_per_s": m * columns / keyed / 1e6, "numpy_million_per_s_one_thread": m * columns / plain / 1e6,
        "stream_s": keyed, "product_s": product, "share_of_both": keyed / (keyed + product),
    }  # fmt: skip


def write_parquet(path: Path, rows: int, columns: int, group: int = 8192) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(f"c{j:04d}", pa.float64()) for j in range(columns)])
    block = np.random.default_rng(0).standard_normal((columns, group))
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False, write_statistics=False) as writer:
        for start in range(0, rows, group):
            writer.write_batch(pa.record_batch(list(block[:, : min(group, rows - start)]), schema=schema))
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def forget(path: Path) -> None:
    """Ask the system to drop the file from its cache, so that it is read from the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_plainly(path: Path) -> None:
    buffer = bytearray(1 << 23)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def read_arrays(path: Path) -> None:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(8192):
        for column in batch.columns:
            column.to_numpy()


def make_sketch(table: Any, m: int) -> None:
    site_sketch._FACTORS.clear()
    site_sketch.sketch(table, KEY, SketchTerms(m=m, **TERMS))


def parquet(path: Path, rows: int, columns: int, sizes: list[int], rounds: int = 3) -> list[dict[str, Any]]:
    """Reading and sketching the file from the disk; `over_reading` is the time over that of pyarrow's reading alone."""
    gib, base = path.stat().st_size / 2**30, {"n": rows, "P": columns, "device": f"cpu: {default_threads()} threads", **SIZE}
    plain = seconds(lambda: read_plainly(path), rounds, lambda: forget(path))
    arrays = seconds(lambda: read_arrays(path), rounds, lambda: forget(path))
    out = [
        base | {"what": "parquet: plain reading", "m": None, "seconds": plain, "gib_per_s": gib / plain},
        base | {"what": "parquet: into arrays", "m": None, "seconds": arrays, "gib_per_s": gib / arrays},
    ]
    for m in sizes:
        took = seconds(lambda m=m: make_sketch(str(path), m), rounds, lambda: forget(path))
        out.append(base | {"what": "parquet: sketch", "m": m, "seconds": took, "gib_per_s": gib / took,
                           "over_plain_reading": took / plain, "over_reading": took / arrays})  # fmt: skip
    return out


def load(path: str, start: int, stop: int) -> np.ndarray:
    return np.array(np.load(path, mmap_mode="r")[start:stop])


def with_dask(parquet_path: Path, folder: Path, columns: int, rows: int, m: int, rounds: int = 3) -> list[dict[str, Any]]:
    """The same sketch by 1 and 2 workers, from an array in pieces and from the Parquet file's row groups."""
    import dask
    import dask.array as da
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    table = np.lib.format.open_memmap(folder / "table.npy", "w+", np.float64, (rows, columns))
    block = np.random.default_rng(0).standard_normal((8192, columns))
    for start in range(0, rows, len(block)):
        table[start : start + len(block)] = block[: rows - start]
    del table
    step, where, out = 16_384, str(folder / "table.npy"), []
    for workers in (1, 2):
        with (
            LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit=0) as cluster,
            Client(cluster),
        ):
            ends = [(a, min(a + step, rows)) for a in range(0, rows, step)]
            parts = [da.from_delayed(dask.delayed(load)(where, a, b), (b - a, columns), np.float64) for a, b in ends]
            frame = dd.read_parquet(parquet_path, split_row_groups=4)
            for what, collection in (("dask array", da.concatenate(parts)), ("dask dataframe", frame)):
                make_sketch(collection, m)  # imports in the workers
                took = seconds(lambda c=collection: make_sketch(c, m), rounds)
                out.append({"what": what, "n": rows, "P": columns, "m": m, "workers": workers,
                            "device": f"cpu: {workers} workers of 1 thread", **SIZE, "seconds": took})  # fmt: skip
                print(json.dumps(out[-1]), flush=True)
    for row in out:
        alone = next(r["seconds"] for r in out if r["what"] == row["what"] and r["workers"] == 1)
        row["speed_up"] = alone / row["seconds"]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the Parquet file")
    parser.add_argument("--columns", type=int, default=500)
    args = parser.parse_args()
    rows = int(args.gib * 2**30 / 8 / args.columns)
    found: list[dict[str, Any]] = []
    for threads in (1, 2):
        found.append(stream(threads, args.columns))
        print(json.dumps(found[-1]), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        write_parquet(path, rows, args.columns)
        found += parquet(path, rows, args.columns, [50, 100, 200, 400])
        for row in found[2:]:
            print(json.dumps(row), flush=True)
        found += with_dask(path, Path(folder), args.columns, rows, 200)
    result = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": "make bench-storage",
              "machine": f"{cpu()}, {os.cpu_count()} cores", "gib": args.gib, "rows": found}  # fmt: skip
    if args.gib >= 1:
        keep(RESULT, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
