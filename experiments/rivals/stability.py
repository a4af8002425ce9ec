"""scikit-learn's multi-task lasso with stability selection (Meinshausen & Bühlmann 2010), in complementary pairs of halves.

Of fifty halves of the rows, the first q features of each path are noted. A feature is chosen where it is among them in three
halves of four. With q² = P/2 the bound of Meinshausen & Bühlmann says that one false feature is expected at most.
"""

import warnings

import numpy as np

from experiments.rivals.answer import Answer, Array

HALVES, THRESHOLD = 50, 0.75


def answer(X: Array, Y: Array, seed: int) -> Answer:
    from sklearn.linear_model import MultiTaskLasso

    rng, (n, P) = np.random.default_rng(seed), X.shape
    first = max(3, round(np.sqrt((2 * THRESHOLD - 1) * P)))  # at most one false feature expected by the bound
    count = np.zeros(P)
    y = np.sqrt(np.square(Y).mean(axis=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(HALVES // 2):
            order = rng.permutation(n)
            for half in (order[: n // 2], order[n // 2 :]):
                A, B = X[half], Y[half] / y
                A = A / np.sqrt(np.square(A).mean(axis=0))
                penalty, model = np.sqrt(np.square(A.T @ B / len(half)).sum(axis=1)).max(), None
                for _step in range(12):
                    penalty *= 0.8
                    model = MultiTaskLasso(penalty, fit_intercept=False, max_iter=200, tol=1e-3).fit(A, B)
                    if (model.coef_ != 0).any(axis=0).sum() >= first:
                        break
                size = np.square(model.coef_).sum(axis=0)
                ahead = np.argsort(-size)[:first]
                count[ahead[size[ahead] > 0]] += 1
    share = count / HALVES
    chosen = share >= THRESHOLD
    coef = np.zeros((P, Y.shape[1]))
    if chosen.any():
        coef[chosen] = np.linalg.lstsq(X[:, chosen], Y, rcond=None)[0]
    return Answer(share, chosen, coef)
