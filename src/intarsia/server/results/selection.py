"""Which features matter, and how many of the chosen ones to expect wrong.

`bfdr`, the default, works on the whole posterior. Horseshoe draws are never exactly zero, so a feature is judged by how
far zero lies outside its posterior: the share of draws further from the posterior mean than zero is (in the posterior's
own metric), which is near one for a feature shrunk to nothing and near zero for one that is surely there. These shares,
made conservative where the prior gives no protection, serve as local false discovery rates; the chosen set is the
largest whose mean stays at or below `fdr`.

`mixture` is the paper's Algorithm 3, kept for comparison: two Gaussian components on the rows of |Ĉ|.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.results.distance_from_zero import calibrate, row_share, sharpest_share, sign_share, sign_share_of
from intarsia.server.results.groups import Group, find_groups
from intarsia.server.results.summaries import Summaries

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]

METHODS = ("bfdr", "mixture")
COVARIANCES = {
    "VII": "spherical",
    "VVI": "diag",
    "EEE": "tied",
    "VVV": "full",
}  # mclust's letters -> scikit-learn's name
_CHUNK = 8_000_000  # numbers in memory at once
NOT_FINITE = "Some draws are not finite; a selection from them would mean nothing. Look at the diagnosis."


@dataclass(frozen=True)
class Selection:
    """The chosen features and the evidence for each.

    `local_fdr` (P,) and `local_fdr_by_response` (P, Q) are the probabilities that choosing this feature, or this
    coefficient, is wrong; `evidence` is one minus the first. `sign` (P,) is the sign at the response where the feature
    shows most, `sign_by_response` (P, Q) each coefficient's. `groups` are sets of interchangeable features. `expected_fdr`
    is the share of `findings` (selected features and groups) to expect wrong, `expected_fdr_by_response` (Q,) that of each
    column of `by_response`.
    """

    selected: Bool
    by_response: Bool
    local_fdr: Array
    local_fdr_by_response: Array
    sign: NDArray[np.int8]
    sign_by_response: NDArray[np.int8]
    expected_fdr: float
    expected_fdr_by_response: Array
    method: str
    fdr: float
    groups: tuple[Group, ...] = ()

    @property
    def findings(self) -> list[NDArray[np.intp]]:
        """What was found, each an array of places: first every selected feature, then every set of interchangeable ones."""
        singles = [np.array([p]) for p in self.order if self.selected[p]]
        return singles + [group.members for group in self.groups]

    @property
    def evidence(self) -> Array:
        return 1.0 - self.local_fdr

    @property
    def order(self) -> NDArray[np.intp]:
        """The features, most evidence first."""
        return np.argsort(self.local_fdr, kind="stable")

    def to_dict(self) -> dict[str, Any]:
        """Counts and expected rates for a report or `--json`."""
        return {
            "method": self.method,
            "fdr": self.fdr,
            "features": len(self.selected),
            "selected": int(self.selected.sum()),
            "groups": [[int(p) for p in group.members] for group in self.groups],
            "expected_fdr": self.expected_fdr,
            "selected_by_response": [int(n) for n in self.by_response.sum(axis=0)],
            "expected_fdr_by_response": [float(v) for v in self.expected_fdr_by_response],
        }


def select(
    draws: Any,
    method: Literal["bfdr", "mixture"] = "bfdr",
    fdr: float = 0.05,
    *,
    X: Array | None = None,
    max_local_fdr: float = 0.1,
    covariance: str = "bic",
    seed: int = 0,
) -> Selection:
    """Choose features from draws of C: an array (chain, draw, P, Q), a `Draws` or a `Posterior`.

    With X (m, P), the rows the sampler saw, sets of interchangeable features are looked for too (bfdr only).
    `max_local_fdr` keeps out features that are individually doubtful, however much room surer ones leave in the mean.
    `covariance` is that of the mixture: "bic" chooses among VII, VVI, EEE and VVV (mclust's names).
    """
    C = np.asanyarray(getattr(draws, "C", draws))
    if C.ndim != 4:
        raise InputError(f"The draws have {C.ndim} dimensions; expected 4: (chain, draw, feature, response).")
    if not 0 < fdr < 1:
        raise InputError(f"fdr is {fdr}; expected a rate between 0 and 1, such as 0.05.")
    known = getattr(draws, "summaries", None)
    if method == "bfdr":
        shares = _shares(C) if known is None else _shares_of_all(C, known)
        found = _bfdr(shares, fdr, max_local_fdr)
        places = np.arange(C.shape[2]) if known is None else known.features
        return found if X is None else _with_groups(found, C, X, places, max_local_fdr)
    if method == "mixture":
        mean = np.concatenate([x.mean(axis=2) for _part, x in _features(C)]) if known is None else known.mean
        return _mixture(mean, fdr, covariance, seed)
    raise InputError(f"Unknown selection {method!r}; expected 'bfdr' or 'mixture'.")


def bayesian_fdr(local: Array, fdr: float, max_local_fdr: float = 1.0) -> Bool:
    """The largest set, surest first, whose mean local fdr is at most fdr (Müller, Parmigiani & Rice 2007)."""
    order = np.argsort(local, kind="stable")
    ranked = local[order]
    fits = (np.cumsum(ranked) <= fdr * np.arange(1, len(local) + 1)) & (ranked <= max_local_fdr)
    chosen = np.zeros(len(local), dtype=bool)
    if fits.any():
        chosen[order[: np.flatnonzero(fits)[-1] + 1]] = True
    return chosen


@dataclass(frozen=True)
class _Shares:
    """How far zero lies outside the posterior of each feature's row (P,) and of each coefficient (P, Q); posterior means."""

    row: Array
    entry: Array
    mean: Array


def _shares(C: NDArray[Any]) -> _Shares:
    _chains, _n, P, Q = C.shape
    out = _Shares(np.empty(P), np.empty((P, Q)), np.empty((P, Q)))
    for part, x in _features(C):
        out.mean[part] = x.mean(axis=2)
        out.entry[part] = sign_share(x)
        out.row[part] = row_share(x, out.entry[part])
    return out


def _shares_of_all(C: NDArray[Any], known: Summaries) -> _Shares:
    """With those of features without draws of their own: each coefficient's from counts over all draws, the row's from its
    sharpest response alone. The few whole draws would not do: a feature that was in for some draws, none of them whole, has a
    mean far from these, and zero would seem to lie outside.
    """
    if not np.isfinite(known.mean).all():
        raise InputError(NOT_FINITE)
    entry = sign_share_of(known.positive, known.mean, known.sd, C.shape[0] * C.shape[1])
    row, exact = sharpest_share(entry), _shares(C)
    row[known.features], entry[known.features] = exact.row, exact.entry
    return _Shares(row, entry, known.mean)


def _bfdr(shares: _Shares, fdr: float, max_local_fdr: float) -> Selection:
    row = shares.row
    by_entry = row[:, None] + (1 - row[:, None]) * calibrate(shares.entry)
    selected = bayesian_fdr(row, fdr, max_local_fdr)
    by_response = np.column_stack([bayesian_fdr(column, fdr, max_local_fdr) for column in by_entry.T])
    return _selection(selected, by_response, row, by_entry, shares.mean, "bfdr", fdr)


def _with_groups(found: Selection, C: NDArray[Any], X: Array, places: NDArray[Any], max_local_fdr: float) -> Selection:
    """Add the sets of features at `places`, those with draws; a doubtful single feature inside one is named by its set alone.

    Sets above the rate are let in, surest first, while the mean over all findings stays within it.
    """
    every = len(places) == X.shape[1]
    rates = found.fdr, max_local_fdr
    told = find_groups(C, X if every else X[:, places], found.local_fdr[places], found.selected[places], rates)
    told = [replace(group, members=places[group.members]) for group in told]
    selected = found.selected.copy()
    for group in told:
        selected[group.members] = False
    single, groups = found.local_fdr[selected].sum(), list[Group]()
    for group in told:
        total = single + sum(each.local_fdr for each in groups) + group.local_fdr
        if group.local_fdr <= found.fdr or total <= found.fdr * (selected.sum() + len(groups) + 1):
            groups.append(group)
    local = [*found.local_fdr[selected], *(group.local_fdr for group in groups)]
    expected = float(np.mean(local)) if local else 0.0
    return replace(found, selected=selected, groups=tuple(groups), expected_fdr=expected)


def _features(C: NDArray[Any]) -> Iterator[tuple[slice, Array]]:
    """Chunks of features with their draws as (feature, response, draw), read once."""
    chains, n, P, Q = C.shape
    step = max(1, _CHUNK // (chains * n * Q))
    for start in range(0, P, step):
        part = slice(start, min(P, start + step))
        x = np.ascontiguousarray(C[:, :, part].transpose(2, 3, 0, 1), dtype=np.float64)
        if not np.isfinite(x).all():
            raise InputError(NOT_FINITE)
        yield part, x.reshape(x.shape[0], Q, chains * n)


def _mixture(mean: Array, fdr: float, covariance: str, seed: int) -> Selection:
    size = np.abs(mean)
    row = low_component(size, covariance, seed)
    entry = np.column_stack([low_component(size[:, q : q + 1], covariance, seed) for q in range(size.shape[1])])
    return _selection(row < fdr, entry < fdr, row, entry, mean, "mixture", fdr)


def low_component(rows: Array, covariance: str = "bic", seed: int = 0) -> Array:
    """Each row's probability of the component with the lower mean (paper, Algorithm 3, steps 3 and 4)."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    if covariance != "bic" and covariance not in COVARIANCES:
        raise InputError(f"Unknown covariance {covariance!r}; expected 'bic' or one of {', '.join(COVARIANCES)}.")
    names = list(COVARIANCES) if covariance == "bic" else [covariance]
    scale = rows.std()
    if len(np.unique(rows, axis=0)) < 3 or scale == 0:
        return np.ones(len(rows))  # nothing to tell apart
    rows = rows / scale  # GaussianMixture's ridge is absolute
    fits = []
    for name in names:
        model = GaussianMixture(2, covariance_type=COVARIANCES[name], n_init=3, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fits.append(model.fit(rows))
    best = min(fits, key=lambda model: model.bic(rows))
    return np.asarray(best.predict_proba(rows)[:, int(np.argmin(best.means_.sum(axis=1)))])


def _selection(selected: Bool, by_response: Bool, row: Array, entry: Array, mean: Array, method: str, fdr: float) -> Selection:
    sign = np.sign(mean).astype(np.int8)
    strongest = entry.argmin(axis=1)
    counts = by_response.sum(axis=0)
    return Selection(
        selected=selected,
        by_response=by_response,
        local_fdr=row,
        local_fdr_by_response=entry,
        sign=sign[np.arange(len(row)), strongest],
        sign_by_response=sign,
        expected_fdr=float(row[selected].mean()) if selected.any() else 0.0,
        expected_fdr_by_response=np.where(by_response, entry, 0.0).sum(axis=0) / np.maximum(counts, 1),
        method=method,
        fdr=fdr,
    )
