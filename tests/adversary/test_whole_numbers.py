"""Sums of whole numbers with known weights, to all digits, give the numbers away, however few the sums: lattice reduction.

So what a site gets of another site's response is rounded to what it is worth. The attacker here is a site that lies to nobody;
the other site brings nothing but its response, so that no unknown effects stand between the sums and the response.
"""

import warnings

import numpy as np
import pytest
from tests.adversary.kit import told_by_results
from tests.federation import RESPONSES, frames

from intarsia.carriers.in_process import fit, study_for
from intarsia.server.assess.convergence import NotConvergedWarning
from intarsia.server.study import fit as fitting
from intarsia.server.study.release import rounded
from intarsia.site.key import SketchKey
from intarsia.site.site import Site

KEY = SketchKey(bytes(range(32)))
SHORT = {"draws": 25, "warmup": 40, "chains": 2, "thin": 1, "seed": 1}
N, M, COLUMNS = 30, 7, 9
EXACT, ROUNDED = 24, (3, 5, 8)  # bits after the point to which the attacker takes the sums: it may try what it likes


def reduced(basis: np.ndarray) -> np.ndarray:
    """Short vectors of the lattice that the rows span, by Lenstra, Lenstra and Lovász."""
    basis, k = basis.copy(), 1
    while k < len(basis):
        for _ in range(2):  # once more for what rounding left
            R = np.linalg.qr(basis[: k + 1].T, mode="r")
            for j in range(k - 1, -1, -1):
                times = np.round(R[j, k] / R[j, j])
                basis[k] -= times * basis[j]
                R[:, k] -= times * R[:, j]
        if R[k, k] ** 2 + R[k - 1, k] ** 2 >= 0.99 * R[k - 1, k - 1] ** 2:
            k += 1
        else:
            basis[[k - 1, k]] = basis[[k, k - 1]]
            k = max(k - 1, 1)
    return basis


def whole_numbers(weights: np.ndarray, sums: np.ndarray, bits: int) -> list[np.ndarray]:
    """Every column of noughts and ones that short vectors name, for weights·column = sums."""
    scaled = np.round(2**bits * np.column_stack([weights, sums]))
    n = weights.shape[1]
    basis = np.zeros((n + 1, n + 1 + len(sums)))
    basis[:, n + 1 :] = scaled.T
    basis[:n, :n], basis[n, : n + 1] = 2 * np.eye(n), 1
    short = reduced(basis)[:, : n + 1]
    named = short[(np.abs(short) == 1).all(axis=1)]
    return [(1 - row[:n] * row[n]) / 2 for row in named]


def told_to_the_snoop() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Φ, what its files tell of the sketch of the response, and the truth."""
    rng = np.random.default_rng(0)
    ids, ill = [f"S{i}" for i in range(N)], (rng.permutation(N) < N // 2).astype(float)
    noise = {f"z{j}": rng.standard_normal(N) for j in range(COLUMNS)}
    clinic = Site("clinic", {"id": ids, "ill": ill}, id="id", responses=["ill"], key=KEY, policy={"attack_seconds": 2})
    sites = [clinic, Site("snoop", {"id": ids, **noise}, id="id", key=KEY)]
    study = study_for(sites, m=M, id="snooped", run=f"{0:032x}", fit=SHORT)
    own, told, Phi = told_by_results(sites, study, KEY)
    return Phi, np.linalg.lstsq(own.T, told, rcond=None)[0], ill[clinic.tokens(study).rows]


def read(Phi: np.ndarray, sketch: np.ndarray, truth: np.ndarray, bits: int) -> bool:
    """Does it read everybody? It is given the standard deviation; one who is not tries as many as there are people."""
    found = whole_numbers(Phi, sketch * truth.std(ddof=1), bits)
    return any(np.array_equal(one, truth) or np.array_equal(1 - one, truth) for one in found)


def test_whole_numbers_are_read_from_exact_results_and_not_from_those_that_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of 30 people have the response, which nothing but its exactness gives away: 7 sums for 30 people."""
    rounded = told_to_the_snoop()
    assert not any(read(*rounded, bits) for bits in (*ROUNDED, EXACT))
    monkeypatch.setattr(fitting, "rounded", lambda values, sd: values)
    assert read(*told_to_the_snoop(), EXACT)


def test_what_sites_predict_with_and_covariates_effects_are_rounded_too() -> None:
    """The ridge is exact in the same way, and covariates' effects nearly so."""
    tables = frames(240)
    parties = [Site(name, tables[name], id="id", responses=RESPONSES[name], covariates=[f"{name}_5"], key=KEY) for name in tables]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        models = fit(parties, study_for(parties, m=48, run=f"{0:032x}", fit=SHORT)).models
    for model in models.values():
        told = model.coefficients
        for values, sd in ((told.unshrunk, told.unshrunk_sd), (told.covariate_mean, told.covariate_sd)):
            steps = np.asarray(values) / np.exp2(np.floor(np.log2(np.asarray(sd))) - 2)
            np.testing.assert_array_equal(steps, np.round(steps))
        # The step is made of all sites' coefficients, so it is known here to a few powers of two.
        added = np.asarray(told.to_predict)
        steps = added / np.exp2(np.floor(np.log2(np.sqrt(np.mean(added**2, axis=0)))) - 5)
        assert added.any()
        np.testing.assert_array_equal(steps, np.round(steps))


def test_values_are_rounded_to_a_quarter_of_their_sd_at_most() -> None:
    rng = np.random.default_rng(1)
    values, sd = rng.standard_normal((200, 3)), 10 ** rng.uniform(-3, 1, (200, 3))
    told = rounded(values, sd)
    assert (np.abs(told - values) <= sd / 8).all()
    steps = np.exp2(np.floor(np.log2(sd / 4)))
    np.testing.assert_array_equal(told % steps, 0)
    assert (np.unique(told[:, 0] / sd[:, 0]).size) > 3
    np.testing.assert_array_equal(rounded([1.23, 1.23, 1.23], [0.0, np.nan, np.inf]), [1.23, 1.23, 1.23])
