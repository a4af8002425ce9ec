"""A study over NVIDIA FLARE on loopback: time outside sampling, bytes each site sends, peak memory.

    python -m experiments.federation                 n = 10,000, P = 3,000 at three sites, Q = 5, m = 300
    python -m experiments.federation --gigabyte      one site's sketch of 1 GB through the same channel

Both write their half of results/federation.json. The sampler's own time is not part of it: it runs outside the engine, here with
very few draws.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from experiments.kept import keep
from intarsia.carriers.flare import certificates as kit
from intarsia.carriers.flare.engine import server_command, session, site_command, wait_for_sites
from intarsia.carriers.flare.network_study import run_study, study_folder
from intarsia.server.study.folder import dump
from intarsia.site.site_folder import SiteFolder
from intarsia.wire.study import Study, new_run

RESULT = Path(__file__).parent / "results" / "federation.json"
NAMES = ("clinic", "mri", "lab")
RESPONSES: dict[str, list[str]] = {"clinic": ["y0", "y1", "y2"], "mri": [], "lab": ["y3", "y4"]}


class Memory(threading.Thread):
    """The largest resident size of each party with all its processes, looked at five times per second."""

    def __init__(self, parties: dict[str, int]):
        super().__init__(daemon=True)
        self.parties, self.peak, self.on = parties, dict.fromkeys(parties, 0), True

    def run(self) -> None:
        while self.on:
            for name, pid in self.parties.items():
                with contextlib.suppress(psutil.Error):
                    top = psutil.Process(pid)
                    family = [top, *top.children(recursive=True)]
                    self.peak[name] = max(self.peak[name], sum(p.memory_info().rss for p in family))
            time.sleep(0.2)


def tables(root: Path, n: int, P: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    ids = np.array([f"S{i:07d}" for i in range(n)])
    signal = np.zeros((n, 5))
    for k, name in enumerate(NAMES):
        X = rng.standard_normal((n, P))
        signal += X[:, :10] @ rng.standard_normal((10, 5)) * 0.3
        order = np.random.default_rng(k).permutation(n)
        columns: dict[str, Any] = {"id": ids[order]} | {f"{name}_{j}": X[order, j] for j in range(P)}
        for q in RESPONSES[name]:
            columns[q] = (signal[:, int(q[1])] + rng.standard_normal(n))[order]
        pq.write_table(pa.table(columns), root / f"{name}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=1000, help="per site")
    parser.add_argument("--m", type=int, default=300)
    parser.add_argument("--gigabyte", action="store_true")
    parser.add_argument("--port", type=int, default=18902)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="intarsia-bench-") as temporary:
        found = measure(Path(temporary), args)
    print(json.dumps(found, indent=1))
    kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    kept["gigabyte" if args.gigabyte else "study"] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), **found}
    keep(RESULT, kept)


def measure(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    began = time.monotonic()
    server = root / "server"
    fingerprint = kit.server_init(server, "localhost", args.port, args.port + 1, ("127.0.0.1",))
    if not args.gigabyte:
        tables(root, args.n, args.features)
    folders = {}
    for name in NAMES:
        folders[name] = SiteFolder.create(root / name, name, str(root / f"{name}.parquet"), "id", RESPONSES[name])
        signed, _ = kit.approve(server, kit.read_request(kit.join_request(root / name, name)))
        kit.join_finish(root / name, signed, fingerprint)
    study = _study(folders, 1000 if args.gigabyte else args.m)
    path = root / "study.toml"
    path.write_text(dump(study), encoding="utf-8")
    for site_folder in folders.values():
        site_folder.accept(path)
    if args.gigabyte:
        _large(folders, study)
    out: dict[str, Any] = {"provision_seconds": round(time.monotonic() - began, 1)}
    commands = {"server": server_command(server)} | {name: site_command(root / name, name) for name in NAMES}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        began = time.monotonic()
        for name, (command, env) in commands.items():
            log = (root / f"{name}.log").open("wb")
            processes[name] = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=root)
        with session(server, 90) as opened:
            wait_for_sites(opened, NAMES, 90)
        out["start_seconds"] = round(time.monotonic() - began, 1)
        idle = Memory({name: p.pid for name, p in processes.items()})
        idle.start()
        time.sleep(2)
        idle.on = False
        memory = Memory({name: p.pid for name, p in processes.items()})
        memory.start()
        began = time.monotonic()
        result = run_study(path, server, until="collect" if args.gigabyte else "deliver", workers=1, say=_quiet)
        total = time.monotonic() - began
        memory.on = False
    finally:
        for process in processes.values():
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
            process.kill()
            process.wait()
    folder = study_folder(server, study)
    out |= {
        "seconds_outside_sampling": round(total - result.get("fit_seconds", 0.0), 1),
        "seconds_in_controller": {job["action"]: job["seconds"] for job in result["jobs"]},
        "bytes_sent": result["jobs"][0]["received"],
        "bytes_of_numbers": {},
        "ratio": {},
        "peak_memory_mb": {name: round(value / 2**20) for name, value in memory.peak.items()},
        "idle_memory_mb": {name: round(value / 2**20) for name, value in idle.peak.items()},
        "python": sys.version.split()[0],
        "cores": psutil.cpu_count(),
    }
    from intarsia.wire.messages import Sketch

    for name in NAMES:
        sketch = Sketch.load(folder / "sketch" / f"{name}.sketch")
        numbers = 8 * sketch.m * (len(sketch.features) + len(sketch.responses))
        out["bytes_of_numbers"][name] = numbers
        out["ratio"][name] = round(out["bytes_sent"][name] / numbers, 4)
    return out


def _quiet(text: str) -> None:
    print(text, file=sys.stderr)


def _study(folders: dict[str, SiteFolder], m: int) -> Study:
    roster = []
    for name, site_folder in folders.items():
        identity = site_folder.identity()
        entry: dict[str, Any] = {"name": name, "features": ["*"], "exchange_key": identity.exchange_key}
        entry |= {"signing_key": identity.signing_key}
        if RESPONSES[name]:
            entry["responses"] = RESPONSES[name]
        roster.append(entry)
    fit = {"draws": 20, "warmup": 10, "chains": 1, "thin": 1}
    return Study.from_dict({"id": "bench", "run": new_run(), "sketch": {"m": m}, "fit": fit, "site": roster})


def _large(folders: dict[str, SiteFolder], study: Study) -> None:
    """Messages as if the clinic had 125,000 columns: ready in the run folders, as after a first, interrupted run."""
    from intarsia.wire.alignment import AlignmentReport
    from intarsia.wire.messages import Sketch

    rng = np.random.default_rng(0)
    n, mac = 20_000, "ab" * 32
    for name, site_folder in folders.items():
        store = site_folder.site().run_store(study)
        P = 125_000 if name == "clinic" else 10
        sketch = Sketch(
            site=name, features=tuple(f"{name}_{j}" for j in range(P)), responses=tuple(RESPONSES[name]),
            X=rng.standard_normal((study.sketch.m, P)), Y=rng.standard_normal((study.sketch.m, len(RESPONSES[name]))),
            n=n, m=study.sketch.m, kind="orthonormal", precision="float64", study_hash=study.hash,
            key_fingerprint="00" * 16, order_mac=mac,
        )  # fmt: skip
        store.put("alignment", AlignmentReport(name, study.hash, "strict", n, mac).to_bytes())
        store.put("sketch", sketch.to_bytes())


if __name__ == "__main__":
    main()
