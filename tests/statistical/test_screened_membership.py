"""The membership attack on a screened study's sums and kept Gram matrix: simulated by somebody who knows all covariances,
against the figures that gate and card state.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

from intarsia.carriers.in_process import study_for
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
    worth_looking_again,
)
from intarsia.site.screened.screen_facts import farthest
from intarsia.site.site import Site


def law(P: int, Q: int, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """Correlations of features in a chain and of responses on which a few of them have effects, and these effects."""
    B = np.zeros((P, Q))
    B[:4] = 0.1
    S = rho ** np.abs(np.subtract.outer(np.arange(P), np.arange(P)))
    whole = np.block([[S, S @ B], [B.T @ S, B.T @ S @ B + np.eye(Q)]])
    sd = np.sqrt(np.diagonal(whole))
    return whole / np.outer(sd, sd), B


def evidence(W: np.ndarray, P: int, kept: int, inside: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """The log likelihood ratio, for each row of Z, of all that leaves: that the row is among those `inside`, or not.

    Whoever knows the rows' normal law W can do no better (Neyman and Pearson). What leaves are the products G of the first `kept`
    features and the responses, and the sums of the other features with the responses. G is Wishart; given G the sums are normal
    about what G explains, with the responses' products as their covariance. A member's row is taken out of both.
    """
    some, rest = np.r_[np.arange(kept), np.arange(P, len(W))], np.arange(kept, P)
    c, Q, nu = len(some), len(W) - P, len(inside) - 1
    G, sums = inside[:, some].T @ inside[:, some], inside[:, rest].T @ inside[:, P:]
    law_of_some = W[np.ix_(some, some)]
    beta = np.linalg.solve(law_of_some, W[np.ix_(some, rest)])
    omega = np.linalg.inv(W[np.ix_(rest, rest)] - W[np.ix_(rest, some)] @ beta)
    t, y, H = Z[:, some], Z[:, P:], np.linalg.inv(G[c - Q :, c - Q :])
    h, s = (np.einsum("ij,jk,ik->i", t, np.linalg.inv(M), t) for M in (G, law_of_some))
    constant = c / 2 * np.log(2) + np.linalg.slogdet(law_of_some)[1] / 2 - np.linalg.slogdet(G)[1] / 2
    constant += special.multigammaln(nu / 2, c) - special.multigammaln((nu - 1) / 2, c)
    of_products = (nu - c - 2) / 2 * np.log(np.maximum(1 - h, 1e-12)) + s / 2 + constant
    D, a = sums - beta.T @ G[:, c - Q :], Z[:, rest] - t @ beta
    M, u, share = D.T @ omega @ D, y @ H, np.einsum("ij,jk,ik->i", y, H, y)
    length, along = np.einsum("ij,jk,ik->i", a, omega, a), np.einsum("ij,ij->i", a @ omega @ D, u)
    change = length * share - 2 * along
    change += (np.einsum("ij,jk,ik->i", u, M, u) - 2 * along * share + length * share**2) / (1 - share)
    return of_products - change / 2 - len(rest) / 2 * np.log(1 - share)


def attacked(n: int, P: int, Q: int, kept: int, repeats: int, seed: int, binary: bool = False) -> float:
    """By somebody who holds everybody's rows and knows the law, but not who is in."""
    rng = np.random.default_rng(seed)
    W, B = law(P, Q, 0.5)
    root = np.linalg.cholesky(W[:P, :P])
    scores: list[list[np.ndarray]] = [[], []]
    for _ in range(repeats):
        X = rng.standard_normal((2 * n, P)) @ root.T
        Y = np.sign(rng.standard_normal((2 * n, Q))) if binary else X @ B + rng.standard_normal((2 * n, Q))
        Z = np.hstack([X, Y])
        Z = (Z - Z[:n].mean(axis=0)) / Z[:n].std(axis=0, ddof=1)
        if binary:
            W[:P, P:] = W[P:, :P].T * 0
            W[P:, :P], W[P:, P:] = 0.0, np.eye(Q)
        found = evidence(W, P, kept, Z[:n], Z)
        for k, some in enumerate((found[:n], found[n:])):
            scores[k].append(some)
    return auc(*(np.concatenate(some) for some in scores))


@pytest.mark.parametrize(
    ("n", "P", "Q", "kept", "binary"),
    [
        (2000, 200, 5, 0, False), (2000, 400, 1, 0, False), (2000, 300, 3, 0, False), (2000, 150, 3, 20, False),
        (1262, 294, 1, 14, False), (1262, 294, 1, 11, True),
    ],
)  # fmt: skip
def test_the_best_attack_has_the_auc_that_the_gate_states(n, P, Q, kept, binary):
    stated = membership_auc(n, P * Q, Q, kept + Q if kept else 0, Q if binary else 0)
    assert abs(attacked(n, P, Q, kept, 5, seed=n + P + Q, binary=binary) - stated) < 0.02


def test_binary_responses_tell_more_than_the_average_of_normal_ones():
    """All rows of responses are equally long: nobody is told badly, so that on the whole more is told."""
    assert membership_auc(1262, 294, 1, 15, 1) > membership_auc(1262, 294, 1, 15) + 0.008
    assert most_kept(1262, 294, 1, 0, 0.65, 1) < most_kept(1262, 294, 1, 0, 0.65)


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


@pytest.mark.parametrize(("what", "kept"), [("ordinary", 12), ("loud", 0), ("loud", 12), ("at odds", 12)])
def test_who_is_easiest_to_tell_is_told_as_the_card_says(what, kept):
    """One person, in and out of many cohorts. Of somebody at odds each value is common, and they contradict each other."""
    n, P, Q, rng = 800, 60, 2, np.random.default_rng(8)
    W = np.eye(P + Q)
    W[:P, :P] = 0.9 ** np.abs(np.subtract.outer(np.arange(P), np.arange(P)))
    root, inverse = np.linalg.cholesky(W[:P, :P]), np.linalg.inv(W[:P, :P])
    x, y = root @ rng.standard_normal(P), np.ones(Q)
    x *= np.sqrt(P / (x @ inverse @ x)) * (1.5 if what == "loud" else 1.0)
    if what == "at odds":
        x[1::4] -= 0.8 * np.sign(x[:-1:4])
        assert (x @ x) / P < 1.6 < 2.2 < x @ inverse @ x / P
    far = (x @ inverse @ x / P, 1.0)
    told: list[list[float]] = [[], []]
    for _ in range(400):
        X, Y = rng.standard_normal((n, P)) @ root.T, rng.standard_normal((n, Q))
        other = np.r_[root @ rng.standard_normal(P), rng.standard_normal(Q)]
        for k, first in enumerate((np.r_[x, y], other)):
            Z = np.hstack([X, Y])
            Z[0] = first
            told[k].append(float(evidence(W, P, kept, Z, np.r_[x, y][None])[0]))
    stated = person_auc(n, Screen(P, Q, 0, 1), kept, far)
    # In the kept features a person is not just as far out as in all of them: nobody knows beforehand which they are.
    assert abs(auc(*map(np.array, told)) - stated) < (0.04 if kept else 0.03)


def test_a_sites_own_table_shows_who_is_farthest_out():
    """From a table in any units, over the people of the cohort alone; of the other sites an average person is taken."""
    from intarsia.site.data.table import Table

    rng = np.random.default_rng(2)
    values = rng.standard_normal((2000, 6))
    values[:, 1] = 0.95 * values[:, 0] + np.sqrt(1 - 0.95**2) * values[:, 1]
    values[17, 2:5] = 3.5
    values[17, 5] = 2.0
    values[18] = 40.0  # not in the cohort
    values[19, :2] = (1.5, -1.5)  # each of them common, not both together
    values[20] = np.r_[np.full(5, 0.2), 5.0]  # in the response alone
    table = Table.open(
        {"id": [f"S{i}" for i in range(2000)], **{f"x{j}": 10 + 3 * values[:, j] for j in range(5)}, "y": values[:, 5]},
        id="id", responses=["y"],
    )  # fmt: skip
    found = farthest(table, np.delete(np.arange(2000), 18), 10, 1)
    S = np.eye(5)
    S[0, 1] = S[1, 0] = 0.95
    at = {i: (values[i, :5] @ np.linalg.solve(S, values[i, :5]) + 5) / 10 for i in (17, 19)}
    assert at[19] > 8  # in lengths alone this person would be ordinary
    assert found[0][0] == pytest.approx(at[19], rel=0.15)
    assert any(x == pytest.approx(at[17], rel=0.15) and y == pytest.approx(4.0, rel=0.15) for x, y in found)
    assert found[-1][1] == pytest.approx(25.0, rel=0.15)
    assert all(a[0] > b[0] and a[1] < b[1] for a, b in pairwise(found))


def test_a_second_look_is_asked_for_where_it_leaves_enough_to_keep():
    assert worth_looking_again(20_000, 500, 3, 0, 0.6)  # 71 of 71 places stay
    assert not worth_looking_again(20_000, 1000, 3, 0, 0.6)  # 28 of 71
    assert not worth_looking_again(1262, 294, 1, 0, 0.6)  # both looks together would be refused
    assert not worth_looking_again(1301, 243, 1, 0, 0.6)  # 5 of 18 stay
    assert not worth_looking_again(1000, 2000, 5, 0, 0.6)  # nor is one look


def test_in_python_a_study_asks_for_it_by_itself():
    rng = np.random.default_rng(0)
    for n, again in ((3000, 1), (60, None)):
        tables = [pd.DataFrame(rng.standard_normal((n, 6)), columns=[f"{name}_{j}" for j in range(6)]) for name in "abc"]
        sites = [
            Site(name, table.assign(id=[f"S{i}" for i in range(n)]), id="id", responses=["a_0"] if name == "a" else [])
            for name, table in zip("abc", tables, strict=True)
        ]
        assert study_for(sites, kind="screened").sketch.again == again
        assert study_for(sites, kind="screened", sketch={"again": 2}).sketch.again == 2


def test_figures_of_the_documents():
    assert membership_auc(100_000, 50_000, 5) == pytest.approx(0.686, abs=0.001)
    assert most_kept(20_000, 3000, 3, 0, 0.65) == 76
    assert most_sums(100_000, 5, 0.65) == pytest.approx(31_497, abs=60)
    assert least_people(3000, 3, 0.65) == pytest.approx(9159, abs=10)
    with pytest.raises(InputError, match="sums with 0 responses"):
        membership_auc(100, 10, 0)
