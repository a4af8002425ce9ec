"""A screened study from key agreement to the kept Gram matrix: what it costs each of the three sites, and how exact it is.

    python -m experiments.screened                                        # n = 20,000, 3 × 500 features, 3 responses; a look
    python -m experiments.screened --subjects 100000 --columns 3334 --responses 5 --look-again 0 --without-pooled

All steps before sampling go through the protocol in one process, with the sites' folders on disk. Per site: seconds of one core
by step (processor time of this process, so other work on the machine does not count), bytes sent and received. `mb`: memory of
the process at most, three sites and server (pooled columns for comparison come after). The last line is one JSON object.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from experiments.gram import Counting, parties, tables
from intarsia.carriers.in_process import study_for
from intarsia.server.study import protocol, screened
from intarsia.server.study.folder import StudyFolder

EXCUSED = {"overrides": [{"rule": "membership", "reason": "a benchmark of simulated people"}]}


def errors(paths: dict[str, Path], folder: StudyFolder) -> dict[str, float]:
    """The largest difference of a correlation from that of pooled columns: in the look, and in the kept Gram matrix."""
    import pandas as pd

    D = pd.concat([pd.read_parquet(path).drop(columns="id") for path in paths.values()], axis=1)
    D = (D - D.mean()) / D.std(ddof=1)
    rows = screened.table(folder)
    n, responses = len(D), [label for block in screened.stated(folder).values() for label in block.responses]
    found = np.array([[row["r"][response] for response in responses] for row in rows])
    pooled = D[[row["feature"] for row in rows]].to_numpy().T @ D[responses].to_numpy() / (n - 1)
    joined = folder.joined()
    W, X = np.hstack([joined.X, joined.Y]), D[[*joined.features, *joined.responses]].to_numpy()
    return {"look": float(np.abs(found - pooled).max()), "kept": float(np.abs(W.T @ W - X.T @ X).max() / (n - 1))}


def measure(n: int, columns: int, Q: int, again: int, pooled: bool, m: int = 0) -> dict[str, Any]:
    """One study; seconds, bytes and errors."""
    with tempfile.TemporaryDirectory() as temporary, threadpool_limits(1):
        where = Path(temporary)
        paths = tables(where, n, columns, Q)
        sites = parties(where, paths, Q, policy=EXCUSED)
        plan = {} if m else {"again": again}
        study = study_for(sites, m or None, id="bench", kind="screened", sketch=plan)
        ask = Counting(sites, study)
        folder = StudyFolder.create(where / "server", study)
        began = time.process_time()
        protocol.collect(folder, ask)
        server = time.process_time() - began - sum(sum(steps.values()) for steps in ask.took.values())
        kept = len(folder.joined().features)
        memory = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return {
            "n": n, "P": 3 * columns, "Q": Q, "m": m, "looks": study.sketch.looks, "kept": kept,
            "site_seconds": ask.seconds(2), "most_site_seconds": round(ask.most_seconds, 1),
            "server_seconds": round(server, 1), "sent_mb": round(max(ask.sent.values()) / 1e6),
            "received_mb": round(max(ask.received.values()) / 1e6), "mb": memory,
            "errors": errors(paths, folder) if pooled else None,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=500, help="features of each site")
    parser.add_argument("--responses", type=int, default=3)
    parser.add_argument("--look-again", type=int, default=1)
    parser.add_argument("--m", type=int, default=0, help="a sketch of so many rows screens")
    parser.add_argument("--without-pooled", action="store_true", help="do not compare with pooled columns, which takes memory")
    args = parser.parse_args()
    print(json.dumps(measure(args.subjects, args.columns, args.responses, args.look_again, not args.without_pooled, args.m)))


if __name__ == "__main__":
    main()
