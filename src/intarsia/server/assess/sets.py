"""Sets of interchangeable features: one of them matters at the stated rate, though none alone can be named.

Two features that nearly agree in the data leave the posterior undecided between them. Genetics calls such a set a credible set.
Sets grow around one feature after the other, the surest first, among features correlated with it and with each other, until one
passes; features that are named already start none.

In a sparse posterior a set is counted: its coverage is the share of draws in which at least one member is in. Only features
whose inclusion excludes that of the others join, the one that adds most first, and the set passes at a coverage of .95. In a
dense one a set is judged like a single feature, by the posterior of its common effect, and the nearest feature joins first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from intarsia.server.assess.local_fdr import calibrate, row_share, sign_share
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.sparse import SparseEffects

Array = NDArray[np.float64]
Index = NDArray[np.intp]

COVERAGE = 0.95  # stated: of a set of a sparse posterior
LEAST_CORRELATION = 0.5  # within a set; below, the data tell features apart
TWINS = 0.9  # correlation from which a doubtful single feature of a dense posterior gives way to its set
MOST_MEMBERS = 50  # a larger set names nothing
MOST_AROUND, MOST_CENTRES, LARGEST = 20, 200, 2000  # of a dense one: members, centres, features looked at
DOUBTFUL = 0.1  # local fdr up to which a set of a dense posterior is told where surer findings leave room
LEAST_COUNT = 0.005  # share of the draws that a member is in
EXCLUDES = 0.5  # two that stand for each other are in together no more often: 0 as seldom as can be, 1 as by chance
SCREEN_DRAWS, SCREEN_FACTOR = 200, 6  # of a dense posterior, to rule out sets, and times the rate that a share may be there


@dataclass(frozen=True)
class FeatureSet:
    """A set of interchangeable features: `members` (their places), the evidence for it, and its common effect.

    `coverage` is the probability that at least one member matters, `purity` the weakest |correlation| between two of them,
    `log_bayes_factor` the log odds of the coverage over its prior odds (None where the prior has none). `mean` and `sd` (Q,) are
    those of the common effect for one standard deviation of the members, in the direction of the first;
    `local_fdr_by_response` (Q,) is the probability that naming the set at a response is wrong.
    """

    members: Index
    coverage: float
    purity: float
    mean: Array
    sd: Array
    local_fdr_by_response: Array
    log_bayes_factor: float | None = None

    @property
    def local_fdr(self) -> float:
        """The probability that naming the set is wrong: that none of its members matters."""
        return 1.0 - self.coverage

    @property
    def strongest(self) -> int:
        """The response at which the set shows most."""
        distance = np.abs(self.mean) / np.where(self.sd > 0, self.sd, np.inf)
        return int(np.lexsort((-distance, self.local_fdr_by_response))[0])

    def acts_on(self, fdr: float) -> list[int]:
        """The response at which the set shows most, then the others at which its own local fdr is within the rate."""
        also = np.flatnonzero(self.local_fdr_by_response <= fdr).tolist()
        return [self.strongest, *(q for q in also if q != self.strongest)]

    def to_dict(self, features: list[str] | None = None) -> dict[str, Any]:
        """For fit.json and `--json`; members by name where the names are given."""
        return {
            "members": [features[p] if features else int(p) for p in self.members],
            "coverage": round(float(self.coverage), 6),
            "purity": round(float(self.purity), 6),
            "log_bayes_factor": None if self.log_bayes_factor is None else round(float(self.log_bayes_factor), 4),
        }


@dataclass(frozen=True)
class _Columns:
    """Some features' columns brought to length one: their cosines are correlations, because sketch rows have mean zero.

    `places` (K,) says which features they are, in order, `least` the correlation that two in a set must have: among few rows
    chance alone correlates.
    """

    places: Index
    unit: Array
    least: float

    @classmethod
    def of(cls, X: Array, places: Index) -> "_Columns":
        columns = np.asarray(X[:, places], dtype=np.float64)
        length = np.sqrt(np.square(columns).mean(axis=0))
        there, m = length > 0, len(X)
        unit = columns[:, there] / (length[there] * np.sqrt(m))
        return cls(places[there], unit, min(max(LEAST_CORRELATION, 4 / np.sqrt(m)), TWINS))

    def at(self, members: Any) -> Index:
        """Which of `places` they are."""
        return np.searchsorted(self.places, members)

    def near(self, centre: int) -> Index:
        """The places of the features close enough to this one, the nearest first."""
        close = np.abs(self.unit.T @ self.unit[:, self.at(centre)])
        order = np.argsort(-close, kind="stable")
        return self.places[order[(close[order] >= self.least) & (self.places[order] != centre)]]

    def purity(self, members: list[int]) -> float:
        unit = self.unit[:, self.at(members)]
        return float(np.abs(unit.T @ unit).min())


def common_weight(X: Array, members: Index) -> Array:
    """Of each member in a set's common effect: its standard deviation, signed as it correlates with the first."""
    columns = np.asarray(X[:, members], dtype=np.float64)
    return np.asarray(np.where(columns[:, 0] @ columns < 0, -1.0, 1.0) * np.sqrt(np.square(columns).mean(axis=0)))


def of_sparse(draws: Draws, X: Array, pip: Array, fdr: float) -> list[FeatureSet]:
    """The smallest sets that reach the coverage, surest first; none holds a feature that can be named by itself at the rate."""
    C = draws.effects
    assert isinstance(C, SparseEffects)
    named = pip >= 1 - min(fdr, 1 - COVERAGE)
    columns = _Columns.of(X, np.flatnonzero((C.counts >= max(2.0, LEAST_COUNT * C.number)) & ~named))
    found, taken = list[FeatureSet](), set[int]()
    for centre in columns.places[np.argsort(-pip[columns.places], kind="stable")]:
        if int(centre) in taken:
            continue
        near = np.array([p for p in columns.near(int(centre)) if int(p) not in taken], dtype=np.intp)
        enough = pip[centre] + pip[near].sum() >= COVERAGE  # else they cannot cover it together
        members = _covering(C, int(centre), near, columns) if enough else None
        if members is not None:
            found.append(_counted(draws, X, np.sort(members), columns.purity(sorted(members))))
            taken |= set(members)
    return sorted(found, key=lambda one: -one.coverage)


def _covering(C: SparseEffects, centre: int, near: Index, columns: _Columns) -> list[int] | None:
    """The features that together are in often enough, each in where the others are out; None where these do not suffice."""
    inside = C.included(np.concatenate([[centre], near]))
    covered, rest, members = inside[:, 0].copy(), inside[:, 1:], [centre]
    while covered.mean() < COVERAGE and len(members) < MOST_MEMBERS:
        share, here = rest.mean(axis=0), covered.mean()
        least = np.maximum(0.0, share + here - 1)  # two that are in more than half the time must meet
        excludes = (rest & covered[:, None]).mean(axis=0) <= least + EXCLUDES * (share * here - least)
        gain = np.where(excludes, (rest & ~covered[:, None]).mean(axis=0), 0.0)
        # The one that adds most and is close to all members.
        fits = (
            k
            for k in np.argsort(-gain, kind="stable")
            if gain[k] > 0 and columns.purity([*members, int(near[k])]) >= columns.least
        )
        best = next(fits, None)
        if best is None:
            return None
        members.append(int(near[best]))
        covered |= rest[:, best]
    return members if covered.mean() >= COVERAGE and len(members) > 1 else None


def _counted(draws: Draws, X: Array, members: Index, purity: float) -> FeatureSet:
    x = draws.effects.dense(members).reshape(draws.number, len(members), draws.Q)
    coverage = (x.any(axis=(1, 2)).sum() + 0.5) / (draws.number + 1)  # no count of draws is said to be all
    common = np.einsum("dpq,p->dq", x, common_weight(X, members))
    none = ((~x.any(axis=1)).sum(axis=0) + 0.5) / (draws.number + 1)
    pi = draws.parameters.get("prior_inclusion")
    factor = None
    if pi is not None:
        prior = float(np.clip(1 - (1 - np.asarray(pi)) ** len(members), 1e-12, 1 - 1e-12).mean())
        factor = float(np.log(coverage / (1 - coverage)) - np.log(prior / (1 - prior)))
    return FeatureSet(members, float(coverage), purity, common.mean(axis=0), common.std(axis=0), none, factor)


def of_dense(draws: Draws, X: Array, local_fdr: Array, selected: NDArray[np.bool_], fdr: float) -> list[FeatureSet]:
    """The first sets to pass of those that grow around one feature after the other; after them those that are doubtful."""
    C = np.asarray(draws.effects.dense())
    largest = np.argsort(-_size(C), kind="stable")[:LARGEST]
    columns = _Columns.of(X, np.sort(largest))
    some = C[:, :: max(1, draws.number // SCREEN_DRAWS)][:, :, columns.places]
    found, taken = list[FeatureSet](), set[int]()
    centres = [int(p) for p in largest if p in columns.places and not (selected[p] and local_fdr[p] <= fdr)][:MOST_CENTRES]
    for limit in (fdr, max(fdr, DOUBTFUL)):
        for centre in centres:
            for members, purity in () if centre in taken else _growing(columns, centre, taken):
                if _says_nothing_new(members, purity, local_fdr, selected, fdr):
                    break
                weight = common_weight(X, members)
                if _share(some[:, :, columns.at(members)], weight)[0] > SCREEN_FACTOR * limit:
                    continue
                share, common = _share(C[:, :, members], weight)
                if share <= limit:
                    found.append(_judged(members, share, purity, common))
                    taken |= {int(p) for p in members}
                    break
    return sorted(found, key=lambda one: one.local_fdr)


def _judged(members: Index, share: float, purity: float, common: Array) -> FeatureSet:
    mean, sd = common.mean(axis=1), common.std(axis=1)
    tail = np.asarray(2 * stats.norm.sf(np.abs(mean) / np.where(sd > 0, sd, np.inf)))
    return FeatureSet(members, 1 - share, purity, mean, sd, calibrate(tail))


def _growing(columns: _Columns, centre: int, taken: set[int]) -> Iterator[tuple[Index, float]]:
    """Sets around a feature, the nearest joining first, among which every two are correlated at least at the limit."""
    members = [centre]
    for p in columns.near(centre).tolist():
        if p in taken:
            continue
        purity = columns.purity([*members, p])
        if purity < columns.least:
            continue
        members.append(p)
        yield np.sort(members), purity
        if len(members) == MOST_AROUND:
            return


def _says_nothing_new(members: Index, purity: float, local_fdr: Array, selected: NDArray[np.bool_], fdr: float) -> bool:
    """The set holds a feature named at the rate, or one named with less evidence that is no close twin of the others."""
    named = selected[members]
    return bool((named & (local_fdr[members] <= fdr)).any() or (named.any() and purity < TWINS))


def _share(C: NDArray[Any], weight: Array) -> tuple[float, Array]:
    """How far zero lies outside the posterior of a common effect, and its draws (response, draw)."""
    common = np.einsum("cdpq,p->qcd", C, weight, optimize=True).reshape(1, C.shape[3], -1)
    return float(row_share(common, sign_share(common))[0]), common[0]


def _size(C: NDArray[Any]) -> Array:
    """The largest mean square of each feature's coefficients over the responses: what chains ever made of it."""
    return np.asarray(np.max([np.einsum("dpq,dpq->pq", chain, chain).max(axis=1) for chain in C], axis=0))
