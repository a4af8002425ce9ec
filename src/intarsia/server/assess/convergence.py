"""Whether the chains agree: diagnostics of every coefficient, the worst of them, and a verdict a reader can act on.

Of a sparse fit the mean of each effect given the rest is compared, of every feature that comes into play in some chain, and the
inclusion probabilities of all. Of a dense one all coefficients are.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.assess.diagnostics import NAMES, entries
from intarsia.server.posterior.draws import Draws
from intarsia.wire.defaults import ESS, NOISE_ESS, NOISE_RHAT, PIP_GAP, RHAT, RHAT_FOLDED

FAR = 5  # times as many draws as there are, from which on something else than draws is advised

Array = NDArray[np.float64]


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

    def full(self, name: str, P: int) -> Array:
        """One diagnostic of all P features (feature, response); NaN where there is nothing to diagnose."""
        values = np.asarray(getattr(self, name))
        if self.places is None:
            return values
        out = np.full((P, values.shape[1]), np.nan)
        out[self.places] = values
        return out

    @property
    def _others(self) -> list["Diagnosis"]:
        return [one for one in (self.noise, self.parameters) if one is not None]

    @property
    def not_finite(self) -> NDArray[np.bool_]:
        """Entries with a draw that is NaN or infinite."""
        return np.isnan(self.ess_bulk)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Entries whose draws are all the same: nothing to diagnose."""
        return np.isnan(self.rhat) & ~self.not_finite

    @property
    def least_ess(self) -> float:
        """Effective samples that are asked for: of coefficients, or of noise variances."""
        return ESS if self.rhat.ndim == 2 else NOISE_ESS

    @property
    def most_rhat(self) -> float:
        return RHAT if self.rhat.ndim == 2 else NOISE_RHAT

    @property
    def most_folded(self) -> float:
        return RHAT_FOLDED if self.rhat.ndim == 2 else NOISE_RHAT

    @property
    def converged(self) -> bool:
        """Every entry and every noise variance is within the limits; entries that never moved do not count."""
        with np.errstate(invalid="ignore"):
            fine = not (
                self.not_finite.any() or (self.rhat > self.most_rhat).any() or (self.rhat_folded > self.most_folded).any()
            )
            fine = fine and not (np.minimum(self.ess_bulk, self.ess_tail) < self.least_ess).any()
        fine = fine and (self.pip_gap is None or self.pip_gap <= PIP_GAP)
        return bool(fine and all(one.converged for one in self._others))

    @property
    def standing(self) -> str:
        """ "converged", "almost converged" (under one entry in a hundred out of its limits, and more draws will do), or
        "not converged".
        """
        if self.converged:
            return "converged"
        with np.errstate(invalid="ignore"):
            out = self.not_finite | (self.rhat > self.most_rhat) | (self.rhat_folded > self.most_folded)
            out |= np.minimum(self.ess_bulk, self.ess_tail) < self.least_ess
        few = not out.size or out.mean() < 0.01
        return "almost converged" if few and self.more_draws() is not None else "not converged"

    @property
    def headline(self) -> str:
        """The standing and the verdict in one line."""
        return f"{self.standing[0].upper()}{self.standing[1:]}: {self.verdict}"

    def more_draws(self) -> int | None:
        """Further draws per chain after which all entries should be within the limits; None when draws alone will not do.

        R̂ − 1 falls as 1/draws and the effective sample size grows with them once the chains are stationary.
        """
        factor = 1.0
        with np.errstate(invalid="ignore"):
            for excess, limit in ((self.rhat, self.most_rhat), (self.rhat_folded, self.most_folded)):
                factor = max(factor, (_max(excess) - 1) / (limit - 1))
            smallest = min(_min(self.ess_bulk), _min(self.ess_tail))
        factor = max(factor, self.least_ess / smallest if smallest > 0 else math.inf)
        if self.not_finite.any() or factor > 30:
            return None
        return _round_up((factor - 1) * self.draws)

    @property
    def verdict(self) -> str:
        """One or two sentences: what is wrong with how many entries, and what to do."""
        things = "coefficients" if self.rhat.ndim == 2 else "parameters of the prior" if self.names else "noise variances"
        if self.places is not None:
            things += f" of features that come into play ({len(self.places):,})"
        total = self.rhat.size
        notes: list[str] = []
        with np.errstate(invalid="ignore"):
            counts = (
                (int(self.not_finite.sum()), "draws that are not finite"),
                (int((self.rhat > self.most_rhat).sum()), f"R̂ > {self.most_rhat}"),
                (
                    int((self.rhat_folded > self.most_folded).sum()),
                    f"folded R̂ > {self.most_folded} (the spread has not settled)",
                ),
                (
                    int((np.minimum(self.ess_bulk, self.ess_tail) < self.least_ess).sum()),
                    f"fewer than {self.least_ess:.0f} effective samples",
                ),
            )
        for count, what in counts:
            if count:
                subject = f"{count:,} of {total:,} {things}" if not notes else f"{count:,}"
                notes.append(f"{subject} {'has' if count == 1 else 'have'} {what}")
        if notes:
            text = ", ".join(notes) + f": {self._remedy()}"
        else:
            text = (
                f"all {total:,} {things} have R̂ ≤ {self.most_rhat}, folded R̂ ≤ {self.most_folded} and at least "
                f"{whole(min(_min(self.ess_bulk), _min(self.ess_tail))):,} effective samples"
            )
        still = int(self.constant.sum())
        if still:
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
        if far and self.noise is not None and _max(self.noise.rhat) > self.noise.most_rhat:
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
        with np.errstate(invalid="ignore", divide="ignore"):
            parts = [
                (self.rhat - 1) / (self.most_rhat - 1),
                (self.rhat_folded - 1) / (self.most_folded - 1),
                self.least_ess / np.minimum(self.ess_bulk, self.ess_tail),
            ]
        score = np.fmax(np.fmax(parts[0], parts[1]), parts[2])
        score = np.where(self.not_finite, np.inf, score)
        rows = []
        for flat in np.argsort(-score, axis=None, kind="stable")[:k]:
            index = np.unravel_index(int(flat), score.shape)
            rows.append({**self._name(index), **{key: float(getattr(self, key)[index]) for key in NAMES}})
        return rows

    def _name(self, index: tuple[Any, ...]) -> dict[str, Any]:
        if len(index) == 1:
            return {"parameter": self.names[index[0]]} if self.names else {"response": int(index[0])}
        p, q = int(index[0] if self.places is None else self.places[index[0]]), int(index[1])
        return {
            "feature": self.features[p] if self.features else p,
            "response": self.responses[q] if self.responses else q,
        }

    def summary(self) -> dict[str, dict[str, float]]:
        """Worst, 5 % and median of each diagnostic over the entries."""
        table = {}
        for key in NAMES:
            values = getattr(self, key)
            values = values[np.isfinite(values)]
            small = key.startswith("ess")
            if not values.size:
                table[key] = {"worst": math.nan, "poor": math.nan, "median": math.nan}
                continue
            poor, median = np.quantile(values, [0.05 if small else 0.95, 0.5])
            worst = values.min() if small else values.max()
            table[key] = {"worst": float(worst), "poor": float(poor), "median": float(median)}
        return table

    def table(self) -> str:
        """The summary as text."""
        lines = [f"{'':12}{'worst':>12}{'poorest 5%':>12}{'median':>12}"]
        for key, row in self.summary().items():
            lines.append(f"{key:12}" + "".join(f"{row[c]:>12.4g}" for c in ("worst", "poor", "median")))
        return "\n".join([*lines, self.verdict])

    def to_dict(self) -> dict[str, Any]:
        """What a report or `--json` shows: summary, worst entries, verdict; no array of P·Q numbers."""
        return {
            "verdict": self.verdict,
            "converged": self.converged,
            "chains": self.chains,
            "draws": self.draws,
            "entries": int(self.rhat.size),
            "over_rhat": int((self.rhat > self.most_rhat).sum()),
            "over_rhat_folded": int((self.rhat_folded > self.most_folded).sum()),
            "summary": _plain(self.summary()),
            "worst": _plain(self.worst()),
            "noise": None if self.noise is None else self.noise.to_dict(),
            "parameters": None if self.parameters is None else self.parameters.to_dict(),
            "pip_gap": self.pip_gap,
        }


def diagnose(draws: Any, *, workers: int | None = None) -> Diagnosis:
    """Diagnose draws of C: an array (chain, draw, P, Q), a `Draws` or a `Posterior`. `workers` are threads.

    Of a `Draws` or a `Posterior` the noise variances are diagnosed too, and of a sparse one the prior's parameters.
    """
    labels: dict[str, Any] = {name: getattr(draws, name, None) for name in ("features", "responses")}
    found = getattr(draws, "draws", draws)  # a posterior's
    found = draws if isinstance(draws, Draws) else found
    if not isinstance(found, Draws):
        C = np.asanyarray(found)
        if C.ndim != 4:
            raise InputError(f"The draws have {C.ndim} dimensions; expected 4: (chain, draw, feature, response).")
        return Diagnosis(**entries(C, workers=workers), chains=C.shape[0], draws=C.shape[1])
    size: dict[str, Any] = {"chains": found.chains, "draws": found.draws}
    noise = Diagnosis(**entries(np.asarray(found.sigma2), workers=1), **size)
    if isinstance(found.C, np.ndarray):
        return Diagnosis(**entries(found.C, workers=workers), **size, **labels, noise=noise)
    known = found.inclusion
    traced = found.C.used if known is None else known.traced()
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


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
