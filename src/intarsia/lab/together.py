"""The sampled fits of many simulated data sets side by side on an accelerator: `intarsia lab run … --backend jax`.

The data sets, sketches and measures are those of the ordinary runner, made by processes on the CPU; only the chains run
elsewhere, all those of one shape in one compiled run. It is the same sampler with other random numbers. Rows made so have no
times: a chain that shares a device with hundreds has none of its own.
"""

import multiprocessing
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

import intarsia
from intarsia.lab.baselines.paper import Posterior
from intarsia.lab.experiments import find
from intarsia.lab.experiments.simulations import BASELINE_OF
from intarsia.lab.methods import Effort, Row, accuracy_measures, estimator, measures
from intarsia.lab.runner import one_thread_each
from intarsia.lab.simulate import Dataset, simulate
from intarsia.lab.sketching import Sketched

if TYPE_CHECKING:
    from intarsia.server.sampler import device
    from intarsia.server.sampler.backends.protocol import DeviceBackend
    from intarsia.server.sampler.schedule import Plan
    from intarsia.server.sampler.state import Data

BAYESIAN = (*BASELINE_OF, *BASELINE_OF.values())


class Fit(NamedTuple):
    """One chain run to make: whose, and where its arrays lie."""

    experiment: str
    size: str
    cell: int
    replicate: int
    method: str
    m: int | None
    folder: str

    @property
    def file(self) -> Path:
        return Path(self.folder) / f"{self.cell}-{self.replicate}-{self.method}-{self.m}"

    def setting(self) -> Effort:
        return find(self.experiment).settings[self.size]

    def data(self) -> tuple[Dataset, int]:
        experiment = find(self.experiment)
        cell = experiment.cells[self.size][self.cell]
        assert cell.scenario is not None
        seed = experiment.seed(cell, self.replicate)
        return simulate(cell.scenario, np.random.default_rng(seed)), seed

    def model(self, data: Dataset, seed: int) -> Posterior:
        return cast(Posterior, estimator(self.method, data, self.setting(), self.m, seed))


def sketch(fit: Fit) -> tuple[Fit, tuple[int, ...]]:
    """Make the arrays a fit samples from; returns their sizes, which decide what runs together."""
    data, seed = fit.data()
    made = fit.model(data, seed).sketch(data.X, data.Y, data.feature_sites)
    np.savez(fit.file.with_suffix(".npz"), X=made.X, Y=made.Y, x_scale=made.x_scale, y_scale=made.y_scale)
    return fit, (*made.X.shape, made.Y.shape[1])


def _fitted(fit: Fit, data: Dataset, seed: int) -> Posterior | None:
    model = fit.model(data, seed)
    with np.load(fit.file.with_suffix(".npz")) as made:
        arrays = Sketched(made["X"], made["Y"], made["x_scale"], made["y_scale"])
    C, sigma2 = (np.load(f"{fit.file}-{name}.npy") for name in ("C", "sigma2"))
    if not (np.isfinite(C).all() and np.isfinite(sigma2).all()):
        return None
    model.take(C, sigma2, arrays)
    return model


def judge(fits: tuple[Fit, ...], wanted: Collection[tuple[str, int | None]], machine: str) -> list[Row]:
    """The rows of one data set's fits. A chain that left double precision leaves no row: another run may fill it."""
    first = fits[0]
    data, seed = first.data()
    cell = find(first.experiment).cells[first.size][first.cell]
    which: Row = {
        "experiment": first.experiment, "size": first.size, "replicate": first.replicate, "seed": seed,
        **cell.columns(), "machine": machine, "version": intarsia.__version__,
    }  # fmt: skip
    rows: list[Row] = []
    centralized: dict[str, Posterior] = {}
    # Centralized posteriors first: the sketched ones of Simulation 1 are held against them.
    for fit in sorted(fits, key=lambda f: f.m is not None):
        model = _fitted(fit, data, seed)
        if model is None:
            continue
        row = {**which, "method": fit.method, "m": fit.m, **measures(model, data, fit.setting())}
        if fit.method in BASELINE_OF.values():
            centralized[fit.method] = model
        elif (base := centralized.get(BASELINE_OF[fit.method])) is not None:
            row |= accuracy_measures(model, base, data.C, seed)
        if (fit.method, fit.m) in wanted:
            rows.append(row)
        for name in ("C", "sigma2"):
            Path(f"{fit.file}-{name}.npy").unlink()
    return rows


class Device:
    """An accelerator, with what was compiled for it."""

    def __init__(self) -> None:
        from intarsia.server.sampler import backends

        self.be = backends.on_device()
        self._runners: dict[tuple[Any, ...], Any] = {}

    def sample(self, fits: list[Fit]) -> str:
        """Run the chains of fits of one method and shape side by side; leaves their draws, returns what ran them."""
        from intarsia.server.sampler import device
        from intarsia.server.sampler.model import Model
        from intarsia.server.sampler.schedule import plan as make_plan
        from intarsia.server.sampler.state import prepare

        be, settings = self.be, fits[0].setting()
        data, seed = fits[0].data()
        model = fits[0].model(data, seed)
        arrays = [dict(np.load(fit.file.with_suffix(".npz"))) for fit in fits]
        plan = make_plan(Model(**model.model), arrays[0]["X"], arrays[0]["Y"], mixing=model.mixing)
        plan = replace(device.on_device(plan, be.device()), refreshes=False)
        with be.precision():
            each = [prepare(be, one["X"], one["Y"], block=plan.block) for one in arrays]
            stacked = be.tree_map(lambda *x: be.xp.repeat(be.xp.stack(x), settings.chains, axis=0), *each)
        number = len(fits) * settings.chains
        C = np.empty((number, settings.draws, plan.P, plan.Q))
        sigma2 = np.empty((number, settings.draws, plan.Q))

        def take(first: int, kept: Any) -> None:
            C[:, first : first + kept.C.shape[1]] = kept.C
            sigma2[:, first : first + kept.C.shape[1]] = np.diagonal(kept.Sigma, axis1=2, axis2=3)

        # The data are an argument of what is compiled: later data sets of the same shape meet it compiled.
        runner = self._runners.setdefault((fits[0].method, plan, number), _patient(plan, stacked, be))
        runner.data = stacked
        chains = runner.start(seed, number)
        device.run(runner, chains, warmup=settings.warmup, draws=settings.draws, thin=settings.thin, take=take)
        for i, fit in enumerate(fits):
            own = slice(i * settings.chains, (i + 1) * settings.chains)
            np.save(f"{fit.file}-C.npy", C[own])
            np.save(f"{fit.file}-sigma2.npy", sigma2[own])
        return f"{be.device().removeprefix('gpu: ')}, {number} chains side by side"


def _patient(plan: "Plan", data: "Data", be: "DeviceBackend") -> "device.Runner":
    from intarsia.server.sampler import device

    class Patient(device.Runner):
        """One chain that diverges does not end the others: its data set is left out afterwards."""

        def _checked(self, chains: Any) -> Any:
            return chains

    return Patient(plan, data, own_data=True, be=be)


def run_together(
    tasks: list[Any],
    append: Callable[[list[Row]], None],
    *,
    workers: int,
    together: int,
    tell: Callable[[int, int, str], None],
) -> None:
    """Run the planned tasks' sampled fits, `together` data sets at a time; rows come as data sets are done with."""
    context = multiprocessing.get_context("spawn")
    tasks = [task for task in tasks if any(method in BAYESIAN for method, _ in task[4])]
    if not tasks:
        return
    parts = -(-len(tasks) // together)
    size = -(-len(tasks) // parts)  # parts of one size: compiled once
    device = Device()
    temporary = tempfile.TemporaryDirectory(prefix="intarsia-lab-")
    with one_thread_each(), temporary as folder, ProcessPoolExecutor(workers, context) as pool:
        waiting: set[Future[list[Row]]] = set()
        done = 0
        for at in range(0, len(tasks), size):
            chunk = {task: _fits(task, folder) for task in map(_hashable, tasks[at : at + size])}
            made = sorted(pool.map(sketch, [fit for fits in chunk.values() for fit in fits]), key=_shape)
            machine = ""
            for _, group in groupby(made, key=_shape):
                machine = device.sample([fit for fit, _ in group])
            waiting |= {pool.submit(judge, tuple(fits), task[4], machine) for task, fits in chunk.items()}
            last = at + size >= len(tasks)
            for future in as_completed(set(waiting)) if last else [future for future in waiting if future.done()]:
                waiting.discard(future)
                append(future.result())
                done += 1
                tell(done, len(tasks), machine)


def _hashable(task: Any) -> Any:
    return task[:5]


def _fits(task: Any, folder: str) -> list[Fit]:
    """The fits of a task, with the centralized ones that its sketched ones are held against."""
    name, size, cell, replicate, wanted = task
    pairs = dict.fromkeys(pair for pair in wanted if pair[0] in BAYESIAN)
    for method, _ in list(pairs):
        base = BASELINE_OF.get(method)
        if base in find(name).methods:
            pairs[base, None] = None
    return [Fit(name, size, cell, replicate, method, m, folder) for method, m in pairs]


def _shape(item: tuple[Fit, tuple[int, ...]]) -> tuple[Any, ...]:
    """What runs side by side: fits of one method on arrays of one size."""
    return item[0].method, item[1]
