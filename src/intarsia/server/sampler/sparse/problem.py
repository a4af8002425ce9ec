"""From rows to what a sweep reads: columns scaled, rows that no feature reaches set apart, the others rotated."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from intarsia.server.sampler.sparse.state import NEAR, PI, RATIO, SCALARS, SPREAD, Problem, State

Array = NDArray[np.float64]

RATIOS = np.concatenate([[0.0], np.geomspace(0.02, 30.0, 15)])
NONE = 0.5  # prior probability of no background
MOST_ROTATED = 4_000  # rows: beyond, their eigenvalue problem takes minutes


class Prior(NamedTuple):
    """What is assumed before the data."""

    looked_at: float | None = None  # how many features the prior counts; None: those that came
    expected: float = 3.0  # how many of them it expects to be in
    power: float = 1.0  # of the likelihood
    independent: bool = False  # noise: no covariance between the responses


@dataclass(frozen=True)
class Scales:
    """Root mean squares by which the columns were divided, and W: a sweep's rows are Wᵀ times those given (None: as given)."""

    x: Array
    y: Array
    rotation: Array | None = None


def prepare(
    X: Array,
    Y: Array,
    prior: Prior | None = None,
    *,
    rows: float | None = None,
    background: bool = True,
    every_row: bool = False,
) -> tuple[Problem, Scales]:
    """A sweep's view of X (m, P) and Y (m, Q). `rows` is how many rows the noise is counted over where X and Y are a root of
    their Gram matrix; `every_row` keeps rows that no feature reaches among the others.
    """
    prior = prior or Prior()
    m, P = X.shape
    Q = Y.shape[1]
    degrees = float(m if rows is None else rows)
    scales = Scales(root_mean_square(X, degrees), root_mean_square(Y, degrees))
    X, Y = X / scales.x, Y / scales.y
    rest = np.zeros((Q, Q))
    if m > P + Q and not every_row:  # rows beyond the features' span hold noise alone
        Qm, X = linalg.qr(X, mode="economic")
        inside = Qm.T @ Y
        rest = Y.T @ Y - inside.T @ inside
        Y = inside
    d, ratios, W = np.zeros(len(X)), np.zeros(1), None
    if background and len(X) <= MOST_ROTATED:
        d, W = np.linalg.eigh(X @ X.T / P)
        d = np.clip(d, 0.0, None)
        X, Y = W.T @ X, W.T @ Y
        ratios = RATIOS
    ratio_prior = np.full(ratios.size, np.log((1 - NONE) / max(1, ratios.size - 1)))
    ratio_prior[0] = np.log(NONE)
    columns = np.ascontiguousarray(X.T, dtype=np.float32)
    squares = np.empty((ratios.size, P), dtype=np.float32)
    for g, w in enumerate(ratios):
        squares[g] = np.einsum("pi,pi,i->p", columns, columns, (1 / (1 + w * d)).astype(np.float32), optimize=True)
    problem = Problem(
        columns, np.ascontiguousarray(Y), d, squares, ratios, ratio_prior, rest, degrees * prior.power, prior.power,
        float(P if prior.looked_at is None else prior.looked_at), prior.expected, prior.independent,
    )  # fmt: skip
    return problem, Scales(scales.x, scales.y, W)


def root_mean_square(X: Array, rows: float) -> Array:
    size = np.sqrt(np.square(X).sum(axis=0) / rows)
    return np.where(size > 0, size, 1.0)


def start(problem: Problem, rng: np.random.Generator, wrong: int = 0, rank: int = 0) -> State:
    """Empty, or with so many features that are likely wrong."""
    P, Q = problem.X.shape[0], problem.Y.shape[1]
    m = problem.Y.shape[0]
    room = min(P, max(64, 2 * m))
    slot = np.full(P, -1, dtype=np.int32)
    feature = np.zeros(room, dtype=np.int32)
    acts, effect = np.zeros((room, Q), dtype=np.bool_), np.zeros((room, Q))
    chosen = rng.choice(P, min(wrong, P, room), replace=False)
    for k, p in enumerate(chosen):
        slot[p], feature[k], acts[k] = k, p, True
        effect[k] = 0.05 * rng.standard_normal(Q)
    scalars = np.zeros(SCALARS)
    scalars[PI] = problem.expected / (problem.looked_at + problem.expected)
    scalars[SPREAD] = 0.1
    scalars[RATIO] = len(problem.ratios) // 2 if len(problem.ratios) > 1 else 0
    scatter = (problem.Y.T @ problem.Y + problem.rest) * problem.power
    Sigma = (scatter + 0.3 * np.eye(Q)) / problem.rows
    if problem.independent:
        Sigma = np.diag(np.diagonal(Sigma))
    count, V, loadings, rho = np.array([len(chosen)]), 0.1 * np.eye(Q), np.zeros((Q, rank)), np.full(Q, 0.5)
    near = np.arange(P if P <= NEAR else 0)
    return State(slot, feature, acts, effect, count, Sigma, V, loadings, rho, scalars, near)
