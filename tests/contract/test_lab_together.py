"""Fits side by side on an accelerator: the same data, sketches and rows as the ordinary runner's."""

from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from intarsia.errors import InputError
from intarsia.lab import runner, together
from intarsia.lab.experiments import find
from intarsia.lab.runner import Part, read_rows


class InTurn:
    """In place of the device: the CPU sampler with the ordinary runner's seeds, so that every number must agree."""

    batches: list = []  # noqa: RUF012

    def sample(self, fits):
        type(self).batches.append([(fit.method, fit.m, fit.cell, fit.replicate) for fit in fits])
        for fit in fits:
            data, seed = fit.data()
            model = fit.model(data, seed)
            made = np.load(fit.file.with_suffix(".npz"))
            arrays = together.Sketched(made["X"], made["Y"], np.ones_like(made["x_scale"]), np.ones_like(made["y_scale"]))
            model._sample(arrays)
            np.save(f"{fit.file}-C.npy", model.C_)
            np.save(f"{fit.file}-sigma2.npy", model.sigma2_)
        return "in turn"


@pytest.fixture
def in_turn(monkeypatch):
    InTurn.batches = []
    monkeypatch.setattr(together, "Device", InTurn)
    return InTurn


@pytest.fixture(autouse=True)
def one_thread():
    """Rows are compared digit by digit, and a sum's last bit depends on how many threads BLAS has."""
    with threadpool_limits(1):
        yield


def numbers(path):
    timed = {"seconds", "sampling_seconds", "efficiency", "efficiency_arviz", "machine"}
    return sorted(tuple(value for name, value in row.items() if name not in timed) for row in read_rows(path))


def test_rows_are_those_of_the_ordinary_runner(in_turn, tmp_path):
    asked = Part(methods=["centralized", "intarsia"], replicates=2)
    plain = runner.run("sim1", "smoke", tmp_path / "plain", asked, workers=1)
    side = runner.run("sim1", "smoke", tmp_path / "side", asked, workers=1, side_by_side=60)
    assert numbers(side) == numbers(plain)
    assert all(row["machine"] == "in turn" and row["seconds"] == "" for row in read_rows(side))
    # one method and one shape at a time, both data sets in it
    assert sorted(in_turn.batches) == [
        [("centralized", None, 0, 0), ("centralized", None, 0, 1)],
        [("intarsia", 20, 0, 0), ("intarsia", 20, 0, 1)],
        [("intarsia", 40, 0, 0), ("intarsia", 40, 0, 1)],
    ]


@pytest.mark.slow
def test_resumes_and_makes_the_centralized_fit_it_needs(in_turn, tmp_path):
    runner.run("sim1", "smoke", tmp_path, Part(methods=["centralized"]), workers=1, side_by_side=60)
    path = runner.run("sim1", "smoke", tmp_path, Part(methods=["intarsia"]), workers=1, side_by_side=1)
    rows = read_rows(path)
    assert [(row["method"], row["m"]) for row in rows] == [("centralized", ""), ("intarsia", "20"), ("intarsia", "40")]
    assert all(row["acc_gauss_nz"] for row in rows[1:])
    in_turn.batches.clear()
    runner.run("sim1", "smoke", tmp_path, Part(methods=["centralized", "intarsia"]), workers=1, side_by_side=60)
    assert in_turn.batches == []


def test_a_chain_that_left_double_precision_leaves_no_row(in_turn, tmp_path, monkeypatch):
    honest = InTurn.sample

    def one_breaks(self, fits):
        machine = honest(self, fits)
        C = np.load(f"{fits[0].file}-C.npy")
        C[0, -1, 0, 0] = np.nan
        np.save(f"{fits[0].file}-C.npy", C)
        return machine

    monkeypatch.setattr(InTurn, "sample", one_breaks)
    path = runner.run("sim2", "smoke", tmp_path, Part(methods=["intarsia"], replicates=2), workers=1, side_by_side=60)
    assert [row["replicate"] for row in read_rows(path)] == ["1"]


def test_real_data_are_refused(tmp_path):
    with pytest.raises(InputError, match="no simulated data"):
        runner.run("brain", "smoke", tmp_path, Part(methods=["intarsia"]), workers=1, side_by_side=60)


@pytest.mark.slow
def test_jax_gives_the_posterior_of_the_ordinary_runner(tmp_path, monkeypatch):
    """Two random-number streams of one sampler: estimates differ by Monte Carlo error alone. Over 2 × 6,000 draws that is about
    3 % of a data set's squared error (as far as halves of longer runs lie apart); the mean of three data sets is held to 5 %.
    """
    pytest.importorskip("jax", reason="JAX is not installed (pip install 'intarsia[gpu]')")
    settings = find("sim2").settings
    monkeypatch.setitem(settings, "smoke", replace(settings["smoke"], draws=6000, warmup=300))
    asked = Part(methods=["intarsia"], replicates=3)
    plain, side = (
        {
            row["replicate"]: row
            for row in read_rows(runner.run("sim2", "smoke", tmp_path / str(n), asked, workers=1, side_by_side=n))
        }
        for n in (None, 60)
    )
    assert plain.keys() == side.keys() == {"0", "1", "2"}
    for replicate, row in side.items():
        assert row["seed"] == plain[replicate]["seed"]
    for measure in ("mse", "width_nz"):
        quotients = [float(row[measure]) / float(plain[replicate][measure]) for replicate, row in side.items()]
        assert abs(np.log(quotients).mean()) < 0.05
