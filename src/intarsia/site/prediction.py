"""A site's rows of the posterior in its own units, and its part of a joint prediction."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError, MessageError
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.container import pack, unpack, write
from intarsia.wire.plain import cells

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Units:
    """Centre and scale of each of a site's own columns; they never leave the site.

    Columns go by the labels under which they travelled; `names` are the site's own names for them.
    """

    features: tuple[str, ...]
    responses: tuple[str, ...]
    x_mean: Array = field(repr=False)
    x_scale: Array = field(repr=False)
    y_mean: Array = field(repr=False)
    y_scale: Array = field(repr=False)
    names: tuple[str, ...] = ()

    @classmethod
    def from_local(cls, local: Any) -> "Units":
        """From what a sketch left at the site (`intarsia.site.sketch.sketch.Local`)."""
        own = (*local.features, *local.responses)
        labels = [local.labels[name] for name in own]
        p = len(local.features)
        arrays = {name: np.asarray(getattr(local, name), dtype=float) for name in ("x_mean", "x_scale", "y_mean", "y_scale")}
        return cls(tuple(labels[:p]), tuple(labels[p:]), **arrays, names=own)

    def to_bytes(self) -> bytes:
        return pack(
            "units",
            {"features": list(self.features), "responses": list(self.responses), "names": list(self.names)},
            {name: getattr(self, name) for name in ("x_mean", "x_scale", "y_mean", "y_scale")},
        )

    @classmethod
    def from_bytes(cls, raw: Any) -> "Units":
        header, arrays = unpack(raw, "units")
        try:
            units = cls(tuple(header["features"]), tuple(header["responses"]), **arrays, names=tuple(header["names"]))
        except (KeyError, TypeError):
            raise MessageError("The units file of this site is damaged.") from None
        for labels, names in ((units.features, ("x_mean", "x_scale")), (units.responses, ("y_mean", "y_scale"))):
            if any(getattr(units, name).shape != (len(labels),) for name in names):
                raise MessageError("The units file of this site is damaged.")
        return units


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
        if c.features != u.features or c.own_responses != u.responses:
            raise MessageError(
                f"The coefficients sent to site {c.site!r} are for other columns than the ones it sketched. Refused."
            )

    @property
    def site(self) -> str:
        return self.coefficients.site

    def factor(self) -> Array:
        """What takes a standardised coefficient to this site's units, (feature, response)."""
        y = dict(zip(self.units.responses, self.units.y_scale, strict=True))
        row = np.array([y.get(q, 1.0) for q in self.coefficients.responses])
        return row[None, :] / self.units.x_scale[:, None]

    def rows(self) -> list[dict[str, Any]]:
        """One row a feature and response: mean, sd, interval in own units, evidence, selected."""
        c, factor = self.coefficients, self.factor()
        names = dict(zip((*self.units.features, *self.units.responses), self.units.names))
        out = []
        for p, feature in enumerate(c.features):
            for q, response in enumerate(c.responses):
                own = response in self.units.responses
                out.append(
                    {
                        "feature": names.get(feature, feature),
                        "response": names.get(response, response),
                        "mean": float(c.mean[p, q] * factor[p, q]),
                        "sd": float(c.sd[p, q] * factor[p, q]),
                        "lower": float(c.lower[p, q] * factor[p, q]),
                        "upper": float(c.upper[p, q] * factor[p, q]),
                        "standardised": float(c.mean[p, q]),
                        "selected": bool(c.selected[p]),
                        "selected_here": bool(c.by_response[p, q]),
                        "evidence": float(c.evidence[p]),
                        "unit": "response units" if own else "sd of the response",
                    }
                )
        return out

    def part(self, X: Array) -> Array:
        """This site's part of the standardised linear predictor: (1 + draws, subjects, responses), the mean first."""
        if X.ndim != 2 or X.shape[1] != len(self.units.features):
            raise InputError(
                f"The new subjects have {X.shape[-1]} feature columns, the model of site {self.site!r} has "
                f"{len(self.units.features)}."
            )
        c = self.coefficients
        Z = (X - self.units.x_mean) / self.units.x_scale
        draws = 0 if c.draws is None else len(c.draws)
        out = np.empty((1 + draws, len(Z), len(c.responses)))
        out[0] = Z @ c.mean
        if c.draws is not None:
            for s in range(draws):
                out[1 + s] = Z @ c.draws[s]
        return out

    def finish(self, total: Array, seed: int) -> "Prediction":
        """From the standardised total of all sites to this site's responses, in their units.

        The predictive interval takes the noise of each joint draw; `seed` makes it repeatable.
        """
        c, u = self.coefficients, self.units
        mean = u.y_mean + u.y_scale * total[0]
        sd = lower = upper = None
        if c.sigma2 is not None and len(total) > 1:
            noise = np.random.default_rng(seed).standard_normal(total[1:].shape)
            draws = u.y_mean + u.y_scale * (total[1:] + np.sqrt(c.sigma2)[:, None, :] * noise)
            tail = (1 - c.interval) / 2
            lower, upper = np.quantile(draws, [tail, 1 - tail], axis=0)
            sd = draws.std(axis=0, ddof=1)
        return Prediction(u.responses, c.interval, mean, sd, lower, upper)

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
        """A CSV (or JSON lines) file the site keeps."""
        path = Path(path)
        rows = self.rows()
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")
            return
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(cells(rows[0])) if rows else ["subject"])
            writer.writeheader()
            writer.writerows(cells(row) for row in rows)
