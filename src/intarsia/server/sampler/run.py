"""One run: it steps, saves, resumes and reports, whatever makes the sweeps (a chain on the CPU, all chains on an accelerator, a
chain with latent features).

A run lives in a folder: `run.json` (what is asked), one C.npy for all chains, per stepper `state-….npz` (everything a
continuation needs, the generator's state included), and per chain `progress-k.json`; `start.npz` where chains start from a
sparse solution, `shrinkage-k-n.npy` the features' mean shrinkage over the first n draws; X.npy and Y.npy (the sketches) where
chains run in processes of their own. Where not all draws are kept: `keeping.npz` (which are), `whole.npy` (whole draws of all
chains), `running-k-n.npz` (what is known of every coefficient after n draws). A continued chain gives the same bits as one that
was never stopped: draws after the last checkpoint are simply made again.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from intarsia.errors import ConvergenceError
from intarsia.server.sampler.keeping import Keeping
from intarsia.server.sampler.record import BoundedRecord, Record
from intarsia.server.sampler.running import Running, as_first, of_chain, together
from intarsia.server.sampler.sparse_start import SparseStart

STOP = "stop"  # a file of this name asks every chain to write its checkpoint and end
NO_SPACE = 28  # exit code of a chain that met a full disk
START = "start.npz"
REPORT_SECONDS = 0.3
SAVING = 30  # times as long as writing a checkpoint took passes before the next one
LEFT_RANGE = "left the range of double precision. Standardise the columns, or use noise='correlated'."


class Stepper(Protocol):
    """Makes the sweeps of one or several chains. `sweeps` counts them; kept draws go into the record."""

    name: str  # of its checkpoint
    chains: range  # which chains of the run it makes
    record: Record
    sweeps: int
    device: str

    def advance(self, total: int) -> None:
        """At least one sweep, none beyond number `total`; kept draws are added to the record."""
        ...

    def settle(self) -> None:
        """Bring into the record what has been summed up elsewhere."""
        ...

    def arrays(self) -> dict[str, Any]:
        """Everything a continuation needs besides the record."""
        ...

    def restore(self, stored: dict[str, Any]) -> None: ...


class Asked:
    """What `run.json` holds, with the arrays: those given, or those beside it in the folder."""

    def __init__(self, folder: Path, arrays: dict[str, Any] | None = None) -> None:
        self.folder, self._arrays = folder, arrays
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        self.engine: str = found["engine"]
        self.model: dict[str, Any] = found["model"]
        self.warmup, self.thin, self.chains = int(found["warmup"]), int(found["thin"]), int(found["chains"])
        self.seed, self.mixing = int(found["seed"]), bool(found["mixing"])
        self._made: dict[Any, Any] = {}
        self.degrees: int | None = found.get("degrees")

    def array(self, name: str) -> Any:
        return self._file(name) if self._arrays is None else self._arrays[name]

    def _file(self, name: str, mode: Any = None) -> Any:
        return np.load(self.folder / f"{name}.npy", mmap_mode=mode, allow_pickle=False)

    def start(self) -> SparseStart | None:
        """The sparse solution that chains start from, where one was stored."""
        file = self.folder / START
        return SparseStart.load(file) if file.exists() else None

    def shared(self, make: Callable[["Asked"], Any]) -> Any:
        """What `make` makes of this, once for all chains of a process."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    def record(self, chains: range, R: int) -> Record:
        mine, keeping = slice(chains.start, chains.stop), Keeping.load(self.folder)
        C = self._file("C", "r+")[mine]
        return Record(C, R, C.shape[2]) if keeping is None else BoundedRecord(C, R, keeping, self._file("whole", "r+")[mine])

    def kept(self, sweeps: int) -> int:
        """Draws kept after so many sweeps."""
        return max(0, sweeps - self.warmup) // self.thin


class Run:
    """A stepper in its folder; one whose folder goes with the process (`passing`) writes no checkpoint."""

    def __init__(self, asked: Asked, stepper: Stepper, passing: bool = False) -> None:
        self.asked, self.stepper, self.passing, self.seconds = asked, stepper, passing, 0.0
        # When the last checkpoint was written, how long that took, and after how many sweeps.
        self._saved, self._writing, self._at = time.perf_counter(), 0.0, 0
        self.file = asked.folder / f"state-{stepper.name}.npz"
        if self.file.exists():
            self._load()

    @property
    def kept(self) -> int:
        return self.asked.kept(self.stepper.sweeps)

    def go(self, draws: int, *, every: float, report: Callable[[], None] | None = None, then_save: bool = True) -> bool:
        """Go on until `draws` draws of each chain are kept; False when asked to stop before.

        A checkpoint is written `every` so many seconds, or more seldom where that takes long, and in the end unless the caller
        does that.
        """
        total = self.asked.warmup + draws * self.asked.thin
        began, told = time.perf_counter() - self.seconds, 0.0
        stop = self.asked.folder / STOP
        with threadpool_limits(limits=1), np.errstate(all="ignore"):
            while self.stepper.sweeps < total:
                self.stepper.advance(total)
                now = time.perf_counter()
                self.seconds = now - began
                if now - told > REPORT_SECONDS or self.stepper.sweeps == total:
                    told = now
                    self._tell(total)
                    if report is not None:
                        report()
                    if stop.exists() and self.stepper.sweeps < total:
                        if then_save:
                            self.save()
                        return False
                if now - self._saved > max(every, SAVING * self._writing):
                    self.save()
        if then_save:
            self.save()
        if self.stepper.sweeps == total and not self.passing:
            self._note(draws)
        return True

    def _note(self, draws: int) -> None:
        """Write what is known after exactly so many draws, for a look at them: the chain itself may go on."""
        self.stepper.settle()
        record, folder = self.stepper.record, self.asked.folder
        for i, k in enumerate(self.stepper.chains):
            # On a device all chains come to a look together, and are asked themselves.
            if record.running is not None and self.asked.engine != "device":
                np.savez(folder / f"running-{k}-{draws}.npz", **of_chain(record.running, i)._asdict())
            np.save(folder / f"shrinkage-{k}-{draws}.npy", record.kappa[i], allow_pickle=False)

    def left(self) -> "Left":
        """What it would leave in its checkpoint now."""
        self.stepper.settle()
        record, n = self.stepper.record, self.kept
        numbers = self.seconds, self.stepper.sweeps, self.stepper.device
        return Left(record.Sigma[:, :n], record.tau[:, :n], record.kappa, *numbers, record.running)

    def save(self) -> None:
        """Write the checkpoint whole or not at all."""
        if self.passing or self.stepper.sweeps == self._at:
            return
        began = time.perf_counter()
        self.stepper.settle()
        arrays = self.stepper.record.arrays(self.kept) | {f"own.{k}": v for k, v in self.stepper.arrays().items()}
        part = self.file.with_suffix(".part")
        with open(part, "wb") as file:
            np.savez(file, sweeps=self.stepper.sweeps, seconds=self.seconds, device=self.stepper.device, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.file)
        self._saved = time.perf_counter()
        self._writing, self._at = self._saved - began, self.stepper.sweeps

    def _load(self) -> None:
        with np.load(self.file, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        self._at = self.stepper.sweeps = int(stored["sweeps"])
        self.seconds = float(stored["seconds"])
        self.stepper.record.restore(stored)
        self.stepper.restore({name[4:]: value for name, value in stored.items() if name.startswith("own.")})

    def _tell(self, total: int) -> None:
        """What the parent (and the monitor) may know while chains run."""
        for i, k in enumerate(self.stepper.chains):
            mean, square = self.stepper.record.moments[i].tolist()
            told = {
                "chain": k, "sweeps": self.stepper.sweeps, "total": total, "warmup": self.asked.warmup, "kept": self.kept,
                "seconds": self.seconds, "mean": mean, "square": square,
            }  # fmt: skip
            part = self.asked.folder / f"progress-{k}.part"
            part.write_text(json.dumps(told), encoding="utf-8")
            os.replace(part, self.asked.folder / f"progress-{k}.json")


class Left(NamedTuple):
    """What a stepper left in its checkpoint: the chains it makes come first in each array."""

    Sigma: Any
    tau: Any
    kappa: Any
    seconds: float
    sweeps: int
    device: str
    running: Running | None = None


def running_after(folder: Path, chains: int, draws: int) -> Running | None:
    """What is known of every coefficient after exactly so many draws of each chain; None where it was not written."""
    files = [folder / f"running-{k}-{draws}.npz" for k in range(chains)]
    if not all(file.exists() for file in files):
        return None
    each = []
    for file in files:
        with np.load(file, allow_pickle=False) as stored:
            each.append(as_first(Running(*(stored[name] for name in Running._fields))))
    return together(each)


def left(folder: Path) -> list[Left]:
    """What every stepper of a folder left, in the order of its chains."""
    out = []
    for file in sorted(folder.glob("state-*.npz"), key=lambda file: (len(file.name), file.name)):
        with np.load(file, allow_pickle=False) as stored:
            numbers = float(stored["seconds"]), int(stored["sweeps"]), str(stored["device"])
            out.append(Left(stored["Sigma"], stored["tau"], stored["kappa"], *numbers))
    return out


def opened(asked: Asked, k: int, passing: bool = False) -> Run:
    """The run that makes chain number k; on an accelerator, all chains."""
    if asked.engine == "device":
        from intarsia.server.sampler.device_chains import DeviceChains

        return Run(asked, DeviceChains(asked), passing)
    if asked.engine == "private":
        from intarsia.server.sampler.latent_chain import LatentChain

        return Run(asked, LatentChain(asked, k), passing)
    from intarsia.server.sampler.chain import Chain

    return Run(asked, Chain(asked, k), passing)


def main(arguments: list[str]) -> int:
    """`python -m intarsia.server.sampler.run FOLDER CHAINS LOOKS EVERY`: run chains (numbers, with commas between them) to each
    number of draws in turn; exit code 75 when asked to stop.
    """
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; Ctrl-C reaches the whole group
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder, every = Path(arguments[0]), float(arguments[3])
    chains, looks = ([int(number) for number in text.split(",")] for text in arguments[1:3])
    asked = Asked(folder)
    try:
        runs = [opened(asked, k) for k in chains]
        for draws in looks:
            for run in runs:
                if not run.go(draws, every=every):
                    return 75
    except ConvergenceError as error:
        (folder / f"error-{chains[0]}.txt").write_text(str(error), encoding="utf-8")
        return 8
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NO_SPACE
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
