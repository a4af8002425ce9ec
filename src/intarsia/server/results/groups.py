"""Sets of interchangeable features: one of them matters at the stated rate, though none alone can be named.

Two features that nearly agree in the data leave the posterior undecided between them: each alone has zero well inside its
posterior, while their common effect is certain. Genetics calls such a set a credible set. Features are clustered by their
correlations in the sketch itself (complete linkage: within a set every two are correlated). A set is judged like a single
feature, by the posterior of its common effect: the sum of the members' coefficients for one standard deviation, each with
the sign of its correlation with the first. From the top of every cluster downwards the smallest sets that pass are taken.

Single features stay as the selection found them, with one exception: one whose own local fdr is above the rate, let in by
the room that surer features left, gives way to a set of close twins around it that passes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from intarsia.server.results.shares import row_share, sign_share

Array = NDArray[np.float64]
Index = NDArray[np.intp]

LEAST_CORRELATION = 0.5  # within a set; below, the data tell features apart
TWINS = 0.9  # correlation from which a doubtful single feature gives way to its set
MOST_MEMBERS = 50  # a larger set names nothing
MOST_FEATURES = 2000  # clustered: those with the largest coefficients


@dataclass(frozen=True)
class Group:
    """A set of interchangeable features: `members` (their places), the evidence for the set, and its common effect.

    `local_fdr` is the probability that naming the set is wrong: that none of its members matters. `mean` and `sd` (Q,) are
    those of the common effect for one standard deviation of the members, in the direction of the first; `correlation` is
    the weakest |correlation| between two members.
    """

    members: Index
    local_fdr: float
    mean: Array
    sd: Array
    correlation: float

    @property
    def strongest(self) -> int:
        """The response at which the set shows most."""
        return int(np.argmax(np.abs(self.mean) / np.where(self.sd > 0, self.sd, np.inf)))


@dataclass(frozen=True)
class _Node:
    """A node of the clustering: its leaves (places among the features), children, and similarity at the join."""

    leaves: Index
    children: tuple["_Node", ...]
    correlation: float


def find_groups(C: NDArray[Any], X: Array, local_fdr: Array, selected: NDArray[np.bool_], fdr: float) -> list[Group]:
    """The smallest sets that pass, surest first; C (chain, draw, P, Q), X (m, P) the rows that the sampler saw."""
    near = _clusters(C, np.asarray(X, dtype=np.float64))
    found: list[Group] = []
    for root, R in near:
        found += _refine(root, R, C, local_fdr, selected, fdr)
    return sorted(found, key=lambda group: group.local_fdr)


def _refine(
    node: _Node, R: "_Correlations", C: NDArray[Any], local: Array, selected: NDArray[np.bool_], fdr: float
) -> list[Group]:
    """The smallest passing sets of two or more within this node that do not hold a feature already named."""
    if not node.children:
        return []
    below = [group for child in node.children for group in _refine(child, R, C, local, selected, fdr)]
    taken = np.flatnonzero(selected[node.leaves] & (local[node.leaves] <= fdr))
    doubtful = bool(selected[node.leaves].any()) and node.correlation < TWINS
    if below or len(taken) or doubtful or len(node.leaves) > MOST_MEMBERS:
        return below
    group = _judge(node, R, C)
    return [group] if group.local_fdr <= fdr else []


def _judge(node: _Node, R: "_Correlations", C: NDArray[Any]) -> Group:
    weight = np.where(R.of(node.leaves)[0] < 0, -1.0, 1.0) * R.length[node.leaves]
    common = np.einsum("cdpq,p->qcd", np.asarray(C[:, :, node.leaves]), weight, optimize=True)
    x = common.reshape(1, common.shape[0], -1)
    share = float(row_share(x, sign_share(x))[0])
    return Group(node.leaves, share, x[0].mean(axis=1), x[0].std(axis=1), node.correlation)


@dataclass(frozen=True)
class _Correlations:
    """Columns of X brought to length one: their cosines are correlations, because sketch rows have mean zero.

    `length` (P,) is each column's root mean square.
    """

    unit: Array
    length: Array

    def of(self, places: Index) -> Array:
        part = self.unit[:, places]
        return part.T @ part


def _clusters(C: NDArray[Any], X: Array) -> Iterator[tuple[_Node, _Correlations]]:
    """Trees of features among which every two are correlated at least at the limit."""
    m, P = X.shape
    places = np.arange(P)
    if P > MOST_FEATURES:
        places = np.sort(np.argsort(-_size(C), kind="stable")[:MOST_FEATURES])
    length = np.sqrt((X**2).mean(axis=0))
    places = places[length[places] > 0]
    if len(places) < 2:
        return
    unit = np.zeros_like(X)
    unit[:, places] = X[:, places] / (length[places] * np.sqrt(m))
    R = _Correlations(unit, length)
    distance = 1 - np.abs(R.of(places))
    np.fill_diagonal(distance, 0.0)
    limit = 1 - min(max(LEAST_CORRELATION, 4 / np.sqrt(m)), TWINS)  # among few rows chance alone correlates
    if not (distance[~np.eye(len(places), dtype=bool)] <= limit).any():
        return
    steps = hierarchy.linkage(squareform(np.maximum(distance, 0.0), checks=False), "complete")
    nodes = [_Node(np.array([p]), (), 1.0) for p in places]
    inside = np.zeros(len(places) + len(steps), dtype=bool)
    for a, b, height, _count in steps:
        if height > limit:
            break
        pair = (nodes[int(a)], nodes[int(b)])
        inside[[int(a), int(b)]] = True
        nodes.append(_Node(np.sort(np.concatenate([n.leaves for n in pair])), pair, 1 - float(height)))
    for i, node in enumerate(nodes):
        if node.children and not inside[i]:
            yield node, R


def _size(C: NDArray[Any]) -> Array:
    """The largest mean square of each feature's coefficients over the responses: what chains ever made of it."""
    total = np.zeros(C.shape[2])
    for chain in C:
        for start in range(0, len(chain), 50):
            total = np.maximum(total, np.square(np.asarray(chain[start : start + 50])).mean(axis=0).max(axis=1))
    return total
