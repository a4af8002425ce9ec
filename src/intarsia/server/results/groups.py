"""Sets of interchangeable features: one of them matters at the stated rate, though none alone can be named.

Two features that nearly agree in the data leave the posterior undecided between them: each alone has zero well inside its
posterior, while their common effect is certain. Genetics calls such a set a credible set. Features are clustered by their
correlations in the sketch itself (complete linkage: within a set every two are correlated). A set is judged like a single
feature, by the posterior of its common effect: the sum of the members' coefficients for one standard deviation, each with
the sign of its correlation with the first. From the top of every cluster downwards the smallest sets that pass are taken.

Single features stay as the selection found them, with one exception: one whose own local fdr is above the rate, let in by
the room that surer features left, gives way to a set of close twins around it that passes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from intarsia.server.results.distance_from_zero import row_share, sign_share

Array = NDArray[np.float64]
Index = NDArray[np.intp]

LEAST_CORRELATION = 0.5  # within a set; below, the data tell features apart
TWINS = 0.9  # correlation from which a doubtful single feature gives way to its set
MOST_MEMBERS = 50  # a larger set names nothing
MOST_FEATURES = 2000  # clustered: those with the largest coefficients
SCREEN_DRAWS = 200  # to rule out sets that are not worth judging
SCREEN_FACTOR = 6  # times the rate: what a share may be there


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
    key: int

    def sets(self) -> Iterator["_Node"]:
        """This node and every one below it that has two leaves or more."""
        if self.children:
            yield self
        for child in self.children:
            yield from child.sets()


def find_groups(C: NDArray[Any], X: Array, local_fdr: Array, selected: NDArray[np.bool_], fdr: float) -> list[Group]:
    """The smallest sets that pass, surest first; C (chain, draw, P, Q), X (m, P) the rows that the sampler saw."""
    found: list[Group] = []
    roots, R = _clusters(C, np.asarray(X, dtype=np.float64))
    worth = _screen([node for root in roots for node in root.sets()], R, C, fdr)
    for root in roots:
        found += _refine(root, lambda node: node.key in worth, _Judge(C, R, local_fdr, selected, fdr))
    return sorted(found, key=lambda group: group.local_fdr)


@dataclass(frozen=True)
class _Judge:
    """What a set is judged by."""

    C: NDArray[Any]
    R: "_Correlations"
    local_fdr: Array
    selected: NDArray[np.bool_]
    fdr: float

    def of(self, node: _Node) -> Group:
        common = np.einsum("cdpq,p->qcd", np.asarray(self.C[:, :, node.leaves]), self.R.weight(node.leaves), optimize=True)
        x = common.reshape(1, common.shape[0], -1)
        share = float(row_share(x, sign_share(x))[0])
        return Group(node.leaves, share, x[0].mean(axis=1), x[0].std(axis=1), node.correlation)

    def says_nothing_new(self, node: _Node) -> bool:
        """The set holds a feature named at the rate, or one named with less evidence that is no close twin of the others."""
        named = self.selected[node.leaves]
        sure = named & (self.local_fdr[node.leaves] <= self.fdr)
        return bool(sure.any() or (named.any() and node.correlation < TWINS))


def _refine(node: _Node, worth: Callable[[_Node], bool], judge: _Judge) -> list[Group]:
    """The smallest passing sets of two or more within this node that do not hold a feature already named."""
    if not node.children:
        return []
    below = [group for child in node.children for group in _refine(child, worth, judge)]
    if below or not worth(node) or judge.says_nothing_new(node):
        return below
    group = judge.of(node)
    return [group] if group.local_fdr <= judge.fdr else []


def _screen(nodes: list[_Node], R: "_Correlations", C: NDArray[Any], fdr: float) -> set[int]:
    """The sets worth judging: those that a few hundred draws do not rule out. Judging all of them takes seconds."""
    nodes = [node for node in nodes if len(node.leaves) <= MOST_MEMBERS]
    if not nodes:
        return set()
    thin = max(1, C.shape[0] * C.shape[1] // SCREEN_DRAWS)
    some = np.asarray(C[:, ::thin, R.places])
    some = np.ascontiguousarray(some.transpose(2, 3, 0, 1)).reshape(len(R.places), C.shape[3], -1)
    kept: set[int] = set()
    for start in range(0, len(nodes), 500):
        part = nodes[start : start + 500]
        x = np.stack([np.tensordot(R.weight(node.leaves), some[np.searchsorted(R.places, node.leaves)], 1) for node in part])
        share = row_share(x, sign_share(x))
        kept |= {node.key for node, value in zip(part, share) if value <= SCREEN_FACTOR * fdr}
    return kept


@dataclass(frozen=True)
class _Correlations:
    """The clustered features' columns brought to length one: their cosines are correlations, because sketch rows have mean zero.

    `places` (K,) says which features they are, in order; `length` (K,) is each column's root mean square.
    """

    places: Index
    unit: Array
    length: Array

    def all(self) -> Array:
        return self.unit.T @ self.unit

    def weight(self, members: Index) -> Array:
        """Of each member in the common effect: its standard deviation, signed as it correlates with the first."""
        at = np.searchsorted(self.places, members)
        sign = np.where(self.unit[:, at[0]] @ self.unit[:, at] < 0, -1.0, 1.0)
        return np.asarray(sign * self.length[at])


def _clusters(C: NDArray[Any], X: Array) -> tuple[list[_Node], _Correlations]:
    """Trees of features among which every two are correlated at least at the limit."""
    m, P = X.shape
    places = np.arange(P)
    if P > MOST_FEATURES:
        places = np.sort(np.argsort(-_size(C), kind="stable")[:MOST_FEATURES])
    length = np.sqrt(np.einsum("ip,ip->p", X[:, places], X[:, places]) / m)
    places, length = places[length > 0], length[length > 0]
    R = _Correlations(places, X[:, places] / (length * np.sqrt(m)), length)
    if len(places) < 2:
        return [], R
    distance = 1 - np.abs(R.all())
    np.fill_diagonal(distance, 0.0)
    limit = 1 - min(max(LEAST_CORRELATION, 4 / np.sqrt(m)), TWINS)  # among few rows chance alone correlates
    if not (distance[~np.eye(len(places), dtype=bool)] <= limit).any():
        return [], R
    steps = hierarchy.linkage(squareform(np.maximum(distance, 0.0), checks=False), "complete")
    nodes = [_Node(np.array([p]), (), 1.0, i) for i, p in enumerate(places)]
    inside = np.zeros(len(places) + len(steps), dtype=bool)
    for a, b, height, _count in steps:
        if height > limit:
            break
        pair = (nodes[int(a)], nodes[int(b)])
        inside[[int(a), int(b)]] = True
        nodes.append(_Node(np.sort(np.concatenate([n.leaves for n in pair])), pair, 1 - float(height), len(nodes)))
    return [node for node in nodes if node.children and not inside[node.key]], R


def _size(C: NDArray[Any]) -> Array:
    """The largest mean square of each feature's coefficients over the responses: what chains ever made of it."""
    total = np.zeros(C.shape[2])
    for chain in C:
        for start in range(0, len(chain), 50):
            total = np.maximum(total, np.square(np.asarray(chain[start : start + 50])).mean(axis=0).max(axis=1))
    return total
