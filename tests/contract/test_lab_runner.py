"""The runner: resumable, never redoes a finished fit, same numbers in any number of processes."""

import csv
import json
import os

import pytest
from experiments.paper import designs, runner
from experiments.paper.designs.design import COLUMNS, Cell, Experiment
from experiments.paper.methods import METHODS, Effort, make
from experiments.paper.runner import Part
from experiments.paper.simulate import Scenario

import intarsia
from intarsia.errors import InputError

CHEAP = ("locus", "ridge")


@pytest.fixture
def counted(monkeypatch):
    """An experiment of two cells whose fits cost nothing, and the list of what was run."""
    calls = []

    def run(cell, seed, wanted, settings, options):
        calls.append((cell.label, options["replicate"], tuple(wanted)))
        if options.get("die") == len(calls):
            raise KeyboardInterrupt
        return [{"method": method, "m": m, "mse": seed / 7, "seconds": 1.0} for method, m in wanted]

    cells = (Cell("one", Scenario(n=10, P=5, s=1), (4, 8)), Cell("two", Scenario(n=10, P=5, s=2), (4,)))
    fake = Experiment(
        "fake", "a fake", {"quick": cells, "full": cells, "smoke": cells}, ("horseshoe", "ridge"),
        {"quick": 2, "full": 3, "smoke": 1}, dict.fromkeys(("smoke", "quick", "full"), Effort()), run,
    )  # fmt: skip
    monkeypatch.setitem(designs.EXPERIMENTS, "fake", fake)
    return calls


def test_a_run_leaves_one_row_for_each_fit(counted, tmp_path):
    path = runner.run("fake", "quick", tmp_path, workers=1)
    rows = runner.read_rows(path)
    # two replicates of (intarsia at m=4 and 8, ridge) and of (intarsia at m=4, ridge)
    assert len(rows) == 2 * (3 + 2)
    assert tuple(rows[0]) == COLUMNS
    assert {(r["cell"], r["replicate"], r["method"], r["m"]) for r in rows} >= {("one", "1", "horseshoe", "8")}
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["experiment"] == "fake"
    assert "intarsia" in about["versions"]


def test_finished_fits_are_not_redone(counted, tmp_path):
    runner.run("fake", "quick", tmp_path, workers=1)
    before = len(counted)
    path = runner.run("fake", "quick", tmp_path, workers=1)
    assert len(counted) == before
    runner.run("fake", "quick", tmp_path, Part(replicates=3), workers=1)
    assert [call[1] for call in counted[before:]] == [2, 2]
    assert len(runner.read_rows(path)) == 15


def test_only_missing_methods_are_run(counted, tmp_path):
    runner.run("fake", "quick", tmp_path, Part(methods=["ridge"]), workers=1)
    counted.clear()
    path = runner.run("fake", "quick", tmp_path, workers=1)
    assert all(method == "horseshoe" for _, _, wanted in counted for method, _ in wanted)
    keys = [(r["cell"], r["replicate"], r["method"], r["m"]) for r in runner.read_rows(path)]
    assert len(keys) == len(set(keys)) == 10


def test_resumes_after_a_kill(counted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        runner.run("fake", "quick", tmp_path, Part(options={"die": 3}), workers=1)
    path = runner.result_file(tmp_path, "fake", "quick")
    assert len(runner.read_rows(path)) == 5
    runner.run("fake", "quick", tmp_path, workers=1)
    assert len(runner.read_rows(path)) == 10


def test_a_torn_last_line_is_dropped_and_run_again(counted, tmp_path):
    path = runner.run("fake", "quick", tmp_path, workers=1)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert len(runner.read_rows(path)) == 9
    runner.run("fake", "quick", tmp_path, workers=1)
    rows = runner.read_rows(path)
    assert len(rows) == 10
    assert all(len(line) == len(COLUMNS) for line in csv.reader(path.read_text().splitlines()))
    assert sorted(path.read_text().splitlines()) == sorted(whole.splitlines())


def test_a_file_of_older_columns_gets_todays(counted, tmp_path):
    path = runner.run("fake", "quick", tmp_path, Part(methods=["ridge"]), workers=1)
    rows = [list(row) for row in csv.reader(path.read_text().splitlines())]
    gone = COLUMNS.index("machine")
    path.write_text("".join(",".join(row[:gone] + row[gone + 1 :]) + "\n" for row in rows))
    runner.run("fake", "quick", tmp_path, workers=1)
    mended = runner.read_rows(path)
    assert tuple(mended[0]) == COLUMNS
    assert len(mended) == 10
    assert all(row["method"] in ("ridge", "horseshoe") and row["seconds"] == "1" for row in mended)
    assert sum(row["machine"] == "" for row in mended) == 4
    assert all(len(line) == len(COLUMNS) for line in csv.reader(path.read_text().splitlines()))


def test_rows_say_where_they_were_made(counted, tmp_path):
    rows = runner.read_rows(runner.run("fake", "quick", tmp_path, workers=1))
    assert {row["machine"] for row in rows} == {runner.processor()}
    assert Effort(draws=500, warmup=300, chains=2, thin=2).sweeps == "2x(300+1000)"


def test_chains_of_another_length_are_told(tmp_path):
    path = runner.run(
        "sim2",
        "smoke",
        tmp_path,
        Part(methods=["horseshoe"], options={"chain": {"warmup": 10, "draws": 40, "chains": 3}}),
        workers=1,
    )
    assert [row["sweeps"] for row in runner.read_rows(path)] == ["3x(10+40)"]


def test_rows_made_elsewhere_are_gathered_once(counted, tmp_path):
    here = runner.run("fake", "quick", tmp_path / "here", Part(replicates=1), workers=1)
    there = runner.run("fake", "quick", tmp_path / "there", Part(replicates=2), workers=1)
    assert runner.gather("fake", "quick", tmp_path / "here", [there]) == 5
    assert runner.gather("fake", "quick", tmp_path / "here", [there]) == 0
    rows = runner.read_rows(here)
    assert len(rows) == 10
    place = [(row["cell"], row["method"], int(row["m"] or 0), int(row["replicate"])) for row in rows]
    assert place == sorted(place)  # cells one, two; methods intarsia, ridge: in order here by name too
    assert runner.gather("fake", "quick", tmp_path / "new", [there]) == 10
    counted.clear()
    runner.run("fake", "quick", tmp_path / "here", workers=1)
    assert counted == []


def test_a_new_versions_rows_take_the_place_of_the_old_ones(counted, tmp_path):
    here = runner.run("fake", "quick", tmp_path / "here", workers=1)
    old = here.read_text()
    here.write_text(old.replace(intarsia.__version__, "0.1.0"))
    there = runner.run("fake", "quick", tmp_path / "there", Part(replicates=1), workers=1)
    assert runner.gather("fake", "quick", tmp_path / "here", [there], renewed=["horseshoe", "centralized"]) == 3
    versions = {(row["method"], row["version"]) for row in runner.read_rows(here)}
    assert versions == {("horseshoe", intarsia.__version__), ("ridge", "0.1.0")}
    # A method that the files do not have keeps its rows.
    assert runner.gather("fake", "quick", tmp_path / "here", [there], renewed=["BayesVFLReg"]) == 0
    assert len(runner.read_rows(here)) == 3 + 4


def test_a_run_stops_after_its_minutes_and_goes_on(counted, tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(clock))
    path = runner.run("fake", "quick", tmp_path, Part(minutes=1), workers=1)
    assert len(counted) == 2  # asked at 25, 50 and 75 seconds
    monkeypatch.undo()
    assert 0 < len(runner.read_rows(path)) < 10


def test_fits_of_real_data_are_tasks_of_their_own():
    brain = designs.find("brain")
    tasks = runner.plan(brain, "smoke", set())
    assert [len(task[4]) for task in tasks] == [1] * len(brain.fits(brain.cells["smoke"][0], brain.methods))
    simulated = designs.find("sim2")
    assert len(runner.plan(simulated, "smoke", set())) == 1


def test_rows_of_another_experiment_or_seed_are_not_gathered(counted, tmp_path):
    there = runner.run("fake", "quick", tmp_path / "there", workers=1)
    with pytest.raises(InputError, match="expected 'fake' at size 'full'"):
        runner.gather("fake", "full", tmp_path, [there])
    text = there.read_text()
    seed = runner.read_rows(there)[0]["seed"]
    there.write_text(text.replace(seed, str(int(seed) + 1)))
    with pytest.raises(InputError, match="another version"):
        runner.gather("fake", "quick", tmp_path, [there])
    with pytest.raises(InputError, match="not there"):
        runner.gather("fake", "quick", tmp_path, [tmp_path / "nope.csv"])


def test_seeds_are_recorded_and_depend_on_names_alone(counted, tmp_path):
    path = runner.run("fake", "quick", tmp_path, workers=1)
    rows = runner.read_rows(path)
    seeds = {(r["cell"], r["replicate"]): r["seed"] for r in rows}
    assert len(set(seeds.values())) == 4
    only = runner.run("fake", "quick", tmp_path / "other", Part(cells=["two"], methods=["ridge"]), workers=1)
    assert {(r["cell"], r["replicate"]): r["seed"] for r in runner.read_rows(only)}.items() <= seeds.items()


def test_two_processes_give_the_numbers_of_one_and_leave_its_settings(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    before = dict(os.environ)
    paths = [
        runner.run("sim2", "smoke", tmp_path / str(workers), Part(methods=CHEAP, replicates=2), workers=workers)
        for workers in (1, 2)
    ]
    serial, parallel = (
        sorted((r["replicate"], r["method"], r["mse"], r["coverage"], r["seed"]) for r in runner.read_rows(path))
        for path in paths
    )
    assert serial == parallel
    assert len(serial) == 4
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("name", "arguments"), [("nope", {}), ("sim1", {"size": "huge"}), ("sim1", {"part": Part(methods=["magic"])})]
)
def test_unknown_names_are_refused(name, arguments, tmp_path):
    with pytest.raises(InputError, match="not known"):
        runner.run(name, folder=tmp_path, workers=1, **arguments)


def test_every_method_can_be_made():
    for method in METHODS:
        model = make(method, Effort(), m=20)
        assert hasattr(model, "fit")
        assert hasattr(model, "interval")
    with pytest.raises(InputError, match="give its number of rows"):
        make("horseshoe", Effort())


def test_every_experiment_names_known_methods():
    for experiment in designs.EXPERIMENTS.values():
        assert set(experiment.methods) <= set(METHODS)
        for size in ("smoke", "quick", "full"):
            labels = [cell.label for cell in experiment.cells[size]]
            assert len(labels) == len(set(labels)) > 0
            assert experiment.replicates[size] >= 1


def test_the_papers_cells_are_all_there():
    sim1, sim2 = designs.EXPERIMENTS["sim1"], designs.EXPERIMENTS["sim2"]
    assert sim1.replicates["full"] == sim2.replicates["full"] == 50
    scenario = sim1.cells["full"][0].scenario
    assert (scenario.n, scenario.P, scenario.Q, scenario.rho) == (500, 300, 5, 0.5)
    assert sim1.cells["full"][0].m == (50, 100, 250)
    stated = [c.scenario for c in sim2.cells["full"] if c.scenario.design == "stated"]
    assert {(c.rho, c.s) for c in stated} == {(rho, s) for rho in (0.0, 0.5, 0.7) for s in (10, 30, 50)}
    assert all((c.n, c.P, c.Q, c.K) == (1000, 1000, 5, 3) for c in stated)
    as_run = [c.scenario for c in sim2.cells["full"] if c.scenario.design == "as-run"]
    assert {(c.rho, c.s) for c in as_run} == {(rho, s) for rho in (0.5, 0.7) for s in (10, 30, 50)}
