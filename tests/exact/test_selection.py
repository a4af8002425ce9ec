"""The selection rules do what their definitions say, on draws whose truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from intarsia.errors import InputError
from intarsia.server.assess import local_fdr
from intarsia.server.assess.findings import bayesian_fdr, select
from intarsia.server.assess.local_fdr import calibrate, contour_share, fit_mixture, sign_share


def posterior(seed: int, P: int = 60, Q: int = 3, signals: int = 8, draws: int = 400) -> np.ndarray:
    """Draws such as a horseshoe leaves: nulls in a narrow, heavy-tailed spike, signals wide around their estimate."""
    rng = np.random.default_rng(seed)
    spike = 0.02 * rng.standard_t(2, size=(2, draws, P, 1)) * rng.standard_normal((2, draws, P, Q))
    spike += 0.005 * rng.standard_normal((P, Q))
    size = rng.uniform(0.5, 2, (signals, Q)) * rng.choice([-1, 1], (signals, Q))
    spike[:, :, :signals] = size + 0.1 * rng.standard_normal((2, draws, signals, Q))
    return spike


@settings(max_examples=60, deadline=None)
@given(local=st.lists(st.floats(0, 1), min_size=1, max_size=9), fdr=st.floats(0.01, 0.5), cap=st.floats(0.05, 1))
def test_bayesian_fdr_is_the_largest_such_set(local, fdr, cap):
    local = np.array(local)
    chosen = bayesian_fdr(local, fdr, cap)
    ranked = np.sort(local)
    best = max(
        (k for k in range(len(local) + 1) if k == 0 or (ranked[:k].sum() <= fdr * k and ranked[k - 1] <= cap)),
        default=0,
    )
    assert chosen.sum() == best
    if chosen.any() and not chosen.all():
        assert local[chosen].max() <= local[~chosen].min()


def test_calibration_is_the_bound_of_sellke_bayarri_and_berger():
    assert calibrate(np.array([0.05]))[0] == pytest.approx(0.289, abs=5e-4)  # their table 1
    assert calibrate(np.array([0.01]))[0] == pytest.approx(0.111, abs=5e-4)
    p = np.linspace(1e-12, 1, 1001)
    assert (np.diff(calibrate(p)) >= 0).all()
    assert (calibrate(p) >= p).all()
    assert calibrate(np.array([0.0]))[0] < 1e-300


def test_sign_share_counts_the_wrong_side_and_never_claims_zero_from_few_draws():
    x = np.array([[1.0, 2, 3, -1], [-1, -2, -3, -4], [0, 0, 0, 0]])
    share = sign_share(x)
    assert share[0] == 0.5
    assert share[2] == 1.0
    tail = 2 * stats.norm.sf(2.5 / np.std([1, 2, 3, 4]))
    assert share[1] == pytest.approx(min(0.5 / 4, tail))


def test_contour_share_of_a_gaussian_posterior_is_the_chi_square_tail():
    rng = np.random.default_rng(0)
    L = np.array([[1.0, 0, 0], [0.9, 0.3, 0], [-0.4, 0.2, 0.05]])
    for shift in (0.3, 1.0, 1.7):
        mean = L @ np.full(3, shift)
        x = (mean[:, None] + L @ rng.standard_normal((3, 40_000)))[None]
        exact = stats.chi2.sf(3 * shift**2, 3)
        assert contour_share(x)[0] == pytest.approx(exact, abs=5 * np.sqrt(exact / 40_000))
    # and it does not depend on the units of the responses
    units = np.array([1e-6, 1.0, 1e6])[:, None]
    assert contour_share(x * units)[0] == contour_share(x)[0]


def test_signals_are_found_and_nothing_else():
    C = posterior(1)
    found = select(C)
    np.testing.assert_array_equal(np.flatnonzero(found.selected), np.arange(8))
    np.testing.assert_array_equal(found.by_response[:8], True)
    assert not found.by_response[8:].any()
    mean = C.mean(axis=(0, 1))
    np.testing.assert_array_equal(found.sign_by_response, np.sign(mean))
    assert found.expected_fdr == pytest.approx(found.local_fdr[:8].mean())
    assert found.expected_fdr <= 0.05
    np.testing.assert_allclose(found.pip, 1 - found.local_fdr)


@pytest.mark.parametrize("fdr", [0.02, 0.1])
def test_the_chosen_are_the_most_that_keep_to_the_rate(fdr):
    """Coefficients at every distance from zero: there is always one more to take, and the next one would exceed the rate."""
    rng = np.random.default_rng(5)
    C = np.linspace(0, 5, 80)[:, None] + rng.standard_normal((2, 400, 80, 1))
    found = select(C, fdr=fdr, max_local_fdr=1.0)
    local = np.sort(found.local_fdr)
    number = int(found.selected.sum())
    assert local[:number].mean() <= fdr < local[: number + 1].mean()
    assert found.expected_fdr == pytest.approx(local[:number].mean())
    entries = np.sort(found.local_fdr_by_response[:, 0])
    count = int(found.by_response.sum())
    assert entries[:count].mean() <= fdr < entries[: count + 1].mean()
    assert found.expected_fdr_by_response[0] == pytest.approx(entries[:count].mean())


def test_a_response_a_feature_does_not_touch_is_not_selected_for_it():
    rng = np.random.default_rng(2)
    C = posterior(2)
    C[:, :, 0, 1] = 0.1 * rng.standard_normal((2, 400)) + 0.1  # one standard error from zero, in a row that is there
    found = select(C)
    assert found.selected[0]
    assert found.by_response[0].tolist() == [True, False, True]


def test_null_responses_of_features_that_are_there_seldom_pass():
    """In such rows nothing is shrunk: a tail share taken at its word would pass one null in twenty."""
    rng = np.random.default_rng(4)
    C = 0.1 * rng.standard_normal((1, 400, 300, 2))
    C[..., 0] += 1.0
    C[..., 1] += 0.1 * rng.standard_normal(300)
    found = select(C)
    assert found.selected.all()
    assert found.by_response[:, 0].all()
    assert (sign_share(C[0].transpose(1, 2, 0))[:, 1] < 0.05).mean() > 0.03
    assert found.by_response[:, 1].mean() < 0.015


def test_one_sharp_response_among_many_is_seen():
    rng = np.random.default_rng(3)
    C = 0.1 * rng.standard_normal((2, 500, 30, 25))
    C[:, :, 4, 17] += 0.6
    C += 0.03 * rng.standard_normal((30, 25))
    found = select(C)
    assert np.flatnonzero(found.selected).tolist() == [4]
    assert found.sign[4] == 1


def test_nulls_give_nothing_and_doubtful_features_do_not_ride_on_sure_ones():
    C = posterior(5, signals=0)
    assert not select(C).selected.any()
    C = posterior(6, P=61, signals=60)
    C[:, :, 60] = np.random.default_rng(0).standard_normal((2, 400, 3)) + 0.8  # local fdr about .5: mean stays < .05
    found = select(C)
    assert found.selected.sum() == 60
    assert select(C, max_local_fdr=1.0).selected[60]


def test_one_response_and_few_draws():
    assert select(posterior(7, Q=1)).selected[:8].all()
    few = select(posterior(8, Q=3, draws=7), max_local_fdr=0.1)
    assert few.selected[:8].all()
    assert few.selected.sum() == 8


def test_chunks_and_disk_change_nothing(tmp_path, monkeypatch):
    C = posterior(9)
    whole = select(C)
    np.save(tmp_path / "C.npy", C)
    monkeypatch.setattr(local_fdr, "_CHUNK", 2 * 400 * 3 * 7)
    parts = select(np.load(tmp_path / "C.npy", mmap_mode="r"))
    np.testing.assert_allclose(parts.local_fdr, whole.local_fdr)
    np.testing.assert_array_equal(parts.by_response, whole.by_response)


def test_mixture_is_algorithm_three():
    C = posterior(10)
    for covariance in ("mclust", "VII", "VVI", "EEE", "VVV"):
        found = select(C, method="mixture", covariance=covariance)
        low = fit_mixture(C.mean(axis=(0, 1)), covariance).low
        np.testing.assert_array_equal(found.selected, low < 0.05)
        assert found.selected[:8].all()
        each = [fit_mixture(C[..., [q]].mean(axis=(0, 1)), covariance).low < 0.05 for q in range(3)]
        np.testing.assert_array_equal(found.by_response, np.column_stack(each))
        assert found.by_response[:8].mean() > 0.6
        assert found.by_response[:8].mean() > found.by_response[8:].mean()
    assert select(C, method="mixture", covariance="EEE").selected.sum() == 8
    # units do not matter
    np.testing.assert_allclose(
        fit_mixture(C.mean(axis=(0, 1)) * 1e-6, "VVI").low,
        fit_mixture(C.mean(axis=(0, 1)), "VVI").low,
        atol=1e-9,
    )


def test_mixture_with_nothing_to_tell_apart_selects_nothing():
    assert not select(np.zeros((1, 5, 4, 2)), method="mixture").selected.any()


def test_bad_arguments_are_named():
    C = posterior(0)
    with pytest.raises(InputError, match="Unknown selection 'lasso'"):
        select(C, method="lasso")
    with pytest.raises(InputError, match="fdr is 0"):
        select(C, fdr=0)
    with pytest.raises(InputError, match="Covariance model"):
        select(C, method="mixture", covariance="XYZ")
    with pytest.raises(InputError, match="expected 4"):
        select(C[0])
    C[0, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match="not finite"):
        select(C)
