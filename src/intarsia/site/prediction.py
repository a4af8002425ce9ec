"""A site's rows of the posterior in its own units, and its part of a joint prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError, MessageError
from intarsia.site.own_language import Response, own_responses, shared_responses, told
from intarsia.site.response_kinds import Meaning
from intarsia.site.units import Units
from intarsia.wire.coefficients import STANDS, Coefficients
from intarsia.wire.container import pack, unpack, write
from intarsia.wire.kinds import PROBABILITY
from intarsia.wire.log_odds import SCORES, expected_scores
from intarsia.wire.result_table import Effects, Evidence, Scales, frame, table_columns, table_rows
from intarsia.wire.table_files import write_table

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class SiteModel:
    """What a site has after the study: its coefficients, mapped to its own units where it can.

    A coefficient is in units of the response for each unit of the feature when the response is the site's own or the study
    shares the responses' scales; else in standard deviations of the response, whose scale is known to its owner only. `meaning`
    says how the site's own responses of other kinds are read: log odds ratios, months, ratios.
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
        if c.response_scales:
            told = dict(zip(c.responses, c.response_scales, strict=True))
            if any(told[label] != scale for label, scale in zip(u.responses, self.meaning.shared(u), strict=True)):
                raise MessageError(f"The coefficients give other scales to responses of site {c.site!r} than it sent. Refused.")

    @property
    def site(self) -> str:
        return self.coefficients.site

    @property
    def own(self) -> dict[str, Response]:
        """The site's own responses by label: all that is needed to read effects on them."""
        return own_responses(self.coefficients, self.units, self.meaning)

    def effects(self, others: Mapping[str, Response] | None = None) -> list[Effects]:
        """The site's own columns for the table of results; `others` are other sites' responses, where they are known."""
        c, u = self.coefficients, self.units
        all_known = {**shared_responses(c, self.meaning), **(others or {}), **self.own}
        known = dict(zip(c.responses, c.response_scales, strict=True)) if c.response_scales else {}
        for label in set(self.meaning.planned) - set(all_known):
            known.pop(label, None)  # of a kind whose units need more than the scale
        known |= {label: response.s_y for label, response in all_known.items()}
        read = told(c, all_known, self.meaning.skewness)
        evidence = Evidence(
            c.local_fdr, c.by_response, c.selected, pip=c.pip, lfsr=c.lfsr,
            sets={label: one.number for one in c.sets for label in one.members},
            coverage={one.number: one.coverage for one in c.sets}, purity={one.number: one.purity for one in c.sets},
            stands=[STANDS[k] or None for k in c.stands] if c.stands.any() else None,
        )  # fmt: skip
        common: dict[str, Any] = {"responses": c.responses, "interval": c.interval}
        mine: dict[str, Any] = {"mean": c.mean, "sd": c.sd, "lower": c.lower, "upper": c.upper}
        adjusted: dict[str, Any] = {name: getattr(c, f"covariate_{name}") for name in mine}
        flat = None if c.unshrunk is None or c.unshrunk_sd is None else (c.unshrunk, c.unshrunk_sd)
        rest: dict[str, Any] = {"evidence": evidence, "unshrunk": flat}
        here, there = (c.site,) * len(c.features), (c.site,) * len(c.covariates)
        return [
            Effects(c.features, here, **mine, **common, **rest, scales=Scales(known, u.x_scale), told=read[0]),
            Effects(c.covariates, there, **adjusted, **common, scales=Scales(known, u.z_scale), told=read[1]),
        ]

    def table(self) -> Any:
        """The site's own columns as a pandas DataFrame, one row per column and response, in its units."""
        return frame(table_columns(self.effects()))

    def rows(self) -> list[dict[str, Any]]:
        """The same, row by row; `intarsia.wire.result_table.COLUMNS` says what the entries are."""
        return table_rows(table_columns(self.effects()))

    def response_rows(self) -> list[dict[str, Any]]:
        """One row per response of this site: how much of it is explained and by how many features of all sites."""
        c, u = self.coefficients, self.units
        out = []
        for q, response in enumerate(u.responses):
            row: dict[str, Any] = {"response": response, "features_selected": c.selected_count[q] if c.selected_count else None}
            row["explained"] = max(0.0, 1.0 - float(c.sigma2_mean[q]))
            row["explained_out_of_sample"] = c.r2_loo[q] if c.r2_loo else None
            row["residual_sd"] = float(u.y_scale[q] * np.sqrt(c.sigma2_mean[q]))
            row["sd"] = float(u.y_scale[q])
            row["mean"] = float(u.y_mean[q])
            out.append(row | self._expected(response))
        return out

    def _expected(self, response: str) -> dict[str, Any]:
        """AUC and Brier score to be expected of the probabilities of a yes/no response; empty columns for the others."""
        if not any(one.back.kind == "binary" for one in self.own.values()):
            return {}
        one, c = self.own[response], self.coefficients
        if one.back.kind != "binary" or one.expected is None:
            return dict.fromkeys(SCORES)
        found = expected_scores(one.s_y, one.expected, one.subjects, c.interval)
        return {name: found[name] for name in SCORES}

    def cautions(self) -> list[str]:
        """What to mind about the site's own responses, in sentences."""
        out = []
        for name, one in self.own.items():
            texts = [*(text for text in (one.limit, one.back.language.caution) if text), *self.meaning.notes.get(name, ())]
            out += [f"{name}: {text}" for text in texts]
        return out

    def __repr__(self) -> str:
        c = self.coefficients
        chosen, own = int(c.selected.sum()), len(c.own_responses)
        return (
            f"<SiteModel of {c.site}: {len(c.features)} features ({chosen} selected), {len(c.covariates)} covariates, "
            f"{len(c.responses)} responses, {own} of them its own; .table() has the effects>"
        )

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
        mean = V @ (c.mean + c.to_predict)
        if len(u.covariates):
            mean = mean + W @ (c.covariate_mean + c.covariate_to_predict)
        if c.draws is None:
            return mean[None]
        total = square = np.zeros_like(mean)
        middle = c.draws.mean(
            axis=0, dtype=np.float64
        )  # not what is said to be their mean: far from it, the differences would be rounding
        for draw in c.draws:
            off = V @ (draw - middle)
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
        found = [one.predicted(c, total[:, :, k]) for k, one in enumerate(self.own.values())]
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
        from intarsia.site.probabilities import auc, brier, calibration

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
