"""From rows to what an accelerator reads: the design in windows of features, rotated, and its squares for every ratio.

As `problem.prepare`, with every pass over the features done by the card.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.sampler.sparse import card_device as card
from intarsia.server.sampler.sparse import problem as on_host
from intarsia.server.sampler.sparse.problem import MOST_ROTATED, NONE, RATIOS, Prior, Scales
from intarsia.server.sampler.sparse.state import Problem, State

WIDE = 250_000  # features per window: fewer are waited for more often, more take more products with those that may change
WINDOWS = 16  # windows at most
SHARE = 0.5  # of the card's memory that the design may take


@dataclass(frozen=True)
class CardProblem:
    """`problem` is the CPU's, but for X, which has the right shape and no content, and squares."""

    problem: Problem
    windows: list[Any]  # (p, m) each, on the card or, where it is too large, on the host; the last one filled up with zeros
    squares: list[Any]  # (G, p) each, where its window is
    features: int
    resident: bool  # on the card

    @property
    def width(self) -> int:
        return int(self.windows[0].shape[0])

    def span(self, w: int) -> tuple[int, int]:
        """The features first … last − 1 of a window."""
        return w * self.width, (w + 1) * self.width

    def sent(self) -> Iterator[Any]:
        """The windows on the card, each sent while the one before is at work."""
        following = jax.device_put(self.windows[0])
        for w in range(len(self.windows)):
            here = following
            following = jax.device_put(self.windows[w + 1]) if w + 1 < len(self.windows) else None
            yield here

    def columns(self, features: Any) -> NDArray[np.float32]:
        """(k, m), on the host."""
        out = np.zeros((len(features), len(self.problem.Y)), np.float32)
        of = np.asarray(features) // self.width
        for w in np.unique(of):
            out[of == w] = np.asarray(self.windows[w][np.asarray(features)[of == w] - w * self.width])
        return out

    def start(self, rng: np.random.Generator, wrong: int = 0, rank: int = 0) -> State:
        return on_host.start(self.problem, rng, wrong, rank)


def from_host(problem: Problem, *, width: int | None = None, resident: bool | None = None) -> CardProblem:
    """What was prepared for the CPU."""
    P = len(problem.X)
    width = width_of(P) if width is None else width
    fits = on_card(problem.X.nbytes) if resident is None else resident
    windows, squares = [], []
    for first in range(0, P, width):
        columns = np.zeros((width, problem.X.shape[1]), np.float32)
        columns[: len(problem.X[first : first + width])] = problem.X[first : first + width]
        square = np.zeros((len(problem.ratios), width), np.float32)
        square[:, : min(width, P - first)] = problem.squares[:, first : first + width]
        windows.append(jax.device_put(columns) if fits else columns)
        squares.append(jax.device_put(square) if fits else square)
    return CardProblem(without_columns(problem, P), windows, squares, P, fits)


def prepare(
    windows: Sequence[Any],
    features: int,
    Y: NDArray[np.float64],
    prior: Prior | None = None,
    *,
    rows: float | None = None,
    background: bool = True,
    resident: bool | None = None,
) -> tuple[CardProblem, Scales]:
    """From windows of columns (p, m), all of one width, the last filled up with zeros, beside Y (m, Q).

    Where rows outnumber features, `problem.prepare` and `from_host` are the way.
    """
    check_windows(windows, features, Y)
    prior = prior or Prior()
    m, width = len(Y), windows[0].shape[0]
    fits = on_card(4 * m * width * len(windows)) if resident is None else resident
    degrees = float(m if rows is None else rows)
    d, W, ratios, rotation = np.zeros(m), np.eye(m), np.zeros(1), None
    sizes = [np.asarray(card.root_mean_square(jax.device_put(X), np.float32(degrees))) for X in windows]
    if background and m <= MOST_ROTATED:
        K = np.zeros((m, m))
        for X, size in zip(windows, sizes, strict=True):
            K += np.asarray(card.cross(jax.device_put(X) / size[:, None]), dtype=np.float64)
        d, W = np.linalg.eigh(K / features)
        d, ratios, rotation = np.clip(d, 0.0, None), RATIOS, W
    weights = (1 / (1 + ratios[:, None] * d)).astype(np.float32)
    rotated, squares = [], []
    for X, size in zip(windows, sizes, strict=True):
        columns, square = card.rotate(jax.device_put(X), size, W.astype(np.float32), weights)
        rotated.append(columns if fits else np.asarray(columns))
        squares.append(square if fits else np.asarray(square))
    scales = Scales(np.concatenate(sizes)[:features].astype(float), on_host.root_mean_square(Y, degrees), rotation)
    ratio_prior = np.full(ratios.size, np.log((1 - NONE) / max(1, ratios.size - 1)))
    ratio_prior[0] = np.log(NONE)
    looked = float(features if prior.looked_at is None else prior.looked_at)
    Q = Y.shape[1]
    problem = Problem(
        np.empty((0, m), np.float32), np.ascontiguousarray(W.T @ (Y / scales.y)), d, np.empty((0, 0), np.float32),
        ratios, ratio_prior, np.zeros((Q, Q)), degrees * prior.power, prior.power, looked, prior.expected, prior.independent,
    )  # fmt: skip
    return CardProblem(without_columns(problem, features), rotated, squares, features, fits), scales


def check_windows(windows: Sequence[Any], features: int, Y: NDArray[np.float64]) -> None:
    shapes = {tuple(X.shape) for X in windows}
    if len(shapes) != 1:
        raise InputError(
            f"A design for a card came in windows of {len(shapes)} shapes; expected one or more, all of the same shape."
        )
    width, m = shapes.pop()
    if m != len(Y) or not (len(windows) - 1) * width < features <= len(windows) * width or width % min(width, card.GROUPS):
        raise InputError(
            f"{len(windows)} windows of {width} features by {m} rows came for {features} features and {len(Y)} rows of Y; "
            f"expected as few as hold all features, of a multiple of {card.GROUPS} features. Cut them by `width_of`."
        )


def without_columns(problem: Problem, features: int) -> Problem:
    """X of the right shape for a start, which takes no memory."""
    X = np.broadcast_to(np.float32(0), (features, problem.Y.shape[0]))
    return problem._replace(X=X, squares=np.empty((0, 0), np.float32))


def width_of(features: int) -> int:
    """Features per window."""
    number = min(WINDOWS, -(-features // WIDE))
    width = -(-features // number)
    return width if width <= card.GROUPS else -(-width // card.GROUPS) * card.GROUPS


def on_card(size: int) -> bool:
    """Does a design of so many bytes stay on the card?"""
    memory: Any = jax.devices()[0].memory_stats() or {}
    return size <= SHARE * memory.get("bytes_limit", np.inf)
