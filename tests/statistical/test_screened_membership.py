"""The membership attack on a screened study's sums and kept Gram matrix: simulated by somebody who knows all covariances,
against the figures that gate and card state.
"""

import numpy as np
import pytest
from scipy import stats

from intarsia.errors import InputError
from intarsia.privacy.facts import Facts, Screen
from intarsia.privacy.membership import auc
from intarsia.privacy.membership import membership_auc as sketch_auc
from intarsia.privacy.policy import Policy
from intarsia.privacy.screened_leakage import (
    auc_beside_sketch,
    least_people,
    membership_auc,
    most,
    most_kept,
    most_sums,
    person_auc,
)
from intarsia.site.screened.screen_facts import exposure


def cohort(n: int, P: int, Q: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features in a chain of correlation .5, a few of them with effects, and the joint correlation matrix of both."""
    X = rng.standard_normal((n, P))
    for j in range(1, P):
        X[:, j] = 0.5 * X[:, j - 1] + np.sqrt(0.75) * X[:, j]
    B = np.zeros((P, Q))
    B[:4] = 0.1
    S = 0.5 ** np.abs(np.subtract.outer(np.arange(P), np.arange(P)))
    whole = np.block([[S, S @ B], [B.T @ S, B.T @ S @ B + np.eye(Q)]])
    sd = np.sqrt(np.diagonal(whole))
    return X, X @ B + rng.standard_normal((n, Q)), whole / np.outer(sd, sd)


def attacked(n: int, P: int, Q: int, kept: int, repeats: int, seed: int) -> float:
    """By the likelihood ratio of the sums and, where features are kept, of the leverage in their Gram matrix."""
    rng = np.random.default_rng(seed)
    scores: list[list[np.ndarray]] = [[], []]
    for _ in range(repeats):
        X, Y, S = cohort(2 * n, P, Q, rng)
        Z = np.hstack([X, Y])
        Z = (Z - Z[:n].mean(axis=0)) / Z[:n].std(axis=0, ddof=1)
        X, Y, inside = Z[:, :P], Z[:, P:], Z[:n]
        A, B = np.linalg.solve(S[:P, :P], X.T).T, np.linalg.solve(S[P:, P:], Y.T).T
        t = np.einsum("ip,pq,iq->i", A, inside[:, :P].T @ inside[:, P:] / n - S[:P, P:], B)
        d = np.sqrt(np.einsum("ip,ip->i", A, X) * np.einsum("iq,iq->i", B, Y) / n)
        found = d * (t / d) - d**2 / 2
        if kept:
            few = np.r_[np.arange(kept), np.arange(P, P + Q)]
            V, c = Z[:, few], kept + Q
            h = np.einsum("ij,ij->i", V @ np.linalg.inv(V[:n].T @ V[:n]), V)
            ratio = np.einsum("ij,ij->i", V @ np.linalg.inv(S[np.ix_(few, few)]), V) / h
            found = found + stats.chi2.logpdf(ratio, n - 1) - stats.chi2.logpdf(ratio, n - c)
        for k, some in enumerate((found[:n], found[n:])):
            scores[k].append(some)
    return auc(*(np.concatenate(some) for some in scores))


@pytest.mark.parametrize(("n", "P", "Q", "kept"), [(2000, 200, 5, 0), (2000, 400, 1, 0), (2000, 300, 3, 0), (2000, 150, 3, 20)])
def test_the_best_attack_has_the_auc_that_the_gate_states(n, P, Q, kept):
    stated = membership_auc(n, P * Q, Q, kept + Q if kept else 0)
    assert abs(attacked(n, P, Q, kept, 5, seed=n + P + Q) - stated) < 0.02


def test_at_the_default_limit_the_best_attack_is_at_most_65():
    n, P, Q = 3000, 150, 3
    kept = most(Facts(n, 0, "screened", P + Q, screen=Screen(P, Q, 0, 1)), Policy())
    assert kept == min(most_kept(n, P * Q, Q, 0, 0.65), round(np.sqrt(n) / 2))
    assert attacked(n, P, Q, kept, 4, seed=3) < 0.65 + 0.012  # four chances of its standard error of .003


def attacked_beside_sketch(n: int, m: int, P: int, kept: int, repeats: int, seed: int) -> tuple[float, float]:
    """By the likelihood ratios of the sketch and of what it has not seen of the kept columns' products, added; and of the sketch
    alone. The rows are normal with a known law, the sketch's Φ is orthonormal and unknown.
    """
    rng = np.random.default_rng(seed)
    both: list[list[np.ndarray]] = [[], []]
    alone: list[list[np.ndarray]] = [[], []]
    for _ in range(repeats):
        X = rng.standard_normal((2 * n, P))
        X = (X - X[:n].mean(axis=0)) / X[:n].std(axis=0, ddof=1)
        G = rng.standard_normal((n, m))
        Phi = np.linalg.qr(G - G.mean(axis=0))[0].T
        Z, few = Phi @ X[:n], slice(0, kept)
        length = np.square(X).sum(axis=1)
        T = np.square(X @ Z.T).sum(axis=1) / length
        told = stats.chi2.logpdf(T / (1 + P / n), m) - stats.chi2.logpdf(T, m)  # membership.py: (1 + c/n)·χ²_m against χ²_m
        unseen = X[:n, few].T @ X[:n, few] - Z[:, few].T @ Z[:, few]
        V, rows = X[:, few], n - m
        h = np.einsum("ij,ij->i", V @ np.linalg.inv(unseen), V)
        # A member's row is in what is unseen but for the share m/n of its length that the sketch has seen.
        ratio = np.square(V).sum(axis=1) / h
        shift = (1 - m / n) * kept
        found = stats.norm.logpdf(ratio, rows - kept + shift, np.sqrt(2 * rows)) - stats.norm.logpdf(
            ratio, rows - kept, np.sqrt(2 * rows)
        )
        for k, at in enumerate((slice(0, n), slice(n, None))):
            both[k].append((told + found)[at])
            alone[k].append(told[at])
    return auc(*map(np.concatenate, both)), auc(*map(np.concatenate, alone))


@pytest.mark.parametrize(("n", "m", "P", "kept"), [(2000, 50, 100, 30), (2000, 100, 200, 40), (1000, 20, 100, 25)])
def test_where_a_sketch_screens_the_best_attack_on_both_has_the_auc_that_the_gate_states(n, m, P, kept):
    both, alone = attacked_beside_sketch(n, m, P, kept, 3, seed=n + m)
    assert abs(both - auc_beside_sketch(n, m, P, kept)) < 0.02
    assert abs(alone - sketch_auc(n, m, P)) < 0.02
    assert both > alone + 0.03  # the kept products do tell more


def test_the_person_with_the_longest_rows_is_told_as_the_card_says():
    """A loud person, in and out of many cohorts: longer rows, larger AUC, by the formula."""
    n, P, Q, rng = 1500, 60, 2, np.random.default_rng(8)
    x, y = rng.standard_normal(P) * 1.6, np.array([2.0, -1.5])
    share = (x @ x / P) * (y @ y / Q)
    told: list[list[float]] = [[], []]
    for _ in range(1200):
        X, Y = rng.standard_normal((n, P)), rng.standard_normal((n, Q))
        for k in range(2):
            if k == 0:
                X[0], Y[0] = x, y
            told[k].append(float(x @ (X.T @ Y) @ y))
            X, Y = rng.standard_normal((n, P)), rng.standard_normal((n, Q))
    assert abs(auc(*map(np.array, told)) - person_auc(n, P * Q, 0, share)) < 0.02


def test_a_sites_own_table_shows_who_is_longest():
    """From a table in any units, over the people of the cohort alone; of the other sites an average person is taken."""
    from intarsia.site.data.table import Table

    rng = np.random.default_rng(2)
    values = rng.standard_normal((500, 6))
    values[17] = 4.0
    values[18] = 40.0  # not in the cohort
    table = Table.open(
        {"id": [f"S{i}" for i in range(500)], **{f"x{j}": 10 + 3 * values[:, j] for j in range(5)}, "y": values[:, 5]},
        id="id", responses=["y"],
    )  # fmt: skip
    chosen = np.delete(np.arange(500), 18)
    inside = values[chosen]
    z = (inside - inside.mean(axis=0)) / inside.std(axis=0, ddof=1)
    x, y = (np.square(z[:, :5]).sum(axis=1) + 5) / 10, np.square(z[:, 5])
    assert exposure(table, chosen, 10, 1) == pytest.approx((x * y).max(), rel=1e-3)
    assert np.argmax(x * y) == 17


def test_figures_of_the_documents():
    assert membership_auc(100_000, 50_000, 5) == pytest.approx(0.681, abs=0.001)
    assert most_kept(20_000, 3000, 3, 0, 0.65) == 77
    assert most_sums(100_000, 5, 0.65) == pytest.approx(33_346, abs=60)
    assert least_people(3000, 3, 0.65) == pytest.approx(8329, abs=10)
    with pytest.raises(InputError, match="sums with 0 responses"):
        membership_auc(100, 10, 0)
