"""What large studies take: memory, processor time and whether a command says how far it is. Kept in last_run.json, under `sizes`.

python -m tests.faults.sizes                     # all
python -m tests.faults.sizes subjects columns    # some

subjects   `site sketch` of 1,000,000 × 200 with ids and 500 rows
columns    `site sketch` of 1,500 × 50,000
sites      collecting from 50, 100 and 200 sites in one process
files      twenty sites by files: tests/e2e/test_many_sites.py in full
network    twenty sites over the federated engine, each a process of its own, against one process
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tests.faults.record import commit
from tests.faults.studies import run
from tests.federation import KEY, RUN, fingerprints

KEPT = Path(__file__).with_name("last_run.json")
ROOT = Path(__file__).parents[2]
FIT = {"draws": 20, "warmup": 20, "chains": 2, "thin": 1, "seed": 7}

MEASURED = """
import sys
from experiments.sketch import high_mb
from intarsia.cli import main
code = main(sys.argv[1:])
print("peak", high_mb())
sys.exit(code)
"""


def sketched(where: Path, rows: int, columns: int, m: int, *, at_once: int = 16_384) -> dict[str, Any]:
    """The whole command, in a process of its own: ids, gate, ledger, card. Its table is written group by group."""
    names, rng = [f"a{j:05d}" for j in range(columns)], np.random.default_rng(0)
    schema = pa.schema([("id", pa.string()), *((name, pa.float64()) for name in names), ("y", pa.float64())])
    with pq.ParquetWriter(where / "t.parquet", schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, at_once):
            size = min(at_once, rows - start)
            ids = pa.array([f"P{i:08d}" for i in range(start, start + size)])
            writer.write_batch(pa.record_batch([ids, *rng.standard_normal((columns + 1, size))], schema=schema))
    KEY.save(where / "study.key")
    told = ("--table", where / "t.parquet", "--id", "id", "--responses", "y")
    run("site", "init", where / "clinic", "--name", "clinic", *told)
    toml = (where / "clinic" / "site.toml").read_text().replace('# key = "study.key"', 'key = "../study.key"')
    (where / "clinic" / "site.toml").write_text(toml)
    sites = '[[site]]\nname = "clinic"\nfeatures = ["a*"]\nresponses = ["y"]\n[[site]]\nname = "lab"\nfeatures = ["b"]\n'
    (where / "study.toml").write_text(f'id = "large"\nrun = "{RUN}"\n[sketch]\nm = {m}\n{sites}')
    run("site", "accept", where / "clinic", where / "study.toml", "--fingerprints",
        fingerprints(where / "clinic", where / "study.toml"))  # fmt: skip
    words = ["site", "sketch", str(where / "clinic"), "--yes", "-o", str(where / "clinic.sketch")]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, cwd=ROOT, check=False)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    if done.returncode:
        raise RuntimeError(done.stderr)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "peak_mb": float(done.stdout.split()[-1]), "processor_seconds": round(used, 1), "seconds": round(seconds, 1),
        "progress_lines": sum("%" in line or " of " in line for line in done.stderr.replace("\r", "\n").splitlines()),
    }  # fmt: skip


def tables(number: int, n: int = 200) -> dict[str, pd.DataFrame]:
    """Two columns at each site; the first brings the response."""
    rng = np.random.default_rng(number)
    out = {}
    for k in range(number):
        frame = pd.DataFrame(rng.standard_normal((n, 2)), columns=[f"s{k}_a", f"s{k}_b"])
        frame.insert(0, "id", [f"P{i}" for i in range(n)])
        if k == 0:
            frame["y"] = frame["s0_a"] + rng.standard_normal(n)
        out[f"s{k}"] = frame
    return out


def subjects() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as where:
        return sketched(Path(where), 1_000_000, 200, 500)


def columns() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as where:
        return sketched(Path(where), 1_500, 50_000, 100, at_once=500)


def sites() -> dict[str, Any]:
    """Processor seconds from tables to joined sketches and coefficients' way back, without the fit itself."""
    from intarsia.carriers.in_process import carrier, study_for
    from intarsia.server.study import protocol
    from intarsia.server.study.folder import StudyFolder
    from intarsia.site.site import Site

    found = {}
    with tempfile.TemporaryDirectory() as where:
        for number in (5, 50, 100, 200):  # the first loads what is loaded once
            frames = tables(number)
            parties = [Site(name, t, id="id", key=KEY, responses=["y"] if name == "s0" else []) for name, t in frames.items()]
            study = study_for(parties, m=20, fit=FIT, run=RUN)
            folder, began = StudyFolder.create(Path(where, str(number)), study), time.process_time()
            protocol.collect(folder, carrier(parties, study))
            folder.joined()
            found[str(number)] = round(time.process_time() - began, 2)
    return {"processor_seconds": {number: seconds for number, seconds in found.items() if number != "5"}}


def files() -> dict[str, Any]:
    """As a test does it; every site's results are compared bit by bit with those of one process."""
    began = time.monotonic()
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/test_many_sites.py", "-k", "files"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:])
    return {"sites": 20, "same_as_in_one_process": 20, "seconds": round(time.monotonic() - began, 1)}


def network(number: int = 20) -> dict[str, Any]:
    """Every site has over the engine what it has in one process, bit for bit; one command runs the study."""
    from tests.network import Network

    from intarsia.carriers.in_process import fit, study_for
    from intarsia.site.site import Site
    from intarsia.site.site_folder import SiteFolder

    frames = tables(number)
    responses = {name: ["y"] if name == "s0" else [] for name in frames}
    parties = [Site(name, table, id="id", key=KEY, responses=responses[name]) for name, table in frames.items()]
    study = study_for(parties, m=30, fit=FIT, run=RUN)
    with tempfile.TemporaryDirectory(prefix="intarsia-twenty-") as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = fit(parties, study, workers=1, progress=False)
        net = Network(Path(root, "net"), frames, responses)
        try:
            began = time.monotonic()
            net.start()
            path = net.accept(study)
            net.command(
                "study", "run", path, "--server", net.server, "--workers", 1, "--wait", 600, "--timeout", 600, timeout=3000
            )
            seconds = time.monotonic() - began
            same = sum(
                SiteFolder.load(net.root / name).site().model(study).rows() == here.models[name].rows() for name in study.names
            )
        finally:
            net.stop()
    if same != number:
        raise RuntimeError(f"{number - same} of {number} sites have other results than in one process")
    return {"sites": number, "same_as_in_one_process": same, "seconds": round(seconds, 1)}


WHAT: dict[str, Callable[[], dict[str, Any]]] = {
    "subjects": subjects, "columns": columns, "sites": sites, "files": files, "network": network,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[*WHAT, []], default=list(WHAT))
    parser.add_argument("-o", "--out", type=Path, default=KEPT)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    for what in args.what:
        found = WHAT[what]()
        made = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), **found}
        print(f"{what}: {json.dumps(made)}", flush=True)
        whole = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
        whole.setdefault("sizes", {})[what] = made
        args.out.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
