"""One name for each fit under comparison, and the row of measures that a fit on simulated data leaves."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.paper import metrics
from experiments.paper.simulate import Dataset
from experiments.rivals import SRRR, Baseline, DRidge, ElasticNet, Locus, Ridge, SketchedRidge
from experiments.rivals.horseshoe import Default, Horseshoe, PaperVFL, Posterior
from experiments.rivals.mbsp import MBSP
from intarsia.errors import InputError
from intarsia.server.assess.local_fdr import algorithm3

Row = dict[str, Any]

SKETCHED = ("intarsia", "horseshoe", "BayesVFLReg", "sketched-ridge")
POSTERIORS = ("intarsia", "horseshoe", "BayesVFLReg")  # of the sketched ones, those that also ask where the responses lie
METHODS = (*SKETCHED, "centralized", "centralized-paper", "dRidge", "locus", "srrr", "ridge", "elasticnet", "MBSP")


@dataclass(frozen=True)
class Effort:
    """How long the chains run (sweeps; every thin-th is kept), and how many bootstrap fits dRidge gets."""

    draws: int = 500
    warmup: int = 500
    chains: int = 2
    thin: int = 1
    bootstrap: int = 100

    @property
    def sweeps(self) -> str:
        """chains × (warm-up + sweeps kept or thinned away), as the results record it."""
        return f"{self.chains}x({self.warmup}+{self.draws * self.thin})"


def make(method: str, settings: Effort, m: int | None = None, seed: int = 0, **extra: Any) -> Baseline:
    """The estimator of that name; the sketched ones need m."""
    chain: dict[str, Any] = {
        "draws": settings.draws, "warmup": settings.warmup, "chains": settings.chains, "thin": settings.thin,
        "seed": seed, **extra,
    }  # fmt: skip
    match method:
        case "intarsia":
            return Default(m, seed, **extra)
        case "horseshoe" | "BayesVFLReg":
            if m is None:
                raise InputError(f"Method {method!r} works on a sketch; give its number of rows m.")
            return Horseshoe(m=m, **chain) if method == "horseshoe" else PaperVFL(m=m, **chain)
        case "sketched-ridge":
            if m is None:
                raise InputError("Method 'sketched-ridge' works on a sketch; give its number of rows m.")
            return SketchedRidge(m, seed=seed)
        case "centralized":
            return Horseshoe(**chain)
        case "centralized-paper":
            return PaperVFL(**chain)
        case "MBSP":
            return MBSP(**chain)
        case "dRidge":
            # The direct solution: the consensus reaches the same numbers (a test shows it) in a thousand rounds.
            return DRidge(bootstrap=settings.bootstrap, consensus=False, seed=seed)
        case "locus":
            return Locus()
        case "srrr":
            return SRRR(seed=seed)
        case "ridge":
            return Ridge()
        case "elasticnet":
            return ElasticNet()
    raise InputError(f"Method {method!r} is not known; use one of {', '.join(METHODS)}.")


def estimator(method: str, data: Dataset, settings: Effort, m: int | None = None, seed: int = 0) -> Baseline:
    """The estimator of that name for this data set, not fitted yet."""
    extra = {"response_sites": data.response_sites} if method in POSTERIORS else {}
    return make(method, settings, m, seed, **extra)


def fit(method: str, data: Dataset, settings: Effort, m: int | None = None, seed: int = 0) -> tuple[Baseline, Row]:
    """Fit one method to a simulated data set; the estimator and its row.

    Seconds are of processor time: replicates share their machine with one another and with whatever else runs there.
    """
    model = estimator(method, data, settings, m, seed)
    start = time.process_time()
    model.fit(data.X, data.Y, sites=data.feature_sites)
    return model, {"method": method, "m": m, "seconds": time.process_time() - start, **measures(model, data, settings)}


def measures(model: Baseline, data: Dataset, settings: Effort) -> Row:
    """Every measure of a fitted estimator that the truth allows."""
    interval = model.interval(0.95)
    both = None if interval is None else (interval[0].T, interval[1].T)
    estimate = model.coef_.T
    row: Row = dict(metrics.score(estimate, data.C, both, model.selected_))
    for tag, covariance in (("mclust", "mclust"), ("eii", "EII")):
        chosen = algorithm3(estimate, covariance)
        row |= {
            f"fdr_{tag}": metrics.fdr(chosen, data.support),
            f"power_{tag}": metrics.power(chosen, data.support),
        }
    if isinstance(model, Posterior):
        row |= {"sweeps": settings.sweeps, **chain_measures(model)}
    return row


def chain_measures(model: Posterior) -> Row:
    """ESS by coda's and by ArviZ's definition, efficiency, R̂ that 99 % of the coefficients stay under, noise level."""
    from intarsia.server.assess.convergence import diagnose

    coda, diagnosis = metrics.ess_coda(model.C_), diagnose(model.C_)
    bulk = np.nan_to_num(np.asarray(diagnosis.ess_bulk))
    timed = {
        "efficiency": metrics.computational_efficiency(coda, model.seconds_),
        "efficiency_arviz": metrics.computational_efficiency(bulk, model.seconds_),
        "sampling_seconds": model.seconds_,
    } if model.seconds_ is not None else {}  # fmt: skip
    return timed | {
        "ess_coda": float(coda.sum()),
        "ess_arviz": float(bulk.sum()),
        "rhat_99": float(np.nanquantile(np.asarray(diagnosis.rhat), 0.99)) if len(model.C_) > 1 else None,
        "sigma2": float(model.sigma2_.mean()),
        "sigma2_min": float(model.sigma2_.min()),
    }


def accuracy_measures(model: Posterior, centralized: Posterior, C: np.ndarray, seed: int = 0) -> Row:
    """How near the sketched posterior is to the centralized one: printed grid, Gaussian closed form, from the draws."""
    draws, base = (x.C_.reshape(-1, *C.shape) for x in (model, centralized))
    mean, sd, mean0, sd0 = draws.mean(0), draws.std(0, ddof=1), base.mean(0), base.std(0, ddof=1)
    low, high = min(draws.min(), base.min()), max(draws.max(), base.max())
    grid = np.random.default_rng(seed).uniform(low, high, 500)
    row: Row = {}
    for tag, accuracy in (
        ("paper", metrics.accuracy_paper(mean, sd, mean0, sd0, grid)),
        ("gauss", metrics.affinity_gaussian(mean, sd, mean0, sd0)),
        ("draws", metrics.affinity_draws(draws, base)),
    ):
        row[f"acc_{tag}_nz"], row[f"acc_{tag}_z"] = metrics.accuracy_by_truth(accuracy, C)
    return row
