"""skglm's group MCP on whole rows (Bertrand et al. 2022), the penalty by extended BIC (Chen & Chen 2008).

skglm is not a requirement: `pip install skglm`. Responses are standardised; of a path of 25 penalties each starts at
the last one's solution.
"""

import warnings

import numpy as np
from scipy.special import gammaln

from experiments.rivals.answer import Answer, Array

PATH, LEAST, GAMMA, EBIC = 25, 0.05, 3.0, 0.5


def answer(X: Array, Y: Array, seed: int) -> Answer:
    from skglm.datafits import QuadraticMultiTask
    from skglm.penalties import BlockMCPenalty
    from skglm.solvers import MultiTaskBCD

    n, P = X.shape
    Q = Y.shape[1]
    x, y = np.sqrt(np.square(X).mean(axis=0)), np.sqrt(np.square(Y).mean(axis=0))
    A, B = np.asfortranarray(X / x), np.asfortranarray(Y / y)
    most = np.sqrt(np.square(A.T @ B / n).sum(axis=1)).max()
    datafit = QuadraticMultiTask()
    datafit.initialize(A, B)
    solver = MultiTaskBCD(tol=1e-4, fit_intercept=False, warm_start=True)
    C, best, evidence = np.zeros((P, Q)), (np.inf, np.zeros((P, Q))), np.zeros(P)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for penalty in np.geomspace(most, LEAST * most, PATH):
            C = np.asarray(solver.solve(A, B, datafit, BlockMCPenalty(penalty, GAMMA), C.copy(order="F"), A @ C)[0])
            inside = C.any(axis=1)
            evidence = np.where((evidence == 0) & inside, penalty, evidence)  # the earlier it comes in, the better
            k = int(inside.sum())
            if k * Q >= n * Q / 2:
                break
            loss = np.linalg.slogdet((B - A @ C).T @ (B - A @ C) / n)[1] * n
            choose = gammaln(P + 1) - gammaln(k + 1) - gammaln(P - k + 1)
            ebic = loss + k * Q * np.log(n) + 2 * EBIC * choose
            if ebic < best[0]:
                best = ebic, C.copy()
    chosen = best[1].any(axis=1)
    return Answer(evidence + chosen * most, chosen, best[1] * y / x[:, None])
