"""The sampler's progress on a terminal: a live bar, or plain lines when the output goes into a pipe.

The lines go to the log named "intarsia" where the program has one (levels above INFO switch bar and lines off), else to stderr.

with Bar() as bar:
    sample(X, Y, settings=Settings(progress=bar))
"""

import logging
import math
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, TextIO

from intarsia.server.sampler.settings import Progress

EVERY_SECONDS = 5.0  # seconds between plain lines
LOG = logging.getLogger("intarsia")


class Bar:
    """Consumes a sampler's `Progress`; use as a context manager, pass as the `progress` callback."""

    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None, label: str = "sampling"):
        self.stream = stream or sys.stderr
        self.log = LOG if stream is None and LOG.hasHandlers() else None  # plain lines go where the program's log goes
        self.live = self.stream.isatty() if live is None else live
        self.label = label
        self._said = 0.0
        self._bar: Any = None
        self._tasks: list[Any] = []
        self._done = False

    def __enter__(self) -> "Bar":
        self._said = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, progress: Progress) -> None:
        if LOG.level > logging.INFO:
            return
        if self.live:
            self._draw(progress)
        else:
            self._line(progress)

    def _draw(self, progress: Progress) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as RichProgress

            columns = (
                TextColumn("  {task.description}"), BarColumn(bar_width=32), TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("[dim]{task.fields[note]}"),
            )  # fmt: skip
            self._bar = RichProgress(*columns, console=Console(file=self.stream))
            self._bar.start()
            self._tasks = [
                self._bar.add_task(f"chain {k + 1}", total=progress.total, note="") for k in range(len(progress.sweeps))
            ]
        for k, (task, sweeps) in enumerate(zip(self._tasks, progress.sweeps)):
            note = "warm-up" if sweeps < progress.warmup else ""
            if k == 0:
                note = f"{note}  {words(progress)}".strip()
            self._bar.update(task, completed=sweeps, total=progress.total, note=note)

    def _line(self, progress: Progress) -> None:
        finished = all(s >= progress.total for s in progress.sweeps)
        now = time.monotonic()
        if (now - self._said < EVERY_SECONDS and not finished) or (finished and (self._done or progress.seconds < EVERY_SECONDS)):
            return  # a fit that is over before the first line is due needs none
        self._said, self._done = now, finished
        share = sum(progress.sweeps) / (progress.total * len(progress.sweeps))
        line = f"{self.label} {share:4.0%}  {words(progress)}"
        if self.log is not None:
            self.log.info(line)
        else:
            print(f"  {line}", file=self.stream, flush=True)


def shown(progress: Callable[..., Any] | bool | None) -> AbstractContextManager[Any]:
    """What a fit in Python reports to: the given callback, nothing for False, else a bar (plain lines off a terminal)."""
    if callable(progress):
        return nullcontext(progress)
    return nullcontext(None) if progress is False or sys.stderr is None else Bar()


def words(progress: Progress) -> str:
    """How far the run is from its target, or R̂ so far where it has none; and the time left."""
    at, until = progress.standing, progress.until
    if at is not None and until is not None:
        state = f"after {at.draws:,} draws R̂ {at.rhat:.3f} (≤ {until.rhat:g}), folded {at.folded:.3f} (≤ {until.folded:g}), "
        state += f"ESS {at.ess:.0f} (≥ {until.ess:g})"
    else:
        state = "" if math.isnan(progress.rhat) else f"R̂ {progress.rhat:.3f}"
    left = progress.seconds_left
    most = f", at most {clock(progress.at_most)}" if until is not None and at is None else ""  # before the first look
    remaining = "" if left <= 0 or not math.isfinite(left) else f"about {clock(left)} left{most}"
    return ", ".join(part for part in (state, remaining) if part) or f"{progress.seconds:.0f} s"


def clock(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
