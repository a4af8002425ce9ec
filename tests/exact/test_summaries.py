"""What is known of coefficients whose draws were not kept: scaled, and among further columns, it says the same."""

import numpy as np

from intarsia.server.results.summaries import Summaries

CHAINS, DRAWS, P, Q = 2, 300, 6, 2
FEATURES = np.array([1, 4])


def made(C: np.ndarray) -> Summaries:
    flat = C.reshape(-1, *C.shape[2:])
    unknown = np.full(C.shape[2:], np.nan)
    return Summaries(
        FEATURES, flat.mean(axis=0), flat.std(axis=0, ddof=1), (flat > 0).sum(axis=0), unknown, unknown, unknown + 9, unknown + 9,
        whole=C.astype("<f4"), at=np.arange(C.shape[1]), total=len(flat),
    )  # fmt: skip


def draws() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(rng.normal(size=(P, Q)), 0.5, (CHAINS, DRAWS, P, Q))


def test_scaled_coefficients_have_scaled_moments_and_quantiles() -> None:
    C, factor = draws(), np.random.default_rng(1).uniform(0.1, 10, (P, Q))
    found, expected = made(C).scaled(factor), made(C * factor)
    for name in ("mean", "sd", "positive"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12)
    np.testing.assert_allclose(found.whole, expected.whole, rtol=1e-5)
    places = found.others()
    np.testing.assert_allclose(found.quantiles(places, [0.025, 0.5]), expected.quantiles(places, [0.025, 0.5]), rtol=1e-4)


def test_columns_that_never_vary_have_coefficients_of_zero_and_move_nothing() -> None:
    known = made(draws())
    features, responses = np.array([True, False, *[True] * (P - 1)]), np.array([False, *[True] * Q])
    wider = known.spread_out(features, responses)
    at = np.ix_(np.flatnonzero(features), np.flatnonzero(responses))
    for name in ("mean", "sd", "positive"):
        np.testing.assert_array_equal(getattr(wider, name)[at], getattr(known, name))
    np.testing.assert_array_equal(wider.whole[:, :, at[0], at[1]], known.whole)
    assert not wider.mean[1].any()
    assert not wider.sd[1].any()
    assert not wider.whole[:, :, 1].any()
    assert not wider.whole[..., 0].any()
    np.testing.assert_array_equal(wider.features, [2, 5])
