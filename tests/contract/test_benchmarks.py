"""The benchmarks' own code: exponents are recovered, children are measured and stopped, and every part runs at toy size."""

import json
import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from experiments import child, gram, growth, outcomes, resumed, storage, whole_answer
from experiments.answer import Case
from tests import children

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("k", [0.5, 1.0, 2.4, 3.0])
@pytest.mark.parametrize("overhead", [0.0, 0.002])
def test_a_known_exponent_is_recovered_with_its_error(k: float, overhead: float) -> None:
    x = np.array([1, 2, 4, 8, 16, 32, 64]) * 1000.0
    exact = overhead + 1e-3 * (x / 1000) ** k
    assert growth.fit_exponent(x, exact)["k"] == pytest.approx(k, abs=0.01)
    rng, near = np.random.default_rng(0), 0
    for _ in range(20):
        found = growth.fit_exponent(x, exact * np.exp(0.03 * rng.standard_normal(x.size)))
        near += abs(found["k"] - k) < 4 * found["se"] + 0.02
    assert near >= 17


def test_what_levels_off_has_no_exponent() -> None:
    assert growth.fit_exponent([1, 2, 4, 8], [100, 101, 99, 103]) is None
    assert growth.fit_exponent([1, 2, 4, 8, 16], [20, 40, 78, 80, 82]) is None
    assert growth.fit_exponent([1, 2, 4], [1, 2, 4]) is None  # too few to tell a constant from a power


def test_a_child_is_stopped_at_its_limit_and_tells_what_it_knew() -> None:
    found = child.measure("tests.children.busy", 1.0, seconds=20)
    assert found["stopped"]
    assert found["step"] == 1
    assert not child.measure("tests.children.busy", 20.0, seconds=0.5)["stopped"]


def test_a_childs_memory_is_its_own_above_the_imports() -> None:
    ballast = np.ones(300 * 2**17)  # 300 MB of the parent's, which must not count
    found = child.measure("tests.children.hungry", 60.0, megabytes=100)
    assert not found["stopped"]
    assert 95 < found["mb"] < 130, ballast.nbytes


def test_a_child_that_fails_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="hungry"):
        child.measure("tests.children.hungry", 60.0, megabytes="many")


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def key(task: tuple[str, int]) -> dict[str, object]:
        return {"kind": task[0], "number": task[1]}

    path = tmp_path / "results" / "rows.json"
    with pytest.raises(RuntimeError, match="stopped"):
        resumed.gather([("a", 1), ("stop", 2)], key, children.numbered, path, 1)
    kept = json.loads(path.read_text())
    assert kept == [{"kind": "a", "number": 1, "square": 1}]
    path.write_text(json.dumps([kept[0] | {"square": "as it was kept"}]))
    rows = resumed.gather([("a", 1), ("a", 3)], key, children.numbered, path, 1)
    assert [row["square"] for row in rows] == ["as it was kept", 9]
    assert resumed.gather([("a", 3)], key, children.numbered, path, 1) == rows == json.loads(path.read_text())


def test_a_line_that_a_killed_run_left_half_written_is_dropped(tmp_path: Path) -> None:
    row = {"part": "time", "setting": outcomes.TIME, "number": 3, "seconds": 1.0}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row)[:20])
    assert outcomes.kept(path) == {outcomes.Task("time", outcomes.TIME, 3): row}
    assert path.read_text() == json.dumps(row) + "\n"
    path.write_text('{"part"')
    assert outcomes.kept(path) == {}
    assert path.read_text() == ""


def test_a_point_of_a_sampling_curve() -> None:
    found = growth.sweeps(40, 12, 2, seconds=0.0)
    assert 0 < found["fastest"] <= found["ms_per_sweep"]
    assert found["sweeps"] == 5 * growth.ROUND


@pytest.mark.slow
def test_curves_and_pictures_at_toy_size(tmp_path: Path) -> None:
    """The whole command but for its sizes, in this process."""
    lines: list[str] = []
    table = [("sketch", "n", {"P": 8, "m": 6}, [50, 100]), ("sample", "m", {"P": 30, "Q": 2}, [8, 12])]

    def here(function: str, limit: float, cores: int = 1, **arguments: object) -> dict[str, object]:
        module, name = function.rsplit(".", 1)
        found = getattr(__import__(module, fromlist=[name]), name)(**arguments)
        return found | {"mb": 1.0, "wall_s": 1.0, "stopped": False}

    with patch.object(child, "measure", here):
        found = {
            "date": "2026-01-01", "command": "test", "machine": "test", "curves": list(growth.curves(table, 0.0, lines.append)),
        }  # fmt: skip
    assert all(p["ms_per_sweep"] > 0 for p in found["curves"][1]["points"])
    assert len(lines) == 4
    from experiments import growth_plots

    made = growth_plots.draw(json.loads(json.dumps(found)), tmp_path)
    assert [path.stat().st_size > 5000 for path in made] == [True] * 2


def test_reading_and_sketching_a_file_at_toy_size(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    storage.write_parquet(path, 500, 6, group=128)
    rows = storage.parquet(path, 500, 6, [5], rounds=1)
    assert [row["m"] for row in rows] == [None, None, 5]
    assert all(row["gib_per_s"] > 0 for row in rows)
    found = storage.stream(2, 6, m=5, columns=700, rounds=1)
    assert found["share_of_both"] == pytest.approx(found["stream_s"] / (found["stream_s"] + found["product_s"]))
    assert found["million_normals_per_s"] == pytest.approx(5 * 700 / found["stream_s"] / 1e6)


def test_a_gram_study_at_toy_size() -> None:
    found = gram.measure(300, 4, 2)
    assert found["error"] < 1e-7
    assert found["m"] == 299
    # 4 columns and 16 check columns, 16 opened sums of each of two sites, and what every study sends
    assert 8 * (4 + 16 + 32) < found["sent_bytes_per_subject"] < 8 * (4 + 16 + 32) + 150
    assert set(found["site_seconds"]["mri"]) >= {"sketch", "deal", "multiply"}


@pytest.mark.slow
def test_dask_at_toy_size(tmp_path: Path) -> None:
    storage.write_parquet(tmp_path / "t.parquet", 500, 6, group=128)
    rows = storage.with_dask(tmp_path / "t.parquet", tmp_path, 6, 500, 5, rounds=1)
    assert [(row["what"], row["workers"]) for row in rows] == [
        ("dask array", 1), ("dask dataframe", 1), ("dask array", 2), ("dask dataframe", 2)
    ]  # fmt: skip
    assert rows[0]["speed_up"] == 1


def test_kept_rows_name_sizes_device_and_time() -> None:
    """What is kept under experiments/results can be read by anybody: sizes, device and time in every row."""
    wanted = {"P", "m", "Q", "device", "ms_per_sweep"}
    folder = ROOT / "experiments" / "results"
    kept = json.loads((folder / "growth.json").read_text())
    rows = [point for c in kept["curves"] for point in c["points"]]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", kept["date"])
    assert rows
    assert all(wanted <= set(row) for row in rows)


def test_the_whole_way_to_the_report_is_measured() -> None:
    for seed in (1, 2):  # one after the other in the same process
        row = whole_answer.whole(Case(80, 300, 2, 3), seed, draws=40)
        assert row["report_mb"] > 0.05
        assert row["draws"] <= 40
        assert row["power"] > 0.3 > row["fdr"]
