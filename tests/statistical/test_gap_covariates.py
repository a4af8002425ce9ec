"""Covariates where rows lack responses: intervals of coefficients and of covariates' effects cover as often as they say."""

from functools import partial

import numpy as np
import pytest

from intarsia.server.covariates import Covariates, sample_adjusted
from intarsia.server.sampler.horseshoe.sample import sample
from intarsia.server.sampler.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
m, P, Q, c, SETS = 160, 5, 2, 2, 40
SIGMA = np.array([[1.0, 0.5], [0.5, 1.0]])


def test_intervals_cover_where_rows_lack_responses() -> None:
    """Half of the rows lack one response, a fifth the other; the features follow a covariate."""
    inside: dict[str, list[np.ndarray]] = {"C": [], "Gamma": []}
    for number in range(SETS):
        rng = np.random.default_rng(100 + number)
        Z = rng.standard_normal((m, c))
        X = rng.standard_normal((m, P)) + 0.5 * Z[:, :1]
        truth = {"C": 0.5 * rng.standard_normal((P, Q)), "Gamma": rng.standard_normal((c, Q))}
        Y = X @ truth["C"] + Z @ truth["Gamma"] + rng.standard_normal((m, Q)) @ np.linalg.cholesky(SIGMA).T
        Y[80:, 1] = np.nan
        Y[:30, 0] = np.nan
        run = partial(sample, settings=Settings(300, 150, chains=2, thin=1, seed=number, workers=1), partly=True)
        fitted = sample_adjusted(run, X, Y, Covariates(Z, ("age", "sex")), number)
        for name, draws in (("C", fitted.draws.C), ("Gamma", fitted.Gamma)):
            assert draws is not None
            low, high = np.quantile(draws.reshape(-1, *truth[name].shape), [0.025, 0.975], axis=0)
            inside[name].append((low < truth[name]) & (truth[name] < high))
    covered = {name: float(np.mean(found)) for name, found in inside.items()}
    print(covered)
    assert 0.92 <= covered["C"] <= 0.98
    assert 0.91 <= covered["Gamma"] <= 0.99  # 160 of them: two standard errors are .035
