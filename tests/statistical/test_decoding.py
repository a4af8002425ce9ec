"""Attacks with Φ known (linear programming, Bayes-AMP) and without (known rows, singletons, reuse of Φ)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import InputError
from intarsia.privacy.decode import Levels, attack_column, decode_amp, decode_lp, orthonormal_rows, score, state_evolution
from intarsia.privacy.known_rows import attack_known_rows, known_rows_r2
from intarsia.privacy.leakage import known_phi_r2
from intarsia.privacy.plan import decodable_prevalence
from intarsia.privacy.singleton import match_phi, singleton_search


def sketching_matrix(kind, m, n, rng):
    G = rng.standard_normal((m, n))
    if kind == "gaussian":
        return G / np.sqrt(n)
    G -= G.mean(axis=1, keepdims=True)
    return np.linalg.solve(np.linalg.cholesky(G @ G.T), G)


def binary(n, share, rng):
    x = np.zeros(n)
    x[rng.permutation(n)[: round(share * n)]] = 1
    return x


def success(kind, m, n, column, rng, times):
    """How often each decoder recovers the whole column."""
    found = {"amp": 0, "lp": 0}
    for _ in range(times):
        x = column(rng)
        Phi = sketching_matrix(kind, m, n, rng)
        for d in attack_column(Phi, Phi @ x, x, 60):
            found[d.method] += d.exact
    return {name: count / times for name, count in found.items()}


@pytest.mark.parametrize("kind", ["gaussian", "orthonormal"])
def test_rare_columns_fall_and_balanced_ones_do_not(kind):
    rng = np.random.default_rng(0)
    n = 200
    assert success(kind, 60, n, lambda r: binary(n, 0.03, r), rng, 4) == {"amp": 1, "lp": 1}
    assert success(kind, 20, n, lambda r: binary(n, 0.5, r), rng, 4) == {"amp": 0, "lp": 0}


def test_success_rises_with_m():
    rng = np.random.default_rng(1)
    n = 200
    rates = [success("orthonormal", m, n, lambda r: binary(n, 0.1, r), rng, 8)["amp"] for m in (20, 45, 60, 90)]
    assert rates == sorted(rates)
    assert rates[0] == 0
    assert rates[-1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gaussian", "orthonormal"])
@pytest.mark.parametrize(
    ("share", "ratio", "lp", "amp"),
    [
        (0.01, 0.05, 0.35, 0.47), (0.01, 0.10, 1, 1), (0.05, 0.10, 0, 0), (0.05, 0.25, 1, 1), (0.20, 0.25, 0, 0),
        (0.20, 0.50, 1, 1), (0.50, 0.50, 0.53, 0.75),
    ],
)  # fmt: skip
def test_table_of_binary_columns(share, ratio, lp, amp, kind):
    n, times = 500, 40
    rates = success(kind, round(ratio * n), n, lambda r: binary(n, share, r), np.random.default_rng(3), times)
    print(f"{kind} prevalence {share} m/n {ratio}: LP {rates['lp']:.2f} ({lp}), AMP {rates['amp']:.2f} ({amp})")
    for name, expected in (("lp", lp), ("amp", amp)):
        spread = max(np.sqrt(expected * (1 - expected) / times), 0.02)
        assert rates[name] == pytest.approx(expected, abs=4 * spread + 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gaussian", "orthonormal"])
@pytest.mark.parametrize(
    ("frequency", "ratio", "lp", "amp"),
    [(0.01, 0.10, 0.70, 0.65), (0.01, 0.25, 1, 1), (0.05, 0.25, 0.30, 0.57), (0.05, 0.50, 1, 1)],
)
def test_table_of_genotypes(frequency, ratio, lp, amp, kind):
    n, times = 500, 40
    rates = success(
        kind, round(ratio * n), n, lambda r: r.binomial(2, frequency, n).astype(float), np.random.default_rng(4), times
    )
    print(f"{kind} MAF {frequency} m/n {ratio}: LP {rates['lp']:.2f} ({lp}), AMP {rates['amp']:.2f} ({amp})")
    for name, expected in (("lp", lp), ("amp", amp)):
        spread = max(np.sqrt(expected * (1 - expected) / times), 0.02)
        assert rates[name] == pytest.approx(expected, abs=4 * spread + 0.05)


def test_rounding_does_not_stop_the_decoders():
    rng = np.random.default_rng(5)
    n, m = 200, 60
    x, Phi = binary(n, 0.05, rng), sketching_matrix("orthonormal", m, n, rng)
    b = (Phi @ x).astype(np.float32).astype(float)
    assert all(d.exact for d in attack_column(Phi, b, x, 30, tolerance=1e-6))
    coarse = np.round(Phi @ x * 2**10) / 2**10  # about ten bits
    found = decode_lp(Phi, coarse, 0, 1, tolerance=2**-11)
    assert found is not None
    assert (np.round(found) == x).all()


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_a_column_and_its_mirror_are_decoded_alike(share):
    """Rare zeros are as exposed as rare ones; and calling everybody rare is no success."""
    rng = np.random.default_rng(15)
    n, m = 200, 40
    x, Phi = binary(n, share, rng), sketching_matrix("orthonormal", m, n, rng)
    one, other = (attack_column(Phi, Phi @ column, column, 30) for column in (x, 1 - x))
    for a, b in zip(one, other, strict=True):
        assert a.method == b.method
        assert a.right == pytest.approx(b.right, abs=0.03)
        assert a.right_rare == pytest.approx(b.right_rare, abs=0.05)
    assert score(x, np.ones(n), "all rare", 0.0).right_rare < 2.1 * share


def test_a_sparse_continuous_column_is_decoded_too():
    rng = np.random.default_rng(6)
    n, m = 400, 160
    x = np.where(rng.random(n) < 0.08, rng.gamma(2, size=n), 0.0)
    Phi = sketching_matrix("orthonormal", m, n, rng)
    estimate = decode_amp(Phi, Phi @ x, Levels.of(x))
    assert np.corrcoef(estimate, x)[0, 1] > 0.999


def test_amp_is_as_good_as_its_theory_says():
    """Below the threshold nothing is decoded, but the error left is the one that state evolution predicts."""
    rng = np.random.default_rng(7)
    n, m = 2000, 500
    left = []
    for _ in range(4):
        x, Phi = binary(n, 0.2, rng), sketching_matrix("orthonormal", m, n, rng)
        left.append(np.mean((decode_amp(Phi, Phi @ x, Levels.of(x)) - x) ** 2) / x.var())
    assert np.mean(left) == pytest.approx(state_evolution(Levels.of(x), m / n), abs=0.03)


@pytest.mark.parametrize("ratio", [0.03, 0.1, 0.25, 0.4])
def test_planning_table_is_the_state_evolution(ratio):
    p = decodable_prevalence(ratio)

    def unknown(share):
        return state_evolution(Levels(np.array([0.0, 1.0]), np.array([1 - share, share])), ratio)

    assert unknown(0.9 * p) < 1e-3
    assert unknown(1.1 * p) > 0.1


@given(st.floats(0.02, 0.45), st.floats(0.02, 0.9))
@settings(max_examples=30, deadline=None)
def test_state_evolution_is_a_share_and_free_of_scale(share, ratio):
    weights = np.array([1 - share, share])
    here = state_evolution(Levels(np.array([0.0, 1.0]), weights), ratio, 60)
    assert 0 <= here <= 1
    moved = state_evolution(Levels(np.array([5.0, 105.0]), weights), ratio, 60)
    assert moved == pytest.approx(here, abs=1e-4)


def test_decoders_refuse_what_cannot_be_attacked():
    with pytest.raises(InputError, match="one value"):
        Levels.of(np.ones(10))
    with pytest.raises(InputError, match="m/n"):
        state_evolution(Levels(np.array([0.0, 1.0]), np.array([0.5, 0.5])), 0.0)


def test_any_phi_reduces_to_orthonormal_rows():
    rng = np.random.default_rng(8)
    Phi, x = sketching_matrix("gaussian", 10, 40, rng), rng.standard_normal(40)
    Q, b = orthonormal_rows(Phi, Phi @ x)
    np.testing.assert_allclose(Q @ Q.T, np.eye(10), atol=1e-12)
    np.testing.assert_allclose(Q @ x, b, atol=1e-12)


# --- Φ secret -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "orthonormal"])
def test_whoever_knows_phi_reads_the_share_of_a_column_that_the_sketch_spans(kind):
    """R² = m/n of any continuous column: the best linear guess is the column's part in the sketch's space."""
    rng = np.random.default_rng(11)
    n, m = 400, 100
    Phi, Y = sketching_matrix(kind, m, n, rng), rng.standard_normal((n, 200))
    Y -= Y.mean(axis=0)
    guess = np.linalg.pinv(Phi) @ (Phi @ Y)
    r2 = 1 - ((Y - guess) ** 2).sum(axis=0) / (Y**2).sum(axis=0)
    assert np.mean(r2) == pytest.approx(known_phi_r2(n, m, kind), abs=0.01)


def test_known_rows_give_the_predicted_share():
    rng = np.random.default_rng(9)
    n, m, c = 500, 250, 300
    scores = []
    for _ in range(5):
        X, y = rng.standard_normal((n, c)), rng.standard_normal((n, 1))
        Phi = sketching_matrix("orthonormal", m, n, rng)
        guess = attack_known_rows(Phi @ X, X, Phi @ y, n, np.eye(c), joint=False)
        scores.append(np.corrcoef(guess[:, 0], y[:, 0])[0, 1])
    assert np.mean(scores) == pytest.approx(np.sqrt(known_rows_r2(n, m, c)), abs=0.03)


@pytest.mark.parametrize("kind", ["gaussian", "orthonormal"])
def test_the_same_phi_twice_gives_the_withdrawn_row(kind):
    rng = np.random.default_rng(10)
    X, Phi = rng.standard_normal((100, 12)), sketching_matrix(kind, 20, 100, rng)
    without = X.copy()
    without[7] = 0
    _, _, directions = np.linalg.svd(Phi @ X - Phi @ without, full_matrices=False)
    assert abs(np.corrcoef(directions[0], X[7])[0, 1]) == pytest.approx(1.0, abs=1e-6)


def test_second_moments_are_learned_to_one_over_root_m():
    rng = np.random.default_rng(11)
    n, m, r = 2000, 200, 0.6
    errors = []
    for _ in range(60):
        z = rng.standard_normal((n, 2))
        z[:, 1] = r * z[:, 0] + np.sqrt(1 - r**2) * z[:, 1]
        S = sketching_matrix("orthonormal", m, n, rng) @ z
        errors.append(S[:, 0] @ S[:, 1] / np.sqrt((S[:, 0] @ S[:, 0]) * (S[:, 1] @ S[:, 1])) - r)
    assert np.std(errors) == pytest.approx((1 - r**2) / np.sqrt(m), rel=4 / np.sqrt(2 * len(errors)))


def rare_columns(n, P, prevalence, rng):
    X = (rng.random((n, P)) < prevalence).astype(float)
    X = X[:, X.sum(axis=0) > 0]
    return (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)  # as a site scales its columns


def test_singletons_expose_columns_of_phi_and_the_gate_stops_them():
    rng = np.random.default_rng(12)
    n, m = 200, 50
    Phi = sketching_matrix("orthonormal", m, n, rng)
    X = rare_columns(n, 2000, 0.02, rng)
    found = singleton_search((Phi @ X).astype(np.float32), n)
    count, precision = match_phi(found.phi, Phi)
    assert count > 100  # of 200
    assert precision == 1
    dense = singleton_search(Phi @ rare_columns(n, 2000, 0.015, rng), n)  # many mixtures of three to be told apart
    count, precision = match_phi(dense.phi, Phi)
    assert count > 180
    assert precision == 1
    common = X[:, (X > 0).sum(axis=0) >= 10]
    many = rare_columns(n, 2000, 0.1, rng)
    many = many[:, (many > 0).sum(axis=0) >= 10]
    assert singleton_search(Phi @ np.hstack([common, many]), n).phi.shape[1] == 0
