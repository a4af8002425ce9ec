"""The coefficients of a posterior, ready for the table of results."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from intarsia.server.results.judgement import Judgement
from intarsia.server.results.posterior import Posterior
from intarsia.wire.result_table import Effects, Evidence, Scales


def effects_of(posterior: Posterior, judgement: Judgement, interval: float = 0.95) -> list[Effects]:
    """Of the features, then of the covariates; a posterior of sketches is in standard deviations, as the table wants it.

    Responses whose scales were shared come out in their units.
    """
    lower, upper = posterior.interval(interval)
    known = posterior.response_scales
    common: dict[str, Any] = {"responses": posterior.responses, "interval": interval, "scales": Scales(known)}
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
    covariates = posterior.covariates
    sites = _sites({} if posterior.Gamma is None else posterior.Gamma.coords, "covariate_site", len(covariates))
    adjusted: dict[str, Any] = {**posterior.covariate_summary(interval)}
    return [features, Effects(covariates, sites, **adjusted, **common)]


def evidence_of(posterior: Posterior, judgement: Judgement) -> Evidence:
    chosen, names = judgement.selection, posterior.features
    groups = {names[p]: number for number, group in enumerate(chosen.groups, 1) for p in group.members}
    by_response = np.asarray(chosen.by_response, dtype=bool)
    selected = np.asarray(chosen.selected, dtype=bool)
    return Evidence(chosen.local_fdr_by_response, by_response, chosen.local_fdr, selected, groups)


def _sites(coords: Mapping[Any, Any], name: str, count: int) -> list[str]:
    return [str(site) for site in coords[name].values] if name in coords else [""] * count
