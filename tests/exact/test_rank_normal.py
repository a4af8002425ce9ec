"""Normal scores: right at every value, the same for new subjects, and the end of the blind attack."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm, rankdata

from intarsia.errors import StudyError
from intarsia.privacy.blind import Shape, danger
from intarsia.site.align import tokenise
from intarsia.site.data.columns import profile
from intarsia.site.data.table import Table
from intarsia.site.joint_prediction import _read
from intarsia.site.key import SketchKey
from intarsia.site.rank_normal import ScoredTable, Scores, scores_of
from intarsia.site.site import Site
from intarsia.site.sketch.sketch import SketchTerms, sketch
from intarsia.site.units import Units
from intarsia.wire.messages import Sketch
from intarsia.wire.study import Study


def table(n=400, seed=0):
    rng = np.random.default_rng(seed)
    data = {f"c{j}": np.exp(rng.standard_normal(n)) for j in range(5)}
    data["ties"] = np.round(rng.exponential(8, n))
    data["dose"] = rng.integers(0, 3, n).astype(float)
    data["y"] = np.exp(rng.standard_normal(n))
    return Table.open(data, responses=["y"]), data


def test_scores_are_the_quantiles_of_ranks():
    opened, data = table()
    X = np.concatenate([parts[0] for parts in ScoredTable.of(opened).blocks(rows=37)])
    for name in ("c0", "ties"):
        expected = norm.ppf((rankdata(data[name]) - 0.375) / (400 + 0.25))
        np.testing.assert_allclose(X[:, opened.features.index(name)], expected, atol=1e-12)
    np.testing.assert_array_equal(X[:, opened.features.index("dose")], data["dose"])


def test_responses_keep_their_values_and_moments_are_those_of_the_scores():
    opened, data = table()
    scored = ScoredTable.of(opened)
    Y = np.concatenate([parts[1] for parts in scored.blocks()])
    np.testing.assert_array_equal(Y[:, 0], data["y"])
    assert abs(scored.moments().mean[0]) < 1e-3
    assert opened.moments().mean[0] > 1


def test_only_the_cohort_is_ranked():
    opened, data = table()
    order = np.random.default_rng(1).permutation(400)[:100]
    X = next(iter(ScoredTable.of(opened, order).blocks(order=order)))[0]
    np.testing.assert_allclose(X[:, 0], norm.ppf((rankdata(data["c0"][order]) - 0.375) / 100.25), atol=1e-12)


def test_new_subjects_are_scored_by_the_same_knots():
    opened, data = table()
    scores = Scores.from_bytes(scores_of(opened).to_bytes())
    assert "dose" not in scores.knots
    old = scores.apply(data["c1"][:, None], ["c1"])
    np.testing.assert_allclose(old[:, 0], norm.ppf((rankdata(data["c1"]) - 0.375) / 400.25), atol=1e-12)
    beyond = scores.apply(np.array([[1e9], [-1e9], [np.nan]]), ["c1"])[:, 0]
    assert beyond[0] == old.max()
    assert beyond[1] == old.min()
    assert np.isnan(beyond[2])


def test_many_values_need_few_knots():
    rng = np.random.default_rng(2)
    x = np.exp(rng.standard_normal(20_000))
    knots = scores_of(Table.open({"x": x})).knots["x"]
    assert len(knots[0]) <= 1001
    found = np.interp(x, *knots)
    assert np.abs(found - norm.ppf((rankdata(x) - 0.375) / 20_000.25)).max() < 0.02
    assert found.std() == pytest.approx(1, abs=0.01)


def test_scores_have_no_shape_left():
    rng = np.random.default_rng(3)
    n, m = 200, 50
    data = {f"c{j}": np.exp(rng.standard_normal(n)) for j in range(300)}
    raw = Table.open(data)

    def risk(opened):
        facts = profile(opened).facts
        return danger(Shape.of([f.skewness for f in facts], [f.kurtosis for f in facts], n).scaled(20_000), n, m)

    assert risk(raw) > 20
    assert risk(ScoredTable.of(raw)) < 0.3


def test_a_site_sketches_scores_and_scores_new_subjects():
    """From study.toml to the sketch, and to the rows of a prediction; nothing but the named site's features changes."""
    _, data = table()
    ids = np.array([f"p{i}" for i in range(400)])
    roster = [
        {"name": "clinic", "features": ["*"], "responses": ["y"], "transform": "rank-normal"},
        {"name": "lab", "features": ["z"]},
    ]
    study = Study.from_dict({"id": "scores", "run": "ab" * 16, "sketch": {"m": 30}, "site": roster})
    key = SketchKey(bytes(range(32)))
    site = Site("clinic", data | {"id": ids}, id="id", responses=["y"], key=key)
    sent = Sketch.load(site.sketch(study))
    opened = Table.open(data | {"id": ids}, id="id", responses=["y"])
    order = tokenise(ids, key, study).rows
    terms = SketchTerms.of(study, "clinic", sent.order_mac)
    by_hand = sketch(ScoredTable.of(opened, order), key, terms, order=order).message
    np.testing.assert_allclose(sent.X, by_hand.X, atol=1e-9)
    plain = sketch(opened, key, terms, order=order).message
    assert not np.allclose(sent.X[:, 0], plain.X[:, 0], atol=0.05)
    np.testing.assert_allclose(sent.Y, plain.Y, atol=1e-9)
    units = Units.from_bytes(site.run_store(study).get("units.secret"))
    new = {name: column[:25] for name, column in data.items() if name != "y"} | {"id": ids[:25]}
    read = _read(site, study, SimpleNamespace(units=units), "next", new, None)
    expected = scores_of(opened).apply(np.column_stack([new[name] for name in units.features]), units.features)
    np.testing.assert_allclose(np.sort(read.X, axis=0), np.sort(expected, axis=0), atol=1e-12)


def test_ranks_and_differential_privacy_exclude_each_other():
    private = {"epsilon": 1.0, "delta": 1e-6, "row_bound": {"clinic": 1.0}}
    site = {"name": "clinic", "features": ["x"], "responses": ["y"], "transform": "rank-normal"}
    content = {"id": "s", "run": "ab" * 16, "sketch": {"m": 30, "kind": "gaussian"}, "privacy": private, "site": [site]}
    with pytest.raises(StudyError, match="does not cover transform"):
        Study.from_dict(content)
