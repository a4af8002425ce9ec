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
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from intarsia.errors import InputError

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]

COVARIANCES = {
    "VII": "spherical",
    "VVI": "diag",
    "EEE": "tied",
    "VVV": "full",
}  # mclust's letters -> scikit-learn's name
_CHUNK = 8_000_000  # numbers in memory at once
_EDGE = 1e-8  # floor of a correlation matrix' eigenvalues


@dataclass(frozen=True)
class Selection:
    """The chosen features and the evidence for each.

    `local_fdr` (P,) and `local_fdr_by_response` (P, Q) are the probabilities that choosing this feature, or this
    coefficient, is wrong; `evidence` is one minus the first. `sign` (P,) is the sign at the response where the feature
    shows most, `sign_by_response` (P, Q) each coefficient's. `expected_fdr` is the share of `selected` to expect wrong,
    `expected_fdr_by_response` (Q,) that of each column of `by_response`.
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

    @property
    def evidence(self) -> Array:
        return 1.0 - self.local_fdr

    @property
    def order(self) -> NDArray[np.intp]:
        """The features, most evidence first."""
        return np.argsort(self.local_fdr, kind="stable")

    @property
    def running_fdr(self) -> Array:
        """For each feature, the expected FDR of the set of all features with at least its evidence."""
        order = self.order
        running = np.empty(len(order))
        running[order] = np.cumsum(self.local_fdr[order]) / np.arange(1, len(order) + 1)
        return running

    def to_dict(self) -> dict[str, Any]:
        """Counts and expected rates for a report or `--json`."""
        return {
            "method": self.method,
            "fdr": self.fdr,
            "features": len(self.selected),
            "selected": int(self.selected.sum()),
            "expected_fdr": self.expected_fdr,
            "selected_by_response": [int(n) for n in self.by_response.sum(axis=0)],
            "expected_fdr_by_response": [float(v) for v in self.expected_fdr_by_response],
        }


def select(
    draws: Any,
    method: Literal["bfdr", "mixture"] = "bfdr",
    fdr: float = 0.05,
    *,
    max_local_fdr: float = 0.1,
    covariance: str = "bic",
    seed: int = 0,
) -> Selection:
    """Choose features from draws of C: an array (chain, draw, P, Q), a `Draws` or a `Posterior`.

    `max_local_fdr` keeps out features that are individually doubtful, however much room surer ones leave in the mean.
    `covariance` is that of the mixture: "bic" chooses among VII, VVI, EEE and VVV (mclust's names).
    """
    C = np.asanyarray(getattr(draws, "C", draws))
    if C.ndim != 4:
        raise InputError(f"The draws have {C.ndim} dimensions; expected 4: (chain, draw, feature, response).")
    if not 0 < fdr < 1:
        raise InputError(f"fdr is {fdr}; expected a rate between 0 and 1, such as 0.05.")
    if method == "bfdr":
        return _bfdr(C, fdr, max_local_fdr)
    if method == "mixture":
        return _mixture(C, fdr, covariance, seed)
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


def calibrate(share: Array) -> Array:
    """The smallest local fdr that even odds and a tail share allow: b/(1+b), b = −e·p·log p (Sellke et al. 2001).

    A coefficient in the row of a feature that is certainly there is not shrunk: its share is then like a p-value, and
    taken as a local fdr it would let in one null in twenty.
    """
    p = np.clip(share, np.finfo(float).tiny, 1.0)
    bound = np.where(p < np.exp(-1), -np.e * p * np.log(p), 1.0)
    return np.maximum(share, bound / (1 + bound))


def _bfdr(C: NDArray[Any], fdr: float, max_local_fdr: float) -> Selection:
    _chains, _n, P, Q = C.shape
    row = np.empty(P)
    entry = np.empty((P, Q))
    mean = np.empty((P, Q))
    for part, x in _features(C):
        mean[part] = x.mean(axis=2)
        entry[part] = sign_share(x)
        row[part] = row_share(x, entry[part])
    by_entry = row[:, None] + (1 - row[:, None]) * calibrate(entry)
    selected = bayesian_fdr(row, fdr, max_local_fdr)
    by_response = np.column_stack([bayesian_fdr(by_entry[:, q], fdr, max_local_fdr) for q in range(Q)])
    return _selection(selected, by_response, row, by_entry, mean, "bfdr", fdr)


def _features(C: NDArray[Any]) -> Iterator[tuple[slice, Array]]:
    """Chunks of features with their draws as (feature, response, draw), read once."""
    chains, n, P, Q = C.shape
    step = max(1, _CHUNK // (chains * n * Q))
    for start in range(0, P, step):
        part = slice(start, min(P, start + step))
        x = np.ascontiguousarray(C[:, :, part].transpose(2, 3, 0, 1), dtype=np.float64)
        if not np.isfinite(x).all():
            raise InputError("Some draws are not finite; a selection from them would mean nothing. Look at the diagnosis.")
        yield part, x.reshape(x.shape[0], Q, chains * n)


def sign_share(x: Array) -> Array:
    """Twice the share of draws on the wrong side of zero, for x (…, draw): all of them when the posterior straddles it.

    With no draw on the wrong side the normal tail takes over, but never says more than half a draw.
    """
    N = x.shape[-1]
    wrong = np.minimum((x <= 0).sum(axis=-1), (x >= 0).sum(axis=-1))
    mean, sd = x.mean(axis=-1), x.std(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = 2 * stats.norm.sf(np.where(sd > 0, np.abs(mean) / sd, 0.0))
    return np.where(wrong == 0, np.minimum(0.5 / N, tail), np.minimum(1.0, 2 * wrong / N))


def row_share(x: Array, entry: Array) -> Array:
    """How far zero lies outside the posterior of each feature's row; x (feature, response, draw), `entry` its shares.

    The smaller of the joint share (draws with a larger Mahalanobis distance from the mean than zero has; sees effects
    spread over the responses) and the sharpest response's, times the number of responses; twice, because it is the
    smaller of two.
    """
    Q, N = x.shape[1:]
    if Q == 1:
        return entry[:, 0].copy()
    sharpest = Q * entry.min(axis=1)
    if N <= 5 * Q:  # too few draws to know the shape of the posterior
        return np.minimum(1.0, sharpest)
    return np.minimum(1.0, 2 * np.minimum(contour_share(x), sharpest))


def contour_share(x: Array) -> Array:
    """The share of draws further from their mean than zero, in the metric of their own covariance."""
    Q, N = x.shape[1:]
    mean = x.mean(axis=2, keepdims=True)
    sd = x.std(axis=2, keepdims=True)
    scale = np.where(sd > 0, sd, 1.0)
    z = (x - mean) / scale
    size, U = np.linalg.eigh(z @ z.transpose(0, 2, 1) / N)
    whiten = U.transpose(0, 2, 1) / np.sqrt(np.maximum(size, _EDGE))[:, :, None]
    zero = ((whiten @ (mean / scale)) ** 2).sum(axis=(1, 2))
    further = (((whiten @ z) ** 2).sum(axis=1) >= zero[:, None]).sum(axis=1)
    return np.where(further == 0, np.minimum(0.5 / N, stats.chi2.sf(zero, Q)), further / N)


def _mixture(C: NDArray[Any], fdr: float, covariance: str, seed: int) -> Selection:
    mean = np.concatenate([x.mean(axis=2) for _part, x in _features(C)])
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
