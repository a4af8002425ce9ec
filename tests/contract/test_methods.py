"""The paragraph on methods says what was done in this study, and cites what it says and nothing else."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reports import made_up

from intarsia.cli import main
from intarsia.report.evidence import convergence
from intarsia.report.gather import Beside, Material, gather
from intarsia.report.methods_paragraph import REFERENCES, methods
from intarsia.server.assess.stacking import Weighed
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import CovariateEffects, Names, Posterior
from intarsia.wire.study import Study

SITES: list[dict[str, Any]] = [
    {"name": "imaging", "features": ["*"]},
    {"name": "laboratory", "features": ["*"], "covariates": ["age"]},
    {"name": "clinic", "responses": ["*"]},
]

PAPER = {"model": {"prior": "horseshoe"}}


def study(sites: list[dict[str, Any]] = SITES, **tables: Any) -> Study:
    content = {"id": "s", "run": "ab" * 8, "sketch": {"m": 40}, "site": sites, **tables}
    return Study.from_dict(content)


def material(of: Study | None, Q: int = 3, covariates: bool = False, apart: float = 0.0) -> Material:
    posterior, joined, _C = made_up(P=20, Q=Q)
    C = posterior.C.values
    C = C + apart * np.arange(C.shape[0])[:, None, None, None]
    effects = None
    if covariates:
        rng = np.random.default_rng(0)
        effects = CovariateEffects(rng.standard_normal((*C.shape[:2], 1, Q)), ("age",), ("laboratory",))
    coords = posterior.C.coords
    posterior = Posterior.from_draws(
        Draws(C, posterior.Sigma.values, {"tau": posterior.tau.values}, None, {"warmup": 300, "thin": 5, "seed": 9}),
        Names(
            posterior.features,
            posterior.responses,
            coords["site"].values.tolist(),
            coords["response_site"].values.tolist(),
        ),
        attrs={"n": 900, "m": 40},
        effects=effects,
    )
    return gather(posterior, Beside(study=of, joined=None if covariates else joined))


def cited(text: str) -> set[str]:
    body, references = text.split("### References")
    listed = {key for key, work in REFERENCES.items() if work in references}
    assert listed == {key for key in REFERENCES if key in body}
    assert len(listed) == references.count("\n- ")
    return listed


def test_a_plain_study() -> None:
    text = methods(material(study()))
    assert "900 subjects" in text
    assert "imaging (10 features); laboratory (10 features); clinic (3 responses)" in text
    assert "secret 40 × 900 matrix with orthonormal rows" in text
    assert "m/n = 0.044" in text
    assert "300 warm-up and 1,000 further sweeps each, keeping one in 5, 800 draws in all (seed 9)" in text
    assert "had exchanged among themselves" in text
    assert "full covariance Σ" in text
    assert "false discovery rate of 0.05" in text
    assert "The chains converged: the largest" in text
    assert cited(text) == {
        "Halverson et al.", "Carvalho et al., 2010", "Huang & Wand, 2013", "Vehtari et al., 2021", "Müller et al., 2007",
        "Vehtari et al., 2017",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tables", "words", "works"),
    [
        ({"fit": {"noise": "independent"}}, "independent between responses, with a half-Cauchy prior", set()),
        ({**PAPER, "fit": {"noise": "jeffreys"}}, "p(σ²) ∝ 1/σ²", set()),
        ({**PAPER, "fit": {"law": "laplace"}}, "Laplace (Bayesian lasso) priors", {"Park & Casella, 2008"}),
        ({**PAPER, "fit": {"law": "student"}}, "Student t priors with 4 degrees", set()),
        ({**PAPER, "fit": {"local": "element"}}, "a local scale for each entry of B", set()),
        ({"fit": {"rank": 2}}, "with 2 components", set()),
        ({"fit": {"expected_features": 5}}, "so that 5 features are expected to matter", {"Piironen & Vehtari, 2017"}),
        ({"fit": {"power": 0.9}}, "to the power 0.9", {"Bhattacharya et al., 2019"}),
        ({"alignment": {"mode": "intersect"}}, "subjects common to all institutions, found by keyed tokens", set()),
        ({"alignment": {"mode": "union"}, "sites": [SITES[0], SITES[2]]}, "subjects who lacked responses were kept", set()),
        ({"replaces": "ab" * 32}, "replaces an earlier one of the same study.", set()),
        ({"replaces": "ab" * 32, "reason": "correction"}, "of the same study, because values had been corrected.", set()),
        ({"deliver": {"interval": 0.9}}, "equal-tailed 90% credible intervals", set()),
        ({"sketch": {"m": 40, "kind": "gaussian"}}, "independent normal entries of variance 1/n", set()),
        (
            {"sites": [*SITES[:2], {**SITES[2], "responses": ["sick"], "kinds": {"sick": {"kind": "binary"}}}]},
            "what they became: sick (yes or no; its effects are told as odds ratio).",
            set(),
        ),
        (
            {"alignment": {"mode": "union"}, "sites": [SITES[0], SITES[2]]},
            "multiplied by a secret matrix with orthonormal rows orthogonal to the constant vector for each group of subjects",
            set(),
        ),
        (
            {"alignment": {"mode": "union"}, "sites": [SITES[0], SITES[2]]},
            "responses that a group of subjects lacked were drawn in every sweep",
            set(),
        ),
        (
            {"sites": [*SITES[:1], {**SITES[1], "transform": "rank-normal"}, SITES[2]]},
            "features of laboratory were replaced",
            set(),
        ),
    ],
)
def test_what_a_study_file_changes_the_text_says(tables: dict[str, Any], words: str, works: set[str]) -> None:
    plain, text = methods(material(study())), methods(material(study(**tables)))
    assert words not in plain
    assert words in text
    assert works <= cited(text)


def test_a_site_that_left_is_named() -> None:
    made = material(study([*SITES, {"name": "registry", "responses": ["*"]}]))
    made.left = ("registry",)
    text = methods(made)
    assert "registry had taken part and left after sending" in text
    assert "3 institutions" in text


def test_keys_that_are_pinned_are_agreed() -> None:
    pinned = [
        site | {name: base64.b64encode(bytes([i, k]) * 16).decode() for k, name in enumerate(("exchange_key", "signing_key"))}
        for i, site in enumerate(SITES)
    ]
    assert "agreed on by a signed key exchange" in methods(material(study(pinned)))


def test_a_private_study_states_its_guarantee() -> None:
    sites = [{key: value for key, value in site.items() if key != "covariates"} for site in SITES]
    privacy = {"epsilon": 3.0, "delta": 1e-6, "row_bound": {site["name"]: 4.0 for site in sites}}
    text = methods(material(study(sites, sketch={"m": 40, "kind": "gaussian"}, privacy=privacy)))
    assert "ε = 3 and δ = 1e-06" in text
    assert "by constants fixed in advance" in text
    assert "Canonne et al., 2020" in cited(text)


def test_covariates_and_one_response() -> None:
    text = methods(material(study(), Q=1, covariates=True))
    assert "laboratory (10 features, 1 covariate)" in text
    assert "Y = X B Aᵀ + Z Γ + E" in text
    assert "(age) were adjusted for" in text
    assert "half-Cauchy prior on its standard deviation." in text
    assert "Σ" not in text


def test_a_fit_that_has_not_converged_is_not_called_converged() -> None:
    text = methods(material(study(), apart=1.0))
    assert "**The chains had not converged" in text
    assert "The chains converged" not in text


def test_missing_values_are_said_where_the_sites_cards_are_at_hand() -> None:
    found = material(study())
    assert "[How missing values were handled" in methods(found)
    one, *others = ({"site": f"site {name}", "imputed": {}} for name in found.sites)
    text = methods(replace(found, card={"sites": [one | {"imputed": {"a": 3, "b": 2}}, *others]}))
    assert "5 missing values in 2 columns were filled in at the institutions." in text
    assert "say it here" not in text
    assert "There were no missing values." in methods(replace(found, card={"sites": [one, *others]}))
    part = methods(replace(found, card={"sites": others}))
    assert "At clinic and laboratory there were no missing values. [How imaging handled missing values" in part


def test_data_in_one_place_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = material(None)
    found.posterior.save(tmp_path / "posterior.nc")
    assert main(["report", str(tmp_path / "posterior.nc"), "--methods"]) == 0
    text = capsys.readouterr().out
    assert "institution" not in text.split("### References")[0]
    assert "We regressed 3 responses on 20 features, in 900 subjects." in text
    assert main(["report", str(tmp_path / "posterior.nc"), "--methods", str(tmp_path / "methods.md")]) == 0
    assert (tmp_path / "methods.md").read_text(encoding="utf-8").strip() == text.strip()
    assert not (tmp_path / "report.html").exists()


def test_the_text_says_by_which_refits_rows_were_predicted_and_findings_looked_for_again() -> None:
    found = material(study())
    assert "leave-one-out" in methods(found)
    zeros = np.zeros(found.Q)
    weighed = Weighed(np.zeros((found.P, found.Q)), np.zeros((0, found.Q)), zeros, zeros, zeros, zeros, zeros + 40, 0.7)
    found.assessment = replace(found.assessment, weighed=weighed)
    found.refits = {
        "k_fold": {"folds": 4, "r2": [0.5] * found.Q},
        "replication": [{"features": ["f1"], "probability": [1.0, 1.0], "replicates": True},
                        {"features": ["f2"], "probability": [1.0, 0.4], "replicates": False}],
    }  # fmt: skip
    text = methods(found)
    assert "left out a fifth of the rows in turn. Predictions weigh the sparse fit (0.70) with a ridge (0.30)" in text
    assert "leave-one-out" not in text
    assert "a second time by 4-fold cross-validation" in text
    assert "1 of 2 findings had the same sign" in text
    assert "Vehtari et al., 2017" not in cited(text)


def test_effective_samples_are_whole_ones_as_in_the_verdict() -> None:
    found = material(study())
    d = found.diagnosis
    low = np.full_like(d.ess_bulk, 626.7)  # rounding would tell 627
    found.assessment = replace(found.assessment, diagnosis=replace(d, ess_bulk=low, ess_tail=low, noise=None))
    assert "at least 626 effective samples" in str(found.diagnosis.verdict)
    assert "smallest effective sample size 626 (" in methods(found)
    assert "<td>626</td>" in convergence(found)
    assert "627" not in convergence(found)
