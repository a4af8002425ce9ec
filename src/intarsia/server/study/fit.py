"""From the collected sketches to every site's coefficients: the server's long step, outside any engine.

The sampler keeps its own checkpoint in the study folder, so a killed fit goes on where it was and ends with the same
draws. Files are written whole; `fit.json` comes last and says that the step is done.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from intarsia.errors import FederationError
from intarsia.server.study.folder import StudyFolder, write_atomic
from intarsia.wire.coefficients import Coefficients, bind
from intarsia.wire.messages import Joined, join
from intarsia.wire.study import Study


def fit(folder: StudyFolder, *, workers: int | None = None, progress: Callable[..., Any] | None = None) -> dict[str, Any]:
    """Sample, diagnose, select, write each site's coefficients; done already: say so again. Returns the summary."""
    done = folder.path / "fit.json"
    if done.is_file():
        return dict(json.loads(done.read_text(encoding="utf-8")))
    from intarsia.server.results.posterior import Posterior

    study, joined = folder.study, join(folder.sketches())
    target = folder.path / "posterior.nc"
    if target.is_file():
        posterior = Posterior.load(target)
    else:
        folder.note("fit started", P=len(joined.features), Q=len(joined.responses), m=joined.m, n=joined.n)
        posterior = sample(study, joined, checkpoint=folder.path / "checkpoint", workers=workers, progress=progress)
        temporary = folder.path / ".posterior.part.nc"
        posterior.save(temporary)
        os.replace(temporary, target)
    messages, summary = coefficients(study, posterior)
    for name, message in bind(messages).items():
        write_atomic(folder.file("coefficients", name), message.to_bytes())
    write_atomic(done, json.dumps(summary, indent=1).encode())
    folder.note("fit done", verdict=summary["verdict"])
    return summary


def sample(study: Study, joined: Joined, **options: Any) -> Any:
    """The labelled posterior of the joined sketches under the study's model."""
    from intarsia.server.results.posterior import Posterior
    from intarsia.server.sampler.chains import sample as run_chains
    from intarsia.server.sampler.gibbs import Model

    f = study.fit
    model = Model(local=f.local, rank=f.rank, law=f.law, noise=f.noise, alpha=f.alpha)
    plan: dict[str, Any] = {"model": model, "draws": f.draws, "warmup": f.warmup, "chains": f.chains}
    plan |= {"thin": f.thin, "seed": f.seed} | options
    noise = np.asarray(joined.feature_noise)
    if noise.any() or np.any(joined.response_noise):
        # A private study: the likelihood must know how much noise the sites added. This sampler keeps no checkpoint;
        # its draws are fixed by the seed, so an interrupted fit is simply made again.
        from intarsia.server.sampler.errors_in_variables import sample as run_private

        plan.pop("checkpoint", None)
        draws = run_private(
            joined.X,
            joined.Y,
            feature_noise=noise,
            response_noise=np.asarray(joined.response_noise),
            n=joined.n,
            **plan,
        )
    else:
        draws = run_chains(joined.X, joined.Y, **plan)
    return Posterior.from_draws(
        draws,
        features=joined.features,
        responses=joined.responses,
        feature_sites=joined.feature_sites,
        response_sites=joined.response_sites,
        attrs={"study": study.id, "run": study.run, "study_hash": study.hash, "n": joined.n, "m": joined.m},
    )


def coefficients(study: Study, posterior: Any) -> tuple[dict[str, Coefficients], dict[str, Any]]:
    """Each site's own rows of C, and a summary for the server's operator."""
    from intarsia.server.results.diagnostics import diagnose
    from intarsia.server.results.selection import select

    C = posterior.C
    features = tuple(str(v) for v in C.coords["feature"].values)
    responses = tuple(str(v) for v in C.coords["response"].values)
    feature_sites = np.array([str(s) for s in C.coords["site"].values])
    response_sites = tuple(str(s) for s in C.coords["response_site"].values)
    if set(feature_sites.tolist()) - set(study.names) or set(response_sites) - set(study.names):
        raise FederationError("The posterior speaks of sites that are not on the roster.")
    diagnosis = diagnose(posterior)
    method: Any = study.fit.select
    chosen = select(C.values, method=method, alpha=study.fit.fdr)
    mean, sd = posterior.mean().values, posterior.sd().values
    lower, upper = (edge.values for edge in posterior.interval(study.deliver.interval))
    sigma2 = posterior.sigma2.values
    S = C.shape[0] * C.shape[1]
    keep = np.unique(np.linspace(0, S - 1, min(S, study.deliver.draws)).round().astype(int))
    flat_C = C.values.reshape(S, *C.shape[2:])
    flat_sigma2 = sigma2.reshape(S, -1)
    with_draws = study.deliver.content == "draws"
    messages = {}
    for name in study.names:
        at = np.flatnonzero(feature_sites == name)
        own = [q for q, site in enumerate(response_sites) if site == name]
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
        )
    summary = {
        "study": study.id,
        "run": study.run,
        "converged": bool(diagnosis.converged),
        "verdict": str(diagnosis.verdict),
        "selected": [features[p] for p in np.flatnonzero(np.asarray(chosen.selected))],
        "features": len(features),
        "responses": list(responses),
        "draws": S,
    }
    return messages, summary
