"""A site's rows of the posterior in its own units, and its part of a joint prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError, MessageError
from intarsia.site.effects import Effects, Own, caution, own_responses
from intarsia.site.probabilities import auc, brier, calibration
from intarsia.site.response_kinds import Meaning
from intarsia.site.units import Units
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.container import pack, unpack, write
from intarsia.wire.kinds import PROBABILITY
from intarsia.wire.table_files import write_table

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SiteModel:
    """What a site has after the study: its coefficients, mapped to its own units where it can.

    A coefficient is in units of the response for each unit of the feature when the response is the site's own; else
    in standard deviations of the response, whose scale is known to its owner only. `meaning` says how the site's own responses
    of other kinds are read: log odds ratios, months, ratios.
    """

    coefficients: Coefficients
    units: Units
    meaning: Meaning = field(default_factory=Meaning)

    def __post_init__(self) -> None:
        c, u = self.coefficients, self.units
        if c.features != u.features or c.own_responses != u.responses or c.covariates != u.covariates:
            raise MessageError(
                f"The coefficients sent to site {c.site!r} are for other columns than the ones it sketched. Refused."
            )

    @property
    def site(self) -> str:
        return self.coefficients.site

    @property
    def own(self) -> dict[str, Own]:
        """The site's own responses, by label."""
        return own_responses(self.coefficients, self.units, self.meaning)

    def rows(self) -> list[dict[str, Any]]:
        """One row per own column and response: mean, sd, interval in own units; evidence and selection for features.

        A covariate is adjusted for and never selected: those entries of its rows are empty. Where the site has responses of other
        kinds, `ratio` and its interval are exp of the effect (named by `ratio_is`), and `caution` says where it is rough.
        """
        c, u, own = self.coefficients, self.units, self.own
        y_mean = dict(zip(u.responses, u.y_mean, strict=True))
        told = bool(self.meaning.backs)
        roles = (
            ("feature", c.features, u.x_scale, (c.mean, c.sd, c.lower, c.upper)),
            ("covariate", c.covariates, u.z_scale, (c.covariate_mean, c.covariate_sd, c.covariate_lower, c.covariate_upper)),
        )
        out = []
        for role, labels, scale, summary in roles:
            effects = {name: one.features(c) if role == "feature" else one.covariates(c) for name, one in own.items()}
            for p, label in enumerate(labels):
                for q, response in enumerate(c.responses):
                    row: dict[str, Any] = {"feature": label, "role": role, "response": response}
                    effect = effects.get(response)
                    found = tuple(v[p, q] for v in summary) if effect is None else _at(effect, p)
                    row |= {name: float(v / scale[p]) for name, v in zip(("mean", "sd", "lower", "upper"), found, strict=True)}
                    row["standardised"] = float(summary[0][p, q])
                    chosen = role == "feature"
                    row["selected"] = bool(c.selected[p]) if chosen else None
                    row["selected_here"] = bool(c.by_response[p, q]) if chosen else None
                    row["evidence"] = float(c.evidence[p]) if chosen else None
                    row["unit"] = "sd of the response" if effect is None else effect.unit
                    if told:
                        row |= _ratio(row, effect)
                        skewness = self.meaning.skewness.get(label, 0.0)
                        said = "" if effect is None else caution(own[response], float(found[0]), skewness, y_mean[response])
                        row["caution"] = said
                    out.append(row)
        return out

    def covariate_rows(self) -> list[dict[str, Any]]:
        """One row per covariate of this site and response: effect and interval in own units."""
        kept = ("response", "mean", "sd", "lower", "upper", "unit", "ratio", "ratio_lower", "ratio_upper", "ratio_is")
        return [
            {"covariate": row["feature"], **{name: row[name] for name in kept if name in row}}
            for row in self.rows()
            if row["role"] == "covariate"
        ]

    def cautions(self) -> list[str]:
        """What to mind about the site's own responses, in sentences."""
        out = []
        for name, one in self.own.items():
            texts = [*([one.back.language.caution] if one.back.language.caution else []), *self.meaning.notes.get(name, ())]
            out += [f"{name}: {text}" for text in texts]
        return out

    def part(self, X: Array, Z: Array) -> Array:
        """This site's part of the standardised linear predictor, (slice, subject, response): the mean, then its posterior sd.

        Only these summaries take part in a joint prediction. Parts of single draws would be linear equations in the
        subjects' rows, one for each draw, and whoever has the posterior could solve them. A fit without draws has no sd slice.
        """
        c, u = self.coefficients, self.units
        for what, found, labels in (("feature", X, u.features), ("covariate", Z, u.covariates)):
            if found.ndim != 2 or found.shape[1] != len(labels):
                raise InputError(
                    f"The new subjects have {found.shape[-1]} {what} columns, the model of site {self.site!r} has {len(labels)}."
                )
        V, W = (X - u.x_mean) / u.x_scale, (Z - u.z_mean) / u.z_scale
        mean = V @ c.mean
        if len(u.covariates):
            mean = mean + W @ c.covariate_mean
        if c.draws is None:
            return mean[None]
        total = square = np.zeros_like(mean)
        for draw in c.draws:
            off = V @ (draw - c.mean)
            total, square = total + off, square + off**2
        S = len(c.draws)
        sd = np.sqrt(np.maximum(square - total**2 / S, 0.0) / max(S - 1, 1))
        if len(u.covariates):
            sd = sd + np.abs(W) @ c.covariate_sd  # at least the sd of the sum, whatever the correlation
        return np.stack([mean, sd])

    def finish(self, total: Array) -> "Prediction":
        """From the standardised total of all sites to this site's responses, in their units.

        The second slice is the sum of the sites' standard deviations, which is at least the standard deviation of the sum
        (it is equal when the sites' parts are perfectly correlated): intervals are never too narrow for that reason.
        """
        c, u = self.coefficients, self.units
        found = [
            one.predicted(c, float(u.y_mean[k]), total[:, :, k]) for k, one in enumerate(self.own.values())
        ]  # fmt: skip
        what = tuple(one.back.predicts for one in self.own.values())
        columns = {name: np.stack([one[name] for one in found], axis=1) for name in (found[0] if found else ())}
        mean = columns.pop("mean", np.empty((total.shape[1], 0)))
        sd, lower, upper = (columns.get(name) for name in ("sd", "lower", "upper"))
        return Prediction(u.responses, c.interval, mean, sd, lower, upper, what=what)

    def save(self, path: str | Path) -> None:
        """One owner-only file; `load` reads it in a later process."""
        parts: dict[str, Any] = {"coefficients": self.coefficients, "units": self.units, "meaning": self.meaning}
        arrays = {name: np.frombuffer(part.to_bytes(), np.uint8) for name, part in parts.items()}
        write(path, pack("site-model", {}, arrays), mode=0o600)

    @classmethod
    def load(cls, path: str | Path) -> "SiteModel":
        _, arrays = unpack(path, "site-model")
        if set(arrays) != {"coefficients", "units", "meaning"}:
            raise MessageError(f"{path} is not a site's model.")
        raw = {name: array.tobytes() for name, array in arrays.items()}
        meaning = Meaning.from_bytes(raw["meaning"])
        return cls(Coefficients.from_bytes(raw["coefficients"]), Units.from_bytes(raw["units"]), meaning)


def _at(effect: Effects, p: int) -> tuple[float, float, float, float]:
    return float(effect.mean[p]), float(effect.sd[p]), float(effect.lower[p]), float(effect.upper[p])


def _ratio(row: Mapping[str, Any], effect: Effects | None) -> dict[str, Any]:
    """exp of the effect and of its interval's ends, per unit of the feature, where that has a name."""
    names = ("ratio", "ratio_lower", "ratio_upper")
    if effect is None or not effect.back.language.ratio:
        return {**dict.fromkeys(names), "ratio_is": ""}
    ends = (row["mean"], row["lower"], row["upper"])
    return {name: float(np.exp(v)) for name, v in zip(names, ends, strict=True)} | {"ratio_is": effect.back.language.ratio}


@dataclass(frozen=True)
class Prediction:
    """Predicted responses of one site for new subjects, (subject, response), in the site's units.

    `what` says for each response what its numbers are: empty for a plain measurement, "probability" for a yes/no response.
    """

    responses: tuple[str, ...]
    interval: float
    mean: Array = field(repr=False)
    sd: Array | None = field(default=None, repr=False)
    lower: Array | None = field(default=None, repr=False)
    upper: Array | None = field(default=None, repr=False)
    ids: Sequence[Any] = field(default=(), repr=False)
    what: tuple[str, ...] = ()

    def in_order(self, rows: NDArray[np.intp], ids: Any) -> "Prediction":
        """The same subjects in another order, with their ids."""
        sd, lower, upper = (None if v is None else v[rows] for v in (self.sd, self.lower, self.upper))
        return replace(self, mean=self.mean[rows], sd=sd, lower=lower, upper=upper, ids=ids)

    def scores(self, observed: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """How well the probabilities of yes/no responses held: `observed[response]` has 0 or 1 for every subject, in this order.

        AUC and Brier score; intercept and slope of calibration (0 and 1 are perfect; a slope below 1: too extreme).
        """
        out = {}
        for q, (response, what) in enumerate(zip(self.responses, self.what, strict=True)):
            if response not in observed or what != PROBABILITY:
                continue
            y, p = np.asarray(observed[response], dtype=np.float64), self.mean[:, q]
            if y.shape != p.shape:
                raise InputError(f"{len(y)} outcomes came for {len(p)} predicted subjects. Give one for each, in the same order.")
            intercept, slope = calibration(y, p)
            out[response] = {"auc": auc(y, p), "brier": brier(y, p), "intercept": intercept, "slope": slope}
        return out

    def rows(self) -> list[dict[str, Any]]:
        out = []
        for i in range(len(self.mean)):
            for q, response in enumerate(self.responses):
                row: dict[str, Any] = {"subject": self.ids[i] if len(self.ids) else i, "response": response}
                row["mean"] = float(self.mean[i, q])
                for name in ("sd", "lower", "upper"):
                    values = getattr(self, name)
                    if values is not None:
                        row[name] = float(values[i, q]) if np.isfinite(values[i, q]) else None
                if any(self.what):
                    row["what"] = self.what[q]
                out.append(row)
        return out

    def save(self, path: str | Path) -> None:
        """A file the site keeps: .csv, .xlsx, .tex, .md or .jsonl."""
        write_table(path, self.rows(), ["subject"])
