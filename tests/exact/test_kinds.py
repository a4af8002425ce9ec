"""Responses of other kinds: the preparation is exactly what it is called, and the way back is the textbook's."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm, rankdata

from intarsia.errors import InputError
from intarsia.site.data.kinds import prepare
from intarsia.site.data.survival import martingale_residuals, restricted_mean, rmst_pseudo_observations
from intarsia.wire.kinds import Back
from intarsia.wire.log_odds import mean_slope


def kaplan_meier(t: np.ndarray, d: np.ndarray, at: np.ndarray) -> np.ndarray:
    """By the definition, one time after the other."""
    out = []
    for x in at:
        S = 1.0
        for u in np.unique(t[(d > 0) & (t <= x)]):
            S *= 1 - d[t == u].sum() / (t >= u).sum()
        out.append(S)
    return np.array(out)


def area(t: np.ndarray, d: np.ndarray, horizon: float) -> float:
    steps = np.unique(np.concatenate([[0.0], t[t < horizon], [horizon]]))
    return float(kaplan_meier(t, d, steps[:-1]) @ np.diff(steps))


@pytest.mark.parametrize("seed", range(6))
def test_pseudo_observations_are_the_leave_one_out_ones(seed: int) -> None:
    """With ties among events, between events and censorings, subjects beyond the horizon, and a last subject alone at risk."""
    rng = np.random.default_rng(seed)
    n = 25
    t = rng.integers(0, 12, n).astype(float) if seed % 2 else rng.exponential(5, n)
    d = (rng.random(n) < 0.6) * 1.0
    if seed == 4:
        d[:] = 1.0
    if seed == 5:
        t[3], d[3] = t.max() + 1, 1.0
    horizon = float(t.max()) if seed in (1, 4, 5) else 6.0
    expected = [n * area(t, d, horizon) - (n - 1) * area(np.delete(t, i), np.delete(d, i), horizon) for i in range(n)]
    assert restricted_mean(t, d, horizon) == pytest.approx(area(t, d, horizon), abs=1e-12)
    np.testing.assert_allclose(rmst_pseudo_observations(t, d, horizon), expected, atol=1e-9)


def test_without_censoring_a_pseudo_observation_is_the_time_itself() -> None:
    t = np.random.default_rng(0).exponential(5, 200)
    np.testing.assert_allclose(rmst_pseudo_observations(t, np.ones(200), 4.0), np.minimum(t, 4.0), atol=1e-9)


def test_martingale_residuals_add_up_to_nothing_and_follow_the_definition() -> None:
    rng = np.random.default_rng(1)
    t, d = rng.integers(1, 9, 40).astype(float), (rng.random(40) < 0.5) * 1.0
    hazard = [sum(d[t == u].sum() / (t >= u).sum() for u in np.unique(t[d > 0]) if u <= x) for x in t]
    np.testing.assert_allclose(martingale_residuals(t, d), d - np.array(hazard), atol=1e-12)
    assert martingale_residuals(t, d).sum() == pytest.approx(0, abs=1e-10)


def test_binary_takes_two_levels_of_any_sort() -> None:
    for values, options in (
        ([0, 1, 1, 0], {}),
        (["no", "yes", "yes ", "no"], {}),
        ([2.0, 1.0, 1.0, 2.0], {"yes": 1}),
        (["a", "b", "b", "a"], {"yes": "b"}),
        ([False, True, True, False], {}),
    ):
        assert prepare(values, "binary", options).values.tolist() == [0, 1, 1, 0]
    missing = prepare([1, None, 0, np.nan], "binary").values
    assert np.isnan(missing[[1, 3]]).all()
    assert prepare([0] * 97 + [1] * 3, "binary").notes[0].startswith("fewer than 5%")


def test_counts_and_skewed_values_are_transformed_as_said() -> None:
    counts = np.array([0.0, 3, 3, 10, np.nan])
    np.testing.assert_allclose(prepare(counts, "count").values, 2 * np.sqrt(counts + 0.375))
    np.testing.assert_allclose(prepare(counts[1:], "count", {"transform": "log"}).values, np.log(counts[1:]))
    capped = prepare(counts, "count", {"cap": 5})
    np.testing.assert_allclose(capped.values, 2 * np.sqrt(np.minimum(counts, 5) + 0.375))
    assert capped.back.centre == pytest.approx((0 + 3 + 3 + 5) / 4)
    assert capped.notes == ("1 values above the cap are taken as the cap",)
    ranked = prepare(counts, "skewed", {"transform": "rank-normal"}).values
    np.testing.assert_allclose(ranked[:4], norm.ppf((rankdata(counts[:4]) - 0.375) / 4.25))
    assert np.isnan(ranked[4])


def test_ordinal_scores_follow_the_given_order() -> None:
    got = prepare(["mild", "none", "severe", None], "ordinal", {"order": ["none", "mild", "severe"], "scores": [0, 1, 3]})
    np.testing.assert_array_equal(got.values, [1, 0, 3, np.nan])
    np.testing.assert_array_equal(prepare([3, 1, 2], "ordinal").values, [3, 1, 2])
    np.testing.assert_array_equal(prepare([2, 0, 1, 0], "ordinal").values, [2, 0, 1, 0])  # their own numbers, not 1, 2, 3
    np.testing.assert_array_equal(prepare([2, 0, 1, 0], "ordinal", {"order": [2, 1, 0]}).values, [1, 3, 2, 3])


def test_the_way_back() -> None:
    C, s_y = np.array([0.2, -0.1]), 0.4
    np.testing.assert_allclose(Back("continuous").effect(C, s_y=s_y), C * s_y)
    sigma2 = np.array([0.9, 0.8])
    slope = mean_slope(s_y, sigma2)  # of the probability along the log odds
    np.testing.assert_allclose(slope, sigma2 * s_y**2, rtol=0.06)
    np.testing.assert_allclose(Back("binary").effect(C, s_y=s_y, sigma2=sigma2), C * s_y / slope)
    np.testing.assert_allclose(Back("count", "anscombe", centre=4.0).effect(C, s_y=s_y), C * s_y / 2)
    np.testing.assert_allclose(Back("time", "martingale", centre=0.25).effect(C, s_y=s_y), C * s_y * 4)
    assert Back("count", "log").ratio(0.5) == pytest.approx(np.exp(0.5))
    assert Back("continuous").ratio(0.5) is None
    assert Back("binary").language.ratio == "odds ratio"
    assert prepare(([1.0, 2.0, 3.0], [1, 0, 1]), "time", {"horizon": 2.5, "unit": "months"}).back.language.unit == "months"


T, D = [1.0, 2.0, 3.0], [1, 0, 1]
REFUSED: list[tuple[str, Any, str, dict[str, Any]]] = [
    ("this one has 3", [0, 1, 2], "binary", {}),
    ("It never varies", [1, 1], "binary", {}),
    ("neither of the response's two levels", [0, 1], "binary", {"yes": "ja"}),
    ("no value at all", [None, None], "binary", {}),
    ("no value at all", [np.nan, np.nan], "skewed", {}),
    ("1 times are negative", ([1.0, -2.0], [1, 0]), "time", {"horizon": 1}),
    ("every subject is censored", (T, [0, 0, 0]), "time", {"horizon": 1}),
    ("must be 1", (T, [0, 2, 1]), "time", {"horizon": 1}),
    ("needs a horizon", (T, D), "time", {}),
    ("beyond the longest follow-up", (T, D), "time", {"horizon": 9}),
    ("No event came up to the horizon", ([5.0, 6.0], [1, 0]), "time", {"horizon": 2}),
    ("a pair of columns", [1.0, 2.0, 3.0], "time", {"horizon": 2}),
    ("3 times and 2 events", (T, [1, 0]), "time", {"horizon": 2}),
    ("1 values are 0.*anscombe", [0, 1], "count", {"transform": "log"}),
    ("1 values are negative", [-1.0, 1], "skewed", {}),
    ("not whole numbers", [0.5, 1], "count", {}),
    ("not one of log, anscombe, rank-normal", [1, 2], "count", {"transform": "sqrt"}),
    ("each of the response's 2 levels", ["a", "b"], "ordinal", {"order": ["a"]}),
    ("each larger", [1, 2], "ordinal", {"scores": [2, 1]}),
    ("has no option 'horizont'", (T, D), "time", {"horizont": 1}),
    ("The kinds are", [1], "yesno", {}),
    ("holds texts", ["a", "b"], "continuous", {}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "values", "kind", "options"), REFUSED, ids=[f"{r[2]}: {r[0]}" for r in REFUSED])
def test_what_cannot_be_prepared_is_refused(words: str, values: Any, kind: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=words):
        prepare(values, kind, options)
