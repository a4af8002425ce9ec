"""What a sweep works on: the sketches as it wants them, the state of a chain, the tuning of its moves."""

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import qr

from intarsia.errors import InputError
from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.exchange import Alike

EXACT = 1e9  # d²G up to which columns may be added to G and taken out of it: rounding stays far below the identity
BLOCK = 64  # features decided together in the single-site move
CHECKED = 4_000_000  # numbers that are looked through at once
GRAM_BYTES = 2**28  # size of the blocks' Gram matrices above which they are made when needed


class Blocks(NamedTuple):
    """The features in blocks of columns, padded with zeros: Xᵀ (blocks, k, m), and what the moves of their scales need."""

    Xt: Array
    gram: Array  # (blocks, k, k) Gram matrices; None: made when needed
    bound: Any = None  # `moves.Bound` of each block, where all scales of a block are drawn at once


class Data(NamedTuple):
    """What the sweep needs of the sketches. When P < m the rows are rotated so that only P of them carry the design."""

    X: Array  # (min(m, P), P)
    Y: Array
    rss0: Array  # (Q, Q) scatter of the rows no feature reaches
    m: float  # rows before the rotation: the noise is counted over these
    norm2: Array  # (P) squared column lengths of X
    noise_scale: Array  # (Q) root mean squares of the responses
    blocks: Blocks
    alike: Alike | None = None  # sets of features that exchange their scales


class State(NamedTuple):
    """One chain's position."""

    A: Array
    B: Array
    lam: Array  # (P) row scales or (P, R) element scales
    tau: Array
    Sigma: Array  # (Q, Q) covariance of a row's noise


class Tuning(NamedTuple):
    """Step sizes and feature lists, adapted in the warm-up and fixed after it."""

    theta: Array  # rotation of the single-site proposals, shaped as lam
    doubt: Array  # (P) log weights with which features are taken for the borderline move; of many features, log probabilities
    log_steps: Array  # (2) proposals of a log noise variance and of tau's common log scale, B integrated out
    limit: Array  # log lam ‖x‖ above which a feature is in, where there are many features
    rate: Array  # log probability with which a feature that is in is taken for the borderline move, where there are many features
    clear: Array  # (P) which features are clearly needed, where there are many


class Border(NamedTuple):
    """The features of the borderline move.

    Given that it was taken, a feature's scale is less likely to be out by the factor `out`, because then it is taken less often.
    So one that is seldom looked at when it is out comes in the more readily when it is.
    """

    features: Array  # up to K, on a device K, more than were taken
    taken: Array  # which of them move
    edge: Array  # lam above which each is in
    out: Array  # probability of being taken when out over that when in


class Stats(NamedTuple):
    """What the moves accepted; of many features their scores (`inclusion.Scored`)."""

    single: Array
    steps: Array
    scored: Any = None


def check(X: Any, Y: Any) -> None:
    """Refuse what cannot be sketches of the same subjects."""
    if X.ndim != 2 or Y.ndim != 2:
        raise InputError(f"X and Y must be matrices; got {X.ndim} and {Y.ndim} dimensions.")
    if X.shape[0] != Y.shape[0]:
        raise InputError(f"X has {X.shape[0]} rows and Y has {Y.shape[0]}; they must be sketches of the same subjects.")
    if X.shape[0] < 2 or X.shape[1] < 1 or Y.shape[1] < 1:
        raise InputError(f"X is {X.shape} and Y is {Y.shape}; expected at least 2 rows, 1 feature and 1 response.")
    some = max(1, CHECKED // X.shape[1])  # rows at once: the answer for every number of X would take an eighth of its memory
    if not all(np.isfinite(part).all() for part in (Y, *(X[i : i + some] for i in range(0, len(X), some)))):
        raise InputError("X or Y holds NaN or infinite values; expected finite numbers.")


def has_gram(P: int, block: int) -> bool:
    """Are the blocks' Gram matrices kept?"""
    return -(-P // block) * block * block * 8 <= GRAM_BYTES


def rotation(X: Any) -> tuple[Any, Any]:
    """X = qr with orthonormal columns q (m×P) and a triangular r (P×P) without a negative diagonal."""
    q, r = qr(X, mode="economic")
    sign = np.where(np.diagonal(r) < 0, -1.0, 1.0)
    return q * sign, sign[:, None] * r


def prepare(be: Backend, X: Any, Y: Any, *, block: int = BLOCK, degrees: int | None = None, single: bool = False) -> Data:
    """Check X (m×P) and Y (m×Q), rotate to the small side, precompute what never changes.

    The triangular factor has no negative diagonal, so that rows with the same Gram matrix become the same data. `degrees` is m
    where X and Y are a root of the Gram matrix of so many rows; `single`: X is kept in single precision.
    """
    X, Y = np.asarray(X, dtype=float), np.asarray(Y, dtype=float)
    check(X, Y)
    P = X.shape[1]
    m = len(X) if degrees is None else degrees
    scale = np.sqrt((Y**2).sum(axis=0) / m)
    rss0 = np.zeros((Y.shape[1], Y.shape[1]))
    if len(X) > P:
        q, X = rotation(X)
        rest = Y - q @ (q.T @ Y)
        Y, rss0 = q.T @ Y, rest.T @ rest
    k = min(block, P)
    nb = -(-P // k)
    columns = np.zeros((nb * k, X.shape[0]), dtype=np.float32 if single else np.float64)
    columns[:P] = X.T
    X, Xt = columns[:P].T, columns.reshape(nb, k, -1)  # one copy of the design serves both
    gram = Xt @ Xt.transpose(0, 2, 1) if has_gram(P, k) else None
    if not single:
        X, Xt, gram = be.asarray(X), be.asarray(Xt), None if gram is None else be.asarray(gram)
    return Data(
        X,
        be.asarray(Y),
        be.asarray(rss0),
        float(m),
        be.asarray(np.einsum("pm,pm->p", columns[:P], columns[:P], dtype=np.float64)),
        be.asarray(np.where(scale > 0, scale, 1.0)),
        Blocks(Xt, gram),
    )
