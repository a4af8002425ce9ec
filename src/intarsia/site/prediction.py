"""A site's rows of the posterior in its own units, and its part of a joint prediction."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError, MessageError
from intarsia.site.units import Units
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.container import pack, unpack, write
from intarsia.wire.table_files import write_table

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SiteModel:
    """What a site has after the study: its coefficients, mapped to its own units where it can.

    A coefficient is in units of the response for each unit of the feature when the response is the site's own; else
    in standard deviations of the response, whose scale is known to its owner only.
    """

    coefficients: Coefficients
    units: Units

    def __post_init__(self) -> None:
        c, u = self.coefficients, self.units
        if c.features != u.features or c.own_responses != u.responses or c.covariates != u.covariates:
            raise MessageError(
                f"The coefficients sent to site {c.site!r} are for other columns than the ones it sketched. Refused."
            )

    @property
    def site(self) -> str:
        return self.coefficients.site

    def rows(self) -> list[dict[str, Any]]:
        """One row per own column and response: mean, sd, interval in own units; evidence and selection for features.

        A covariate is adjusted for and never selected: those entries of its rows are empty.
        """
        c, u = self.coefficients, self.units
        y = dict(zip(u.responses, u.y_scale, strict=True))
        roles = (
            ("feature", c.features, u.x_scale, (c.mean, c.sd, c.lower, c.upper)),
            ("covariate", c.covariates, u.z_scale, (c.covariate_mean, c.covariate_sd, c.covariate_lower, c.covariate_upper)),
        )
        out = []
        for role, labels, scale, summary in roles:
            for p, label in enumerate(labels):
                for q, response in enumerate(c.responses):
                    row: dict[str, Any] = {"feature": label, "role": role, "response": response}
                    factor = y.get(response, 1.0) / scale[p]
                    row |= {
                        name: float(v[p, q] * factor) for name, v in zip(("mean", "sd", "lower", "upper"), summary, strict=True)
                    }
                    row["standardised"] = float(summary[0][p, q])
                    chosen = role == "feature"
                    row["selected"] = bool(c.selected[p]) if chosen else None
                    row["selected_here"] = bool(c.by_response[p, q]) if chosen else None
                    row["evidence"] = float(c.evidence[p]) if chosen else None
                    row["unit"] = "response units" if response in y else "sd of the response"
                    out.append(row)
        return out

    def covariate_rows(self) -> list[dict[str, Any]]:
        """One row per covariate of this site and response: effect and interval in own units."""
        c, u = self.coefficients, self.units
        y = dict(zip(u.responses, u.y_scale, strict=True))
        out = []
        for j, covariate in enumerate(c.covariates):
            for q, response in enumerate(c.responses):
                factor = y.get(response, 1.0) / u.z_scale[j]
                row: dict[str, Any] = {"covariate": covariate, "response": response}
                for name in ("mean", "sd", "lower", "upper"):
                    row[name] = float(getattr(c, f"covariate_{name}")[j, q] * factor)
                out.append({**row, "unit": "response units" if response in y else "sd of the response"})
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
        mean = V @ (c.mean + c.to_predict)
        if len(u.covariates):
            mean = mean + W @ (c.covariate_mean + c.covariate_to_predict)
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
        mean = u.y_mean + u.y_scale * total[0]
        if len(total) < 2:
            return Prediction(u.responses, c.interval, mean)
        sd = u.y_scale * np.sqrt(c.spread * (total[1] ** 2 + c.sigma2_mean))
        reach = NormalDist().inv_cdf((1 + c.interval) / 2) * sd
        return Prediction(u.responses, c.interval, mean, sd, mean - reach, mean + reach)

    def save(self, path: str | Path) -> None:
        """One owner-only file; `load` reads it in a later process."""
        c, u = self.coefficients.to_bytes(), self.units.to_bytes()
        arrays = {"coefficients": np.frombuffer(c, np.uint8), "units": np.frombuffer(u, np.uint8)}
        write(path, pack("site-model", {}, arrays), mode=0o600)

    @classmethod
    def load(cls, path: str | Path) -> "SiteModel":
        _, arrays = unpack(path, "site-model")
        if set(arrays) != {"coefficients", "units"}:
            raise MessageError(f"{path} is not a site's model.")
        return cls(Coefficients.from_bytes(arrays["coefficients"].tobytes()), Units.from_bytes(arrays["units"].tobytes()))


@dataclass(frozen=True)
class Prediction:
    """Predicted responses of one site for new subjects, (subject, response), in the site's units."""

    responses: tuple[str, ...]
    interval: float
    mean: Array = field(repr=False)
    sd: Array | None = field(default=None, repr=False)
    lower: Array | None = field(default=None, repr=False)
    upper: Array | None = field(default=None, repr=False)
    ids: Sequence[Any] = field(default=(), repr=False)

    def rows(self) -> list[dict[str, Any]]:
        out = []
        for i in range(len(self.mean)):
            for q, response in enumerate(self.responses):
                row: dict[str, Any] = {"subject": self.ids[i] if len(self.ids) else i, "response": response}
                row["mean"] = float(self.mean[i, q])
                for name in ("sd", "lower", "upper"):
                    values = getattr(self, name)
                    if values is not None:
                        row[name] = float(values[i, q])
                out.append(row)
        return out

    def save(self, path: str | Path) -> None:
        """A file the site keeps: .csv, .xlsx, .tex, .md or .jsonl."""
        write_table(path, self.rows(), ["subject"])
