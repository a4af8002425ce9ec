"""Sparse draws on the way from rows to an estimator's results and to what sites are sent: units, covariates, the background."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.sparse_draws import ragged

import intarsia.server.sampler.sample as sampler
from intarsia import ReducedRankHorseshoe
from intarsia.errors import InputError
from intarsia.report import render
from intarsia.report.page import collect
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.sparse import Inclusion

pytestmark = pytest.mark.filterwarnings("ignore")
n, P, Q = 60, 8, 2
CHAINS, DRAWS = 2, 50


def sparse_sample(X: Any, Y: Any, *given: Any, **more: Any) -> Draws:
    """Least squares of two features, each in in most draws, and a little background: as an engine hands draws over."""
    rng = np.random.default_rng(0)
    p, q = X.shape[1], Y.shape[1]
    inside = rng.random((CHAINS, DRAWS, p)) < np.where(np.arange(p) < 2, 0.99, 0.02)
    C = np.zeros((p, q))
    C[:2] = np.linalg.lstsq(X[:, :2], Y, rcond=None)[0]
    each = (C + 0.05 * rng.standard_normal((CHAINS, DRAWS, p, q))) * inside[..., None]
    there = ragged(each, inside)
    pip = np.where(np.arange(p) < 2, 0.999, 0.02)
    known = Inclusion(np.tile(pip, (CHAINS, 1)), there.offsets, there.features, np.ones(len(there.features)), there.effects, pip)
    ratio = np.full((CHAINS, DRAWS), 0.1)
    Sigma = np.tile(np.cov((Y - X @ C).T).reshape(q, q), (CHAINS, DRAWS, 1, 1))
    return Draws(there, Sigma, {"background_ratio": ratio}, inclusion=known, background=np.full((p, q), 0.01))


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> tuple[ReducedRankHorseshoe, np.ndarray, np.ndarray]:
    monkeypatch.setattr(sampler, "sample", sparse_sample)
    rng = np.random.default_rng(1)
    X = np.hstack([rng.normal(5, 3, (n, P)), rng.normal(50, 9, (n, 1))])  # the last: a covariate
    X[:, 4] = 7.0  # constant
    Y = 100 + X[:, :2] @ np.array([[2.0, 0.0], [0.0, -3.0]]) + 0.1 * X[:, [-1]] + rng.standard_normal((n, Q))
    return ReducedRankHorseshoe(covariates=[P], folds=2, random_state=0).fit(X, Y), X, Y


def test_coefficients_are_effects_alone_and_predictions_add_the_background(fitted: Any) -> None:
    model, X, Y = fitted
    draws = model.posterior_.draws
    assert draws.sparse
    np.testing.assert_allclose(model.coef_[:, :2], [[2, 0], [0, -3]], atol=0.15)
    assert model.coef_[:, 4].tolist() == [0, 0]
    np.testing.assert_allclose(draws.background[0], 0.01 * Y.std(axis=0) / X[:, 0].std())
    np.testing.assert_allclose(model.covariate_coef_[:, 0], 0.1, atol=0.05)
    assert np.flatnonzero(model.selected_).tolist() == [0, 1]
    mean, sd = model.predict(X, return_std=True)
    assert (np.square(mean - Y).mean(axis=0) < 3).all()
    assert np.isfinite(sd).all()
    quiet = model.predict_draws(X, noise=False).mean(("chain", "draw"))
    direct = X[:, :P] @ (model.coef_.T + draws.background) + X[:, P:] @ model.covariate_coef_.T + model.intercept_
    np.testing.assert_allclose(quiet, direct, atol=1e-8)


def test_everything_that_shows_results_has_them(fitted: Any) -> None:
    model, _, _ = fitted
    table = model.table()
    assert (table.loc[table["feature"] == "x0", "stands"] == "both").all()
    assert table.loc[table["feature"] == "x0", "pip"].iloc[0] == pytest.approx(0.999)
    page = render(collect(model))
    assert "Chains are compared by the mean of each effect given all else" in page
    assert "The probability that there is no dense background is &lt; 0.01" in page
    assert "stands" in page
    assert ">1.000<" not in page


def test_draws_must_fit_together() -> None:
    draws = sparse_sample(np.eye(4), np.ones((4, 1)) + np.arange(4)[:, None])
    assert draws.inclusion is not None
    with pytest.raises(InputError, match="inclusion has shape"):
        Draws(draws.C, draws.Sigma, inclusion=replace(draws.inclusion, pip=np.zeros((1, 4))))
