"""The coefficients of a posterior, ready for the table of results."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy import stats

from intarsia.server.assess.assessment import Assessment
from intarsia.server.posterior.posterior import Posterior, ends
from intarsia.wire.kinds import Back, planned
from intarsia.wire.log_odds import effect_caution, response_caution
from intarsia.wire.result_table import Effects, Evidence, Scales, Told, flat_interval, table_columns, table_rows

Kinds = Mapping[str, Mapping[str, Any]]


def effects_of(posterior: Posterior, assessment: Assessment, interval: float = 0.95, kinds: Kinds | None = None) -> list[Effects]:
    """Of the features, then of the covariates; a posterior of sketches is in standard deviations, as the table wants it.

    Responses whose scales were shared come out in their units, and those of other `kinds` (study.toml) in their own language.
    """
    draws = posterior.draws
    lower, upper = draws.quantile(ends(interval))
    ways = {response: planned(said) for response, said in (kinds or {}).items()}
    scales = Scales(posterior.response_scales)
    common: dict[str, Any] = {"responses": posterior.responses, "interval": interval, "scales": scales}
    features = Effects(
        posterior.features,
        _sites(posterior.feature_sites, draws.P),
        mean=draws.mean(),
        sd=draws.sd(),
        lower=lower,
        upper=upper,
        evidence=evidence_of(posterior, assessment),
        unshrunk=assessment.unshrunk,
        **common,
    )
    features = replace(features, told=_told(features, ways, posterior))
    covariates = posterior.covariates
    sites = _sites(posterior.covariate_sites, len(covariates))
    adjusted: dict[str, Any] = {**posterior.covariate_summary(interval)}
    of_covariates = Effects(covariates, sites, **adjusted, **common)
    return [features, replace(of_covariates, told=_told(of_covariates, ways, posterior))]


def sets_of(
    posterior: Posterior, assessment: Assessment, interval: float = 0.95, kinds: Kinds | None = None
) -> list[dict[str, Any]]:
    """Rows of the table for sets of interchangeable features, of each of which one matters though none is selected by itself: the
    common effect for one standard deviation of the members, on the responses that the set is found to act on.
    """
    sets, fdr = assessment.findings.sets, assessment.findings.fdr
    if not sets:
        return []
    names, held = posterior.features, _sites(posterior.feature_sites, posterior.draws.P)
    mean, sd = np.array([one.mean for one in sets]), np.array([one.sd for one in sets])
    reach = NormalDist().inv_cdf((1 + interval) / 2) * sd
    local, every = np.array([one.local_fdr_by_response for one in sets]), np.ones(len(sets), dtype=bool)
    common: dict[str, Any] = {
        "pip": np.array([one.coverage for one in sets]), "coverage": {k: one.coverage for k, one in enumerate(sets, 1)},
        "purity": {k: one.purity for k, one in enumerate(sets, 1)},
        "lfsr": stats.norm.sf(np.abs(mean) / np.where(sd > 0, sd, np.inf)),
    }  # fmt: skip
    labels = ["one of " + ", ".join(names[p] for p in one.members) for one in sets]
    part = Effects(
        labels,
        [", ".join(dict.fromkeys(held[p] for p in one.members)) for one in sets],
        posterior.responses, mean, sd, mean - reach, mean + reach, interval,
        evidence=Evidence(local, local <= fdr, every, sets={one: k for k, one in enumerate(labels, 1)}, **common),
        scales=Scales(posterior.response_scales),
    )  # fmt: skip
    ways = {response: planned(said) for response, said in (kinds or {}).items()}
    rows = table_rows(table_columns([replace(part, told=_told(part, ways, posterior))]))
    Q = len(posterior.responses)
    return [{**rows[k * Q + q], "role": "set"} for k, one in enumerate(sets) for q in one.acts_on(fdr)]


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


def evidence_of(posterior: Posterior, assessment: Assessment) -> Evidence:
    f, names = assessment.findings, posterior.features
    return Evidence(
        f.local_fdr_by_response,
        np.asarray(f.by_response, dtype=bool),
        np.asarray(f.selected, dtype=bool),
        pip=f.pip,
        lfsr=f.lfsr,
        sets={names[p]: number for number, one in enumerate(f.sets, 1) for p in one.members},
        coverage={number: one.coverage for number, one in enumerate(f.sets, 1)},
        purity={number: one.purity for number, one in enumerate(f.sets, 1)},
        stands=None if f.without is None else [f.stands(p) or None for p in range(len(names))],
    )


def _sites(sites: list[str], count: int) -> list[str]:
    return sites or [""] * count
