"""What a study over the network costs beside an earlier version: `experiments.federation` of two source trees, run in turn.

    git worktree add /tmp/before 470f568            # 0.1.0; each tree needs an environment of its own, .venv in the tree
    python -m experiments.federation_cost --before /tmp/before --after . --repeats 4

Wall times on a shared machine wander, so the two versions take turns, and what is kept are the ratios of the medians. A first,
small study of each version, which is not kept, compiles what is compiled once. A run takes two to three minutes on an idle
machine, four pairs of them twenty. Look at `ratio_of_medians` in the result (all three below 1.1), and at how far the runs of one
version scatter: if by more than the ratio is above 1, the machine was not idle. The processor seconds are those of the jobs'
processes at server and sites: all that the steps of a study cost, without the engine's idling while the sampler runs in the
benchmark's own process. The result goes to results/federation_cost.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from experiments.kept import keep

# Modules that run a job: at a site before and behind the guard, and at the server.
JOBS = ("worker_process", "start_job", "runner_process")
SMALL = ["--n", "600", "--features", "20", "--m", "60"]
RESULT = Path(__file__).parent / "results" / "federation_cost.json"


def one_run(tree: Path, arguments: list[str]) -> dict[str, Any]:
    """The benchmark of this tree, once: its own figures, and the processor time of the processes it started."""
    kept = tree / "experiments" / "results" / "federation.json"
    before = kept.read_bytes() if kept.exists() else None
    command = [str(tree / ".venv" / "bin" / "python"), "-m", "experiments.federation", *arguments]
    seconds: dict[int, float] = {}
    with (
        tempfile.TemporaryFile("w+") as told,
        subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, stderr=told, text=True) as process,
    ):
        top = psutil.Process(process.pid)
        while process.poll() is None:
            for child in _children(top):
                try:
                    job = any(word.endswith(JOBS) for word in child.cmdline()[:4])
                    times = child.cpu_times()
                except psutil.Error:
                    continue
                if job:
                    seconds[child.pid] = times.user + times.system
            time.sleep(0.2)
        text = process.stdout.read() if process.stdout else ""
        told.seek(0)
        said = told.read()
    if before is not None:
        kept.write_bytes(before)  # this run is about the comparison alone
    if "{" not in text:
        raise SystemExit(f"experiments.federation of {tree} failed (exit code {process.returncode}):\n{said[-2000:]}")
    found = json.loads(text[text.index("{") :])
    return {
        "study_seconds": found["seconds_outside_sampling"],
        "steps_seconds": round(sum(found["seconds_in_controller"].values()), 2),
        "jobs_processor_seconds": round(sum(seconds.values()), 1),
    }


def _children(top: psutil.Process) -> list[psutil.Process]:
    try:
        return top.children(recursive=True)
    except psutil.Error:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the source tree of the earlier version")
    parser.add_argument("--after", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=4)
    args, rest = parser.parse_known_args()
    runs: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    for name in runs:
        one_run(getattr(args, name).resolve(), SMALL)
    for _ in range(args.repeats):
        for name in runs:
            runs[name].append(one_run(getattr(args, name).resolve(), rest))
            print(name, runs[name][-1], flush=True)
            keep_all(runs, args, rest)


def keep_all(runs: dict[str, list[dict[str, Any]]], args: argparse.Namespace, rest: list[str]) -> None:
    if not runs["after"]:
        return
    ratios = {}
    for what in runs["after"][0]:
        was, now = (statistics.median(run[what] for run in runs[name]) for name in ("before", "after"))
        ratios[what] = round(now / was, 3)
    commits = {
        name: subprocess.run(
            ["git", "-C", str(getattr(args, name)), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in runs
    }  # fmt: skip
    content = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python -m experiments.federation_cost", "--repeats", str(args.repeats), *rest]),
        "commits": commits,
        "runs": runs,
        "ratio_of_medians": ratios,
        "python": sys.version.split()[0],
        "cores": psutil.cpu_count(),
    }
    keep(RESULT, content)


if __name__ == "__main__":
    main()
