"""The likelihood that knows the privacy noise: exact conditionals, a joint test, coverage, refusal."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import block_diag
from scipy.stats import invgamma, norm

from intarsia.errors import InputError
from intarsia.privacy.dp import calibrate
from intarsia.server.sampler import errors_in_variables as ev
from intarsia.server.sampler.errors_in_variables import PrivacyNoise
from intarsia.server.sampler.horseshoe import noisy_chain
from intarsia.server.sampler.horseshoe.model import Model
from intarsia.server.sampler.horseshoe.sample import sample as sample_without_noise
from intarsia.server.sampler.horseshoe.sample import sample_noisy
from intarsia.server.sampler.horseshoe.sweep import State
from intarsia.server.sampler.settings import Settings


def covariance(kind, P, rho=0.5):
    if kind == "free":
        return np.eye(P)
    if kind == "equal":
        return (1 - rho) * np.eye(P) + rho
    i = np.arange(P)
    return rho ** np.abs(i[:, None] - i)


def simulate(P, Q, s, m, d, rng, kind="equal"):
    """Sketched features and responses of unit variance, each with privacy noise of variance d (paper, §3.1's truth)."""
    S = covariance(kind, P)
    B = np.zeros((P, Q))
    B[rng.permutation(P)[:s]] = rng.standard_normal((s, Q))
    C = B @ rng.standard_normal((Q, Q)).T
    sd = np.sqrt(np.einsum("pq,pr,rq->q", C, S, C) + 1)
    C /= sd
    X = rng.standard_normal((m, P)) @ np.linalg.cholesky(S).T
    Y = X @ C + rng.standard_normal((m, Q)) / sd
    return C, X + np.sqrt(d) * rng.standard_normal((m, P)), Y + np.sqrt(d) * rng.standard_normal((m, Q)), sd**-2


def score(C, draws):
    """Relative error, coverage of the non-zero coefficients, slope of the estimates on the truth."""
    K = draws.reshape(-1, *C.shape)
    mean, (low, high), on = K.mean(axis=0), np.quantile(K, [0.025, 0.975], axis=0), C != 0
    inside = (low <= C) & (high >= C)
    error = np.linalg.norm(mean - C) / np.linalg.norm(C)
    return error, inside[on].mean(), float(mean[on] @ C[on] / (C[on] @ C[on]))


BRIEF = Settings(draws=300, warmup=200, chains=1, thin=1, workers=1)


def fit(Z, Y, d, model=None, settings=BRIEF, n=10**5):
    w = np.sqrt(d * n)
    return sample_noisy(Z, Y, PrivacyNoise(n, np.full(Z.shape[1], w), np.full(Y.shape[1], w)), model, settings)


# --- exact ------------------------------------------------------------------------------------------------------------


def test_latent_features_against_the_dense_gaussian():
    rng = np.random.default_rng(0)
    m, P, Q = 2, 3, 2
    S = covariance("band", P) * 1.7
    d, Sigma = np.array([0.2, 0.5, 1.0]), np.array([[0.3, 0.4], [0.4, 2.0]])
    C, Z, Y = rng.standard_normal((P, Q)), rng.standard_normal((m, P)), rng.standard_normal((m, Q))
    # Joint covariance of (x, z, y), then conditioning.
    observe = np.vstack([np.eye(P), C.T])
    noise = block_diag(np.diag(d), Sigma)
    gain = S @ observe.T @ np.linalg.inv(observe @ S @ observe.T + noise)
    mean, cov = np.hstack([Z, Y]) @ gain.T, S - gain @ observe @ S
    precision = np.linalg.inv(S)
    root = np.linalg.inv(np.linalg.cholesky(Sigma))
    found = ev.draw_latent(Z, Y, C, root, d, precision, np.zeros((P, m)))
    np.testing.assert_allclose(found, mean, atol=1e-10)
    J = np.array([ev.draw_latent(Z[:1], Y[:1], C, root, d, precision, e[:, None])[0] - mean[0] for e in np.eye(P)])
    np.testing.assert_allclose(J.T @ J, cov, atol=1e-10)


def test_precision_is_bartletts_wishart():
    rng = np.random.default_rng(1)
    A = rng.standard_normal((4, 4))
    scatter = A @ A.T + 4 * np.eye(4)
    fixed = ev.draw_precision(9.0, scatter, np.zeros((4, 4)), np.ones(4))
    np.testing.assert_allclose(fixed, np.linalg.inv(scatter), atol=1e-12)
    many = [
        ev.draw_precision(9.0, scatter, rng.standard_normal((4, 4)), np.sqrt(rng.chisquare(9.0 - np.arange(4))))
        for _ in range(4000)
    ]
    np.testing.assert_allclose(np.mean(many, axis=0), 9 * np.linalg.inv(scatter), atol=0.15)


def test_strength_against_quadrature():
    """One column: p(x | ν) = ∫ Π N(x_i; 0, S) IG(S; ν/2, k·T/2) dS, by numerical integration."""
    rng = np.random.default_rng(2)
    x, T = rng.standard_normal(7) * 1.4, 1.0
    grid = np.array([1.0, 4.0, 30.0])
    found = ev.strength_weights(np.array([x @ x / T]), 7, grid)

    def direct(k):
        def f(S):
            return np.exp(norm.logpdf(x, scale=np.sqrt(S)).sum()) * invgamma.pdf(S, (k + 2) / 2, scale=k * T / 2)

        return np.log(quad(f, 0, np.inf, limit=300)[0])

    expected = np.array([direct(k) for k in grid])
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-6)


# --- joint test (Geweke 2004) of the part that is new -----------------------------------------------------------------


def _joint(noise_known, sweeps, rng):
    """Z, Y | X, then ν, S, X | Z, Y: leaves the prior of X alone if the sampler is right. Returns functions of X."""
    m, P, Q = 5, 3, 2
    T, d = np.array([1.0, 2.0, 0.5]), np.array([0.4, 0.4, 0.8])
    C, Sigma = np.array([[1.0, 0.0], [0.5, -1.0], [0.0, 0.3]]), np.array([[0.5, 0.4], [0.4, 1.0]])
    grid = ev.strength_grid(P, m)

    def prior():
        k = rng.choice(grid)
        chi = np.sqrt(rng.chisquare(k + P + 1 - np.arange(P)))
        precision = ev.draw_precision(k + P + 1, np.diag(k * T), rng.standard_normal((P, P)), chi)
        return rng.standard_normal((m, P)) @ np.linalg.cholesky(np.linalg.inv(precision)).T, k

    def summary(X, k):
        return [np.log(k), np.arctan(X[0, 0]), np.arctan(X[0, 0] * X[0, 1]), np.arctan(np.log(np.square(X).sum()))]

    marginal = np.array([summary(*prior()) for _ in range(20_000)])
    X, k = prior()
    setting = noisy_chain.setting(np.ones((m, P)), np.ones((m, Q)), d, Model())
    noisy = setting.noisy._replace(T=np.diag(T), d=d if noise_known else d * 0.3)
    A, B = np.eye(Q), C
    state = noisy_chain.State(ev.Latent(X, float(k)), State(A, B, np.ones((P, 1)), np.ones(Q), Sigma))
    chain = []
    for _ in range(sweeps):
        Z = state.latent.X + np.sqrt(d) * rng.standard_normal((m, P))
        Y = state.latent.X @ C + rng.standard_normal((m, Q)) @ np.linalg.cholesky(Sigma).T
        state = noisy_chain.draw_features(replace(setting, noisy=noisy._replace(Z=Z), Y=Y), state, rng)
        chain.append(summary(*state.latent))
    chain = np.array(chain)
    blocks = chain[: sweeps // 50 * 50].reshape(50, -1, chain.shape[1]).mean(axis=1)
    error = np.sqrt(blocks.var(axis=0, ddof=1) / 50 + marginal.var(axis=0) / len(marginal))
    return (chain.mean(axis=0) - marginal.mean(axis=0)) / error


def test_joint_distribution():
    z = _joint(True, 8_000, np.random.default_rng(3))
    assert np.abs(z).max() < 4
    broken = _joint(False, 8_000, np.random.default_rng(3))
    assert np.abs(broken).max() > 6


# --- does it do what it is for? ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_corrects_what_plain_fitting_shrinks():
    plain, aware = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        C, Z, Y, _ = simulate(30, 3, 4, 200, 0.3, rng)
        plain.append(score(C, sample_without_noise(Z, Y, settings=replace(BRIEF, draws=150, warmup=100, seed=seed)).C))
        aware.append(score(C, fit(Z, Y, 0.3, Model(noise="independent"), replace(BRIEF, seed=seed)).C))
    plain, aware = np.mean(plain, axis=0), np.mean(aware, axis=0)
    assert aware[0] < 0.75 * plain[0]  # error
    assert plain[1] < 0.6  # coverage
    assert aware[1] > 0.85  # the horseshoe without any noise has .92 to .96 on such small samples
    assert plain[2] < 0.85 < aware[2] < 1.12  # slope


def test_noise_level_of_the_responses_is_taken_off():
    rng = np.random.default_rng(8)
    _, Z, Y, sigma2 = simulate(10, 2, 3, 600, 0.1, rng, "free")
    draws = fit(Z, Y, 0.1, settings=replace(BRIEF, draws=200, warmup=100))
    assert draws.sigma2.mean(axis=(0, 1)) == pytest.approx(sigma2, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equal", "free"])
@pytest.mark.parametrize(("epsilon", "error"), [(1, 0.19), (3, 0.11), (10, 0.08)])
def test_coverage_and_error_at_full_size(epsilon, error, kind):
    """n = 10⁵, P = 300, m = 1000 at sketch level; rows of length √(1.15·(P+Q)) fit the bound."""
    P, Q, m, n = 300, 5, 1000, 10**5
    d = 1.15 * (P + Q) / calibrate(epsilon, 1e-6, m) / n
    found = []
    for seed in range(3):
        C, Z, Y, _ = simulate(P, Q, 10, m, d, np.random.default_rng(seed), kind)
        draws = fit(Z, Y, d, None, replace(BRIEF, draws=600, warmup=150, seed=seed), n)
        found.append(score(C, draws.C))
    found = np.mean(found, axis=0)
    print(f"{kind} epsilon {epsilon} noise {d:.3f}: error {found[0]:.3f} ({error}), coverage {found[1]:.3f}")
    assert found[0] < error * 1.05
    assert 0.90 < found[1] < 0.99  # 150 coefficients: ± .02 about .95


# --- refusal ----------------------------------------------------------------------------------------------------------


def test_refuses_when_the_noise_drowns_the_signal():
    rng = np.random.default_rng(4)
    _, Z, Y, _ = simulate(30, 3, 4, 200, 0.8, rng)
    with pytest.raises(InputError, match="drowns") as caught:
        fit(Z, Y, 0.8, n=1000)
    ratio = ev.signal(Z, np.full(30, 0.8), 1000).ratio
    assert f"ratio {ratio:.2f}" in str(caught.value)
    assert f"n = {int(np.ceil(1000 * ratio / 0.5))}" in str(caught.value)
    # n = 500, P = 300 at epsilon = 10: hopeless, and said so.
    d = 305 / calibrate(10, 1e-6, 50) / 500
    _, Z, Y, _ = simulate(300, 5, 10, 50, d, rng)
    with pytest.raises(InputError, match="drowns"):
        fit(Z, Y, d, n=500)
    with pytest.raises(InputError, match="No signal"):
        ev.check_signal(rng.standard_normal((50, 4)), np.full(4, 1.0), 100)


def test_same_seed_same_draws_and_progress():
    _, Z, Y, _ = simulate(8, 2, 2, 60, 0.1, np.random.default_rng(5))
    seen = []
    run = replace(BRIEF, draws=6, warmup=4, chains=2)
    a = fit(Z, Y, 0.1, settings=run)
    b = fit(Z, Y, 0.1, settings=replace(run, workers=2, progress=seen.append))
    np.testing.assert_array_equal(a.C, b.C)
    assert seen[-1].sweeps == [10, 10]
    assert a.info["noise_ratio"] < 0.5


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path):
    _, Z, Y, _ = simulate(8, 2, 2, 60, 0.1, np.random.default_rng(5))
    run = Settings(draws=12, warmup=7, chains=2, thin=2, workers=1)
    whole = fit(Z, Y, 0.1, settings=run)
    fit(Z, Y, 0.1, settings=replace(run, draws=5, checkpoint=tmp_path))
    longer = fit(Z, Y, 0.1, settings=replace(run, checkpoint=tmp_path))
    for name in ("C", "Sigma", "tau"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(longer, name))
    with pytest.raises(InputError, match="another run"):
        fit(Z, Y, 0.2, settings=replace(run, checkpoint=tmp_path))


@pytest.mark.parametrize("local", ["row", "element"])
@pytest.mark.parametrize("P", [8, 40])  # fewer and more features than sketch rows
def test_every_shape_runs(local, P):
    rng = np.random.default_rng(6)
    _, Z, Y, _ = simulate(P, 2, 2, 30, 0.1, rng, "free")
    draws = fit(Z, Y, 0.1, Model(local=local, rank=1), replace(BRIEF, draws=5, warmup=3))
    assert np.isfinite(draws.C).all()


def test_bad_input():
    Z, Y = np.ones((5, 3)), np.ones((5, 2))
    for bad, words in (
        ({"noise": PrivacyNoise(100, np.zeros(3))}, "carry no noise"),
        ({"noise": PrivacyNoise(100, np.ones(2))}, "Shapes"),
        ({"settings": Settings(backend="jax")}, "on the CPU"),
        ({"model": Model(power=0.5)}, "power"),
        ({"model": Model(rank=5)}, "Rank"),
    ):
        given = {"noise": PrivacyNoise(100, np.ones(3))} | bad
        with pytest.raises(InputError, match=words):
            sample_noisy(Z, Y, **given)
    with pytest.raises(InputError, match="not finite"):
        sample_noisy(Z * np.nan, Y, PrivacyNoise(10, np.ones(3)))
