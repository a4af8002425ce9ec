"""How many sums over a column may be told before they tell more than sums do: one theory for responses and features.

What a site gets as its results are sums over other sites' columns with weights that it knows: it knows Φ, or brings the weights
itself. k sums over n people tell the share k/n of any column's variance. Of a column of few values they tell more, as its values
are guessed along with the sums; how much more, state evolution says from the frequencies alone. An effect of one's own column on
a response is a sum over the response, and through the residuals one over whatever feature elsewhere matters to it.
"""

from collections.abc import Collection

import numpy as np

from intarsia.privacy.decode import Levels, state_evolution
from intarsia.privacy.facts import TOLD_MORE

LIKELIEST = 3  # of the features, those of fewest bits, for which the theory is worked out


def told_more(law: Levels, share: float) -> float:
    """Of what `share` of the variance leaves open, the part that is worked out because the values are few."""
    return 1.0 if share >= 1 else 1 - state_evolution(law, share) / (1 - share) if share > 0 else 0.0


def bits(law: Levels) -> float:
    """How much there is to know of one person's value, in nats; a share of other values counts as one level."""
    weights = np.append(law.weights, law.slab)
    weights = weights[weights > 0]
    return float(-(weights * np.log(weights)).sum())


def most_sums(laws: Collection[Levels], n: int, earlier: int, now: int) -> int | None:
    """How many of `now` sums may be told of columns with these laws, `earlier` ones having been told, rounded down to a power of
    two; None where all may be."""
    worst = sorted(laws, key=bits)[:LIKELIEST]

    def fine(sums: int) -> bool:
        return all(told_more(law, (earlier + sums) / n) <= TOLD_MORE for law in worst)

    if not worst or now <= 0 or fine(now):
        return None
    most = 1 << (now.bit_length() - 1)
    while most and not fine(most):
        most //= 2
    return most
