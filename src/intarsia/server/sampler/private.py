"""Draws given the sketches of a differentially private study, whose columns carry noise of known variance."""

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from intarsia.server.results.draws import Draws
from intarsia.server.sampler.errors_in_variables import check_signal, setting, without
from intarsia.server.sampler.launch import Progress, Way
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.sample import CHECKPOINT_SECONDS, Job, carry_out
from intarsia.server.sampler.stopping import Until
from intarsia.wire.defaults import CHAINS, DRAWS, THIN, WARMUP


def sample(
    X: Any,
    Y: Any,
    *,
    feature_noise: Any,
    n: int,
    response_noise: Any = None,
    model: Model | None = None,
    draws: int = DRAWS,
    warmup: int | None = None,
    chains: int = CHAINS,
    thin: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    until: Until | None = None,
    every: float = CHECKPOINT_SECONDS,
) -> Draws:
    """Draws of C, Sigma and tau from noisy sketches. `feature_noise` and `response_noise` hold the columns' w, no variances.

    Sigma is that of the responses without the privacy noise. The same seed gives the same draws, whatever the workers; a
    `checkpoint` folder lets an interrupted run go on as one that was never stopped.
    """
    model = model or Model()
    s = setting(X, Y, np.square(np.asarray(feature_noise, float)) / n, model)
    loud = check_signal(s.Z, s.d, n)
    warmup, thin = WARMUP if warmup is None else warmup, THIN if thin is None else thin
    asked = {
        "engine": "private", "model": asdict(model), "warmup": warmup, "thin": thin, "chains": chains, "seed": int(seed),
        "mixing": True, "backend": "numpy", "shape": [*s.Z.shape, s.Y.shape[1]],
    }  # fmt: skip
    (m, P), arrays = s.Z.shape, {"X": s.Z, "Y": s.Y, "d": s.d}
    way = Way(workers, every, progress, 1e-3 + (P**3 + 2 * m * P**2) / 1e10)
    found = carry_out(Job(asked, arrays, draws, until), way, checkpoint)
    dy = np.zeros(s.Y.shape[1]) if response_noise is None else np.square(np.asarray(response_noise, float)) / n
    info = found.info | {
        "errors_in_variables": True, "noise_ratio": loud.ratio, "noise_variance": loud.noise,
    }  # fmt: skip
    return replace(found, Sigma=without(found.Sigma, dy), shrinkage=None, info=info)
