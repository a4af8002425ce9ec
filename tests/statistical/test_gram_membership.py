"""The membership attack on an exact Gram matrix: simulated, against the formula the gate prints."""

import numpy as np
import pytest
from scipy import stats

from intarsia.errors import InputError
from intarsia.privacy.gram_leakage import auc_of_person, membership_auc, most_columns
from intarsia.privacy.membership import auc


def leverage_auc(n: int, c: int) -> float:
    """By the law of the leverage alone: an attacker who knows the Gram matrix and the candidate's row, but not Σ."""
    t = c / (n - 1 - c) * stats.f.ppf((np.arange(2000) + 0.5) / 2000, c, n - 1 - c)
    return float(np.mean(stats.f.sf(t / (1 + t) * (n - c) / c, c, n - c)))


def attacked(n: int, c: int, repeats: int, seed: int) -> tuple[float, float]:
    """AUC with Σ known (s/h) and with G alone (−h), over fresh cohorts; candidates are all members and as many others."""
    rng = np.random.default_rng(seed)
    known: list[list[np.ndarray]] = [[], []]
    alone: list[list[np.ndarray]] = [[], []]
    A = rng.standard_normal((c, c)) / np.sqrt(c) + np.eye(c)
    inverse = np.linalg.inv(A.T @ A)
    for _ in range(repeats):
        rows = rng.standard_normal((2 * n, c)) @ A
        members = rows[:n]
        D = members - members.mean(axis=0)
        G = D.T @ D
        for k, people in enumerate((members, rows[n:])):
            x = people - members.mean(axis=0)
            h = np.einsum("ij,ij->i", x @ np.linalg.inv(G), x)
            known[k].append(np.einsum("ij,ij->i", x @ inverse, x) / h)
            alone[k].append(-h)
    return tuple(auc(np.concatenate(s[0]), np.concatenate(s[1])) for s in (known, alone))


@pytest.mark.parametrize(("n", "c", "repeats"), [(200, 20, 60), (300, 90, 20), (1000, 16, 15)])
def test_simulated_attacks_have_the_auc_the_gate_states(n, c, repeats):
    with_sigma, alone = attacked(n, c, repeats, seed=n)
    slip = 4 * 0.3 / np.sqrt(n * repeats) + 0.005  # chance, and that a candidate is centred with the cohort's mean
    assert abs(with_sigma - membership_auc(n, c)) < slip
    assert abs(alone - leverage_auc(n, c)) < slip
    assert leverage_auc(n, c) < membership_auc(n, c)


def test_figures_of_the_documents():
    assert membership_auc(1241, 290) > 0.999
    assert [most_columns(n, 0.6) for n in (10**4, 10**5, 10**6)] == pytest.approx([50, 160, 507], rel=0.02)


def test_a_person_who_stands_out_is_recognised_better() -> None:
    """One row, in or out of the products; the attacker knows the covariance."""
    rng = np.random.default_rng(0)
    n, c = 200, 20
    row = 2.0 * rng.standard_normal(c)
    scores: tuple[list[float], list[float]] = ([], [])
    for k in range(1000):
        X = rng.standard_normal((n, c))
        X[0] = row if k % 2 else X[0]
        X = X - X.mean(axis=0)
        scores[k % 2].append(float(row @ row / (row @ np.linalg.solve(X.T @ X, row))))
    distance2 = float(row @ row)
    expected = auc_of_person(n, c, distance2)
    assert auc(np.array(scores[1]), np.array(scores[0])) == pytest.approx(expected, abs=0.05)
    assert expected > membership_auc(n, c)
    assert auc_of_person(n, c, c) == pytest.approx(membership_auc(n, c), abs=0.01)


def test_more_columns_than_subjects_make_no_gram_matrix():
    with pytest.raises(InputError, match="columns"):
        membership_auc(10, 9)
