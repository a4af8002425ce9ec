"""Differential privacy accounting: exact figures, its inverse, monotonicity, and the whole problem by simulation."""

from decimal import Context, Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import chi2, kstest, norm

from intarsia.errors import InputError, PrivacyError
from intarsia.privacy import dp, grid
from intarsia.site.sketch.grid_noise import discrete_gaussian, snap

M = st.integers(2, 2000)
T = st.floats(1e-4, 2.0)
EPSILON = st.floats(0.01, 12.0)


@pytest.mark.parametrize(("m", "expected"), [(50, (26.9, 9.7, 3.3)), (250, (52.8, 19.2, 6.6)), (1000, (100.0, 36.4, 12.6))])
def test_needed_noise(m, expected):
    found = [1 / dp.calibrate(epsilon, 1e-6, m) for epsilon in (1, 3, 10)]
    assert found == pytest.approx(expected, abs=0.055)


@given(M, T, EPSILON, st.floats(1.001, 3))
@settings(max_examples=150, deadline=None)
def test_delta_falls_with_epsilon_and_grows_with_t(m, t, epsilon, factor):
    here = dp.delta_of(epsilon, t, m)
    assert 0 <= here <= 1
    assert dp.delta_of(epsilon * factor, t, m) <= here + 1e-13
    assert dp.delta_of(epsilon, t * factor, m) >= here - 1e-13


@given(M, st.floats(0.1, 10), st.sampled_from([1e-9, 1e-6, 1e-4, 1e-2]))
@settings(max_examples=60, deadline=None)
def test_calibration_inverts_accounting(m, epsilon, delta):
    t = dp.calibrate(epsilon, delta, m)
    assert dp.delta_of(epsilon, t, m) == pytest.approx(delta, rel=1e-5)


@given(st.floats(0.05, 8), st.sampled_from([1e-9, 1e-6, 1e-3]))
@settings(max_examples=60, deadline=None)
def test_gaussian_dp_inverts(mu, delta):
    epsilon = dp.gdp_epsilon(mu, delta)
    if epsilon > 0:
        assert dp.gdp_delta(mu, epsilon) == pytest.approx(delta, rel=1e-5)
    assert dp.gdp_epsilon(mu * 1.1, delta) >= epsilon


def test_against_simulation_of_the_unreduced_problem():
    """Whole sketches of clipped rows with and without one person: the hockey-stick of their Gaussian laws."""
    rng = np.random.default_rng(3)
    n, m, c, bound, w, epsilon = 30, 6, 3, 1.0, 1.5, 0.3
    X = rng.standard_normal((n, c)) * 0.05
    x = np.full(c, bound / np.sqrt(c))
    base = X.T @ X + w**2 * np.eye(c)
    grown = base + np.outer(x, x)
    L = np.linalg.cholesky(grown / n)
    Z = rng.standard_normal((200_000, m, c)) @ L.T

    def log_density(Z, S):
        inverse = np.linalg.inv(S / n)
        return -m / 2 * np.linalg.slogdet(S / n)[1] - 0.5 * np.einsum("kij,jl,kil->k", Z, inverse, Z)

    loss = log_density(Z, grown) - log_density(Z, base)
    hockey = np.maximum(0, 1 - np.exp(epsilon - loss))
    t = float(x @ np.linalg.solve(base, x))
    a = dp.delta_of(epsilon, t, m)
    assert hockey.mean() == pytest.approx(a, abs=4 * hockey.std() / np.sqrt(len(loss)))
    # What is promised, from the public bound alone, is no smaller.
    assert a <= dp.delta_of(epsilon, bound**2 / w**2, m)


def test_the_reduced_simulation_agrees():
    """The privacy loss of m Gaussian rows with one direction stretched by 1 + t depends on their squared length in it."""
    epsilon, t, m = 0.5, 0.3, 40
    x = np.random.default_rng(0).chisquare(m, 400_000)

    def loss(y):
        return -m / 2 * np.log1p(t) + y / 2 * t / (1 + t)

    grown = np.mean(np.maximum(0.0, 1 - np.exp(epsilon - loss(x * (1 + t)))))
    shrunk = np.mean(np.maximum(0.0, 1 - np.exp(epsilon + loss(x))))
    found = max(grown, shrunk)
    assert found == pytest.approx(dp.delta_of(0.5, 0.3, 40), rel=0.02)


def test_noise_is_split_over_sites():
    bounds, columns = {"a": 10.0, "b": 3.0}, {"a": 50, "b": 4}
    g = dp.guarantee(2.0, 1e-6, 200, bounds, columns)
    assert sum((site.row_bound / site.w) ** 2 for site in g.sites.values()) == pytest.approx(g.t)
    cost = sum(columns[s] * g.sites[s].w ** 2 for s in bounds)
    for share in (0.3, 0.5, 0.7):  # any other split of t costs more noise
        other = sum(columns[s] * bounds[s] ** 2 / (g.t * part) for s, part in (("a", share), ("b", 1 - share)))
        assert other >= cost * (1 - 1e-12)
    same = dp.guarantee(2.0, 1e-6, 200, bounds)
    assert same.sites["a"].w == pytest.approx(same.sites["b"].w)
    assert same.sites["a"].w == pytest.approx(np.sqrt(109 / same.t))
    # A thousandth of ε and δ is kept back for the grid; what is stated holds with it.
    assert dp.delta_of(2.0 * 0.999, g.t, 200) == pytest.approx(1e-6 * 0.999, rel=1e-5)


def test_guarantee_against_a_party_that_knows_phi():
    g = dp.guarantee(1.0, 1e-6, 1000, {"a": 1.0})
    assert g.mu == pytest.approx(np.sqrt(1000 * g.t))
    # A Φ whose columns have length √(m/n) gives the same μ; a longer column gives more.
    assert dp.mu_of_phi(g.t, 10**5, np.sqrt(1000 / 10**5)) == pytest.approx(g.mu)
    assert g.epsilon_known_phi > g.epsilon


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf")])
def test_bad_epsilon(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        dp.calibrate(epsilon, 1e-6, 100)


@pytest.mark.parametrize("delta", [0, 1, -0.1, float("nan")])
def test_bad_delta(delta):
    with pytest.raises(InputError, match="delta"):
        dp.calibrate(1.0, delta, 100)


def test_missing_and_bad_bounds():
    with pytest.raises(InputError, match="row bound"):
        dp.guarantee(1, 1e-6, 100, {})
    with pytest.raises(InputError, match="'a'"):
        dp.guarantee(1, 1e-6, 100, {"a": 0.0})
    for bound in (1e-300, 1e300, float("inf"), float("nan")):
        with pytest.raises(InputError, match="row bound of site 'a' must be a positive number between"):
            dp.guarantee(1, 1e-6, 100, {"a": bound})
    with pytest.raises(InputError, match="different sites: b"):
        dp.guarantee(1, 1e-6, 100, {"a": 1.0}, {"a": 3, "b": 4})


# --- on the grid: noise in floating point -----------------------------------------------------------------------------


def rounded_normal_ratio(z, steps):
    """How much the discrete Gaussian's probability at z standard deviations differs from a rounded normal's, by series."""
    return abs(z * z - 1) / (24 * steps**2)


def test_the_grid_costs_less_than_was_set_aside():
    for n, m, c, bound in ((100_000, 1000, 300, 17.5), (20_000, 200, 6, 4.0), (500, 50, 10, 3.0)):
        for epsilon in (0.1, 1.0, 10.0):
            w = bound / np.sqrt(dp.calibrate(epsilon, 1e-6, m))
            mu = grid.shift(n, m, c, bound, w)
            more, slip = grid.cost(epsilon, 1e-6, mu, m * c)
            assert more < 1e-3 * epsilon
            assert slip < 1e-9
            grid.check(epsilon, 1e-6, mu, m * c, sites=3)
    with pytest.raises(PrivacyError, match="set aside"):
        grid.check(0.1, 1e-6, 1.0, 10)
    assert rounded_normal_ratio(13.0, grid.STEPS_PER_SD) <= 7.1 / grid.STEPS_PER_SD**2


def test_the_series_for_a_rounded_normal_holds():
    """On a coarse grid, where doubles can still tell the two laws apart: the discrete Gaussian against the rounded normal."""
    steps, k = 20.0, np.arange(-100, 101)
    discrete = np.exp(-0.5 * (k / steps) ** 2)
    discrete /= np.exp(-0.5 * (np.arange(-400, 401) / steps) ** 2).sum()
    rounded = norm.cdf((k + 0.5) / steps) - norm.cdf((k - 0.5) / steps)
    expected = 1 + ((k / steps) ** 2 - 1) / (24 * steps**2)
    np.testing.assert_allclose(rounded / discrete, expected, rtol=1e-4)


def test_the_discrete_gaussian_has_its_law():
    """Against exact probabilities: whole standard deviations, the place within one, sign and parity."""
    rng = np.random.default_rng(5)
    k = discrete_gaussian(400_000, rng.bytes)
    z = k / grid.STEPS_PER_SD
    assert kstest(z, "norm").pvalue > 1e-3
    edges = np.arange(-4, 5)
    counts = np.histogram(z, [-np.inf, *edges, np.inf])[0]
    expected = np.diff([0, *norm.cdf(edges), 1]) * len(z)
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(1e-3, len(expected) - 1)
    for bits in (1, 5, 13):  # low bits are uniform: no number is favoured by its last digits
        share = np.bincount((k % 2**bits).astype(int) >> (bits - 1), minlength=2) / len(k)
        assert share == pytest.approx(0.5, abs=0.004)


def test_close_decisions_are_made_exactly():
    """With random bytes whose first half never decides, the second half must: no double is trusted there."""
    from intarsia.site.sketch import grid_noise

    S = grid.STEPS_PER_SD
    exact = Decimal(-(S // 2) * (S // 2)) / Decimal(2 * S * S)
    top = int(Context(prec=60).exp(exact) * 2**64)
    a, b = np.zeros(4, np.int64), np.full(4, S // 2)
    for low, kept in ((0, True), (2**64 - 1, False)):
        words = iter([np.full(4, top, np.uint64).tobytes(), np.full(4, low, np.uint64).tobytes()])
        assert (grid_noise._kept(a, b, lambda size, words=words: next(words)) == kept).all()


def looks_like_noise(values, sd):
    """Which values could be noise alone: sd times a quantile of one of the 2⁵² probabilities that the generator can give.

    Mironov's attack: not every double can come out of `value + noise`, and which ones can depends on the value.
    """
    nearest = np.floor(ndtr(values / sd) * 2.0**52)
    out = np.zeros(values.shape, bool)
    for step in range(-3, 4):
        out |= ndtri((nearest + step + 0.5) * 2.0**-52) * sd == values
    return out


def test_mironov_with_phi_known():
    """One person's row scaled by 1e-6 against an empty one, Φ known: certain from noise in doubles, unknown from the grid.

    All other rows are empty, so the sketch without noise is zero or 1e-6 times the person's column of Φ.
    """
    rng = np.random.default_rng(11)
    m, sd, studies = 40, 0.37, 60
    phi = rng.standard_normal(m) / np.sqrt(50)

    def in_doubles(value):
        return value + ndtri((rng.integers(0, 2**52, m) + 0.5) * 2.0**-52) * sd

    def on_the_grid(value):
        return snap(value, sd, rng.bytes)

    def shares(release):
        empty = [looks_like_noise(release(0.0 * phi), sd).mean() for _ in range(studies)]
        present = [looks_like_noise(release(1e-6 * phi), sd).mean() for _ in range(studies)]
        return np.array(empty), np.array(present)

    empty, present = shares(in_doubles)
    assert empty.min() > present.max() + 0.3  # one sketch is enough, whatever ε says
    empty, present = shares(on_the_grid)
    error = np.sqrt((empty.var() + present.var()) / studies)
    assert abs(empty.mean() - present.mean()) < 4 * max(error, 1 / (m * studies))
    step = sd / grid.STEPS_PER_SD
    released = on_the_grid(1e-6 * phi)
    assert (np.rint(released / step) * step == released).all()  # what leaves is a function of whole steps


def test_values_off_the_grid_are_refused():
    with pytest.raises(PrivacyError, match="grid"):
        snap(np.array([1e30]), 1e-6)
    with pytest.raises(PrivacyError, match="grid"):
        snap(np.array([np.nan]), 1.0)


def test_figures_that_the_page_states():
    """docs/privacy.md: ε against a party that knows Φ, and that n = 500 leaves nothing to fit at ε = 1, 3 or 10."""
    assert round(dp.guarantee(1.0, 1e-6, 1000, {"a": 1.0}).epsilon_known_phi) == 19
    bound2 = 1.15 * 305
    for epsilon in (1.0, 3.0, 10.0):
        at_500 = dp.guarantee(epsilon, 1e-6, 250, {"a": np.sqrt(bound2)}).sites["a"].noise_variance(500)
        at_100_000 = dp.guarantee(epsilon, 1e-6, 1000, {"a": np.sqrt(bound2)}).sites["a"].noise_variance(100_000)
        assert at_500 > 0.5  # of a feature of variance one: refused
        assert at_100_000 < 0.5
