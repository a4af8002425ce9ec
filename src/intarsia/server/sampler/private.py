"""Draws given the sketches of a differentially private study, whose columns carry noise of known variance."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from intarsia.errors import InputError
from intarsia.server.posterior.draws import Draws
from intarsia.server.sampler import backends
from intarsia.server.sampler.errors_in_variables import check_signal, setting, without
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.sample import Job, asked_of, carry_out
from intarsia.server.sampler.settings import Settings


@dataclass(frozen=True)
class PrivacyNoise:
    """What the sites added before they sent: the columns' w (no variances), of the sketch of n subjects."""

    n: int
    features: Any
    responses: Any = None  # None: no noise on them


def sample(X: Any, Y: Any, noise: PrivacyNoise, model: Model | None = None, settings: Settings | None = None) -> Draws:
    """Draws of C, Sigma and tau from noisy sketches.

    Sigma is that of the responses without the privacy noise. The same seed gives the same draws, whatever the workers; a
    `checkpoint` folder lets an interrupted run go on as one that was never stopped.
    """
    model, settings = model or Model(), (settings or Settings()).filled()
    if backends.engine(settings.backend) != "cpu":
        raise InputError("Sketches with privacy noise are fitted on the CPU. Leave the backend at numpy.")
    s = setting(X, Y, np.square(np.asarray(noise.features, float)) / noise.n, model)
    seen = check_signal(s.Z, s.d, noise.n)
    m, P = s.Z.shape
    asked = asked_of("private", model, replace(settings, mixing=True), (m, P, s.Y.shape[1]))
    found = carry_out(Job(asked, {"X": s.Z, "Y": s.Y, "d": s.d}, 1e-3 + (P**3 + 2 * m * P**2) / 1e10), settings)
    dy = np.zeros(s.Y.shape[1]) if noise.responses is None else np.square(np.asarray(noise.responses, float)) / noise.n
    info = found.info | {
        "errors_in_variables": True, "noise_ratio": seen.ratio, "noise_variance": seen.noise,
    }  # fmt: skip
    return replace(found, Sigma=without(found.Sigma, dy), shrinkage=None, info=info)
