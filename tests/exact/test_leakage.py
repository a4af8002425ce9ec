"""Bits a sketch tells: the paper's figures against the correct ones, order, monotonicity, and the laws behind them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import gammaln

from intarsia.errors import InputError
from intarsia.privacy.leakage import (
    gaussian_nats,
    known_phi_r2,
    leakage,
    log_det_deficit,
    orthonormal_nats,
)

SIZES = st.tuples(st.integers(4, 300), st.integers(1, 300), st.integers(1, 300)).filter(lambda s: s[1] <= s[0])


@pytest.mark.parametrize(("m", "upper", "per_subject"), [(50, 0.0282, 8.45), (100, 0.0564, 16.9), (250, 0.141, 42.3)])
def test_correct_values_for_the_papers_first_simulation(m, upper, per_subject):
    bits = leakage(500, m, 300, "gaussian")
    assert bits.per_entry[1] == pytest.approx(upper, rel=5e-3)
    assert bits.per_subject[1] == pytest.approx(per_subject, rel=5e-3)


@pytest.mark.parametrize(("m", "upper"), [(50, 0.00043), (100, 0.00087), (250, 0.00217)])
def test_correct_values_for_the_responses(m, upper):
    assert leakage(500, m, 5, "gaussian").per_entry[1] == pytest.approx(upper, abs=5e-6)


def test_correct_values_for_the_papers_second_simulation():
    low, high = leakage(1000, 200, 333, "gaussian").per_entry
    assert low == pytest.approx(0.0118, abs=5e-5)
    assert high == pytest.approx(0.0273, abs=5e-5)


def test_infinite_where_it_is_infinite():
    assert leakage(126, 20, 2346, "gaussian").lower_bits == np.inf
    assert leakage(126, 20, 2346).upper_bits == np.inf
    assert orthonormal_nats(20, 5, 14) < np.inf
    assert orthonormal_nats(20, 5, 15) == np.inf  # m + c = 20 > n - 1
    assert orthonormal_nats(20, 5, 15, centred=False) < np.inf


@given(SIZES)
@settings(max_examples=200, deadline=None)
def test_bounds_are_ordered_and_never_negative(sizes):
    n, m, c = sizes
    low, high = gaussian_nats(n, m, c)
    assert 0 <= low <= high
    exact = orthonormal_nats(n, m, c, centred=False)
    # A gaussian sketch is an orthonormal one multiplied by noise of its own: it cannot tell more.
    assert exact >= low * (1 - 1e-9) - 1e-9


@given(SIZES)
@settings(max_examples=200, deadline=None)
def test_more_rows_or_columns_tell_more(sizes):
    n, m, c = sizes
    if m < n:
        assert gaussian_nats(n, m + 1, c)[1] >= gaussian_nats(n, m, c)[1]
        assert orthonormal_nats(n, m + 1, c) >= orthonormal_nats(n, m, c) - 1e-7
    assert orthonormal_nats(n, m, c + 1) >= orthonormal_nats(n, m, c) - 1e-7
    assert known_phi_r2(n, m, "gaussian") <= 1


@given(SIZES)
@settings(max_examples=100, deadline=None)
def test_the_orthonormal_expression_is_symmetric_in_rows_and_columns(sizes):
    """An m×c corner of a Haar matrix is a c×m corner transposed; only the entropy of X's own scale differs.

    I(m, c) + (m/2)·Σ_{j≤c} ψ = h-terms symmetric in m and c, so the difference of the two orders is known.
    """
    from scipy.special import psi

    n, m, c = sizes
    if c > n or m + c > n:
        return

    def symmetric(a: int, b: int) -> float:
        j = np.arange(b)
        return orthonormal_nats(n, a, b, centred=False) + a / 2 * float(psi((n - j) / 2).sum())

    assert symmetric(m, c) == pytest.approx(symmetric(c, m), rel=1e-9, abs=1e-7)


def test_one_row_against_quadrature():
    """m = c = 1: a corner v of a Haar matrix has density K(1−v²)^((ν−3)/2); its entropy by numerical integration."""
    nu = 12
    K = np.exp(gammaln(nu / 2) - gammaln((nu - 1) / 2)) / np.sqrt(np.pi)

    def density(v: float) -> float:
        return K * (1 - v * v) ** ((nu - 3) / 2)

    assert quad(density, -1, 1)[0] == pytest.approx(1, abs=1e-9)
    h_v = quad(lambda v: -density(v) * np.log(density(v)), -1, 1)[0]
    from scipy.special import psi

    mean_log_length = (psi(nu / 2) + np.log(2)) / 2  # E ln ‖x‖ for ν Gaussian entries
    expected = 0.5 * np.log(2 * np.pi * np.e) - h_v - mean_log_length
    assert orthonormal_nats(nu, 1, 1, centred=False) == pytest.approx(expected, rel=1e-8)


def _monte_carlo_gaussian(n: int, m: int, c: int, outer: int, inner: int, rng: np.random.Generator) -> tuple[float, float]:
    """I(ΦX; X) by simulation: ln p(Z | X) exactly, ln p(Z) as a mean over Φ (Z given Φ has columns N(0, ΦΦᵀ))."""
    K = np.array([(G := rng.standard_normal((m, n))) @ G.T / n for _ in range(inner)])
    logdet, inverse = np.linalg.slogdet(K)[1], np.linalg.inv(K)
    values = []
    for _ in range(outer):
        X = rng.standard_normal((n, c))
        Z = rng.standard_normal((m, n)) @ X / np.sqrt(n)
        S = X.T @ X / n
        given = -m / 2 * np.linalg.slogdet(S)[1] - 0.5 * np.trace(np.linalg.solve(S, Z.T @ Z))
        log_p = -c / 2 * logdet - 0.5 * np.einsum("kij,ji->k", inverse, Z @ Z.T)
        values.append(given - (np.logaddexp.reduce(log_p) - np.log(inner)))
    return float(np.mean(values)), float(np.std(values) / np.sqrt(outer))


@pytest.mark.parametrize(("n", "m", "c", "expected"), [(20, 3, 10, 4.78), (20, 2, 15, 8.47)])
def test_gaussian_bounds_hold_the_simulated_value(n, m, c, expected):
    value, error = _monte_carlo_gaussian(n, m, c, 3000, 8000, np.random.default_rng(5))
    low, high = gaussian_nats(n, m, c)
    assert low - 4 * error < value < high + 4 * error
    assert value == pytest.approx(expected, abs=0.12)
    # The orthonormal sketch of the same data tells more.
    assert orthonormal_nats(n, m, c, centred=False) > value


def test_orthonormal_expression_against_simulation():
    """ln p(Z | X) − ln p(Z) averaged over real Haar sketches, with the Pearson-II density written out."""
    n, m, c = 16, 3, 5
    nu = n - 1
    rng = np.random.default_rng(11)
    j = np.arange(c)
    log_k = -m * c / 2 * np.log(np.pi) + float((gammaln((nu - j) / 2) - gammaln((nu - m - j) / 2)).sum())
    values = []
    for _ in range(20000):
        X = rng.standard_normal((n, c))
        X -= X.mean(axis=0)
        G = rng.standard_normal((m, n))
        G -= G.mean(axis=1, keepdims=True)
        Z = np.linalg.solve(np.linalg.cholesky(G @ G.T), G @ X)
        S = X.T @ X
        corner = np.eye(c) - np.linalg.solve(S, Z.T @ Z)
        given = log_k + (nu - m - c - 1) / 2 * np.linalg.slogdet(corner)[1] - m / 2 * np.linalg.slogdet(S)[1]
        plain = -m * c / 2 * np.log(2 * np.pi) - 0.5 * np.square(Z).sum()
        values.append(given - plain)
    error = np.std(values) / np.sqrt(len(values))
    assert np.mean(values) == pytest.approx(orthonormal_nats(n, m, c), abs=4 * error)
    # The formula that forgets the centring would be several errors off: the test can fail.
    assert abs(np.mean(values) - orthonormal_nats(n, m, c, centred=False)) > 8 * error


def test_the_deficit_is_infinite_where_no_determinant_is():
    assert log_det_deficit(3, 4) == np.inf


@pytest.mark.parametrize("sizes", [(10, 11, 3), (10, 0, 3), (10, 3, 0), (1, 1, 1)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(InputError):
        leakage(*sizes)
    with pytest.raises(InputError, match="Unknown sketch kind"):
        leakage(10, 3, 3, "sparse")  # type: ignore[arg-type]
