"""The table of results: one row per coefficient, the same columns for a study, for a site and for data in one place.

An effect is in the units of response and feature where both are known to whoever makes the table. A site knows its own columns'
units, and all responses' where the study shares their scales; the server knows only what is shared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.wire.kinds import ODDS_RATIO

Array = NDArray[np.float64]

# Column -> what it says, in the order of the table.
COLUMNS = {
    "feature": "the column's label",
    "role": "'feature'; 'covariate': adjusted for, never shrunk or selected; 'set': interchangeable features (`--selected`)",
    "site": "who holds the column",
    "response": "the response it acts on",
    "effect": "posterior mean of the coefficient, in `unit`",
    "lower": "lower end of the credible interval, in `unit`",
    "upper": "upper end of the credible interval, in `unit`",
    "interval": "probability of that interval",
    "unit": "what one of `effect` means",
    "sd": "posterior standard deviation, in `unit`",
    "standardised": "the effect in standard deviations of the response for one standard deviation of the feature",
    "unshrunk": "the effect under a flat prior of its own, in `unit`: for its size, once it is named",
    "unshrunk_lower": "lower end of that effect's interval",
    "unshrunk_upper": "upper end of that effect's interval",
    "pip": "posterior inclusion probability: that the feature matters, for some response",
    "lfsr": "local false sign rate: probability that the coefficient has not the sign of `effect`",
    "local_fdr": "local false discovery rate: probability that selecting this coefficient is wrong",
    "selected_here": "whether this coefficient is among those selected for its response",
    "selected": "whether the feature is selected",
    "stands": "how the finding stands: 'beyond a background', 'without a background', or 'both', where one was fitted",
    "set": "number of the set of interchangeable features it belongs to, one of which matters",
    "coverage": "probability that at least one member of that set matters",
    "purity": "least correlation, without its sign, between two members of that set",
}
# Where a response is no plain measurement and its scale is known.
OF_KINDS = {
    "odds_ratio": "on a yes/no response: exp of `unshrunk`, of a covariate exp of `effect`; the sparse prior has no part in it",
    "or_lower": "lower end of its interval: exp of `unshrunk_lower`, not of `lower`",
    "or_upper": "upper end of its interval: exp of `unshrunk_upper`, not of `upper`",
    "or_is": "in words, what `odds_ratio` is",
    "ratio": "exp of `effect`, which the sparse prior draws towards 1, where that has a name",
    "ratio_lower": "lower end of its interval: exp of `lower`",
    "ratio_upper": "upper end of its interval: exp of `upper`",
    "ratio_is": "that name: 'ratio of geometric means', 'odds ratio, drawn towards 1 by the sparse prior', …",
    "caution": "where the reading of this coefficient is rough, and how",
}


@dataclass(frozen=True)
class Told:
    """Effects on one response in its own language, per standard deviation of the column, each array (P,)."""

    mean: Array = field(repr=False)
    sd: Array = field(repr=False)
    lower: Array = field(repr=False)
    upper: Array = field(repr=False)
    unit: str
    ratio: str = ""
    cautions: Sequence[str | None] = ()
    unshrunk: Mapping[str, Array] = field(default_factory=dict, repr=False)  # by column of the table

    def odds(self, covariates: bool) -> list[Array]:
        """Log odds ratio and its interval without the sparse prior's pull, under which no covariate is; none where it is unknown.

        The sparse posterior's interval of an effect near the limit of what can be seen holds the truth far too seldom.
        """
        return [self.mean, self.lower, self.upper] if covariates else list(self.unshrunk.values())


@dataclass(frozen=True)
class Evidence:
    """Of features: what speaks for each, shapes (P, Q) and (P,). `sets` gives a label's set of interchangeable features, by its
    number, of which `coverage` and `purity` say how sure and how alike it is; `stands` how each feature stands.
    """

    local_fdr: Array = field(repr=False)
    by_response: NDArray[np.bool_] = field(repr=False)
    selected: NDArray[np.bool_] = field(repr=False)
    pip: Array = field(repr=False)
    lfsr: Array = field(repr=False)
    sets: Mapping[str, int] = field(default_factory=dict)
    coverage: Mapping[int, float] = field(default_factory=dict)
    purity: Mapping[int, float] = field(default_factory=dict)
    stands: Sequence[str | None] | None = None


@dataclass(frozen=True)
class Scales:
    """Standard deviations in their units, where they are known: of responses by label, of the features in order."""

    responses: Mapping[str, float] = field(default_factory=dict)
    features: Array | None = None


@dataclass(frozen=True)
class Effects:
    """Coefficients of some columns on all responses, each array (P, Q), in standard deviations of both."""

    labels: Sequence[str]
    sites: Sequence[str]
    responses: Sequence[str]
    mean: Array = field(repr=False)
    sd: Array = field(repr=False)
    lower: Array = field(repr=False)
    upper: Array = field(repr=False)
    interval: float
    evidence: Evidence | None = field(default=None, repr=False)  # None: covariates
    scales: Scales = Scales()
    told: Mapping[str, Told] = field(default_factory=dict, repr=False)  # responses that are no plain measurements
    unshrunk: tuple[Array, Array] | None = field(default=None, repr=False)  # mean and sd under a flat prior


def from_own_units(part: Effects, responses: Mapping[str, float], features: Array) -> Effects:
    """Coefficients that are in the data's own units, with the scales that say so."""
    y = np.array([responses[response] for response in part.responses])
    factor = features[:, None] / y
    values = {name: getattr(part, name) * factor for name in ("mean", "sd", "lower", "upper")}
    flat = None if part.unshrunk is None else (part.unshrunk[0] * factor, part.unshrunk[1] * factor)
    return replace(part, **values, unshrunk=flat, scales=Scales(responses, features))


def unit(response: bool, column: bool, role: str = "feature") -> str:
    """The unit of an effect, by whether the scales of response and column are known."""
    of = "units of the response" if response else "sd of the response"
    return f"{of} per {'unit' if column else 'sd'} of the {role}"


def table_columns(parts: Sequence[Effects]) -> dict[str, list[Any]]:
    """The whole table, column by column."""
    names = [*COLUMNS, *(OF_KINDS if any(part.told for part in parts) else ())]
    out: dict[str, list[Any]] = {name: [] for name in names}
    for part in parts:
        found = _in_their_language(part, _columns(part))
        for name in names:
            out[name] += found.get(name) or [None] * (len(part.labels) * len(part.responses))
    return out


def _in_their_language(part: Effects, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns with the effects on responses of other kinds as their owner reads them."""
    if not part.told:
        return columns
    P, Q = len(part.labels), len(part.responses)
    x = np.ones(P) if part.scales.features is None else part.scales.features
    per = unit(True, part.scales.features is not None, "covariate" if part.evidence is None else "feature").partition(" per ")[2]
    columns |= {name: [None] * (P * Q) for name in OF_KINDS}
    for q, response in enumerate(part.responses):
        if response not in part.told:
            continue
        told, at = part.told[response], slice(q, None, Q)
        for name, source in _IN_UNITS.items():
            columns[name][at] = _flat(getattr(told, source) / x)
        for name, values in told.unshrunk.items():
            columns[name][at] = _flat(values / x)
        columns["unit"][at] = [f"{told.unit} per {per}"] * P
        columns["caution"][at] = list(told.cautions) or [None] * P
        if told.ratio:
            drawn = told.ratio == ODDS_RATIO and part.evidence is not None
            columns["ratio_is"][at] = [told.ratio + (SHRUNK if drawn else "")] * P
            for name, source in (("ratio", "mean"), ("ratio_lower", "lower"), ("ratio_upper", "upper")):
                columns[name][at] = _flat(np.exp(getattr(told, source) / x))
        if told.ratio == ODDS_RATIO:
            odds = told.odds(part.evidence is None)
            for name, values in zip(_ODDS, odds, strict=False):
                columns[name][at] = _flat(np.exp(values / x))
            columns["or_is"][at] = [FLAT if odds and part.evidence is not None else told.ratio if odds else None] * P
    return columns


def _columns(part: Effects) -> dict[str, list[Any]]:
    P, Q = len(part.labels), len(part.responses)
    scales = part.scales
    y = np.array([scales.responses.get(response, 1.0) for response in part.responses])
    x = np.ones(P) if scales.features is None else scales.features
    factor = y / x[:, None]
    found, empty = part.evidence, [None] * (P * Q)
    role = "covariate" if found is None else "feature"
    units = [unit(response in scales.responses, scales.features is not None, role) for response in part.responses]
    sets = [None if found is None else found.sets.get(label) for label in part.labels]
    coverage, purity = ({}, {}) if found is None else (found.coverage, found.purity)
    stands = None if found is None else found.stands

    def each(values: Sequence[Any]) -> list[Any]:
        """One value per column, repeated for its responses."""
        return [value for value in values for _ in range(Q)]

    return {
        "feature": each(part.labels),
        "role": [role] * (P * Q),
        "site": each(part.sites),
        "response": list(part.responses) * P,
        **{name: _flat(getattr(part, source) * factor) for name, source in _IN_UNITS.items()},
        "interval": [part.interval] * (P * Q),
        "unit": units * P,
        "standardised": _flat(part.mean),
        **{name: _flat(values * factor) for name, values in flat_interval(part.unshrunk, part.interval).items()},
        "pip": empty if found is None else each(found.pip.tolist()),
        "lfsr": empty if found is None else _flat(found.lfsr),
        "local_fdr": empty if found is None else _flat(found.local_fdr),
        "selected_here": [False] * (P * Q) if found is None else _flat(found.by_response),
        "selected": [False] * (P * Q) if found is None else each(found.selected.tolist()),
        "stands": empty if stands is None else each(stands),
        "set": each(sets),
        "coverage": each([None if k is None else coverage.get(k) for k in sets]),
        "purity": each([None if k is None else purity.get(k) for k in sets]),
    }


def flat_interval(unshrunk: tuple[Array, Array] | None, interval: float) -> dict[str, Array]:
    """The effects under a flat prior with their intervals, by column of the table; empty where they were not worked out."""
    if unshrunk is None:
        return {}
    (mean, sd), reach = unshrunk, NormalDist().inv_cdf((1 + interval) / 2)
    return dict(zip(UNSHRUNK, (mean, mean - reach * sd, mean + reach * sd), strict=True))


UNSHRUNK = ("unshrunk", "unshrunk_lower", "unshrunk_upper")
FLAT, SHRUNK = "odds ratio under a flat prior of its own", ", drawn towards 1 by the sparse prior"
_ODDS = ("odds_ratio", "or_lower", "or_upper")
_IN_UNITS = {"effect": "mean", "lower": "lower", "upper": "upper", "sd": "sd"}


def _flat(values: NDArray[Any]) -> list[Any]:
    return list(np.asarray(values).ravel().tolist())


def table_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The table row by row, as files want it."""
    return list(_rows(columns))


def _rows(columns: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    names = list(columns)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(names, values, strict=True))


def frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """The table as a pandas DataFrame."""
    import pandas

    return pandas.DataFrame(dict(columns))
