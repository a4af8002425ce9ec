"""Prepared responses reach the sketch, over the cohort alone, and everything else of the table stays as it was."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from intarsia.errors import InputError
from intarsia.site.data.columns import profile
from intarsia.site.data.kinds import prepare
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.prepared_table import PreparedTable
from intarsia.site.rank_normal import ScoredTable
from intarsia.site.sketch.sketch import SketchTerms, sketch

N = 300


def cohort() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "id": range(N),
            "x": rng.normal(size=N),
            "asthma": rng.choice(["yes", "no"], N),
            "stage": rng.integers(1, 4, N),
            "months": rng.exponential(20, N),
            "died": rng.integers(0, 2, N),
            "visits": rng.poisson(3, N),
        }
    )


RESPONSES = ["asthma", "stage", "months", "visits"]
KINDS: dict[str, Any] = {
    "asthma": "binary",
    "months": {"kind": "time", "event": "died", "horizon": 24, "unit": "months"},
    "visits": {"kind": "count", "transform": "rank-normal"},
}


def table(df: pd.DataFrame) -> Table:
    return Table.open(df, id="id", responses=RESPONSES, ignore="died")


def test_the_sketch_is_that_of_the_prepared_columns_of_the_cohort() -> None:
    df = cohort()
    order = np.random.default_rng(1).permutation(N)[:200]
    prepared = PreparedTable.of(table(df), KINDS, order)
    assert prepared.responses == ["asthma", "stage", "months", "visits"]
    some = df.iloc[order].reset_index(drop=True)
    by_hand = some.drop(columns="died").assign(
        asthma=(some["asthma"] == "yes") * 1.0,
        months=prepare((some["months"], some["died"]), "time", {"horizon": 24}).values,
        visits=prepare(some["visits"], "count", {"transform": "rank-normal"}).values,
    )
    key, terms = SketchKey(bytes(32)), SketchTerms("s", "1", 30)
    got = sketch(prepared, key, terms, order=order).message
    expected = sketch(Table.open(by_hand, id="id", responses=RESPONSES), key, terms).message
    np.testing.assert_allclose(got.Y, expected.Y, atol=1e-9)
    np.testing.assert_allclose(got.X, expected.X, atol=1e-12)
    assert prepared.backs["asthma"].language.ratio == "odds ratio"
    assert prepared.backs["months"].language.unit == "months"
    assert "stage" not in prepared.backs
    assert {fact.name for fact in profile(prepared, order).facts} == {"x", *prepared.responses}


def test_features_as_normal_scores_and_prepared_responses_go_together() -> None:
    order = np.arange(N)
    scored = ScoredTable.of(table(cohort()), order)
    both = PreparedTable.of(scored, KINDS, order)
    got, features = np.vstack(list(both.raw_blocks())), np.vstack(list(scored.raw_blocks()))
    np.testing.assert_array_equal(got[:, 0], features[:, 0])
    assert not np.array_equal(got[:, 0], cohort()["x"])
    np.testing.assert_allclose(got[:, 3], prepare((cohort()["months"], cohort()["died"]), "time", {"horizon": 24}).values)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"stage": "binary"}, "Response 'stage': A binary response has two levels; this one has 3"),
        ({"x": "binary"}, "'x', which is no response of this site"),
        ({"months": {"kind": "time", "horizon": 5}}, "needs `event`"),
        ({"months": {"kind": "time", "horizon": 5, "event": "visits"}}, "Put it under ignore"),
        ({"months": {"kind": "time", "horizon": 5, "event": "nowhere"}}, "needs `event`"),
        ({"asthma": {"kind": "binary", "yes": "often"}}, "neither of the response's two levels"),
    ],
)
def test_bad_kinds_are_refused_by_the_response_s_name(kinds: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        PreparedTable.of(table(cohort()), kinds)


def test_three_levels_called_binary_are_refused() -> None:
    df = cohort().assign(asthma=np.resize(["a", "b", "c"], N))
    with pytest.raises(InputError, match="Response 'asthma' is called binary and has 3 levels"):
        PreparedTable.of(table(df), KINDS)


def test_texts_are_grades_in_the_order_that_was_said() -> None:
    """The sketch is that of the numbers; missing ones, also under a code of the table's own, stay missing."""
    df = cohort()
    words = df.assign(stage=df["stage"].map({1: "none", 2: "mild", 3: "severe"}))
    said = {"kind": "ordinal", "order": ["none", "mild", "severe", "fatal"], "scores": [0, 1, 3, 9]}
    order = np.random.default_rng(1).permutation(N)[:200]
    key, terms = SketchKey(bytes(32)), SketchTerms("s", "1", 30)
    found = PreparedTable.of(table(words), {**KINDS, "stage": said}, order)
    assert found.labels == ["x", *RESPONSES]
    place = found.responses.index("stage")
    got = sketch(found, key, terms, order=order)
    by_hand = df.assign(stage=df["stage"].map({1: 0.0, 2: 1.0, 3: 3.0}))
    expected = sketch(PreparedTable.of(table(by_hand), KINDS, order), key, terms, order=order)
    np.testing.assert_array_equal(got.message.Y, expected.message.Y)
    np.testing.assert_array_equal(got.message.X, expected.message.X)
    assert got.units.y_scale[place] == expected.units.y_scale[place]
    words.loc[:9, "stage"] = None
    words.loc[10:19, "stage"] = "unknown"
    gaps = Table.open(words, id="id", responses=RESPONSES, ignore="died", rules=TableRules(missing_codes=["unknown"]))
    prepared = PreparedTable.of(gaps, {"stage": said})
    values = np.concatenate([Z[:, prepared.labels.index("stage")] for Z in prepared.encoded()])
    assert np.isnan(values[:20]).all()
    np.testing.assert_array_equal(values[20:], by_hand["stage"][20:])
