"""Knockoffs from sums alone: they stand to all columns as they must, and the rate they state holds."""

from types import SimpleNamespace

import numpy as np
import pytest

from intarsia.report import doubts
from intarsia.server.assess import knockoffs as module
from intarsia.server.assess.assessment import _restored, _stored
from intarsia.server.assess.knockoffs import COPIES, Knockoffs, distances, drawn, importance, knockoffs, q_values
from intarsia.server.study.fit import second_opinion

N, P, Q, COPY = 40, 4, 2, 3


def sums(rng: np.random.Generator):
    """Columns of length one that correlate, responses, and their sums."""
    X = rng.standard_normal((N, P)) + rng.standard_normal((N, 1))
    X = X / np.sqrt(np.square(X).sum(axis=0))
    Y = rng.standard_normal((N, Q)) + 3 * X[:, :1]
    return X, Y, X.T @ X, X.T @ Y, Y.T @ Y


def own_parts(G, D):
    """XᵀX of what the knockoffs have apart from the features, all of them side by side."""
    between = np.diag(D) - D[:, None] * np.linalg.inv(G) * D
    return np.kron(np.eye(COPY), np.diag(D)) + np.kron(np.ones((COPY, COPY)), between)


def test_columns_exist_that_have_these_sums():
    """The distances leave room for knockoffs, and those stand to the features and to each other as they must."""
    rng = np.random.default_rng(1)
    X, _, G, _, _ = sums(rng)
    D = distances(G, COPY)
    beside = np.linalg.qr(np.column_stack([X, rng.standard_normal((N, COPY * P))]))[0][:, P:]
    made = np.tile(X - X @ np.linalg.inv(G) @ np.diag(D), COPY) + beside @ np.linalg.cholesky(own_parts(G, D)).T
    for k in range(COPY):
        own = made[:, k * P : (k + 1) * P]
        assert np.allclose(own.T @ own, G)
        assert np.allclose(X.T @ own, G - np.diag(D))
        assert np.allclose(own.T @ made[:, :P], G - np.diag(D) if k else G)
    assert (D > 0).all()


def test_products_have_the_law_of_those_columns():
    """Such columns, turned at random beside the features, see of the responses what their own parts see of the residual."""
    rng = np.random.default_rng(2)
    _, _, G, C, S = sums(rng)
    D = distances(G, COPY)
    B = np.linalg.solve(G, C)
    made = np.array([drawn(G, C, S, D, COPY, N, rng)[1:].ravel() for _ in range(4000)])
    expected = np.kron(own_parts(G, D), (S - C.T @ B) / (N - P))
    sd = np.sqrt(np.diagonal(expected))
    assert np.abs((made.mean(axis=0) - np.tile((C - D[:, None] * B).ravel(), COPY)) / sd).max() < 4 / np.sqrt(4000)
    assert np.abs((np.cov(made.T) - expected) / np.outer(sd, sd)).max() < 6 / np.sqrt(4000)


def test_the_features_own_products_stay_as_they_are():
    rng = np.random.default_rng(3)
    _, _, G, C, S = sums(rng)
    assert np.array_equal(drawn(G, C, S, distances(G, COPY), COPY, N, rng)[0], C)


def test_exchanging_a_feature_with_a_knockoff_exchanges_their_importance():
    """Nothing but the products tells a feature from its knockoffs: this is why a null feature wins as seldom as any of them."""
    rng = np.random.default_rng(4)
    _, _, G, C, S = sums(rng)
    D = distances(G, COPY)
    products = drawn(G, C, S, D, COPY, N, rng)
    size = importance(G, D, products, S, N)
    swapped = products.copy()
    swapped[[0, 2], 1] = swapped[[2, 0], 1]
    other = importance(G, D, swapped, S, N)
    expected = size.copy()
    expected[[0, 2], 1] = expected[[2, 0], 1]
    assert np.allclose(other, expected, atol=1e-8)


def test_q_values_by_hand():
    """Three lead, one is beaten by a knockoff, one more leads: with two knockoffs the rates are (1 + lost)/2/won."""
    size = np.array([[9.0, 8.0, 7.0, 1.0, 3.0, 0.0], [0.0, 0.0, 0.0, 5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    assert q_values(size) == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1.0, 2 / 2 / 4, 1.0])


def simulated(seed: int, true: int = 12, features: int = 60, rows: int = 420):
    rng = np.random.default_rng(seed)
    X = np.sqrt(0.5) * rng.standard_normal((rows, features // 5)).repeat(5, axis=1) + np.sqrt(0.5) * rng.standard_normal(
        (rows, features)
    )
    C = np.zeros((features, 3))
    at = rng.choice(features, true, replace=False)
    C[at] = 0.3 * rng.standard_normal((true, 3))
    Y = X @ C + rng.standard_normal((rows, 3)) + rng.standard_normal((rows, 1))
    return X - X.mean(axis=0), Y - Y.mean(axis=0), C.any(axis=1), rng


def rate_of(sets: int, stated: float) -> tuple[float, float]:
    """Mean share of false features among those found, and the share of true ones that are found."""
    wrong, hit = [], []
    for seed in range(sets):
        X, Y, true, rng = simulated(seed)
        found = knockoffs(X, Y, rng, len(X) - 1)
        assert found is not None
        assert found.copies == COPIES
        chosen = found.selected(stated)
        wrong.append((chosen & ~true).sum() / max(1, chosen.sum()))
        hit.append((chosen & true).sum() / true.sum())
    return float(np.mean(wrong)), float(np.mean(hit))


def test_the_stated_rate_holds_and_most_effects_are_found():
    wrong, hit = rate_of(40, 0.1)
    assert wrong < 0.12
    assert hit > 0.6


def test_knockoffs_that_forget_the_residual_are_found_out(monkeypatch):
    """Without what the residual adds a knockoff cannot win by chance, and far more than stated is false."""
    monkeypatch.setattr(module, "root_of", lambda S: np.zeros_like(S))
    assert rate_of(20, 0.1)[0] > 0.2


def test_a_root_of_the_sums_serves_as_well_as_the_rows():
    X, Y, _, _ = simulated(1)
    both = np.column_stack([X, Y])
    values, vectors = np.linalg.eigh(both.T @ both)
    root = np.sqrt(values)[:, None] * vectors.T
    rows = knockoffs(X, Y, np.random.default_rng(5), len(X) - 1)
    sums_ = knockoffs(root[:, :60], root[:, 60:], np.random.default_rng(5), len(X) - 1)
    assert rows is not None
    assert sums_ is not None
    assert np.allclose(rows.q_value, sums_.q_value)


@pytest.mark.parametrize("what", ["few rows", "the same twice", "constant", "responses that say the same"])
def test_where_there_are_no_knockoffs_nothing_is_said(what):
    X, Y, _, rng = simulated(2)
    rows = len(X) - 1
    if what == "few rows":
        rows = 100
    elif what == "the same twice":
        X[:, 1] = X[:, 0]
    elif what == "constant":
        X[:, 0] = 0.0
    else:
        Y[:, 1] = Y[:, 0]
    assert knockoffs(X, Y, rng, rows) is None


def test_a_gram_study_has_a_second_opinion_and_others_have_none():
    X, Y, _, _ = simulated(3)
    fitted = SimpleNamespace(X=X, Y=Y)
    study = {"kind": "gram", "looked_at": None, "m": len(X) - 1, "covariates": ()}
    found = second_opinion(SimpleNamespace(**study), fitted, 1)
    assert found is not None
    assert np.array_equal(found.q_value, second_opinion(SimpleNamespace(**study), fitted, 1).q_value)
    for other in ({"kind": "orthonormal"}, {"looked_at": 1000}):
        assert second_opinion(SimpleNamespace(**study | other), fitted, 1) is None


def test_it_is_kept_with_the_assessment_as_it_was():
    found = Knockoffs(np.array([0.1, 1.0]), 5)
    group = _stored(found)
    back = _restored(Knockoffs, group, group.words)
    assert np.array_equal(back.q_value, found.q_value)
    assert back.copies == 5


def test_the_report_says_which_selected_features_knockoffs_find():
    material = SimpleNamespace(
        assessment=SimpleNamespace(knockoffs=Knockoffs(np.array([0.05, 1.0, 0.05, 1.0]), 5)),
        findings=SimpleNamespace(selected=np.array([True, True, False, False]), pip=np.array([0.99, 0.97, 0.4, 0.1])),
        features=["alpha", "beta", "gamma", "delta"],
    )
    told = str(doubts.knockoffs(material))
    assert "Of 2 features named here 1 are found" in told
    assert "1 not named here" in told
    assert told.index("alpha") < told.index("beta")
    assert "not found" in told
    assert "gamma" not in told
    material.assessment.knockoffs = None
    assert doubts.knockoffs(material) is None
