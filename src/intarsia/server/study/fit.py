"""From the collected sketches to every site's coefficients: the server's long step, outside any engine.

The sampler keeps its own checkpoint in the study folder, so a killed fit goes on where it was and ends with the same
draws. Files are written whole; `fit.json` comes last and says that the step is done.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError
from intarsia.server.covariates import Covariates, Fitted, sample_adjusted
from intarsia.server.prediction_weights import weigh
from intarsia.server.pseudo_rows import check_rows, whole_rows
from intarsia.server.results.coarser import coarser
from intarsia.server.results.draws import Draws
from intarsia.server.results.groups import Group
from intarsia.server.results.judgement import Judgement, judge, keep, kept
from intarsia.server.results.mapped import rows_of
from intarsia.server.results.posterior import CovariateEffects, Names, Posterior
from intarsia.server.results.unshrunk import unshrunk_of
from intarsia.server.results.verdict import Diagnosis
from intarsia.server.results.worth import predict_worth, to_worth
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.private import PrivacyNoise
from intarsia.server.sampler.private import sample as run_private
from intarsia.server.sampler.sample import sample as run_chains
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.stopping import Until
from intarsia.server.study.folder import StudyFolder, write_atomic
from intarsia.server.study.longer import compute_on
from intarsia.wire.coefficients import Coefficients, OwnGroup, bind
from intarsia.wire.messages import Joined
from intarsia.wire.study import Study
from intarsia.wire.study_parts import GRAM

DELIVERED_BYTES = 2**30  # of draws that go back to all sites together, where there are more than
FEW_DELIVERED = 20  # so many, which say how uncertain a prediction is to about a sixth of its spread


def fit(
    folder: StudyFolder,
    *,
    workers: int | None = None,
    backend: str | None = None,
    progress: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Sample, diagnose, select, write each site's coefficients; done already: say so again. Returns the summary.

    `backend` is numpy, or jax for an accelerator; a fit that was begun goes on with the one it has.
    """
    done = folder.path / "fit.json"
    if done.is_file():
        return dict(json.loads(done.read_text(encoding="utf-8")))
    study, target, judgement = folder.study, folder.path / "posterior.nc", None
    if target.is_file():
        posterior = Posterior.load(target)
        judgement = kept(posterior)
    if judgement is None:
        settings = compute_on(folder, settings_of(study), backend)
        settings = replace(settings, checkpoint=folder.path / "checkpoint", workers=workers, progress=progress)
        posterior, judgement = _sampled(folder, settings)
        temporary = folder.path / ".posterior.part.nc"
        posterior.save(temporary)
        os.replace(temporary, target)
    messages, summary = coefficients(study, posterior, judgement, folder.names)
    messages = as_told(messages, posterior.most_told)
    summary["draws_to_converge"] = _enough(judgement.diagnosis)
    summary |= {"subjects": int(posterior.tree.attrs["n"]), "left_out": folder.left_out(), "left": list(folder.left)}
    for name, message in bind(messages).items():
        write_atomic(folder.file("coefficients", name), message.to_bytes())
    write_atomic(done, json.dumps(summary, indent=1).encode())
    folder.note("fit done", verdict=summary["verdict"])
    return summary


def as_told(messages: Mapping[str, Coefficients], most: Mapping[str, int]) -> dict[str, Coefficients]:
    """Each site's results with as many effects in full as all other sites let it be told."""
    everything = max(len(message.features) + len(message.covariates) for message in messages.values())
    least = {name: min((k for other, k in most.items() if other != name), default=everything) for name in messages}
    return {name: coarser(message, least[name]) for name, message in messages.items()}


def _sampled(folder: StudyFolder, settings: Settings) -> tuple[Posterior, Judgement]:
    """Fit what the sites sent. It is let go of after that: with many features it is the largest thing in memory."""
    joined = folder.joined()
    folder.note("fit started", P=len(joined.features), Q=len(joined.responses), m=joined.m, n=joined.n)
    return sample(folder.study, joined, settings)


def _enough(diagnosis: Diagnosis) -> int | None:
    """So many draws per chain, in all, should bring every coefficient and noise variance within the limits; None: draws alone
    will not.
    """
    more = [one.more_draws() for one in (diagnosis, diagnosis.noise) if one is not None]
    return None if None in more else diagnosis.draws + max(n for n in more if n is not None)


def settings_of(study: Study) -> Settings:
    """How long chains run, as the study says."""
    f = study.fit
    until = Until(f.rhat, f.rhat_folded, f.ess) if f.until == "converged" else None
    return Settings(f.draws, f.warmup, f.chains, f.thin, f.seed, until)


def sample(study: Study, joined: Joined, settings: Settings) -> tuple[Posterior, Judgement]:
    """The labelled posterior of the joined sketches under the study's model, and what is to be thought of it."""
    posterior, fitted = posterior_of(study, joined, settings)
    rows = check_rows(joined)
    method: Any = study.fit.select
    judgement = judge(posterior, rows, X=fitted.X, method=method, fdr=study.fit.fdr)
    noisy = any(joined.feature_noise) or any(joined.response_noise)
    if not noisy:  # privacy noise on the features would draw these effects towards zero
        judgement = replace(judgement, unshrunk=_told(*unshrunk_of(posterior, fitted.X, fitted.Y)))
    if not noisy:  # the ridge does not know of privacy noise
        # Rows of a rotation of the data are what an orthonormal sketch of as many rows would have been.
        exchangeable, plain = whole_rows(joined, fitted), replace(joined, kind="orthonormal")
        if exchangeable is not None:
            yes_or_no = np.array([label in study.yes_or_no for label in joined.responses], dtype=bool)

            def refit(X: Any, Y: Any, model: Model, settings: Settings) -> Draws:
                return run_sampler(study, plain, X, Y, settings, model)

            weighed = weigh(exchangeable, refit, model_of(study), settings, stretched=yes_or_no)
            judgement = judgement.with_weights(predict_worth(weighed))
    return posterior, keep(posterior, judgement)


def _told(mean: Any, sd: Any) -> tuple[Any, Any]:
    return to_worth(mean, sd), sd


def posterior_of(study: Study, joined: Joined, settings: Settings) -> tuple[Posterior, Fitted]:
    """The labelled posterior, and the draws with the rows as the sampler saw them: without what the covariates explain."""
    covariates = Covariates.of(joined)

    def run(X: Any, Y: Any) -> Draws:
        return run_sampler(study, joined, X, Y, settings)

    X, Y = np.asarray(joined.X, dtype=np.float64), np.asarray(joined.Y, dtype=np.float64)
    fitted = sample_adjusted(run, X, Y, covariates, study.fit.seed, study.fit.power)
    posterior = Posterior.from_draws(
        fitted.draws,
        Names.of(joined),
        attrs={"study": study.id, "run": study.run, "study_hash": study.hash, "n": joined.n, "m": joined.m}
        | ({"response_scales": list(joined.response_scales)} if joined.response_scales else {})
        | ({"most_told": dict(joined.most_told)} if joined.most_told else {}),
        effects=None if fitted.Gamma is None else CovariateEffects(fitted.Gamma, covariates.names, covariates.sites),
    )
    return posterior, fitted


def model_of(study: Study) -> Model:
    """What is fitted, as the study says."""
    f = study.fit
    return Model(f.local, f.rank, f.law, f.noise, f.power, f.expected_features)


def run_sampler(study: Study, joined: Joined, X: Any, Y: Any, settings: Settings, model: Model | None = None) -> Draws:
    """Draws given X and Y, what the covariates left of the joined sketches; of the study's model unless another is given."""
    model = model or model_of(study)
    if joined.kind == GRAM:
        # X and Y are a root of the Gram matrix: they stand for n − 1 rows, of which each covariate uses up one.
        return run_chains(X, Y, model, settings, degrees=joined.m - len(joined.covariates))
    noise = PrivacyNoise(joined.n, np.asarray(joined.feature_noise), np.asarray(joined.response_noise))
    if not (noise.features.any() or noise.responses.any()):
        return run_chains(X, Y, model, settings, partly=study.alignment.mode == "union")
    # A private study: the likelihood must know how much noise the sites added.
    return run_private(X, Y, noise, model, settings)


def coefficients(
    study: Study, posterior: Any, judgement: Judgement, names: Sequence[str] | None = None
) -> tuple[dict[str, Coefficients], dict[str, Any]]:
    """Each site's own rows of C, and a summary for the server's operator, the verdict first.

    `names` are the sites that take part: by default all of the roster.
    """
    names = study.names if names is None else names
    features, responses, columns = tuple(posterior.features), tuple(posterior.responses), posterior.columns
    feature_sites = np.array([str(s) for s in columns["site"].values])
    response_sites = tuple(str(s) for s in columns["response_site"].values)
    if set(feature_sites.tolist()) - set(names) or set(response_sites) - set(names):
        raise FederationError("The posterior speaks of sites that are not on the roster, or have left.")
    diagnosis, chosen, flat = judgement.diagnosis, judgement.selection, judgement.unshrunk
    mean, sd = posterior.mean().values, posterior.sd().values
    lower, upper = (edge.values for edge in posterior.interval(study.deliver.interval))
    effects = posterior.covariate_summary(study.deliver.interval)
    effects |= {name: to_worth(effects[name], effects["sd"]) for name in ("mean", "lower", "upper")}
    covariates = tuple(posterior.covariates)
    covariate_sites = np.array([str(s) for s in posterior.Gamma.coords["covariate_site"].values] if covariates else [], dtype=str)
    S = posterior.Sigma.shape[0] * posterior.Sigma.shape[1]
    Sigma = posterior.noise_covariance().values
    with_draws = study.deliver.content == "draws"
    delivered = _delivered(posterior, study.deliver.draws) if with_draws else None
    shared_noise = {
        response: float(Sigma[q, q])
        for q, response in enumerate(responses)
        if study.deliver.share_scales and response in study.yes_or_no
    }
    messages = {}
    for name in names:
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
            sigma2_mean=np.diagonal(Sigma)[own],
            draws=None if delivered is None else rows_of(posterior.whole, delivered[0], at),
            sigma2=None if delivered is None else delivered[1][:, own],
            verdict=str(diagnosis.verdict),
            converged=bool(diagnosis.converged),
            noise_covariance=Sigma[np.ix_(own, own)],
            covariates=tuple(covariates[j] for j in here),
            **{f"covariate_{key}": values[here] for key, values in effects.items()},
            **_to_predict(judgement, at, here, own),
            groups=tuple(
                _own_group(number, group, at, features)
                for number, group in enumerate(chosen.groups, 1)
                if np.isin(at, group.members).any()
            ),
            local_fdr=np.asarray(chosen.local_fdr_by_response, dtype=float)[at],
            unshrunk=None if flat is None else flat[0][at],
            unshrunk_sd=None if flat is None else flat[1][at],
            selected_count=tuple(int(v) for v in np.asarray(chosen.by_response)[:, own].sum(axis=0)),
            r2_loo=() if judgement.loo is None else tuple(float(v) for v in judgement.loo.r2[own]),
            **_expected(judgement, np.diagonal(Sigma), own, study.deliver.interval),
            response_scales=tuple(posterior.response_scales.values()),
            noise_variances=shared_noise,
        )
    summary = {
        **judgement.summary(list(features), list(responses)),
        "covariates": list(covariates),
        "study": study.id,
        "run": study.run,
        "draws": S,
    }
    return messages, summary


def _delivered(posterior: Posterior, number: int) -> tuple[Any, Any]:
    """Which draws of all of C go back (chain, draw), evenly spread over the chains: up to so many, and beyond a few no more than
    have DELIVERED_BYTES; and the noise variances in them (draw, Q).
    """
    C, Sigma = posterior.whole, posterior.whole_Sigma
    chains, draws, P, Q = C.shape
    room = max(FEW_DELIVERED, DELIVERED_BYTES // max(1, P * Q * C.itemsize))
    S = chains * draws
    keep = np.unique(np.linspace(0, S - 1, min(S, number, room)).round().astype(int))
    at = np.divmod(keep, draws)
    return np.column_stack(at), np.diagonal(Sigma, axis1=2, axis2=3)[at]


def _expected(judgement: Judgement, noise: Any, own: list[int], interval: float) -> dict[str, Any]:
    """What new subjects of its own responses will show of the predictions."""
    found = judgement.expected_r2(noise, interval)
    if found is None:
        return {}
    names = ("r2_expected", "r2_expected_lower", "r2_expected_upper")
    return {name: tuple(float(v) for v in values[own]) for name, values in zip(names, found, strict=True)}


def _to_predict(judgement: Judgement, at: Any, here: Any, own: list[int]) -> dict[str, Any]:
    """What a site adds to its means when it predicts, and the factor of its own responses' predictive variances."""
    w = judgement.weighed
    if w is None:
        return {}
    return {"to_predict": w.coefficients[at], "covariate_to_predict": w.effects[here], "spread": w.spread[own]}


def _own_group(number: int, group: Group, at: NDArray[np.intp], features: tuple[str, ...]) -> OwnGroup:
    """What a site is told of a set of interchangeable features: its own members, and how many lie elsewhere."""
    own = [features[p] for p in group.members if p in at]
    return OwnGroup(tuple(own), len(group.members) - len(own), 1.0 - group.local_fdr, number)
