"""What the server sends back to one site: its own rows of C and, for its own responses, the noise.

Values are in standard deviations, as the sketch was; only the site can take them to its own units.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import MessageError
from intarsia.wire.alignment import checked, is_digest
from intarsia.wire.container import pack, unpack
from intarsia.wire.messages import check_labels, check_scales

Array = NDArray[np.float64]
MAX_VERDICT = 2000  # characters
LARGEST = 2.0**30  # of a coefficient, in standard deviations: no fit has such, and sums and squares of larger ones may overflow
_SUMMARY = ("mean", "sd", "lower", "upper")
_EFFECTS = tuple(f"covariate_{name}" for name in _SUMMARY)
_TO_PREDICT = ("to_predict", "covariate_to_predict", "spread")
_ARRAYS = (*_SUMMARY, *_EFFECTS, *_TO_PREDICT, "pip", "lfsr", "local_fdr", "sigma2_mean", "noise_covariance")
_MARKS = ("selected", "by_response", "stands")  # small whole numbers
_PROBABILITIES = ("pip", "lfsr", "local_fdr")
VERSION = 2
STANDS = ("", "beyond a background", "without a background", "both")
_UNSHRUNK = ("unshrunk", "unshrunk_sd")
_EXPECTED = ("r2_expected", "r2_expected_lower", "r2_expected_upper")
_IN_PREDICTIONS = ("mean", "draws", "to_predict", "covariate_mean", "covariate_sd", "covariate_to_predict")
_NEVER_NEGATIVE = ("sd", "covariate_sd", "spread", "unshrunk_sd")
_ENTRIES = (
    "version", "features", "responses", "response_sites", "interval", "verdict", "fit_parts", "converged", "covariates", "sets",
    "selected_count", "r2_loo", *_EXPECTED, "response_scales", "noise_variances",
)  # fmt: skip


def _empty() -> Array:
    return np.zeros(0)


@dataclass(frozen=True)
class OwnSet:
    """A set of interchangeable features as one site sees it: its own members, how many lie elsewhere, the probability that at
    least one member matters, the least |correlation| between two members, and the set's number, the same at every site."""

    members: tuple[str, ...]
    elsewhere: int
    coverage: float
    purity: float
    number: int = 1

    @classmethod
    def from_dict(cls, found: Any, known: tuple[str, ...]) -> "OwnSet":
        fits = isinstance(found, dict) and set(found) == {"members", "elsewhere", "coverage", "purity", "number"}
        fits = fits and isinstance(found["members"], list) and len(found["members"]) > 0
        fits = fits and all(member in known for member in found["members"])
        fits = fits and type(found["elsewhere"]) is int and found["elsewhere"] >= 0
        fits = fits and type(found["number"]) is int and found["number"] >= 1
        fits = fits and all(type(found[name]) is float and 0 <= found[name] <= 1 for name in ("coverage", "purity"))
        if not fits:
            raise MessageError("The coefficients message describes a set of features wrongly.")
        return cls(tuple(found["members"]), *(found[name] for name in ("elsewhere", "coverage", "purity", "number")))


@dataclass(frozen=True)
class Coefficients:
    """The posterior of C[own features, all responses]; `draws` (draw, feature, response) are joint over all sites.

    `sigma2` (draw, own response) and `sigma2_mean` are the noise variances of the site's own responses, `noise_covariance`
    (own, own) the posterior mean of their covariance. `covariate_mean` and its like (own covariate, response) are the
    effects of the site's own covariates. `sets` are the sets of interchangeable features in which the site has a part.
    `pip` (own feature) is the probability that a feature matters; `lfsr` and `local_fdr` (own feature, response) the local false
    sign rate and the probability that selecting a coefficient is wrong; `stands` (own feature) says by its place in STANDS how a
    finding stands, where a background was fitted. `selected_count` and `r2_loo`
    say of the site's own responses how many features of all sites are selected for each, and the out-of-sample share of
    variance explained (none where it was not worked out); `r2_expected` and the ends of its interval what predictions for new
    subjects will explain. `response_scales` are all responses' standard deviations where the
    study shares them, and then `noise_variances` has the noise variance of every yes/no response: an odds ratio needs both.
    `unshrunk` and `unshrunk_sd` (own feature, response) are the effects under a flat prior of their own.
    Unless `converged`, all of it is provisional. `fit_parts` has the digest of every site's message of this fit: sites that
    hold the same `fit_digest` hold parts of one fit. To predict, `to_predict` is added to the means, `covariate_to_predict`
    to the covariates' effects, and the predictive variances of the site's own responses are multiplied by `spread`.
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
    pip: Array = field(repr=False)
    selected: NDArray[np.bool_] = field(repr=False)
    by_response: NDArray[np.bool_] = field(repr=False)
    sigma2_mean: Array = field(repr=False)
    draws: Array | None = field(default=None, repr=False)
    sigma2: Array | None = field(default=None, repr=False)
    verdict: str = ""
    converged: bool = False
    noise_covariance: Array = field(default_factory=_empty, repr=False)
    covariates: tuple[str, ...] = ()
    covariate_mean: Array = field(default_factory=_empty, repr=False)
    covariate_sd: Array = field(default_factory=_empty, repr=False)
    covariate_lower: Array = field(default_factory=_empty, repr=False)
    covariate_upper: Array = field(default_factory=_empty, repr=False)
    to_predict: Array = field(default_factory=_empty, repr=False)
    covariate_to_predict: Array = field(default_factory=_empty, repr=False)
    spread: Array | None = field(default=None, repr=False)
    sets: tuple[OwnSet, ...] = ()
    lfsr: Array = field(default_factory=_empty, repr=False)
    local_fdr: Array = field(default_factory=_empty, repr=False)
    stands: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8), repr=False)
    selected_count: tuple[int, ...] = ()
    r2_loo: tuple[float, ...] = ()
    r2_expected: tuple[float, ...] = ()
    r2_expected_lower: tuple[float, ...] = ()
    r2_expected_upper: tuple[float, ...] = ()
    response_scales: tuple[float, ...] = ()
    noise_variances: Mapping[str, float] = field(default_factory=dict)
    fit_parts: Mapping[str, str] = field(default_factory=dict, repr=False)
    unshrunk: Array | None = field(default=None, repr=False)
    unshrunk_sd: Array | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.noise_covariance.ndim == 1:  # not given
            object.__setattr__(self, "noise_covariance", np.diag(self.sigma2_mean))
        for name, most in (("local_fdr", 1.0), ("lfsr", 0.5)):
            if getattr(self, name).ndim == 1:
                object.__setattr__(self, name, np.full(self.mean.shape, most))
        if not len(self.stands):
            object.__setattr__(self, "stands", np.zeros(len(self.features), dtype=np.uint8))
        for name in _EFFECTS:
            if getattr(self, name).ndim == 1:
                object.__setattr__(self, name, np.zeros((0, len(self.responses))))
        for name, like in (("to_predict", self.mean), ("covariate_to_predict", self.covariate_mean)):
            if getattr(self, name).ndim == 1:
                object.__setattr__(self, name, np.zeros(like.shape))
        if self.spread is None:
            object.__setattr__(self, "spread", np.ones(len(self.own_responses)))

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
            "version": VERSION,
            "site": self.site,
            "study_hash": self.study_hash,
            "features": list(self.features),
            "responses": list(self.responses),
            "response_sites": list(self.response_sites),
            "interval": self.interval,
            "verdict": self.verdict,
            "converged": self.converged,
            "covariates": list(self.covariates),
            "sets": [asdict(one) | {"members": list(one.members)} for one in self.sets],
            "selected_count": list(self.selected_count),
            "r2_loo": list(self.r2_loo),
            "r2_expected": list(self.r2_expected),
            "r2_expected_lower": list(self.r2_expected_lower),
            "r2_expected_upper": list(self.r2_expected_upper),
            "response_scales": list(self.response_scales),
            "noise_variances": dict(self.noise_variances),
            "fit_parts": dict(self.fit_parts),
        }
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {name: getattr(self, name).astype(np.uint8) for name in _MARKS}
        if self.draws is not None and self.sigma2 is not None:
            arrays |= {"draws": self.draws, "sigma2": self.sigma2}
        if self.unshrunk is not None and self.unshrunk_sd is not None:
            arrays |= {"unshrunk": self.unshrunk, "unshrunk_sd": self.unshrunk_sd}
        return pack("coefficients", header, arrays)

    @classmethod
    def from_bytes(cls, raw: Any) -> "Coefficients":
        header, arrays = unpack(raw, "coefficients")
        if header.get("version") != VERSION:
            raise MessageError(
                f"The coefficients message is of another version than {VERSION}, the one that this intarsia reads. Use the same "
                "intarsia at the server and at all sites."
            )
        site, study_hash = checked(header, "coefficients", _ENTRIES)
        features = check_labels(header["features"], "feature")
        responses = check_labels(header["responses"], "response")
        covariates = check_labels(header["covariates"], "covariate")
        own = _check_entries(header, site, len(responses))
        _check_arrays(arrays, len(features), len(responses), len(covariates), own)
        return cls(
            site,
            study_hash,
            features,
            responses,
            tuple(header["response_sites"]),
            header["interval"],
            **{name: arrays[name] for name in _ARRAYS},
            selected=arrays["selected"].astype(bool),
            by_response=arrays["by_response"].astype(bool),
            stands=arrays["stands"],
            draws=arrays.get("draws"),
            sigma2=arrays.get("sigma2"),
            unshrunk=arrays.get("unshrunk"),
            unshrunk_sd=arrays.get("unshrunk_sd"),
            verdict=header["verdict"][:MAX_VERDICT],
            converged=header["converged"],
            covariates=covariates,
            sets=tuple(OwnSet.from_dict(one, features) for one in header["sets"]),
            selected_count=tuple(header["selected_count"]),
            r2_loo=tuple(header["r2_loo"]),
            r2_expected=tuple(header["r2_expected"]),
            r2_expected_lower=tuple(header["r2_expected_lower"]),
            r2_expected_upper=tuple(header["r2_expected_upper"]),
            response_scales=check_scales(header["response_scales"], len(responses)),
            noise_variances=header["noise_variances"],
            fit_parts=header["fit_parts"],
        )


def _check_entries(header: Mapping[str, Any], site: str, responses: int) -> int:
    """The entries of the header, each of its kind. Returns how many of the responses are the site's own."""
    sites, interval, verdict = header["response_sites"], header["interval"], header["verdict"]
    fits = isinstance(sites, list) and all(isinstance(s, str) for s in sites) and len(sites) == responses
    if not fits or type(interval) is not float or not 0 < interval < 1 or not isinstance(verdict, str):
        raise MessageError("The coefficients message has entries of the wrong kind.")
    if not isinstance(header["sets"], list) or type(header["converged"]) is not bool:
        raise MessageError("The coefficients message has entries of the wrong kind.")
    parts = header["fit_parts"]
    if not isinstance(parts, dict) or not all(is_digest(value) for value in parts.values()):
        raise MessageError("The coefficients message does not carry the digests of its fit.")
    noise = header["noise_variances"]
    fits = isinstance(noise, dict) and all(label in header["responses"] for label in noise)
    if not fits or not all(type(value) is float and 0 < value < math.inf for value in noise.values()):
        raise MessageError("The coefficients message has noise variances that cannot be.")
    own, counts = sum(s == site for s in sites), header["selected_count"]
    fits = isinstance(counts, list) and len(counts) in (0, own) and all(type(v) is int and v >= 0 for v in counts)
    for name, low in (("r2_loo", -math.inf), *((name, 0.0) for name in _EXPECTED)):
        r2 = header[name]
        fits = fits and isinstance(r2, list) and len(r2) in (0, own) and all(type(v) is float and low <= v <= 1 for v in r2)
    if not fits or len({len(header[name]) for name in _EXPECTED}) > 1:
        raise MessageError("The coefficients message says of the site's responses what cannot be.")
    return own


def _check_arrays(arrays: Mapping[str, NDArray[Any]], P: int, Q: int, covariates: int, own: int) -> None:
    """The arrays there should be, each of its shape, spreads not negative."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys((*_SUMMARY, "by_response", "local_fdr"), (P, Q))
    shapes |= {
        "lfsr": (P, Q),
        "pip": (P,),
        "selected": (P,),
        "stands": (P,),
        "sigma2_mean": (own,),
        "noise_covariance": (own, own),
    }
    shapes |= dict.fromkeys((*_EFFECTS, "covariate_to_predict"), (covariates, Q))
    shapes |= {"to_predict": (P, Q), "spread": (own,)}
    if "draws" in arrays:
        S = len(arrays["draws"]) if arrays["draws"].ndim else 0
        shapes |= {"draws": (S, P, Q), "sigma2": (S, own)}
    if "unshrunk" in arrays:
        shapes |= dict.fromkeys(_UNSHRUNK, (P, Q))
    if set(arrays) != set(shapes):
        raise MessageError("The coefficients message does not hold the arrays it should.")
    for name, shape in shapes.items():
        kind = "u" if name in _MARKS else "f"
        if arrays[name].shape != shape or arrays[name].dtype.kind != kind:
            raise MessageError(f"In the coefficients, {name} has shape {arrays[name].shape}, expected {shape}.")
    if (arrays["sigma2_mean"] <= 0).any() or any((arrays[name] < 0).any() for name in _NEVER_NEGATIVE if name in arrays):
        raise MessageError("The coefficients message holds a negative spread.")
    if (
        any((arrays[name] < 0).any() or (arrays[name] > 1).any() for name in _PROBABILITIES)
        or (arrays["stands"] >= len(STANDS)).any()
    ):
        raise MessageError("The coefficients message holds a probability that cannot be.")
    if any(np.abs(arrays[name]).max(initial=0.0) > LARGEST for name in _IN_PREDICTIONS if name in arrays):
        raise MessageError(
            "The coefficients message holds a coefficient that no fit has: of more than a billion standard deviations."
        )


def bind(messages: Mapping[str, Coefficients]) -> dict[str, Coefficients]:
    """The same messages, each with the digests of all: from now on they belong to one fit."""
    cut = {name: replace(message, verdict=message.verdict[:MAX_VERDICT], fit_parts={}) for name, message in messages.items()}
    parts = {name: message.own_digest() for name, message in cut.items()}
    return {name: replace(message, fit_parts=parts) for name, message in cut.items()}
