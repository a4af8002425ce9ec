"""A site that lies to nobody and has no help: what it works out about another site's feature from its own results.

The owner of a response knows the response's sketch and Φ. The effects of its own columns, noise will do, are sums over what the
other sites' features make of the response; where that is one rare feature, they are sums over who has it. A site without
responses has the same from its results before and after the other site left.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intarsia.carriers import in_process
from intarsia.carriers.in_process import study_for
from intarsia.privacy.decode import Levels, decode_amp
from intarsia.privacy.facts import TOLD_MORE
from intarsia.privacy.told import most_sums, told_more
from intarsia.server.assess.convergence import NotConvergedWarning
from intarsia.server.study import fit as fitting
from intarsia.site.key import SketchKey
from intarsia.site.self_attack import real_phi
from intarsia.site.site import Site
from intarsia.site.sketch.terms import SketchTerms
from intarsia.wire.coefficients import Coefficients
from intarsia.wire.messages import Sketch

KEY = SketchKey(bytes(range(32)))
N, M, CARRIERS = 500, 100, 20
SHARE = CARRIERS / N
LEVELS = Levels(np.array([-SHARE, 1 - SHARE]) / np.sqrt(SHARE * (1 - SHARE)), np.array([1 - SHARE, SHARE]))
WEAK = 0.1  # standard deviations: an effect below is next to nothing
SHORT = {"draws": 100, "warmup": 100, "chains": 2, "thin": 1, "seed": 1}
Sums = tuple[np.ndarray, np.ndarray]
Found = tuple[int, int]  # of those who have the marker; named wrongly


def parties(effect: float, noise_at: str, columns: int = 120) -> tuple[list[Site], np.ndarray]:
    """The owner of a response, a laboratory with a marker that few people have, and a curious site; one of them brings noise, and
    of that the first column matters."""
    rng = np.random.default_rng(0)
    ids = [f"S{i}" for i in range(N)]
    marker, Z = (rng.permutation(N) < CARRIERS).astype(float), rng.standard_normal((N, columns))
    response = effect * (marker - marker.mean()) / marker.std() + np.sqrt(1 - effect**2) * rng.standard_normal(N) + 0.4 * Z[:, 0]
    noise = {f"z{j}": Z[:, j] for j in range(columns)}
    tables: dict[str, dict[str, Any]] = {
        "owner": {"response": response},
        "lab": {"marker": marker, **{f"x{j}": rng.standard_normal(N) for j in range(5)}},
        "curious": {"other": rng.standard_normal(N)},
    }
    tables[noise_at] |= noise
    sites = []
    for name, table in tables.items():
        responses = ["response"] if name == "owner" else []
        sites.append(Site(name, {"id": ids, **table}, id="id", responses=responses, key=KEY, policy={"attack_seconds": 1}))
    return sites, marker


def fitted(sites: list[Site], folder: Path | None = None, prior: str = "sparse") -> Any:
    study = study_for(sites, m=M, id="read", run=f"{0:032x}", fit=SHORT, model={"prior": prior})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        return in_process.fit(sites, study, folder=folder)


def files_of(site: Site, study: Any) -> tuple[Coefficients, Sketch, np.ndarray, np.ndarray]:
    """A site's own files after a study: its results, its sketch, Φ, and which row of its table a person is."""
    own = Sketch.load(site.run_store(study).need("sketch", ""))
    Phi = real_phi(SketchTerms.of(study, site.name, own.order_mac).design(KEY, N))
    return site.model(study).coefficients, own, Phi, site.tokens(study).rows


def kinds_of_sums(model: Coefficients, own: Sketch) -> Iterator[Sums]:
    """Columns and xⱼᵀ(y − what the other sites' features make of it), as each kind of result has it.

    The flat prior's effect is the mean + xⱼᵀ(y − X c − others)/xⱼᵀxⱼ. The sparse prior's mean is a growing function of that, and
    so is the middle of its interval; columns that matter themselves are of no use there.
    """
    squares, mean = (own.X**2).sum(axis=0), model.mean[:, 0]
    if model.unshrunk is not None:
        every, there = np.arange(len(mean)), told_in_full(model)
        yield every, (model.unshrunk[:, 0] - mean) * squares
        yield there, ((model.unshrunk[:, 0] - mean) * squares)[there]
    middle, weak = (model.lower + model.upper)[:, 0], np.flatnonzero(np.abs(mean) < WEAK)
    for shrunk in (np.sign(mean) * np.sqrt(np.abs(mean)), mean, middle, mean + model.to_predict[:, 0]):
        yield weak, shrunk[weak]


def told_in_full(model: Coefficients) -> np.ndarray:
    """Columns whose width is their own."""
    widths, which = np.unique(np.asarray(model.unshrunk_sd)[:, 0], return_inverse=True)
    return np.flatnonzero(np.bincount(which, minlength=len(widths))[which] == 1)


def read_by_the_owner(sites: list[Site], marker: np.ndarray, prior: str = "sparse") -> Found:
    """How many of those who have the marker the owner finds, and how many it takes for such who have not, by its best guess."""
    model, own, Phi, rows = files_of(sites[0], fitted(sites, prior=prior).study)
    known, found = own.X.T @ (own.Y[:, 0] - own.X @ model.mean[:, 0]), [(0, 0)]
    for at, told in kinds_of_sums(model, own):
        guesses = [known[at] - told] if len(at) else []
        guesses += [known[at] - told * t * known[at].std() / told.std() for t in np.linspace(0.6, 1.4, 5)] if told.std() else []
        found += [decoded(own.X[:, at], guess, Phi, marker[rows] > 0) for guess in guesses]
    return best(found)


def decoded(X: np.ndarray, told: np.ndarray, Phi: np.ndarray, truth: np.ndarray) -> Found:
    left, size, right = np.linalg.svd(X.T, full_matrices=False)
    strong = size > 0.1 * size[0]
    weights, sums = right[strong] @ Phi, (left.T @ told / size)[strong]
    out = []
    for effect in (0.4, 0.6, 0.8):
        found = LEVELS.nearest(decode_amp(weights, sums / effect, LEVELS)) > 0
        out.append((int((found & truth).sum()), int((found & ~truth).sum())))
    return best(out)


def best(found: list[Found]) -> Found:
    return max(found, key=lambda one: one[0] - one[1])


def in_full(monkeypatch: pytest.MonkeyPatch, **without: Any) -> None:
    """As if nobody had asked for less."""
    monkeypatch.setattr(fitting, "as_told", lambda messages, most: {k: replace(m, **without) for k, m in messages.items()})


def test_the_owner_of_a_response_reads_a_rare_feature_from_results_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    in_full(monkeypatch)
    found, wrong = read_by_the_owner(*parties(0.5, "owner"))
    assert found >= CARRIERS - 1
    assert wrong <= 1


def test_posterior_means_alone_tell_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that a site is told is a function of the same sums. The horseshoe's means are the clearer one."""
    in_full(monkeypatch, unshrunk=None, unshrunk_sd=None)
    found, wrong = read_by_the_owner(*parties(0.8, "owner"), prior="horseshoe")
    assert found >= CARRIERS - 1
    assert wrong <= 1


@pytest.mark.parametrize("effect", [0.3, 0.5])
def test_it_does_not_from_those_that_are_told(effect: float) -> None:
    found, wrong = read_by_the_owner(*parties(effect, "owner"))
    assert found - wrong <= CARRIERS // 5


def test_what_matters_is_told_in_full_and_of_the_rest_that_nothing_is_there() -> None:
    sites, _ = parties(0.5, "owner")
    study = fitted(sites).study
    most = Sketch.load(sites[1].run_store(study).need("sketch", "")).most_told
    assert most in (8, 16)
    model = sites[0].model(study).coefficients
    told = np.isin(np.arange(len(model.features)), told_in_full(model))
    assert told.sum() == most
    assert told[model.features.index("z0")]
    assert model.pip[model.features.index("z0")] > 0.5
    assert len(np.unique(model.lower[~told, 0])) == 1
    assert not np.asarray(model.unshrunk)[~told].any()
    assert (model.lower[~told] < 0).all()
    assert (model.upper[~told] > 0).all()
    laboratory = sites[1].model(study).coefficients
    assert len(told_in_full(laboratory)) == len(laboratory.features)  # nobody else has a feature so rare


def read_from_before_and_after(sites: list[Site], marker: np.ndarray, folder: Path) -> Found:
    """The curious site has no response; the laboratory leaves."""
    result, curious = fitted(sites, folder), sites[2]
    before, own, Phi, rows = files_of(curious, result.study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        result.without("lab", folder)
    after = curious.model(result.study).coefficients
    squares, found = (own.X**2).sum(axis=0), [(0, 0)]
    own_part = own.X.T @ (own.X @ (after.mean - before.mean)[:, 0])
    for (at, first), (there, second) in zip(kinds_of_sums(before, own), kinds_of_sums(after, own), strict=True):
        both = np.intersect1d(at, there)
        told = second[np.isin(there, both)] - first[np.isin(at, both)] + own_part[both]
        if len(both) and told.std():
            for size in (0.3, 0.5, 0.8):
                scaled = told * size * np.sqrt(squares.mean()) / told.std()
                found += [decoded(own.X[:, both], sign * scaled, Phi, marker[rows] > 0) for sign in (1, -1)]
            found.append(decoded(own.X[:, both], told, Phi, marker[rows] > 0))
    return best(found)


def test_a_site_without_responses_reads_no_feature_of_a_site_that_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    found, wrong = read_from_before_and_after(*parties(0.8, "curious"), tmp_path / "told")
    assert found - wrong <= CARRIERS // 5
    in_full(monkeypatch)
    found, wrong = read_from_before_and_after(*parties(0.8, "curious"), tmp_path / "whole")
    assert found - wrong >= CARRIERS - 4


def test_how_many_sums_may_be_told() -> None:
    """By state evolution, the earlier ones included; common values and numbers let everything be told."""
    rare, half = Levels(np.array([0.0, 1.0]), np.array([1 - SHARE, SHARE])), Levels(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert most_sums([], N, 0, M) is None
    assert most_sums([half], N, 0, M // 2) is None
    most = most_sums([half, rare], N, 0, M)
    assert most is not None
    assert told_more(rare, most / N) <= TOLD_MORE < told_more(rare, 2 * most / N)
    later = most_sums([rare], N, most, M)
    assert later is not None
    assert later < most
    assert most_sums([rare], N, M, M) == 0
    few = Levels(np.arange(4.0), np.array([0.94, 0.02, 0.02, 0.02]))  # small whole numbers
    mostly = Levels(np.array([0.0]), np.array([0.96]), 0.04, 3.0, 1.0)  # a number that few have
    assert (most_sums([few], N, 0, M) or M) < M
    assert (most_sums([mostly], N, 0, M) or M) < M
