"""Draws from the posterior under the sparse prior: what is asked is checked, chains are run, their draws put together."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.server.assess.diagnostics import entries
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.sparse import LEAST_PIP, Inclusion, SparseEffects
from intarsia.server.sampler.errors_in_variables import NoisyFeatures, PrivacyNoise, check_signal, without
from intarsia.server.sampler.run import Chain, Runner, asked_of
from intarsia.server.sampler.settings import ACCELERATORS, Length, Settings, Standing, check_backend
from intarsia.server.sampler.sparse.chain import Made, Packed, SparseChain, packed
from intarsia.server.sampler.sparse.problem import Prior, Scales, prepare
from intarsia.server.sampler.sparse.rows import MissingChain, NoisyChain, noisy_problem

Array = NDArray[np.float64]

LENGTH = Length(draws=4_000, warmup=100, thin=1, usual=500)
NOISES = ("correlated", "independent")
EXPECTED = 3.0  # features that the prior expects unless told otherwise
MANY = 10.0  # features for each that is expected: among fewer, a background would take the effects that are to be named
ABSENT = 0.95  # posterior probability of no background from which on it does not matter
SELDOM = 0.05  # below it a fit without background is made apart
APART_CHAINS, APART_DRAWS = 2, 400


@dataclass(frozen=True)
class SparseModel:
    """The choices of a fit.

    rank    of the slab, the covariance of effects: ΛΛᵀ + ψI with so many columns; None: a full covariance.
    noise   `correlated`: a full covariance Sigma of the responses' noise; `independent`: a variance each.
    power   of the likelihood: below 1 it is a fractional posterior (paper, §5).
    expected_features   how many features the prior expects to matter.
    background   is there a dense background of many small effects beside the sparse ones? It takes many features (`many`).
    compare      where the background matters, is there to be a fit without it to compare with?
    """

    rank: int | None = None
    noise: str = "correlated"
    power: float = 1.0
    expected_features: float = EXPECTED
    background: bool = True
    compare: bool = True

    REFIT: ClassVar[Length] = Length(draws=60, warmup=60, thin=2, usual=60)  # of a fit that only weighs predictions

    def __post_init__(self) -> None:
        if self.noise not in NOISES:
            raise InputError(f"Noise prior {self.noise!r} not known to the sparse prior; expected one of {', '.join(NOISES)}.")
        if not 0 < self.power <= 1:
            raise InputError(f"The likelihood's power is {self.power!r}; expected 0 < power <= 1 (1: the ordinary posterior).")
        if not 0 < self.expected_features < float("inf"):
            raise InputError(f"expected_features is {self.expected_features!r}; expected a positive number.")

    def many(self, features: int) -> bool:
        """Are there so many features that a background of many small effects can be told from those to be named?"""
        return features >= MANY * self.expected_features

    def for_refit(self) -> "SparseModel":
        """The same for a fit of which only the predictions count."""
        return replace(self, compare=False)

    def rank_of(self, responses: int) -> int:
        """Columns of Λ for so many responses; 0: no limit."""
        if self.rank is not None and not 1 <= self.rank <= responses:
            raise InputError(f"Rank {self.rank} does not fit {responses} response(s); expected 1 ≤ rank ≤ {responses}.")
        return 0 if self.rank is None or self.rank >= responses else self.rank


def sample(
    X: Any,
    Y: Any,
    model: SparseModel | None = None,
    settings: Settings | None = None,
    *,
    degrees: int | None = None,
    partly: bool = False,
    looked_at: int | None = None,
) -> Draws:
    """Draw from the posterior given sketches (or raw, centred data) X (m×P) and Y (m×Q).

    `degrees` is how many rows the noise is counted over where X and Y are a root of the rows' Gram matrix. `partly`: some rows
    lack some responses (NaN in Y). `looked_at` is how many features were looked at where X has those that were kept of them: the
    prior counts them all, and there is no background.
    """
    model, settings = model or SparseModel(), (settings or Settings()).filled(LENGTH)
    X, Y = np.ascontiguousarray(X, dtype="<f8"), np.ascontiguousarray(Y, dtype="<f8")
    absent = np.isnan(Y)
    partly = partly and bool(absent.any())
    check(X, np.where(absent, 0.0, Y) if partly else Y)
    if degrees is not None and (degrees != int(degrees) or degrees < 2):
        raise InputError(f"degrees is {degrees!r}; expected a whole number of rows, at least 2.")
    if looked_at is not None and looked_at < X.shape[1]:
        raise InputError(f"looked_at is {looked_at}, fewer than the {X.shape[1]} features that came.")
    check_backend(settings.backend)
    if partly and settings.backend in ACCELERATORS:
        raise InputError("Rows that lack responses are fitted on the CPU. Leave the backend at numpy.")
    if partly and model.power != 1:
        raise InputError(f"Rows that lack responses are fitted with the likelihood's power 1; {model.power} came.")
    rank, prior = model.rank_of(Y.shape[1]), _prior(model, looked_at)
    # Those kept of many were chosen for what they show: a background on them alone is dense, and would take every effect.
    kept = looked_at is not None and looked_at > X.shape[1]
    background = model.background and model.many(X.shape[1]) and not kept
    asked = asked_of("sparse", asdict(model), settings, (X, Y), degrees=degrees, looked_at=looked_at)
    how: dict[str, Any] = {"thin": settings.thin, "rank": rank}
    numbers = range(settings.chains)
    size = settings.seed, int(settings.warmup or 0)
    chains: Sequence[Any]
    if partly:
        level = np.where(absent, np.sqrt(np.nanmean(np.square(Y), axis=0)), Y)  # as large as what is there
        made, scales = prepare(X, level, prior, rows=degrees, background=background, every_row=True)
        chains = [MissingChain(made, scales, Y / scales.y, k, *size, **how) for k in numbers]
    else:
        made, scales = prepare(X, Y, prior, rows=degrees, background=background)
        if settings.backend in ACCELERATORS:
            from intarsia.server.sampler.sparse.card_run import CardRun

            chains = [CardRun(made, settings.chains, *size, **how)]
        else:
            chains = [SparseChain(made, k, *size, **how) for k in numbers]
    run = _run(chains, settings, asked)
    found = _together(chains, run, scales)
    found.info["background"] = background
    if background and model.compare:
        found.inclusion = _without(found, chains, run.made, lambda s: sample(
            X, Y, replace(model, background=False), s, degrees=degrees, partly=partly, looked_at=looked_at
        ), settings)  # fmt: skip
    return found


def sample_noisy(
    X: Any, Y: Any, noise: PrivacyNoise, model: SparseModel | None = None, settings: Settings | None = None
) -> Draws:
    """Draws from the sketches of a differentially private study, whose columns carry noise of known size; without background.

    Sigma is that of the responses without the privacy noise.
    """
    model, settings = model or SparseModel(), (settings or Settings()).filled(LENGTH)
    if settings.backend in ACCELERATORS:
        raise InputError("Sketches with privacy noise are fitted on the CPU. Leave the backend at numpy.")
    Y = np.ascontiguousarray(Y, dtype="<f8")
    noisy = NoisyFeatures.of(X, np.square(np.asarray(noise.features, float)) / noise.n, Y, model.power)
    seen = check_signal(noisy.Z, noisy.d, noise.n)
    rank = model.rank_of(Y.shape[1])
    asked = asked_of("sparse noisy", asdict(model), settings, (noisy.Z, Y, noisy.d))
    scales = Scales(np.sqrt(np.diagonal(noisy.T)), np.sqrt(np.square(Y).mean(axis=0)))
    unit = NoisyFeatures(noisy.Z / scales.x, noisy.d / scales.x**2, noisy.T / np.outer(scales.x, scales.x))
    made = noisy_problem(unit, Y / scales.y, _prior(model))
    numbers, how = range(settings.chains), {"thin": settings.thin, "rank": rank}
    chains = [NoisyChain(unit, made, Y / scales.y, k, settings.seed, settings.warmup or 0, **how) for k in numbers]
    run = _run(chains, settings, asked)
    found = _together(chains, run, scales)
    dy = np.zeros(Y.shape[1]) if noise.responses is None else np.square(np.asarray(noise.responses, float)) / noise.n
    found.Sigma = without(found.Sigma, dy)
    found.info |= {"errors_in_variables": True, "noise_ratio": seen.ratio, "noise_variance": seen.noise}
    return found


def check(X: Array, Y: Array) -> None:
    """Refuse what no chain could be run on."""
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or not X.size or not Y.size:
        raise InputError(f"Shapes do not fit: X {X.shape}, Y {Y.shape}; expected (m, P) and (m, Q) with the same m ≥ 1.")
    if len(X) < 2:
        raise InputError("One row came; at least two are needed.")
    if not (np.isfinite(X).all() and np.isfinite(Y).all()):
        raise InputError("The sketches hold values that are not finite.")
    empty = np.flatnonzero((Y == 0).all(axis=0))
    if empty.size:
        raise InputError(f"Response number {empty[0] + 1} is zero throughout. Leave it out.")


def _prior(model: SparseModel, looked_at: int | None = None) -> Prior:
    return Prior(looked_at, model.expected_features, model.power, model.noise == "independent")


def _run(chains: Sequence[Any], settings: Settings, asked: dict[str, Any]) -> Runner:
    def standing(draws: int) -> Standing:
        made = _made(chains)
        return standing_of(_first(made, draws), len(made), chains[0].problem.X.shape[0])

    steppers: Sequence[Chain] = chains
    return Runner(steppers, settings, asked, standing).run()


def _made(chains: Sequence[Any]) -> list[Made]:
    """What all chains made, whether each has a stepper of its own or one makes all."""
    return [one for chain in chains for one in chain.made()]


def _first(made: Sequence[Made], draws: int) -> Packed:
    """The first so many draws of every chain, one chain after the other."""
    return packed([draw for chain in made for draw in chain.draws[:draws]])


def standing_of(made: Packed, chains: int, P: int) -> Standing:
    """How far draws are from the target: the mean effect given the rest, of features that come into play, and the parameters.

    Of noise variances, number of features, background and slab less is asked (`Standing.of_parameters`).
    """
    n, Q = len(made.Sigma) // chains, made.expected.shape[1]
    chain = np.repeat(np.arange(chains * n) // n, np.diff(made.listed_offsets))
    pip = np.bincount(chain * P + made.listed, weights=made.probability, minlength=chains * P).reshape(chains, P) / n
    at = np.flatnonzero(pip.mean(axis=0) > LEAST_PIP)
    traces = SparseEffects((chains, n, P, Q), made.listed_offsets, made.listed.astype(np.int64), made.expected.astype(np.float64))
    values = np.column_stack([
        np.log(np.diagonal(made.Sigma, axis1=1, axis2=2)), made.scalars[:, [0, 2]], np.log(np.trace(made.V, axis1=1, axis2=2)),
    ]).reshape(chains, n, -1)  # fmt: skip
    found = Standing.of(n, entries(values, workers=1)).of_parameters()
    if not at.size:
        return found
    return found.beside(Standing.of(n, entries(traces.dense(at).reshape(chains, n, -1), workers=2)))


def _together(chains: Sequence[Any], run: Runner, scales: Scales) -> Draws:
    """The draws of all chains, in the units of the X and Y that came."""
    each, problem = _made(chains), chains[0].problem
    n, number = min(len(one.draws) for one in each), len(each)
    P, Q = problem.X.shape[0], problem.Y.shape[1]
    made = _first(each, n)
    factor = scales.y / scales.x[:, None]

    def by_chain(values: Array) -> Array:
        return np.asarray(values, dtype=np.float64).reshape(number, n, *values.shape[1:])

    C = SparseEffects((number, n, P, Q), made.offsets, made.features, made.effects * factor[made.features])
    listed = made.listed.astype(np.int64)
    pip = np.stack([one.pip / len(one.draws) for one in each])
    inclusion = Inclusion(
        pip, made.listed_offsets, listed, made.probability.astype(np.float64), made.expected * factor[listed],
        acting=made.acting.astype(np.float64),
    )  # fmt: skip
    pull = np.sum([one.pull for one in each], axis=0) / sum(len(one.draws) for one in each)
    background = problem.X @ pull.astype(np.float32) / P * factor if pull.any() else None
    scalars = by_chain(made.scalars)
    parameters = {
        "included": scalars[..., 0], "prior_inclusion": scalars[..., 1], "background_ratio": scalars[..., 2],
        "slab": by_chain(made.V * np.outer(scales.y, scales.y)), "rho": by_chain(made.rho),
    }  # fmt: skip
    info = run.info(problem.rows / problem.power) | {"looked_at": int(problem.looked_at)}
    Sigma = by_chain(made.Sigma * np.outer(scales.y, scales.y))
    return Draws(C, Sigma, parameters, None, info, inclusion, background)


def _without(
    found: Draws, chains: Sequence[Any], made: int, again: Callable[[Settings], Draws], settings: Settings
) -> Inclusion | None:
    """What is known of inclusion, with the probabilities without a background: from the draws that have none, or a fit apart."""
    each, inclusion = _made(chains), found.inclusion
    none = sum(one.number_without for one in each)
    assert inclusion is not None
    share = none / sum(len(one.draws) for one in each)
    found.info["background_absent"] = float(share)
    if share >= ABSENT:
        return inclusion
    if share >= SELDOM:
        pip = np.sum([one.pip_without for one in each], axis=0) / none
    else:
        short = Settings(draws=min(APART_DRAWS, made), warmup=settings.warmup, chains=APART_CHAINS, seed=settings.seed + 1)
        apart = again(short).inclusion
        assert apart is not None
        pip = apart.mean()
    return replace(inclusion, pip_without=pip)
