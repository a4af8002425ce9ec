"""Draws from the posterior, whichever prior the model names."""

from typing import Any

from intarsia.server.posterior.draws import Draws
from intarsia.server.sampler.errors_in_variables import PrivacyNoise
from intarsia.server.sampler.horseshoe import sample as horseshoe
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.settings import Settings
from intarsia.server.sampler.sparse import sample as sparse
from intarsia.server.sampler.sparse.sample import SparseModel

AnyModel = Model | SparseModel


def sample(
    X: Any,
    Y: Any,
    model: AnyModel,
    settings: Settings | None = None,
    *,
    degrees: int | None = None,
    partly: bool = False,
    looked_at: int | None = None,
) -> Draws:
    """Draw given X (m, P) and Y (m, Q). `degrees`: the rows that a root of their Gram matrix stands for; `partly`: some rows lack
    responses (NaN); `looked_at`: features that were looked at, where X has those kept of them (the horseshoe counts them not).
    """
    if isinstance(model, SparseModel):
        return sparse.sample(X, Y, model, settings, degrees=degrees, partly=partly, looked_at=looked_at)
    return horseshoe.sample(X, Y, model, settings, degrees=degrees, partly=partly)


def sample_noisy(X: Any, Y: Any, noise: PrivacyNoise, model: AnyModel, settings: Settings | None = None) -> Draws:
    """The same where columns carry privacy noise."""
    if isinstance(model, SparseModel):
        return sparse.sample_noisy(X, Y, noise, model, settings)
    return horseshoe.sample_noisy(X, Y, noise, model, settings)
