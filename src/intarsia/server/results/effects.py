"""The coefficients of a posterior, ready for the table of results."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from intarsia.server.results.judgement import Judgement
from intarsia.server.results.posterior import Posterior
from intarsia.wire.kinds import Back, planned
from intarsia.wire.log_odds import effect_caution, response_caution
from intarsia.wire.result_table import Effects, Evidence, Scales, Told, flat_interval, table_columns, table_rows

Kinds = Mapping[str, Mapping[str, Any]]


def effects_of(posterior: Posterior, judgement: Judgement, interval: float = 0.95, kinds: Kinds | None = None) -> list[Effects]:
    """Of the features, then of the covariates; a posterior of sketches is in standard deviations, as the table wants it.

    Responses whose scales were shared come out in their units, and those of other `kinds` (study.toml) in their own language.
    """
    lower, upper = posterior.interval(interval)
    ways = {response: planned(said) for response, said in (kinds or {}).items()}
    scales = Scales(posterior.response_scales)
    common: dict[str, Any] = {"responses": posterior.responses, "interval": interval, "scales": scales}
    features = Effects(
        posterior.features,
        _sites(posterior.columns, "site", len(posterior.features)),
        mean=posterior.mean().values,
        sd=posterior.sd().values,
        lower=lower.values,
        upper=upper.values,
        evidence=evidence_of(posterior, judgement),
        unshrunk=judgement.unshrunk,
        **common,
    )
    features = replace(features, told=_told(features, ways, posterior))
    covariates = posterior.covariates
    sites = _sites({} if posterior.Gamma is None else posterior.Gamma.coords, "covariate_site", len(covariates))
    adjusted: dict[str, Any] = {**posterior.covariate_summary(interval)}
    of_covariates = Effects(covariates, sites, **adjusted, **common)
    return [features, replace(of_covariates, told=_told(of_covariates, ways, posterior))]


def sets_of(
    posterior: Posterior, judgement: Judgement, interval: float = 0.95, kinds: Kinds | None = None
) -> list[dict[str, Any]]:
    """Rows of the table for sets of interchangeable features, of each of which one matters though none is selected by itself: the
    common effect for one standard deviation of the members, on the responses that the set is found to act on.
    """
    sets = judgement.selection.groups
    if not sets:
        return []
    names, held = posterior.features, _sites(posterior.columns, "site", len(posterior.features))
    mean, sd = np.array([one.mean for one in sets]), np.array([one.sd for one in sets])
    reach = NormalDist().inv_cdf((1 + interval) / 2) * sd
    local, every = np.array([one.local_fdr_by_response for one in sets]), np.ones(len(sets), dtype=bool)
    part = Effects(
        ["one of " + ", ".join(names[p] for p in one.members) for one in sets],
        [", ".join(dict.fromkeys(held[p] for p in one.members)) for one in sets],
        posterior.responses, mean, sd, mean - reach, mean + reach, interval,
        evidence=Evidence(local, local <= judgement.selection.fdr, np.array([one.local_fdr for one in sets]), every),
        scales=Scales(posterior.response_scales),
    )  # fmt: skip
    ways = {response: planned(said) for response, said in (kinds or {}).items()}
    rows = table_rows(table_columns([replace(part, told=_told(part, ways, posterior))]))
    Q, fdr = len(posterior.responses), judgement.selection.fdr
    return [{**rows[k * Q + q], "role": "set", "group": k + 1} for k, one in enumerate(sets) for q in one.acts_on(fdr)]


def _told(part: Effects, ways: Mapping[str, Back], posterior: Posterior) -> dict[str, Told]:
    """The effects on responses that are no plain measurements, where their scales are shared; the noise variance at its mean."""
    noise = np.diagonal(posterior.noise_covariance().values)
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
            limit = response_caution(scale, posterior.Sigma.values[..., q, q])
            cautions = [effect_caution(float(effect)) or limit or None for effect in read["mean"]]
        out[response] = Told(**read, unit=back.effect_unit, ratio=back.language.ratio, cautions=cautions, unshrunk=free)
    return out


def evidence_of(posterior: Posterior, judgement: Judgement) -> Evidence:
    chosen, names = judgement.selection, posterior.features
    groups = {names[p]: number for number, group in enumerate(chosen.groups, 1) for p in group.members}
    by_response = np.asarray(chosen.by_response, dtype=bool)
    selected = np.asarray(chosen.selected, dtype=bool)
    return Evidence(chosen.local_fdr_by_response, by_response, chosen.local_fdr, selected, groups)


def _sites(coords: Mapping[Any, Any], name: str, count: int) -> list[str]:
    return [str(site) for site in coords[name].values] if name in coords else [""] * count
