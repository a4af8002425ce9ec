"""`ReducedRankHorseshoe` is a scikit-learn estimator and speaks in the data's own units."""

import io
import pickle
import sys
import warnings

import arviz
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import parametrize_with_checks

import intarsia
from intarsia import ReducedRankHorseshoe
from intarsia.errors import InputError
from intarsia.regression import NotConvergedWarning
from intarsia.server.assess.criticism import compare
from intarsia.server.assess.leave_one_out import to_arviz
from intarsia.server.posterior.posterior import Posterior
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.sketch.sketch import SketchTerms, sketch
from intarsia.wire.messages import join

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SHORT = {"draws": 40, "warmup": 40, "chains": 2, "thin": 1, "n_jobs": 1, "random_state": 0}


@parametrize_with_checks([ReducedRankHorseshoe(**SHORT)])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ReducedRankHorseshoe(**SHORT, local="element")])
def test_scikit_learn_accepts_element_scales(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.standard_normal((120, 6)) * [1, 10, 0.1, 1, 1, 1] + 5, columns=[f"gene {i}" for i in range(6)])
    C = np.zeros((6, 2))
    C[0] = [2, -1]
    C[1] = [0.3, 0.2]
    C[2] = [15, 0]
    Y = pd.DataFrame(X.to_numpy() @ C + [100, -3] + 0.3 * rng.standard_normal((120, 2)), columns=["bmi", "crp"])
    return X, Y, C


@pytest.fixture(scope="module")
def fitted(data):
    X, Y, _C = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return ReducedRankHorseshoe(draws=300, warmup=200, chains=2, thin=1, n_jobs=1, random_state=3).fit(X, Y)


def test_coefficients_come_back_in_the_units_of_the_data(data, fitted):
    X, Y, C = data
    assert fitted.coef_.shape == (2, 6)
    assert fitted.intercept_.shape == (2,)
    lower, upper = fitted.interval(0.999)
    assert lower.shape == upper.shape == (2, 6)
    assert ((lower <= C.T) & (upper >= C.T)).all()
    centre = Y.to_numpy().mean(axis=0) - fitted.coef_ @ X.to_numpy().mean(axis=0)
    np.testing.assert_allclose(fitted.intercept_, centre, atol=0.05)
    np.testing.assert_array_equal(fitted.selected_, (C != 0).any(axis=1))
    assert fitted.score(X, Y) > 0.95
    assert fitted.feature_names_in_.tolist() == list(X.columns)


def test_units_are_only_units(data, fitted):
    X, Y, _C = data
    other = ReducedRankHorseshoe(draws=300, warmup=200, chains=2, thin=1, n_jobs=1, random_state=3)
    other.fit(X * 1e3 - 7, Y * 1e-2 + 4)
    np.testing.assert_allclose(other.coef_, fitted.coef_ * 1e-5, rtol=1e-6)
    np.testing.assert_array_equal(other.selected_, fitted.selected_)


def test_the_posterior_is_labelled_and_saves(data, fitted, tmp_path):
    X, Y, _C = data
    assert isinstance(fitted.posterior_, Posterior)
    assert fitted.posterior_.features == list(X.columns)
    assert fitted.posterior_.responses == list(Y.columns)
    np.testing.assert_allclose(fitted.posterior_.mean().sel(response="crp"), fitted.coef_[1])
    back = Posterior.load(fitted.posterior_.save(tmp_path / "fit.nc"))
    ratio = fitted.predict(X, return_std=True)[1] / back.predict(X.to_numpy())[1]
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape))  # one factor per response: errors on rows left out
    assert (np.abs(np.log(ratio)) < 0.3).all()
    assert fitted.diagnosis_.rhat.shape == (6, 2)
    assert fitted.diagnosis_.worst(1)[0]["feature"] in list(X.columns)


def test_predictions_have_the_spread_they_claim(data, fitted):
    X, Y, _C = data
    mean, sd = fitted.predict(X, return_std=True)
    np.testing.assert_allclose(mean, fitted.predict(X))
    z = (Y.to_numpy() - mean) / sd
    assert 0.8 < z.std() < 1.15
    draws = fitted.predict_draws(X.iloc[:3], random_state=0)
    assert draws.shape == (2, 300, 3, 2)
    np.testing.assert_allclose(draws.mean(("chain", "draw")), mean[:3], atol=5 * sd.max() / np.sqrt(600))


def test_one_dimensional_y(data):
    X, Y, _C = data
    one = ReducedRankHorseshoe(**SHORT).fit(X, Y["bmi"])
    assert one.coef_.shape == (6,)
    assert isinstance(one.intercept_, float)
    mean, sd = one.predict(X, return_std=True)
    assert mean.shape == sd.shape == (120,)
    assert one.interval(0.9)[0].shape == (6,)
    column = ReducedRankHorseshoe(**SHORT).fit(X, Y[["bmi"]])
    assert column.coef_.shape == (1, 6)
    np.testing.assert_allclose(column.coef_[0], one.coef_)
    assert column.predict(X).shape == (120, 1)


def test_constant_columns_have_no_effect(data):
    X, Y, _C = data
    wide = np.column_stack([X.to_numpy(), np.full(120, 0.1)])
    both = np.column_stack([Y.to_numpy(), np.full(120, 7.7)])
    model = ReducedRankHorseshoe(**SHORT).fit(wide, both)
    assert model.coef_.shape == (3, 7)
    assert (model.coef_[:, 6] == 0).all()
    assert (model.coef_[2] == 0).all()
    assert not model.selected_[6]
    np.testing.assert_allclose(model.predict(wide)[:, 2], 7.7)
    nothing = ReducedRankHorseshoe(**SHORT).fit(np.ones((9, 2)), np.ones(9))
    np.testing.assert_allclose(nothing.predict(np.zeros((2, 2))), 1.0)


def test_sketched_fit_finds_the_same_and_follows_its_seed(data):
    X, Y, C = data
    fits = [ReducedRankHorseshoe(**{**SHORT, "draws": 200, "random_state": seed}, sketch=60).fit(X, Y) for seed in (0, 0, 1)]
    first, again, other = fits
    np.testing.assert_array_equal(first.coef_, again.coef_)
    assert not np.array_equal(first.noise_covariance_, other.noise_covariance_)
    lower, upper = first.interval(0.999)
    assert ((lower <= C.T) & (upper >= C.T)).mean() > 0.9
    assert first.score(X, Y) > 0.9
    with pytest.raises(InputError):
        ReducedRankHorseshoe(**SHORT, sketch=500).fit(X, Y)


def sketches(data, **more):
    X, Y, _C = data
    key = SketchKey(bytes(32))
    parts = {"clinic": (X.iloc[:, :2], []), "mri": (pd.concat([X.iloc[:, 2:], Y], axis=1), list(Y.columns))}
    return [
        sketch(Table.open(frame, responses=responses), key, SketchTerms("s", "r", 70, site=site, **more)).message
        for site, (frame, responses) in parts.items()
    ]


def test_sketches_of_several_sites(data):
    X, Y, C = data
    model = ReducedRankHorseshoe.from_sketches(sketches(data), **{**SHORT, "draws": 200})
    assert model.posterior_.features == list(X.columns)
    assert model.posterior_.C.coords["site"].values.tolist() == ["clinic"] * 2 + ["mri"] * 4
    standard = C * X.std().to_numpy()[:, None] / Y.std().to_numpy()
    lower, upper = model.interval(0.999)
    assert ((lower <= standard.T) & (upper >= standard.T)).mean() > 0.9
    np.testing.assert_array_equal(model.selected_, (C != 0).any(axis=1))
    assert (model.intercept_ == 0).all()
    with pytest.raises(InputError, match="sketched already"):
        ReducedRankHorseshoe(**SHORT, sketch=10).fit_sketch(join(sketches(data)))


def test_same_seed_same_draws(data):
    X, Y, _C = data
    a, b = (ReducedRankHorseshoe(**SHORT).fit(X, Y) for _ in range(2))
    np.testing.assert_array_equal(a.posterior_.C, b.posterior_.C)
    c = pickle.loads(pickle.dumps(a))  # noqa: S301
    np.testing.assert_array_equal(c.predict(X), a.predict(X))


def test_progress_is_called(data):
    X, Y, _C = data
    calls = []
    ReducedRankHorseshoe(**SHORT, progress=lambda *args, **kwargs: calls.append(1)).fit(X, Y)
    assert calls


def test_unfinished_chains_warn(data):
    X, Y, _C = data
    with pytest.warns(ConvergenceWarning, match="effective samples"):
        ReducedRankHorseshoe(**{**SHORT, "draws": 10}).fit(X, Y)


BAD = [
    {"draws": 3}, {"chains": 0}, {"rank": 0}, {"sketch": 2.5}, {"warmup": -1}, {"thin": 0}, {"folds": 1}, {"folds": -1},
    {"folds": True}, {"fdr": 0}, {"fdr": 1.0}, {"fdr": "low"}, {"selection": "lasso"},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_parameters_are_checked_before_anything_is_drawn(data, bad, monkeypatch):
    X, Y, _C = data
    monkeypatch.setattr(ReducedRankHorseshoe, "_sample", lambda *_args: pytest.fail("drew before it checked"))
    with pytest.raises(InputError, match=next(iter(bad))):
        ReducedRankHorseshoe(**{**SHORT, **bad}).fit(X, Y)


def test_it_is_public():
    assert "ReducedRankHorseshoe" in intarsia.__all__


def test_covariates_are_adjusted_for_and_enter_predictions(data):
    """Only age acts on the response, and gene 3 follows age: adjusted, no feature is found, and age has its effect."""
    X, _Y, _C = data
    rng = np.random.default_rng(2)
    age = rng.normal(50, 10, len(X))
    X = X.assign(**{"gene 3": X["gene 3"] + 0.1 * age})
    X.insert(2, "age", age)
    y = 0.3 * age + rng.standard_normal(len(X))
    run = {**SHORT, "draws": 200}
    model = ReducedRankHorseshoe(covariates=["age"], **run).fit(X, y)
    assert model.coef_.shape == (6,)
    assert model.posterior_.features == [f"gene {i}" for i in range(6)]
    assert not model.selected_.any()
    assert model.covariate_coef_ == pytest.approx([0.3], abs=0.03)
    lower, upper = model.covariate_interval(0.99)
    assert lower[0] < 0.3 < upper[0]
    assert model.score(X, y) > 0.85
    assert model.r2_loo_[0] == pytest.approx(model.score(X, y), abs=0.05)
    mean, sd = model.predict(X, return_std=True)
    assert np.std((y - mean) / sd) == pytest.approx(1, abs=0.1)
    by_place = ReducedRankHorseshoe(covariates=[2], **run).fit(X.to_numpy(), y)
    np.testing.assert_allclose(by_place.coef_, model.coef_)
    sketched = ReducedRankHorseshoe(covariates=["age"], sketch=80, **run).fit(X, y)
    assert sketched.covariate_coef_ == pytest.approx([0.3], abs=0.05)
    with pytest.raises(InputError, match="no column of X has that name"):
        ReducedRankHorseshoe(covariates=["weight"], **run).fit(X, y)
    with pytest.raises(InputError, match="names column 7"):
        ReducedRankHorseshoe(covariates=[7], **run).fit(X.to_numpy(), y)
    with pytest.raises(InputError, match="Constant covariates: age"):
        ReducedRankHorseshoe(covariates=["age"], **run).fit(X.assign(age=1.0), y)
    with pytest.raises(InputError, match="names a column twice"):
        ReducedRankHorseshoe(covariates=["age", "age"], **run).fit(X, y)


def test_centred_rows_count_as_one_fewer():
    """The same draws as from the n − 1 rows in a basis of the vectors that sum to zero; each covariate takes one more."""
    rng = np.random.default_rng(6)
    X, Y = rng.standard_normal((12, 4)), rng.standard_normal((12, 2))
    run = {**SHORT, "until": None, "folds": 0}
    for covariates in (None, [3]):
        model = ReducedRankHorseshoe(covariates=covariates, **run).fit(X, Y)
        basis = np.linalg.qr(np.column_stack([np.ones(12), np.eye(12)[:, :-1]]))[0][:, 1:]
        x, y = basis.T @ ((X - X.mean(axis=0)) / X.std(axis=0)), basis.T @ ((Y - Y.mean(axis=0)) / Y.std(axis=0))
        if covariates:
            left = np.linalg.qr(x[:, 3:], mode="complete")[0][:, 1:]
            x, y = left.T @ x[:, :3], left.T @ y
        settings = Settings(40, 40, 2, 1, int(check_random_state(0).randint(2**31 - 1)), workers=1)
        expected = sample(x, y, settings=settings)
        assert expected.info["m"] == 11 - (covariates is not None)
        np.testing.assert_allclose(model.posterior_.Sigma / np.outer(Y.std(axis=0), Y.std(axis=0)), expected.Sigma, atol=1e-7)


def test_what_later_programs_read(data, fitted):
    """Names, types and shapes; what was fitted is what may be predicted; a clone knows the parameters and nothing else."""
    X, Y, _C = data
    run = {**SHORT, "covariates": ["gene 3"], "sketch": 60, "expected_features": 2, "fdr": 0.1}
    both, one = ReducedRankHorseshoe(**run).fit(X, Y), ReducedRankHorseshoe(**run).fit(X, Y["bmi"])
    for model, Q in ((both, 2), (one, 1)):
        assert model.noise_covariance_.shape == (Q, Q)
        assert np.linalg.eigvalsh(model.noise_covariance_).min() > 0
        assert model.r2_loo_.shape == (Q,)
        assert model.selected_.shape == (5,)
        assert isinstance(model.groups_, list)
        assert all(group.dtype.kind == "i" and group.ndim == 1 for group in model.groups_)
        assert {int(p) for group in model.groups_ for p in group} >= set(np.flatnonzero(model.selected_).tolist())
        mean, sd = model.predict(X, return_std=True)
        assert mean.shape == sd.shape == ((120, 2) if Q == 2 else (120,))
        assert (sd > 0).all()
        again = clone(model)
        assert again.get_params() == model.get_params()
        assert not hasattr(again, "coef_")
    with pytest.raises(ValueError, match="feature names should match"):
        both.predict(X[X.columns[::-1]])
    with pytest.raises(ValueError, match="feature names should match"):
        both.predict(X.drop(columns="gene 3"))  # covariates are predicted with, too
    with pytest.raises(ValueError, match="NaN"):
        both.predict(X.assign(**{"gene 1": np.nan}))
    with pytest.raises(TypeError, match="Sparse data"):
        fitted.predict(scipy.sparse.csr_array(X.to_numpy()))


def test_the_verdict_comes_first(data, fitted):
    X, Y, _C = data
    assert repr(ReducedRankHorseshoe(fdr=0.1)) == "ReducedRankHorseshoe(fdr=0.1)"
    with pytest.warns(NotConvergedWarning, match="fewer than 400 effective samples"):
        brief = ReducedRankHorseshoe(**SHORT).fit(X, Y)
    first, second, *_rest = repr(brief).splitlines()
    assert first.startswith("Not converged: ")
    assert second.endswith("(provisional: the fit has not converged)")
    assert brief.noise_covariance_.shape == (2, 2)
    assert brief.r2_loo_.shape == (2,)
    assert sorted(int(g[0]) for g in brief.groups_ if len(g) == 1) == np.flatnonzero(brief.selected_).tolist()


def test_arviz_compares_estimators(data, fitted):
    X, Y, _C = data
    less = ReducedRankHorseshoe(**SHORT).fit(X.drop(columns=["gene 0"]), Y)
    found = compare(fitted.posterior_, less.posterior_)
    assert found.difference > 10
    table = arviz.compare({"all": to_arviz(fitted.posterior_), "less": to_arviz(less.posterior_)})
    assert table.index[0] == "all"
    assert table["elpd_diff"].iloc[1] == pytest.approx(found.difference, rel=0.1)


def test_a_bar_is_shown_on_a_terminal_only(data, monkeypatch):
    X, Y, _C = data
    seen = []

    class Terminal(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            seen.append(text)
            return len(text)

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Terminal())
        ReducedRankHorseshoe(**SHORT, progress=False).fit(X, Y)
        assert not any("chain" in text for text in seen)
        ReducedRankHorseshoe(**SHORT).fit(X, Y)
    assert any("chain 1" in text for text in seen)
