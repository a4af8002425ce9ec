"""The effects that a posterior tells: ready for the table of results, and without the prior's pull."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from intarsia.server.assess.sets import FeatureSet
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import Posterior, ends
from intarsia.server.posterior.sparse import parts
from intarsia.wire.kinds import Back, planned
from intarsia.wire.log_odds import effect_caution, response_caution
from intarsia.wire.result_table import Effects, Evidence, Scales, Told, flat_interval, table_columns, table_rows

if TYPE_CHECKING:
    from intarsia.server.assess.assessment import Assessment

Array = NDArray[np.float64]
Kinds = Mapping[str, Mapping[str, Any]]

MOST_DRAWS, LEAST_DRAWS = 200, 32  # that effects without the prior rest on
MOST_OPERATIONS = 1e12  # beyond, fewer draws are used
NUMBERS = 2**24  # of X, and of what its features correlate with, at once


def effects_of(
    posterior: Posterior, assessment: "Assessment", interval: float = 0.95, kinds: Kinds | None = None
) -> list[Effects]:
    """Of the features, then of the covariates; a posterior of sketches is in standard deviations, as the table wants it.

    Responses whose scales were shared come out in their units, and those of other `kinds` (study.toml) in their own language.
    """
    draws, f, names = posterior.draws, assessment.findings, posterior.features
    lower, upper = draws.quantile(ends(interval))
    evidence = Evidence(
        f.local_fdr_by_response,
        np.asarray(f.by_response, dtype=bool),
        np.asarray(f.selected, dtype=bool),
        pip=f.pip,
        lfsr=f.lfsr,
        sets={names[p]: number for number, one in enumerate(f.sets, 1) for p in one.members},
        stands=None if f.without is None else [f.stands(p) or None for p in range(len(names))],
        **_of_sets(f.sets),
    )
    values = {"mean": draws.mean(), "sd": draws.sd(), "lower": lower, "upper": upper, "unshrunk": assessment.unshrunk}
    part, adjusted = partial(_part, posterior, interval, kinds), posterior.covariate_summary(interval)
    return [
        part(names, posterior.feature_sites, evidence=evidence, **values),
        part(posterior.covariates, posterior.covariate_sites, **adjusted),
    ]


def sets_of(
    posterior: Posterior, assessment: "Assessment", interval: float = 0.95, kinds: Kinds | None = None
) -> list[dict[str, Any]]:
    """Rows of the table for sets of interchangeable features, of each of which one matters though none is selected by itself: the
    common effect for one standard deviation of the members, on the responses that the set is found to act on.
    """
    sets, fdr = assessment.findings.sets, assessment.findings.fdr
    if not sets:
        return []
    names, held = posterior.features, posterior.feature_sites or [""] * posterior.draws.P
    mean, sd = np.array([one.mean for one in sets]), np.array([one.sd for one in sets])
    reach = NormalDist().inv_cdf((1 + interval) / 2) * sd
    local = np.array([one.local_fdr_by_response for one in sets])
    labels = ["one of " + ", ".join(names[p] for p in one.members) for one in sets]
    evidence = Evidence(
        local,
        local <= fdr,
        np.ones(len(sets), dtype=bool),
        pip=np.array([one.coverage for one in sets]),
        lfsr=stats.norm.sf(np.abs(mean) / np.where(sd > 0, sd, np.inf)),
        sets={one: k for k, one in enumerate(labels, 1)},
        **_of_sets(sets),
    )
    holders = [", ".join(dict.fromkeys(held[p] for p in one.members)) for one in sets]
    values = {"mean": mean, "sd": sd, "lower": mean - reach, "upper": mean + reach}
    rows = table_rows(table_columns([_part(posterior, interval, kinds, labels, holders, evidence=evidence, **values)]))
    Q = len(posterior.responses)
    return [{**rows[k * Q + q], "role": "set"} for k, one in enumerate(sets) for q in one.acts_on(fdr)]


def _of_sets(sets: Sequence[FeatureSet]) -> dict[str, Any]:
    """Coverage and purity of each set by its number."""
    return {name: {k: getattr(one, name) for k, one in enumerate(sets, 1)} for name in ("coverage", "purity")}


def _part(
    posterior: Posterior, interval: float, kinds: Kinds | None, labels: list[str], sites: list[str], **values: Any
) -> Effects:
    """Effects of some columns, those on other kinds of responses in their language."""
    common: dict[str, Any] = {"interval": interval, "scales": Scales(posterior.response_scales)}
    part = Effects(labels, sites or [""] * len(labels), posterior.responses, **common, **values)
    ways = {response: planned(said) for response, said in (kinds or {}).items()}
    return replace(part, told=_told(part, ways, posterior))


def _told(part: Effects, ways: Mapping[str, Back], posterior: Posterior) -> dict[str, Told]:
    """The effects on responses that are no plain measurements, where their scales are shared; the noise variance at its mean."""
    noise = posterior.draws.sigma2.mean(axis=(0, 1))
    flat = flat_interval(part.unshrunk, part.interval)
    out = {}
    for q, response in enumerate(part.responses):
        back, scale = ways.get(response), part.scales.responses.get(response)
        if back is None or scale is None or back == Back("continuous"):
            continue
        values = {name: getattr(part, name)[:, q] for name in ("mean", "sd", "lower", "upper")}
        read: dict[str, Any] = {name: back.effect(one, s_y=scale, sigma2=float(noise[q])) for name, one in values.items()}
        free = {name: back.effect(one[:, q], s_y=scale, sigma2=float(noise[q])) for name, one in flat.items()}
        cautions: list[str | None] = []
        if back.kind == "binary":
            limit = response_caution(scale, posterior.draws.sigma2[..., q])
            cautions = [effect_caution(float(effect)) or limit or None for effect in read["mean"]]
        out[response] = Told(**read, unit=back.effect_unit, ratio=back.language.ratio, cautions=cautions, unshrunk=free)
    return out


def unshrunk(X: Array, Y: Array, draws: Draws) -> tuple[Array, Array]:
    """Mean and sd (P×Q) of effects without the sparse prior's pull, in the units of X and Y; NaN is a missing response.

    A sparse prior draws what the rows can hardly tell from zero towards zero, its interval too. That is right for selection and
    for prediction; for the size of one named effect it is not: of true effects near the limit of what can be seen, the interval
    of the sparse posterior holds far fewer than it says. So each feature's own coefficient gets a flat prior, and all others are
    as the posterior has them. Given those and the noise of one draw, the law of a feature's coefficients is normal,

        N(c + Rᵀx / xᵀx, Σ / xᵀx),    R = Y − X C  the draw's residuals, c the feature's row of C,

    and over the draws these mix. Coefficients that the prior shrank stay in R and so in Σ: intervals are as wide as that makes
    them. X and Y are the rows as the sampler saw them.
    """
    seen, (m, Q), P = ~np.isnan(Y), Y.shape, X.shape[1]
    at = draws.thinned(np.clip(MOST_OPERATIONS / (4.0 * m * max(P, 1) * Q), LEAST_DRAWS, MOST_DRAWS))
    residual = (np.where(seen, Y, 0.0) - draws.fitted(X, at)) * seen  # (draw, m, Q)
    noise = np.diagonal(draws.flat_Sigma[at], axis1=1, axis2=2).mean(axis=0)
    mean, sd = np.empty((P, Q)), np.empty((P, Q))
    side_by_side = residual.swapaxes(0, 1).reshape(m, -1)
    for part in parts(P, m + len(at) * Q, NUMBERS):
        features, own = np.arange(P)[part], np.asarray(X[:, part], dtype=np.float64)
        # Of each feature, its squares over the rows that have the response; of a column of noughts nothing can be said.
        squares = np.square(own).T @ seen
        squares = np.where(squares > 0, squares, np.nan)
        c = draws.effects.some(features, at).swapaxes(0, 1)
        if draws.background is not None:
            c = c + draws.background[features][:, None]
        each = c + (own.T @ side_by_side).reshape(c.shape) / squares[:, None]
        mean[features], sd[features] = each.mean(axis=1), np.sqrt(each.var(axis=1) + noise / squares)
    return mean, sd
