"""The membership attack: theory, both whitenings, both kinds of sketch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import InputError
from intarsia.privacy.membership import (
    attack_membership,
    auc,
    auc_of_person,
    inverse_of_gram,
    largest_ratio,
    membership_auc,
)


@pytest.mark.parametrize(
    ("n", "c", "m", "expected"),
    [(500, 300, 50, 0.950), (1000, 1000, 200, 1.0), (5000, 300, 250, 0.677), (10000, 300, 1000, 0.680)],
)
def test_theory(n, c, m, expected):
    assert membership_auc(n, m, c, "gaussian") == pytest.approx(expected, abs=1e-3)
    assert membership_auc(n, m, c) == pytest.approx(expected, abs=5e-3)


def test_how_many_columns_keep_the_auc_at_sixty_percent():
    found = [largest_ratio(m) for m in (50, 100, 250, 1000)]
    assert found == pytest.approx([0.075, 0.052, 0.033, 0.016], abs=6e-4)


@given(st.integers(50, 3000), st.integers(2, 49), st.integers(1, 500), st.sampled_from(["gaussian", "orthonormal"]))
@settings(max_examples=60, deadline=None)
def test_more_rows_or_columns_help_the_attacker(n, m, c, kind):
    here = membership_auc(n, m, c, kind)
    assert 0.49 <= here <= 1
    assert membership_auc(n, m, c + 50, kind) >= here - 1e-9
    assert membership_auc(n, m + 1, c, kind) >= here - 2e-4


@pytest.mark.parametrize(("times", "kind"), [(1.0, "gaussian"), (2.5, "gaussian"), (2.5, "orthonormal"), (5.0, "gaussian")])
def test_a_person_who_stands_out_is_recognised_better_than_the_average_says(times, kind):
    """One row, in or out, under many Φ; the columns are independent and the attacker knows it."""
    rng = np.random.default_rng(0)
    n, m, c = 400, 60, 40
    X = rng.standard_normal((n, c))
    row = times * X[0]
    scores = ([], [])
    for k in range(600):
        Z = X.copy()
        Z[0] = row if k % 2 else rng.standard_normal(c)
        G = rng.standard_normal((m, n)) / np.sqrt(n)
        if kind == "orthonormal":
            G = np.linalg.qr(G.T)[0].T
        scores[k % 2].append(np.square(G @ (Z @ row)).sum())
    expected = auc_of_person(n, m, float(row @ row))
    assert auc(np.array(scores[1]), np.array(scores[0])) == pytest.approx(expected, abs=0.06)
    assert expected > membership_auc(n, m, c) or times == 1


def simulate(n, m, c, rho, kind, rng, candidates=1000):
    S = (1 - rho) * np.eye(c) + rho
    L = np.linalg.cholesky(S)
    X = rng.standard_normal((n, c)) @ L.T
    G = rng.standard_normal((m, n))
    if kind == "gaussian":
        Phi = G / np.sqrt(n)
    else:
        G -= G.mean(axis=1, keepdims=True)
        Phi = np.linalg.solve(np.linalg.cholesky(G @ G.T), G)
    others = rng.standard_normal((min(n, candidates), c)) @ L.T
    return attack_membership(Phi @ X, X[:candidates], others, np.linalg.inv(S), kind, n)


@pytest.mark.parametrize("kind", ["gaussian", "orthonormal"])
def test_measured(kind):
    rng = np.random.default_rng(2)
    found = [simulate(500, 50, 300, 0.5, kind, rng) for _ in range(6)]
    assert np.mean([f.measured_known for f in found]) == pytest.approx(found[0].theory, abs=0.02)
    assert 0.8 < np.mean([f.measured_sketch for f in found]) < 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "c", "m", "known", "tolerance"),
    [
        (500, 300, 50, 0.950, 0.015),
        (1000, 1000, 200, 1.0, 0.005),
        (5000, 300, 250, 0.68, 0.03),
        (10000, 300, 1000, 0.68, 0.03),
    ],
)
@pytest.mark.parametrize("kind", ["gaussian", "orthonormal"])
def test_measured_table(n, c, m, known, tolerance, kind):
    rng = np.random.default_rng(7)
    found = [simulate(n, m, c, 0.5, kind, rng, 2500) for _ in range(4)]
    measured = np.mean([f.measured_known for f in found]), np.mean([f.measured_sketch for f in found])
    print(f"{kind} {(n, c, m)} theory {found[0].theory:.3f} Σ known {measured[0]:.3f} sketch only {measured[1]:.3f}")
    assert measured[0] == pytest.approx(known, abs=tolerance)
    assert measured[1] <= measured[0] + 0.01


def test_scaling_the_columns_changes_nothing_for_an_attacker_who_knows_the_covariance():
    rng = np.random.default_rng(3)
    X, others, Phi = rng.standard_normal((80, 6)), rng.standard_normal((50, 6)), rng.standard_normal((9, 80)) / 80**0.5
    scale = np.array([1e-3, 1, 7, 1e4, 2, 0.5])
    plain = attack_membership(Phi @ X, X, others, np.eye(6), "gaussian", 80)
    scaled = attack_membership(Phi @ (X * scale), X * scale, others * scale, np.diag(1 / scale**2), "gaussian", 80)
    assert scaled.measured_known == plain.measured_known


def test_auc_itself():
    assert auc([2, 3], [0, 1]) == 1
    assert auc([0, 1], [0, 1]) == 0.5
    assert auc([0], [5, 6]) == 0


def test_an_auc_that_cannot_be_computed():
    with pytest.raises(InputError, match="members and non-members"):
        auc([], [1.0])
    with pytest.raises(InputError, match="not finite"):
        auc([np.nan], [1.0])
    with pytest.raises(InputError, match=r"between 0\.5 and 1"):
        largest_ratio(50, 0.4)


@pytest.mark.parametrize("shape", [(5, 12), (30, 12)])
def test_both_ways_to_the_inverse_agree(shape):
    Z = np.random.default_rng(0).standard_normal(shape)
    expected = np.linalg.inv(Z.T @ Z / shape[0] + 0.3 * np.eye(12))
    np.testing.assert_allclose(inverse_of_gram(Z, 0.3), expected, atol=1e-10)
