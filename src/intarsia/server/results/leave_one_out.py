"""How well the fit predicts rows it has not seen, from the fit itself: leave-one-out over the rows of the sketch.

The rows of a sketch are exchangeable, so leaving one out says how a new one would be predicted; no subject is involved.
No refit is needed: the draws are weighted by the inverse of the left-out row's likelihood, with the weights' tail smoothed
(Pareto-smoothed importance sampling; Vehtari, Gelman & Gabry 2017). Its own warning light is k̂ of each row: above .7 the
estimate for that row is not to be trusted, and `intarsia.server.results.refits.k_fold` gives the answer by refitting.
"""

import os
import tempfile
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy import special

from intarsia.errors import InputError
from intarsia.server.results.diagnostics import ess
from intarsia.server.results.fitted import fitted
from intarsia.server.results.posterior import Posterior
from intarsia.server.results.rows import Rows as Rows
from intarsia.server.results.rows import out_of_sample

Array = NDArray[np.float64]

K_LIMIT = 0.7  # Pareto shape above which the estimate for a row is unreliable
_MOST_NUMBERS = 3e7  # fitted values kept at once: draws × rows × responses
_MOST_OPERATIONS = 2e10  # of X C over the draws used
_LEAST_DRAWS = 400
_EDGE = 1e-10  # floor of a correlation matrix' eigenvalues


@dataclass(frozen=True)
class LeaveOneOut:
    """`elpd` (m,): log predictive density of each row left out; `pareto_k` (m,) its k̂; `p_loo` the effective number of
    parameters. `r2` (Q,) is the out-of-sample share of variance explained and `r2_se` its standard error;
    `mean` (m, Q) predicts each row from the others.
    """

    elpd: Array
    pareto_k: Array
    p_loo: float
    r2: Array
    r2_se: Array
    mean: Array

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


def log_likelihood(posterior: Posterior, rows: Rows, thin: int | None = None) -> tuple[Array, Array]:
    """log p(yᵢ | C, Γ, Σ) of every row, (chain, draw, row), and the fitted values (chain, draw, row, response)."""
    chains, draws, P, Q = posterior.whole.shape
    m = len(rows.Y)
    thin = thin or thinning(chains, draws, m, P, Q)
    kept = len(range(0, draws, thin))
    at = np.arange(chains * draws).reshape(chains, draws)[:, ::thin].ravel()
    values = fitted(rows.X, posterior.whole, at).reshape(chains, kept, m, Q)
    if posterior.Gamma is not None:
        values = values + np.einsum("ij,cdjq->cdiq", rows.Z, posterior.Gamma.values[:, ::thin], optimize=True)
    return normal_log_density(rows.Y - values, posterior.whole_Sigma[:, ::thin]), values


def thinning(chains: int, draws: int, m: int, P: int, Q: int) -> int:
    """Every how many draws are used, so that time and memory stay small beside the fit's own."""
    most = min(_MOST_NUMBERS / (m * Q), _MOST_OPERATIONS / (2 * m * max(P, 1) * Q))
    wanted = max(most, _LEAST_DRAWS) / chains
    return max(1, int(np.ceil(draws / max(wanted, 1))))


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
    psislw = arvizs("psislw")
    each, values = log_likelihood(posterior, rows)
    attach(posterior, each)
    chains, draws, m = each.shape
    S = chains * draws
    if not np.isfinite(each).all():
        raise InputError("Some draws are not finite, so no row's likelihood can be computed. Look at the diagnosis.")
    flat = each.reshape(S, m).T
    relative = float(np.clip(np.nanmean(ess(np.ascontiguousarray(each.transpose(2, 0, 1)))) / S, 1e-3, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # k̂ is told in words of our own
        weights, k = psislw(-flat, reff=relative)
    weights, k = np.asarray(weights), np.asarray(k)
    elpd = special.logsumexp(weights + flat, axis=1)
    in_sample = special.logsumexp(flat, axis=1) - np.log(S)
    mean = np.einsum("is,siq->iq", np.exp(weights), values.reshape(S, m, -1), optimize=True)
    r2, r2_se = out_of_sample(rows.Y, mean)
    return LeaveOneOut(elpd, k, float((in_sample - elpd).sum()), r2, r2_se, mean)


def attach(posterior: Posterior, each: Array) -> None:
    """Put the rows' log-likelihoods where ArviZ's `loo` and `compare` look for them."""
    draws = posterior.whole_at
    thin = -(-len(draws) // each.shape[1])
    coords = {"chain": posterior.C.coords["chain"].values, "draw": draws[::thin], "row": np.arange(each.shape[2])}
    posterior.tree["log_likelihood"] = xr.DataTree(xr.Dataset({"Y": (("chain", "draw", "row"), each)}, coords=coords))


def to_arviz(posterior: Posterior) -> Any:
    """The posterior as this ArviZ takes it: an InferenceData before ArviZ 1, the DataTree itself from then on."""
    turn = arvizs("from_datatree", None)
    return posterior.tree if turn is None else turn(posterior.tree)


def arvizs(name: str, *default: Any) -> Any:
    """A function of ArviZ's. Its daily note about its next version is not for our users; the note's date goes into the home
    folder, which a service may not have.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            import arviz
        except OSError:
            before = os.environ.get("XDG_CACHE_HOME")
            with tempfile.TemporaryDirectory() as elsewhere:
                os.environ["XDG_CACHE_HOME"] = elsewhere
                import arviz
            del os.environ["XDG_CACHE_HOME"]
            os.environ |= {} if before is None else {"XDG_CACHE_HOME": before}
    return getattr(arviz, name, *default)
