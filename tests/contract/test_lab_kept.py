"""The results kept in the repository: what the lab's page shows of them, and the bars they are held to."""

from pathlib import Path

import numpy as np
import pytest
from experiments.paper import paired
from experiments.paper.designs import EXPERIMENTS
from experiments.paper.runner import kept_size, read_rows, result_file
from experiments.paper.tables import results

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "experiments" / "results"
PAGE = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")


def frame(name):
    return results(KEPT, name, kept_size(KEPT, name))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_kept_row_is_of_a_known_cell_with_its_seed(name):
    size = kept_size(KEPT, name)
    experiment = EXPERIMENTS[name]
    cells = {cell.label: cell for cell in experiment.cells[size]}
    rows = read_rows(result_file(KEPT, name, size))
    assert rows
    for row in rows:
        assert int(row["seed"]) == experiment.seed(cells[row["cell"]], int(row["replicate"]))
    keys = [(row["cell"], row["replicate"], row["method"], row["m"]) for row in rows]
    assert len(keys) == len(set(keys))


def test_our_rows_are_not_of_an_earlier_version():
    rows = read_rows(result_file(KEPT, "sim2", kept_size(KEPT, "sim2")))
    assert all(row.get("version") for row in rows if row["method"] in ("intarsia", "horseshoe"))


def test_every_method_that_was_run_is_on_the_lab_s_page():
    """Findings first, then a row for every method of Simulation 2 and every harder design that has results."""
    assert PAGE.index("## What was found") < PAGE.index("### Simulation 2") < PAGE.index("## To run it")
    for name in {"sim2": "method", "harder": "cell"}.items():
        for label in dict.fromkeys(frame(name[0])[name[1]]):
            assert f"\n| {label} |" in PAGE, label


@pytest.mark.parametrize("name", ["sim1", "sim2"])
def test_our_default_has_less_error_than_the_papers_method(name):
    """In the mean, and in the paired logarithms by more than their noise; but for the cell with as few rows as signals."""
    both = paired.pairs(frame(name), "mse_nz")
    lost = []
    for where, part in both.groupby(["cell", "m"]):
        gap = np.log(part["mse_nz"]) - np.log(part["mse_nz_other"])
        if not (part["mse_nz"].mean() < part["mse_nz_other"].mean() and gap.mean() + 1.96 * gap.sem() < 0):
            lost.append(where)
    assert lost == ([("s=50", 50.0)] if name == "sim1" else [])


def test_our_intervals_cover_in_simulation_2():
    ours = frame("sim2").query("method == 'horseshoe' and design == 'stated'").groupby("cell")["coverage_nz"]
    assert len(ours) == 9
    assert ours.size().min() >= 20  # the page says how many
    assert ours.mean().between(0.93, 0.97).all(), ours.mean()


def test_our_intervals_cover_in_simulation_1_where_the_sketch_has_the_rows():
    ours = frame("sim1").query("method in ('horseshoe', 'centralized')").fillna({"m": 0})
    mean = ours.groupby(["s", "m"])["coverage_nz"].mean()
    outside = mean[~mean.between(0.93, 0.97)].to_dict()
    assert set(outside) == {(30, 50), (50, 50)}  # too few rows
