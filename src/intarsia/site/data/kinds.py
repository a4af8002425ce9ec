"""Responses of other kinds, prepared at the site that owns them, so that still only a linear sketch leaves.

    prepared = prepare(column, "binary", {"yes": "asthma"})
    prepared.values                      # what is sketched
    prepared.back.effect(C, s_y=…, sigma2=…)   # what the coefficients mean: log odds ratios

Binary: 0 and 1. Time to event: pseudo-observations of the restricted mean survival time (Andersen, Hansen & Klein 2004) or
martingale residuals. Counts and skewed positives: logarithm, Anscombe's root or normal scores of the ranks. Ordinal: scores.
Missing values stay missing. Errors name the trouble and counts, never a value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from intarsia.errors import InputError
from intarsia.site.data.survival import martingale_residuals, rmst_pseudo_observations
from intarsia.wire.kinds import MARTINGALE, OPTIONS, RMST, TRANSFORMS, Back

_RARE = 0.05  # share of subjects in the rarer level below which a warning is given


@dataclass(frozen=True)
class Prepared:
    """A response ready to be sketched, and how its coefficients are to be read."""

    values: np.ndarray = field(repr=False)
    back: Back
    notes: tuple[str, ...] = ()


def prepare(values: Any, kind: str = "continuous", options: Mapping[str, Any] | None = None) -> Prepared:
    """Prepare one response. `values` is a column; for kind "time" a pair (times, events) with events 0/1 or true/false."""
    given = dict(options or {})
    Back(kind)  # refuses an unknown kind
    known_options = [name for name in OPTIONS[kind] if name != "event"]  # the events come beside the times
    unknown = sorted(set(given) - set(known_options))
    if unknown:
        known = ", ".join(known_options)
        raise InputError(f"A response of kind {kind!r} has no option {unknown[0]!r}. It has: {known}.")
    if kind == "time":
        return _time(values, given)
    if kind == "binary":
        return _binary(values, given.get("yes"))
    if kind == "ordinal":
        return _ordinal(values, given)
    numbers = _numbers(values)
    if kind == "continuous":
        return Prepared(numbers, Back(kind, unit=str(given.get("unit", ""))))
    most, notes = given.get("cap"), tuple[str, ...]()
    if most is not None:
        above = int((numbers > most).sum())
        numbers, notes = np.minimum(numbers, float(most)), (f"{above:,} values above the cap are taken as the cap",)
    return replace(_positive(numbers, kind, str(given.get("transform", "log" if kind == "skewed" else "anscombe"))), notes=notes)


def _numbers(values: Any) -> np.ndarray:
    try:
        out = np.asarray(values, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise InputError("This response holds texts. Say which kind it is: binary or ordinal.") from None
    if not np.isfinite(out).any():
        raise InputError("This response has no value at all. Leave it out.")
    if np.isinf(out).any():
        raise InputError(f"This response has {int(np.isinf(out).sum())} infinite values. Mark them as missing.")
    return out


def _levels(values: Any) -> tuple[np.ndarray, list[Any]]:
    """Cells as objects, missing ones as None, and the levels in order."""
    cells = np.array([_cell(value) for value in np.asarray(values, dtype=object).ravel()], dtype=object)
    found = sorted({cell for cell in cells if cell is not None}, key=lambda cell: (isinstance(cell, str), cell))
    if not found:
        raise InputError("This response has no value at all. Leave it out.")
    return cells, found


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    if isinstance(value, str):
        return value.strip()
    return float(value)


def _binary(values: Any, yes: Any) -> Prepared:
    cells, levels = _levels(values)
    if len(levels) != 2:
        raise InputError(
            f"A binary response has two levels; this one has {len(levels)}. "
            + ("It never varies: leave it out." if len(levels) < 2 else "Make it ordinal, or bring one yes/no column per level.")
        )
    positive = levels[1] if yes is None else _cell(yes)
    if positive not in levels:
        raise InputError("The level given as `yes` is neither of the response's two levels.")
    out = np.array([np.nan if cell is None else float(cell == positive) for cell in cells])
    share = float(np.nanmean(out))
    rare = min(share, 1 - share) < _RARE
    note = (
        (f"fewer than {_RARE:.0%} of subjects are in the rarer level: log odds ratios are rough, and intervals wide",)
        if rare
        else ()
    )
    return Prepared(out, Back("binary"), note)


def _ordinal(values: Any, given: Mapping[str, Any]) -> Prepared:
    cells, levels = _levels(values)
    order: Sequence[Any] = [_cell(level) for level in given.get("order", levels)]
    # Grades that are numbers already, in no order of their own, stay what they are: a prediction of them reads as they do.
    numbers = "order" not in given and all(isinstance(level, float) for level in levels)
    scores = [float(score) for score in given.get("scores", levels if numbers else range(1, len(order) + 1))]
    if len(set(order)) < len(order) or set(levels) - set(order):
        raise InputError(f"The order of grades must name each of the response's {len(levels)} levels once.")
    if len(scores) != len(order) or any(b <= a for a, b in pairwise(scores)):
        raise InputError(f"{len(order)} grades need as many scores, each larger than the one before.")
    if len(levels) < 2:
        raise InputError("This response has one level only: it says nothing. Leave it out.")
    place = dict(zip(order, scores))
    return Prepared(np.array([np.nan if cell is None else place[cell] for cell in cells]), Back("ordinal"))


def _positive(numbers: np.ndarray, kind: str, transform: str) -> Prepared:
    if transform not in TRANSFORMS:
        raise InputError(f"transform {transform!r} is not one of {', '.join(TRANSFORMS)}.")
    seen = np.isfinite(numbers)
    low = numbers[seen]
    if transform == "rank-normal":
        from scipy.special import ndtri
        from scipy.stats import rankdata

        out = numbers.copy()
        out[seen] = ndtri((rankdata(low) - 0.375) / (len(low) + 0.25))  # Blom's scores, ties at their mean rank
        return Prepared(out, Back(kind, transform))
    if (low < 0).any():
        raise InputError(f"{int((low < 0).sum())} values are negative; {transform} needs values from 0 on. Use rank-normal.")
    if kind == "count" and (low % 1 != 0).any():
        raise InputError(f"{int((low % 1 != 0).sum())} values are not whole numbers: no counts. Use kind = 'skewed'.")
    if transform == "anscombe":
        return Prepared(2 * np.sqrt(numbers + 0.375), Back(kind, transform, centre=float(low.mean())))
    if (low == 0).any():
        remedy = "anscombe or rank-normal" if kind == "count" else "rank-normal"
        raise InputError(f"{int((low == 0).sum())} values are 0, which has no logarithm. Use {remedy}.")
    return Prepared(np.log(numbers), Back(kind, transform))


def _time(values: Any, given: Mapping[str, Any]) -> Prepared:
    try:
        times, events = values
    except (TypeError, ValueError):
        raise InputError("A time to event is a pair of columns: the times, and whether the event came (1) or not (0).") from None
    t, d = _numbers(times), _numbers(events)
    if t.shape != d.shape:
        raise InputError(f"{len(t)} times and {len(d)} events came. Give one of each per subject.")
    seen = np.isfinite(t) & np.isfinite(d)
    if (t[seen] < 0).any():
        raise InputError(f"{int((t[seen] < 0).sum())} times are negative. A time counts from the subject's entry.")
    if not np.isin(d[seen], (0.0, 1.0)).all():
        raise InputError("The event column must be 1 (the event came) or 0 (the subject was last seen without it).")
    if not d[seen].any():
        raise InputError("No event came: every subject is censored, so there is nothing to explain.")
    method = str(given.get("method", RMST))
    unit = str(given.get("unit", ""))
    out = np.full(len(t), np.nan)
    if method == MARTINGALE:
        out[seen] = martingale_residuals(t[seen], d[seen])
        return Prepared(out, Back("time", MARTINGALE, unit, centre=float(d[seen].mean())))
    if method != RMST:
        raise InputError(f"method {method!r} is not one of {RMST}, {MARTINGALE}.")
    horizon = given.get("horizon")
    if isinstance(horizon, bool) or not isinstance(horizon, int | float) or not horizon > 0:
        raise InputError("Mean survival time needs a horizon: the time up to which it is counted, in the unit of the times.")
    if horizon > t[seen].max():
        raise InputError("The horizon lies beyond the longest follow-up. Choose one that some subjects are still followed at.")
    if not d[seen & (t <= horizon)].any():
        raise InputError("No event came up to the horizon: there is nothing to explain. Choose a later one.")
    out[seen] = rmst_pseudo_observations(t[seen], d[seen], float(horizon))
    still = int((t[seen] >= horizon).sum())
    few = (f"only {still} subjects are followed up to the horizon: an earlier one would be steadier",) if still < 20 else ()
    return Prepared(out, Back("time", RMST, unit), few)
