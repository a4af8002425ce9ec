"""Φ found without the key: from the columns' shape (independent component analysis) and from pairs of similar columns.

The gate's rule must be ahead of the attack: where it lets a sketch pass without a warning, the attack finds nothing.
"""

import numpy as np
import pytest

from intarsia.privacy.blind import Shape, affordable_starts, blind_phi, danger, matched
from intarsia.privacy.differences import difference_search
from intarsia.site.data.table import Table
from intarsia.site.key import SketchKey
from intarsia.site.self_attack import attack_blind, own_sketch, real_phi
from intarsia.site.sketch.sketch import SketchTerms, sketch


def orthonormal(n, m, rng):
    G = rng.standard_normal((m, n))
    return np.linalg.qr((G - G.mean(axis=1, keepdims=True)).T)[0].T


def columns(kind, n, count, rng):
    """Standardised columns without those that the gate refuses one by one (constant, or dominated by one subject)."""
    if kind in ("lognormal", "signed"):
        X = np.exp(rng.standard_normal((n, count)))
        X = X * rng.choice([-1, 1], count) if kind == "signed" else X
    elif kind == "uniform":
        X = rng.random((n, count))
    elif kind == "binary":
        X = (rng.random((n, count)) < 0.1).astype(float)
    else:
        X = rng.standard_normal((n, count))
    X = X[:, X.std(axis=0) > 0]
    X = X - X.mean(axis=0)
    X = X / X.std(axis=0, ddof=1)
    return X[:, np.square(X).max(axis=0) < 0.5 * (n - 1)]


def measured(X, m, rng, starts=200):
    n = len(X)
    shape = Shape.of((X**3).mean(axis=0), (X**4).mean(axis=0) - 3, n)
    Phi = orthonormal(n, m, rng)
    return danger(shape, n, m), matched(blind_phi(Phi @ X, rng, starts), Phi).size


@pytest.mark.parametrize(("kind", "count"), [("lognormal", 4000), ("signed", 4000), ("binary", 12_000)])
def test_phi_is_found_blind(kind, count):
    rng = np.random.default_rng(1)
    risk, found = measured(columns(kind, 100, count, rng), 25, rng, 100)
    assert risk > 3
    assert found >= 5


def test_normal_columns_give_nothing():
    rng = np.random.default_rng(2)
    risk, found = measured(columns("normal", 100, 8000, rng), 25, rng, 100)
    assert risk < 0.1
    assert found == 0


@pytest.mark.parametrize("kind", ["lognormal", "signed", "binary", "uniform"])
def test_where_the_rule_is_silent_the_attack_finds_nothing(kind):
    """At the largest number of columns the gate lets pass without a warning (.3)."""
    rng = np.random.default_rng(3)
    n, m = 80, 20
    X = columns(kind, n, 3000, rng)
    each = danger(Shape.of((X**3).mean(axis=0), (X**4).mean(axis=0) - 3, n), n, m) / X.shape[1]
    for _ in range(3):
        X = columns(kind, n, int(0.4 / each), rng)[:, : int(0.3 / each)]
        risk, found = measured(X, m, rng)
        assert 0.1 < risk < 0.5
        assert found == 0


def test_some_site_sees_no_less_than_the_whole():
    """Each site takes the others' columns to be like its own; one of them then has a figure at or above the true one."""
    rng = np.random.default_rng(7)
    n, m = 200, 50
    parts = [columns("normal", n, 50, rng), columns("lognormal", n, 200, rng), columns("binary", n, 400, rng)]
    total = sum(X.shape[1] for X in parts)

    def shape(X):
        return Shape.of((X**3).mean(axis=0), (X**4).mean(axis=0) - 3, n)

    whole = danger(shape(np.hstack(parts)), n, m)
    assert max(danger(shape(X).scaled(total), n, m) for X in parts) >= whole


def test_what_a_found_column_of_phi_is_worth():
    """With φ_i alone the attacker has every value of that person, to the accuracy of a party that knows Φ."""
    rng = np.random.default_rng(4)
    n, m = 100, 25
    X = columns("lognormal", n, 4000, rng)
    Phi = orthonormal(n, m, rng)
    Z = Phi @ X
    directions = blind_phi(Z, rng, 100)
    inner = np.abs(directions.T @ (Phi / np.linalg.norm(Phi, axis=0)))
    best = int(inner.max(axis=1).argmax())
    person = int(inner[best].argmax())
    guess = directions[:, best] @ Z
    assert abs(np.corrcoef(guess, X[person])[0, 1]) > 0.4


def test_pairs_that_differ_in_one_person():
    """200 pairs (n = 1000, m = 100): nearly all of the 200 people's columns of Φ, and none from unrelated columns."""
    rng = np.random.default_rng(5)
    n, m, pairs = 1000, 100, 200
    A = (rng.random((n, pairs)) < 0.3).astype(float)
    B = A.copy()
    B[rng.choice(n, pairs, replace=False), np.arange(pairs)] += 1
    B[B == 2] = 0
    X = np.hstack([A, B])
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    Phi = orthonormal(n, m, rng)
    assert matched(difference_search((Phi @ X).astype(np.float32)), Phi).size > 180
    assert matched(difference_search(Phi @ columns("binary", n, 400, rng)), Phi).size == 0


def test_the_self_attack_reads_what_leaves():
    rng = np.random.default_rng(6)
    n, m = 100, 25
    data = {f"c{j}": column for j, column in enumerate(np.exp(rng.standard_normal((2500, n))))}
    table = Table.open(data)
    key, terms = SketchKey(bytes(range(32))), SketchTerms("s", "r", m)
    phi = terms.design(key, n)
    sent = own_sketch(table, real_phi(phi), None, "float64")
    np.testing.assert_allclose(sent, sketch(table, key, terms).message.X, atol=1e-9)
    assert attack_blind(table, phi, None, "float32", 30.0) > 0
    assert affordable_starts(m, 2500, 1e9) == 200
    assert affordable_starts(m, 2500, 0.0) == 8
