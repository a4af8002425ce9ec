"""`SparseRegression` as scikit-learn, pandas and a reader of its results know it."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import intarsia
from intarsia import SparseRegression
from intarsia.errors import InputError
from intarsia.server.posterior.posterior import Posterior
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.sketch.sketch import SketchTerms, sketch

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SHORT: dict[str, Any] = {"draws": 40, "warmup": 40, "chains": 2, "n_jobs": 1, "random_state": 0}
Data = tuple[pd.DataFrame, pd.DataFrame, np.ndarray]


@parametrize_with_checks([SparseRegression(**SHORT)])
def test_scikit_learn_accepts_it(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def data() -> Data:
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.standard_normal((120, 12)) * np.repeat([1, 10, 0.1, 1], 3) + 5, columns=[f"gene {i}" for i in range(12)])
    C = np.zeros((12, 2))
    C[0], C[3], C[6] = [2, -1], [0.3, 0.2], [15, 0]
    Y = pd.DataFrame(X.to_numpy() @ C + [100, -3] + 0.3 * rng.standard_normal((120, 2)), columns=["bmi", "crp"])
    return X, Y, C


@pytest.fixture(scope="module")
def fitted(data: Data) -> SparseRegression:
    X, Y, _C = data
    return SparseRegression(n_jobs=1, random_state=3).fit(X, Y)  # type: ignore[return-value]


def test_results_come_back_in_the_units_of_the_data(data: Data, fitted: SparseRegression) -> None:
    X, Y, C = data
    assert fitted.diagnosis_.converged
    lower, upper = fitted.interval(0.999)
    assert ((lower <= C.T) & (upper >= C.T)).all()
    assert fitted.coef_.shape == fitted.lfsr_.shape == fitted.selected_by_response_.shape == (2, 12)
    np.testing.assert_array_equal(fitted.selected_, (C != 0).any(axis=1))
    np.testing.assert_array_equal(fitted.selected_by_response_, C.T != 0)
    assert (fitted.pip_[fitted.selected_] > 0.95).all()
    assert (fitted.pip_[~fitted.selected_] < 0.5).all()
    assert fitted.lfsr_[C.T != 0].max() < 0.01 < fitted.lfsr_[C.T == 0].min()
    assert [group.tolist() for group in fitted.groups_] == [[p] for p in fitted.selection_.order[:3]]
    assert fitted.sets_ == []
    centre = Y.to_numpy().mean(axis=0) - fitted.coef_ @ X.to_numpy().mean(axis=0)
    np.testing.assert_allclose(fitted.intercept_, centre, atol=0.2)
    assert fitted.score(X, Y) > 0.95
    assert isinstance(fitted.posterior_, Posterior)
    assert fitted.posterior_.features == list(X.columns)
    table = fitted.table()
    assert set(table.loc[table["selected"], "feature"]) == {"gene 0", "gene 3", "gene 6"}
    assert repr(fitted).startswith("Converged")


def test_units_are_only_units(data: Data) -> None:
    X, Y, _C = data
    one, other = SparseRegression(**SHORT).fit(X, Y), SparseRegression(**SHORT).fit(X * 1e3 - 7, Y * 1e-2 + 4)
    np.testing.assert_allclose(other.coef_, one.coef_ * 1e-5, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(other.pip_, one.pip_, atol=1e-3)  # type: ignore[attr-defined]


def test_predictions_have_the_spread_they_claim(data: Data, fitted: SparseRegression) -> None:
    X, Y, _C = data
    mean, sd = fitted.predict(X, return_std=True)
    assert 0.8 < ((Y.to_numpy() - mean) / sd).std() < 1.15
    draws = fitted.predict_draws(X.iloc[:3], random_state=0)
    np.testing.assert_allclose(draws.mean(("chain", "draw")), mean[:3], atol=0.2)


def test_one_dimensional_y_and_constant_columns(data: Data) -> None:
    X, Y, _C = data
    one = SparseRegression(**SHORT).fit(X, Y["bmi"])
    assert one.coef_.shape == (12,)
    assert isinstance(one.intercept_, float)
    wide, both = np.column_stack([X.to_numpy(), np.full(120, 0.1)]), np.column_stack([Y.to_numpy(), np.full(120, 7.7)])
    model = SparseRegression(**SHORT).fit(wide, both)
    assert (model.coef_[:, 12] == 0).all()
    assert (model.coef_[2] == 0).all()
    assert not model.selected_[12]
    np.testing.assert_allclose(model.predict(wide)[:, 2], 7.7)
    nothing = SparseRegression(**SHORT).fit(np.ones((9, 2)), np.ones(9))
    np.testing.assert_allclose(nothing.predict(np.zeros((2, 2))), 1.0)
    assert nothing.selected_.tolist() == [False, False]


def test_sketched_fits_follow_their_seed(data: Data) -> None:
    X, Y, _C = data
    first, again, other = (SparseRegression(**{**SHORT, "random_state": seed}, sketch=60).fit(X, Y) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.coef_, again.coef_)
    assert not np.array_equal(first.noise_covariance_, other.noise_covariance_)  # type: ignore[attr-defined]
    with pytest.raises(InputError):
        SparseRegression(**SHORT, sketch=500).fit(X, Y)


def test_sketches_of_several_sites(data: Data) -> None:
    X, Y, C = data
    key = SketchKey(bytes(32))
    parts = {"clinic": (X.iloc[:, :2], []), "mri": (pd.concat([X.iloc[:, 2:], Y], axis=1), list(Y.columns))}
    sent = [
        sketch(Table.open(frame, responses=responses), key, SketchTerms("s", "r", 70, site=site)).message
        for site, (frame, responses) in parts.items()
    ]
    model = SparseRegression.from_sketches(sent, random_state=0)
    assert model.posterior_.features == list(X.columns)
    np.testing.assert_array_equal(model.selected_, (C != 0).any(axis=1))
    standard = C * X.std().to_numpy()[:, None] / Y.std().to_numpy()
    lower, upper = model.interval(0.999)
    assert ((lower <= standard.T) & (upper >= standard.T)).mean() > 0.9
    assert (model.intercept_ == 0).all()


def test_covariates_are_adjusted_for_and_enter_predictions(data: Data) -> None:
    """Only age acts on the response, and gene 3 follows age: adjusted, no feature is found, and age has its effect."""
    X, _Y, _C = data
    rng = np.random.default_rng(2)
    age = rng.normal(50, 10, len(X))
    X = X.assign(**{"gene 3": X["gene 3"] + 0.1 * age, "age": age})
    y = 0.3 * age + rng.standard_normal(len(X))
    model = SparseRegression(covariates=["age"], **{**SHORT, "draws": 200}).fit(X, y)
    assert not model.selected_.any()
    assert model.covariate_coef_ == pytest.approx([0.3], abs=0.03)
    lower, upper = model.covariate_interval(0.99)
    assert lower[0] < 0.3 < upper[0]
    assert model.score(X, y) > 0.85


@pytest.mark.parametrize(
    "more", [{"noise": "independent"}, {"rank": 1}, {"background": False}, {"power": 0.9}, {"until": None}, {"folds": 0}]
)
def test_every_choice_of_the_model_gives_a_fit(data: Data, more: dict[str, Any]) -> None:
    X, Y, C = data
    model = SparseRegression(**{**SHORT, "draws": 100}, **more).fit(X, Y)
    assert model.selected_[(C != 0).any(axis=1)].all()
    assert clone(model).get_params() == model.get_params()
    if "background" in more:
        assert model.selection_.without is None
        assert model.posterior_.draws.background is None


def test_features_that_were_looked_at_and_left_out_count(data: Data) -> None:
    """What is chosen among a million by its look is held to the odds of a million."""
    X, Y, _C = data
    noise = Y.assign(bmi=np.random.default_rng(0).standard_normal(120)).loc[:, ["bmi"]]
    few, many = (SparseRegression(**{**SHORT, "draws": 400}, looked_at=n).fit(X, noise) for n in (None, 10**6))
    assert many.pip_.max() < few.pip_.max() / 100  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "bad",
    [{"draws": 3}, {"chains": 0}, {"rank": 0}, {"sketch": 2.5}, {"warmup": -1}, {"thin": 0}, {"folds": 1}, {"fdr": 1.0}],
)
def test_parameters_are_checked_before_anything_is_drawn(data: Data, bad: dict[str, Any], monkeypatch: Any) -> None:
    X, Y, _C = data
    monkeypatch.setattr(SparseRegression, "_sample", lambda *_args: pytest.fail("drew before it checked"))
    with pytest.raises(InputError, match=next(iter(bad))):
        SparseRegression(**{**SHORT, **bad}).fit(X, Y)


def test_unfinished_chains_warn_and_it_is_public(data: Data) -> None:
    X, Y, _C = data
    with pytest.warns(ConvergenceWarning):
        SparseRegression(**{**SHORT, "draws": 10}).fit(X, Y)
    assert "SparseRegression" in intarsia.__all__
