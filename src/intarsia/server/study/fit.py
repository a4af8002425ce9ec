"""From the collected sketches to every site's coefficients: the server's long step, outside any engine.

The sampler keeps its own checkpoint in the study folder, so a killed fit goes on where it was and ends with the same
draws. Files are written whole; `fit.json` comes last and says that the step is done.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FederationError
from intarsia.files import read_json
from intarsia.server.assess.assessment import Assessment, Flat, assess, keep, kept
from intarsia.server.assess.convergence import Diagnosis
from intarsia.server.assess.knockoffs import Knockoffs, knockoffs
from intarsia.server.assess.sets import FeatureSet
from intarsia.server.covariates import Covariates, Fitted, sample_adjusted
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import CovariateEffects, Names, Posterior, ends
from intarsia.server.prediction_weights import weigh
from intarsia.server.pseudo_rows import check_rows, whole_rows
from intarsia.server.sampler.errors_in_variables import PrivacyNoise
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.sample import AnyModel
from intarsia.server.sampler.sample import sample as run_chains
from intarsia.server.sampler.sample import sample_noisy as run_private
from intarsia.server.sampler.settings import Settings, Until
from intarsia.server.sampler.sparse.sample import EXPECTED, SparseModel
from intarsia.server.study.folder import StudyFolder, write_atomic
from intarsia.server.study.kept import finished_fit, keep_fit, keep_posterior, posterior_file
from intarsia.server.study.longer import compute_on, on_own_backend
from intarsia.server.study.release import coarser, rounded, rounded_weighed
from intarsia.server.study.screened_by_sketch import confirmation
from intarsia.wire.coefficients import STANDS, Coefficients, OwnSet, bind
from intarsia.wire.messages import Joined
from intarsia.wire.study import Study
from intarsia.wire.study_parts import GRAM

LEFT_TOLD = "most_told_of_left.json"
DELIVERED_BYTES = 2**30  # of draws that go back to all sites together, where there are more than
KNOCKOFFS = 0x6B6F  # stream of random numbers of the second opinion
FEW_DELIVERED = 20  # so many, which say how uncertain a prediction is to about a sixth of its spread

LOG = logging.getLogger(__name__)


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
    done = finished_fit(folder.path)
    if done is not None:
        return done
    study, target, assessment = folder.study, folder.path / "posterior.nc", None
    if target.is_file():
        posterior = Posterior.load(posterior_file(folder.path))
        assessment = kept(posterior)
    if assessment is None:
        settings = compute_on(folder, settings_of(study), backend)
        settings = replace(settings, checkpoint=folder.path / "checkpoint", workers=workers, progress=progress)
        posterior, assessment = _sampled(folder, settings)
        temporary = folder.path / ".posterior.part.nc"
        posterior.save(temporary)
        keep_posterior(folder.path, temporary)
    messages, summary = coefficients(study, posterior, assessment, folder.names)
    messages = as_told(messages, posterior.most_told | asked_by_left(folder))
    summary["draws_to_converge"] = _enough(assessment.diagnosis)
    summary |= {"subjects": int(posterior.attrs["n"]), "left_out": folder.left_out(), "left": list(folder.left)}
    if study.sketch.by_sketch:
        settings = replace(on_own_backend(folder, settings_of(study)), workers=workers, progress=progress)
        summary["confirmation"] = confirmation(folder, posterior, assessment, settings)
    for name, message in bind(messages).items():
        write_atomic(folder.file("coefficients", name), message.to_bytes())
    keep_fit(folder.path, summary)
    folder.note("fit done", verdict=summary["verdict"])
    return summary


def asked_by_left(folder: StudyFolder) -> dict[str, int]:
    """How many effects may be told for the features of sites that left: their people are still in the others' rows."""
    file = folder.path / LEFT_TOLD
    return {} if not file.is_file() else read_json(file, "Start a new run without the site that left.")


def as_told(messages: Mapping[str, Coefficients], most: Mapping[str, int]) -> dict[str, Coefficients]:
    """Each site's results with as many effects in full as all other sites let it be told."""
    everything = max(len(message.features) + len(message.covariates) for message in messages.values())
    least = {name: min((k for other, k in most.items() if other != name), default=everything) for name in messages}
    return {name: coarser(message, least[name]) for name, message in messages.items()}


def _sampled(folder: StudyFolder, settings: Settings) -> tuple[Posterior, Assessment]:
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


def sample(study: Study, joined: Joined, settings: Settings) -> tuple[Posterior, Assessment]:
    """The labelled posterior of the joined sketches under the study's model, and what is to be thought of it."""
    posterior, fitted = posterior_of(study, joined, settings)
    noisy = any(joined.feature_noise) or any(joined.response_noise)
    weighed = None
    if not noisy:  # the ridge does not know of privacy noise
        # Rows of a rotation of the data are what an orthonormal sketch of as many rows would have been.
        exchangeable, plain = whole_rows(joined, fitted), replace(joined, kind="orthonormal")
        if exchangeable is not None:
            yes_or_no = np.array([label in study.yes_or_no for label in joined.responses], dtype=bool)

            def refit(X: Any, Y: Any, model: AnyModel, settings: Settings) -> Draws:
                return run_sampler(study, plain, X, Y, settings, model)

            weighed = weigh(exchangeable, refit, model_of(study), settings, stretched=yes_or_no)
    made = assess(
        posterior, check_rows(joined), X=fitted.X, Y=None if noisy else fitted.Y, method=study.fit.select, fdr=study.fit.fdr,
        weighed=rounded_weighed(weighed),
    )  # fmt: skip
    made = replace(made, knockoffs=second_opinion(joined, fitted, study.fit.seed))
    return posterior, keep(posterior, _rounded(made))


def second_opinion(joined: Joined, fitted: Fitted, seed: int) -> Knockoffs | None:
    """What knockoffs say of the findings of a Gram study, from its sums alone; None elsewhere.

    A sketch has too few rows for its features. Features that were kept for what they show in the same rows have beaten chance
    already: knockoffs made after that would call too many of them true.
    """
    if joined.kind != GRAM or joined.looked_at is not None:
        return None
    return knockoffs(fitted.X, fitted.Y, np.random.default_rng([seed, KNOCKOFFS]), joined.m - len(joined.covariates))


def _rounded(assessment: Assessment) -> Assessment:
    """Effects under a flat prior as sites may be told of them."""
    flat = assessment.flat
    return assessment if flat is None else replace(assessment, flat=Flat(rounded(flat.mean, flat.sd), flat.sd))


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


def model_of(study: Study) -> AnyModel:
    """What is fitted, as the study says."""
    f = study.fit
    if f.prior == "sparse":
        return SparseModel(f.rank, f.noise, f.power, f.expected_features or EXPECTED, f.background)
    return Model(f.local, f.rank, f.law, f.noise, f.power, f.expected_features)


def run_sampler(study: Study, joined: Joined, X: Any, Y: Any, settings: Settings, model: AnyModel | None = None) -> Draws:
    """Draws given X and Y, what the covariates left of the joined sketches; of the study's model unless another is given."""
    model = model or model_of(study)
    LOG.debug("study %s: sampling %s given %d rows of %d features", study.id, type(model).__name__, joined.m, X.shape[1])
    if joined.kind == GRAM:
        # X and Y are a root of the Gram matrix: they stand for n − 1 rows, of which each covariate uses up one.
        return run_chains(X, Y, model, settings, degrees=joined.m - len(joined.covariates), looked_at=joined.looked_at)
    noise = PrivacyNoise(joined.n, np.asarray(joined.feature_noise), np.asarray(joined.response_noise))
    if not (noise.features.any() or noise.responses.any()):
        return run_chains(X, Y, model, settings, partly=study.alignment.mode == "union", looked_at=joined.looked_at)
    # A private study: the likelihood must know how much noise the sites added.
    return run_private(X, Y, noise, model, settings)


def coefficients(
    study: Study, posterior: Any, assessment: Assessment, names: Sequence[str] | None = None
) -> tuple[dict[str, Coefficients], dict[str, Any]]:
    """Each site's own rows of C, and a summary for the server's operator, the verdict first.

    `names` are the sites that take part: by default all of the roster.
    """
    names = study.names if names is None else names
    features, responses = tuple(posterior.features), tuple(posterior.responses)
    feature_sites, response_sites = np.array(posterior.feature_sites, dtype=str), tuple(posterior.response_sites)
    if set(feature_sites.tolist()) - set(names) or set(response_sites) - set(names):
        raise FederationError("The posterior speaks of sites that are not on the roster, or have left.")
    diagnosis, chosen, flat, drawn = assessment.diagnosis, assessment.findings, assessment.unshrunk, posterior.draws
    mean, sd = drawn.mean(), drawn.sd()
    lower, upper = drawn.quantile(ends(study.deliver.interval))
    effects = posterior.covariate_summary(study.deliver.interval)
    effects |= {name: rounded(effects[name], effects["sd"]) for name in ("mean", "lower", "upper")}
    covariates, covariate_sites = tuple(posterior.covariates), np.array(posterior.covariate_sites, dtype=str)
    Sigma = drawn.Sigma.mean(axis=(0, 1))
    with_draws = study.deliver.content == "draws"
    delivered = _delivered(drawn, study.deliver.draws) if with_draws else None
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
            pip=np.clip(chosen.pip[at], 0.0, 1.0),
            lfsr=chosen.lfsr[at],
            selected=np.asarray(chosen.selected)[at],
            by_response=np.asarray(chosen.by_response)[at],
            sigma2_mean=np.diagonal(Sigma)[own],
            draws=None if delivered is None else drawn.effects.some(at, delivered),
            sigma2=None if delivered is None else drawn.sigma2.reshape(drawn.number, -1)[delivered][:, own],
            verdict=str(diagnosis.verdict),
            converged=bool(diagnosis.converged),
            noise_covariance=Sigma[np.ix_(own, own)],
            covariates=tuple(covariates[j] for j in here),
            **{f"covariate_{key}": values[here] for key, values in effects.items()},
            **_to_predict(posterior, assessment, at, here, own),
            sets=tuple(
                _own_set(number, one, at, features) for number, one in enumerate(chosen.sets, 1) if np.isin(at, one.members).any()
            ),
            local_fdr=np.asarray(chosen.local_fdr_by_response, dtype=float)[at],
            stands=np.array([STANDS.index(chosen.stands(int(p))) for p in at], dtype=np.uint8),
            unshrunk=None if flat is None else flat[0][at],
            unshrunk_sd=None if flat is None else flat[1][at],
            selected_count=tuple(int(v) for v in np.asarray(chosen.by_response)[:, own].sum(axis=0)),
            r2_loo=() if assessment.loo is None else tuple(float(v) for v in assessment.loo.r2[own]),
            **_expected(assessment, np.diagonal(Sigma), own, study.deliver.interval),
            response_scales=tuple(posterior.response_scales.values()),
            noise_variances=shared_noise,
        )
    summary = {
        **assessment.summary(list(features), list(responses)),
        "covariates": list(covariates),
        "study": study.id,
        "run": study.run,
        "draws": drawn.number,
    }
    return messages, summary


def _delivered(draws: Draws, number: int) -> NDArray[np.int64]:
    """Which draws of all of C go back, evenly spread over the chains: up to so many, and beyond a few no more than have
    DELIVERED_BYTES.
    """
    return draws.thinned(min(number, max(FEW_DELIVERED, DELIVERED_BYTES // max(1, 8 * draws.P * draws.Q))))


def _expected(assessment: Assessment, noise: Any, own: list[int], interval: float) -> dict[str, Any]:
    """What new subjects of its own responses will show of the predictions."""
    found = assessment.expected_r2(noise, interval)
    if found is None:
        return {}
    names = ("r2_expected", "r2_expected_lower", "r2_expected_upper")
    return {name: tuple(float(v) for v in values[own]) for name, values in zip(names, found, strict=True)}


def _to_predict(posterior: Posterior, assessment: Assessment, at: Any, here: Any, own: list[int]) -> dict[str, Any]:
    """What a site adds to its means when it predicts, and the factor of its own responses' predictive variances."""
    w, background = assessment.weighed, posterior.draws.background
    added = None if w is None else w.coefficients
    if background is not None:  # as exact as a ridge, so the sum is rounded as one
        added = background if added is None else added + background
        added = rounded(added, np.sqrt(np.mean(np.square(added), axis=0)))
    if added is None:
        return {}
    if w is None:
        return {"to_predict": added[at]}
    return {"to_predict": added[at], "covariate_to_predict": w.effects[here], "spread": w.spread[own]}


def _own_set(number: int, one: FeatureSet, at: NDArray[np.intp], features: tuple[str, ...]) -> OwnSet:
    """What a site is told of a set of interchangeable features: its own members, and how many lie elsewhere."""
    own = [features[p] for p in one.members if p in at]
    return OwnSet(tuple(own), len(one.members) - len(own), float(one.coverage), float(one.purity), number)
