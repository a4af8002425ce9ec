"""A site that lies to nobody and has no help: what it works out about another site's response from its own results.

It knows Φ, as every site does, and gets the effects of its own columns on every response. Each is a sum over the response with
weights that it knows. So the gate refuses responses of few values where these sums are too many; this is the attack.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adversary.kit import told_by_results
from tests.federation import fixed_identity, frames, gram_sites, gram_study

from intarsia.carriers.in_process import fit, study_for
from intarsia.errors import PrivacyError
from intarsia.privacy.decode import Levels, decode_amp
from intarsia.privacy.ledger import Ledger
from intarsia.server.assess.convergence import NotConvergedWarning
from intarsia.site.key import SketchKey
from intarsia.site.preflight import SiteRules, preflight
from intarsia.site.site import Site
from intarsia.wire.study import Study

KEY = SketchKey(bytes(range(32)))
N, M, CARRIERS = 500, 100, 20
SHARE = CARRIERS / N  # whoever does not know it tries some
LEVELS = Levels(np.array([-SHARE, 1 - SHARE]) / np.sqrt(SHARE * (1 - SHARE) * N / (N - 1)), np.array([1 - SHARE, SHARE]))
REFUSED = "readable-response: each other site gets the effects"
IDENTITIES = {name: fixed_identity(name) for name in ("clinic", "snoop")}
ROSTER = [
    {"name": name, "exchange_key": one.exchange_key, "signing_key": one.signing_key, "features": [f"{letter}*"], **more}
    for (name, one), letter, more in zip(IDENTITIES.items(), "xz", ({"responses": ["ill"]}, {}), strict=True)
]
EXCEPTION = [{"rule": "readable-response", "reason": "a test of what then happens"}]


def parties(columns: int, override: Any = ()) -> tuple[list[Site], np.ndarray]:
    rng = np.random.default_rng(0)
    ids = [f"S{i}" for i in range(N)]
    X, Z = rng.standard_normal((N, 5)), rng.standard_normal((N, columns))
    ill = (np.argsort(np.argsort(-X[:, 0] - 2 * rng.standard_normal(N))) < CARRIERS).astype(float)
    tables = {
        "clinic": {"id": ids, "ill": ill, **{f"x{j}": X[:, j] for j in range(5)}},
        "snoop": {"id": ids, **{f"z{j}": Z[:, j] for j in range(columns)}},
    }
    policy = {"override": list(override), "attack_seconds": 2}
    clinic = Site("clinic", tables["clinic"], id="id", responses=["ill"], key=KEY, policy=policy)
    return [clinic, Site("snoop", tables["snoop"], id="id", key=KEY)], ill


def read_by_the_snoop(sites: list[Site], ill: np.ndarray, run: int = 0) -> tuple[int, int]:
    """How many of those who are ill it finds, and how many it takes for ill who are not."""
    weights, told, order = sums_of_the_snoop(sites, run)
    return decoded(weights, told, ill[order] > 0)


def sums_of_the_snoop(sites: list[Site], run: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From its own files alone: sums over the response, their weights (sum, person), and which row of the table a person is."""
    short = {"draws": 25, "warmup": 40, "chains": 2, "thin": 1, "seed": 1}
    study = study_for(sites, m=M, id="snooped", run=f"{run:032x}", fit=short)
    own, told, Phi = told_by_results(sites, study, KEY)
    # As sums that do not repeat each other; of the weakest nothing is left, for results are rounded.
    left, size, right = np.linalg.svd(own.T, full_matrices=False)
    strong = size > 0.1 * size[0]
    return right[strong] @ Phi, (left.T @ told / size)[strong], sites[0].tokens(study).rows


def test_what_a_site_learns_in_several_runs_adds_up(tmp_path: Path) -> None:
    """Twice 20 effects are as good as 40. Those of an earlier run count as many as they were, not as many as it had rows."""
    sites, _ = parties(20)
    clinic = sites[0]
    clinic.folder = tmp_path
    first = study_for(sites, m=60, id="snooped", run=f"{0:032x}")
    assert clinic.sketch(first)
    with pytest.raises(PrivacyError, match=f"{REFUSED}.* 40 sums over its values"):
        clinic.sketch(first.again(f"{1:032x}"))


def test_what_a_site_learns_in_gram_studies_adds_up(tmp_path: Path) -> None:
    """The same people and values again tell the server nothing, but a site may bring other columns, and another Φ's sums add to
    them."""
    (clinic, _), _ = parties(20)
    ledger, told = Ledger(tmp_path), []
    for run, kind in enumerate(["gram", "gram", "orthonormal"]):
        sketch = {"kind": kind} | ({"m": 10} if kind != "gram" else {"holders": ["clinic", "snoop", "server"]})
        study = Study.from_dict({"id": "snooped", "run": f"{run:032x}", "sketch": sketch, "site": ROSTER})
        own = SiteRules({"attack_seconds": 2}, ledger, {"snoop": 20})
        check = preflight(clinic.table(), KEY, study, site="clinic", order=np.arange(N), own=own)
        told.append((check.facts.told, "readable-response" in {finding.rule for finding in check.verdict.refused}))
        entry = check.reserve()
        assert entry is not None
        ledger.release(entry, b"what left")
    assert told == [(20, False), (40, True), (50, True)]
    # Entries of versions that did not note the number count as the most it can have been.
    old = [replace(entry, note="") for entry in ledger.entries()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "entries", lambda: old)
        assert ledger.told(ledger.tokens([f"S{i}" for i in range(N)])) == 2 * (N // 3) + 10


def decoded(weights: np.ndarray, sums: np.ndarray, truth: np.ndarray) -> tuple[int, int]:
    """Who is ill, from sums over the standardised response with known weights (sum, person)."""
    found = LEVELS.nearest(decode_amp(weights, sums, LEVELS)) > 0
    return int((found & truth).sum()), int((found & ~truth).sum())


def test_a_site_reads_a_rare_response_from_its_own_results_and_the_gate_refuses_it() -> None:
    with pytest.raises(PrivacyError, match=REFUSED):
        read_by_the_snoop(*parties(110))
    found, wrong = read_by_the_snoop(*parties(110, EXCEPTION))
    assert found >= CARRIERS - 1
    assert wrong <= 1


def test_a_site_with_few_columns_gets_few_equations() -> None:
    """Nothing is refused then, and next to nothing is found: by theory 2 of 100 who are ill."""
    found, wrong = np.sum([read_by_the_snoop(*parties(25), run) for run in range(4)], axis=0)
    assert found <= 4 * CARRIERS // 20
    assert wrong <= 4 * CARRIERS // 20


def test_a_site_with_a_few_more_columns_finds_some_and_the_gate_refuses_it() -> None:
    """By theory 11 of 100 who are ill, and more of those it names are ill than not; by chance it would be 4 of 100 it names."""
    with pytest.raises(PrivacyError, match=f"{REFUSED}.* 40 sums over its values"):
        read_by_the_snoop(*parties(40))
    found, wrong = np.sum([read_by_the_snoop(*parties(40, EXCEPTION), run) for run in range(4)], axis=0)
    assert found >= 4 * CARRIERS // 20
    assert found > wrong


def test_in_a_gram_study_a_site_with_many_columns_reads_a_rare_response_and_the_gate_refuses_it() -> None:
    """No Φ is needed: its own columns are the weights of the sums that its effects are."""
    short = {"draws": 25, "warmup": 40, "chains": 2, "thin": 1, "seed": 1, "until": "draws"}
    sketch = {"kind": "gram", "holders": ["clinic", "snoop", "server"]}
    study = Study.from_dict({"id": "snooped", "run": "ab" * 16, "sketch": sketch, "fit": short, "site": ROSTER})

    def run(override: Any = ()) -> tuple[int, int]:
        sites, ill = parties(140, override)
        for site in sites:
            site._key, site.identity = None, IDENTITIES[site.name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotConvergedWarning)
            fit(sites, study)
        model = sites[1].model(study).coefficients
        rows = sites[1].table().blocks(order=sites[1].tokens(study).rows)
        Z = np.concatenate([X for X, _, _ in rows])
        Z = (Z - Z.mean(axis=0)) / Z.std(axis=0, ddof=1)
        mean, flat = model.mean[:, 0], np.asarray(model.unshrunk)[:, 0]
        told = (flat - mean) * (N - 1) + Z.T @ (Z @ mean)
        return decoded(Z.T, told, ill[sites[0].tokens(study).rows] > 0)

    with pytest.raises(PrivacyError, match=REFUSED):
        run()
    found, wrong = run(EXCEPTION)
    assert found >= CARRIERS - 2
    assert wrong <= 2


def test_in_a_gram_study_columns_that_mark_single_people_tell_their_responses() -> None:
    """It has the same cause and no remedy but to know with whom one computes: docs/gram.md and the card say so."""
    tables, marked = frames(240), 3
    whom = list(tables["lab"]["id"][:marked])
    for k, person in enumerate(whom):
        tables["lab"][f"lab_mark{k}"] = (tables["lab"]["id"] == person).astype(float)
    sites = gram_sites(tables)
    sites[2].policy = {"override": [{"rule": rule, "reason": "the liar's own machine"} for rule in ("rare-level", "dominant")]}
    study = gram_study(sites)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotConvergedWarning)
        result = fit(sites, study)
    model = result.models["lab"].coefficients
    at, q = [model.features.index(f"lab_mark{k}") for k in range(marked)], model.responses.index("alt")
    # x·r / x·x of a column that marks one person is that person's residual, in known units.
    told = (np.asarray(model.unshrunk)[at, q] - model.mean[at, q]) * 239 / np.sqrt(240)
    whole = tables["clinic"].merge(tables["mri"], on="id").merge(tables["lab"], on="id").set_index("id")
    X = whole[list(result.posterior.features)]
    Z = (X - X.mean()) / X.std()
    y = (whole["alt"] - whole["alt"].mean()) / whole["alt"].std()
    truth = (y - Z.to_numpy() @ result.posterior.mean().sel(response="alt").to_numpy()).loc[whom]
    np.testing.assert_allclose(told, truth, atol=0.02)
