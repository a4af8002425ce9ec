"""Features that look alike exchange their local scales, B integrated out.

Where two features nearly agree one of them carries the effect, and the data hardly say which. Between the one state and the
other lie only states in which both carry it or neither does, and where features are many these are thousands of times less
likely: a chain stays with whichever it began with. Here both scales change at once. Local scales have one law, so that the prior
is the same before and after, and what decides is the likelihood with B integrated out, which costs a few operations once the
features' columns have been solved for.

The sets of features that look alike are made before the first sweep (`look_alikes`).
"""

from typing import Any, NamedTuple

from intarsia.server.sampler.backends.protocol import Array, Backend
from intarsia.server.sampler.priors import Noise

VISITED = 16  # sets at most in a full sweep
TRIES = 8  # in each of them
RANGE = 1e8  # quotient of determinants up to which rounding leaves something of them


class Alike(NamedTuple):
    """Sets of features, none of them in two sets; beyond a set's size its first feature stands again."""

    features: Array  # (sets, members)
    size: Array  # (sets)


def needs(sets: int) -> dict[str, Noise]:
    """The random numbers of one call, for so many sets."""
    tries = min(sets, VISITED), TRIES
    return {
        "exchange.sets": ("uniform", (sets,), 0.0),
        "exchange.who": ("uniform", tries, 0.0),
        "exchange.u": ("uniform", tries, 0.0),
    }


def visited(be: Backend, alike: Alike, lam: Array, edge: Array, u: Array) -> Alike:
    """Up to VISITED of the sets in which a feature is in, by u (sets); on a device, where all shapes are fixed, others fill up.

    An exchange leaves as many features in, so that it is as likely to be undone.
    """
    inside = lam[alike.features].max(axis=1) > edge
    at = be.largest(u + inside, min(alike.size.shape[0], VISITED))
    at = at[be.members(inside[at], at.shape[0])]
    return Alike(alike.features[at], alike.size[at])


class Systems(NamedTuple):
    """X_KᵀM_j⁻¹X_K (R, K, K), X_KᵀM_j⁻¹y_j (R, K) and d, for M_j = I + d_j² G and the K columns of all sets."""

    inverse: Array
    projected: Array
    d: Array


class Tries(NamedTuple):
    """Who tries and what decides: scales above the edge are those of features that are in; uniform numbers (sets, tries)."""

    edge: Array
    who: Array
    u: Array


def scales(be: Backend, systems: Systems, lam: Array, size: Array, tries: Tries) -> Array:
    """New scales of the features in the sets (sets, members), where `lam` are the present ones.

    In each set one of the features that are in, drawn at random, tries to exchange its scale with one of all others. As many are
    in then as before, so that the way back is as likely to be tried. Where none is in nothing is exchanged. While a set is worked
    on, the systems of its own features alone are kept up to date, those of all after it.
    """
    xp = be.xp
    inverse, projected, d = systems
    d2, members = d**2, lam.shape[1]
    eye = xp.eye(members)

    def one(carry: Any, x: Any) -> Any:
        a, z, lam, size = carry
        who, log_u = x
        inside = (lam > tries.edge) & (xp.arange(members) < size)
        pairs = inside.sum() * (size - 1)
        k = xp.maximum(xp.minimum(xp.floor(who * pairs), pairs - 1), 0).astype(int)
        i, j = xp.argmax(xp.cumsum(inside) > k // (size - 1)), k % (size - 1)
        j = j + (j >= i)
        pair = xp.stack([i, j])
        change = d2 * (lam[j] ** 2 - lam[i] ** 2)  # of the first; the second's is its negative
        own, here = a[:, pair][:, :, pair], z[:, pair]
        left, right = 1 + change * own[:, 0, 0], 1 - change * own[:, 1, 1]
        det = left * right + (change * own[:, 0, 1]) ** 2
        fine = (det > 1 / RANGE) & (det < RANGE)
        safe = xp.where(fine, det, 1.0)
        # (I + D a)⁻¹ D for D = diag(change, −change), symmetric
        both = change**2 * own[:, 0, 1]
        S = xp.stack([xp.stack([change * right, both], axis=1), xp.stack([both, -change * left], axis=1)], axis=1)
        S = S / safe[:, None, None]
        gain = (here[:, None, :] @ S @ here[:, :, None])[:, 0, 0] - xp.log(safe)
        accept = (log_u < 0.5 * gain.sum()) & fine.all() & inside.any()
        weights = S @ xp.swapaxes(a[:, :, pair], 1, 2)  # (R, 2, members)
        new_a = a - a[:, :, pair] @ weights
        new_z = z - (xp.swapaxes(weights, 1, 2) @ here[:, :, None])[:, :, 0]
        exchanged = be.put(lam, pair, lam[pair[::-1]])
        return (xp.where(accept, new_a, a), xp.where(accept, new_z, z), xp.where(accept, exchanged, lam), size), None

    def each(carry: Any, x: Any) -> Any:
        a, z = carry
        at, lam, size, who, log_u = x
        columns = a[:, :, at]
        own, here = columns[:, at], z[:, at]
        new = be.scan(one, (own, here, lam, size), (who, log_u))[0][2]
        change = (d2[:, None] * (new**2 - lam**2))[:, :, None]
        right = xp.concatenate([xp.swapaxes(columns, 1, 2), here[:, :, None]], axis=2)
        update = columns @ xp.linalg.solve(eye + change * own, change * right)
        return (a - update[:, :, :-1], z - update[:, :, -1]), new

    place = xp.arange(lam.size).reshape(lam.shape)
    return be.scan(each, (inverse, projected), (place, lam, size, tries.who, xp.log(tries.u)))[1]
