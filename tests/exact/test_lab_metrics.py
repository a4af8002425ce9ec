"""The lab's measures against textbook values."""

import numpy as np
import pytest
from experiments.paper import metrics
from scipy.integrate import quad
from scipy.stats import norm


def test_affinity_gaussian_is_the_integral():
    value = metrics.affinity_gaussian(np.array(0.3), np.array(0.5), np.array(-0.4), np.array(1.2))
    integral, _ = quad(lambda c: np.sqrt(norm.pdf(c, 0.3, 0.5) * norm.pdf(c, -0.4, 1.2)), -20, 20)
    assert value == pytest.approx(integral, abs=1e-8)


def test_affinity_is_one_only_for_equal_laws():
    assert metrics.affinity_gaussian(np.array(1.0), np.array(2.0), np.array(1.0), np.array(2.0)) == pytest.approx(1)
    assert metrics.affinity_gaussian(np.array(0.0), np.array(1.0), np.array(9.0), np.array(1.0)) < 1e-4


def test_affinity_from_draws_follows_the_closed_form():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0, 1, (3000, 40)), rng.normal(1, 1.5, (3000, 40))
    exact = metrics.affinity_gaussian(np.array(0.0), np.array(1.0), np.array(1.0), np.array(1.5))
    assert metrics.affinity_draws(a, b).mean() == pytest.approx(exact, abs=0.01)
    same = metrics.affinity_draws(a, rng.normal(0, 1, (3000, 40)))
    assert same.mean() > 0.99


def test_affinity_from_draws_sees_what_two_moments_do_not():
    rng = np.random.default_rng(2)
    spread = np.sqrt(1 + 9)
    two_humps = rng.normal(0, 1, (4000, 20)) + 3 * rng.choice([-1, 1], (4000, 20))
    one_hump = rng.normal(0, spread, (4000, 20))
    assert metrics.affinity_draws(two_humps, one_hump).mean() < 0.96


def test_paper_grid_calls_disjoint_posteriors_nearly_equal():
    """The printed formula lacks the grid width: ten standard deviations apart, it still says .99."""
    mean, sd = np.array(0.0), np.array(0.1)
    grid = np.linspace(-10, 10, 1000)
    printed = metrics.accuracy_paper(mean, sd, np.array(1.0), sd, grid)
    width = grid[-1] - grid[0]
    assert printed > 0.94
    assert metrics.affinity_gaussian(mean, sd, np.array(1.0), sd) < 1e-5
    # With the width put back, the same grid gives the exact value.
    assert 1 - (1 - printed) * width == pytest.approx(0.0, abs=2e-3)


def _ar1(phi, shape, rng):
    e = rng.standard_normal(shape)
    x = np.empty(shape)
    x[:, 0] = e[:, 0] / np.sqrt(1 - phi**2)
    for i in range(1, shape[1]):
        x[:, i] = phi * x[:, i - 1] + e[:, i]
    return x


@pytest.mark.parametrize("phi", [0.0, 0.7, -0.4])
def test_ess_coda_of_an_autoregression(phi):
    x = _ar1(phi, (3, 1500, 60), np.random.default_rng(3))
    assert metrics.ess_coda(x).mean() == pytest.approx(4500 * (1 - phi) / (1 + phi), rel=0.07)


def test_ess_coda_is_ar_yule_walker_by_hand():
    """One series, the definition of R's ar() and spectrum0.ar written out with dense solves."""
    x = _ar1(0.6, (1, 400, 1), np.random.default_rng(4))[0, :, 0]
    n = len(x)
    c = x - x.mean()
    acov = np.array([(c[: n - k] * c[k:]).sum() / n for k in range(int(10 * np.log10(n)) + 1)])
    best = (np.inf, 0.0)
    for k in range(len(acov)):
        toeplitz = acov[np.abs(np.subtract.outer(np.arange(k), np.arange(k)))]
        phi = np.linalg.solve(toeplitz, acov[1 : k + 1]) if k else np.zeros(0)
        v = acov[0] - phi @ acov[1 : k + 1]
        aic = n * np.log(v) + 2 * k
        spec = v * n / (n - (k + 1)) / (1 - phi.sum()) ** 2
        best = min(best, (aic, spec))
    assert metrics.ess_coda(x[None, :, None])[0] == pytest.approx(n * x.var(ddof=1) / best[1], rel=1e-8)


def test_ess_of_a_chain_that_never_moves_is_zero():
    assert metrics.ess_coda(np.ones((2, 100, 3))).sum() == 0


def test_ess_arviz_keeps_the_shape():
    x = np.random.default_rng(5).standard_normal((4, 250, 3, 2))
    ess = metrics.ess_arviz(x)
    assert ess.shape == (3, 2)
    assert np.all((ess > 600) & (ess < 1700))


def test_scores_by_hand():
    C = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    estimate = np.array([[1.5, 0.0], [0.0, 0.1], [0.0, 1.0]])
    lower, upper = estimate - 0.6, estimate + 0.6
    row = metrics.score(estimate, C, (lower, upper), np.array([True, True, False]))
    assert row["mse"] == pytest.approx((0.25 + 0.01 + 1) / 6)
    assert row["mse_nz"] == pytest.approx((0.25 + 1) / 2)
    assert (row["coverage"], row["coverage_nz"]) == (pytest.approx(5 / 6), 0.5)
    assert row["width"] == row["width_nz"] == pytest.approx(1.2)
    assert (row["fdr"], row["power"], row["selected"]) == (0.5, 0.5, 2)


def test_nothing_selected_has_no_false_discovery():
    none = np.zeros(4, dtype=bool)
    assert metrics.fdr(none, ~none) == 0
    assert metrics.power(none, ~none) == 0


def test_efficiency_is_the_logarithm_of_the_ratio():
    assert metrics.computational_efficiency(np.full((4, 4), 64.0), 8.0) == pytest.approx(7.0)
