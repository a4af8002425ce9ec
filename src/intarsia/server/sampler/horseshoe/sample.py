"""Draws from the posterior under the paper's prior."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.assess.diagnostics import entries
from intarsia.server.posterior.draws import Draws
from intarsia.server.sampler.errors_in_variables import PrivacyNoise, check_signal, without
from intarsia.server.sampler.horseshoe import noisy_chain as noisy
from intarsia.server.sampler.horseshoe.chain import Chain, GibbsChain, Missing
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.noisy_chain import LatentChain
from intarsia.server.sampler.horseshoe.sweep import check, prepare
from intarsia.server.sampler.run import Runner, asked_of
from intarsia.server.sampler.settings import Length, Settings, Standing, Until, check_backend
from intarsia.wire import defaults

Array = NDArray[Any]

WITNESSES = 1_000, 5_000  # entries of C that are looked at before all are: most looks end with the first
USUAL = 700  # draws per chain after which most runs have met the default target


def sample(
    X: Any,
    Y: Any,
    model: Model | None = None,
    settings: Settings | None = None,
    *,
    degrees: int | None = None,
    partly: bool = False,
) -> Draws:
    """Draw from the posterior given sketches (or raw, centred data) X (m×P) and Y (m×Q).

    `degrees` is how many rows the noise is counted over where X and Y are not those rows but a root of their Gram matrix: any
    other rows with the same products. The draws are the same as from the rows themselves.

    `partly`: some rows lack some responses (NaN in Y); they are drawn in every sweep given the rest (`missing`).
    """
    model, settings = model or Model(), settings or Settings()
    X, Y = np.ascontiguousarray(X, dtype="<f8"), np.ascontiguousarray(Y, dtype="<f8")
    check(X, np.where(np.isnan(Y), 0.0, Y) if partly else Y)
    missing = Missing(X, Y) if partly and np.isnan(Y).any() else None
    if missing is not None and model.power != 1:
        raise InputError(f"Rows that lack responses are fitted with the likelihood's power 1; {model.power} came.")
    if degrees is not None and (degrees != int(degrees) or degrees < 2):
        raise InputError(f"degrees is {degrees!r}; expected a whole number of rows, at least 2.")
    problem = prepare(model, X, Y if missing is None else missing.level, mixing=settings.mixing, degrees=degrees)
    if model.noise == "jeffreys" and X.shape[1] >= X.shape[0]:
        warnings.warn(
            f"The Jeffreys prior with P = {X.shape[1]} ≥ m = {X.shape[0]} gives an improper posterior: "
            "noise levels can drift to zero. Use noise='correlated'.",
            stacklevel=2,
        )
    filled = _filled(settings, problem.costly, 8 * X.shape[1] * Y.shape[1])
    asked = asked_of("horseshoe", asdict(model), filled, (X, Y), degrees=degrees)
    chains = [GibbsChain(problem, filled, k, missing) for k in range(filled.chains)]
    return _draws(chains, _run(chains, filled, asked), problem.rows)


def sample_noisy(X: Any, Y: Any, noise: PrivacyNoise, model: Model | None = None, settings: Settings | None = None) -> Draws:
    """Draws of C, Sigma and tau from the sketches of a differentially private study (`errors_in_variables`).

    Sigma is that of the responses without the privacy noise.
    """
    model, settings = model or Model(), settings or Settings()
    check_backend(settings.backend, "horseshoe")
    s = noisy.setting(X, Y, np.square(np.asarray(noise.features, float)) / noise.n, model)
    seen = check_signal(s.noisy.Z, s.noisy.d, noise.n)
    filled = _filled(settings, False, 8 * s.noisy.Z.shape[1] * s.Y.shape[1])
    asked = asked_of("noisy", asdict(model), filled, (s.noisy.Z, s.Y, s.noisy.d))
    chains = [LatentChain(s, filled, k) for k in range(filled.chains)]
    found = _draws(chains, _run(chains, filled, asked), float(len(s.Y)))
    dy = np.zeros(s.Y.shape[1]) if noise.responses is None else np.square(np.asarray(noise.responses, float)) / noise.n
    found.Sigma, found.shrinkage = without(found.Sigma, dy), None
    found.info |= {"errors_in_variables": True, "noise_ratio": seen.ratio, "noise_variance": seen.noise}
    return found


def _draws(chains: Sequence[Chain], run: Runner, rows: float) -> Draws:
    """What a finished run hands back."""
    C, Sigma, tau = (np.stack([getattr(chain, name)[: run.made] for chain in chains]) for name in ("C", "Sigma", "tau"))
    kappa = np.mean([chain.kappa[: run.made].mean(axis=0) for chain in chains], axis=0)
    return Draws(C, Sigma, {"tau": tau}, kappa, run.info(rows))


def _run(chains: Sequence[Chain], settings: Settings, asked: dict[str, Any]) -> Runner:
    def standing_after(draws: int) -> Standing:
        C, Sigma = (np.stack([getattr(chain, name)[:draws] for chain in chains]) for name in ("C", "Sigma"))
        assert settings.until is not None
        return standing(C, Sigma, settings.until)

    return Runner(chains, settings, asked, standing_after).run()


def _filled(settings: Settings, costly: bool, per_draw: int) -> Settings:
    """Settings with a length. `per_draw` are the bytes of one draw of C; where sweeps are `costly` the budget is no larger than
    what may be kept.
    """
    check_backend(settings.backend, "horseshoe")
    draws, warmup, thin = defaults.DRAWS, defaults.WARMUP, defaults.THIN
    if costly:
        warmup, thin = defaults.SHARED_WARMUP, defaults.SHARED_THIN
        if settings.until is not None:
            room = settings.memory // max(1, settings.chains * per_draw)
            draws = max(draws, min(defaults.SHARED_DRAWS, room))
    found = settings.filled(Length(draws, warmup, thin, USUAL))
    assert found.draws is not None
    size = found.chains * found.draws * per_draw
    if size > found.memory:
        fit = max(4, found.memory // (found.chains * per_draw))
        raise InputError(
            f"The draws of all coefficients would take {size / 1e9:,.1f} GB, memory allows {found.memory / 1e9:,.1f} GB. Ask "
            f"for {fit:,} draws or fewer, allow more memory, or use the sparse prior."
        )
    return found


def standing(C: Array, Sigma: Array, until: Until) -> Standing:
    """Where a run stands after its draws of C (chain, draw, P, Q) and Sigma; more entries are looked at where the first ones meet
    the target, in the end all.
    """
    draws = C.shape[1]
    found = Standing.of(draws, entries(np.diagonal(Sigma, axis1=2, axis2=3), workers=1)).of_parameters()
    flat = C.reshape(*C.shape[:2], -1)
    number = flat.shape[2]
    for size in sorted({min(size, number) for size in (*WITNESSES, number)}):
        some = flat if size == number else flat[:, :, np.linspace(0, number - 1, size).astype(int)]
        found = found.beside(Standing.of(draws, entries(some, workers=2)))
        if not found.meets(until):
            break
    return found
