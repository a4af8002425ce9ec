"""Whether the chains agree: diagnostics of every coefficient, the worst of them, and a verdict a reader can act on.

Of a sparse fit the mean of each effect given the rest is compared, of every feature that comes into play, and the
inclusion probabilities of all. Of a dense one all coefficients are.
"""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from intarsia.server.assess.diagnostics import NAMES, entries
from intarsia.server.posterior.draws import Draws
from intarsia.wire.defaults import ESS, NOISE_ESS, NOISE_RHAT, PIP_GAP, RHAT, RHAT_FOLDED

FAR = 5  # times as many draws as there are, from which on something else than draws is advised

Array = NDArray[np.float64]


class NotConvergedWarning(ConvergenceWarning):
    """The chains do not agree, or there are too few draws: what was found is provisional."""


def warn_unless(converged: bool, verdict: str, stacklevel: int) -> None:
    """Warn with the verdict; `stacklevel` counts from the caller of this function."""
    if not converged:
        warnings.warn(verdict, NotConvergedWarning, stacklevel=stacklevel + 1)


@dataclass(frozen=True)
class Diagnosis:
    """Diagnostics of every entry: of C those of features at `places` (place, response), or of all features where that is None.

    `rhat` and `rhat_folded` are the rank-normalised split R̂ of the location and of the spread, `ess_bulk` and
    `ess_tail` effective sample sizes, `mcse` and `mcse_sd` the Monte Carlo errors of the posterior mean and sd. An
    entry that never moved has R̂ NaN; an entry with a draw that is not finite has NaN everywhere. `noise` and `parameters` are
    those of the noise variances and of the prior; `pip_gap` is the largest difference of an inclusion probability between chains.
    """

    rhat: Array
    rhat_folded: Array
    ess_bulk: Array
    ess_tail: Array
    mcse: Array
    mcse_sd: Array
    chains: int
    draws: int
    places: NDArray[np.int64] | None = None
    features: list[str] | None = None
    responses: list[str] | None = None
    noise: "Diagnosis | None" = None
    parameters: "Diagnosis | None" = None
    names: list[str] | None = None  # of the prior's parameters
    pip_gap: float | None = None

    @property
    def not_finite(self) -> NDArray[np.bool_]:
        """Entries with a draw that is NaN or infinite."""
        return np.isnan(self.ess_bulk)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Entries whose draws are all the same: nothing to diagnose."""
        return np.isnan(self.rhat) & ~self.not_finite

    @property
    def limits(self) -> tuple[float, float, float]:
        """The R̂, folded R̂ and effective samples asked for: of coefficients, or of noise variances and the prior's parameters."""
        return (RHAT, RHAT_FOLDED, ESS) if self.rhat.ndim == 2 else (NOISE_RHAT, NOISE_RHAT, NOISE_ESS)

    @property
    def samples(self) -> Array:
        """Effective samples of each entry, in bulk or in the tails, whichever are fewer."""
        return np.minimum(self.ess_bulk, self.ess_tail)

    @property
    def _outside(self) -> list[NDArray[np.bool_]]:
        """The entries that are not finite, and those outside of each limit; entries that never moved are within."""
        rhat, folded, ess = self.limits
        with np.errstate(invalid="ignore"):
            return [self.not_finite, self.rhat > rhat, self.rhat_folded > folded, self.samples < ess]

    @property
    def converged(self) -> bool:
        """Every entry and every noise variance is within the limits; entries that never moved do not count."""
        fine = not np.any(self._outside) and (self.pip_gap is None or self.pip_gap <= PIP_GAP)
        return bool(fine and all(one.converged for one in (self.noise, self.parameters) if one is not None))

    @property
    def standing(self) -> str:
        """ "converged", "almost converged" (under one entry in a hundred out of its limits, and more draws will do), or
        "not converged".
        """
        if self.converged:
            return "converged"
        few = not self.rhat.size or np.any(self._outside, axis=0).mean() < 0.01
        return "almost converged" if few and self.more_draws() is not None else "not converged"

    @property
    def headline(self) -> str:
        """The standing and the verdict in one line."""
        return f"{self.standing[0].upper()}{self.standing[1:]}: {self.verdict}"

    def more_draws(self) -> int | None:
        """Further draws per chain after which all entries should be within the limits; None when draws alone will not do.

        R̂ − 1 falls as 1/draws and the effective sample size grows with them once the chains are stationary.
        """
        rhat, folded, ess = self.limits
        factor = max(1.0, (_max(self.rhat) - 1) / (rhat - 1), (_max(self.rhat_folded) - 1) / (folded - 1))
        smallest = min(_min(self.ess_bulk), _min(self.ess_tail))
        factor = max(factor, ess / smallest if smallest > 0 else math.inf)
        if self.not_finite.any() or factor > 30:
            return None
        return _round_up((factor - 1) * self.draws)

    @property
    def verdict(self) -> str:
        """One or two sentences: what is wrong with how many entries, and what to do."""
        things = "coefficients" if self.rhat.ndim == 2 else "parameters of the prior" if self.names else "noise variances"
        if self.places is not None:
            things += f" of features that come into play ({len(self.places):,})"
        total, (rhat, folded, ess) = self.rhat.size, self.limits
        wrong = (
            "draws that are not finite",
            f"R̂ > {rhat}",
            f"folded R̂ > {folded} (the spread has not settled)",
            f"fewer than {ess:.0f} effective samples",
        )
        notes: list[str] = []
        for where, what in zip(self._outside, wrong, strict=True):
            if count := int(where.sum()):
                subject = f"{count:,}" if notes else f"{count:,} of {total:,} {things}"
                notes.append(f"{subject} {'has' if count == 1 else 'have'} {what}")
        if notes:
            text = ", ".join(notes) + f": {self._remedy()}"
        else:
            smallest = whole(min(_min(self.ess_bulk), _min(self.ess_tail)))
            text = f"all {total:,} {things} have R̂ ≤ {rhat}, folded R̂ ≤ {folded} and at least {smallest:,} effective samples"
        if still := int(self.constant.sum()):
            text += f"; {still:,} never moved"
        if self.pip_gap is not None:
            over = f", more than {PIP_GAP:g}: take longer chains, or more of them" if self.pip_gap > PIP_GAP else ""
            text += f"; inclusion probabilities differ between chains by at most {self.pip_gap:.2g}{over}"
        for name, other in (("Noise", self.noise), ("Prior", self.parameters)):
            if other is not None and not other.converged:
                text += f". {name}: {other.verdict}"
        return text

    def _remedy(self) -> str:
        if self.not_finite.any():
            return "the run is not usable; look for columns of extreme scale and run again"
        more = self.more_draws()
        far = more is None or more > FAR * self.draws
        if far and self.noise is not None and _max(self.noise.rhat) > NOISE_RHAT:
            # Where features outnumber rows many small coefficients can stand in for noise, and chains stay with one or the other.
            return (
                "the chains do not agree on how much of the responses is noise; rather than run many more draws, say how many "
                "features you expect to matter (expected_features) or double the warm-up"
            )
        if more is None:
            return "the chains do not agree yet; more draws alone will not do, double the warm-up first"
        return f"run {more:,} more draws"

    def worst(self, k: int = 5) -> list[dict[str, Any]]:
        """The k entries furthest from their limits, worst first."""
        rhat, folded, ess = self.limits
        with np.errstate(invalid="ignore", divide="ignore"):
            score = np.fmax((self.rhat - 1) / (rhat - 1), (self.rhat_folded - 1) / (folded - 1))
            score = np.where(self.not_finite, np.inf, np.fmax(score, ess / self.samples))
        order = np.argsort(-score, axis=None, kind="stable")[:k]
        found = zip(*np.unravel_index(order, score.shape), strict=True)
        return [{**self._name(index), **{key: float(getattr(self, key)[index]) for key in NAMES}} for index in found]

    def summary(self) -> dict[str, dict[str, float]]:
        """Worst, poorest 5 % and median of each diagnostic over the entries."""
        table = {}
        for key in NAMES:
            values = getattr(self, key)
            values = values[np.isfinite(values)]
            best_first = [1.0, 0.95, 0.5] if not key.startswith("ess") else [0.0, 0.05, 0.5]
            found = np.quantile(values, best_first).tolist() if values.size else [math.nan] * 3
            table[key] = dict(zip(("worst", "poor", "median"), found, strict=True))
        return table

    def _name(self, index: tuple[Any, ...]) -> dict[str, Any]:
        if len(index) == 1:
            return {"parameter": self.names[index[0]]} if self.names else {"response": int(index[0])}
        p, q = int(index[0] if self.places is None else self.places[index[0]]), int(index[1])
        return {
            "feature": self.features[p] if self.features else p,
            "response": self.responses[q] if self.responses else q,
        }


def diagnose(draws: Any, *, workers: int | None = None) -> Diagnosis:
    """Diagnose draws of C: an array (chain, draw, P, Q), a `Draws` or a `Posterior`. `workers` are threads.

    Of a `Draws` or a `Posterior` the noise variances are diagnosed too, and of a sparse one the prior's parameters.
    """
    found = Draws.of(draws)
    size: dict[str, Any] = {"chains": found.chains, "draws": found.draws}
    labels: dict[str, Any] = {name: getattr(draws, name, None) for name in ("features", "responses")}
    bare = not isinstance(draws, Draws) and not isinstance(getattr(draws, "draws", None), Draws)  # an array has no noise
    noise = None if bare else Diagnosis(**entries(np.asarray(found.sigma2), workers=1), **size)
    if isinstance(found.C, np.ndarray):
        return Diagnosis(**entries(found.C, workers=workers), **size, **labels, noise=noise)
    known = found.inclusion
    traced = np.flatnonzero(found.C.counts) if known is None else known.traced()
    traces = (found.C if known is None else known.effects).dense(traced)
    names, values = _of_the_prior(found)
    prior = Diagnosis(**entries(values, workers=1), **size, names=names) if names else None
    gap = None if known is None else known.gap()
    own = Diagnosis(**entries(traces, workers=workers), **size, places=traced, **labels, noise=noise)
    return replace(own, parameters=prior, pip_gap=gap)


def _of_the_prior(draws: Draws) -> tuple[list[str], Array]:
    """One number per draw of each of the prior's parameters that are diagnosed (chain, draw, parameter), and their names."""
    parts: dict[str, Any] = {n: draws.parameters[n] for n in ("included", "background_ratio") if n in draws.parameters}
    if "slab" in draws.parameters:
        parts["slab"] = np.log(np.trace(draws.parameters["slab"], axis1=2, axis2=3))
    values = [np.asarray(one, dtype=np.float64).reshape(draws.chains, draws.draws) for one in parts.values()]
    return list(parts), np.stack(values, axis=2) if values else np.empty((draws.chains, draws.draws, 0))


def _max(values: Array) -> float:
    return float(np.nanmax(values)) if np.isfinite(values).any() else 1.0


def _min(values: Array) -> float:
    return float(np.nanmin(values)) if np.isfinite(values).any() else math.inf


def whole(value: float) -> int:
    """An effective sample size as it is told: whole samples, never rounded up to a limit."""
    return int(value) if math.isfinite(value) else 0


def _round_up(draws: float) -> int:
    """To one significant digit: 1,340 → 2,000."""
    if draws <= 0:
        return 0
    unit = 10 ** max(2, math.floor(math.log10(draws)))
    return int(math.ceil(draws / unit) * unit)
