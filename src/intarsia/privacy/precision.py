"""What m rows of a sketch buy: the width of an interval beside that of pooled data, and the power to find an effect.

An orthonormal sketch of n subjects has the law of m centred rows of the same regression. Of these, s·ln P go into finding
out which s of the P features matter (the paper's §5), and the rest carries the estimates: intervals are wider than those of
pooled data by the root of the ratio of what is left of n − 1 and of m rows, and at m = n − 1 they are the pooled ones. An
effect of b standard deviations of the response for one of the feature stands z = b √(m − s ln P) standard errors from zero;
it is found when z passes the threshold at which s findings among P features have the stated false discovery rate f, the two-
sided tail f·s/P. That takes no credit for the variance that other features explain. experiments/choosing_m.py compares both
figures with fits. Of features that correlate, the part that others do not explain counts: b is then smaller by √(1 − R²) of
the feature.
"""

from math import inf, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

from intarsia.errors import InputError

EFFECT = 0.2  # sd of the response for one sd of the feature: 4 % of its variance
FDR = 0.05
EFFECTS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # of which the chance is shown
CHANCE = 0.8  # with which the smallest effect worth naming is found
_NORMAL = NormalDist()


def rows_left(m: int, features: int, nonzero: int) -> float:
    """Rows that carry the estimates once it is known which features matter; 0 where there are none."""
    return max(0.0, m - nonzero * log(max(features, 2)))


def interval_ratio(n: int, m: int, features: int, nonzero: int) -> float:
    """Expected width of an interval in units of the pooled one; infinite where no row is left."""
    left = rows_left(m, features, nonzero)
    return sqrt(max(rows_left(n - 1, features, nonzero) / left, 1.0)) if left else inf


def threshold(features: int, nonzero: int, fdr: float = FDR) -> float:
    """How many standard errors an effect must lie from zero to be selected."""
    if not 0 < fdr < 1:
        raise InputError(f"fdr is {fdr}; expected a rate between 0 and 1, such as 0.05.")
    return _NORMAL.inv_cdf(1 - fdr * nonzero / features / 2)


def power(m: int, effect: float, features: int, nonzero: int) -> float:
    """Probability that an effect of this size is selected."""
    if not 0 < abs(effect) < 1:
        raise InputError(f"The effect is {effect}; expected sd of the response for one sd of the feature, between 0 and 1.")
    left = rows_left(m, features, nonzero)
    if not left:
        return 0.0
    z, limit = abs(effect) * sqrt(left), threshold(features, nonzero)
    return 1 - _NORMAL.cdf(limit - z) + _NORMAL.cdf(-limit - z)


def smallest_effect(m: int, features: int, nonzero: int, chance: float = 0.8) -> float:
    """The effect that is found with this chance; infinite where no row is left."""
    left = rows_left(m, features, nonzero)
    return (threshold(features, nonzero) + _NORMAL.inv_cdf(chance)) / sqrt(left) if left else inf


def expected_nonzero(features: int) -> int:
    """Unless somebody knows better: a thirtieth of the features matters, at least five."""
    return min(features, max(5, features // 30))


class Findable(NamedTuple):
    """What m rows could find among these features: the effect that is found with a chance of 80 %, and the chance of others."""

    m: int
    features: int
    nonzero: int
    smallest: float
    power: tuple[tuple[float, float], ...]  # effect, chance

    @property
    def text(self) -> str:
        """In one or two sentences; an effect is in sd of the response for one sd of the feature."""
        where = f"With {self.m:,} rows and {self.features:,} {'feature' if self.features == 1 else 'features'}"
        if not self.smallest < 1:
            return f"{where} no effect of any size is likely to be found: take more rows, or fewer features."
        half = power(self.m, self.smallest / 2, self.features, self.nonzero)
        return (
            f"{where} an effect of {self.smallest:.2f} sd of the response per sd of the feature ({self.smallest**2:.0%} of its "
            f"variance) is found with a chance of {CHANCE:.0%}, one of half that size with {half:.0%}, at a false discovery rate "
            f"of {FDR:.0%}. That something was not found says little about effects smaller than that."
        )


def findable(m: int, features: int, nonzero: int | None = None) -> Findable:
    """What could be found, before or after: it rests on the sizes alone and on no result."""
    s = expected_nonzero(features) if nonzero is None else nonzero
    chances = tuple((effect, power(m, effect, features, s)) for effect in EFFECTS)
    return Findable(m, features, s, smallest_effect(m, features, s, CHANCE), chances)
