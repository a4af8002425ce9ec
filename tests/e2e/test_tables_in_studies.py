"""A site's rules about its columns reach the sketch, the card and the prediction: as if the table had been cleaned beforehand."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federation import FIT, NAMES, RESPONSES, frames

import intarsia
from intarsia.carriers.in_process import study_for
from intarsia.errors import InputError
from intarsia.site.data.open import Queried
from intarsia.site.site_folder import SiteFolder

RULES = {
    "columns": {
        "mri_c": {"categorical": True, "reference": 2},
        "mri_3": {"missing_codes": [999]},
        "mri_pets": {"merge": {"other": ["bird", "ferret"]}},
        "mri_siblings": {"at_most": 3},
    },
    "missing_codes": [-99],
}


def tables(n: int, seed: int, coded: bool) -> dict[str, pd.DataFrame]:
    out = frames(n, seed)
    mri, rng = out["mri"], np.random.default_rng(seed + 100)
    group = rng.integers(1, 4, n)
    absent = rng.choice(n, n // 20, replace=False)
    mri["mri_c"] = group if coded else np.array(["1", "2", "3"])[group - 1]
    pets, siblings = rng.choice(["bird", "dog", "ferret", "none"], n, p=[0.1, 0.4, 0.1, 0.4]), rng.poisson(1.5, n)
    mri["mri_pets"] = pets if coded else np.where(np.isin(pets, ["bird", "ferret"]), "other", pets)
    mri["mri_siblings"] = siblings if coded else np.minimum(siblings, 3)
    mri.loc[absent, "mri_3"] = 999 if coded else np.nan
    mri.loc[absent[:2], "mri_5"] = -99 if coded else np.nan
    return out


def fitted(coded: bool):  # type: ignore[no-untyped-def]
    data = tables(400, 0, coded)
    parties = []
    for name in NAMES:
        own = {} if name != "mri" else {"options": RULES} if coded else {"options": {"columns": {"mri_c": {"reference": "2"}}}}
        missing = "mean" if name == "mri" else "error"
        rules = {"one_column": "allow"}
        parties.append(
            intarsia.Site(name, data[name], id="id", responses=RESPONSES[name], missing=missing, predict=rules, **own)
        )  # fmt: skip
    study = study_for(parties, m=60, run="0123456789abcdef", fit=FIT)
    key = intarsia.SketchKey(bytes(range(32)))
    for party in parties:
        party.set_key(study, key)
    return intarsia.fit(parties, study), study


@pytest.fixture(scope="module")
def both():  # type: ignore[no-untyped-def]
    return fitted(coded=True), fitted(coded=False)


def test_codes_and_categories_give_the_draws_of_the_cleaned_table(both) -> None:  # type: ignore[no-untyped-def]
    (coded, _), (clean, _) = both
    assert [f for f in coded.posterior.C.coords["feature"].values if "mri_c" in f] == ["mri_c=1", "mri_c=3"]
    np.testing.assert_array_equal(coded.posterior.C.values, clean.posterior.C.values)


def test_the_card_counts_what_was_filled(both) -> None:  # type: ignore[no-untyped-def]
    (coded, study), _ = both
    by_name = {site.name: site for site in coded.sites}
    card = json.loads(by_name["mri"].run_store(study).get("card.json"))["card"]
    assert card["imputed"] == {"mri_3": 20, "mri_5": 2}
    assert "20 missing values filled" in by_name["mri"].run_store(study).get("card.html").decode()
    assert json.loads(by_name["lab"].run_store(study).get("card.json"))["card"]["imputed"] == {}


def test_a_code_means_missing_in_a_prediction_too(both) -> None:  # type: ignore[no-untyped-def]
    results = []
    for coded, (result, _) in zip((True, False), both):
        new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in tables(60, 9, coded).items()}
        results.append(result.predict(new, "codes")["clinic"])
    np.testing.assert_allclose(results[0].mean, results[1].mean, rtol=1e-12)


def test_new_subjects_come_from_a_database(both, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (result, _), _ = both
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in tables(60, 11, True).items()}
    wanted = result.predict(new, "frames")["clinic"]
    database = tmp_path / "new.sqlite"
    with sqlite3.connect(database) as made:
        new["mri"].to_sql("scans", made, index=False)
    found = result.predict(new | {"mri": Queried(str(database), "scans")}, "database")["clinic"]
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-12)
    with pytest.raises(InputError, match="needs a query"):
        result.predict(new | {"mri": str(database)}, "no-query")
    by_name = {site.name: site for site in result.sites}
    said = by_name["mri"].rules
    by_name["mri"].rules = replace(said, reading={"query": "SELECT * FROM scans"})  # as site.toml has it
    try:
        again = result.predict(new | {"mri": str(database)}, "own-query")["clinic"]
    finally:
        by_name["mri"].rules = said
    np.testing.assert_allclose(again.mean, wanted.mean, rtol=1e-12)


def test_a_level_that_the_study_did_not_have_is_refused_with_the_remedy(both) -> None:  # type: ignore[no-untyped-def]
    (result, _), _ = both
    new = {name: frame.drop(columns=RESPONSES[name]) for name, frame in tables(60, 12, True).items()}
    new["mri"].loc[0, "mri_pets"] = "snake"
    with pytest.raises(InputError, match=r"'mri_pets' has 1 cell with a level that is not among its 3 levels.*merge") as refused:
        result.predict(new, "odd")
    assert "snake" not in str(refused.value)


def test_covariates_that_repeat_each_other_never_leave_a_site() -> None:
    data = frames(400)
    data["mri"]["mri_again"] = 3 * data["mri"]["mri_0"] - 1
    parties = [
        intarsia.Site(name, data[name], id="id", responses=RESPONSES[name],
                      covariates=["mri_0", "mri_again"] if name == "mri" else ())
        for name in NAMES
    ]  # fmt: skip
    with pytest.raises(InputError, match="Among the covariates column mri_again follows exactly from the others"):
        intarsia.fit(parties, study_for(parties, m=60, fit=FIT))


def test_a_compressed_table_of_new_subjects_is_found(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('name = "lab"\n')
    place = tmp_path / "predict" / "liver-1a2b3c4d"
    place.mkdir(parents=True)
    study: Any = SimpleNamespace(folder_name="liver-1a2b3c4d")
    folder = SiteFolder.load(tmp_path)
    (place / "june-2.csv").touch()
    with pytest.raises(InputError, match="found 0"):
        folder.new_subjects(study, "june")
    (place / "june.csv.gz").touch()
    assert folder.new_subjects(study, "june") == str(place / "june.csv.gz")
    (place / "june.parquet").touch()
    with pytest.raises(InputError, match="found 2"):
        folder.new_subjects(study, "june")
