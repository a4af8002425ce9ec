"""From the collected sketches to every site's coefficients: the server's long step, outside any engine.

The sampler keeps its own checkpoint in the study folder, so a killed fit goes on where it was and ends with the same
draws. Files are written whole; `fit.json` comes last and says that the step is done.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError
from intarsia.server.covariates import Covariates, sample_adjusted
from intarsia.server.pseudo_rows import check_rows
from intarsia.server.results.draws import Draws
from intarsia.server.results.groups import Group
from intarsia.server.results.judgement import Judgement, judge, kept
from intarsia.server.results.posterior import CovariateEffects, Posterior
from intarsia.server.study.folder import StudyFolder, write_atomic
from intarsia.wire.coefficients import Coefficients, OwnGroup, bind
from intarsia.wire.messages import Joined
from intarsia.wire.study import GRAM, Study


def fit(folder: StudyFolder, *, workers: int | None = None, progress: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Sample, diagnose, select, write each site's coefficients; done already: say so again. Returns the summary."""
    done = folder.path / "fit.json"
    if done.is_file():
        return dict(json.loads(done.read_text(encoding="utf-8")))
    study, joined = folder.study, folder.joined()
    target = folder.path / "posterior.nc"
    judgement = None
    if target.is_file():
        posterior = Posterior.load(target)
        judgement = kept(posterior)
    if judgement is None:
        folder.note("fit started", P=len(joined.features), Q=len(joined.responses), m=joined.m, n=joined.n)
        posterior, judgement = sample(study, joined, checkpoint=folder.path / "checkpoint", workers=workers, progress=progress)
        temporary = folder.path / ".posterior.part.nc"
        posterior.save(temporary)
        os.replace(temporary, target)
    messages, summary = coefficients(study, posterior, judgement)
    for name, message in bind(messages).items():
        write_atomic(folder.file("coefficients", name), message.to_bytes())
    write_atomic(done, json.dumps(summary, indent=1).encode())
    folder.note("fit done", verdict=summary["verdict"])
    return summary


def sample(study: Study, joined: Joined, **options: Any) -> tuple[Posterior, Judgement]:
    """The labelled posterior of the joined sketches under the study's model, and what is to be thought of it."""
    posterior, X = posterior_of(study, joined, **options)
    rows = check_rows(joined)
    method: Any = study.fit.select
    return posterior, judge(posterior, rows, X=X, method=method, fdr=study.fit.fdr)


def posterior_of(study: Study, joined: Joined, **options: Any) -> tuple[Posterior, NDArray[np.float64]]:
    """The labelled posterior, and the features' rows as the sampler saw them: without what the covariates explain."""
    covariates = Covariates.of(joined)

    def run(X: Any, Y: Any) -> Draws:
        return run_sampler(study, joined, X, Y, **options)

    X, Y = np.asarray(joined.X, dtype=np.float64), np.asarray(joined.Y, dtype=np.float64)
    fitted = sample_adjusted(run, X, Y, covariates, study.fit.seed, study.fit.power)
    posterior = Posterior.from_draws(
        fitted.draws,
        features=joined.features,
        responses=joined.responses,
        feature_sites=joined.feature_sites,
        response_sites=joined.response_sites,
        attrs={"study": study.id, "run": study.run, "study_hash": study.hash, "n": joined.n, "m": joined.m},
        effects=None if fitted.Gamma is None else CovariateEffects(fitted.Gamma, covariates.names, covariates.sites),
    )
    return posterior, fitted.X


def run_sampler(study: Study, joined: Joined, X: Any, Y: Any, **options: Any) -> Draws:
    """Draws given X and Y, what the covariates left of the joined sketches."""
    from intarsia.server.sampler.model import Model
    from intarsia.server.sampler.sample import sample as run_chains

    f = study.fit
    model = Model(f.local, f.rank, f.law, f.noise, f.power, f.expected_features)
    plan: dict[str, Any] = {"model": model, "draws": f.draws, "warmup": f.warmup, "chains": f.chains}
    plan |= {"thin": f.thin, "seed": f.seed} | options
    if joined.kind == GRAM:
        # X and Y are a root of the Gram matrix: they stand for n − 1 rows, of which each covariate uses up one.
        return run_chains(X, Y, degrees=joined.m - len(joined.covariates), **plan)
    noise = np.asarray(joined.feature_noise)
    if not (noise.any() or np.any(joined.response_noise)):
        return run_chains(X, Y, **plan)
    # A private study: the likelihood must know how much noise the sites added.
    from intarsia.server.sampler.private import sample as run_private

    return run_private(X, Y, feature_noise=noise, response_noise=np.asarray(joined.response_noise), n=joined.n, **plan)


def coefficients(study: Study, posterior: Any, judgement: Judgement) -> tuple[dict[str, Coefficients], dict[str, Any]]:
    """Each site's own rows of C, and a summary for the server's operator, the verdict first."""
    C = posterior.C
    features = tuple(str(v) for v in C.coords["feature"].values)
    responses = tuple(str(v) for v in C.coords["response"].values)
    feature_sites = np.array([str(s) for s in C.coords["site"].values])
    response_sites = tuple(str(s) for s in C.coords["response_site"].values)
    if set(feature_sites.tolist()) - set(study.names) or set(response_sites) - set(study.names):
        raise FederationError("The posterior speaks of sites that are not on the roster.")
    diagnosis, chosen = judgement.diagnosis, judgement.selection
    mean, sd = posterior.mean().values, posterior.sd().values
    lower, upper = (edge.values for edge in posterior.interval(study.deliver.interval))
    effects = posterior.covariate_summary(study.deliver.interval)
    covariates = tuple(posterior.covariates)
    covariate_sites = np.array([str(s) for s in posterior.Gamma.coords["covariate_site"].values] if covariates else [], dtype=str)
    Sigma = posterior.Sigma.values
    S = C.shape[0] * C.shape[1]
    keep = np.unique(np.linspace(0, S - 1, min(S, study.deliver.draws)).round().astype(int))
    flat_C = C.values.reshape(S, *C.shape[2:])
    flat_Sigma = Sigma.reshape(S, *Sigma.shape[2:])
    flat_sigma2 = np.diagonal(flat_Sigma, axis1=1, axis2=2)
    with_draws = study.deliver.content == "draws"
    messages = {}
    for name in study.names:
        at = np.flatnonzero(feature_sites == name)
        own = [q for q, site in enumerate(response_sites) if site == name]
        here = np.flatnonzero(covariate_sites == name)
        messages[name] = Coefficients(
            site=name,
            study_hash=study.hash,
            features=tuple(features[p] for p in at),
            responses=responses,
            response_sites=response_sites,
            interval=study.deliver.interval,
            mean=mean[at],
            sd=sd[at],
            lower=lower[at],
            upper=upper[at],
            evidence=np.asarray(chosen.evidence, dtype=float)[at],
            selected=np.asarray(chosen.selected)[at],
            by_response=np.asarray(chosen.by_response)[at],
            sigma2_mean=flat_sigma2[:, own].mean(axis=0),
            draws=flat_C[keep][:, at] if with_draws else None,
            sigma2=flat_sigma2[keep][:, own] if with_draws else None,
            verdict=str(diagnosis.verdict),
            converged=bool(diagnosis.converged),
            noise_covariance=flat_Sigma.mean(axis=0)[np.ix_(own, own)],
            covariates=tuple(covariates[j] for j in here),
            **{f"covariate_{key}": values[here] for key, values in effects.items()},
            groups=tuple(_own_group(group, at, features) for group in chosen.groups if np.isin(at, group.members).any()),
        )
    summary = {
        **judgement.summary(list(features), list(responses)),
        "covariates": list(covariates),
        "study": study.id,
        "run": study.run,
        "draws": S,
    }
    return messages, summary


def _own_group(group: Group, at: NDArray[np.intp], features: tuple[str, ...]) -> OwnGroup:
    """What a site is told of a set of interchangeable features: its own members, and how many lie elsewhere."""
    own = [features[p] for p in group.members if p in at]
    return OwnGroup(tuple(own), len(group.members) - len(own), 1.0 - group.local_fdr)
