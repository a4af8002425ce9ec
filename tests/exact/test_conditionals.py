"""Each Gaussian step against a dense textbook solve, each move against the plain formula it shortcuts."""

import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid
from scipy.stats import invwishart, ks_2samp, kstest, multivariate_normal

from intarsia.server.sampler import backends, conditionals, exchange, integrated, kernels, moves, priors, without_b
from intarsia.server.sampler import sweep as steps_of
from intarsia.server.sampler.backends.numpy import STIFF
from intarsia.server.sampler.conditionals import Given
from intarsia.server.sampler.covariance import NU, Correlated, Independent
from intarsia.server.sampler.model import Model
from intarsia.server.sampler.schedule import FULL, draw_noise
from intarsia.server.sampler.schedule import plan as make_plan
from intarsia.server.sampler.start import initial, initial_tuning
from intarsia.server.sampler.state import Stats, prepare

BE = backends.get("numpy")
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
    base = draw(BE, X, Y, given, *zero)
    np.testing.assert_allclose(base, mean, atol=1e-10)
    J = []
    for i in range(P * R + m * columns):
        noise = np.zeros(P * R + m * columns)
        noise[i] = 1.0
        Z, E = noise[: P * R].reshape(P, R), noise[P * R :].reshape(m, columns)
        J.append((draw(BE, X, Y, given, Z, E) - base).ravel())
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
        return conditionals.relaxed(lambda Y, Z, E: step(BE, X, Y, given, Z, E), 0.6, before, Y, Z, E)

    size = 8 + 6 * columns
    base = relaxed(np.zeros(size))
    np.testing.assert_allclose(base, mean - 0.6 * (before - mean), atol=1e-10)
    J = np.array([(relaxed(e) - base).ravel() for e in np.eye(size)])
    np.testing.assert_allclose(J.T @ J, (1 - 0.6**2) * cov, atol=1e-10)


class Asked:
    """A law that notes what it is asked for and leaves the precision as it is."""

    def draw(self, xp, eta, k, mu, noise):
        self.eta, self.k, self.mu = eta, k, mu
        return eta


@pytest.mark.parametrize("element", [False, True])
def test_scales_are_drawn_given_their_own_sums_of_squares(element):
    """Precision 1/lam² given R squares of a row of B over tau (element: one each), 1/tau² given P of a column over lam."""
    *_, lam, tau, _ = problem(P=4, R=2, element=element)
    B, law = RNG(5).standard_normal((4, 2)), Asked()
    np.testing.assert_allclose(conditionals.draw_lam(BE, lam, B, tau, law, {}), lam)
    rows = lam if element else np.repeat(lam[:, None], 2, axis=1)
    squares = np.array([[(B[p, r] / tau[r]) ** 2 for r in range(2)] for p in range(4)])
    np.testing.assert_allclose(law.mu, squares if element else squares[:, 0] + squares[:, 1])
    np.testing.assert_allclose(law.eta, 1 / lam**2)
    assert law.k == (1 if element else 2)
    np.testing.assert_allclose(conditionals.draw_tau(BE, tau, B, lam, law, {}), tau)
    np.testing.assert_allclose(law.mu, [sum((B[p, r] / rows[p, r]) ** 2 for p in range(4)) for r in range(2)])
    np.testing.assert_allclose(law.eta, 1 / tau**2)
    assert law.k == 4


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
def test_A_keeps_its_prior_where_a_response_without_noise_says_nothing(s, compiled):
    """F of rank one: FᵀF/s² swallows the identity in double precision, the law of A does not know that."""
    draw = (lambda F, Y, s, Z: kernels.draw_A(F, Y, s**2, Z)) if compiled else (lambda *a: conditionals.draw_A(BE, *a))
    rng = RNG(1)
    f, v = rng.standard_normal(20), rng.standard_normal(3)
    F, Y, s = np.outer(f, v), np.outer(f, [2.0, -1.0]), np.full(2, s)
    base = draw(F, Y, s, np.zeros((2, 3)))
    J = np.stack([draw(F, Y, s, np.outer(np.ones(2), e))[0] - base[0] for e in np.eye(3)], axis=1)
    u = v / np.linalg.norm(v)
    np.testing.assert_allclose(base, np.outer([2.0, -1.0], u) / np.linalg.norm(v), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(J @ J.T, np.eye(3) - np.outer(u, u), atol=2e-3)


def test_rotating_to_the_small_side_changes_no_conditional():
    X, Y, A, lam, tau, s = problem(m=11, P=4)
    data = prepare(BE, X, Y)
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
        lost = 1e-15 * condition if (d**2).max() * (sv**2).sum() < STIFF else 1e-14
        np.testing.assert_allclose(got, exact, atol=1e-13 + 10 * lost)
    dense = sum(np.log(1 + d[j] ** 2 * sv**2).sum() + ((U.T @ V[:, j]) ** 2 / (1 + d[j] ** 2 * sv**2)).sum() for j in range(2))
    np.testing.assert_allclose(factor.log_marginal(d, rotated), dense, rtol=1e-7)


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
    law = Correlated(scale) if correlated else Independent(priors.HalfCauchy(scale), scale)
    Sigma, data = random_Sigma(rng, Q, correlated), prepare(BE, X, Y)
    factor = BE.factor(BE.gram(data.X * lam), data.X, lam, 1e3)
    at = law.rotation(BE, Sigma).root()
    target = integrated.Collapsed(BE, factor, factor.rotate(data.Y), A, data.rss0, data.m, power, tau, priors.HalfCauchy(), law)
    directions = law.directions(BE, rng.standard_normal((Q, Q)))
    tried = 0
    for i in range(Q + 1):
        for size in (0.4, -0.4):
            steps = np.zeros(Q + 1)
            steps[i] = size
            new, new_tau, volume = Sigma, tau * np.exp(size), 0.0
            if i < Q:
                root = np.linalg.inv(at.K)
                new, new_tau = root @ (np.eye(Q) + np.expm1(size) * np.outer(directions[i], directions[i])) @ root.T, tau
                volume = (Q + 1) / 2 * size if correlated else 0.0  # the measure that a stretch leaves alone: |Sigma|^(-(Q+1)/2)
            log_ratio = collapsed_density(X, Y, A, lam, new_tau, new, power, scale, correlated) + volume
            log_ratio -= collapsed_density(X, Y, A, lam, tau, Sigma, power, scale, correlated)
            for margin, expected in ((-1e-6, True), (1e-6, False)):
                u = np.ones(Q + 1)
                u[i] = np.exp(log_ratio + margin)
                if u[i] <= 1.5:  # a ratio far above one accepts whatever u is
                    found, found_tau, accepted = integrated.collapsed_scales(BE, target, at, directions, steps, u)
                    assert bool(accepted[i]) is expected
                    after = np.linalg.inv(found.K.T @ found.K)
                    np.testing.assert_allclose(after, new if expected else Sigma, rtol=1e-9, atol=1e-10)
                    np.testing.assert_allclose(found_tau, new_tau if expected else tau)
                    np.testing.assert_allclose(np.log(found.volume).sum(), np.linalg.slogdet(after)[1])
                    tried += 1
    assert tried >= 6


def test_B_after_the_borderline_move_is_the_draw_under_the_new_scales():
    X, Y, *_ = problem(m=6, P=9, R=3, seed=8)
    plan, data, rng = make_plan(Model(), X, Y, borderline=4), prepare(BE, X, Y), RNG(9)
    state = initial(plan, data, rng)._replace(Sigma=random_Sigma(rng, 3, True))
    chosen = np.array([1, 3, 4, 8])
    tuning = initial_tuning(plan)._replace(doubt=np.where(np.isin(np.arange(9), chosen), 100.0, 0.0))
    noise = draw_noise(plan, rng)
    now = steps_of.Sweep(BE, plan, data, tuning, noise, FULL, None)
    new, F, rotation, _ = without_b.draw(now, state, Stats(None, None), without_b.Ways(steps_of.walk, exchange.scales))
    view = steps_of.Rotated(rotation, data.Y @ rotation.U, rotation.U.T @ new.A)
    np.testing.assert_allclose(F, X @ new.B, atol=1e-10)
    assert (new.lam[chosen] != state.lam[chosen]).any()
    assert (np.delete(new.lam, chosen) == np.delete(state.lam, chosen)).all()
    given = Given(view.A, new.lam, new.tau, view.deviation(1.0))
    direct = conditionals.draw_B_row(BE, X, view.Y, given, noise["Z"], noise["E"])
    np.testing.assert_allclose(new.B, direct, atol=1e-10)


def test_steps_given_Sigma_have_the_textbook_mean_and_covariance():
    """B and A by the rotation, against dense systems with the full Sigma."""
    X, Y, A, lam, tau, _ = problem(m=6, P=4, R=2)
    plan, data = make_plan(Model(rank=2), X, Y, mixing=False, compiled=False), prepare(BE, X, Y)._replace(X=X, Y=Y)
    state = initial(plan, data, RNG(1))._replace(A=A, lam=lam, tau=tau, Sigma=random_Sigma(RNG(2), 3, True))
    zero = {name: np.zeros(shape) for name, (_, shape, _) in plan.noise(FULL).items()} | {"E": np.zeros((6, 2))}
    white = np.linalg.inv(np.linalg.cholesky(state.Sigma))
    design = np.kron(X, white @ A)
    cov = np.linalg.inv(design.T @ design + np.diag(1 / (lam[:, None] * tau).ravel() ** 2))
    mean = (cov @ design.T @ (Y @ white.T).ravel()).reshape(4, 2)

    def draw_B(**noise):
        return steps_of.draw_B(steps_of.Sweep(BE, plan, data, None, zero | noise, FULL, None), state)[0].B

    np.testing.assert_allclose(draw_B(), mean, atol=1e-10)
    J = [draw_B(Z=e.reshape(4, 2)) - mean for e in np.eye(8)] + [draw_B(E=e.reshape(6, 2)) - mean for e in np.eye(12)]
    J = np.array(J).reshape(20, 8)
    np.testing.assert_allclose(J.T @ J, cov, atol=1e-10)

    F, view = X @ mean, steps_of.rotated(steps_of.Sweep(BE, plan, data, None, zero, FULL, None), state)
    design = np.kron(F, white)  # vec of Aᵀ by columns of A
    cov = np.linalg.inv(design.T @ design + np.eye(6))
    expected = (cov @ design.T @ (Y @ white.T).ravel()).reshape(2, 3).T

    def draw_A(**noise):
        return steps_of.draw_A(steps_of.Sweep(BE, plan, data, None, zero | noise, FULL, None), state, F, view).A

    np.testing.assert_allclose(draw_A(), expected, atol=1e-10)
    J = np.array([(draw_A(A=e.reshape(3, 2)) - expected).T.ravel() for e in np.eye(6)])
    np.testing.assert_allclose(J.T @ J, cov, atol=1e-10)


def draws_of_Sigma(size, power=1.0, a=None, compiled=False):
    """Sigma given one residual scatter, from one state; `a` fixes the auxiliary variables."""
    rng, Q, rows = RNG(21), 3, 8.0
    scale = np.array([1.0, 0.5, 2.0])
    law, Sigma = Correlated(scale), random_Sigma(RNG(22), 3, True)
    E = RNG(23).standard_normal((8, 3))
    at, out = law.rotation(BE, Sigma), []
    for _ in range(size):
        noise = {}
        for name, (kind, shape, parameter) in law.needs(power * rows, Q).items():
            noise[name] = rng.standard_gamma(parameter, shape) if kind == "gamma" else rng.standard_normal(shape)
        if a is not None:
            noise["a"] = (NU * at.precision() + 1 / scale**2) / a
        if compiled:
            three = noise["a"], noise["normal"], noise["chi"]
            out.append(kernels.draw_Sigma(at.U, at.variances, power * E.T @ E, power * rows, scale, True, three))
        else:
            out.append(law.draw(BE, at, power * E.T @ E, power * rows, noise))
    return np.array(out), E, scale, Sigma


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_Sigma_given_a_is_inverse_wishart(power, compiled):
    """Moments, and every random number in its place: draws of log det and of an entry against SciPy's law."""
    a = np.array([0.7, 1.0, 3.0])
    found, E, _, _ = draws_of_Sigma(4000, power, a, compiled)
    degrees, psi = NU + 2 + power * 8, power * E.T @ E + 2 * NU * np.diag(1 / a)
    law = invwishart(degrees, psi)
    error = found.std(axis=0) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - psi / (degrees - 4)) < 5 * error).all()
    other = law.rvs(20_000, random_state=1)
    for f in (lambda S: np.linalg.slogdet(S)[1], lambda S: S[..., 0, 0], lambda S: S[..., 0, 2], lambda S: S[..., 1, 2]):
        assert ks_2samp(f(found), f(other)).pvalue > 1e-4


def test_Sigma_and_a_keep_their_joint_law_for_the_scatter():
    """Sigma from its density by importance weights (SciPy's inverse Wishart) is left alone by a draw."""
    rng, scale, E = RNG(31), np.array([1.0, 0.5, 2.0]), RNG(23).standard_normal((8, 3))
    law = Correlated(scale)
    proposal = invwishart(NU + 2 + 8, E.T @ E)  # all of the target but the prior's bounded part
    some = proposal.rvs(40_000, random_state=2)
    weight = np.array([log_prior_fast(S, scale) for S in some]) + invwishart_likelihood(some, E)
    weight = weight - proposal.logpdf(np.moveaxis(some, 0, -1))
    weight = np.exp(weight - weight.max())
    before = some[rng.choice(len(some), 3000, p=weight / weight.sum())]
    after = []
    for S in before:
        noise = {}
        for name, (kind, shape, parameter) in law.needs(8.0, 3).items():
            noise[name] = rng.standard_gamma(parameter, shape) if kind == "gamma" else rng.standard_normal(shape)
        after.append(law.draw(BE, law.rotation(BE, S), E.T @ E, 8.0, noise))
    for f in (lambda S: np.linalg.slogdet(S)[1], lambda S: S[:, 1, 1], lambda S: S[:, 0, 1] / np.sqrt(S[:, 0, 0] * S[:, 1, 1])):
        assert ks_2samp(f(before), f(np.array(after))).pvalue > 1e-4


def log_prior_fast(Sigma, scale):
    """`log_prior_Sigma` in closed form; the test below holds them together."""
    Q, precision = len(Sigma), np.diag(np.linalg.inv(Sigma))
    return -(NU + 2 * Q) / 2 * np.linalg.slogdet(Sigma)[1] - (NU + Q) / 2 * np.log(NU * precision + 1 / scale**2).sum()


def invwishart_likelihood(Sigma, E):
    quad = np.einsum("sij,ji->s", np.linalg.inv(Sigma), E.T @ E)
    return -len(E) / 2 * np.linalg.slogdet(Sigma)[1] - quad / 2


def test_the_prior_of_Sigma_with_a_integrated_out():
    scale = np.array([1.0, 0.5, 2.0])
    values = []
    for seed in range(4):
        Sigma = random_Sigma(RNG(seed), 3, True)
        law = Correlated(scale)
        at = law.rotation(BE, Sigma).root()
        ours = law.log_density(BE, at) - 2 * np.linalg.slogdet(Sigma)[1]  # (Q+1)/2: from the invariant measure to dSigma
        values.append([ours, log_prior_fast(Sigma, scale), log_prior_Sigma(Sigma, scale, True)])
    values = np.array(values)
    np.testing.assert_allclose(values - values[0], np.tile((values - values[0])[:, :1], 3), atol=1e-6)


def test_single_site_decisions_equal_a_loop_over_features():
    rng = RNG(10)
    X, Y = rng.standard_normal((7, 150)), rng.standard_normal((7, 3))
    blocks = prepare(BE, X, Y).blocks
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
    small, large = (prepare(BE, X, Y, block=k).blocks for k in (10, 150))
    accepted, after = moves.single_site(BE, small, W, delta, prior, u)
    whole, left = moves.single_site(BE, large._replace(gram=None), W, delta, prior, u)
    np.testing.assert_array_equal(accepted, whole)
    np.testing.assert_allclose(after, left, atol=1e-12)
    # Some blocks only, in their own order: as if the others' changes were nothing.
    visited = np.array([14, 0, 1])
    some, after = moves.single_site(BE, small, W, delta, prior, u, visited)
    places = np.r_[140:150, 0:20]
    alone = prepare(BE, X[:, places], Y, block=10).blocks
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
