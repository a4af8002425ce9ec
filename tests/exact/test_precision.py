"""What m rows buy: the formulas, and the kept fits they are compared with."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from experiments.choosing_m import DESIGNS, measure, rotation

from intarsia.errors import InputError
from intarsia.privacy.plan import Problem, plan
from intarsia.privacy.precision import interval_ratio, power, rows_left, smallest_effect, threshold

KEPT = json.loads((Path(__file__).parents[2] / "experiments" / "results" / "choosing_m.json").read_text(encoding="utf-8"))


def test_a_rotation_loses_nothing_and_fewer_rows_widen_by_the_root() -> None:
    assert interval_ratio(500, 499, 60, 6) == 1.0
    spent = 5 * np.log(100)
    assert interval_ratio(1001, 400, 100, 5) == pytest.approx(np.sqrt((1000 - spent) / (400 - spent)))
    assert interval_ratio(500, 20, 100, 5) == inf


def test_m_rows_of_a_sketch_are_worth_m_subjects() -> None:
    """Averaged over sketches, standard errors of least squares are those of m rows: √((n − 1 − s)/(m − s)) of the pooled ones."""
    rng = np.random.default_rng(0)
    n, m, s = 400, 60, 4
    X = rng.standard_normal((n, s))
    X -= X.mean(axis=0)
    pooled = np.sqrt(np.diag(np.linalg.inv(X.T @ X)))
    wider = []
    for _ in range(60):
        S = rotation(n, rng)[:m] @ X
        wider.append(np.sqrt(np.diag(np.linalg.inv(S.T @ S))) / pooled)
    assert np.mean(wider) == pytest.approx(np.sqrt((n - 1 - s) / (m - s)), rel=0.02)


def test_power_and_the_smallest_effect_are_each_others_inverse() -> None:
    for m in (80, 130, 325):
        assert power(m, smallest_effect(m, 287, 10), 287, 10) == pytest.approx(0.8, abs=1e-9)
    at = threshold(287, 10) / np.sqrt(rows_left(200, 287, 10))
    assert power(200, at, 287, 10) == pytest.approx(0.5, abs=1e-6)
    assert power(50, 0.5, 287, 10) == 0.0
    with pytest.raises(InputError, match="effect"):
        power(100, 1.5, 10, 2)


def test_the_kept_fits_agree_with_the_theory() -> None:
    """Both designs: widths from four times s·ln P rows on; power everywhere within a fifth."""
    assert [(row["design"], row["m"]) for row in KEPT] == [(design.name, m) for design in DESIGNS for m in design.sizes]
    for row in KEPT:
        if row["m"] >= 125:
            assert row["width"] == pytest.approx(row["width_expected"], rel=0.1)
        assert row["false"] <= 0.05 * row["findings"] + 2
        for effect in ("0.15", "0.25", "0.35"):
            assert row[f"power_{effect}"] == pytest.approx(row[f"expected_{effect}"], abs=0.21)


def test_the_benchmark_runs_at_a_small_size() -> None:
    for design in DESIGNS:
        rows = measure(replace(design, n=100, sizes=(30, 99), data_sets=1))
        assert [row["m"] for row in rows] == [30, 99]
        assert rows[1]["width"] == 1.0


def test_the_correlated_design_is_what_its_name_says() -> None:
    """Unit variances, blocks that correlate by .5, noise too; and the part of a feature that the others do not explain."""
    design = replace(DESIGNS[1], n=20_000)
    columns = design.draw(np.random.default_rng(3))
    found = np.corrcoef(columns, rowvar=False)
    assert found[0, 1:10].mean() == pytest.approx(0.5, abs=0.02)
    assert abs(found[0, 10:200].mean()) < 0.01
    assert found[[0, 10, 20], [200, 201, 202]] == pytest.approx([0.15, 0.15, 0.25], abs=0.02)
    left = columns[:, 200:] - columns[:, :200] @ design.truth()
    assert np.corrcoef(left, rowvar=False)[[0, 0, 1], [1, 2, 2]] == pytest.approx([0.5] * 3, abs=0.03)
    others = np.linalg.lstsq(columns[:, 1:10], columns[:, 0], rcond=None)[0]
    assert np.std(columns[:, 0] - columns[:, 1:10] @ others) == pytest.approx(design.own_share(), abs=0.01)


def test_the_plan_reaches_from_a_hundredth_to_all_rows() -> None:
    found = plan(Problem.expected(1301, 287, 4, nonzero=10))
    assert found.rows[-1].m == 1300
    assert found.rows[-1].interval_ratio == 1.0
    assert found.rows[-1].known_phi_r2 == 1.0
    power_by_m = [row.power for row in found.rows]
    assert power_by_m == sorted(power_by_m)
    blind = [row.blind for row in found.rows]
    assert blind == sorted(blind)
    normal = plan(Problem(1301, 287, 4, 10, 4, skewness=0.0, kurtosis=0.0))
    assert all(row.blind == 0 for row in normal.rows)
