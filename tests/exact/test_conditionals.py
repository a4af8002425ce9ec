"""Each Gaussian step against a dense textbook solve, each move against the plain formula it shortcuts."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid
from scipy.special import ndtri
from scipy.stats import invwishart, ks_2samp, kstest, multivariate_normal

from intarsia.server.sampler.horseshoe import collapsed, conditionals, noise, systems
from intarsia.server.sampler.horseshoe import sweep as steps_of
from intarsia.server.sampler.horseshoe.chain import start, untuned
from intarsia.server.sampler.horseshoe.collapsed import Place, Steps, Target
from intarsia.server.sampler.horseshoe.conditionals import Given
from intarsia.server.sampler.horseshoe.model import (
    HALF_CAUCHY,
    JEFFREYS,
    LAPLACE,
    STUDENT,
    Law,
    Model,
    draw_precision,
    gamma_shape,
    log_density,
)  # fmt: skip
from intarsia.server.sampler.horseshoe.noise import NU, NoisePrior, SigmaNumbers
from intarsia.server.sampler.horseshoe.sweep import FULL, PLAIN, Sweep, prepare
from intarsia.server.sampler.horseshoe.systems import STIFF, System

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
    given = Given(A, lam, tau, s)
    base = draw(X, Y, given, *zero)
    np.testing.assert_allclose(base, mean, atol=1e-10)
    J = []
    for i in range(P * R + m * columns):
        noise = np.zeros(P * R + m * columns)
        noise[i] = 1.0
        Z, E = noise[: P * R].reshape(P, R), noise[P * R :].reshape(m, columns)
        J.append((draw(X, Y, given, Z, E) - base).ravel())
    np.testing.assert_allclose(np.array(J).T @ np.array(J), cov, atol=1e-10)


@pytest.mark.parametrize("element", [False, True])
def test_a_relaxed_draw_of_B_keeps_its_law(element):
    """B → μ − back (B − μ) + √(1 − back²) ξ: reflected about the conditional mean, the covariance smaller by 1 − back²."""
    X, Y, A, lam, tau, s = problem(m=6, P=4, R=2, element=element)
    step, columns = (conditionals.draw_B_element, 3) if element else (conditionals.draw_B_row, 2)
    (mean, cov), given = dense_B(X, Y, A, lam, tau, s), Given(A, lam, tau, s)
    before = RNG(3).standard_normal((4, 2))

    def relaxed(noise):
        Z, E = noise[:8].reshape(4, 2), noise[8:].reshape(6, columns)
        return conditionals.relaxed(lambda Y, Z, E: step(X, Y, given, Z, E), 0.6, before, Y, Z, E)

    size = 8 + 6 * columns
    base = relaxed(np.zeros(size))
    np.testing.assert_allclose(base, mean - 0.6 * (before - mean), atol=1e-10)
    J = np.array([(relaxed(e) - base).ravel() for e in np.eye(size)])
    np.testing.assert_allclose(J.T @ J, (1 - 0.6**2) * cov, atol=1e-10)


@pytest.mark.parametrize("element", [False, True])
def test_scales_are_drawn_given_their_own_sums_of_squares(element, monkeypatch):
    """Precision 1/lam² given R squares of a row of B over tau (element: one each), 1/tau² given P of a column over lam."""
    *_, lam, tau, _ = problem(P=4, R=2, element=element)
    lam = lam.reshape(4, -1)
    B, asked = RNG(5).standard_normal((4, 2)), []

    def noted(law, eta, k, mu, g, u, v):
        asked.append((eta, k, mu, g, u, v))
        return eta

    monkeypatch.setattr(conditionals, "draw_precision", noted)
    numbers = tuple(RNG(6).random(lam.shape) for _ in range(3))
    np.testing.assert_allclose(conditionals.draw_lam.py_func(lam, B, tau, Law(), numbers), lam)
    squares = np.array([[(B[p, r] / tau[r]) ** 2 for r in range(2)] for p in range(4)])
    eta, k, mu, *used = np.array(asked).T
    np.testing.assert_allclose(mu, squares.ravel() if element else squares[:, 0] + squares[:, 1])
    np.testing.assert_allclose(eta, 1 / lam.ravel() ** 2)
    assert set(k) == {1.0 if element else 2.0}
    np.testing.assert_array_equal(used, [each.ravel() for each in numbers])
    asked.clear()
    numbers = tuple(RNG(7).random(2) for _ in range(3))
    np.testing.assert_allclose(conditionals.draw_tau.py_func(tau, B, lam, Law(), numbers), tau)
    rows = np.broadcast_to(lam, (4, 2))
    eta, k, mu, *used = np.array(asked).T
    np.testing.assert_allclose(mu, [sum((B[p, r] / rows[p, r]) ** 2 for p in range(4)) for r in range(2)])
    np.testing.assert_allclose(eta, 1 / tau**2)
    assert set(k) == {4.0}
    np.testing.assert_array_equal(used, numbers)


def test_A_has_the_textbook_mean_and_covariance():
    X, Y, A, _, _, s = problem()
    F = X @ RNG(1).standard_normal((X.shape[1], 2))
    base = conditionals.draw_A(F, Y, s, np.zeros_like(A))
    for q in range(3):
        cov = np.linalg.inv(F.T @ F / s[q] ** 2 + np.eye(2))
        np.testing.assert_allclose(base[q], cov @ F.T @ Y[:, q] / s[q] ** 2, atol=1e-12)
        J = []
        for r in range(2):
            Z = np.zeros_like(A)
            Z[q, r] = 1
            J.append((conditionals.draw_A(F, Y, s, Z) - base)[q])
        np.testing.assert_allclose(np.array(J).T @ np.array(J), cov, atol=1e-12)


@pytest.mark.parametrize("s", [1e-3, 1e-6, 1e-10])
def test_A_keeps_its_prior_where_a_response_without_noise_says_nothing(s):
    """F of rank one: FᵀF/s² swallows the identity in double precision, the law of A does not know that."""
    draw, rng = conditionals.draw_A, RNG(1)
    f, v = rng.standard_normal(20), rng.standard_normal(3)
    F, Y, s = np.outer(f, v), np.outer(f, [2.0, -1.0]), np.full(2, s)
    base = draw(F, Y, s, np.zeros((2, 3)))
    J = np.stack([draw(F, Y, s, np.outer(np.ones(2), e))[0] - base[0] for e in np.eye(3)], axis=1)
    u = v / np.linalg.norm(v)
    np.testing.assert_allclose(base, np.outer([2.0, -1.0], u) / np.linalg.norm(v), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(J @ J.T, np.eye(3) - np.outer(u, u), atol=2e-3)


def test_rotating_to_the_small_side_changes_no_conditional():
    X, Y, A, lam, tau, s = problem(m=11, P=4)
    data = prepare(Model(), X, Y)
    assert data.X.shape == (4, 4)
    whole, _ = dense_B(X, Y, A, lam, tau, s)
    small, _ = dense_B(data.X, data.Y, A, lam, tau, s)
    np.testing.assert_allclose(small, whole, atol=1e-10)
    B = RNG(3).standard_normal((4, 2))
    small, whole = data.Y - data.X @ B @ A.T, Y - X @ B @ A.T
    np.testing.assert_allclose(small.T @ small + data.rss0, whole.T @ whole, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5, 1e12])
@pytest.mark.parametrize("m", [1, 2, 5])
def test_factor_solves_and_weighs_like_a_dense_matrix(scale, m):
    X = RNG(4).standard_normal((m, 8)) * np.where(np.arange(8) < 3, scale, 1.0)
    d = np.array([0.3, 2.0])
    factor = System(X, np.ones(8)).factor(float((d**2).max()))
    V = RNG(5).standard_normal((m, 2))
    rotated = factor.rotate(V)
    np.testing.assert_allclose(factor.unrotate(rotated), V, atol=1e-12)
    U, sv, _ = np.linalg.svd(X)
    got = factor.unrotate(systems.solve(factor.diag, factor.off, d, np.ascontiguousarray(rotated)))
    K = RNG(6).standard_normal((m, 4))
    products = np.empty((2, 4, 5))
    assert systems.columns_products((factor.diag, factor.off, d), rotated, np.ascontiguousarray(factor.rotate(K)), products)
    for j in range(2):
        eig = 1 + d[j] ** 2 * sv**2
        # Rounding in G costs eps · condition at most; beyond STIFF singular values take over and nothing is lost.
        condition = d[j] ** 2 * sv[0] ** 2
        lost = 1e-13 + 10 * (1e-15 * condition if (d**2).max() * (sv**2).sum() < STIFF else 1e-14)
        np.testing.assert_allclose(got[:, j], U @ ((U.T @ V[:, j]) / eig), atol=lost)
        exact = (U.T @ K).T @ ((U.T @ np.column_stack([K, V[:, j]])) / eig[:, None])
        np.testing.assert_allclose(np.triu(products[j]), np.triu(exact), atol=20 * lost)
    dense = sum(np.log(1 + d[j] ** 2 * sv**2).sum() + ((U.T @ V[:, j]) ** 2 / (1 + d[j] ** 2 * sv**2)).sum() for j in range(2))
    np.testing.assert_allclose(systems.log_marginal(factor.diag, factor.off, d, np.ascontiguousarray(rotated)), dense, rtol=1e-7)


def test_a_system_that_is_not_positive_definite_has_no_number():
    """No proposal is accepted there, and no chain goes on from it."""
    diag, off, one = np.array([1.0, -3.0, 1.0]), np.array([0.5, 0.5]), np.ones(1)
    assert np.isnan(systems.log_marginal(diag, off, one, np.ones((3, 1))))
    assert np.isnan(systems.solve(diag, off, one, np.ones((3, 1)))).all()
    assert not systems.columns_products((diag, off, one), np.ones((3, 1)), np.ones((3, 2)), np.empty((1, 2, 3)))


def test_proposals_of_scales_are_rotations_of_normal_scores():
    """theta = 0 leaves a scale as it is, π/2 forgets it; half-way the C⁺(0, 1) and the exchange of both are kept."""
    rng = RNG(12)
    lam, z = np.abs(rng.standard_cauchy(20_000)), rng.standard_normal(20_000)
    for theta in (0.0, 0.7, np.pi / 2):
        new, owed = conditionals.propose_lam(lam, np.full(lam.size, theta), z, Law())
        assert not owed.any()
        assert kstest(np.arctan(new) * 2 / np.pi, "uniform").pvalue > 1e-4
        score, before = (ndtri(np.arctan(x) * 2 / np.pi) for x in (new, lam))
        np.testing.assert_allclose(score, np.cos(theta) * before + np.sin(theta) * z, atol=1e-6)
    law = Law(STUDENT, 4.0)
    new, owed = conditionals.propose_lam(lam[:9], np.full(9, 0.7), z[:9], law)
    for p in range(9):
        there, here = (log_density(law, np.log(x)) - log_density(Law(), np.log(x)) for x in (new[p], lam[p]))
        np.testing.assert_allclose(owed[p], there - here)


def random_Sigma(rng, Q, correlated):
    L = rng.standard_normal((Q, Q)) + 2 * np.eye(Q)
    return L @ L.T if correlated else np.diag(np.exp(rng.normal(size=Q)))


def log_prior_Sigma(Sigma, scale, correlated):
    """Of Sigma; independent noise: of the logarithms of its levels. Huang & Wand (2013), a integrated out numerically."""
    if not correlated:
        sigma = np.sqrt(np.diag(Sigma))
        return (np.log(sigma) - np.log1p(sigma**2 / scale**2)).sum()
    Q = len(Sigma)
    t = np.linspace(-40, 40, 20_001)  # log a_q
    precision = np.diag(np.linalg.inv(Sigma))
    log_f = -t / 2 - np.exp(-t) / scale[:, None] ** 2  # a ~ IG(1/2, 1/scale²), as a density of t
    log_f = log_f - (NU + Q - 1) / 2 * t - NU * precision[:, None] * np.exp(-t)  # IW(nu + Q - 1, 2 nu diag(1/a)) at Sigma
    top = log_f.max(axis=1, keepdims=True)
    marginal = top[:, 0] + np.log(np.exp(log_f - top).sum(axis=1))
    return marginal.sum() - (NU + 2 * Q) / 2 * np.linalg.slogdet(Sigma)[1]


def collapsed_density(X, Y, A, lam, tau, Sigma, power, scale, correlated):
    """log p(Y | A, lam, tau, Sigma)^power with B integrated out, plus the priors of Sigma and log tau, densely."""
    m, Q = Y.shape
    cov = np.kron((A * tau**2) @ A.T, (X * lam**2) @ X.T) + np.kron(Sigma / power, np.eye(m))
    value = multivariate_normal(np.zeros(m * Q), cov, allow_singular=False).logpdf(Y.T.ravel())
    value += (1 - power) * m / 2 * np.linalg.slogdet(Sigma)[1]
    return value + log_prior_Sigma(Sigma, scale, correlated) + (np.log(tau) - np.log1p(tau**2)).sum()


@pytest.mark.parametrize("correlated", [True, False])
@pytest.mark.parametrize("power", [1.0, 0.6])
@pytest.mark.parametrize(("m", "P", "R"), [(5, 9, 3), (7, 4, 2)])
def test_collapsed_steps_follow_the_marginal_likelihood(power, m, P, R, correlated):
    """Every acceptance threshold equals the dense density ratio: accepted just below it, refused just above."""
    X, Y, A, lam, tau, _ = problem(m=m, P=P, R=R)
    rng, scale, Q = RNG(5), np.full(3, 1.3), 3
    Sigma = random_Sigma(rng, Q, correlated)
    prior = NoisePrior(correlated, HALF_CAUCHY, scale)
    data = prepare(Model(power=power, rank=R), X, Y)
    factor = System(data.X, lam).factor(1e3)
    target = Target(
        factor.diag, factor.off, np.ascontiguousarray(factor.rotate(data.Y)), data.rss0, data.rows, power, prior, Law()
    )
    at = Place(A, tau, *noise.root(Sigma, correlated))
    directions = rng.standard_normal((Q, Q))
    unit = directions / np.linalg.norm(directions, axis=1)[:, None] if correlated else np.eye(Q)
    tried = 0
    for i in range(Q + 1):
        for size in (0.4, -0.4):
            steps = np.zeros(Q + 1)
            steps[i] = size
            new, new_tau, volume = Sigma, tau * np.exp(size), 0.0
            if i < Q:
                root = np.linalg.inv(at.K)
                new, new_tau = root @ (np.eye(Q) + np.expm1(size) * np.outer(unit[i], unit[i])) @ root.T, tau
                volume = (Q + 1) / 2 * size if correlated else 0.0  # the measure that a stretch leaves alone: |Sigma|^(-(Q+1)/2)
            log_ratio = collapsed_density(X, Y, A, lam, new_tau, new, power, scale, correlated) + volume
            log_ratio -= collapsed_density(X, Y, A, lam, tau, Sigma, power, scale, correlated)
            for margin, expected in ((-1e-6, True), (1e-6, False)):
                log_u = np.full(Q + 1, 1e-12)  # a step of nought is neither here nor there
                log_u[i] = log_ratio + margin
                if log_u[i] <= 0.4:  # a ratio far above one accepts whatever u is
                    found, accepted = collapsed.move_scales(target, at, Steps(directions, steps, log_u))
                    assert bool(accepted[i]) is expected
                    after = np.linalg.inv(found.K.T @ found.K)
                    np.testing.assert_allclose(after, new if expected else Sigma, rtol=1e-9, atol=1e-10)
                    np.testing.assert_allclose(noise.from_root(found.K, correlated), after, rtol=1e-9, atol=1e-10)
                    np.testing.assert_allclose(found.tau, new_tau if expected else tau)
                    np.testing.assert_allclose(found.log_det, np.linalg.slogdet(after)[1])
                    tried += 1
    assert tried >= 6


def test_borderline_scales_follow_their_conditional_with_B_integrated_out():
    """Two features, over and over: their scales' joint law, by quadrature of the dense marginal likelihood on a grid."""
    X, Y, A, lam, tau, _ = problem(m=5, P=6, Q=2, R=2, seed=11)
    Sigma, rng, chosen = random_Sigma(RNG(3), 2, True), RNG(4), np.array([1, 4])
    at, prior, found, seen = Place(A, tau, *noise.root(Sigma, True)), NoisePrior(True, HALF_CAUCHY, np.ones(2)), lam.copy(), []
    for _ in range(6000):
        factor = System(X, found).factor(1e6)
        target = Target(factor.diag, factor.off, np.ascontiguousarray(factor.rotate(Y)), np.zeros((2, 2)), 5.0, 1.0, prior, Law())
        numbers = collapsed.Candidates(rng.random((2, 4)), rng.random((2, 4)), rng.random(2))
        columns = np.ascontiguousarray(factor.rotate(X[:, chosen]))
        found[chosen] = collapsed.borderline(target, at, columns, found[chosen], Law(), numbers)
        seen.append(np.log(found[chosen]))
    grid = np.linspace(-12, 9, 120)
    log_f = np.empty((120, 120))
    for i, first in enumerate(grid):
        for j, second in enumerate(grid):
            there = lam.copy()
            there[chosen] = np.exp([first, second])
            cov = np.kron((A * tau**2) @ A.T, (X * there**2) @ X.T) + np.kron(Sigma, np.eye(5))
            L = np.linalg.cholesky(cov)
            log_f[i, j] = -np.log(np.diag(L)).sum() - 0.5 * (np.linalg.solve(L, Y.T.ravel()) ** 2).sum()
            log_f[i, j] += sum(t - np.log1p(np.exp(2 * t)) for t in (first, second))
    f = np.exp(log_f - log_f.max())
    thinned = np.array(seen)[::6]
    for axis in (0, 1):
        cdf = np.cumsum(f.sum(axis=1 - axis))
        steps = np.r_[grid + (grid[1] - grid[0]) / 2]
        assert kstest(thinned[:, axis], lambda v, cdf=cdf, steps=steps: np.interp(v, steps, cdf / cdf[-1])).pvalue > 1e-4


def test_moves_without_B_leave_what_they_do_not_take():
    """Features that are not borderline keep their scales, and B is drawn anew: nothing of the one before is left in it."""
    X, Y, *_ = problem(m=6, P=150, R=3, seed=8)
    data, rng = prepare(Model(), X, Y), RNG(9)
    state = start(data, rng)._replace(Sigma=random_Sigma(rng, 3, True))
    chosen = np.arange(3, 78, 3)
    tuning = untuned(data)._replace(doubt=np.where(np.isin(np.arange(150), chosen), 100.0, 0.0))
    new, _, changed = steps_of.without_B(Sweep(data, tuning, FULL, rng), state)
    moved = np.flatnonzero(new.lam[:, 0] != state.lam[:, 0])
    assert moved.size > 5
    assert np.isin(moved, chosen).all()
    known, anew = (steps_of.draw_B(Sweep(data, tuning, FULL, RNG(1)), new, system)[0].B for system in (changed, None))
    np.testing.assert_allclose(known, anew, rtol=1e-7, atol=1e-9 * np.abs(anew).max())  # from the factor at the old scales
    other = state._replace(B=state.B + 1e6)
    assert (steps_of.draw_B(Sweep(data, tuning, FULL, RNG(1)), new)[0].B == steps_of.draw_B(
        Sweep(data, tuning, FULL, RNG(1)), new._replace(B=other.B))[0].B).all()  # fmt: skip


class Numbers:
    """A generator whose normal numbers are given."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def standard_normal(self, shape):
        given = self.numbers.pop(0)
        return np.zeros(shape) if given is None else given.reshape(shape)


def test_steps_given_Sigma_have_the_textbook_mean_and_covariance():
    """B and A by the rotation, against dense systems with the full Sigma."""
    X, Y, A, lam, tau, _ = problem(m=6, P=4, R=2)
    data = replace(prepare(Model(rank=2), X, Y, mixing=False), X=X, Y=Y)
    state = start(data, RNG(1))._replace(A=A, lam=lam[:, None], tau=tau, Sigma=random_Sigma(RNG(2), 3, True))
    white = np.linalg.inv(np.linalg.cholesky(state.Sigma))
    design = np.kron(X, white @ A)
    cov = np.linalg.inv(design.T @ design + np.diag(1 / (lam[:, None] * tau).ravel() ** 2))
    mean = (cov @ design.T @ (Y @ white.T).ravel()).reshape(4, 2)

    def draw_B(Z=None, E=None):
        return steps_of.draw_B(Sweep(data, None, PLAIN, Numbers(Z, E)), state)[0].B

    np.testing.assert_allclose(draw_B(), mean, atol=1e-10)
    J = [draw_B(Z=e) - mean for e in np.eye(8)] + [draw_B(E=e) - mean for e in np.eye(12)]
    J = np.array(J).reshape(20, 8)
    np.testing.assert_allclose(J.T @ J, cov, atol=1e-10)

    F, view = X @ mean, steps_of.rotated(data, state)
    design = np.kron(F, white)  # vec of Aᵀ by columns of A
    cov = np.linalg.inv(design.T @ design + np.eye(6))
    expected = (cov @ design.T @ (Y @ white.T).ravel()).reshape(2, 3).T

    def draw_A(Z=None):
        return steps_of.draw_A(Sweep(data, None, PLAIN, Numbers(Z)), state, F, view).A

    np.testing.assert_allclose(draw_A(), expected, atol=1e-10)
    J = np.array([(draw_A(e) - expected).T.ravel() for e in np.eye(6)])
    np.testing.assert_allclose(J.T @ J, cov, atol=1e-10)


SCALE = np.array([1.0, 0.5, 2.0])


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_Sigma_given_a_is_inverse_wishart(power):
    """Moments, and every random number in its place: draws of log det and of an entry against SciPy's law."""
    a, rng, Sigma = np.array([0.7, 1.0, 3.0]), RNG(21), random_Sigma(RNG(22), 3, True)
    E, prior, found = RNG(23).standard_normal((8, 3)), NoisePrior(True, HALF_CAUCHY, SCALE), []
    fixed = (NU * np.diag(np.linalg.inv(Sigma)) + 1 / SCALE**2) / a
    for _ in range(4000):
        numbers = noise.numbers_for(prior, power * 8.0, rng)._replace(first=fixed)
        found.append(noise.draw_Sigma(Sigma, power * E.T @ E, power * 8.0, prior, numbers))
    found = np.array(found)
    degrees, psi = NU + 2 + power * 8, power * E.T @ E + 2 * NU * np.diag(1 / a)
    law = invwishart(degrees, psi)
    error = found.std(axis=0) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - psi / (degrees - 4)) < 5 * error).all()
    other = law.rvs(20_000, random_state=1)
    for f in (lambda S: np.linalg.slogdet(S)[1], lambda S: S[..., 0, 0], lambda S: S[..., 0, 2], lambda S: S[..., 1, 2]):
        assert ks_2samp(f(found), f(other)).pvalue > 1e-4


def test_Sigma_and_a_keep_their_joint_law_for_the_scatter():
    """Sigma from its density by importance weights (SciPy's inverse Wishart) is left alone by a draw."""
    rng, E, prior = RNG(31), RNG(23).standard_normal((8, 3)), NoisePrior(True, HALF_CAUCHY, SCALE)
    proposal = invwishart(NU + 2 + 8, E.T @ E)  # all of the target but the prior's bounded part
    some = proposal.rvs(40_000, random_state=2)
    weight = np.array([log_prior_fast(S, SCALE) for S in some]) + invwishart_likelihood(some, E)
    weight = weight - proposal.logpdf(np.moveaxis(some, 0, -1))
    weight = np.exp(weight - weight.max())
    before = some[rng.choice(len(some), 3000, p=weight / weight.sum())]
    after = [noise.draw_Sigma(S, E.T @ E, 8.0, prior, noise.numbers_for(prior, 8.0, rng)) for S in before]
    for f in (lambda S: np.linalg.slogdet(S)[1], lambda S: S[:, 1, 1], lambda S: S[:, 0, 1] / np.sqrt(S[:, 0, 0] * S[:, 1, 1])):
        assert ks_2samp(f(before), f(np.array(after))).pvalue > 1e-4


def test_independent_levels_are_drawn_each_from_its_own_scatter(monkeypatch):
    asked = []
    monkeypatch.setattr(noise, "draw_precision", lambda *given: asked.append(given) or 4.0)
    numbers = SigmaNumbers(*(RNG(k).random(3) for k in range(3)))
    scatter, before = RNG(5).random((3, 3)), np.diag([1.0, 4.0, 0.25])
    found = noise.draw_Sigma.py_func(before, scatter, 8.0, NoisePrior(False, HALF_CAUCHY, SCALE), numbers)
    np.testing.assert_array_equal(found, np.diag([0.25] * 3))
    for q, (law, eta, rows, mu, *used) in enumerate(asked):
        assert (law, rows) == (Law(HALF_CAUCHY, SCALE[q]), 8.0)
        np.testing.assert_allclose([eta, mu, *used], [1 / before[q, q], scatter[q, q], *(each[q] for each in numbers)])


def log_prior_fast(Sigma, scale):
    """`log_prior_Sigma` in closed form; the test below holds them together."""
    Q, precision = len(Sigma), np.diag(np.linalg.inv(Sigma))
    return -(NU + 2 * Q) / 2 * np.linalg.slogdet(Sigma)[1] - (NU + Q) / 2 * np.log(NU * precision + 1 / scale**2).sum()


def invwishart_likelihood(Sigma, E):
    quad = np.einsum("sij,ji->s", np.linalg.inv(Sigma), E.T @ E)
    return -len(E) / 2 * np.linalg.slogdet(Sigma)[1] - quad / 2


def test_the_prior_of_Sigma_with_a_integrated_out():
    values = []
    for seed in range(4):
        Sigma = random_Sigma(RNG(seed), 3, True)
        ours = noise.log_prior(*noise.root(Sigma, True), NoisePrior(True, HALF_CAUCHY, SCALE))
        ours -= 2 * np.linalg.slogdet(Sigma)[1]  # (Q+1)/2: from the invariant measure to dSigma
        values.append([ours, log_prior_fast(Sigma, SCALE), log_prior_Sigma(Sigma, SCALE, True)])
    values = np.array(values)
    np.testing.assert_allclose(values - values[0], np.tile((values - values[0])[:, :1], 3), atol=1e-6)


def test_single_site_decisions_equal_a_loop_over_features():
    rng = RNG(10)
    X, Y = rng.standard_normal((7, 150)), rng.standard_normal((7, 3))
    data = prepare(Model(), X, Y)
    W, delta, u = rng.standard_normal((7, 3)), 0.4 * rng.standard_normal((150, 3)), rng.random(150)
    prior = 0.2 * rng.standard_normal(150)
    accepted, after = conditionals.single_site(data.blocks, data.grams, W, delta, prior - np.log(u))
    loop, residual = [], W.copy()
    for p in range(150):
        new = residual - np.outer(X[:, p], delta[p])
        take = np.log(u[p]) < prior[p] + 0.5 * (residual**2).sum() - 0.5 * (new**2).sum()
        loop.append(take)
        residual = new if take else residual
    assert 20 < sum(loop) < 130
    np.testing.assert_array_equal(accepted, loop)
    np.testing.assert_allclose(after, residual, atol=1e-12)


LAWS = [
    (Law(), 1.0), (Law(), 2.0), (Law(), 5.0), (Law(HALF_CAUCHY, 0.3), 40.0),
    (Law(STUDENT, 4.0), 3.0), (Law(LAPLACE, 1.0), 1.0), (Law(LAPLACE, 3.0), 3.0), (Law(JEFFREYS), 6.0),
]  # fmt: skip


def draw_law(law, k, mu, steps=60, size=20_000, seed=0, wrong=lambda mu: mu):
    rng = RNG(seed)
    eta, mu = np.exp(rng.normal(size=size)), wrong(mu)
    for _ in range(steps):
        g, u, v = rng.standard_gamma(gamma_shape(law, k), size), 1 - rng.random(size), 1 - rng.random(size)
        eta = np.array([draw_precision(law, *each) for each in zip(eta, [k] * size, [mu] * size, g, u, v, strict=True)])
    return eta


def exact_cdf(law, k, mu):
    """Of log eta, by quadrature: eta^(k/2) exp(-eta mu/2) times the law's density of t = -log(eta)/2."""
    x = np.linspace(-45, 45, 40_001)
    log_f = k / 2 * x - np.exp(x) * mu / 2 + np.array([log_density(law, -at / 2) for at in x])
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
    eta = draw_law(Law(), 1.0, 30.0, wrong=lambda mu: 4 / mu)
    assert kstest(np.log(eta), exact_cdf(Law(), 1.0, 30.0)).pvalue < 1e-12


def test_the_papers_exponential_for_tau_is_caught():
    """The truncated exponential belongs to one coefficient (k = 1), not to the P that share tau."""
    eta = draw_law(Law(), 1.0, 30.0)
    assert kstest(np.log(eta), exact_cdf(Law(), 20.0, 30.0)).pvalue < 1e-12


def test_det_lambda_to_the_minus_one_is_caught():
    """det(Λ)⁻¹ for det(Λ)^(-1/2) doubles k."""
    eta = draw_law(Law(), 2.0, 5.0)
    assert kstest(np.log(eta), exact_cdf(Law(), 1.0, 5.0)).pvalue < 1e-12
