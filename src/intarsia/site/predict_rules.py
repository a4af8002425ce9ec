"""A site's own rules for joint predictions, and with how many decimals its parts leave.

Whoever chooses the coefficients chooses what a part is a sum of, and columns of two values can stand behind each other in its
digits. No rule on the coefficients ends that: several sums can share what none of them shows alone. What ends it is the room that
the numbers have. So a part leaves no finer than a prediction is worth, and a site counts how much room each owner of responses
was given about the same people.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import e, log2, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.wire.plain import plural
from intarsia.wire.study import Study

Array = NDArray[np.float64]
DIGITS = 2  # decimals of a part, in standard deviations of the response
MOST_DIGITS = 12  # of what fits into the fixed-point numbers that leave
MAX_BITS = 100.0  # that one owner is told about one person: five responses with spreads, at the default digits


@dataclass(frozen=True)
class PredictRules:
    """[predict] of site.toml: how few subjects, whether parts may give nearly one column away, with how many decimals a part
    leaves (in standard deviations of the response), and how many bits one owner of responses may be told about a person.
    """

    min_subjects: int = 0
    one_column: str = "refuse"
    digits: int = DIGITS
    max_bits: float = MAX_BITS

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "PredictRules":
        unknown = sorted(set(given) - {"min_subjects", "one_column", "digits", "max_bits"})
        rules = cls(**given) if not unknown else cls()
        counts = type(rules.min_subjects) is int and type(rules.digits) is int and 1 <= rules.digits <= MOST_DIGITS
        cap = type(rules.max_bits) in (int, float) and rules.max_bits > 0
        if unknown or not counts or not cap or rules.one_column not in ("refuse", "allow"):
            raise InputError(
                '[predict] of site.toml knows min_subjects = N, one_column = "refuse" or "allow", digits from 1 to '
                f"{MOST_DIGITS}, and max_bits above 0."
            )
        return rules

    @property
    def loosened(self) -> dict[str, float]:
        """What the site allows beyond the defaults; it is recorded with every prediction."""
        return {
            name: value for name, value, default in (("digits", self.digits, DIGITS), ("max_bits", self.max_bits, MAX_BITS))
            if value > default
        }  # fmt: skip


def bits(digits: int) -> float:
    """How much a number can tell about a person, on average: the most that numbers have which vary by 10^digits steps (sd)."""
    return log2((2 * pi * e) ** 0.5 * 10**digits)


def steps(values: Array, digits: int) -> Array:
    """The step between two values that can leave, by slice and response, for values (slice, subject, response).

    In units of the response's standard deviation; where the part itself varies more, as no honest part does, in units of that:
    large coefficients buy no digits. In powers of two, so that one fit has few steps.
    """
    size = np.maximum(np.std(values, axis=1), 1.0)
    return np.asarray(10.0**-digits * np.exp2(np.ceil(np.log2(size))))


def rounded(values: Array, step: Array) -> Array:
    """The means to the nearest step; the spreads up, because an interval should be too wide rather than too narrow."""
    at = values / step[:, None, :]
    return np.concatenate([np.rint(at[:1]), np.ceil(at[1:])]) * step[:, None, :]


def foreseen(study: Study, site: str, columns: int, rules: PredictRules) -> list[str]:
    """What can be said of joint predictions before there is a fit: how much each owner of responses will be told, and whether a
    site that brings so many features and covariates will have to refuse."""
    slices, out = 2 if study.deliver.content == "draws" else 1, []
    # Owners of patterns get no predictions.
    counts = {e.name: slices * sum("*" not in label for label in e.responses) for e in study.sites if e.name != site}
    if not study.agrees:  # without pinned keys what leaves for one owner counts as told to all
        counts = {"the other sites": sum(counts.values())}
    for owner, count in counts.items():
        if not count or not columns:
            continue
        room = count * bits(rules.digits)
        numbers = f"{count} {'number' if count == 1 else 'numbers'} about each new subject"
        told = f"A joint prediction tells {owner} {numbers}, up to {room:.0f} bits"
        if room > rules.max_bits:
            end = f"this site allows {rules.max_bits:g} and will refuse: fewer digits or more max_bits in [predict] of site.toml"
        elif count < columns:
            end = f"this site allows {rules.max_bits:g} in all and counts them over all fits about the same person"
        else:
            known = f"this site's {plural(columns, 'column')} can be worked out from so many"
            allow = 'one_column = "allow"'
            if rules.one_column == "allow":
                end = f"{known}, and site.toml allows it ({allow})"
            else:
                end = f"{known}, so expect it to refuse. If it agrees to that: {allow} in [predict] of site.toml"
        out.append(f"{told}; {end}.")
    return out
