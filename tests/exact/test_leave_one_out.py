"""Leave-one-out against the exact answer of a conjugate model, and ArviZ's own functions on our posterior."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import arviz
import numpy as np
import pytest
import xarray
from scipy import stats

from intarsia.server.assess import leave_one_out as module
from intarsia.server.assess.leave_one_out import Rows, leave_one_out, log_likelihood, normal_log_density, smoothed, to_arviz
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import CovariateEffects, Posterior

pytestmark = pytest.mark.filterwarnings("ignore")
m, P, Q = 60, 4, 2


def elpd(loo: Any) -> float:
    """By its name in ArviZ 1, else by the earlier one."""
    return float(loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo)


def posterior_file(fitted: Posterior, folder: Path) -> Any:
    return xarray.open_datatree(fitted.save(folder / "told.nc"), engine="h5netcdf").load()


SIGMA = np.array([[1.0, 0.7], [0.7, 1.0]])


def rows() -> Rows:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m, P))
    C = np.array([[1.0, 0.0]] * P) * 0.5
    return Rows.of(X, X @ C + rng.standard_normal((m, Q)) @ np.linalg.cholesky(SIGMA).T)


def conjugate(data: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Mean and row covariance of C ~ MN(0, I, Σ) given the rows, Σ known."""
    V = np.linalg.inv(data.X.T @ data.X + np.eye(P))
    return V @ data.X.T @ data.Y, V


def posterior(data: Rows, draws: int = 1000) -> Posterior:
    rng = np.random.default_rng(1)
    mean, V = conjugate(data)
    C = mean + np.linalg.cholesky(V) @ rng.standard_normal((4, draws, P, Q)) @ np.linalg.cholesky(SIGMA).T
    return Posterior.from_draws(Draws(C, np.tile(SIGMA, (4, draws, 1, 1)), {"tau": np.ones((4, draws, 1))}))


def test_agrees_with_refitting_without_each_row():
    data = rows()
    found = leave_one_out(posterior(data, 4000), data)
    elpd, mean = np.empty(m), np.empty((m, Q))
    for i in range(m):
        M, V = conjugate(data.take(np.arange(m) != i))
        mean[i] = data.X[i] @ M
        elpd[i] = stats.multivariate_normal.logpdf(data.Y[i], mean[i], SIGMA * (1 + data.X[i] @ V @ data.X[i]))
    np.testing.assert_allclose(found.elpd, elpd, atol=0.05)
    np.testing.assert_allclose(found.mean, mean, atol=0.06)
    assert found.total == pytest.approx(elpd.sum(), abs=0.15)  # 60 rows, each known to about .01 from 16,000 draws
    assert found.unreliable == 0
    assert found.warning() == ""
    r2 = 1 - ((data.Y - mean) ** 2).sum(axis=0) / (data.Y**2).sum(axis=0)
    np.testing.assert_allclose(found.r2, r2, atol=0.01)
    assert found.unpredicted.tolist() == [False, True]  # no feature acts on the second response
    assert found.p_loo == pytest.approx(P * Q, abs=2.5)


def test_arviz_reads_our_posterior(tmp_path):
    data = rows()
    fitted = posterior(data)
    found = leave_one_out(fitted, data)
    theirs = arviz.loo(to_arviz(fitted), pointwise=True)
    assert elpd(theirs) == pytest.approx(found.total, abs=0.02)
    np.testing.assert_allclose(theirs.pareto_k, found.pareto_k, atol=0.1)
    told = posterior_file(fitted, tmp_path)["log_likelihood"].attrs  # how to get the very same
    same = arviz.loo(to_arviz(fitted), pointwise=True, reff=told["reff"])
    assert f"reff={told['reff']:.6g}" in told["comment"]
    near, near_k = (1e-8, 1e-8) if hasattr(same, "elpd") else (1e-3, 0.05)  # an ArviZ before 1 fits the tail in its own way
    assert elpd(same) == pytest.approx(found.total, abs=near)
    np.testing.assert_allclose(same.pareto_k, found.pareto_k, atol=near_k)
    worse = posterior(Rows.of(data.X[:, ::-1], data.Y))
    leave_one_out(worse, data)
    table = arviz.compare({"right": to_arviz(fitted), "wrong": to_arviz(worse)})
    assert table.index[0] == "right"
    path = fitted.save(tmp_path / "fit.nc")
    assert elpd(arviz.loo(arviz.from_netcdf(str(path)))) == pytest.approx(elpd(theirs))
    assert Posterior.load(path).groups["log_likelihood"].words == dict(told)


def test_weights_without_a_tail_to_smooth_stay_as_they_are():
    """Every weight the same, or too few draws: there is no tail, and nothing vouches for the row."""
    each = np.array([np.full(400, -2.0), np.full(400, -3.0)])
    weights, k = smoothed(each, 1.0)
    np.testing.assert_allclose(weights, -np.log(400))
    assert np.isinf(k).all()
    weights, k = smoothed(np.log([[0.1, 0.2, 0.4, 0.8]]), 1.0)
    np.testing.assert_allclose(np.exp(weights), np.array([[8, 4, 2, 1]]) / 15)
    assert np.isinf(k).all()


def test_likelihood_is_joint_over_responses_and_knows_covariates():
    rng = np.random.default_rng(5)
    residual = rng.standard_normal((3, 7, Q))
    each = normal_log_density(residual, np.tile(SIGMA, (3, 1, 1)))
    np.testing.assert_allclose(each, stats.multivariate_normal.logpdf(residual, np.zeros(Q), SIGMA), atol=1e-12)
    alone = normal_log_density(residual, np.tile(np.diag([1.0, 0.0]), (3, 1, 1)))  # a response without noise is left out
    np.testing.assert_allclose(alone, stats.norm.logpdf(residual[..., 0]), atol=1e-12)

    copies = normal_log_density(residual[..., [0, 0]], np.ones((3, Q, Q)))  # a singular Σ does no harm
    assert np.isfinite(copies).all()

    data, Z = rows(), rng.standard_normal((m, 1))
    plain = posterior(data, 20)
    Gamma = rng.standard_normal((4, 20, 1, Q))
    draws = Draws(plain.C.values, plain.Sigma.values, {"tau": plain.tau.values})
    adjusted = Posterior.from_draws(draws, effects=CovariateEffects(Gamma, ("age",)))
    got, fitted = log_likelihood(adjusted, Rows.of(data.X, data.Y, Z))
    expected = data.X @ draws.C + Z @ Gamma
    np.testing.assert_allclose(fitted, expected, atol=1e-12)
    np.testing.assert_allclose(got, stats.multivariate_normal.logpdf(data.Y - expected, np.zeros(Q), SIGMA), atol=1e-10)


def test_work_is_bounded_by_using_fewer_draws(monkeypatch):
    data = rows()
    whole, _ = log_likelihood(posterior(data), data)
    monkeypatch.setattr(module, "_MOST_NUMBERS", 500 * m * Q)
    thinned, _ = log_likelihood(posterior(data), data)
    assert thinned.shape == (4, 125, m)
    np.testing.assert_allclose(thinned, whole[:, ::8], atol=1e-12)


def test_a_row_that_the_draws_cannot_leave_out_is_told():
    data = rows()
    data.Y[0] += 40.0
    found = leave_one_out(posterior(data), data)
    assert found.pareto_k[0] > module.K_LIMIT
    assert "k̂ > 0.7 in" in found.warning()


def test_nothing_is_said_and_no_home_is_needed(tmp_path: Path) -> None:
    """ArviZ's daily note stood in the middle of a first demo; a service without a home folder could not end its fit."""
    (tmp_path / "no-folder").write_text("")
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment = {**kept, "HOME": str(tmp_path / "no-folder"), "PYTHONWARNINGS": "default"}
    script = """
import numpy
from intarsia.server.assess.leave_one_out import smoothed
weights, k = smoothed(numpy.random.default_rng(1).normal(size=(2, 1000)), 1.0)
print(weights.shape, numpy.isfinite(k).all())
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "(2, 1000) True\n", done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("explained", [0.0, 0.13, 0.6])
def test_another_sketch_of_the_same_people_gives_what_the_first_foretold(explained: float) -> None:
    """200 pairs of sketches: R² of the second lies where the first said, about 95 times of 100."""
    rng = np.random.default_rng(0)
    n, m = 500, 100
    X = rng.standard_normal((n, 3))
    y = X.sum(axis=1) * np.sqrt(explained / 3) + rng.standard_normal(n) * np.sqrt(1 - explained)
    Z = np.column_stack([X, y])
    Z -= Z.mean(axis=0)

    def figures() -> tuple[np.ndarray, np.ndarray]:
        S = np.linalg.qr(rng.standard_normal((n, m)))[0].T @ Z * np.sqrt(n / m)
        H = S[:, :3] @ np.linalg.pinv(S[:, :3])
        left = (S[:, 3] - H @ S[:, 3]) / (1 - np.diag(H))  # least squares without that row
        return module.out_of_sample(S[:, 3:], (S[:, 3] - left)[:, None])

    inside = 0
    for _ in range(200):
        (r2, se), (other, _) = figures(), figures()
        low, high = module.under_another_sketch(r2, se, m, n)
        inside += bool(low[0] < other[0] < high[0])
    assert 0.89 < inside / 200 < 0.98
