"""Residual checks, comparison of fits, k-fold and split-half replication, on fits whose truth is known."""

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.server.assess.assessment import Assessment, assess, keep, kept
from intarsia.server.assess.criticism import compare, k_fold, objections, residuals, split_half
from intarsia.server.assess.leave_one_out import Rows, leave_one_out
from intarsia.server.posterior.draws import Draws
from intarsia.server.posterior.posterior import Names, Posterior

m, P, Q = 120, 5, 3
SIGMA = np.array([[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 1.0]])
RESPONSES = ["bmi", "crp", "age"]


def rows(seed: int = 0) -> Rows:
    """Feature 0 acts on the first two responses, nothing on the third; the first two share noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, P))
    C = np.zeros((P, Q))
    C[0, :2] = 0.8
    return Rows.of(X, X @ C + rng.standard_normal((m, Q)) @ np.linalg.cholesky(SIGMA).T)


def fit(data: Rows, Sigma: np.ndarray = SIGMA, draws: int = 300) -> Posterior:
    """The conjugate posterior with known Σ and C ~ MN(0, I, Σ)."""
    rng = np.random.default_rng(7)
    V = np.linalg.inv(data.X.T @ data.X + np.eye(P))
    noise = np.linalg.cholesky(V) @ rng.standard_normal((4, draws, P, Q)) @ np.linalg.cholesky(Sigma).T
    return Posterior.from_draws(
        Draws(V @ data.X.T @ data.Y + noise, np.tile(Sigma, (4, draws, 1, 1))),
        Names(responses=RESPONSES),
    )


def test_a_good_fit_has_only_its_unpredicted_response_to_confess():
    data = rows()
    posterior = fit(data)
    assessment = assess(posterior, data, X=data.X)
    found = residuals(posterior, data, assessment.loo)
    assert not found.independent
    assert not found.correlated
    assert not found.not_normal.any()
    np.testing.assert_allclose(found.correlation[0, 1], 0.6, atol=0.15)
    said = objections(assessment, RESPONSES, found)
    assert len(said) == 1
    assert said[0].startswith("age is not predicted beyond chance: out-of-sample R²")


def test_correlated_residuals_of_an_independent_fit_are_named_with_the_remedy():
    data = rows()
    posterior = fit(data, np.eye(Q))
    assessment = assess(posterior, data)
    found = residuals(posterior, data, assessment.loo)
    assert found.independent
    assert found.correlated
    assert found.worst_pair == (0, 1)
    said = " ".join(objections(assessment, RESPONSES, found))
    assert "The residuals of bmi and crp correlate at 0." in said
    assert 'fit again with noise = "correlated"' in said


def test_residuals_that_are_not_normal_are_told():
    data = rows()
    data.Y[:, 2] = np.random.default_rng(1).standard_t(1.5, m)
    posterior = fit(data)
    assessment = assess(posterior, data)
    found = residuals(posterior, data, assessment.loo)
    assert found.not_normal.tolist() == [False, False, True]
    assert any("residuals of age are not normal" in line for line in objections(assessment, RESPONSES, found))


def test_an_unconverged_fit_says_so_first():
    data = rows()
    posterior = fit(data)
    posterior.draws.C[0, :, 0] += 5
    assessment = assess(posterior, data)
    assert objections(assessment, RESPONSES)[0].startswith("The fit has not converged, so everything it found is provisional:")
    summary = assessment.summary(posterior.features, RESPONSES)
    assert list(summary)[:3] == ["converged", "verdict", "provisional"]
    assert summary["provisional"]


def test_of_two_fits_the_one_with_the_right_noise_predicts_better():
    data = rows()
    right, wrong = fit(data), fit(data, np.eye(Q))
    keep(right, assess(right, data))
    keep(wrong, assess(wrong, data))
    found = compare(right, wrong)
    assert found.difference > 2 * found.se
    assert found.words.startswith("The first fit predicts better: elpd differs by")
    assert compare(wrong, right).difference == pytest.approx(-found.difference)
    assert compare(right, right).words == "The two fits predict alike."
    with pytest.raises(InputError, match="only fits to the same rows"):
        compare(right, leave_one_out(fit(data.take(np.arange(50))), data.take(np.arange(50))))
    with pytest.raises(InputError, match="no leave-one-out scores"):
        compare(right, fit(data))


def test_k_fold_agrees_with_leave_one_out():
    data = rows()
    exact = k_fold(fit, data, folds=m)
    cheap = leave_one_out(fit(data, draws=2000), data)
    np.testing.assert_allclose(exact.r2, cheap.r2, atol=0.02)
    assert exact.total == pytest.approx(cheap.total, abs=1.5)
    five = k_fold(fit, data, folds=5)
    np.testing.assert_allclose(five.r2, exact.r2, atol=0.05)
    with pytest.raises(InputError, match="1 folds of 120 rows"):
        k_fold(fit, data, folds=1)


def test_what_is_there_replicates_and_what_is_not_does_not():
    data = rows()
    found = split_half(fit, data, fit(data), [np.array([0]), np.array([3]), np.array([0, 1])])
    assert found.probability.shape == (3, 2)
    assert found.replicates.tolist() == [True, False, True]
    assert found.to_dict([f"f{p}" for p in range(P)])[0]["features"] == ["f0"]
    assert split_half(fit, data, fit(data), []).probability.shape == (0, 2)


def test_an_assessment_is_kept_with_the_draws(tmp_path):
    data = rows()
    data.X[:, 1] = data.X[:, 0] + 0.05 * data.X[:, 1]
    posterior = fit(data)
    assert kept(posterior) is None
    made = keep(posterior, assess(posterior, data, X=data.X, fdr=0.1))
    back = kept(Posterior.load(posterior.save(tmp_path / "fit.nc")))
    assert isinstance(back, Assessment)
    np.testing.assert_array_equal(back.diagnosis.rhat, made.diagnosis.rhat)
    np.testing.assert_array_equal(back.diagnosis.noise.ess_bulk, made.diagnosis.noise.ess_bulk)
    assert back.diagnosis.verdict == made.diagnosis.verdict
    np.testing.assert_array_equal(back.findings.selected, made.findings.selected)
    assert [g.members.tolist() for g in back.findings.sets] == [[0, 1]]
    np.testing.assert_array_equal(back.findings.sets[0].mean, made.findings.sets[0].mean)
    np.testing.assert_array_equal(back.loo.mean, made.loo.mean)
    assert back.summary(posterior.features, RESPONSES) == made.summary(posterior.features, RESPONSES)
    keep(posterior, assess(posterior, data, X=data.X))  # a second assessment takes the first one's place
    assert kept(posterior).findings.fdr == 0.05
