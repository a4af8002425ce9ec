"""Responses that some rows lack: the law they are drawn from, exactly, and the data of a sweep with them."""

from dataclasses import replace

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.server.sampler.horseshoe.chain import Missing
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.horseshoe.sweep import prepare
from intarsia.server.sampler.missing import draw_missing, patterns
from intarsia.server.sampler.settings import Settings

M, P, Q = 12, 4, 3


def problem(P: int = P) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, C = rng.standard_normal((M, P)), rng.standard_normal((P, Q))
    root = rng.standard_normal((Q, Q))
    Y = X @ C + rng.standard_normal((M, Q))
    Y[:4, 0] = np.nan
    Y[4:8, [0, 2]] = np.nan
    return X, Y, C, root @ root.T + np.eye(Q)


def test_mean_and_covariance_are_those_of_the_dense_conditional() -> None:
    """Zero noise gives the mean; unit noise columns give the root of the covariance. Compared with the whole vec(Y) at once."""
    X, Y, C, Sigma = problem()
    fitted, found = X @ C, patterns(Y)
    mean = draw_missing(Y, fitted, Sigma, found, np.zeros((M, Q)))
    whole = np.kron(np.eye(M), Sigma)
    gone = np.isnan(Y).ravel()
    K = whole[np.ix_(gone, ~gone)] @ np.linalg.inv(whole[np.ix_(~gone, ~gone)])
    expected = fitted.ravel()[gone] + K @ (Y.ravel()[~gone] - fitted.ravel()[~gone])
    np.testing.assert_allclose(mean.ravel()[gone], expected, atol=1e-10)
    np.testing.assert_array_equal(mean.ravel()[~gone], Y.ravel()[~gone])
    columns = []
    for at in np.flatnonzero(gone):
        unit = np.zeros(M * Q)
        unit[at] = 1.0
        columns.append((draw_missing(Y, fitted, Sigma, found, unit.reshape(M, Q)) - mean).ravel()[gone])
    L = np.array(columns).T
    left = whole[np.ix_(gone, gone)] - K @ whole[np.ix_(~gone, gone)]
    np.testing.assert_allclose(L @ L.T, left, atol=1e-10)


@pytest.mark.parametrize("P", [4, 20])
def test_the_data_of_a_sweep_are_those_of_the_completed_rows(P: int) -> None:
    """Also where the rows were rotated to the small side; priors rest on what is there."""
    X, Y, C, Sigma = problem(P)
    missing = Missing(X, Y)
    data = prepare(Model(), X, missing.level)
    np.testing.assert_allclose(data.noise.scale, np.sqrt(np.nanmean(Y**2, axis=0)), rtol=1e-12)
    filled = missing.fill(data, C, Sigma, np.random.default_rng(1))
    completed = draw_missing(Y, X @ C, Sigma, missing.patterns, np.random.default_rng(1).standard_normal(Y.shape))
    direct = prepare(Model(), X, completed)
    np.testing.assert_allclose(filled.Y, direct.Y, atol=1e-10)
    np.testing.assert_allclose(filled.rss0, direct.rss0, atol=1e-9)
    np.testing.assert_array_equal(filled.X, direct.X)


def test_nothing_missing_gives_the_same_draws_and_an_interrupted_run_goes_on(tmp_path) -> None:  # type: ignore[no-untyped-def]
    X, Y, _, _ = problem()
    short = Settings(draws=6, warmup=4, chains=1, thin=1, seed=3, workers=1)
    whole = np.where(np.isnan(Y), 0.5, Y)
    np.testing.assert_array_equal(sample(X, whole, settings=short, partly=True).C, sample(X, whole, settings=short).C)
    once = sample(X, Y, settings=short, partly=True)
    assert np.isfinite(once.C).all()
    sample(X, Y, settings=replace(short, draws=4, checkpoint=tmp_path), partly=True)
    np.testing.assert_array_equal(sample(X, Y, settings=replace(short, checkpoint=tmp_path), partly=True).C, once.C)


def test_what_cannot_be_fitted_is_refused() -> None:
    X, Y, _, _ = problem()
    with pytest.raises(InputError, match="NaN or infinite"):
        sample(X, Y)
    with pytest.raises(InputError, match="power 1"):
        sample(X, Y, Model(power=0.5), partly=True)
    absent, empty = Y.copy(), Y.copy()
    absent[:, 1] = np.nan
    empty[0] = np.nan
    for bad in (absent, empty):
        with pytest.raises(InputError, match="A response is in no row of the sketch, or a row has no response"):
            sample(X, bad, partly=True)
