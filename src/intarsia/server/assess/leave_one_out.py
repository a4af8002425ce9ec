"""How well the fit predicts rows it has not seen, from the fit itself: leave-one-out over the rows of the sketch.

The rows of a sketch are exchangeable, so leaving one out says how a new one would be predicted; no subject is involved.
No refit is needed: the draws are weighted by the inverse of the left-out row's likelihood, with the weights' tail smoothed
(Pareto-smoothed importance sampling; Vehtari, Gelman & Gabry 2017). Its own warning light is k̂ of each row: above .7 the
estimate for that row is not to be trusted, and `intarsia.server.assess.criticism.k_fold` gives the answer by refitting.

Where a dense background was fitted, rows that are alike share it, and a row is predicted from the others with what they say of
it: given the sparse effects the residuals are N(0, (I + wK) ⊗ Σ), K = XXᵀ/P, and one row given the rest has a closed form.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from intarsia.errors import InputError
from intarsia.server.assess.diagnostics import ess
from intarsia.server.posterior.posterior import HELD_BY, Group, Posterior
from intarsia.server.posterior.sparse import parts

Array = NDArray[np.float64]

_LEAST_ROWS = 20  # with every response, to judge by
K_LIMIT = 0.7  # Pareto shape above which the estimate for a row is unreliable
_MOST_NUMBERS = 3e7  # fitted values kept at once: draws × rows × responses
_MOST_OPERATIONS = 2e10  # of X C over the draws used
_LEAST_DRAWS = 400
_LEAST_TO_SMOOTH = 25  # draws, of which at most a fifth is the tail, and a tail has five
_BLOCK = 2**24  # numbers of X worked on at once
_EDGE = 1e-10  # floor of a correlation matrix' eigenvalues


@dataclass(frozen=True)
class Rows:
    """The rows a posterior was fitted to: X (m × P), Y (m × Q) and the covariates Z (m × c), in the posterior's units."""

    X: Array
    Y: Array
    Z: Array

    @classmethod
    def of(cls, X: Any, Y: Any, Z: Any = None) -> "Rows":
        """The same from whatever arrays come; without Z there are no covariates."""
        X, Y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
        Z = np.empty((len(Y), 0)) if Z is None else np.asarray(Z, dtype=np.float64)
        if not len(X) == len(Y) == len(Z):
            raise InputError(f"X, Y and Z have {len(X)}, {len(Y)} and {len(Z)} rows; expected as many each.")
        return cls(X, Y, Z)

    def complete(self) -> "Rows | None":
        """The rows that have every response; None where they are too few to judge by."""
        whole = ~np.isnan(self.Y).any(axis=1)
        if whole.all():
            return self
        return self.take(whole) if whole.sum() >= _LEAST_ROWS else None

    def take(self, which: Any) -> "Rows":
        """Some of the rows."""
        return Rows(self.X[which], self.Y[which], self.Z[which])


def out_of_sample(Y: Array, predicted: Array) -> tuple[Array, Array]:
    """R² of each response and its standard error: 1 − Σ(y − ŷ)²/Σy². A sketch's rows have mean zero, so nothing is centred.

    Both sums vary with the rows, and together: the error is that of a ratio.
    """
    total = (Y**2).sum(axis=0)
    total = np.where(total > 0, total, np.inf)
    wrong = (Y - predicted) ** 2
    left = np.where(np.isinf(total), 1.0, wrong.sum(axis=0) / total)
    return 1 - left, np.sqrt(len(Y)) * (left * Y**2 - wrong).std(axis=0) / total


def under_another_sketch(r2: Array, se: Array, m: int, n: int, probability: float = 0.95) -> tuple[Array, Array]:
    """Between which values R² would be had the same n subjects been mixed into m rows by another Φ.

    A sketch's rows are to all subjects what a sample without replacement is: of the error of m rows the share 1 − m/n is Φ's.
    Two sketches differ by two such errors.
    """
    reach = special.ndtri(0.5 + probability / 2) * np.sqrt(2 * max(0.0, 1 - m / n)) * se
    return r2 - reach, r2 + reach


@dataclass(frozen=True)
class LeaveOneOut:
    """`elpd` (m,): log predictive density of each row left out; `pareto_k` (m,) its k̂; `p_loo` the effective number of
    parameters. `r2` (Q,) is the out-of-sample share of variance explained and `r2_se` its standard error;
    `mean` (m, Q) predicts each row from the others.
    """

    elpd: Annotated[Array, "row"]
    pareto_k: Annotated[Array, "row"]
    p_loo: float
    r2: Annotated[Array, "response"]
    r2_se: Annotated[Array, "response"]
    mean: Annotated[Array, "row", "response"]

    @property
    def unreliable(self) -> int:
        """Rows whose k̂ is above .7."""
        return int((self.pareto_k > K_LIMIT).sum())

    @property
    def total(self) -> float:
        return float(self.elpd.sum())

    @property
    def total_se(self) -> float:
        return float(np.sqrt(len(self.elpd) * self.elpd.var()))

    @property
    def unpredicted(self) -> NDArray[np.bool_]:
        """Responses (Q,) that the fit does not predict beyond chance: R² below its own standard error."""
        return np.asarray(self.r2 < self.r2_se)

    def warning(self) -> str:
        """What k̂ says against these numbers; empty when nothing."""
        if not self.unreliable:
            return ""
        return (
            f"k̂ > {K_LIMIT} in {self.unreliable} of {len(self.elpd)} rows: leave-one-out is not reliable for them. "
            "Check with k-fold, which refits: `intarsia check FOLDER --folds 5`."
        )


def log_likelihood(posterior: Posterior, rows: Rows) -> tuple[Array, Array]:
    """log p(yᵢ | C, Γ, Σ) of every row, (chain, draw, row), and the fitted values (chain, draw, row, response)."""
    at = used(posterior, rows)
    values = posterior.fitted(rows.X, rows.Z, at.ravel())
    each = normal_log_density(rows.Y - values, posterior.draws.flat_Sigma[at.ravel()])
    return each.reshape(*at.shape, -1), values.reshape(*at.shape, *rows.Y.shape)


def used(posterior: Posterior, rows: Rows) -> NDArray[np.int64]:
    """Numbers (chain, draw) of the draws that are used, so that time and memory stay small beside the fit's own."""
    d, m = posterior.draws, len(rows.Y)
    most = min(_MOST_NUMBERS / (m * d.Q), _MOST_OPERATIONS / (2 * m * max(d.P, 1) * d.Q))
    each = int(np.ceil(d.draws / max(max(most, _LEAST_DRAWS) / d.chains, 1)))
    return np.arange(d.number).reshape(d.chains, d.draws)[:, :: max(1, each)]


def with_background(posterior: Posterior, rows: Rows) -> tuple[Array, Array]:
    """log p(yᵢ | C, Γ, Σ, w, the other rows), and these predictions, where draws have a background's ratio w."""
    d = posterior.draws
    at = used(posterior, rows)
    bare = replace(posterior, draws=replace(d, background=None))
    left = rows.Y - bare.fitted(rows.X, rows.Z, at.ravel())  # (draw, row, Q)
    values, W = np.linalg.eigh(likeness(rows.X))
    # Rows of (I + wK)⁻¹ by K's eigenvectors: its diagonal, and its products with the residuals.
    weight = 1 / (1 + d.parameters["background_ratio"].reshape(-1)[at.ravel(), None] * np.maximum(values, 0.0))
    own = weight @ np.square(W).T  # (draw, row)
    off = np.einsum("ik,sk,skq->siq", W, weight, np.einsum("ik,siq->skq", W, left, optimize=True), optimize=True) / own[..., None]
    # One row given the rest: what is left is `off`, with covariance Σ / own.
    each = normal_log_density(off * np.sqrt(own)[..., None], d.flat_Sigma[at.ravel()]) + 0.5 * d.Q * np.log(own)
    return each.reshape(*at.shape, -1), (rows.Y - off).reshape(*at.shape, *rows.Y.shape)


def likeness(X: NDArray[Any]) -> Array:
    """K = XXᵀ/P of columns brought to mean square one, some columns at a time; of very many in single precision."""
    m, P = X.shape
    K = np.zeros((m, m))
    for columns in parts(P, m, _BLOCK):
        part = np.asarray(X[:, columns], dtype=np.float32 if m * m * P > _MOST_OPERATIONS else np.float64)
        scale = np.sqrt(np.square(part).mean(axis=0))
        part = part / np.where(scale > 0, scale, 1)
        K += part @ part.T
    return K / max(1, P)


def normal_log_density(residual: Array, Sigma: Array) -> Array:
    """log N(residual | 0, Σ) for residuals (…, row, Q) and covariances (…, Q, Q), jointly over the responses.

    A response without noise (a constant one) says nothing and is left out. Responses that are copies of each other have a
    singular Σ; the floor under the eigenvalues of its correlations keeps the density finite then.
    """
    here = np.diagonal(Sigma, axis1=-2, axis2=-1).reshape(-1, Sigma.shape[-1]).min(axis=0, initial=np.inf) > 0
    Sigma, residual = Sigma[..., here, :][..., here], residual[..., here]
    sd = np.sqrt(np.diagonal(Sigma, axis1=-2, axis2=-1))
    size, U = np.linalg.eigh(Sigma / (sd[..., :, None] * sd[..., None, :]))
    size = np.maximum(size, _EDGE)
    z = (residual / sd[..., None, :]) @ (U / np.sqrt(size)[..., None, :])
    half_log_det = np.log(sd).sum(axis=-1) + 0.5 * np.log(size).sum(axis=-1)
    return np.asarray(-0.5 * (z**2).sum(axis=-1) - half_log_det[..., None] - 0.5 * here.sum() * np.log(2 * np.pi))


def leave_one_out(posterior: Posterior, rows: Rows) -> LeaveOneOut:
    """Leave-one-out of every row; the posterior also gets the group `log_likelihood`, which ArviZ reads."""
    ratio = posterior.draws.parameters.get("background_ratio")
    each, values = (log_likelihood if ratio is None or not ratio.any() else with_background)(posterior, rows)
    chains, draws, m = each.shape
    S = chains * draws
    if not np.isfinite(each).all():
        raise InputError("Some draws are not finite, so no row's likelihood can be computed. Look at the diagnosis.")
    flat = each.reshape(S, m).T
    relative = float(np.clip(np.nanmean(ess(np.ascontiguousarray(each.transpose(2, 0, 1)))) / S, 1e-3, 1.0))
    # Where ArviZ's loo looks for it; it takes the parameters' relative efficiency unless it is told another.
    words = {"reff": relative, "comment": f"arviz.loo(data, reff={relative:.6g}) gives the report's numbers."}
    posterior.groups["log_likelihood"] = Group({"Y": (("chain", "draw", "row"), each)}, words)
    weights, k = smoothed(flat, relative)
    elpd = special.logsumexp(weights + flat, axis=1)
    in_sample = special.logsumexp(flat, axis=1) - np.log(S)
    mean = np.einsum("is,siq->iq", np.exp(weights), values.reshape(S, m, -1), optimize=True)
    r2, r2_se = out_of_sample(rows.Y, mean)
    return LeaveOneOut(elpd, k, float((in_sample - elpd).sum()), r2, r2_se, mean)


def smoothed(log_likelihoods: Array, relative: float) -> tuple[Array, Array]:
    """Normalised log weights of the draws without each row (row, draw), their tails smoothed, and the rows' k̂ (row,).

    Where the largest weights are all the same, or too few, there is no tail to fit: the weights stay as they are, k̂ is infinite.
    """
    from arviz_stats.base import array_stats

    weights = -log_likelihoods - special.logsumexp(-log_likelihoods, axis=1, keepdims=True)
    k = np.full(len(log_likelihoods), np.inf)
    if log_likelihoods.shape[1] < _LEAST_TO_SMOOTH:
        return weights, k
    with np.errstate(all="ignore"):
        for i, row in enumerate(log_likelihoods):
            with suppress(ValueError):  # the largest weights are all the same
                weights[i], k[i] = array_stats.psislw(row, r_eff=relative)
    return weights, k


def to_arviz(posterior: Posterior, features: Sequence[Any] | None = None) -> Any:
    """The posterior as the installed ArviZ takes it: an InferenceData before ArviZ 1, the DataTree itself from then on.

    Of sparse draws C is there for the features that are named, or for all of them where that is not too much.
    """
    from intarsia.server.posterior.netcdf import in_order

    tree = posterior.tree
    if posterior.draws.sparse:
        C = posterior.dense(features).drop_vars(HELD_BY, errors="ignore")
        tree["posterior"] = in_order(tree["posterior"].to_dataset().drop_vars("feature").assign(C=C))
    try:
        import arviz
    except ImportError:  # arviz-stats takes a tree as well
        return tree
    return arviz.from_datatree(tree) if hasattr(arviz, "from_datatree") else tree
