"""Effects with a flat prior of their own: the law of one coefficient given the others, mixed over the draws."""

import numpy as np
import pytest

from intarsia.server.assess.effects import unshrunk
from intarsia.server.posterior.draws import Draws


def test_given_the_true_others_it_is_least_squares() -> None:
    rng = np.random.default_rng(1)
    X, C = rng.standard_normal((60, 5)), rng.standard_normal((5, 2))
    Y = X @ C + rng.standard_normal((60, 2))
    shrunk = C.copy()
    shrunk[3] = 0.0  # what a sparse prior made of it is no matter
    Sigma = np.diag([1.0, 4.0])
    mean, sd = unshrunk(X, Y, Draws(shrunk[None, None], Sigma[None, None]))
    x, left = X[:, 3], Y - X @ shrunk
    np.testing.assert_allclose(mean[3], x @ left / (x @ x))
    np.testing.assert_allclose(sd[3], np.sqrt(np.diag(Sigma) / (x @ x)))


@pytest.mark.parametrize(("operations", "used"), [(1e12, 200), (4 * 50 * 3 * 70, 70), (1.0, 32)])
@pytest.mark.parametrize("numbers", [1, 2**24])
def test_draws_that_differ_add_their_spread(monkeypatch: pytest.MonkeyPatch, operations: float, used: int, numbers: int) -> None:
    monkeypatch.setattr("intarsia.server.assess.effects.MOST_OPERATIONS", operations)
    monkeypatch.setattr("intarsia.server.assess.effects.NUMBERS", numbers)
    rng = np.random.default_rng(2)
    X, Y = rng.standard_normal((50, 3)), rng.standard_normal((50, 1))
    C, Sigma = rng.standard_normal((400, 3, 1)), np.ones((400, 1, 1))
    mean, sd = unshrunk(X, Y, Draws(C.reshape(4, 100, 3, 1), Sigma.reshape(4, 100, 1, 1)))
    kept = np.unique(np.linspace(0, 399, used).round().astype(int))
    squares = np.square(X).sum(axis=0)
    each = np.array([c[:, 0] + X.T @ (Y[:, 0] - X @ c[:, 0]) / squares for c in C[kept]])
    np.testing.assert_allclose(mean[:, 0], each.mean(axis=0))
    np.testing.assert_allclose(sd[:, 0], np.sqrt(each.var(axis=0) + 1 / squares))


def test_rows_without_the_response_say_nothing_of_it() -> None:
    rng = np.random.default_rng(3)
    X, Y = rng.standard_normal((40, 4)), rng.standard_normal((40, 2))
    draws = Draws(rng.standard_normal((1, 20, 4, 2)), np.tile(np.eye(2), (1, 20, 1, 1)))
    gaps = Y.copy()
    gaps[25:, 1] = np.nan
    mean, sd = unshrunk(X, gaps, draws)
    whole, first = unshrunk(X, Y, draws), unshrunk(X[:25], Y[:25], draws)
    np.testing.assert_allclose(np.stack([mean[:, 0], sd[:, 0]]), np.stack([part[:, 0] for part in whole]))
    np.testing.assert_allclose(np.stack([mean[:, 1], sd[:, 1]]), np.stack([part[:, 1] for part in first]))
