"""Columns that a few people make up: no level is rare, as all values differ a little, and the sketch is their columns of Φ."""

from typing import Any

import numpy as np
import pytest

from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.preflight import Preflight, preflight
from intarsia.site.self_attack import real_phi
from intarsia.site.sketch.sketch import SketchTerms, sketch
from intarsia.wire.study import Study

N, M = 1000, 100


def study() -> Study:
    roster = [{"name": "lab", "features": ["*"]}, {"name": "clinic", "responses": ["y"]}]
    return Study.from_dict({"id": "few", "run": "ab" * 16, "sketch": {"m": M}, "site": roster})


def triangles(count: int, noise: float) -> dict[str, Any]:
    """Markers that are high in two people each, in threes: {1, 2}, {2, 3} and {1, 3}; everybody else is near zero."""
    rng = np.random.default_rng(4)
    data: dict[str, Any] = {"id": [f"s{i}" for i in range(N)]}
    for k in range(count):
        people = rng.choice(N, 3, replace=False)
        for j, pair in enumerate((people[[0, 1]], people[[1, 2]], people[[0, 2]])):
            column = noise * rng.standard_normal(N)
            column[pair] += 1 + 0.01 * rng.standard_normal(2)
            data[f"marker{k}_{j}"] = column
    return data


def judged(data: dict[str, Any], policy: dict[str, Any] | None = None) -> Preflight:
    from intarsia.site.preflight import SiteRules

    return preflight(Table.open(data, id="id"), SketchKey(bytes(32)), study(), site="lab", own=SiteRules(policy))


def found(data: dict[str, Any]) -> int:
    """The server alone: of three columns that correlate by a half in pairs, two less the third is one person."""
    terms, key = SketchTerms.of(study(), "lab"), SketchKey(bytes(32))
    X = np.asarray(sketch(Table.open(data, id="id"), key, terms).message.X)
    unit = X / np.linalg.norm(X, axis=0)
    alike = np.abs(unit.T @ unit - 0.5) < 0.25  # ± 1/√m
    guesses = []
    for a in range(len(alike)):
        for b in np.flatnonzero(alike[a]):
            guesses += [unit[:, a] + unit[:, b] - unit[:, c] for c in np.flatnonzero(alike[a] & alike[b])]
    Phi = real_phi(terms.design(key, N))
    Phi = Phi / np.linalg.norm(Phi, axis=0)
    best = np.abs(np.array(guesses) @ Phi / np.linalg.norm(guesses, axis=1)[:, None])
    return len(np.unique(best.argmax(axis=1)[best.max(axis=1) > 0.95]))


def test_columns_that_few_people_make_up_are_refused_whatever_the_others_small_differences_are() -> None:
    data = triangles(2, noise=0.01)
    assert found(data) == 6  # every person of both triangles, without the key
    refused = {f.rule: f for f in judged(data).verdict.refused}
    assert set(refused) == {"dominant"}
    assert refused["dominant"].number == 2
    assert len(refused["dominant"].columns) == 6


def test_a_few_high_values_among_many_are_no_reason_to_refuse() -> None:
    """Half of the variance is the other subjects': the attack finds nobody, and a skewed marker passes."""
    data = triangles(10, noise=0.045)
    assert found(data) <= 3
    assert not judged(data).verdict.refused


@pytest.mark.parametrize(("people", "refused"), [(9, True), (10, False), (11, False)])
def test_the_limit_is_that_of_a_rare_level(people: int, refused: bool) -> None:
    rng = np.random.default_rng(5)
    column = 1e-3 * rng.standard_normal(N)
    column[:people] += 1
    check = judged({"id": range(N), "x": column, "y": rng.standard_normal(N)})
    assert [f.columns for f in check.verdict.refused if f.rule == "dominant"] == ([("x",)] if refused else [])
    assert check.facts.own_columns[1].carried_by is None
