"""What a site's gate must know of a screened study: how many sums leave, of how many columns, and who is farthest out.

How far out is said in units of the columns' covariances, as whoever attacks the sums uses them: a person whose values contradict
each other may be far out though each of them is common. In wide tables columns are taken in runs of neighbours.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.privacy.facts import Screen
from intarsia.site.data.moments import pilot_of
from intarsia.site.data.row_blocks import block_rows
from intarsia.site.data.table import Table
from intarsia.wire.study import Study

Array = NDArray[np.float64]
LARGEST = 20_000_000_000  # multiplications that covariances and distances may cost: some seconds each
RIDGE = 1e-6  # of a column's variance: what varies less is rounding


def screen_of(
    study: Study, site: str, table: Table, announced: Mapping[str, Mapping[str, int]], order: Any
) -> Screen | None:  # fmt: skip
    """The counts of all sites, as announced or as study.toml lists them by name; None where neither says them."""
    responses = {name: len(study.site(name).responses) for name in study.names}
    counts: dict[str, tuple[int, int]] = {site: (len(table.labels), len(table.covariates))}
    for name in study.names:
        told, entry = announced.get(name), study.site(name)
        if name != site and told is not None:
            counts[name] = (told["columns"], told["covariates"])
        elif name != site and not any("*" in label for label in entry.labels):  # a dry run: nobody has announced anything yet
            counts[name] = (len(entry.labels), len(entry.covariates))
    if set(counts) != set(study.names):
        return None
    features = sum(columns - covariates - responses[name] for name, (columns, covariates) in counts.items())
    Q = sum(responses.values())
    return Screen(
        features=max(1, features), responses=Q, covariates=sum(c for _, c in counts.values()), looks=study.sketch.looks,
        keep=study.sketch.keep, largest=max((columns for name, (columns, _) in counts.items() if name != site), default=0),
        binary=len(study.yes_or_no), farthest=None if study.sketch.by_sketch else farthest(table, order, features, Q),
    )  # fmt: skip


def farthest(table: Table, order: Any, features: int, responses: int) -> tuple[tuple[float, float], ...]:
    """Squared distances from the mean in features and in responses beside an average person's, of those people to whom nobody is
    farther out in both; in the other sites' columns an average person's are taken."""
    P, Q = len(table.features), len(table.responses)
    chosen = np.ones(table.n, dtype=bool)
    if order is not None:
        chosen = np.isin(np.arange(table.n), order)
    n, runs = int(chosen.sum()), [*_runs(int(chosen.sum()), 0, P), *_runs(int(chosen.sum()), P, P + Q)]
    if n < 4 or not runs:
        return ((1.0, 1.0),)
    mean, whitened = _whitening(table, chosen, runs)
    found: list[tuple[float, float]] = []
    for Z in _blocks(table, chosen):
        own = np.zeros((len(Z), 2))
        for some, root in zip(runs, whitened, strict=True):
            share = np.square(np.nan_to_num(Z[:, some] - mean[some]) @ root).sum(axis=1)
            # A person's own row is in the covariance: it is taken out, and the covariance of so few is too small.
            out = share / np.maximum(1 - share, 1 / n) * (n - 2 - root.shape[1])
            own[:, int(some.start >= P)] += out
        x, y = (own[:, 0] + features - P) / max(1, features), (own[:, 1] + responses - Q) / max(1, responses)
        found = _outermost([*found, *zip(x.tolist(), y.tolist(), strict=True)])
    return tuple(found)


def _outermost(people: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those to whom nobody is farther out in both."""
    out: list[tuple[float, float]] = []
    for x, y in sorted(people, reverse=True):
        if not out or y > out[-1][1]:
            out.append((x, y))
    return out


def _runs(n: int, start: int, stop: int) -> list[slice]:
    """Neighbouring columns whose covariances so many people know and that are not too many to work with."""
    width = stop - start
    if not width:
        return []
    most = int(max(1, min(width, n / 3, LARGEST / (n * width))))
    return [slice(int(some[0]), int(some[-1]) + 1) for some in np.array_split(np.arange(start, stop), -(-width // most))]


def _whitening(table: Table, chosen: NDArray[np.bool_], runs: list[slice]) -> tuple[Array, list[Array]]:
    """The columns' means, and for each run a root of the inverse of its products about them."""
    pilot, total, n = np.zeros(0), np.zeros(0), int(chosen.sum())
    products: list[Array] = []
    for Z in _blocks(table, chosen):
        if not products:
            pilot, total = pilot_of(Z), np.zeros(Z.shape[1])
            products = [np.zeros((some.stop - some.start, some.stop - some.start)) for some in runs]
        D = np.nan_to_num(Z - pilot)
        total += D.sum(axis=0)
        for k, some in enumerate(runs):
            products[k] += D[:, some].T @ D[:, some]
    mean = total / n
    roots = [_root(G - n * np.outer(mean[some], mean[some])) for G, some in zip(products, runs, strict=True)]
    return mean + pilot, roots


def _root(G: Array) -> Array:
    """R with RRᵀ the inverse of G; constant columns and directions without variance count for nothing."""
    d = np.sqrt(np.maximum(np.diagonal(G), 0.0))
    scale = np.divide(1.0, d, out=np.zeros_like(d), where=d > 0)
    values, vectors = np.linalg.eigh(G * np.outer(scale, scale))
    good = values > RIDGE
    return np.asarray(scale[:, None] * vectors[:, good] / np.sqrt(values[good]))


def _blocks(table: Table, chosen: NDArray[np.bool_]) -> Any:
    at = 0
    for Z in table.raw_blocks(block_rows(len(table.labels))):
        here = chosen[at : at + len(Z)]
        at += len(Z)
        if here.any():
            yield np.asarray(Z, dtype=np.float64)[here]
