"""A Gram study from key agreement to the joint matrix: what it costs each of the three sites, and how exact it is.

    python -m experiments.gram                     # n = 10,000 and 100,000; three sites × 200 columns, 5 responses; kept
    python -m experiments.gram --subjects 10000    # a look, nothing kept

All steps before sampling go through the protocol in one process: key agreement, alignment, the privacy gate, own blocks, masked
columns, products. Per site: seconds of one core by step (processor time of this process, so other work on the machine does not
count), bytes sent and received. `mb`: memory of the process at most, three sites, server and the pooled columns for comparison
count), bytes sent and received. `mb`: memory of the process at most, three sites, server and the pooled columns for comparison
included. `error` is the largest difference from the pooled columns' products, as a share of the diagonal. The last line is one
JSON object; it goes to results/gram.json.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from experiments.growth import cpu
from experiments.kept import keep
from intarsia.carriers.in_process import study_for
from intarsia.server.study import gram, protocol
from intarsia.server.study.folder import StudyFolder
from intarsia.server.study.protocol import Payload, Reply
from intarsia.site.answer import answer
from intarsia.site.identity import Identity
from intarsia.site.site import Site
from intarsia.wire.study import Study

RESULT = Path(__file__).parent / "results" / "gram.json"
NAMES = ("clinic", "mri", "lab")


def tables(where: Path, n: int, columns: int, Q: int) -> dict[str, Path]:
    """Parquet files of the three sites, written in blocks; the first site has the responses."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = {}
    for k, name in enumerate(NAMES):
        labels = [f"{name}_{j}" for j in range(columns)] + ([f"y{q}" for q in range(Q)] if k == 0 else [])
        schema = pa.schema([("id", pa.string()), *((label, pa.float64()) for label in labels)])
        paths[name] = where / f"{name}.parquet"
        with pq.ParquetWriter(paths[name], schema) as writer:
            for start in range(0, n, 8192):
                rows = min(8192, n - start)
                block = np.random.default_rng([start, k]).standard_normal((rows, len(labels)))
                ids = pa.array([f"S{i:08d}" for i in range(start, start + rows)])
                arrays = [ids, *(pa.array(block[:, j]) for j in range(len(labels)))]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return paths


def pooled(paths: dict[str, Path]) -> np.ndarray:
    """The products of all standardised columns."""
    import pandas as pd

    D = pd.concat([pd.read_parquet(path).drop(columns="id") for path in paths.values()], axis=1).to_numpy()
    D = (D - D.mean(axis=0)) / D.std(axis=0, ddof=1)
    return np.asarray(D.T @ D)


def parties(where: Path, paths: dict[str, Path], Q: int, **how: Any) -> list[Site]:
    """The three sites, each with a folder; the first has the responses."""
    found = []
    for name in NAMES:
        responses = [f"y{q}" for q in range(Q)] if name == NAMES[0] else []
        (where / name).mkdir()
        how = {**how, "identity": Identity.new(name), "folder": where / name}
        found.append(Site(name, paths[name], id="id", responses=responses, **how))
    return found


class Counting:
    """A carrier to sites in this process that counts, by site, seconds of one core by step and bytes sent and received."""

    def __init__(self, sites: list[Site], study: Study):
        self.sites, self.study = {site.name: site for site in sites}, study
        self.took: dict[str, dict[str, float]] = {name: {} for name in NAMES}
        self.sent, self.received = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)

    def __call__(self, step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        replies = {}
        for name, payload in payloads.items():
            raw = {key: v.read_bytes() if isinstance(v, Path) else v for key, v in payload.items()}
            self.received[name] += sum(map(len, raw.values()))
            began = time.process_time()
            message = answer(self.sites[name], self.study, step, raw)
            self.took[name][step] = self.took[name].get(step, 0.0) + time.process_time() - began
            self.sent[name] += len(message)
            replies[name] = Reply(message)
        return replies

    @property
    def most_seconds(self) -> float:
        """Of the busiest site."""
        return max(sum(steps.values()) for steps in self.took.values())

    def seconds(self, digits: int) -> dict[str, dict[str, float]]:
        return {name: {step: round(s, digits) for step, s in steps.items()} for name, steps in self.took.items()}


def measure(n: int, columns: int, Q: int) -> dict[str, Any]:
    """One study; seconds, bytes and error."""
    with tempfile.TemporaryDirectory() as temporary, threadpool_limits(1):
        where = Path(temporary)
        paths = tables(where, n, columns, Q)
        sites = parties(where, paths, Q)
        study = study_for(sites, 0, id="bench", sketch={"kind": "gram"})
        ask = Counting(sites, study)
        folder = StudyFolder.create(where / "server", study)
        protocol.collect(folder, ask)
        began = time.process_time()
        joined = folder.joined()
        server = time.process_time() - began
        found, exact = gram.joint(folder), pooled(paths)
        return {
            "n": n, "P": 3 * columns, "Q": Q, "m": joined.m, "device": "cpu: 1 core per site", "ms_per_sweep": None,
            "site_seconds": ask.seconds(3), "most_site_seconds": round(ask.most_seconds, 2), "server_seconds": round(server, 2),
            "sent_bytes_per_subject": max(ask.sent.values()) / n,
            "received_bytes_per_subject": max(ask.received.values()) / n,
            "bytes_per_subject_and_site": max(ask.sent[name] + ask.received[name] for name in NAMES) / n,
            "error": float(np.abs(found - exact).max() / (n - 1)),
            "mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--columns", type=int, default=200, help="of each site")
    args = parser.parse_args()
    rows = []
    for n in args.subjects:
        rows.append(measure(n, args.columns, 5))
        print(json.dumps(rows[-1]), flush=True)
    result = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": "python -m experiments.gram",
              "machine": f"{cpu()}, {os.cpu_count()} cores", "rows": rows}  # fmt: skip
    if args.subjects == parser.get_default("subjects"):
        keep(RESULT, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
