"""Sets of interchangeable features: one of them matters at the stated rate, though none alone can be named.

Two features that nearly agree in the data leave the posterior undecided between them: each alone has zero well inside its
posterior, while their common effect is certain. Genetics calls such a set a credible set. Features are clustered by their
correlations in the sketch itself (complete linkage: within a set every two are correlated). A set is judged like a single
feature, by the posterior of its common effect: the sum of the members' coefficients for one standard deviation, each with
the sign of its correlation with the first. From the top of every cluster downwards the smallest sets that pass are taken. A tree
may cut between a feature and its nearest neighbour, so sets are then grown around the features with the largest coefficients too.

Single features stay as the selection found them, with one exception: one whose own local fdr is above the rate, let in by
the room that surer features left, gives way to a set of close twins around it that passes. What room is left then may let in
sets whose own local fdr is above the rate, as it does features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from intarsia.server.results.distance_from_zero import calibrate, row_share, sign_share

Array = NDArray[np.float64]
Index = NDArray[np.intp]

LEAST_CORRELATION = 0.5  # within a set; below, the data tell features apart
TWINS = 0.9  # correlation from which a doubtful single feature gives way to its set
MOST_MEMBERS = 50  # a larger set names nothing
MOST_FEATURES = 2000  # clustered: those with the largest coefficients
SCREEN_DRAWS = 200  # to rule out sets that are not worth judging
SCREEN_FACTOR = 6  # times the rate: what a share may be there
MOST_CENTRES, MOST_AROUND = 200, 8  # features around which sets are grown, and members of such a set


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

    @property
    def local_fdr_by_response(self) -> Array:
        """The probability (Q,) that naming the set at a response is wrong, judged as one coefficient of a feature that is there:
        by the normal tail of the common effect, calibrated.
        """
        distance = np.abs(self.mean) / np.where(self.sd > 0, self.sd, np.inf)
        return calibrate(np.asarray(2 * stats.norm.sf(distance)))

    def acts_on(self, fdr: float) -> list[int]:
        """The response at which the set shows most, then the others at which its own local fdr is within the rate."""
        also = np.flatnonzero(self.local_fdr_by_response <= fdr).tolist()
        return [self.strongest, *(q for q in also if q != self.strongest)]


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


def find_groups(
    C: NDArray[Any], X: Array, local_fdr: Array, selected: NDArray[np.bool_], rates: tuple[float, float]
) -> list[Group]:
    """The smallest sets that pass, surest first; C (chain, draw, P, Q), X (m, P) the rows that the sampler saw.

    `rates` are the local fdr at which a set passes, and that up to which a doubtful one is told too, after those that pass.
    """
    fdr, doubtful = rates
    found: list[Group] = []
    roots, R = _clusters(C, np.asarray(X, dtype=np.float64))
    judge = _Judge(C, R, local_fdr, selected, fdr)
    screen = _Screen.of(C, R, fdr)
    worth = {node.key for node in screen.passing([node for root in roots for node in root.sets()])}
    for root in roots:
        found += _refine(root, lambda node: node.key in worth, judge)
    for each in (judge, replace(judge, fdr=max(fdr, doubtful))):
        found += _around(each, screen, {int(p) for group in found for p in group.members})
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


def _around(judge: _Judge, screen: "_Screen", taken: set[int]) -> list[Group]:
    """The first set to pass of those that grow around one feature after the other; none of those `taken` is in them."""
    found: list[Group] = []
    R = judge.R
    centres = [int(p) for p in R.largest if not judge.selected[p] and int(p) not in taken][:MOST_CENTRES]
    for centre in centres:
        for node in () if centre in taken else _growing(R, centre, taken):
            if judge.says_nothing_new(node):
                break
            if not screen.passing([node]):
                continue
            group = judge.of(node)
            if group.local_fdr <= judge.fdr:
                found.append(group)
                taken |= {int(p) for p in group.members}
                break
    return found


def _growing(R: "_Correlations", centre: int, taken: set[int]) -> Iterator[_Node]:
    """Sets around a feature, the nearest first, among which every two are correlated at least at the limit."""
    close = R.with_one(centre)
    near = [int(R.places[i]) for i in np.argsort(-close, kind="stable") if close[i] >= R.least]
    members = [centre]
    for p in near:
        if p == centre or p in taken:
            continue
        node = R.node([*members, p])
        if node.correlation < R.least:
            continue
        members.append(p)
        yield node
        if len(members) == MOST_AROUND:
            return


@dataclass(frozen=True)
class _Screen:
    """A few hundred draws (feature, response, draw), which rule out most sets. Judging all of them takes seconds."""

    R: "_Correlations"
    some: Array
    most: float  # share that a set worth judging may have there

    @classmethod
    def of(cls, C: NDArray[Any], R: "_Correlations", fdr: float) -> "_Screen":
        thin = max(1, C.shape[0] * C.shape[1] // SCREEN_DRAWS)
        some = np.asarray(C[:, ::thin, R.places]).transpose(2, 3, 0, 1)  # none where every column is constant
        features, responses, chains, draws = some.shape
        return cls(R, np.ascontiguousarray(some).reshape(features, responses, chains * draws), SCREEN_FACTOR * fdr)

    def passing(self, nodes: list[_Node]) -> list[_Node]:
        """The sets worth judging."""
        nodes = [node for node in nodes if len(node.leaves) <= MOST_MEMBERS]
        passed: list[_Node] = []
        for start in range(0, len(nodes), 500):
            part = nodes[start : start + 500]
            x = np.stack([np.tensordot(self.R.weight(node.leaves), self.some[self.R.at(node.leaves)], 1) for node in part])
            passed += [node for node, share in zip(part, row_share(x, sign_share(x)), strict=True) if share <= self.most]
        return passed


@dataclass(frozen=True)
class _Correlations:
    """The clustered features' columns brought to length one: their cosines are correlations, because sketch rows have mean zero.

    `places` (K,) says which features they are, in order; `length` (K,) is each column's root mean square.
    """

    places: Index
    unit: Array
    length: Array
    largest: Index  # the same places, the largest coefficients first
    least: float  # correlation of two in a set

    def all(self) -> Array:
        return self.unit.T @ self.unit

    def at(self, members: Any) -> Index:
        """Which of `places` they are."""
        return np.searchsorted(self.places, members)

    def with_one(self, place: int) -> Array:
        """|correlation| of each with one of them."""
        return np.abs(self.unit.T @ self.unit[:, self.at(place)])

    def node(self, members: list[int]) -> _Node:
        """A set that no tree has."""
        unit = self.unit[:, self.at(members)]
        return _Node(np.sort(members), (), float(np.abs(unit.T @ unit).min()), -1)

    def weight(self, members: Index) -> Array:
        """Of each member in the common effect: its standard deviation, signed as it correlates with the first."""
        at = self.at(members)
        sign = np.where(self.unit[:, at[0]] @ self.unit[:, at] < 0, -1.0, 1.0)
        return np.asarray(sign * self.length[at])


def _clusters(C: NDArray[Any], X: Array) -> tuple[list[_Node], _Correlations]:
    """Trees of features among which every two are correlated at least at the limit."""
    m = len(X)
    order = np.argsort(-_size(C), kind="stable")[:MOST_FEATURES]
    length = np.sqrt(np.einsum("ip,ip->p", X[:, order], X[:, order]) / m)
    largest, length = order[length > 0], length[length > 0]
    sort = np.argsort(largest)
    places, length = largest[sort], length[sort]
    least = min(max(LEAST_CORRELATION, 4 / np.sqrt(m)), TWINS)  # among few rows chance alone correlates
    R = _Correlations(places, X[:, places] / (length * np.sqrt(m)), length, largest, least)
    if len(places) < 2:
        return [], R
    distance = 1 - np.abs(R.all())
    np.fill_diagonal(distance, 0.0)
    limit = 1 - least
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
