"""A screened study with every site in a process of its own: what one site costs, in seconds of one core and in memory.

    python -m experiments.screened_sites                                  # n = 100,000, 3 × 3,334 features, 5 responses
    python -m experiments.screened_sites --subjects 25000 --columns 3334  # a quarter of the people: memory stays

The tables are written in blocks and stay on disk. Key agreement to the kept Gram matrix, over pipes, one thread at each site. The
seconds are of processor time, so other work on the machine does not count among them; `wall` is the whole on this machine.
`mb` is the most memory that a site's process had in each step, libraries and mapped files included. The last line is one JSON
object; with --keep it goes to results/screened_sites.jsonl.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from experiments.gram import NAMES, tables  # noqa: E402
from intarsia.carriers.pipes import Hospital  # noqa: E402
from intarsia.files import replace  # noqa: E402
from intarsia.server.study import protocol  # noqa: E402
from intarsia.server.study.folder import StudyFolder  # noqa: E402
from intarsia.server.study.protocol import Payload, Reply  # noqa: E402
from intarsia.server.study.toml_text import dump  # noqa: E402
from intarsia.site.site_folder import SiteFolder  # noqa: E402
from intarsia.wire.study import Study, new_run  # noqa: E402

RESULT = Path(__file__).parent / "results" / "screened_sites.jsonl"
OVERRIDE = '\n[[override]]\nrule = "membership"\nreason = "a benchmark of simulated people"\n'


def prepared(where: Path, n: int, columns: int, Q: int, looks: int) -> Study:
    """The sites' folders, each with its own table, and the study that all have accepted."""
    roster = []
    for k, (name, path) in enumerate(tables(where, n, columns, Q).items()):
        responses = [f"y{q}" for q in range(Q)] if k == 0 else []
        folder = SiteFolder.create(where / name, name, str(path), "id", responses)
        text = (where / name / "site.toml").read_text()
        (where / name / "site.toml").write_text(text.replace("\n[predict]", OVERRIDE + "\n[predict]", 1))
        own = folder.identity()
        entry: dict[str, Any] = {"name": name, "features": [f"{name}_*"]}
        entry |= {"responses": responses} if responses else {}
        roster.append(entry | {"exchange_key": own.exchange_key, "signing_key": own.signing_key})
    sketch = {"kind": "screened"} | ({"again": looks - 1} if looks > 1 else {})
    study = Study.from_dict({"id": "bench", "run": new_run(), "sketch": sketch, "site": roster})
    replace(where / "study.toml", dump(study).encode())
    for name in NAMES:
        SiteFolder.load(where / name).accept(where / "study.toml")
    return study


class Counted:
    """A carrier over pipes that counts bytes and, by step, processor time and most memory of every site's process."""

    def __init__(self, hospitals: Mapping[str, Hospital], study: Study):
        self.hospitals, self.study = hospitals, study
        self.steps: dict[str, dict[str, float]] = {name: {} for name in hospitals}
        self.mb: dict[str, int] = {}  # by step, of the site that took most
        self.sent, self.received = dict.fromkeys(hospitals, 0), dict.fromkeys(hospitals, 0)

    def __call__(self, step: str, payloads: Mapping[str, Payload]) -> dict[str, Reply]:
        before = {name: seconds(self.hospitals[name].process.pid) for name in payloads}
        for name, payload in payloads.items():
            self.received[name] += sum(v.stat().st_size if isinstance(v, Path) else len(v) for v in payload.values())
            self.hospitals[name].post(step, self.study.hash, payload)
        replies = {name: self.hospitals[name].reply() for name in payloads}
        for name, reply in replies.items():
            assert isinstance(reply.message, bytes), reply.error
            self.sent[name] += len(reply.message)
            spent = seconds(self.hospitals[name].process.pid) - before[name]
            self.steps[name][step] = self.steps[name].get(step, 0.0) + spent
            self.mb[step] = max(self.mb.get(step, 0), most_mb(self.hospitals[name].process.pid))
            Path(f"/proc/{self.hospitals[name].process.pid}/clear_refs").write_text("5")  # count anew
        return replies


def seconds(pid: int) -> float:
    """Processor time of a process so far."""
    entries = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(entries[11]) + int(entries[12])) / os.sysconf("SC_CLK_TCK")


def most_mb(pid: int) -> int:
    """The most memory that a process has had."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024)


def measure(n: int, columns: int, Q: int, looks: int, where: Path) -> dict[str, Any]:
    """One study; seconds, memory and bytes of each site, and of the server."""
    study = prepared(where, n, columns, Q, looks)
    hospitals = {name: Hospital(name, where / name, patience_s=900.0) for name in NAMES}
    ask = Counted(hospitals, study)
    folder = StudyFolder.create(where / "server", where / "study.toml")
    began, spent = time.perf_counter(), time.process_time()
    try:
        protocol.collect(folder, ask)
        wall, server = time.perf_counter() - began, time.process_time() - spent
        used = {name: seconds(h.process.pid) for name, h in hospitals.items()}
    finally:
        for hospital in hospitals.values():
            hospital.close()
    steps = {name: {step: round(s, 1) for step, s in found.items()} for name, found in ask.steps.items()}
    return {
        "n": n, "P": 3 * columns, "Q": Q, "looks": looks, "kept": len(folder.joined().features), "wall": round(wall),
        "seconds": {name: round(s, 1) for name, s in used.items()}, "server_seconds": round(server, 1), "mb": ask.mb,
        "server_mb": most_mb(os.getpid()), "sent_mb": round(max(ask.sent.values()) / 1e6),
        "received_mb": round(max(ask.received.values()) / 1e6), "steps": steps,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=3334, help="features of each site")
    parser.add_argument("--responses", type=int, default=5)
    parser.add_argument("--looks", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add the line to the results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        line = json.dumps(measure(args.subjects, args.columns, args.responses, args.looks, Path(temporary)))
    if args.keep:
        with RESULT.open("a") as file:
            file.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
