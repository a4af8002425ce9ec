"""What a method says of one data set, in the same words for all: `answer(X, Y, seed)` of a module beside this one gives one."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass
class Answer:
    """`evidence` (P,) orders the features; `chosen` (P,) are those it names by its own rule, asked for 5 % false where it can be.

    `sets` are groups of features one of which matters, with their purity (least absolute correlation). `lower` and `upper` (P, Q)
    are 95 % intervals. Everything is of the columns as they came.
    """

    evidence: Array
    chosen: Array
    coef: Array | None = None
    sets: Sequence[Array] = ()
    lower: Array | None = None
    upper: Array | None = None
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)


def timed(method: Callable[..., Answer], *data: Any, **options: Any) -> Answer:
    """The answer with the processor seconds it took."""
    began = time.process_time()
    found = method(*data, **options)
    found.seconds = found.seconds or time.process_time() - began
    return found
