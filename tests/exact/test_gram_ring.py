"""Arithmetic modulo 2⁶⁴: exact products, no overflow, an error that is small at every n."""

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.wire.ring import CHUNK, TOP_BITS, decode, encode, fits, fraction_bits, product, square

EDGES = np.array(
    [0, 1, 2**21 - 1, 2**21, 2**22, 2**43, 2**43 - 1, 2**44, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2**21], dtype=np.uint64
)


def whole(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """AᵀB modulo 2⁶⁴ in Python's own whole numbers."""
    out = [[sum(int(x) * int(y) for x, y in zip(a, b, strict=True)) % 2**64 for b in B.T] for a in A.T]
    return np.array(out, dtype=np.uint64)


@pytest.mark.parametrize("rows", [1, 7, CHUNK, CHUNK + 3])
def test_products_are_exact_for_any_numbers_of_the_ring(rows):
    rng = np.random.default_rng(rows)
    A, B = (rng.integers(0, 2**64, (rows, k), dtype=np.uint64) for k in (3, 2))
    A[rng.random(A.shape) < 0.3] = 2**64 - 1
    assert np.array_equal(product(A, B), whole(A, B))
    assert np.array_equal(square(A), whole(A, A))


def test_products_are_exact_at_the_edges_of_the_limbs():
    A, B = np.meshgrid(EDGES, EDGES)
    for a, b in zip(A.ravel(), B.ravel(), strict=True):
        a, b = np.full((CHUNK, 1), a), np.full((CHUNK, 1), b)
        assert int(product(a, b)[0, 0]) == CHUNK * int(a[0, 0]) * int(b[0, 0]) % 2**64


@pytest.mark.parametrize("n", [50, 1241, 10**4, 10**6, 10**9, 2**39])
def test_no_product_of_standardised_columns_leaves_the_ring(n):
    """The worst: one subject carries a whole column, or all do; each value rounded up by as much as can be."""
    bits = fraction_bits(n)
    for carriers in (1, n):
        value = int(np.ceil(np.sqrt((n - 1) / carriers) * 2**bits)) + 1
        assert carriers * value**2 < 2**TOP_BITS


def test_too_few_and_too_many_subjects_are_refused():
    for n in (1, 2**40):
        with pytest.raises(InputError, match="subjects"):
            fraction_bits(n)


@pytest.mark.parametrize("kind", ["normal", "binary"])
def test_error_stays_below_a_ten_millionth_of_the_diagonal_at_a_million_subjects(kind):
    """Binary columns are the hard case: with plain rounding every carrier is off by the same amount."""
    n, rng = 10**6, np.random.default_rng(1)
    bits, exact, found = fraction_bits(n), np.zeros((6, 6)), np.zeros((6, 6), dtype=np.uint64)
    X = rng.standard_normal((n, 6)) if kind == "normal" else (rng.random((n, 6)) < 0.37).astype(float)
    X[:, 1] = X[:, 0]  # a perfectly correlated pair
    X = (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)
    for start in range(0, n, 100_000):
        block = X[start : start + 100_000]
        exact += block.T @ block
        code = encode(block, bits, rng.random(block.shape))
        found += product(code, code)
    diagonal = np.diagonal(found).copy()
    assert fits(found, diagonal, diagonal)
    assert np.abs(decode(found, bits) - exact).max() < 3e-9 * n


def test_rounding_is_right_on_average():
    """Without the random part a value of a quarter step would always be lost."""
    rng, values = np.random.default_rng(2), np.full(100_000, 0.25 / 2**20)
    mean = encode(values, 20, rng.random(values.shape)).view(np.int64).mean()
    assert abs(mean - 0.25) < 5 * np.sqrt(0.25 * 0.75 / len(values))


@pytest.mark.parametrize("n", [1241, 10**4, 10**5, 10**6, 10**9])
def test_by_calculation_the_error_is_below_a_ten_millionth_of_the_diagonal_at_every_n(n):
    """Each value is off by less than a step 2^-f, right on average: a product by a sum of n independent errors, at most
    2^-f·(|x| + |y|) + 2^-2f each. Six standard deviations (Hoeffding: √(Σ(2·error)²/4)·6) against 1e-7·n.
    """
    step = 2.0 ** -fraction_bits(n)
    spread = step * np.sqrt(2 * (n - 1) + 2 * n * step)
    assert 6 * spread < 1e-8 * n


def test_a_product_larger_than_its_columns_allow_is_noticed():
    nine = np.array([9], dtype=np.uint64)
    assert not fits(np.array([[10]], dtype=np.uint64), nine, nine)
    assert not fits(np.array([[2**64 - 10]], dtype=np.uint64), nine, nine)
    assert fits(np.array([[2**64 - 9]], dtype=np.uint64), nine, nine)
    assert not fits(np.array([[2**63]], dtype=np.uint64), nine, nine)
