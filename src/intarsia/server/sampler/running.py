"""What a chain knows of every coefficient without its draws: moments and what R̂ and the effective sample size need.

A run whose draws would not fit keeps the draws of some features (`keeping`) and these numbers of all. Mean and standard deviation
are those of the draws themselves. Convergence is judged on the signed fourth root r = sign(c)|c|^¼ and its size |r| instead of
normal scores of ranks, which only all draws together have: like ranks, the root lets no single large draw decide, and it
needs no scale. Split R̂ compares the parts of each chain before and after one of its halfway marks; the effective sample size
rests on the means of batches of BATCH draws.

Written for any array library: `add` runs inside the compiled loop of an accelerator too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from intarsia.server.sampler.backends.protocol import Array, Backend

BATCH = 25  # draws whose mean is one batch
CHUNK = 1_000_000  # numbers of each kind worked on at once


class Running(NamedTuple):
    """Of one chain's draws so far, each (P, Q): what is in single precision serves the diagnostics alone."""

    mean: Array
    square: Array  # sum of squared deviations from the mean
    positive: Array  # how many draws are above zero
    root: Array  # mean of r
    root_square: Array  # and its sum of squared deviations
    size: Array  # mean of |r|
    early: Array  # (2, 2, P, Q) means of r and |r| at the last two halfway marks, the older first
    batch: Array  # (2, P, Q) means of r and |r| at the end of the last batch
    batches: Array  # (2, P, Q) sums of squared deviations of the batches' means of r and |r|


class Mark(NamedTuple):
    """The number of a draw, from 1; whether the draws before it end at a halfway mark; whether it ends a batch."""

    number: Array
    halfway: Array
    ends: Array


def halfway_marks(draws: int) -> list[int]:
    """Numbers of draws that are half of a look (50, 75, 100, 150, …), and smaller ones in the same steps."""
    steps = [base * 2.0**k for k in range(-4, 40) for base in (50, 75)]
    return sorted({int(step) for step in steps if step < draws})


def marks(first: int, last: int) -> Mark:
    """Those of draws number first + 1 … last."""
    numbers = np.arange(first + 1, last + 1)
    return Mark(numbers.astype(float), np.isin(numbers - 1, halfway_marks(last)), numbers % BATCH == 0)


def blank(xp: Any, shape: tuple[int, ...]) -> Running:
    """Before any draw."""

    def zeros(*first: int, dtype: Any = xp.float32) -> Array:
        return xp.zeros((*first, *shape), dtype=dtype)

    exact = {"mean": zeros(dtype=xp.float64), "square": zeros(dtype=xp.float64), "positive": zeros(dtype=xp.int32)}
    return Running(**exact, root=zeros(), root_square=zeros(), size=zeros(), early=zeros(2, 2), batch=zeros(2), batches=zeros(2))


def add(be: Backend, now: Running, C: Array, mark: Mark) -> Running:
    """Take in one draw of C (P, Q)."""
    xp, n = be.xp, mark.number
    early = be.branch(
        mark.halfway, lambda x: xp.stack([x[0][1], xp.stack(x[1])]), lambda x: x[0], (now.early, (now.root, now.size))
    )
    away = C - now.mean
    mean = now.mean + away / n
    size = xp.sqrt(xp.sqrt(xp.abs(C))).astype(xp.float32)
    root = xp.where(C < 0, -size, size)
    step = root - now.root
    new_root = now.root + (step / n).astype(xp.float32)
    new_size = now.size + ((size - now.size) / n).astype(xp.float32)
    batch, batches = be.branch(
        mark.ends,
        lambda x: _end_batch(xp, x[0], x[1], xp.stack(x[2]), n),
        lambda x: (x[0], x[1]),
        (now.batch, now.batches, (new_root, new_size)),
    )
    return Running(
        mean,
        now.square + away * (C - mean),
        now.positive + (C > 0),
        new_root,
        now.root_square + step * (root - new_root),
        new_size,
        early,
        batch,
        batches,
    )


def _end_batch(xp: Any, before: Array, batches: Array, now: Array, n: Array) -> tuple[Array, Array]:
    """The mean of the last batch, from the means of all draws before it and with it, enters the sum of squares."""
    mean = before + (now - before) * (n / BATCH).astype(xp.float32)
    return now, batches + (mean - before) * (mean - now)


class Elsewhere:
    """An array of several chains that lies on an accelerator, chains (the first axis) in one or more parts. It is read row by
    row, so that a host need not have room for it.
    """

    def __init__(self, parts: Sequence[Any], fetch: Callable[[Any, int, int], Any]) -> None:
        self.parts, self._fetch = parts, fetch
        self.shape = sum(len(part) for part in parts), *parts[0].shape[1:]

    def rows(self, first: int, last: int) -> Any:
        return np.concatenate([self._fetch(part, first, last) for part in self.parts])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.concatenate([np.asarray(part, dtype=dtype) for part in self.parts])


def rows(x: Any, first: int, last: int) -> Any:
    """Those of features number first … last − 1 of a field of `Running`."""
    return x.rows(first, last) if isinstance(x, Elsewhere) else x[..., first:last, :]


def _in_chunks(runs: Running, of: Callable[..., dict[str, Any]], names: tuple[str, ...]) -> dict[str, Any]:
    """What `of` makes of these fields, for so many features at a time that little memory is needed."""
    chains, P, Q = runs.mean.shape
    step = max(1, CHUNK // max(1, chains * Q))
    out: dict[str, Any] = {}
    for i in range(0, P, step):
        for name, values in of(*(rows(getattr(runs, field), i, min(P, i + step)) for field in names)).items():
            out.setdefault(name, np.empty((P, Q), values.dtype))[i : i + len(values)] = values
    return out


def convergence(runs: Running, draws: int) -> dict[str, Any]:
    """R̂, folded R̂ and effective sample sizes (P, Q) from what each chain (first axis) knows after so many draws.

    As in `diagnostics.entries` an entry that never moved has R̂ NaN, one that is not finite NaN everywhere.
    """
    return _in_chunks(runs, partial(_convergence, draws=draws), Running._fields)


def _convergence(*fields: Any, draws: int) -> dict[str, Any]:
    now = Running(*(field.astype(np.float64) for field in fields))
    chains = len(now.mean)
    # The halfway mark nearest to the middle, of the last two.
    past = halfway_marks(draws)[-2:]
    half, at = min(((n, i - len(past)) for i, n in enumerate(past)), key=lambda one: abs(2 * one[0] - draws))
    out = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        for i, (rhat, ess) in enumerate((("rhat", "ess_bulk"), ("rhat_folded", "ess_tail"))):
            mean = (now.root, now.size)[i]
            # Σ(|r| − its mean)² from that of r: Σ r² is the same.
            square = now.root_square + draws * (now.root - mean) * (now.root + mean)
            early = now.early[:, at, i]
            late = (draws * mean - half * early) / (draws - half)
            within = (square - half * (draws - half) / draws * (early - late) ** 2).sum(axis=0) / (chains * (draws - 2))
            moved = within > 0
            within = np.where(moved, within, 1.0)
            parts = np.concatenate([early, late])
            out[rhat] = np.where(moved, np.sqrt(1 - 2 / draws + parts.var(axis=0, ddof=1) / within), np.nan)
            count, spread = draws // BATCH, now.batch[:, i] - now.batch[:, i].mean(axis=0)
            if count > 1:
                between = (now.batches[:, i] + count * spread**2).sum(axis=0) / (chains * count - 1)
                time = BATCH * between / within
            else:
                time = draws / 2 * parts.var(axis=0, ddof=1) / within
            total = chains * draws
            out[ess] = np.where(moved, total / np.maximum(time, 1 / np.log10(total)), float(total))
    bad = ~np.isfinite(now.mean.sum(axis=0) + now.square.sum(axis=0))
    for values in out.values():
        values[bad] = np.nan
    return out


def moments(runs: Running, draws: int) -> dict[str, Any]:
    """Mean, standard deviation and number of positive values (P, Q) of all chains' draws together."""

    def some(means: Any, square: Any, positive: Any) -> dict[str, Any]:
        mean = means.mean(axis=0)
        square = square.sum(axis=0) + draws * np.square(means - mean).sum(axis=0)
        return {"mean": mean, "sd": np.sqrt(square / (len(means) * draws - 1)), "positive": positive.sum(axis=0)}

    return _in_chunks(runs, some, ("mean", "square", "positive"))


def of_chain(runs: Running, k: int) -> Running:
    """One chain of several, which lie along the first axis."""
    return Running(*(field[k] for field in runs))


def as_first(one: Running) -> Running:
    """A single chain with that axis."""
    return Running(*(field[None] for field in one))


def together(runs: list[Running]) -> Running:
    """Several of them in one."""
    return runs[0] if len(runs) == 1 else Running(*(np.concatenate(fields) for fields in zip(*runs, strict=True)))
