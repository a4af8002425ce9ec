"""What the server sends back to one site: its own rows of C and, for its own responses, the noise.

Values are in standard deviations, as the sketch was; only the site can take them to its own units.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import MessageError
from intarsia.wire.alignment import checked, is_digest
from intarsia.wire.container import pack, unpack
from intarsia.wire.messages import check_labels

Array = NDArray[np.float64]
MAX_VERDICT = 2000
_SUMMARY = ("mean", "sd", "lower", "upper")


@dataclass(frozen=True)
class Coefficients:
    """The posterior of C[own features, all responses]; `draws` (draw, feature, response) are joint over all sites.

    `sigma2` (draw, own response) and `sigma2_mean` are the noise variances of the site's own responses. `fit_parts` has the
    digest of every site's message of this fit: sites that hold the same `fit_digest` hold parts of one fit.
    """

    site: str
    study_hash: str
    features: tuple[str, ...]
    responses: tuple[str, ...]
    response_sites: tuple[str, ...]
    interval: float
    mean: Array = field(repr=False)
    sd: Array = field(repr=False)
    lower: Array = field(repr=False)
    upper: Array = field(repr=False)
    evidence: Array = field(repr=False)
    selected: NDArray[np.bool_] = field(repr=False)
    by_response: NDArray[np.bool_] = field(repr=False)
    sigma2_mean: Array = field(repr=False)
    draws: Array | None = field(default=None, repr=False)
    sigma2: Array | None = field(default=None, repr=False)
    verdict: str = ""
    fit_parts: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def fit_digest(self) -> str:
        """One digest over the coefficients of all sites; empty before `bind`."""
        if not self.fit_parts:
            return ""
        text = json.dumps(["intarsia fit 1", self.study_hash, dict(self.fit_parts)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def own_digest(self) -> str:
        """The digest of this site's message, apart from the digests it carries."""
        return hashlib.sha256(replace(self, fit_parts={}).to_bytes()).hexdigest()

    @property
    def own_responses(self) -> tuple[str, ...]:
        return tuple(q for q, site in zip(self.responses, self.response_sites, strict=True) if site == self.site)

    def to_bytes(self) -> bytes:
        header = {
            "site": self.site,
            "study_hash": self.study_hash,
            "features": list(self.features),
            "responses": list(self.responses),
            "response_sites": list(self.response_sites),
            "interval": self.interval,
            "verdict": self.verdict,
            "fit_parts": dict(self.fit_parts),
        }
        arrays = {name: getattr(self, name) for name in (*_SUMMARY, "evidence", "sigma2_mean")}
        arrays |= {name: getattr(self, name).astype(np.uint8) for name in ("selected", "by_response")}
        if self.draws is not None and self.sigma2 is not None:
            arrays |= {"draws": self.draws, "sigma2": self.sigma2}
        return pack("coefficients", header, arrays)

    @classmethod
    def from_bytes(cls, raw: Any) -> "Coefficients":
        header, arrays = unpack(raw, "coefficients")
        extra = ("features", "responses", "response_sites", "interval", "verdict", "fit_parts")
        site, study_hash = checked(header, "coefficients", extra)
        features = check_labels(header["features"], "feature")
        responses = check_labels(header["responses"], "response")
        sites, interval, verdict = header["response_sites"], header["interval"], header["verdict"]
        fits = isinstance(sites, list) and all(isinstance(s, str) for s in sites) and len(sites) == len(responses)
        if not fits or type(interval) is not float or not 0 < interval < 1 or not isinstance(verdict, str):
            raise MessageError("The coefficients message has entries of the wrong kind.")
        fit_parts = header["fit_parts"]
        if not isinstance(fit_parts, dict) or not all(is_digest(value) for value in fit_parts.values()):
            raise MessageError("The coefficients message does not carry the digests of its fit.")
        P, Q, own = len(features), len(responses), sum(s == site for s in sites)
        S = len(arrays["draws"]) if "draws" in arrays and arrays["draws"].ndim else 0
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys((*_SUMMARY, "by_response"), (P, Q))
        shapes |= {"evidence": (P,), "selected": (P,), "sigma2_mean": (own,)}
        if "draws" in arrays:
            shapes |= {"draws": (S, P, Q), "sigma2": (S, own)}
        if set(arrays) != set(shapes):
            raise MessageError("The coefficients message does not hold the arrays it should.")
        for name, shape in shapes.items():
            kind = "u" if name in ("selected", "by_response") else "f"
            if arrays[name].shape != shape or arrays[name].dtype.kind != kind:
                raise MessageError(f"In the coefficients, {name} has shape {arrays[name].shape}, expected {shape}.")
        if (arrays["sigma2_mean"] <= 0).any() or (arrays["sd"] < 0).any():
            raise MessageError("The coefficients message holds a negative spread.")
        return cls(
            site,
            study_hash,
            features,
            responses,
            tuple(sites),
            interval,
            **{name: arrays[name] for name in (*_SUMMARY, "evidence", "sigma2_mean")},
            selected=arrays["selected"].astype(bool),
            by_response=arrays["by_response"].astype(bool),
            draws=arrays.get("draws"),
            sigma2=arrays.get("sigma2"),
            verdict=verdict[:MAX_VERDICT],
            fit_parts=fit_parts,
        )


def bind(messages: Mapping[str, Coefficients]) -> dict[str, Coefficients]:
    """The same messages, each with the digests of all: from now on they belong to one fit."""
    cut = {name: replace(message, verdict=message.verdict[:MAX_VERDICT], fit_parts={}) for name, message in messages.items()}
    parts = {name: message.own_digest() for name, message in cut.items()}
    return {name: replace(message, fit_parts=parts) for name, message in cut.items()}
