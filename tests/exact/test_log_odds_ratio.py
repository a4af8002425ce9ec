"""From a linear coefficient to the log odds ratio: exact for normal features, whatever the effects; close for skewed ones."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit

from intarsia.errors import InputError
from intarsia.site.own_language import Response
from intarsia.site.probabilities import auc, brier, centred
from intarsia.wire.kinds import Back
from intarsia.wire.log_odds import expected_scores, log_odds_ratio, mean_slope, normal_draws


def linear(share: float, beta: float, sd: float) -> tuple[float, float, float]:
    """C, s_y and σ² of the linear model, of a normal feature with log odds ratio beta among log odds of standard deviation sd."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(121)
    p = expit(centred(share, sd) + sd * nodes)
    slope = float(p * (1 - p) @ weights / weights.sum())
    s_y = float(np.sqrt(share * (1 - share)))
    return beta * slope / s_y, s_y, 1 - (sd * slope / s_y) ** 2


@pytest.mark.parametrize("share", [0.5, 0.2, 0.07, 0.93])
@pytest.mark.parametrize("sd", [0.2, 1.0, 2.3])
def test_normal_features_are_exact(share: float, sd: float) -> None:
    beta = 0.6 * sd
    C, s_y, sigma2 = linear(share, beta, sd)
    assert log_odds_ratio(C, s_y, sigma2) == pytest.approx(beta, rel=0.002)
    assert log_odds_ratio(C, s_y, sigma2, skewness=0.0, share=share) == pytest.approx(beta, rel=0.002)


@pytest.mark.parametrize(("share", "within"), [(0.07, 0.1), (0.5, 0.05), (0.93, 0.1)])
def test_skewness_is_made_up_for(share: float, within: float) -> None:
    rng = np.random.default_rng(1)
    n, beta = 400_000, np.array([0.7, -0.7, 0.4])
    X = (rng.gamma(4.0, size=(n, 3)) - 4) / 2  # skewness 1
    rest = rng.normal(0, 1.0, n)
    eta = X @ beta + rest
    constant = centred(share, float(eta.std()))
    p = expit(constant + eta)
    y = p  # in place of yes and no, whose noise would need many more subjects
    s_y = float(np.sqrt(y.mean() * (1 - y.mean())))
    design = np.column_stack([X, rest])
    C = np.linalg.lstsq(design, (y - y.mean()) / s_y, rcond=None)[0]
    explained = float(np.var(design @ C))
    told = log_odds_ratio(C[:3], s_y, 1 - explained, skewness=1.0, share=float(y.mean()))
    plain = log_odds_ratio(C[:3], s_y, 1 - explained)
    assert np.abs(told / beta - 1).max() < within
    if share != 0.5:
        assert np.abs(plain / beta - 1).max() > 2 * within


def test_what_cannot_be() -> None:
    assert np.isfinite(log_odds_ratio([5.0, -5.0], 0.255, 0.1, skewness=3.0, share=0.07)).all()
    assert mean_slope(0.3, 1.2) == pytest.approx(0.09, rel=1e-6)  # more noise than variance: nothing is explained
    with pytest.raises(InputError, match="above 0"):
        mean_slope(0.0, 0.9)


def test_normal_draws_are_normal_and_unrelated_to_an_order() -> None:
    draws = normal_draws(np.array([1.0, -2.0]), np.array([0.5, 2.0]), 800)
    np.testing.assert_allclose(draws.mean(axis=0), [1.0, -2.0], atol=0.01)
    np.testing.assert_allclose(draws.std(axis=0), [0.5, 2.0], rtol=0.01)
    assert abs(np.corrcoef(draws[:, 0], np.arange(800))[0, 1]) < 0.01


def response(mean: float, s_y: float = 0.25) -> Response:
    return Response(mean, s_y, Back("binary"), 0.9)


def test_cautions_stand_where_the_log_odds_are_rough() -> None:
    share = 0.067  # s_y = .25
    assert response(share).caution(0.5, 0.0) is None
    assert response(share).caution(0.5, 1.0) is None  # made up for
    assert "normal scores" in str(response(share).caution(0.8, 1.0))
    assert "normal scores" in str(response(0.5, 0.5).caution(0.7, 2.0))
    assert "too large or too small" in str(response(float("nan")).caution(0.5, 1.0))
    assert "odds ratio of 5" in str(response(0.5, 0.5).caution(1.7, 0.0))
    assert Response(1.0, 2.0, Back("continuous"), 0.9).caution(9.0, 9.0) is None
    # Of a whole response: a very rare answer, and features that tell the answers almost apart.
    assert "very rare" in str(response(0.008, 0.0891).caution(0.2, 0.0))
    assert Response(0.012, 0.1089, Back("binary"), 0.97).caution(0.2, 0.0) is None
    assert "almost apart" in str(Response(0.5, 0.5, Back("binary"), 0.3).caution(0.2, 0.0))
    assert Response(0.5, 0.5, Back("binary"), 0.6).caution(0.2, 0.0) is None
    uncertain = np.linspace(0.1, 0.7, 101)  # a mean that would say so, from rows too few to say it
    assert Response(0.5, 0.5, Back("binary"), 0.35, uncertain).caution(0.2, 0.0) is None


@pytest.mark.parametrize(("share", "sd"), [(0.5, 0.8), (0.07, 1.5), (0.8, 0.3)])
def test_expected_scores_are_those_of_calibrated_probabilities(share: float, sd: float) -> None:
    rng = np.random.default_rng(4)
    p = expit(centred(share, sd) + sd * rng.standard_normal(200_000))
    y = (rng.random(len(p)) < p) * 1.0
    _, s_y, sigma2 = linear(share, 0.0, sd)
    explained = 1 - sigma2
    found = expected_scores(s_y, (explained, 0.8 * explained, 1.2 * explained), 10**6, 0.95)
    assert found["auc"] == pytest.approx(auc(y, p), abs=0.006)
    assert found["brier"] == pytest.approx(brier(y, p), abs=0.002)
    assert found["auc_lower"] < found["auc"] < found["auc_upper"]
    assert found["brier_lower"] < found["brier"] < found["brier_upper"]


def test_where_nothing_is_predicted_a_coin_is_expected() -> None:
    found = expected_scores(0.4, (0.0, 0.0, 0.0), 10**6, 0.95)
    assert found["auc"] == pytest.approx(0.5, abs=1e-9)
    assert found["brier"] == pytest.approx(0.16, rel=1e-4)


@pytest.mark.parametrize(("told", "true"), [(0.2, 0.05), (0.05, 0.2)])
def test_the_brier_scores_interval_is_that_of_probabilities_that_prove_too_extreme_or_too_timid(told: float, true: float) -> None:
    """Probabilities as far apart as `told` says, of subjects in whom the prediction explains `true`."""
    share, rng = 0.2, np.random.default_rng(6)
    spread = {}
    for explained in (told, true):
        spread[explained] = brentq(lambda sd, of=explained: 1 - linear(share, 0.0, sd)[2] - of, 0.01, 3.0)
    z = rng.standard_normal(400_000)
    y = rng.random(len(z)) < expit(centred(share, spread[true]) + spread[true] * z)
    came = brier(y * 1.0, expit(centred(share, spread[told]) + spread[told] * z))
    found = expected_scores(0.4, (told, min(told, true), max(told, true)), 10**9, 0.95)
    assert found["brier_upper" if true < told else "brier_lower"] == pytest.approx(came, abs=0.0015)


def test_how_common_the_answers_are_is_part_of_the_brier_scores_interval() -> None:
    """Nothing is predicted, 400 subjects: the score of new subjects is p(1 − p), and p is known to ±.03 only."""
    share = 0.07
    found = expected_scores(np.sqrt(share * (1 - share)), (0.0, 0.0, 0.0), 400, 0.95)
    drawn = np.random.default_rng(5).binomial(400, share, 4000) / 400  # what a cohort's share may be of where the truth is .07
    low, high = np.quantile(drawn * (1 - drawn), [0.025, 0.975])
    assert found["brier_lower"] == pytest.approx(low, abs=0.003)
    assert found["brier_upper"] == pytest.approx(high, abs=0.003)
    assert found["auc_lower"] == found["auc_upper"]


def test_probabilities_are_as_far_apart_as_rows_left_out_allow() -> None:
    """Not as the whole model could explain: of two subjects, the same linear prediction means less where less is predicted."""
    line = np.array([-0.5, 0.5])
    whole = Response(0.3, 0.458, Back("binary"), 0.5).probabilities(1.96, line, None)["mean"]
    less = Response(0.3, 0.458, Back("binary"), 0.5, expected=(0.1, 0.03, 0.2)).probabilities(1.96, line, None)["mean"]
    assert np.ptp(less) < 0.9 * np.ptp(whole)


@pytest.mark.parametrize("number", [20, 99, 100])
def test_few_delivered_draws_do_not_tell_the_ends_of_an_interval(number: int) -> None:
    """At a million features a site gets a few dozen draws; the summaries are of all."""
    rng = np.random.default_rng(1)
    draws = 0.1 + 0.02 * rng.standard_normal((number, 4, 1)).astype(np.float32)
    summary = {"mean": 0.1, "sd": 0.02, "lower": 0.06, "upper": 0.14}
    c: Any = SimpleNamespace(draws=draws, interval=0.95, **{name: np.full((4, 1), v) for name, v in summary.items()})
    response = Response(0.3, 0.458, Back("binary"), 0.5, np.full(number, 0.5))
    told = response.features(c, 0, np.zeros(4))
    plain = response._scaled({name: getattr(c, name)[:, 0] for name in summary}, np.zeros(4))
    assert (told["lower"] == plain["lower"]).all() == (number < 100)
    assert told["lower"].dtype == np.float64
