"""Each competitor against the law or the optimality condition that defines it."""

import copy

import numpy as np
import pytest
from experiments.paper.simulate import Scenario, simulate
from experiments.rivals import SRRR, DRidge, ElasticNet, Locus, Ridge
from experiments.rivals import locus as locus_module
from experiments.rivals.dridge import consensus_ridge, gcv_penalty
from experiments.rivals.locus import spike_slab_interval
from experiments.rivals.srrr import Moments, alternate, first_rotation, group_lasso, objective
from scipy.special import expit, logit
from scipy.stats import norm

from intarsia.errors import InputError
from intarsia.server.assess.local_fdr import algorithm3, fit_mixture

SMALL = Scenario(n=150, P=60, Q=3, s=6, rho=0.3)


@pytest.fixture(scope="module")
def data():
    return simulate(SMALL, np.random.default_rng(0))


# --- dRidge ---------------------------------------------------------------------------------------------------------


def test_consensus_reaches_the_ridge_solution(data):
    X, Y = data.X - data.X.mean(0), data.Y - data.Y.mean(0)
    lam = np.array([0.5, 5.0, 50.0])
    parts = [X[:, data.feature_sites == k] for k in range(3)]
    found, rounds = consensus_ridge(parts, Y, lam)
    stacked = np.concatenate(parts, axis=1)
    for q in range(3):
        direct = np.linalg.solve(stacked.T @ stacked + lam[q] * np.eye(60), stacked.T @ Y[:, q])
        np.testing.assert_allclose(found[:, q], direct, atol=1e-6)
    assert rounds > 1


def test_dridge_puts_each_sites_coefficients_in_its_columns(data):
    by_consensus = DRidge(lam=3.0, bootstrap=0, tol=1e-8).fit(data.X, data.Y, sites=data.feature_sites)
    direct = DRidge(lam=3.0, bootstrap=0, consensus=False).fit(data.X, data.Y)
    np.testing.assert_allclose(by_consensus.coef_, direct.coef_, atol=1e-6)
    assert by_consensus.rounds_ > 1
    assert direct.rounds_ == 0


def test_gcv_is_the_brute_force_score(data):
    X, Y = data.X - data.X.mean(0), data.Y - data.Y.mean(0)
    grid = np.array([0.1, 1.0, 10.0, 100.0])
    n = len(X)
    scores = []
    for lam in grid:
        hat = X @ np.linalg.solve(X.T @ X + lam * np.eye(60), X.T) + np.ones((n, n)) / n
        scores.append(n * ((Y - hat @ Y) ** 2).sum(0) / (n - np.trace(hat)) ** 2)
    np.testing.assert_array_equal(gcv_penalty(X @ X.T, Y, grid), grid[np.argmin(scores, axis=0)])


def test_bootstrap_weights_are_repeated_rows(data):
    model = DRidge(lam=2.0, bootstrap=1, consensus=False, seed=7).fit(data.X, data.Y)
    n = len(data.X)
    rows = np.random.default_rng(7).integers(n, size=n)
    X, Y = data.X - data.X.mean(0), data.Y - data.Y.mean(0)
    direct = np.linalg.solve(X[rows].T @ X[rows] + 2.0 * np.eye(60), X[rows].T @ Y[rows])
    lower, _ = model.interval(0.95)
    np.testing.assert_allclose(lower, direct.T, atol=1e-5)


# --- locus ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["stated", "as-run"])
def test_every_locus_step_raises_the_elbo(design):
    d = simulate(SMALL.with_(design=design, rho=0.6), np.random.default_rng(1))
    model = Locus(tol=1e-6).fit(d.X, d.Y)
    assert len(model.elbo_) > 5
    steps = np.diff(model.elbo_)
    assert steps.min() > -1e-7 * abs(model.elbo_[-1])


def _elbo_slopes(model, X, Y, entries):
    """Numerical slope of the ELBO in each μ_st, logit g_st and the other laws' parameters, at the end point."""
    Xs = (X - X.mean(0)) / X.std(0, ddof=1)
    Yc = Y - Y.mean(0)

    def value(q):
        # E‖y_t − Xβ_t‖² under q, for features whose squared length is n − 1
        rss = ((Yc - Xs @ q.mean) ** 2).sum(axis=0) + (len(X) - 1.0) * (q.second - q.mean**2).sum(axis=0)
        return locus_module.elbo(q, model.hyper_, rss, len(X))

    slopes = []
    for field in ("mu", "g", "kappa", "nu", "a", "b"):
        for entry in entries if field in ("mu", "g") else [(0,)]:
            ends = []
            for sign in (1, -1):
                q = copy.deepcopy(model.q_)
                old = getattr(q, field)
                if field == "nu":
                    step, q.nu = 1e-4 * old, old * (1 + sign * 1e-4)
                elif field == "g":
                    # On the logit scale, so that slopes near 0 and 1 are comparable.
                    step = 1e-3
                    old[entry] = expit(logit(old[entry]) + sign * step)
                else:
                    step = 1e-4 * max(abs(float(old[entry])), 1e-2)
                    old[entry] += sign * step
                ends.append(value(q))
            slopes.append((ends[0] - ends[1]) / (2 * step) * (step / 1e-4 if field != "g" else 1))
    return np.abs(slopes)


def test_locus_ends_where_the_elbo_is_flat(data):
    model = Locus(tol=1e-10).fit(data.X, data.Y)
    active = [(int(s), 1) for s in np.flatnonzero(data.support)]
    unsure = list(zip(*np.nonzero((model.q_.g > 1e-3) & (model.q_.g < 0.999))))[:6]
    assert _elbo_slopes(model, data.X, data.Y, active + unsure).max() < 1e-3


def test_a_wrong_locus_step_ends_on_a_slope(data, monkeypatch):
    """The flatness test can fail: inclusion with the sign of the prior odds reversed is caught."""
    original = locus_module._sweep

    def wrong(gram, cross, g, mu, fixed):
        original(gram, cross, g, mu, fixed._replace(base=-fixed.base))

    monkeypatch.setattr(locus_module, "_sweep", wrong)
    model = Locus(tol=1e-10, iterations=300).fit(data.X, data.Y)
    unsure = list(zip(*np.nonzero((model.q_.g > 1e-3) & (model.q_.g < 0.999))))[:6]
    assert _elbo_slopes(model, data.X, data.Y, unsure).max() > 0.1


def test_locus_finds_the_support(data):
    model = Locus().fit(data.X, data.Y)
    truth = data.C.T
    assert np.mean((model.coef_ - truth)[truth != 0] ** 2) < 0.03
    assert not (model.selected_ & ~data.support).sum() > 1
    assert (model.selected_ & data.support).sum() == data.support.sum()


def test_spike_slab_interval_has_its_mass():
    """Equal-tailed quantiles of the mixture, checked through its distribution function."""
    g, mu, sd = np.array([0.999, 0.9, 0.5, 0.97]), np.array([1.0, 0.2, -3.0, 0.01]), np.array([0.3, 0.2, 1.0, 0.5])
    lower, upper = spike_slab_interval(g, mu, sd, 0.9)

    def cdf(c, closed):
        return g * norm.cdf(c, mu, sd) + (1 - g) * ((c > 0) | ((c == 0) & closed))

    assert np.all(cdf(lower, True) >= 0.05 - 1e-9)
    assert np.all(cdf(lower, False) <= 0.05 + 1e-9)
    assert np.all(cdf(upper, True) >= 0.95 - 1e-9)
    assert np.all(cdf(upper, False) <= 0.95 + 1e-9)


def test_an_excluded_coefficient_has_the_interval_zero():
    lower, upper = spike_slab_interval(np.array([1e-4]), np.array([5.0]), np.array([0.1]), 0.95)
    assert (lower[0], upper[0]) == (0.0, 0.0)


# --- srrr -----------------------------------------------------------------------------------------------------------


def test_group_lasso_meets_its_optimality_conditions(data):
    X, Y = data.X - data.X.mean(0), data.Y - data.Y.mean(0)
    xx, xy = X.T @ X, X.T @ Y
    penalty = np.linspace(0.1, 0.3, 60) * np.linalg.norm(xy, axis=1).max()
    B = group_lasso(xx, xy, penalty, np.zeros((60, 3)), tol=1e-9)
    gradient = xy - xx @ B
    size = np.linalg.norm(B, axis=1)
    kept = size > 0
    assert 0 < kept.sum() < 60
    direction = penalty[kept, None] * B[kept] / size[kept, None]
    np.testing.assert_allclose(gradient[kept], direction, atol=1e-4 * penalty.max())
    assert np.all(np.linalg.norm(gradient[~kept], axis=1) <= penalty[~kept] * (1 + 1e-6))


def test_alternation_never_raises_the_objective(data):
    moments = Moments.of(data.X, data.Y)
    penalty = np.full(60, 40.0)
    start = first_rotation(moments, 2)
    B, A, path = alternate(moments, penalty, start, np.zeros((60, 2)), tol=1e-10)
    assert len(path) > 2
    assert np.diff(path).max() < 1e-6 * path[0]
    np.testing.assert_allclose(A.T @ A, np.eye(2), atol=1e-10)
    assert objective(moments, B, A, penalty) == pytest.approx(path[-1])


def test_srrr_finds_rank_and_support():
    d = simulate(Scenario(n=300, P=80, Q=6, s=8, rank=2, rho=0.3), np.random.default_rng(3))
    model = SRRR().fit(d.X, d.Y)
    assert model.rank_ == 2
    np.testing.assert_array_equal(model.selected_, d.support)
    assert np.linalg.matrix_rank(model.coef_, tol=1e-8) == 2
    # Close to the oracle: least squares on the true support has error σ²/(n(1−ρ)) ≈ .005.
    assert np.mean((model.coef_.T - d.C)[d.C != 0] ** 2) < 0.01


def test_srrr_by_cross_validation_agrees_on_an_easy_case():
    d = simulate(Scenario(n=200, P=30, Q=3, s=4, rho=0.0), np.random.default_rng(4))
    model = SRRR(criterion="cv", ranks=(3,), grid=12, folds=3).fit(d.X, d.Y)
    assert model.selected_[d.support].all()
    assert np.mean((model.coef_.T - d.C) ** 2) < 0.01


# --- plain references, Algorithm 3 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Ridge(), ElasticNet(folds=3, alphas=10), Locus(), SRRR(), DRidge(bootstrap=5)])
def test_one_interface(data, model):
    shift = 10.0
    model.fit(data.X + 1.0, data.Y + shift, sites=data.feature_sites)
    assert model.coef_.shape == (3, 60)
    residual = data.Y + shift - model.predict(data.X + 1.0)
    assert np.mean(residual**2) < 2.0
    np.testing.assert_allclose(residual.mean(0), 0, atol=1e-8)
    interval = model.interval(0.95)
    if interval is not None:
        assert interval[0].shape == interval[1].shape == (3, 60)
        assert np.all(interval[0] <= interval[1])
    if isinstance(model, Ridge | DRidge):  # no coefficient of theirs is zero
        assert model.selected_ is None
    else:
        assert model.selected_.shape == (60,)
        assert model.selected_[data.support].all()


def test_algorithm3_hangs_on_the_covariance():
    """Nulls of two scales: free covariances split them and call the wider nulls signals; one sphere does not."""
    rng = np.random.default_rng(5)
    estimate = rng.normal(0, 1e-4, (500, 3))
    estimate[:60] = rng.normal(0, 5e-3, (60, 3))
    estimate[:10] = rng.normal(0, 1.0, (10, 3)) + 2.0
    free, sphere = algorithm3(estimate, "VVV"), algorithm3(estimate, "EII")
    assert free[10:].sum() > 20
    assert sphere[10:].sum() == 0
    assert sphere[:10].sum() >= 6


def test_mclust_choice_is_the_best_bic():
    estimate = np.random.default_rng(6).normal(0, 0.1, (200, 3))
    estimate[:20] += 2.0
    fits = {model: fit_mixture(estimate, model).bic for model in ("EII", "VII", "EEI", "VVI", "EEE", "VVV")}
    chosen = fit_mixture(estimate)
    assert chosen.bic == max(fits.values())
    assert fits[chosen.model] == chosen.bic


def test_algorithm3_of_nothing_selects_nothing():
    assert not algorithm3(np.zeros((20, 3))).any()


def test_unknown_covariance_model_is_refused():
    with pytest.raises(InputError, match="EII"):
        fit_mixture(np.eye(3), "XYZ")
