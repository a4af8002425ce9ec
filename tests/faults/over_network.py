"""Studies over the real engine, disturbed: a party is killed, or the line of a site delays, is cut, or swallows what it is given.

python -m tests.faults.over_network --kill 20 --line 20
python -m tests.faults.over_network --again "line 3"

After each disturbance the same command is given again until it ends well; every site then has what a study in one process gives
it, bit for bit. Commit, counts and faults go to last_run.json beside this file, under `network`; what comes of a trial that is
repeated, under `again` in it.
"""

import argparse
import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults.record import commit
from tests.federation import NAMES, frames, sites, study
from tests.network import Network

from intarsia.carriers.in_process import fit
from intarsia.site.site_folder import SiteFolder

KEPT = Path(__file__).with_name("last_run.json")
COUNTS = {"kill": 20, "line": 20}
LINES = ("delay", "cut", "swallow")
N = 4000  # subjects: enough for the sites' counts of what they gave away, over all trials
TIMEOUT_S, PATIENCE_S, MOST_COMMANDS = 20, 40, 6
# Two jobs, of eight steps each, that wait for their sites; and a fit on a busy machine.
HANGS_S = 2 * (8 * TIMEOUT_S + 120 + 2 * PATIENCE_S) + 120.0


class Proxy:
    """Between a site and the server: it passes bytes on, late, not at all, or hangs up."""

    def __init__(self, target: int):
        self._target, self._does = target, "pass"
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def disturb(self, how: str, seconds: float) -> None:
        """What is lost on a line is lost with its connection: TCP brings all bytes or none of those that follow."""
        self._does = how
        if how == "cut":
            self._hang_up()
        time.sleep(seconds)
        self._does = "pass"
        if how == "swallow":
            self._hang_up()

    def _hang_up(self) -> None:
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._ends |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                if self._does == "delay":
                    time.sleep(0.3)
                if self._does != "swallow":
                    sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._ends.discard(end)


class Trials:
    """One network for all of them; each trial is a run of its own of one study."""

    def __init__(self, root: Path):
        self.tables = frames(N)
        self.network = Network(root, self.tables)
        self.lines: dict[str, Proxy] = {}
        for name in NAMES:
            file = root / name / "network" / "startup" / "fed_client.json"
            config = json.loads(file.read_text())
            service = config["servers"][0]["service"]
            self.lines[name] = Proxy(int(service["target"].split(":")[1]))
            service["target"] = f"localhost:{self.lines[name].port}"
            file.write_text(json.dumps(config))
        self.network.start()
        self.counts: Counter[str] = Counter()
        self.faults: list[dict[str, str]] = []
        self.seconds = 0.0
        began = time.monotonic()
        self._study("none", "f" * 32, random.Random(0))
        self.seconds = time.monotonic() - began
        print(f"undisturbed: {self.seconds:.0f} s", flush=True)

    def trial(self, what: str, seed: int) -> None:
        chance = random.Random(f"{what} {seed}")
        self.counts[what] += 1
        said = self._study(what, f"{chance.getrandbits(128):032x}", chance)
        if said is not None:
            self.faults.append({"fault": said[0], "trial": f"{what} {seed}", "said": said[1]})
            print(f"\n{said[0]:<7} {what} {seed}\n        {said[1]}", flush=True)

    def _study(self, what: str, run: str, chance: random.Random) -> tuple[str, str] | None:
        plan = study(m=20, run=run)
        path, left = self.network.accept(plan), 0 if what == "none" else chance.choice((1, 1, 2))
        words = ("study", "run", path, "--server", self.network.server, "--provisional", "--workers", 1)
        words = (*words, "--timeout", TIMEOUT_S, "--wait", PATIENCE_S)
        for _ in range(MOST_COMMANDS):
            command = self.network.background(*words)
            killed = bool(left) and self._disturb(what, command, chance)
            left -= bool(left)
            try:
                _, told = command.communicate(timeout=HANGS_S)
            except subprocess.TimeoutExpired:
                command.kill()
                command.communicate()
                return "hung", f"no end after {HANGS_S:g} s"
            if command.returncode == 0:
                return self._same(plan)
            if not killed and ("Traceback" in told or "intarsia: " not in told or "unexpected" in told):
                return "silent", f"exit {command.returncode}: {told[-300:]}"
        return "lost", f"{MOST_COMMANDS} commands did not end it: {told[-300:]}"

    def _disturb(self, what: str, command: "subprocess.Popen[str]", chance: random.Random) -> bool:
        """True where the command itself was killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(chance.uniform(0.0, self.seconds))
            return False
        if what == "line":
            self.lines[chance.choice(NAMES)].disturb(chance.choice(LINES), chance.uniform(0.5, 10.0))
            return False
        whom = chance.choice((*NAMES, "server", "command"))
        if whom == "command":
            command.kill()
            return True
        self.network.kill(whom)
        time.sleep(chance.uniform(0.0, 5.0))
        self.network.start(whom)
        return False

    def _same(self, plan: Any) -> tuple[str, str] | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            here = fit(sites(self.tables), plan, workers=1, progress=False)
        for name in NAMES:
            if SiteFolder.load(self.network.root / name).site().model(plan).rows() != here.models[name].rows():
                return "lied", f"{name} has other results than in one process"
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for what, count in COUNTS.items():
        parser.add_argument(f"--{what}", type=int, default=count, help=f"trials of this kind ({count})")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial of each kind; the others follow")
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after so many")
    parser.add_argument("--again", help="repeat one trial, as a fault names it")
    parser.add_argument("-o", "--out", type=Path, default=KEPT)
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    plan = [(what, args.seed + k) for k in range(max(args.kill, args.line)) for what in COUNTS if k < getattr(args, what)]
    if args.again:
        what, seed = args.again.split()
        plan = [(what, int(seed))]
    with tempfile.TemporaryDirectory(prefix="intarsia-network-") as root:
        trials = Trials(Path(root))
        try:
            for what, seed in plan:
                if time.monotonic() > end:
                    break
                trials.trial(what, seed)
        finally:
            trials.network.stop()
    print(f"{sum(trials.counts.values())} trials, {len(trials.faults)} faults")
    whole = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    made = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "trials": dict(trials.counts), "list": trials.faults}
    if args.again:
        whole.setdefault("network", {}).setdefault("again", {})[args.again] = made
    else:
        whole["network"] = made
    args.out.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return bool(trials.faults)


if __name__ == "__main__":
    sys.exit(main())
