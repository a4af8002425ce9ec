"""Each Gaussian step against a dense textbook solve, each move against the plain formula it shortcuts."""

import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid
from scipy.stats import kstest, multivariate_normal

from intarsia.server.sampler import backend, conditionals, gibbs, moves, priors

BE = backend.get("numpy")
RNG = np.random.default_rng


def problem(seed=0, m=6, P=9, Q=3, R=2, element=False):
    rng = RNG(seed)
    X, Y, A = rng.standard_normal((m, P)), rng.standard_normal((m, Q)), rng.standard_normal((Q, R))
    lam = np.exp(rng.normal(size=(P, R) if element else P))
    tau, s = np.exp(rng.normal(size=R)), np.exp(rng.normal(size=Q) / 2)
    return X, Y, A, lam, tau, s


def dense_B(X, Y, A, lam, tau, s):
    """Mean and covariance of vec(Bᵀ) by the paper's own Kronecker system."""
    P, R = X.shape[1], A.shape[1]
    rows = lam if lam.ndim == 2 else np.repeat(lam[:, None], R, axis=1)
    design = np.kron(X, A / s[:, None])
    cov = np.linalg.inv(design.T @ design + np.diag(1 / (rows * tau).ravel() ** 2))
    return (cov @ design.T @ (Y / s).ravel()).reshape(P, R), cov


@pytest.mark.parametrize("element", [False, True])
@pytest.mark.parametrize(("m", "P", "R"), [(6, 9, 2), (5, 5, 3), (2, 7, 1), (7, 3, 3), (8, 1, 2)])
def test_B_has_the_textbook_mean_and_covariance(element, m, P, R):
    X, Y, A, lam, tau, s = problem(m=m, P=P, R=R, element=element)
    draw = conditionals.draw_B_element if element else conditionals.draw_B_row
    columns = A.shape[0] if element else R
    zero = np.zeros((P, R)), np.zeros((m, columns))
    mean, cov = dense_B(X, Y, A, lam, tau, s)
    base = draw(BE, X, Y, A, lam, tau, s, *zero)
    np.testing.assert_allclose(base, mean, atol=1e-10)
    J = []
    for i in range(P * R + m * columns):
        noise = np.zeros(P * R + m * columns)
        noise[i] = 1.0
        Z, E = noise[: P * R].reshape(P, R), noise[P * R :].reshape(m, columns)
        J.append((draw(BE, X, Y, A, lam, tau, s, Z, E) - base).ravel())
    np.testing.assert_allclose(np.array(J).T @ np.array(J), cov, atol=1e-10)


def test_A_has_the_textbook_mean_and_covariance():
    X, Y, A, _, _, s = problem()
    F = X @ RNG(1).standard_normal((X.shape[1], 2))
    base = conditionals.draw_A(BE, F, Y, s, np.zeros_like(A))
    for q in range(3):
        cov = np.linalg.inv(F.T @ F / s[q] ** 2 + np.eye(2))
        np.testing.assert_allclose(base[q], cov @ F.T @ Y[:, q] / s[q] ** 2, atol=1e-12)
        J = []
        for r in range(2):
            Z = np.zeros_like(A)
            Z[q, r] = 1
            J.append((conditionals.draw_A(BE, F, Y, s, Z) - base)[q])
        np.testing.assert_allclose(np.array(J).T @ np.array(J), cov, atol=1e-12)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("s", [1e-3, 1e-6, 1e-10])
def test_A_keeps_its_prior_where_a_response_without_noise_says_nothing(s, compiled, monkeypatch):
    """F of rank one: FᵀF/s² swallows the identity in double precision, the law of A does not know that."""
    if not compiled:
        monkeypatch.setattr(BE, "kernels", None)
    rng = RNG(1)
    f, v = rng.standard_normal(20), rng.standard_normal(3)
    F, Y, s = np.outer(f, v), np.outer(f, [2.0, -1.0]), np.full(2, s)
    base = conditionals.draw_A(BE, F, Y, s, np.zeros((2, 3)))
    J = np.stack([conditionals.draw_A(BE, F, Y, s, np.outer(np.ones(2), e))[0] - base[0] for e in np.eye(3)], axis=1)
    u = v / np.linalg.norm(v)
    np.testing.assert_allclose(base, np.outer([2.0, -1.0], u) / np.linalg.norm(v), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(J @ J.T, np.eye(3) - np.outer(u, u), atol=2e-3)


def test_rotating_to_the_small_side_changes_no_conditional():
    X, Y, A, lam, tau, s = problem(m=11, P=4)
    data = gibbs.prepare(BE, X, Y)
    assert data.X.shape == (4, 4)
    whole, _ = dense_B(X, Y, A, lam, tau, s)
    small, _ = dense_B(data.X, data.Y, A, lam, tau, s)
    np.testing.assert_allclose(small, whole, atol=1e-10)
    B = RNG(3).standard_normal((4, 2))
    rss = ((data.Y - data.X @ B @ A.T) ** 2).sum(axis=0) + data.rss0
    np.testing.assert_allclose(rss, ((Y - X @ B @ A.T) ** 2).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5, 1e12])
@pytest.mark.parametrize("m", [1, 2, 5])
def test_factor_solves_and_weighs_like_a_dense_matrix(scale, m):
    X = RNG(4).standard_normal((m, 8)) * np.where(np.arange(8) < 3, scale, 1.0)
    d = np.array([0.3, 2.0])
    factor = BE.factor(BE.gram(X), X, np.ones(8), float((d**2).max()))
    V = RNG(5).standard_normal((m, 2))
    rotated = factor.rotate(V)
    np.testing.assert_allclose(factor.unrotate(rotated), V, atol=1e-12)
    U, sv, _ = np.linalg.svd(X)
    for j in range(2):
        eig = 1 + d[j] ** 2 * sv**2
        exact = U @ ((U.T @ V[:, j]) / eig)
        got = factor.unrotate(factor.solve(d, np.stack([rotated[:, :1], rotated[:, 1:]]))[j])[:, 0]
        # Rounding in G costs eps · condition at most; beyond STIFF singular values take over and nothing is lost.
        condition = d[j] ** 2 * sv[0] ** 2
        lost = 1e-15 * condition if (d**2).max() * (sv**2).sum() < backend.STIFF else 1e-14
        np.testing.assert_allclose(got, exact, atol=1e-13 + 10 * lost)
    dense = sum(np.log(1 + d[j] ** 2 * sv**2).sum() + ((U.T @ V[:, j]) ** 2 / (1 + d[j] ** 2 * sv**2)).sum() for j in range(2))
    np.testing.assert_allclose(factor.log_marginal(d, rotated), dense, rtol=1e-7)


def collapsed_density(X, Y, A, lam, tau, sigma2, alpha, noise_scale):
    """log p(Y | A, lam, tau, sigma²)^alpha with B integrated out, plus the priors of log sigma and log tau, densely."""
    m, Q = Y.shape
    s2 = sigma2 / alpha
    cov = np.kron((A * tau**2) @ A.T, (X * lam**2) @ X.T) + np.kron(np.diag(s2), np.eye(m))
    value = multivariate_normal(np.zeros(m * Q), cov, allow_singular=False).logpdf(Y.T.ravel())
    value += (1 - alpha) * m / 2 * np.log(s2).sum()
    value += (np.log(np.sqrt(sigma2)) - np.log1p(sigma2 / noise_scale**2)).sum()
    return value + (np.log(tau) - np.log1p(tau**2)).sum()


@pytest.mark.parametrize("alpha", [1.0, 0.6])
@pytest.mark.parametrize(("m", "P", "R"), [(5, 9, 3), (7, 4, 2)])
def test_collapsed_steps_follow_the_marginal_likelihood(alpha, m, P, R):
    """Every acceptance threshold equals the dense density ratio: accepted just below it, refused just above."""
    X, Y, A, lam, tau, s = problem(m=m, P=P, R=R)
    sigma2, scale = s**2, np.full(3, 1.3)
    data = gibbs.prepare(BE, X, Y)
    law = priors.HalfCauchy(scale)
    factor = BE.factor(BE.gram(data.X * lam), data.X, lam, 1e3)
    collapsed = moves.Collapsed(BE, factor, factor.rotate(data.Y), A, data.rss0, data.m, alpha, priors.HalfCauchy(), law)
    for i in range(4):
        steps = np.zeros(4)
        steps[i] = 0.4
        new_sigma2, new_tau = sigma2.copy(), tau.copy()
        if i < 3:
            new_sigma2[i] *= np.exp(0.8)
        else:
            new_tau = tau * np.exp(0.4)
        log_ratio = collapsed_density(X, Y, A, lam, new_tau, new_sigma2, alpha, scale)
        log_ratio -= collapsed_density(X, Y, A, lam, tau, sigma2, alpha, scale)
        for margin, expected in ((-1e-7, True), (1e-7, False)):
            u = np.ones(4)
            u[i] = np.exp(log_ratio + margin)
            *_, accepted = moves.collapsed_scales(BE, collapsed, sigma2, tau, steps, u)
            if u[i] <= 1.5:  # a ratio far above one accepts whatever u is
                assert bool(accepted[i]) is expected


def test_B_after_the_borderline_move_is_the_draw_under_the_new_scales():
    X, Y, *_ = problem(m=6, P=9, R=3, seed=8)
    model = gibbs.Model()
    plan, data, rng = gibbs.plan(model, X, Y, borderline=4), gibbs.prepare(BE, X, Y), RNG(9)
    state = gibbs.initial(plan, data, rng)
    chosen = np.array([1, 3, 4, 8])
    tuning = gibbs.initial_tuning(plan)._replace(doubt=np.where(np.isin(np.arange(9), chosen), 100.0, 0.0))
    noise = gibbs.draw_noise(plan, rng)
    B, F, lam, tau, sigma2, *_ = gibbs._draw_B(BE, plan, data, state.A, state.lam, state.tau, state.sigma2, tuning, noise)
    np.testing.assert_allclose(F, X @ B, atol=1e-10)
    assert (lam[chosen] != state.lam[chosen]).any()
    assert (np.delete(lam, chosen) == np.delete(state.lam, chosen)).all()
    direct = conditionals.draw_B_row(BE, X, Y, state.A, lam, tau, np.sqrt(sigma2), noise["Z"], noise["E"])
    np.testing.assert_allclose(B, direct, atol=1e-10)


def test_single_site_decisions_equal_a_loop_over_features():
    rng = RNG(10)
    X, Y = rng.standard_normal((7, 150)), rng.standard_normal((7, 3))
    blocks = gibbs.prepare(BE, X, Y).blocks
    W, delta, u = rng.standard_normal((7, 3)), 0.4 * rng.standard_normal((150, 3)), rng.random(150)
    prior = 0.2 * rng.standard_normal(150)
    accepted, after = moves.single_site(BE, blocks, W, delta, prior, u)
    loop, residual = [], W.copy()
    for p in range(150):
        new = residual - np.outer(X[:, p], delta[p])
        take = np.log(u[p]) < prior[p] + 0.5 * (residual**2).sum() - 0.5 * (new**2).sum()
        loop.append(take)
        residual = new if take else residual
    assert 20 < sum(loop) < 130
    np.testing.assert_array_equal(accepted, loop)
    np.testing.assert_allclose(after, residual, atol=1e-12)


def test_single_site_decisions_do_not_depend_on_the_blocks():
    rng = RNG(11)
    X, Y = rng.standard_normal((7, 150)), rng.standard_normal((7, 3))
    W, delta, u = rng.standard_normal((7, 3)), 0.4 * rng.standard_normal((150, 3)), rng.random(150)
    prior = 0.2 * rng.standard_normal(150)
    small, large = (gibbs.prepare(BE, X, Y, block=k).blocks for k in (10, 150))
    accepted, after = moves.single_site(BE, small, W, delta, prior, u)
    whole, left = moves.single_site(BE, large._replace(gram=None), W, delta, prior, u)
    np.testing.assert_array_equal(accepted, whole)
    np.testing.assert_allclose(after, left, atol=1e-12)
    # Some blocks only, in their own order: as if the others' changes were nothing.
    visited = np.array([14, 0, 1])
    some, after = moves.single_site(BE, small, W, delta, prior, u, visited)
    places = np.r_[140:150, 0:20]
    alone = gibbs.prepare(BE, X[:, places], Y, block=10).blocks
    picked, left = moves.single_site(BE, alone, W, delta[places], prior[places], u[places])
    np.testing.assert_array_equal(some[places], picked)
    assert picked.any()
    assert not some[20:140].any()
    np.testing.assert_allclose(after, left, atol=1e-12)


def test_one_pass_weighs_as_two_products():
    X, Z = RNG(12).standard_normal((5, 700)), RNG(13).standard_normal((700, 2))
    lam = np.exp(RNG(14).normal(size=700))
    for design in (X, np.asfortranarray(X)):
        G, XZ = BE.weigh(design, lam, Z)
        np.testing.assert_allclose(np.tril(G), np.tril((X * lam**2) @ X.T), rtol=1e-12)
        np.testing.assert_allclose(XZ, (X * lam) @ Z, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(BE.cross(design, XZ), X.T @ XZ, rtol=1e-10, atol=1e-10)


LAWS = [
    (priors.HalfCauchy(), 1.0), (priors.HalfCauchy(), 2.0), (priors.HalfCauchy(), 5.0), (priors.HalfCauchy(0.3), 40.0),
    (priors.Student(), 3.0), (priors.GroupLaplace(1.0), 1.0), (priors.GroupLaplace(3.0), 3.0), (priors.Jeffreys(), 6.0),
]  # fmt: skip


def draw_law(law, k, mu, steps=60, size=20_000, seed=0, wrong=lambda mu: mu):
    rng = RNG(seed)
    eta = np.exp(rng.normal(size=size))
    kinds = {"uniform": lambda a: 1 - rng.random(size), "normal": lambda a: rng.standard_normal(size)}
    for _ in range(steps):
        noise = {
            name: rng.standard_gamma(a, size) if kind == "gamma" else kinds[kind](a) for name, (kind, a) in law.noise(k).items()
        }
        eta = law.draw(np, eta, k, wrong(np.full(size, mu)), noise)
    return eta


def exact_cdf(law, k, mu):
    """Of log eta, by quadrature: eta^(k/2) exp(-eta mu/2) times the law's density of t = -log(eta)/2."""
    x = np.linspace(-45, 45, 200_001)
    log_f = k / 2 * x - np.exp(x) * mu / 2 + law.log_density(np, -x / 2)
    f = np.exp(log_f - log_f.max())
    cdf = cumulative_trapezoid(f, x, initial=0.0)
    return lambda v: np.interp(v, x, cdf / cdf[-1])


@pytest.mark.parametrize("mu", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize(("law", "k"), LAWS)
def test_scale_draws_follow_their_conditional(law, k, mu):
    eta = draw_law(law, k, mu)
    assert kstest(np.log(eta), exact_cdf(law, k, mu)).pvalue > 1e-4


def test_the_papers_exponential_mean_for_a_rate_is_caught():
    """ "Exp(2/mu)" read as a rate, as the authors' code does (docs/errata.md)."""
    eta = draw_law(priors.HalfCauchy(), 1.0, 30.0, wrong=lambda mu: 4 / mu)
    assert kstest(np.log(eta), exact_cdf(priors.HalfCauchy(), 1.0, 30.0)).pvalue < 1e-12


def test_the_papers_exponential_for_tau_is_caught():
    """The truncated exponential belongs to one coefficient (k = 1), not to the P that share tau."""
    eta = draw_law(priors.HalfCauchy(), 1.0, 30.0)
    assert kstest(np.log(eta), exact_cdf(priors.HalfCauchy(), 20.0, 30.0)).pvalue < 1e-12


def test_det_lambda_to_the_minus_one_is_caught():
    """det(Λ)⁻¹ for det(Λ)^(-1/2) doubles k."""
    eta = draw_law(priors.HalfCauchy(), 2.0, 5.0)
    assert kstest(np.log(eta), exact_cdf(priors.HalfCauchy(), 1.0, 5.0)).pvalue < 1e-12
