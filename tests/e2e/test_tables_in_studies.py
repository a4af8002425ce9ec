"""A site's rules about its columns reach the sketch, the card and the prediction: as if the table had been cleaned beforehand."""

import json

import numpy as np
import pandas as pd
import pytest
from tests.federation import FIT, NAMES, RESPONSES, frames

import intarsia
from intarsia.carriers.in_process import study_for
from intarsia.errors import InputError

RULES = {
    "columns": {"mri_c": {"categorical": True, "reference": 2}, "mri_3": {"missing_codes": [999]}},
    "missing_codes": [-99],
}


def tables(n: int, seed: int, coded: bool) -> dict[str, pd.DataFrame]:
    out = frames(n, seed)
    mri, rng = out["mri"], np.random.default_rng(seed + 100)
    group = rng.integers(1, 4, n)
    absent = rng.choice(n, n // 20, replace=False)
    mri["mri_c"] = group if coded else np.array(["1", "2", "3"])[group - 1]
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
