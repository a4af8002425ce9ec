"""Declared categories, missing codes and imputation: by name, counted, and never for an outcome that nobody named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from intarsia.errors import InputError
from intarsia.site.data.missing import Filler
from intarsia.site.data.table import Table
from intarsia.site.data.table_rules import TableRules
from intarsia.site.key import SketchKey
from intarsia.site.sketch.sketch import SketchTerms, sketch
from intarsia.site.table_settings import for_new_subjects

N = 400


def cohort() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    age = rng.normal(60, 9, N)
    bmi = 25 + 0.2 * (age - 60) + rng.normal(0, 2, N)
    return pd.DataFrame(
        {"id": range(N), "age": age, "bmi": bmi, "centre": rng.integers(1, 7, N), "asthma": rng.integers(0, 2, N) * 1.0}
    )


def values(table: Table) -> np.ndarray:
    return np.vstack([np.hstack(parts) for parts in table.blocks(rows=37)])


def test_a_coded_centre_is_categorical_when_declared() -> None:
    df = cohort()
    assert Table.open(df, id="id", features="centre").features == ["centre"]
    table = Table.open(df, id="id", features="centre", rules=TableRules(columns={"centre": {"categorical": True}}))
    assert table.features == [f"centre={k}" for k in range(1, 7)]
    np.testing.assert_array_equal(values(table), df["centre"].to_numpy()[:, None] == np.arange(1, 7))
    rules = TableRules(columns={"centre": {"reference": 3}})  # a reference means categorical
    chosen = Table.open(df, id="id", features="centre", rules=rules)
    assert chosen.features == ["centre=1", "centre=2", "centre=4", "centre=5", "centre=6"]
    as_text = TableRules(columns={"centre": {"reference": "3.0"}})
    assert Table.open(df.assign(centre=df["centre"] * 1.0), id="id", features="centre", rules=as_text).features == chosen.features
    by_pattern = TableRules(columns={"cen*": {"categorical": True}})
    ten = Table.open(df.assign(centre=df["centre"] * 5), id="id", covariates="centre", rules=by_pattern)
    assert ten.covariates == [f"centre={5 * k}" for k in range(2, 7)]  # in the order of the numbers; 5 is the reference


def test_missing_codes_are_missing_and_counted() -> None:
    df = cohort()
    df.loc[[1, 5], "bmi"], df.loc[7, "age"] = 999, -99
    df.loc[[2, 3, 4], "centre"] = 99
    rules = {
        "bmi": {"missing_codes": [999]},
        "age": {"missing_codes": -99},
        "centre": {"categorical": True, "missing_codes": [99]},
    }
    table = Table.open(df, id="id", features=["age", "bmi", "centre"], rules=TableRules(columns=rules))
    assert table.missing_counts == {"age": 1, "bmi": 2, "centre": 3}
    assert table.imputed == {}
    assert len(table.features) == 8  # 99 is no level
    with pytest.raises(InputError, match=r"Missing values in 8 columns: age \(1\), bmi \(2\)"):
        values(table)
    filled = Table.open(df, id="id", features=["age", "bmi", "centre"], rules=TableRules(columns=rules, missing="mean"))
    assert filled.imputed == {"age": 1, "bmi": 2, "centre": 3}
    np.testing.assert_allclose(values(filled)[[1, 5], 1], df["bmi"][df["bmi"] != 999].mean())
    assert (df["bmi"] == 999).sum() == 2  # the user's own table is as it was
    array = df[["age", "bmi"]].to_numpy()
    kept = array.copy()
    values(Table.open(array, rules=TableRules(names=["age", "bmi"], missing_codes=[999, -99], missing="mean")))
    np.testing.assert_array_equal(array, kept)


def test_an_outcome_is_never_filled_unless_its_name_says_so() -> None:
    df = cohort()
    df.loc[3, "asthma"] = np.nan
    df.loc[4, "bmi"] = np.nan
    key = SketchKey(bytes(32))
    terms = SketchTerms("s", "1", 20)
    for columns in ({}, {"*": {"missing": "mean"}}):  # a pattern is no name
        table = Table.open(df, id="id", responses="asthma", rules=TableRules(missing="mean", columns=columns))
        assert table.imputed == {"bmi": 1}
        with pytest.raises(InputError, match=r"Missing values in column asthma \(1\) of 400 rows.*under its own name"):
            values(table)
        with pytest.raises(InputError, match=r"Missing values in column asthma \(1\)"):
            sketch(table, key, terms)
    named = Table.open(df, id="id", responses="asthma", rules=TableRules(missing="mean", columns={"asthma": {"missing": "mean"}}))
    assert named.imputed == {"bmi": 1, "asthma": 1}
    assert np.isfinite(sketch(named, key, terms).message.Y).all()
    strict = Table.open(df, id="id", responses="asthma", rules=TableRules(columns={"asthma": {"missing": "mean"}}))
    with pytest.raises(InputError, match=r"Missing values in column bmi"):
        values(strict)


def test_regression_puts_the_conditional_mean_of_the_normal_law() -> None:
    """Complete pairs known: the filled value is the textbook's conditional mean, shrunk by P/(n + P)."""
    df = cohort()[["age", "bmi"]].assign(h=np.random.default_rng(1).normal(size=N))
    truth = df.copy()
    df.loc[:9, "bmi"] = np.nan
    df.loc[5:14, "age"] = np.nan
    table = Table.open(df, rules=TableRules(missing="regression"))
    got = values(table)
    assert table.imputed == {"age": 10, "bmi": 10}
    pairs = df.to_numpy()
    mean, weight = np.nanmean(pairs, axis=0), 3 / (N + 3)
    S = np.empty((3, 3))
    for j in range(3):
        for k in range(3):
            both = np.isfinite(pairs[:, j] + pairs[:, k])
            S[j, k] = np.cov(pairs[both, j], pairs[both, k], ddof=0)[0, 1]
    sd = np.sqrt(np.diag(S))
    R = S / np.outer(sd, sd) * (1 - weight) + weight * np.eye(3)
    rows = {0: [1], 7: [0, 1], 12: [0]}
    for row, u in rows.items():
        o = [j for j in range(3) if j not in u]
        t = (pairs[row, o] - mean[o]) / sd[o]
        expected = mean[u] + sd[u] * (R[np.ix_(u, o)] @ np.linalg.solve(R[np.ix_(o, o)], t))
        np.testing.assert_allclose(got[row, u], expected, rtol=1e-9)
    error, plain = got[:5, 1] - truth["bmi"][:5], mean[1] - truth["bmi"][:5]
    assert np.square(error).sum() < np.square(plain).sum()


def test_regression_fills_no_feature_from_an_outcome_and_reaches_the_sketch() -> None:
    df = cohort()
    df.loc[:19, "bmi"] = np.nan
    wanted: dict[str, Any] = {"id": "id", "features": ["age", "bmi"], "rules": TableRules(missing="regression")}
    with_outcome = values(Table.open(df, responses="asthma", **wanted))
    other = values(Table.open(df.assign(asthma=df["bmi"].fillna(25.0)), responses="asthma", **wanted))
    np.testing.assert_array_equal(with_outcome[:, :2], other[:, :2])
    table = Table.open(df, id="id", features=["age", "bmi"], rules=TableRules(missing="regression"))
    full = pd.DataFrame(values(table), columns=["age", "bmi"])
    key, terms = SketchKey(bytes(32)), SketchTerms("s", "1", 20)
    np.testing.assert_allclose(sketch(table, key, terms).message.X, sketch(Table.open(full), key, terms).message.X, atol=1e-9)


def test_bad_rules_are_refused() -> None:
    df = cohort()
    for columns, words in (
        ({"centrum": {"categorical": True}}, "rules for a column 'centrum' that is not in the table; did you mean 'centre'"),
        ({"centre": {"categoric": True}}, "nothing is known by the name 'categoric'"),
        ({"centre": {"missing": "zero"}}, "missing is one of error, mean, regression"),
        ({"centre": {"reference": 7}}, "no level like the reference"),
        ({"centre": {"missing_codes": [None]}}, "must be numbers or texts"),
    ):
        with pytest.raises(InputError, match=words):
            Table.open(df, id="id", rules=TableRules(columns=columns))
    with pytest.raises(InputError, match="works with up to 2000"):
        Filler.fit([], np.zeros(2001), np.ones(2001, bool), np.ones(2001, bool))


def test_numbers_beyond_a_limit_are_taken_as_the_limit() -> None:
    df = cohort().assign(siblings=np.arange(N) % 9 * 1.0)
    df.loc[4, "siblings"] = 99
    df.loc[5, "siblings"] = np.nan
    rules = TableRules(missing="mean", columns={"siblings": {"at_least": 1, "at_most": 3, "missing_codes": [99]}})
    for source in (df, df.to_dict("list"), df[["siblings"]].to_numpy()):
        named = {"names": ["siblings"]} if isinstance(source, np.ndarray) else {}
        table = Table.open(source, features="siblings", rules=replace(rules, **named))
        got, expected = values(table)[:, 0], df["siblings"].replace(99, np.nan).clip(1, 3)
        np.testing.assert_allclose(
            got, expected.fillna(expected.mean()), rtol=1e-14
        )  # a code for "missing" is none of the large numbers
        assert table.imputed == {"siblings": 2}
    assert df["siblings"].max() == 99  # the caller's own array is not written to


def test_levels_are_merged_and_new_subjects_know_it() -> None:
    df = cohort().assign(pets=np.resize(["none", "dog", "bird", "ferret", "dog", "none"], N))
    rule = {"merge": {"other": ["bird", "ferret"]}, "reference": "none"}
    table = Table.open(df, id="id", features="pets", rules=TableRules(columns={"pets": rule}))
    assert table.features == ["pets=dog", "pets=other"]
    np.testing.assert_array_equal(values(table)[:, 1], df["pets"].isin(["bird", "ferret"]))
    codes = Table.open(df, id="id", covariates="centre", rules=TableRules(columns={"centre": {"merge": {"rest": [4, 5.0, 6]}}}))
    assert codes.covariates == ["centre=2", "centre=3", "centre=rest"]
    kept = {"levels": {"pets": ["dog", "none", "other"]}, "reference": {"pets": "none"}}
    rules = for_new_subjects(TableRules(columns={"pets": rule}), ["pets"], kept)
    new = Table.open({"pets": ["ferret", "dog"]}, features="pets", rules=rules)  # of the merged levels one is not there
    np.testing.assert_array_equal(values(new), [[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"pets": {"at_most": 3}}, "holds texts: at_least and at_most are for numbers"),
        ({"centre": {"categorical": True, "at_most": 3}}, "this column is categorical. Use merge"),
        ({"age": {"at_least": 9, "at_most": 3}}, "at_least must be below at_most"),
        ({"age": {"at_most": "3"}}, "at_most is a number"),
        ({"asthma": {"at_most": 1}}, "is a response: at_least and at_most are for features and covariates"),
        ({"pets": {"merge": ["bird", "ferret"]}}, "merge names the levels that become one"),
        ({"pets": {"merge": {"other": ["brid"]}}}, "merge names 1 level that the column does not have"),
        ({"pets": {"merge": {"a": ["bird"], "b": ["bird"]}}}, "merge has a level twice"),
    ],
)
def test_limits_and_merges_that_cannot_be_meant_are_refused(columns: dict[str, Any], words: str) -> None:
    df = cohort().assign(pets=np.resize(["none", "dog", "bird"], N))
    with pytest.raises(InputError, match=words):
        Table.open(df, id="id", responses="asthma", rules=TableRules(columns=columns))


def answers() -> pd.DataFrame:
    rng = np.random.default_rng(6)
    words = np.array(["never", "sometimes", "often", "refused"], dtype=object)
    return pd.DataFrame(
        {"id": range(N), "pain": words[rng.integers(0, 4, N)], "sleep": rng.integers(1, 4, N), "y": rng.normal(size=N)}
    )


RULE: dict[str, Any] = {"order": ["never", "sometimes", "often"], "missing_codes": ["refused"]}


@pytest.mark.parametrize("scores", [None, [0, 1, 4], [0, 1, 1]])
def test_categories_in_order_are_read_as_scores(scores: list[int] | None, tmp_path: Any) -> None:
    df = answers()
    place = dict(zip(RULE["order"], scores or [1, 2, 3]))
    by_hand = df.assign(pain=df["pain"].map(place), sleep=df["sleep"].map({2: 1.0, 3: 2.0, 1: 3.0}))
    rules = {"pain": RULE if scores is None else RULE | {"scores": scores}, "sleep": {"order": [2, 3, 1]}}
    df.to_csv(tmp_path / "t.csv", index=False)
    for source in (df, tmp_path / "t.csv"):
        for without in ((), {"3", "77"}):
            some: dict[str, Any] = {"id": "id", "features": ["pain", "sleep"], "responses": "y"}
            table = Table.open(source, **some, rules=TableRules(columns=rules, missing="mean", without=without))
            stay = by_hand[~by_hand["id"].isin([int(one) for one in without])]
            assert table.features == ["pain", "sleep"]
            assert table.imputed == {"pain": int(stay["pain"].isna().sum())}
            plain = Table.open(stay, **some, rules=TableRules(missing="mean"))
            np.testing.assert_allclose(values(table), values(plain), atol=1e-12)


def test_a_category_that_the_order_does_not_name_is_refused_by_count() -> None:
    rule = {"pain": {"order": ["never", "sometimes", "often"]}}
    table = Table.open(answers(), id="id", responses="y", rules=TableRules(columns=rule))
    count = int((answers()["pain"] == "refused").sum())
    with pytest.raises(InputError, match=rf"Column 'pain' has {count} cells that its order of 3 categories") as caught:
        values(table)
    assert "refused" not in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"order": ["never"]}, "two or more categories"),
        ({"order": ["a", "b", "a"]}, "each once"),
        ({"order": ["a", "b"], "scores": [1]}, "2 categories in order need as many scores"),
        ({"order": ["a", "b", "c"], "scores": [1, 3, 2]}, "none below the one before"),
        ({"order": ["a", "b"], "scores": [1, 1]}, "none below the one before"),
        ({"order": ["a", "b"], "scores": ["x", "y"]}, "scores are numbers"),
        ({"scores": [1, 2]}, "0 categories in order"),
        ({"order": ["a", "b"], "reference": "a"}, "without indicators or limits"),
        ({"order": ["a", "b"], "at_most": 1}, "without indicators or limits"),
    ],
)
def test_an_order_that_cannot_be_is_refused(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Table.open(answers(), id="id", rules=TableRules(columns={"pain": rule}))


def test_an_outcome_has_its_order_with_its_kind() -> None:
    with pytest.raises(InputError, match=r"'pain' is a response: its order is said with its kind"):
        Table.open(answers(), id="id", responses="pain", rules=TableRules(columns={"pain": RULE}))
