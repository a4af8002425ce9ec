"""Real-data loaders, the simulated connectome, the lab's way through the sites' door."""

import hashlib
import os

import numpy as np
import pandas as pd
import pytest
from experiments.paper.designs.design import Cell
from experiments.paper.designs.real import _run, cross_validate
from experiments.paper.figure6 import figure6
from experiments.paper.methods import Effort
from experiments.paper.realdata import PUBLIC, Analysis, RealData, available, load
from experiments.paper.simulate import Scenario, simulate
from experiments.paper.sketching import Owners, federated_sketch

from intarsia.demo.connectome import RESPONSES, regions, simulate_connectome
from intarsia.errors import InputError
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.sketch.sketch import SketchTerms, sketch

DATA = os.environ.get("INTARSIA_DATA")


@pytest.fixture(scope="module")
def study():
    return load("connectome")


@pytest.mark.parametrize(("kind", "scale"), [("orthonormal", True), ("gaussian", False)])
def test_sums_of_arrays_give_the_sketch_of_a_table(kind, scale):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(3.0, 2.0, (40, 5)), rng.standard_normal((40, 2))
    made = federated_sketch(X, Y, 9, kind=kind, scale=scale, seed=4)
    names = [f"x{p}" for p in range(5)] + ["y0", "y1"]
    table = Table.open(np.hstack([X, Y]), responses=names[5:], rules=TableRules(names=names))
    key = SketchKey(hashlib.sha256(b"lab 4").digest())
    terms = SketchTerms(study="lab", run="0" * 16, m=9, kind=kind, site="site0")
    result = sketch(table, key, terms, columns="standardised" if scale else "plain")
    np.testing.assert_array_equal(made.X, result.message.X)
    np.testing.assert_array_equal(made.Y, result.message.Y)
    np.testing.assert_array_equal(made.x_scale, result.units.x_scale)


def test_the_connectome_has_the_papers_size(study):
    assert study.X.shape == (126, 2346)
    assert study.Y.shape == (126, 6)
    assert len(study.regions) == 69
    assert set(study.feature_sites) == {0}
    assert set(study.response_sites) == {1}
    assert tuple(study.responses) == RESPONSES


def test_regions_are_distinct_and_inside_a_head():
    found = regions()
    assert len({region.code for region in found}) == 69
    assert len({(region.x, region.y, region.z) for region in found}) == 69
    assert all(abs(r.x) < 72 and -105 < r.y < 76 and -60 < r.z < 80 for r in found)


def test_edges_name_their_regions(study):
    a, b = study.edges()[100]
    assert study.features[100] == f"{study.regions[a].code}--{study.regions[b].code}"
    assert len(set(study.edges())) == 2346


def test_connectivity_follows_the_networks(study):
    network = [region.network for region in study.regions]
    same = np.array([network[a] == network[b] for a, b in study.edges()])
    assert study.X[:, same].mean() > study.X[:, ~same].mean() + 0.1


def test_effects_have_rank_two_and_explain_what_they_say():
    sim = simulate_connectome(n=600, explained=0.6)
    assert np.linalg.matrix_rank(sim.C) == 2
    fitted = (sim.X - sim.X.mean(0)) @ sim.C
    share = fitted.var(axis=0) / sim.Y.var(axis=0)
    np.testing.assert_allclose(share, 0.6, atol=0.1)


def test_public_sets_need_a_folder(monkeypatch):
    monkeypatch.delenv("INTARSIA_DATA", raising=False)
    assert available() == ["connectome", "connectome-small"]
    with pytest.raises(InputError, match="INTARSIA_DATA"):
        load("wheat_cimmyt")
    with pytest.raises(InputError, match="not known"):
        load("nothing")


def write_set(folder, sites=True, drop=None):
    where = folder / "wheat_cimmyt"
    where.mkdir()
    rng = np.random.default_rng(0)
    ids = [f"i{k}" for k in range(12)]
    pd.DataFrame(rng.random((12, 2)), index=ids, columns=["a", "b"]).to_csv(where / "X.csv.gz", index_label="id")
    pd.DataFrame(rng.random((11, 1)), index=ids[1:], columns=["y"]).to_csv(where / "Y.csv.gz", index_label="id")
    table = pd.DataFrame({"column": ["a", "b", "y"], "role": ["X", "X", "Y"], "site": ["s1", "s2", "s3"]})
    table[table["column"] != drop].to_csv(where / "sites.csv", index=False)


def test_a_folder_is_read_and_joined_by_id(tmp_path):
    write_set(tmp_path)
    data = load("wheat_cimmyt", tmp_path)
    assert data.X.shape == (11, 2)
    assert data.site_names == ["s1", "s2", "s3"]
    assert list(data.feature_sites) == [0, 1]
    assert list(data.response_sites) == [2]
    with pytest.raises(InputError, match="not edges"):
        data.edges()


def test_a_column_without_a_site_is_refused(tmp_path):
    write_set(tmp_path, drop="b")
    with pytest.raises(InputError, match=r"sites\.csv"):
        load("wheat_cimmyt", tmp_path)


def test_cross_validation_is_out_of_sample():
    """Pure noise: a fit that saw its test rows would explain some of it."""
    rng = np.random.default_rng(1)
    zero = np.zeros(200, dtype=np.int64)
    data = RealData("noise", rng.standard_normal((60, 200)), rng.standard_normal((60, 2)), [], [], zero, zero[:2], ["all"])
    ridge = cross_validate(data, [("ridge", None)], Effort(), split=0, seed=0)[0]
    assert -0.5 < ridge["r2"] < 0.1
    assert ridge["mse_y"] == pytest.approx(1 - ridge["r2"])


def test_an_absent_set_leaves_no_rows(monkeypatch):
    monkeypatch.delenv("INTARSIA_DATA", raising=False)
    assert _run(Cell("wheat_cimmyt", None, (20,)), 0, [("ridge", None)], Effort(), {}) == []


@pytest.mark.parametrize("chosen", [5, 0])
def test_figure6_draws_chosen_edges_or_says_there_are_none(study, chosen):
    rng = np.random.default_rng(2)
    selected = np.zeros(2346, dtype=bool)
    selected[:chosen] = True
    page = figure6(study, Analysis(50, selected, rng.random(2346), rng.standard_normal(2346), rng.random(2346)))
    assert (f"{chosen} edges selected" in page) if chosen else ("no edge" in page)
    circle = page[page.index("Connectogram") : page.index("Brain from the left")]
    assert circle.count('class="edge ') == (chosen or 60)
    assert all(f"Brain {side}" in page for side in ("from the left", "from the front", "from above"))
    assert study.features[0] in circle or not chosen


def test_sketches_come_back_in_the_columns_own_order():
    data = simulate(Scenario(n=60, P=12, Q=4, s=3, K=3, layout="spread"), np.random.default_rng(3))
    plain = {"scale": False, "kind": "gaussian", "seed": 5}
    apart = federated_sketch(data.X, data.Y, 20, owners=Owners(data.feature_sites, data.response_sites), **plain)
    together = federated_sketch(data.X, data.Y, 20, **plain)
    np.testing.assert_allclose(apart.X, together.X, atol=1e-12)
    np.testing.assert_allclose(apart.Y, together.Y, atol=1e-12)
    # linear in the data: Y = XC + E sketches to Y_Φ = X_Φ C + ΦE
    other = federated_sketch(data.X, data.Y - data.X @ data.C, 20, **plain)
    np.testing.assert_allclose(apart.Y, apart.X @ data.C + other.Y, atol=1e-10)


def test_scaling_is_undone_by_back():
    """Without noise the sketched regression holds exactly, with columns of another scale and coefficients in their units."""
    data = simulate(Scenario(n=80, P=6, Q=2, s=2), np.random.default_rng(4))
    wide = data.X * [10.0, 1.0, 0.1, 3.0, 7.0, 50.0]
    got = federated_sketch(wide, data.X @ data.C, 30, seed=1)
    scaled = data.C / [[10.0], [1.0], [0.1], [3.0], [7.0], [50.0]] / got.back
    np.testing.assert_allclose(got.Y, got.X @ scaled, atol=1e-11)
    assert not np.allclose(got.Y, got.X @ data.C, atol=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="INTARSIA_DATA is not set: the public data sets are not here")
@pytest.mark.parametrize(("name", "ridge"), list(zip(PUBLIC, (0.227, 0.185, 0.211, 0.724))))
def test_ridge_on_public_data_repeats_the_known_figure(name, ridge):
    row = cross_validate(load(name), [("ridge", None)], Effort(), split=0, seed=0)[0]
    assert row["r2"] == pytest.approx(ridge, abs=0.005)
